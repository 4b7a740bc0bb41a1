"""How much of a thread its graph is given: its newest turns. The conversation keeps all of it, for tools to read.

A thread that a task fires on every hour never ends. Were all of it given, each turn would cost more than the one
before, in time, in tokens and on disk, until no model could take it. What a fire has to know of the fires before it
stands in memory; so it is given few of them, and the fiftieth no more than the fifth.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, RemoveMessage


@dataclass(frozen=True, kw_only=True)
class Window:
    """The most of a thread that a new turn is given: whole turns, the newest.

    Attributes:
        messages: so many.
        chars: so many characters of text, calls and answers.
        turns: so many turns.
        keeps_last: the newest turn stays whole, however long it is.
    """

    messages: int = 50
    chars: int = 200_000
    turns: int = 50
    keeps_last: bool = True


OF_AUTHOR = Window()
OF_FIRE = Window(chars=40_000, turns=3, keeps_last=False)


def outgrown(messages: Sequence[AnyMessage], window: Window = OF_AUTHOR) -> list[RemoveMessage]:
    """Return the removals after which what is left fits the window: whole turns, the oldest first.

    >>> said = [HumanMessage("a", id="1"), HumanMessage("b", id="2"), HumanMessage("c", id="3")]
    >>> [removal.id for removal in outgrown(said, Window(messages=2))]
    ['1']
    """
    begins = [at for at, message in enumerate(messages) if isinstance(message, HumanMessage)]
    last = begins[-1:] if window.keeps_last else [len(messages)]
    fits = [at for at in begins[-window.turns :] if _fits(messages[at:], window)]
    kept_from = min([*fits, *last], default=0)
    return [RemoveMessage(id=message.id) for message in messages[:kept_from] if message.id]


def _fits(messages: Sequence[AnyMessage], window: Window) -> bool:
    return len(messages) <= window.messages and sum(map(size, messages)) <= window.chars


def size(message: AnyMessage) -> int:
    """Return how many characters of a message a model reads."""
    calls = message.tool_calls if isinstance(message, AIMessage) else []
    return len(message.text) + sum(len(call["name"]) + len(str(call["args"])) for call in calls)
