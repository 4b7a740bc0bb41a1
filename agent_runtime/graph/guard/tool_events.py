"""Events of tools that run: written before a tool begins, and after its answer, before anybody sees the answer.

Tools run on the event loop and in threads of their own; both wait here until the event is on disk.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from langchain_core.messages import ToolMessage
from langgraph.errors import GraphBubbleUp
from sqlalchemy import Connection

from agent_runtime.store.database import check_lease
from agent_runtime.store.turn_events import OF_TOOLS
from agent_runtime.store.turn_reads import get_turn
from agent_runtime.store.turn_store import Store
from turnkeeper.clock import Clock
from turnkeeper.storage.database import Database

_START, _END = OF_TOOLS


class ToolEvents:
    """Writes the events of tools into the turn's events, while anybody asked for them."""

    def __init__(self, database: Database, store: Store, clock: Clock) -> None:
        self._loop = asyncio.get_running_loop()
        self._database = database
        self._store = store
        self._clock = clock

    def of_call(self, turn_id: str, tool: str, call: str) -> "Execution | None":
        """Return what writes the events of one call; None while nobody asked for events of tools."""
        if self._store.event_source.wanted.isdisjoint(OF_TOOLS):
            return None
        return Execution(events=self, turn_id=turn_id, tool=tool, call=call)

    def write(self, work: Callable[[Connection], None]) -> None:
        """Do the work and wait for the disk, in a thread that may wait."""
        self._database.submit(work).result()
        self._loop.call_soon_threadsafe(self._store.event_source.news.notify)

    async def write_async(self, work: Callable[[Connection], None]) -> None:
        """Do the work and wait for the disk, on the loop."""
        await self._database.run(work)
        self._store.event_source.news.notify()

    def event(self, name: str, run: "Execution", **outcome: Any) -> Callable[[Connection], None]:
        """Return the work that writes one event; a tool may outlive its turn, and then writes none."""
        at = self._clock.now()

        def work(connection: Connection) -> None:
            check_lease(connection, self._store.epoch)
            turn = get_turn(connection, run.turn_id)
            if turn is not None and turn.status == "running":
                self._store.event_source.used(
                    connection, name, run.turn_id, at, call=run.call, tool=run.tool, **outcome
                )

        return work


@dataclass(frozen=True, kw_only=True)
class Execution:
    """One call of a tool that was let through.

    A call that is cut short, by a cancel or because it asks the author, has not ended: it is made again, or its turn
    is over.

    Attributes:
        events: writes them.
        turn_id: the turn that it runs in.
        tool: its name.
        call: equal whenever the graph makes this call again, and for no other call of the turn.
    """

    events: ToolEvents
    turn_id: str
    tool: str
    call: str

    def around(self, work: Callable[[], Any]) -> Any:
        """Run the tool."""
        self.events.write(self._begun())
        try:
            answer = work()
        except GraphBubbleUp:
            raise
        except Exception:
            self.events.write(self._ended(ok=False))
            raise
        self.events.write(self._ended(ok=_is_good(answer)))
        return answer

    async def around_async(self, work: Callable[[], Awaitable[Any]]) -> Any:
        """Run the tool."""
        await self.events.write_async(self._begun())
        try:
            answer = await work()
        except GraphBubbleUp:
            raise
        except Exception:
            await self.events.write_async(self._ended(ok=False))
            raise
        await self.events.write_async(self._ended(ok=_is_good(answer)))
        return answer

    def _begun(self) -> Callable[[Connection], None]:
        return self.events.event(_START, self)

    def _ended(self, *, ok: bool) -> Callable[[Connection], None]:
        return self.events.event(_END, self, ok=ok)


def _is_good(answer: Any) -> bool:
    return not (isinstance(answer, ToolMessage) and answer.status == "error")
