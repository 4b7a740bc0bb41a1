"""What every part of `graph` shares: the turn that runs around a line of code, and what is known of a tool.

Our own graph declares `TurnContext` as its runtime context. A foreign graph has a context of its own, or none. What
reaches every node, subgraph and tool of it alike is a context variable: tasks inherit it, and LangGraph copies it into
the worker threads in which it runs sync code. A thread that a tool starts by itself inherits nothing, as it should: no
turn, no permission.
"""

from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from langchain_core.tools import BaseTool

from agent_runtime.model.turn import Effect, TurnContext

WAKEUP_TOOL = "schedule_loop_wakeup"  # by which a self-paced turn asks for its next iteration
T = TypeVar("T")
Questions = MutableMapping[str, Mapping[str, Any]]
_TURN: ContextVar[TurnContext | None] = ContextVar("turnkeeper_turn", default=None)
_QUESTIONS: ContextVar[Questions | None] = ContextVar("turnkeeper_questions", default=None)


@dataclass(frozen=True, kw_only=True)
class ToolSpec:
    """A tool, the scope that a category must grant for it, and what it does.

    Attributes:
        tool: named as models see it, with underscores: `workspace_read`. Only this very object has the scope.
        scope: named as categories grant it, with a dot: `workspace.read`.
        effect: read, external-read or write.
    """

    tool: BaseTool
    scope: str
    effect: Effect


class lifetime:  # noqa: N801  used as a function
    """End, with the block, what is begun in it: a task that it leaves running acts for no turn any more.

    Such a task may work for another turn by then, which reaches it through a queue: it must not have this one's grant.
    A block is a node, a tool call or a turn.
    """

    __slots__ = ("_token", "around", "over")

    def __enter__(self) -> None:
        self.around, self.over = _LIFETIME.get(), False
        self._token = _LIFETIME.set(self)

    def __exit__(self, *_error: object) -> None:
        self.over = True
        _LIFETIME.reset(self._token)


_LIFETIME: ContextVar[lifetime | None] = ContextVar("turnkeeper_lifetime", default=None)


def is_over() -> bool:
    """Return whether the node, tool call or turn is over in which this line of code was begun."""
    place = _LIFETIME.get()
    while place is not None and not place.over:
        place = place.around
    return place is not None


def current_turn() -> TurnContext | None:
    """Return the running turn, its category as granted at acceptance and still granted now; None outside a turn."""
    return None if is_over() else _TURN.get()


@contextmanager
def turn_around(turn: TurnContext) -> Iterator[TurnContext]:
    """Make `turn` the current one for the block, and for every task and copied context that is begun in it."""
    with lifetime(), bound(_TURN, turn):
        yield turn


def recording(questions: Questions) -> AbstractContextManager[Questions]:
    """Let the guard record what it asks in the block, by LangGraph's id of the interrupt."""
    return bound(_QUESTIONS, questions)


def record_question(interrupt_id: str, question: Mapping[str, Any]) -> None:
    """Record that the guard asks this: nothing else tells its questions from a value that looks like one."""
    if (questions := _QUESTIONS.get()) is not None:
        questions[interrupt_id] = question


class bound(Generic[T]):  # noqa: N801  used as a function
    """Give a context variable a value for the block."""

    __slots__ = ("_token", "_value", "_variable")

    def __init__(self, variable: ContextVar[Any], value: T) -> None:
        self._variable, self._value = variable, value

    def __enter__(self) -> T:
        self._token = self._variable.set(self._value)
        return self._value

    def __exit__(self, *_error: object) -> None:
        self._variable.reset(self._token)
