"""The context that all parts of `graph` share: the turn around the running code, and the facts about a tool.

Our own graph declares `TurnContext` as its runtime context. An author's graph has another context, or none. A context
variable reaches every node, subgraph and tool of both graphs: tasks inherit it, and LangGraph copies it into the worker
threads for synchronous code. A thread that a tool itself starts inherits neither the turn nor its permissions.
"""

from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from langchain_core.tools import BaseTool

from agent_runtime.model.turn import Effect, TurnContext

WAKEUP_TOOL = "schedule_loop_wakeup"  # the tool that asks for the next iteration of a self-paced turn
T = TypeVar("T")
Questions = MutableMapping[str, Mapping[str, Any]]
_TURN: ContextVar[TurnContext | None] = ContextVar("turnkeeper_turn", default=None)
_QUESTIONS: ContextVar[Questions | None] = ContextVar("turnkeeper_questions", default=None)


@dataclass(frozen=True, kw_only=True)
class Content:
    """The present content of a tool that the author supplies.

    Attributes:
        digest: equal for equal content.
        asks: why a call asks although its scope is granted; empty if the call does not ask.
        inexact: why the digest is valid in this process only; empty if it is valid after a restart too.
    """

    digest: str
    asks: str = ""
    inexact: str = ""


@dataclass(frozen=True, kw_only=True)
class ToolSpec:
    """A tool, the scope that a category must grant for it, and its effect.

    Attributes:
        tool: the tool, whose name for models has underscores: `workspace_read`. Only this very object has the scope.
        scope: the scope's name in categories, with a dot: `workspace.read`.
        effect: read, external-read or write.
        content: for a tool that the author supplies: returns the content by which to judge the call with an id.
    """

    tool: BaseTool
    scope: str
    effect: Effect
    content: Callable[[str], Content] | None = None


class lifetime:  # noqa: N801  used as a function
    """The lifetime of a block: a task that the block leaves running no longer acts for any turn.

    Such a task may get work of another turn through a queue, and must not use the grant of the first turn for this
    work. A block is a node, a tool call or a turn.
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
    """Return whether the node, tool call or turn that began the running code has ended."""
    place = _LIFETIME.get()
    while place is not None and not place.over:
        place = place.around
    return place is not None


def current_turn() -> TurnContext | None:
    """Return the running turn under its current category; None outside a turn."""
    return None if is_over() else _TURN.get()


@contextmanager
def turn_around(turn: TurnContext) -> Iterator[TurnContext]:
    """Make `turn` the current turn during the block, and in every task and copied context that begins in it."""
    with lifetime(), bound(_TURN, turn):
        yield turn


def recording(questions: Questions) -> AbstractContextManager[Questions]:
    """During the block, record the guard's questions in `questions`, with LangGraph's interrupt ids as keys."""
    return bound(_QUESTIONS, questions)


def record_question(interrupt_id: str, question: Mapping[str, Any]) -> None:
    """Record a question of the guard. A value that only looks like such a question has no record."""
    if (questions := _QUESTIONS.get()) is not None:
        questions[interrupt_id] = question


class bound(Generic[T]):  # noqa: N801  used as a function
    """Give a context variable a value during the block."""

    __slots__ = ("_token", "_value", "_variable")

    def __init__(self, variable: ContextVar[Any], value: T) -> None:
        self._variable, self._value = variable, value

    def __enter__(self) -> T:
        self._token = self._variable.set(self._value)
        return self._value

    def __exit__(self, *_error: object) -> None:
        self._variable.reset(self._token)
