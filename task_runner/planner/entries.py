"""Ledger entries: new ones, the same entries one step further, and the plan that writes them. Pure.

Runs of scheduled times are counted and bounded, never listed, so that ten missed years cost what one day costs.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from task_runner.model.task import COUNTED, CatchUp, Fire, FireKind, Outcome, Snapshot, Task, fire_id, replace
from task_runner.timetable import LEAST, Timetable


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """Some scheduled times of one task.

    Attributes:
        count: how many, at least 1.
        first_at, last_at: the oldest and the newest of them.
    """

    count: int
    first_at: datetime
    last_at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class Due:
    """What fell due in (after, now].

    Attributes:
        missed: the scheduled times that are no longer on time.
        on_time: the newest one, if it still is.
    """

    missed: Run | None = None
    on_time: datetime | None = None

    @property
    def last_at(self) -> datetime | None:
        """The newest scheduled time that fell due; None if none did."""
        return self.on_time or (self.missed.last_at if self.missed else None)


def fallen_due(
    timetable: Timetable, after: datetime, now: datetime, grace: timedelta, due: Callable[[datetime], datetime]
) -> Due:
    """Return the scheduled times in (after, now]; only the newest can be on time, until `grace` after it is due."""
    first = timetable.next_after(after)
    if first is None or first > now:
        return Due()
    last = timetable.last_at_or_before(now) or first
    if now > due(last) + grace:
        return Due(missed=run_between(timetable, after, last))
    missed = None if last == first else run_between(timetable, after, last - LEAST)
    return Due(missed=missed, on_time=last)


def run_between(timetable: Timetable, after: datetime, until: datetime) -> Run | None:
    """Return the run of scheduled times in (after, until], None if there are none."""
    if after >= until:
        return None
    first, last = timetable.next_after(after), timetable.last_at_or_before(until)
    if first is None or last is None or first > until:
        return None
    count = 1 if first == last else timetable.count(after, until)
    return Run(count=count, first_at=first, last_at=last)


def single(nominal_at: datetime) -> Run:
    """Return the run of one scheduled time."""
    return Run(count=1, first_at=nominal_at, last_at=nominal_at)


def merged(runs: Iterable[Run | Fire | None]) -> Run:
    """Return one run for all that several runs and entries cover; at least one covers something."""
    present = [run for run in runs if run is not None and run.count]
    return Run(
        count=sum(run.count for run in present),
        first_at=min(run.first_at for run in present),
        last_at=max(run.last_at for run in present),
    )


def entry(task: Task, run: Run | Fire, outcome: Outcome, **fields: Any) -> Fire:
    """Return a new entry of a task that covers `run`, named by the last time in it; `fields` say what is different."""
    fields.setdefault("nominal_at", run.last_at)
    fields.setdefault("due_at", fields["nominal_at"])
    return Fire(
        task_id=task.id,
        outcome=outcome,
        count=run.count,
        first_at=run.first_at,
        last_at=run.last_at,
        policy=task.definition.catch_up,
        **fields,
    )


def fresh(
    task: Task,
    nominal_at: datetime,
    run: Run | None = None,
    *,
    caught_up: bool = False,
    ready_at: datetime | None = None,
) -> Fire:
    """Return the fire of a scheduled time, not yet ready unless said; it stands for `run`, or for that time alone."""
    first_at, last_at = (run.first_at, run.last_at) if run else (nominal_at, nominal_at)
    return Fire(  # without `entry`: catch-up makes these by the thousand
        task_id=task.id,
        fire_id=fire_id(task.id, nominal_at),
        nominal_at=nominal_at,
        due_at=nominal_at,
        outcome=Outcome.PENDING,
        count=run.count if run else 1,
        first_at=first_at,
        last_at=last_at,
        policy=task.definition.catch_up,
        caught_up=caught_up,
        send_by=nominal_at + task.definition.grace,
        ready_at=ready_at,
        retries=task.definition.retries,
    )


def skipped_run(task: Task, run: Run | Fire, reason: str) -> Fire:
    """Return the record of a run of scheduled times that did not fire."""
    return entry(task, run, Outcome.SKIPPED, reason=reason)


def waiting(fire: Fire) -> Fire:
    """Return a fire as it waits for an earlier one of its task: without an id, to be extended in place."""
    return replace(fire, outcome=Outcome.WAITING, reason="", fire_id="", send_by=None, ready_at=None)


def covering(fire: Fire, run: Run) -> Fire:
    """Return an entry that covers `run`."""
    return replace(fire, count=run.count, first_at=run.first_at, last_at=run.last_at)


def settled_skipped(fire: Fire, reason: str, now: datetime) -> Fire:
    """Return a fire withdrawn unsent; it goes on covering its scheduled times."""
    return replace(fire, outcome=Outcome.SKIPPED, reason=reason, ready_at=None, ended_at=now)


def settled_coalesced(fire: Fire, into: str, now: datetime) -> Fire:
    """Return a fire folded into the fire `into`, which covers its scheduled times from now on."""
    return replace(fire, outcome=Outcome.COALESCED, reason=into, count=0, ready_at=None, ended_at=now)


def released(fire: Fire, task: Task, now: datetime) -> Fire:
    """Return a fire that waited for an earlier one, now ready to be sent; being late is no miss for a grace more."""
    ready_at = max(now, fire.due_at)  # the clock may have stepped back since its time came
    return replace(
        fire,
        outcome=Outcome.PENDING,
        reason="",
        fire_id=fire.fire_id or fire_id(task.id, fire.nominal_at),
        released=True,
        send_by=ready_at + task.definition.grace,
        ready_at=ready_at,
    )


def newly_missed(fire: Fire) -> int:
    """Return how many scheduled times of an entry count as missed once it does not fire, that did not count before."""
    return 1 if fire.caught_up and fire.policy is CatchUp.RUN_ONCE else fire.count


def returned_places(fires: Iterable[Fire]) -> int:
    """Return how many places under the limit on fires are given back by settling these unsent."""
    return sum(fire.accepted_at is not None and fire.kind in COUNTED for fire in fires)


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """What to write, in one transaction.

    Attributes:
        task: the task as it is from now on: cursor, wake, state, counts.
        new: entries to insert, by scheduled time.
        changed: entries to replace, by entry id.
        restored: scheduled times that a clock stepped back over: their fires exist, and cover them again.
        skipped: the runs of scheduled times that this plan skips, before any of them extends an earlier entry.
        tail: the element of `new` or `changed`, or the earlier entry, that is the newest of the skipped ones, if any.
    """

    task: Task
    new: tuple[Fire, ...] = ()
    changed: tuple[Fire, ...] = ()
    restored: tuple[Fire, ...] = ()
    skipped: tuple[Fire, ...] = ()
    tail: Fire | None = None


def joined(
    snapshot: Snapshot, timetable: Timetable, task: Task, new: tuple[Fire, ...], changed: tuple[Fire, ...]
) -> Plan:
    """Return a plan in which skipped entries that lie side by side, for one reason, are one entry.

    The oldest of them grows, also one written earlier. What was written before and grows into it stays in the ledger,
    as coalesced, and covers nothing any more.
    """
    skipped = tuple(sorted(filter(_covers_skipped, (*new, *changed)), key=lambda fire: fire.first_at))
    kept = [fire for fire in (*new, *changed) if not _covers_skipped(fire)]
    tail = snapshot.tail
    for fire in skipped:
        if tail is not None and _is_next(timetable, tail, fire):
            tail = _grown(tail, fire)
            if fire.entry_id:
                kept.append(settled_coalesced(fire, f"skipped({fire.reason})", fire.ended_at or fire.due_at))
            continue
        if tail is not None and tail is not snapshot.tail:
            kept.append(tail)
        tail = fire
    if tail is not None and tail is not snapshot.tail:
        kept.append(tail)
    if tail is not None and snapshot.tail is not None and tail.last_at < snapshot.tail.last_at:
        tail = snapshot.tail  # what was skipped just now came back from before it
    return Plan(
        task=task,
        new=tuple(sorted((fire for fire in kept if not fire.entry_id), key=lambda fire: fire.last_at)),
        changed=tuple(fire for fire in kept if fire.entry_id),
        skipped=skipped,
        tail=tail,
    )


def _is_next(timetable: Timetable, tail: Fire, fire: Fire) -> bool:
    """Return whether a skipped entry lies beside the newest one of before, for one reason."""
    extends = tail.entry_id >= 0 and fire.reason == tail.reason
    return extends and timetable.next_after(tail.last_at) == fire.first_at


def _grown(tail: Fire, fire: Fire) -> Fire:
    grown = covering(tail, merged([tail, fire]))
    return grown if grown.fire_id else replace(grown, nominal_at=grown.last_at, due_at=grown.last_at)


def _covers_skipped(fire: Fire) -> bool:
    return fire.outcome is Outcome.SKIPPED and fire.count > 0 and fire.kind is FireKind.SCHEDULED
