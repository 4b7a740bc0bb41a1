"""Transactions of the workspace, and idempotent writes, in which a repeated tool call gets the result of its first run.

Every write checks this process's lease. Machines that share a workspace make writes about one subject, such as an entry
of memory, one after the other. So what a write has read of it does not change before its commit. A turn that has ended
or is being cancelled can no longer write.
"""

import json
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar

from sqlalchemy import Connection, and_, exists, insert, select

from agent_runtime.model.turn import TurnContext
from agent_runtime.store.leases import Right
from agent_runtime.store.schema import cancels, effects, turns
from turnkeeper.errors import Denied
from turnkeeper.storage.database import Database
from turnkeeper.storage.statements import in_turn
from turnkeeper.times import to_us

PAGES = "pages"  # the subject of all writes about pages, which link to each other
Fence = Callable[[Connection, TurnContext], None]
Write = Callable[[Connection], Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Call:
    """A tool call of a running turn, as the workspace sees it.

    Attributes:
        context: the turn, with the scopes that apply to this call.
        key: thread, checkpoint namespace and tool call id: the same for every run of this call, and for no other call.
    """

    context: TurnContext
    key: str


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The result of a write.

    Attributes:
        result: a JSON object, which the tool returns.
        repeated: True if an earlier run of the same call made the write.
    """

    result: Mapping[str, Any]
    repeated: bool


def known(connection: Connection, call: Call) -> Mapping[str, Any] | None:
    """Return the result of an earlier run of the same call. None if there was none."""
    found = connection.execute(select(effects.c.result_json).where(effects.c.effect_key == call.key)).scalar()
    return None if found is None else json.loads(found)


def once(
    connection: Connection, call: Call, scope: str, at: datetime, fence: Fence, write: Callable[[], Mapping[str, Any]]
) -> Outcome:
    """Run `write` unless an earlier run of the same call did. Store the result in the same transaction.

    Raises:
        Denied: `fence` refuses the turn because it may no longer write; nothing is written.
    """
    before = known(connection, call)
    if before is not None:
        return Outcome(result=before, repeated=True)
    fence(connection, call.context)
    result = write()
    row = {
        "effect_key": call.key,
        "turn_id": call.context.turn_id,
        "scope": scope,
        "result_json": json.dumps(result, sort_keys=True),
        "at_us": to_us(at),
    }
    connection.execute(insert(effects).values(row))
    return Outcome(result=result, repeated=False)


def refuse_ended(connection: Connection, context: TurnContext) -> None:
    """Raise Denied unless the turn is running and no cancellation is stored; a cancelled turn writes nothing."""
    cancelled = exists().where(cancels.c.turn_id == context.turn_id)
    running = and_(turns.c.turn_id == context.turn_id, turns.c.status == "running")
    if connection.execute(select(turns.c.number).where(running, ~cancelled)).one_or_none() is None:
        raise Denied("the turn has ended or is being cancelled, so it can no longer write", where=context.turn_id)


OnEffect = Callable[[str, Mapping[str, Any]], None]
T = TypeVar("T")
_TEXTS = {"title", "key", "forgotten"}  # fields of a write's result that events leave out


class Transactions:
    """The transactions of the workspace on the runtime's store.

    Args:
        database: the runtime's database, with the tables of `agent_runtime.store.schema`.
        on_effect: called after every write, with an event's name and its fields. The fields never contain text.
        right: this process's right to write; None if no other process can own the store.
    """

    def __init__(self, database: Database, on_effect: OnEffect, *, right: Right | None = None) -> None:
        self._database = database
        self._right = right
        self.emit = on_effect

    async def read(self, work: Callable[[Connection], T]) -> T:
        return await self._database.read(work)

    async def write(self, work: Callable[[Connection], T], subjects: Collection[str] = (PAGES,)) -> T:
        """Run a write function in a transaction, under this process's lease, alone on its subjects."""
        return await self._database.run(self._proven(work, subjects))

    def submit(self, work: Callable[[Connection], T], subjects: Collection[str] = (PAGES,)) -> "Future[T]":
        """Run :meth:`write` for a caller without an event loop."""
        return self._database.submit(self._proven(work, subjects))

    async def once(self, call: Call, scope: str, at: datetime, write: Write, subjects: Collection[str]) -> Outcome:
        """Run a turn's write once, even for a repeated call, and emit an event. Raises Denied if the turn has ended."""

        def work(connection: Connection) -> Outcome:
            return once(connection, call, scope, at, refuse_ended, lambda: write(connection))

        if self._right is not None:
            self._right.demand()
        outcome = await self.write(work, subjects)
        self.wrote(call, scope, outcome)
        return outcome

    def wrote(self, call: Call, scope: str, outcome: Outcome) -> None:
        """Emit the event of a turn's committed write."""
        turn = call.context
        about = {"turn_id": turn.turn_id, "thread_id": turn.thread_id, "category": turn.category.name, "scope": scope}
        named = {key: value for key, value in outcome.result.items() if key not in _TEXTS}
        self.emit("agent.wrote", about | named | {"repeated": outcome.repeated})

    def _proven(self, work: Callable[[Connection], T], subjects: Collection[str]) -> Callable[[Connection], T]:
        def alone(connection: Connection) -> T:
            in_turn(connection, subjects)
            return work(connection)

        return work if self._right is None else self._right.proven(alone)
