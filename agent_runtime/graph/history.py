"""How much of a thread its graph is given: its newest turns. The conversation keeps all of it, for tools to read.

A thread that a task fires on every hour never ends. Were all of it given, each turn would cost more than the one
before, in time, in tokens and on disk, until no model could take it.
"""

from collections.abc import Sequence

from langchain_core.messages import AnyMessage, HumanMessage, RemoveMessage

MOST_MESSAGES = 50


def outgrown(messages: Sequence[AnyMessage], most: int = MOST_MESSAGES) -> list[RemoveMessage]:
    """Return the removals after which at most `most` messages are left: whole turns, the oldest first.

    The newest turn stays whole, however long it is.

    >>> said = [HumanMessage("a", id="1"), HumanMessage("b", id="2"), HumanMessage("c", id="3")]
    >>> [removal.id for removal in outgrown(said, most=2)]
    ['1']
    """
    begins = [at for at, message in enumerate(messages) if isinstance(message, HumanMessage)]
    fits = [at for at in begins if len(messages) - at <= most]
    kept_from = fits[0] if fits else begins[-1] if begins else 0
    return [RemoveMessage(id=message.id) for message in messages[:kept_from] if message.id]
