"""What of a turn a reader has not been shown yet. Pure; the same for a turn shown whole and for one that goes on."""

from dataclasses import dataclass, field
from typing import Literal

from protos.turnkeeper.v1 import agent_runtime_pb2 as wire

ENDED = frozenset({"succeeded", "silent", "failed", "cancelled"})
Kind = Literal["begun", "message", "candidate", "deviation", "interrupt", "ended"]


@dataclass(frozen=True, kw_only=True)
class News:
    """One thing to show of a turn.

    Attributes:
        kind: the turn itself, a message, something proposed, a contradiction, something asked, or how it stands now.
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
    def candidate(self) -> wire.Candidate:
        """The candidate."""
        return self.turn.candidates[self.at]

    @property
    def deviation(self) -> wire.Deviation:
        """The deviation."""
        return self.turn.deviations[self.at]

    @property
    def interrupt(self) -> wire.Interrupt:
        """The interrupt."""
        return self.turn.interrupts[self.at]


@dataclass(frozen=True, kw_only=True)
class Known:
    """What a reader was shown of a turn.

    Attributes:
        status: how it stood; empty when nothing of it was shown.
        messages: how many of its messages.
        candidates: what became of each of its candidates, as far as that was shown.
        deviations: likewise of the contradictions that it came upon.
        interrupts: likewise of what it asked.
    """

    status: str = ""
    messages: int = 0
    candidates: dict[str, str] = field(default_factory=dict)
    deviations: dict[str, str] = field(default_factory=dict)
    interrupts: dict[str, str] = field(default_factory=dict)


def news_of(turn: wire.ConversationTurn, known: Known | None = None) -> list[News]:
    """Return what of a turn is new to a reader, in the order in which to show it."""
    known = known or Known()
    found = [] if known.status else [News(kind="begun", turn=turn)]
    found += [News(kind="message", turn=turn, at=at) for at in range(known.messages, len(turn.messages))]
    # What is proposed is shown after the words that go with it.
    proposed, found_out = (turn.candidates, turn.deviations) if turn.status != "running" else ((), ())
    for at, candidate in enumerate(proposed):
        if known.candidates.get(candidate.candidate_id) != candidate.lifecycle:
            found.append(News(kind="candidate", turn=turn, at=at))
    for at, deviation in enumerate(found_out):
        if known.deviations.get(deviation.deviation_id) != deviation.lifecycle:
            found.append(News(kind="deviation", turn=turn, at=at))
    for at, interrupt in enumerate(turn.interrupts):
        if known.interrupts.get(interrupt.interrupt_id) != _standing(interrupt):
            found.append(News(kind="interrupt", turn=turn, at=at))
    # A turn that waits for its author has just said so, and one that was shown whole began with how it ended.
    if known.status not in {"", turn.status} and turn.status not in {"interrupted", "running"}:
        found.append(News(kind="ended", turn=turn))
    return found


def known_of(turn: wire.ConversationTurn) -> Known:
    """Return what a reader has been shown once all of this turn was."""
    proposed, found_out = (turn.candidates, turn.deviations) if turn.status != "running" else ((), ())
    return Known(
        status=turn.status,
        messages=len(turn.messages),
        candidates={one.candidate_id: one.lifecycle for one in proposed},
        deviations={one.deviation_id: one.lifecycle for one in found_out},
        interrupts={one.interrupt_id: _standing(one) for one in turn.interrupts},
    )


def _standing(interrupt: wire.Interrupt) -> str:
    return interrupt.decision or interrupt.status
