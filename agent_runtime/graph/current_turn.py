"""The turn that runs around this line of code, for a guard inside a graph that knows nothing of ours.

Our own graph declares `TurnContext` as its runtime context. A foreign graph has a context of its own, or none; what
reaches every node, subgraph and tool of it alike is a context variable: tasks inherit it, and LangGraph copies it into
the worker threads in which it runs sync code. A thread that a tool starts by itself inherits nothing, as it should: no
turn, no permission.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from agent_runtime.model.values import TurnContext

_TURN: ContextVar[TurnContext | None] = ContextVar("turnkeeper_turn", default=None)


def current_turn() -> TurnContext | None:
    """Return the running turn, its category as granted at acceptance and still granted now; None outside a turn."""
    return _TURN.get()


@contextmanager
def turn_around(turn: TurnContext) -> Iterator[TurnContext]:
    """Make `turn` the current one for the block, and for every task and copied context that is begun in it."""
    token = _TURN.set(turn)
    try:
        yield turn
    finally:
        _TURN.reset(token)
