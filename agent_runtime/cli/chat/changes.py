"""What of a turn a reader has not been shown yet: the same for a turn shown whole and for one that goes on. Pure."""

from dataclasses import dataclass, field
from typing import Any, Literal

from protos.turnkeeper.v1 import agent_runtime_pb2 as wire

ENDED = frozenset({"succeeded", "silent", "failed", "cancelled"})
MOST_KNOWN = 2000  # turns of which it is remembered what was shown
Kind = Literal["begun", "message", "candidate", "deviation", "interrupt", "ended"]
_LISTS: tuple[Kind, ...] = ("candidate", "deviation", "interrupt")  # each a list of the turn, in the order shown


@dataclass(frozen=True, kw_only=True)
class Change:
    """One thing to show of a turn.

    Attributes:
        kind: the turn itself, a message, something proposed, a contradiction, something asked, or how it ended.
        turn: the turn in its newest form.
        at: which of the turn's messages, candidates, deviations or interrupts; 0 for the rest.
    """

    kind: Kind
    turn: wire.ConversationTurn
    at: int = 0

    @property
    def message(self) -> wire.Message:
        """The message."""
        return self.turn.messages[self.at]

    @property
    def subject(self) -> Any:
        """The candidate, deviation or interrupt."""
        return getattr(self.turn, f"{self.kind}s")[self.at]


@dataclass(frozen=True, kw_only=True)
class Known:
    """What a reader was shown of a turn.

    Attributes:
        status: the turn's; empty when nothing of it was shown.
        messages: how many of its messages.
        states: by id, the states of what it proposed, found and asked, as far as they were shown.
    """

    status: str = ""
    messages: int = 0
    states: dict[str, str] = field(default_factory=dict)


def changes_of(turn: wire.ConversationTurn, known: Known | None = None) -> list[Change]:
    """Return what of a turn is new to a reader, in the order in which to show it."""
    known = known or Known()
    found = [] if known.status else [Change(kind="begun", turn=turn)]
    found += [Change(kind="message", turn=turn, at=at) for at in range(known.messages, len(turn.messages))]
    for kind, at, one_id, state in _states(turn):
        if known.states.get(one_id) != state:
            found.append(Change(kind=kind, turn=turn, at=at))
    # A turn that waits for its author has just said so, and one that was shown whole began with how it ended.
    if known.status not in {"", turn.status} and turn.status not in {"interrupted", "running"}:
        found.append(Change(kind="ended", turn=turn))
    return found


def known_of(turn: wire.ConversationTurn) -> Known:
    """Return what a reader has been shown once all of this turn was."""
    states = {one_id: state for _, _, one_id, state in _states(turn)}
    return Known(status=turn.status, messages=len(turn.messages), states=states)


def _states(turn: wire.ConversationTurn) -> list[tuple[Kind, int, str, str]]:
    """Return kind, place, id and state of what a turn proposed, found and asked."""
    found = []
    for kind in _LISTS:
        if turn.status == "running" and kind != "interrupt":
            continue  # what is proposed is shown after the words that go with it
        for at, one in enumerate(getattr(turn, f"{kind}s")):
            state = one.decision or one.status if kind == "interrupt" else one.lifecycle
            found.append((kind, at, getattr(one, f"{kind}_id"), state))
    return found


class Shown:
    """Remembers what a reader was shown of the turns that came last."""

    def __init__(self) -> None:
        self._known: dict[str, Known] = {}

    def take(self, turn: wire.ConversationTurn) -> list[Change]:
        """Return what is new of a turn; from now on it counts as shown."""
        found = changes_of(turn, self._known.pop(turn.turn_id, None))
        self._known[turn.turn_id] = known_of(turn)
        if len(self._known) > MOST_KNOWN:
            del self._known[next(iter(self._known))]
        return found

    def is_open(self, turn_id: str) -> bool:
        """Return whether a turn was shown and is not over."""
        known = self._known.get(turn_id)
        return known is not None and known.status not in ENDED
