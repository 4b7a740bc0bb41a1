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
from typing import Any, TypeVar

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


def current_turn() -> TurnContext | None:
    """Return the running turn, its category as granted at acceptance and still granted now; None outside a turn."""
    return _TURN.get()


def turn_around(turn: TurnContext) -> AbstractContextManager[TurnContext]:
    """Make `turn` the current one for the block, and for every task and copied context that is begun in it."""
    return bound(_TURN, turn)


def recording(questions: Questions) -> AbstractContextManager[Questions]:
    """Let the guard record what it asks in the block, by LangGraph's id of the interrupt."""
    return bound(_QUESTIONS, questions)


def record_question(interrupt_id: str, question: Mapping[str, Any]) -> None:
    """Record that the guard asks this: nothing else tells its questions from a value that looks like one."""
    if (questions := _QUESTIONS.get()) is not None:
        questions[interrupt_id] = question


@contextmanager
def bound(variable: ContextVar[Any], value: T) -> Iterator[T]:
    """Give a context variable a value for the block."""
    token = variable.set(value)
    try:
        yield value
    finally:
        variable.reset(token)
