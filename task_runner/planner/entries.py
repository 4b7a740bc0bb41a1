"""Ledger entries: functions that create and change them, and the plan that lists the changes; a task's timetable. Pure.

A run of consecutive scheduled times is stored as a count and two bounds, never as a list. So a run of ten years takes
no more space than a run of one day.

The jitter between a scheduled time and the due time of its fire comes from a hash of the task and the time. A crash, an
edit or another machine does not change the jitter. Tasks that share a scheduled time usually differ in it. The jitter
is always less than the gap to the next scheduled time, so the fires of a task stay in the order of their times.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from hashlib import blake2b
from typing import Any

from task_runner.model import task as model
from task_runner.model.task import COUNTED, CatchUp, Fire, FireKind, Outcome, Snapshot, Task, fire_id, replace
from task_runner.timetable import LEAST, Bounded, Never, Once, Timetable, excluding, parse_cron, parse_every, zone
from task_runner.timetable.timetable import to_seconds
from turnkeeper.config.surfaces import offered, required
from turnkeeper.errors import InvalidInput
from turnkeeper.times import EPOCH, parse_rfc3339

RULES = "recurrence rules"  # the part that parses them
_STEP = timedelta(milliseconds=1)
_REPEATED = frozenset({model.ScheduleKind.CRON, model.ScheduleKind.EVERY, model.ScheduleKind.RRULE})
_YET_TO_GO = frozenset({Outcome.PENDING, Outcome.WAITING})


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """Consecutive scheduled times of one task.

    Attributes:
        count: number of scheduled times, at least 1.
        first_at, last_at: the oldest and the newest scheduled time.
    """

    count: int
    first_at: datetime
    last_at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class Due:
    """The scheduled times that came due in (after, now].

    Attributes:
        missed: the scheduled times that are no longer on time.
        on_time: the newest scheduled time, if it is still on time.
    """

    missed: Run | None = None
    on_time: datetime | None = None

    @property
    def last_at(self) -> datetime | None:
        """The newest scheduled time that came due; None if none did."""
        return self.on_time or (self.missed.last_at if self.missed else None)


def fallen_due(
    timetable: Timetable, after: datetime, now: datetime, grace: timedelta, due: Callable[[datetime], datetime]
) -> Due:
    """Return the scheduled times in (after, now]. Only the newest can be on time, until `grace` after its due time."""
    first = timetable.next_after(after)
    if first is None or first > now:
        return Due()
    last = timetable.last_at_or_before(now) or first
    if now > due(last) + grace:
        return Due(missed=run_between(timetable, after, last))
    missed = None if last == first else run_between(timetable, after, last - LEAST)
    return Due(missed=missed, on_time=last)


def run_between(timetable: Timetable, after: datetime, until: datetime) -> Run | None:
    """Return the run of scheduled times in (after, until]; None if there are none."""
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
    """Return one run that covers the times of all these runs and entries. At least one of them must cover a time."""
    present = [run for run in runs if run is not None and run.count]
    return Run(
        count=sum(run.count for run in present),
        first_at=min(run.first_at for run in present),
        last_at=max(run.last_at for run in present),
    )


def entry(task: Task, run: Run | Fire, outcome: Outcome, **fields: Any) -> Fire:
    """Return a new entry that covers `run`. The `nominal_at` is the last time of `run`, unless `fields` override it."""
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
    """Return a new fire that covers `run`, or else only `nominal_at`. The fire is ready only if `ready_at` is given."""
    first_at, last_at = (run.first_at, run.last_at) if run else (nominal_at, nominal_at)
    return Fire(  # faster than `entry`, because catch-up creates thousands of fires
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
    """Return a fire as waiting for an earlier fire. A waiting entry has no id yet, so later fires can extend it."""
    return replace(fire, outcome=Outcome.WAITING, reason="", fire_id="", send_by=None, ready_at=None)


def covering(fire: Fire, run: Run) -> Fire:
    return replace(fire, count=run.count, first_at=run.first_at, last_at=run.last_at)


def settled_skipped(fire: Fire, reason: str, now: datetime) -> Fire:
    """Return an unsent fire as skipped. The fire still covers its scheduled times."""
    return replace(fire, outcome=Outcome.SKIPPED, reason=reason, ready_at=None, ended_at=now)


def settled_coalesced(fire: Fire, into: str, now: datetime) -> Fire:
    """Return a fire as coalesced into the entry `into`, which now covers the scheduled times of the fire."""
    return replace(fire, outcome=Outcome.COALESCED, reason=into, count=0, ready_at=None, ended_at=now)


def released(fire: Fire, task: Task, now: datetime) -> Fire:
    """Return a fire as ready after its wait for an earlier fire. The fire gets a new grace period."""
    ready_at = max(now, fire.due_at)  # the clock may have stepped back after the fire's due time
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
    """Return the number of scheduled times that newly count as missed if an entry does not fire."""
    return 1 if fire.caught_up and fire.policy is CatchUp.RUN_ONCE else fire.count


def returned_places(fires: Iterable[Fire]) -> int:
    """Return the number of places under `max_fires` that become free if these fires settle unsent."""
    return sum(fire.accepted_at is not None and fire.kind in COUNTED for fire in fires)


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """The changes to write, in one transaction.

    Attributes:
        task: the task with its new cursor, wake time, state and counts.
        new: entries to insert, by scheduled time.
        changed: entries to replace, by entry id.
        restored: fires that already exist, and whose times recur after the clock stepped back.
        skipped: the skipped entries of this plan, before they are merged with each other and with earlier entries.
        tail: the newest skipped entry, in `new`, in `changed` or written earlier; None if there is none.
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
    """Merge adjacent skipped entries of a plan that have the same reason; return the plan.

    The oldest entry absorbs the later ones, even if an earlier plan wrote it. An absorbed entry that is in the ledger
    stays there as coalesced, without times.
    """
    skipped = tuple(sorted(filter(_covers_skipped, (*new, *changed)), key=lambda fire: fire.first_at))
    kept = [fire for fire in (*new, *changed) if not _covers_skipped(fire)]
    tail = snapshot.tail
    for fire in skipped:
        if tail is not None and _is_next(timetable, tail, fire):
            grown = covering(tail, merged([tail, fire]))
            tail = grown if grown.fire_id else replace(grown, nominal_at=grown.last_at, due_at=grown.last_at)
            if fire.entry_id:
                kept.append(settled_coalesced(fire, f"skipped({fire.reason})", fire.ended_at or fire.due_at))
            continue
        if tail is not None and tail is not snapshot.tail:
            kept.append(tail)
        tail = fire
    if tail is not None and tail is not snapshot.tail:
        kept.append(tail)
    if tail is not None and snapshot.tail is not None and tail.last_at < snapshot.tail.last_at:
        tail = snapshot.tail  # the new skipped entry is older than the tail
    return Plan(
        task=task,
        new=tuple(sorted((fire for fire in kept if not fire.entry_id), key=lambda fire: fire.last_at)),
        changed=tuple(fire for fire in kept if fire.entry_id),
        skipped=skipped,
        tail=tail,
    )


def _is_next(timetable: Timetable, tail: Fire, fire: Fire) -> bool:
    """Return True if the skipped entry `fire` follows `tail` without a gap and has the same reason."""
    extends = tail.entry_id >= 0 and fire.reason == tail.reason
    return extends and timetable.next_after(tail.last_at) == fire.first_at


def _covers_skipped(fire: Fire) -> bool:
    return fire.outcome is Outcome.SKIPPED and fire.count > 0 and fire.kind is FireKind.SCHEDULED


def timetable_of(definition: model.Definition) -> Timetable:
    """Return the timetable of a task.

    Raises:
        InvalidInput: the schedule cannot be read.
        NotInstalled: the schedule is a recurrence rule, and the part that parses such rules was removed.
    """
    # A single instant fires even on a day off, because its author chose the instant.
    off = offered("days off") if definition.schedule.kind in _REPEATED and not definition.ignore_calendar else ()
    return _timetable(
        definition.schedule,
        # Only `H` in a cron expression depends on the name. Tasks without an `H` share timetables.
        definition.name if "H" in definition.schedule.text else "",
        definition.timezone,
        definition.start_at,
        definition.ends_at,
        definition.exclude + (off or ()),
    )


def kind_of(definition: model.Definition) -> str:
    """Return one word for the trigger of a task."""
    return "hybrid" if definition.is_hybrid else definition.schedule.kind.value


def describe(definition: model.Definition) -> str:
    """Describe the schedule in words, without its bounds, and the events that trigger the task."""
    on = (offered("followed", definition.on) or f"on {definition.on.event}") if definition.on else ""
    if on and not definition.is_hybrid:
        return on
    if definition.schedule.kind is model.ScheduleKind.RRULE:
        bare = definition.schedule.text  # the text of the rule, so that lists work without the part that parses rules
    else:
        bare = _timetable(definition.schedule, definition.name, definition.timezone, None, None, ()).describe()
    return f"{bare} or {on}" if on else bare


@lru_cache(maxsize=4096)
def _timetable(
    schedule: model.Schedule,
    name: str,
    timezone: str,
    start_at: datetime | None,
    end_at: datetime | None,
    exclude: tuple[str, ...],
) -> Timetable:
    plain = _plain(schedule, name, timezone)
    if exclude:
        plain = excluding(plain, exclude, zone(timezone))
    return plain if start_at is None and end_at is None else Bounded(plain, start_at, end_at)


def _plain(schedule: model.Schedule, name: str, timezone: str) -> Timetable:
    match schedule.kind:
        case model.ScheduleKind.CRON:
            return parse_cron(schedule.text, name=name, zone=zone(timezone))
        case model.ScheduleKind.EVERY:
            if schedule.anchor_at is None:
                raise InvalidInput("an interval needs an anchor", where="every")
            return parse_every(schedule.text, anchor=schedule.anchor_at)
        case model.ScheduleKind.RRULE:
            anchor = schedule.anchor_at or EPOCH  # Only a rule with a DTSTART has no anchor.
            table: Timetable = required(RULES, schedule.text, zone(timezone), anchor)
            return table
        case model.ScheduleKind.DYNAMIC | model.ScheduleKind.ON:
            return Never()
        case model.ScheduleKind.AT:
            return Once(parse_rfc3339(schedule.text))


def due_of(task_id: str, timetable: Timetable, jitter: timedelta) -> Callable[[datetime], datetime]:
    """Return a function that maps a scheduled time of a task to the due time of its fire."""
    if not jitter:
        return lambda nominal_at: nominal_at

    def due(nominal_at: datetime) -> datetime:
        following = timetable.next_after(nominal_at)
        span = jitter if following is None else min(jitter, following - nominal_at - _STEP)
        digest = blake2b(f"{task_id}\0{to_seconds(nominal_at)}".encode(), digest_size=8).digest()
        return nominal_at + _STEP * (int.from_bytes(digest) % (span // _STEP + 1))

    return due


def put_off(fire: Fire, task: Task, due: Callable[[datetime], datetime]) -> Fire:
    """Delay the ready time and the grace period of an unsent scheduled fire to its due time; return the fire."""
    if fire.outcome not in _YET_TO_GO or fire.kind is not FireKind.SCHEDULED:
        return fire
    due_at = due(fire.nominal_at)
    send_by = None if fire.send_by is None else max(fire.send_by, due_at + task.definition.grace)
    ready_at = None if fire.ready_at is None else max(fire.ready_at, due_at)
    return replace(fire, due_at=due_at, send_by=send_by, ready_at=ready_at)
