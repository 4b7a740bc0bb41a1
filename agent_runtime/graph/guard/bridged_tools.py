"""Tools that run, written as bridged events: before a tool begins, and before anybody sees its answer."""

import asyncio
from collections.abc import Callable

from sqlalchemy import Connection

from agent_runtime.graph.guard.tool_events import Use
from agent_runtime.store.turn_events import OF_TOOLS
from agent_runtime.store.turn_reads import check_lease, get_turn
from agent_runtime.store.turn_store import Store
from turnkeeper.clock import Clock
from turnkeeper.storage.database import Database


class ToolUses:
    """The onlooker of the guard. Tools run on the loop and in threads of their own; both wait for the disk here."""

    def __init__(self, database: Database, store: Store, clock: Clock) -> None:
        """Take the store whose bridge is told, on the loop on which the bridge's news are waited for."""
        self._loop = asyncio.get_running_loop()
        self._database = database
        self._store = store
        self._clock = clock

    @property
    def listens(self) -> bool:
        """Whether anybody asked for these events."""
        return not self._store.bridge.wanted.isdisjoint(OF_TOOLS)

    def tell(self, use: Use) -> None:
        """Write it, for a thread that may wait."""
        self._database.submit(self._work(use)).result()
        self._loop.call_soon_threadsafe(self._store.bridge.news.ring)

    async def atell(self, use: Use) -> None:
        """Write it."""
        await self._database.run(self._work(use))
        self._store.bridge.news.ring()

    def _work(self, use: Use) -> Callable[[Connection], None]:
        at, name = self._clock.now(), OF_TOOLS[use.ended]
        outcome = {"ok": use.ok} if use.ended else {}

        def work(connection: Connection) -> None:
            check_lease(connection, self._store.epoch)
            turn = get_turn(connection, use.turn_id)
            if turn is not None and turn.status == "running":  # a tool may outlive its turn
                self._store.bridge.used(connection, name, use.turn_id, at, call=use.call, tool=use.tool, **outcome)

        return work
