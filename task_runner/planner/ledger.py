"""Transitions of a ledger entry after receipts, refusals and turn events. Pure and monotone.

A settled entry never changes. A report about an attempt other than the current one is ignored. A repeated report
changes nothing.
"""

from datetime import datetime, timedelta
from enum import StrEnum

from task_runner.model.task import GAVE_UP, LONGEST_REASON, MISASKED, OPEN, REFUSED, UNANSWERED, Fire, Outcome, replace

_SHORTEST_BACKOFF_S = 0.5
LONGEST_BACKOFF_S = 60.0
_SHORTEST_RETRY_S = 30.0
# The grace of a retry: long enough that a short outage of the runtime does not make the retry missed.
_RETRY_GRACE = timedelta(minutes=5)


class TurnState(StrEnum):
    """The state of a turn, as the runtime reports it."""

    STARTED = "started"
    RESUMED = "resumed"
    INTERRUPTED = "interrupted"
    PAUSED = "paused"
    HELD = "held"
    RELEASED = "released"
    SUCCEEDED = "succeeded"
    SILENT = "silent"
    DELIVERED = "delivered"
    FAILED = "failed"
    CANCELLED = "cancelled"


_OPEN_STATES = {
    TurnState.STARTED: Outcome.RUNNING,
    TurnState.RESUMED: Outcome.RUNNING,
    TurnState.INTERRUPTED: Outcome.INTERRUPTED,
    TurnState.HELD: Outcome.HELD,
}
_FINAL_STATES = {
    TurnState.SUCCEEDED: (Outcome.SUCCEEDED, ""),
    TurnState.SILENT: (Outcome.SUCCEEDED, "silent"),
    TurnState.DELIVERED: (Outcome.SUCCEEDED, "delivered"),
    TurnState.PAUSED: (Outcome.SUCCEEDED, "paused"),
    TurnState.FAILED: (Outcome.FAILED, ""),
    TurnState.CANCELLED: (Outcome.CANCELLED, ""),
}
FINAL = frozenset(_FINAL_STATES)


def sent(fire: Fire, now: datetime) -> Fire:
    """Return a pending fire as sent; a fire that is sent again keeps the time when it was first sent."""
    return replace(fire, outcome=Outcome.SENT, reason="", ready_at=None, fired_at=fire.fired_at or now)


def accepted(fire: Fire, at: datetime, *, attempt: int, turn_id: str) -> Fire:
    """Record a fire's receipt; return the fire. The receipt only adds facts that are not known yet."""
    if fire.outcome not in OPEN or attempt != fire.attempt:
        return fire
    outcome = Outcome.ACCEPTED if fire.outcome in {Outcome.SENT, Outcome.PENDING} else fire.outcome
    return replace(
        fire,
        outcome=outcome,
        ready_at=None,
        refusals=0,
        fired_at=fire.fired_at or at,  # None after a wrong refusal, or if a restored store is older
        accepted_at=fire.accepted_at or at,
        turn_id=fire.turn_id or turn_id,
    )


def refused(fire: Fire, now: datetime, *, attempt: int, why: str) -> Fire:
    """Return a sent fire as unsent, to be sent again after a back-off, because the runtime refused the fire."""
    if fire.outcome is not Outcome.SENT or attempt != fire.attempt:
        return fire
    pause_s = min(LONGEST_BACKOFF_S, _SHORTEST_BACKOFF_S * 2.0 ** min(fire.refusals, 16))
    return replace(
        fire,
        outcome=Outcome.PENDING,
        reason=why[:LONGEST_REASON],
        fired_at=None,
        refusals=fire.refusals + 1,
        ready_at=now + timedelta(seconds=pause_s),
    )


def forgotten(fire: Fire) -> Fire:
    """Return a fire as sent but not started, to be sent again unchanged, because the runtime lost it with its store."""
    return replace(fire, outcome=Outcome.SENT, started_at=None, turn_id="") if fire.outcome in OPEN else fire


def withdrawn(fire: Fire, now: datetime) -> Fire:
    """Return an accepted fire as unsent, as on its first commit. No runtime has begun it or will begin it."""
    return replace(fire, outcome=Outcome.PENDING, reason="", ready_at=now, fired_at=None, turn_id="")


def turned(fire: Fire, state: TurnState, at: datetime, *, attempt: int, turn_id: str = "", error: str = "") -> Fire:
    """Return a fire as changed by a turn event; return the same fire if the event changes nothing."""
    if fire.outcome not in OPEN or fire.outcome is Outcome.WAITING or attempt != fire.attempt:
        return fire
    if state is TurnState.RELEASED:
        return _released(fire, at, error) if fire.outcome is Outcome.HELD else fire
    # Clocks of two machines may differ: no turn may start before its fire is sent, or end before it starts.
    moment = max(at, fire.started_at or fire.fired_at or at)
    known = replace(
        fire,
        ready_at=None,
        reason="",
        refusals=0,
        fired_at=fire.fired_at or moment,
        # A receipt may be recorded after the first event of its turn.
        accepted_at=min(fire.accepted_at or moment, fire.started_at or moment),
        turn_id=fire.turn_id or turn_id,
    )
    if state in _OPEN_STATES:
        started = fire.started_at if state is TurnState.HELD else fire.started_at or moment
        why = error[:LONGEST_REASON] if state is TurnState.HELD else ""
        return replace(known, outcome=_OPEN_STATES[state], started_at=started, reason=why)
    by_agent = state in {TurnState.SUCCEEDED, TurnState.SILENT} or error.startswith(GAVE_UP)
    denied = by_agent and any(said in error for said in (UNANSWERED, REFUSED))
    if state is TurnState.FAILED and fire.retries and not denied:
        return _tried_again(known, at, error)
    outcome, reason = (Outcome.REJECTED, "") if denied else _FINAL_STATES[state]
    if error.startswith(MISASKED):
        reason = ""  # The error replaces `silent` too, because the author must learn of it.
    return replace(known, outcome=outcome, reason=reason or error[:LONGEST_REASON], ended_at=moment)


def spending(fire: Fire, spent: timedelta, tokens: int) -> Fire:
    """Add the time and tokens of one more turn to a fire; return the fire."""
    return replace(fire, spent=fire.spent + spent, tokens=fire.tokens + tokens) if spent or tokens else fire


def _tried_again(fire: Fire, at: datetime, error: str) -> Fire:
    """Return a fire whose turn failed as unsent, to be retried after a pause that doubles with each attempt."""
    ready_at = at + timedelta(seconds=_SHORTEST_RETRY_S * 2.0 ** min(fire.attempt - 1, 10))
    return replace(
        fire,
        outcome=Outcome.PENDING,
        attempt=fire.attempt + 1,
        retries=fire.retries - 1,
        reason=f"attempt {fire.attempt} failed: {error}"[:LONGEST_REASON],
        fired_at=None,
        started_at=None,
        turn_id="",
        ready_at=ready_at,
        send_by=ready_at + _RETRY_GRACE,
        released=True,
    )


def _released(fire: Fire, at: datetime, why: str) -> Fire:
    """Return a held fire as unsent, for its next attempt. Catch-up then decides whether the fire is late."""
    return replace(
        fire,
        outcome=Outcome.PENDING,
        attempt=fire.attempt + 1,
        fired_at=None,
        turn_id="",
        reason=why[:LONGEST_REASON],
        ready_at=at,
        released=False,
    )
