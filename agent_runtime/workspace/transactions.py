"""Transactions of the workspace: reads, writes under this process's lease, and writes that happen once."""

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from datetime import datetime
from typing import Any, TypeVar

from sqlalchemy import Connection

from agent_runtime.store.database import check_lease
from agent_runtime.store.idempotency import Call, Outcome, once, refuse_ended
from turnkeeper.storage.database import Database

OnEffect = Callable[[str, Mapping[str, Any]], None]
T = TypeVar("T")
_TEXTS = {"title", "key", "forgotten"}  # of a write's result: no event has them


class Transactions:
    """Runs work on the runtime's store.

    Args:
        database: the runtime's, with the tables of `agent_runtime.store.workspace_schema`.
        on_effect: called after every write, with an event's name and fields, which never hold a text.
        epoch: of the lease under which this process writes; None where nobody else may own the store.
    """

    def __init__(self, database: Database, on_effect: OnEffect, *, epoch: int | None = None) -> None:
        self._database = database
        self._epoch = epoch
        self.emit = on_effect

    async def read(self, work: Callable[[Connection], T]) -> T:
        """Run a reading function in a transaction."""
        return await self._database.run(work)

    async def write(self, work: Callable[[Connection], T]) -> T:
        """Run a writing function in a transaction, under this process's lease."""
        return await self._database.run(lambda connection: self._leased(connection, work))

    def submit(self, work: Callable[[Connection], T]) -> "Future[T]":
        """As `write`, for a caller without an event loop."""
        return self._database.submit(lambda connection: self._leased(connection, work))

    async def once(
        self, call: Call, scope: str, at: datetime, write: Callable[[Connection], Mapping[str, Any]]
    ) -> Outcome:
        """Run a turn's write once, however often its call is run, and emit its event. Raises Denied after the turn."""

        def work(connection: Connection) -> Outcome:
            return once(connection, call, scope, at, refuse_ended, lambda: write(connection))

        outcome = await self.write(work)
        self.wrote(call, scope, outcome)
        return outcome

    def wrote(self, call: Call, scope: str, outcome: Outcome) -> None:
        """Emit the event of a turn's write that is on disk."""
        turn = call.context
        about = {"turn_id": turn.turn_id, "thread_id": turn.thread_id, "category": turn.category.name, "scope": scope}
        named = {key: value for key, value in outcome.result.items() if key not in _TEXTS}
        self.emit("agent.wrote", about | named | {"repeated": outcome.repeated})

    def _leased(self, connection: Connection, work: Callable[[Connection], T]) -> T:
        if self._epoch is not None:
            check_lease(connection, self._epoch)
        return work(connection)
