"""A tool that runs, told to an onlooker before it begins and after its answer, before anybody sees the answer."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

from langchain_core.messages import ToolMessage
from langgraph.errors import GraphBubbleUp


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
