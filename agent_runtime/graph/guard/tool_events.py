"""A tool that runs, told to an onlooker before it begins and after its answer, before anybody sees the answer.

Tools that run, written as bridged events: before a tool begins, and before anybody sees its answer.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

from langchain_core.messages import ToolMessage
from langgraph.errors import GraphBubbleUp
from sqlalchemy import Connection

from agent_runtime.store.turn_events import OF_TOOLS
from agent_runtime.store.turn_reads import check_lease, get_turn
from agent_runtime.store.turn_store import Store
from turnkeeper.clock import Clock
from turnkeeper.storage.database import Database


@dataclass(frozen=True, kw_only=True)
class Use:
    """A tool begins to run, or has given its answer.

    Attributes:
        turn_id: the turn that it runs in.
        tool: its name.
        call: equal whenever the graph makes this call again, and for no other call of the turn.
        ended: it has given its answer.
        ok: the answer is no error.
    """

    turn_id: str
    tool: str
    call: str
    ended: bool = False
    ok: bool = True


class Onlooker(Protocol):
    """Who is told of the tools that run."""

    @property
    def listens(self) -> bool:
        """Whether anybody wants to know now."""

    def tell(self, use: Use) -> None:
        """Be told; returns once it is on disk."""

    async def atell(self, use: Use) -> None:
        """Likewise, from a loop."""


@dataclass(frozen=True, kw_only=True)
class Execution:
    """One call of a tool that was let through.

    A call that is cut short, by a cancel or because it asks the author, has not ended: it is made again, or its turn
    is over.
    """

    onlooker: Onlooker
    use: Use

    def around(self, work: Callable[[], Any]) -> Any:
        """Run the tool."""
        self.onlooker.tell(self.use)
        try:
            answer = work()
        except GraphBubbleUp:
            raise
        except Exception:
            self.onlooker.tell(replace(self.use, ended=True, ok=False))
            raise
        self.onlooker.tell(replace(self.use, ended=True, ok=_is_good(answer)))
        return answer

    async def around_async(self, work: Callable[[], Awaitable[Any]]) -> Any:
        """Run the tool."""
        await self.onlooker.atell(self.use)
        try:
            answer = await work()
        except GraphBubbleUp:
            raise
        except Exception:
            await self.onlooker.atell(replace(self.use, ended=True, ok=False))
            raise
        await self.onlooker.atell(replace(self.use, ended=True, ok=_is_good(answer)))
        return answer


def _is_good(answer: Any) -> bool:
    return not (isinstance(answer, ToolMessage) and answer.status == "error")


class ToolEvents:
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
        self._loop.call_soon_threadsafe(self._store.bridge.news.notify)

    async def atell(self, use: Use) -> None:
        """Write it."""
        await self._database.run(self._work(use))
        self._store.bridge.news.notify()

    def _work(self, use: Use) -> Callable[[Connection], None]:
        at, name = self._clock.now(), OF_TOOLS[use.ended]
        outcome = {"ok": use.ok} if use.ended else {}

        def work(connection: Connection) -> None:
            check_lease(connection, self._store.epoch)
            turn = get_turn(connection, use.turn_id)
            if turn is not None and turn.status == "running":  # a tool may outlive its turn
                self._store.bridge.used(connection, name, use.turn_id, at, call=use.call, tool=use.tool, **outcome)

        return work
