"""The rule that finds why a time was missed or its fire was late. `explain`, `history` and the page share it. Pure.

No fire is sent during an outage. The cause of a missed time is the outage during which the time was due. If the next
outage began before this outage ended, the next outage is part of the cause too, and so on until the fire was sent.
"""

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta

from task_runner.model.task import Fire, Outcome
from task_runner.planner.catch_up import CAPPED, MISSED, TOO_OLD
from task_runner.planner.overlap import OVERLAP
from task_runner.store.rows import STOPPED, Cause, Outage

# The longest gap between two consecutive outages. A running daemon records its presence every 5 s.
_SLACK = timedelta(seconds=10)
_MOST = 4  # the maximum number of outages that one cause names
_STOPPED = {state.value: cause for state, cause in STOPPED.items()}
_MISSED = frozenset({MISSED, TOO_OLD, CAPPED, OVERLAP})


def cause_of(fire: Fire, grace: timedelta, outages: Sequence[Outage], at: datetime | None = None) -> str:
    """Return why a fire was late or missed. Empty if the fire was on time or no outage explains the delay.

    Args:
        at: one of the times that the entry covers; by default the first and the last.
    """
    until = fire.fired_at if fire.outcome is not Outcome.SKIPPED else None
    found = [each for each in outages if each.task_id in {"", fire.task_id} and _concerns(each, fire)]
    found = [each for each in found if until is None or each.since < until]  # later outages did not delay the fire
    if not found or not fire.count or not _needs_a_cause(fire, grace):
        return ""
    times = (at,) if at is not None else (fire.first_at, fire.last_at)
    return _said([*dict.fromkeys(each for time in times for each in _chain(time, grace, found, until))])


def lasting(outages: Sequence[Outage], task_id: str) -> str:
    """Return why the task's fires cannot be sent now. Empty if there is no current outage."""
    return _said([each for each in outages if each.lasts and each.task_id in {"", task_id}][:_MOST])


def _concerns(outage: Outage, fire: Fire) -> bool:
    """Return whether an outage can be the cause. A stopped task misses no times; lost commits concern one fire."""
    if fire.outcome is Outcome.SKIPPED and fire.reason in _STOPPED:
        return outage.cause is _STOPPED[fire.reason]
    return outage.cause not in {Cause.LOST, *_STOPPED.values()}


def _needs_a_cause(fire: Fire, grace: timedelta) -> bool:
    if fire.outcome is Outcome.SKIPPED:
        return fire.reason in _MISSED or fire.reason in _STOPPED
    late = fire.fired_at is not None and fire.fired_at > fire.first_at + grace
    return late or fire.caught_up or fire.outcome in {Outcome.PENDING, Outcome.SENT, Outcome.WAITING}


def _chain(at: datetime, grace: timedelta, outages: Sequence[Outage], until: datetime | None) -> Iterator[Outage]:
    """Yield the outages that blocked a time. Each is the longest that begins before the previous one ends."""
    # Several outages often end together, when the runtime answers a fire. The earliest outage explains more.
    outages = sorted(outages, key=lambda each: each.since)
    lasted = [each for each in outages if each.since <= at and (each.lasts or each.to >= at)]
    soon = (each for each in outages if at < each.since <= at + grace)
    last = max(lasted, key=_end, default=next(soon, None))
    for _ in range(_MOST):
        if last is None:
            return
        yield last
        end = _end(last)
        if until is not None and end >= until:
            return
        later = [each for each in outages if each.since <= end + _SLACK and _end(each) > end]
        last = max(later, key=_end, default=None)


def _end(outage: Outage) -> datetime:
    return datetime.max.replace(tzinfo=outage.to.tzinfo) - 2 * _SLACK if outage.lasts else outage.to


def _said(outages: Sequence[Outage]) -> str:
    return ", then ".join(map(str, outages))
