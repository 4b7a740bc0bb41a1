"""Planning of one task: computes the changes to store from the stored state and the time. Pure.

Catch-up decides what fires, and overlap decides when. The rest is bookkeeping: the cursor, the limit on fires, and the
next time when anything can change.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime

from task_runner.model import task as model
from task_runner.model.task import Fire, FireKind, Outcome, ScheduleKind, Snapshot, Task, TaskState, replace
from task_runner.planner import entries, event_triggers, self_paced
from task_runner.planner.catch_up import MISSED, CaughtUp, catch_up, late_fires, waited_too_long
from task_runner.planner.entries import Plan, due_of, joined, put_off
from task_runner.planner.overlap import OVERLAP, Lined, asking, asks_no_more, coalesce, queue, skip
from task_runner.timetable import LEAST, Timetable

_ENDED = frozenset({TaskState.DONE, TaskState.EXPIRED})
_WITHOUT_TIMES = frozenset({ScheduleKind.DYNAMIC, ScheduleKind.ON})
_STOPPED = frozenset({TaskState.PAUSED, TaskState.DISABLED, TaskState.QUARANTINED, TaskState.DELETED})


@dataclass(frozen=True, kw_only=True, slots=True)
class Lately:
    """The runtime's newest reports about a task's turns.

    Attributes:
        complete: True if all reports arrived; otherwise a fire recorded as running may have ended long ago.
        ended_at: the end of the turn of a scheduled fire, if one ended.
        resumed: True if a turn no longer waits for its author: it continues, or it ended.
    """

    complete: bool = True
    ended_at: datetime | None = None
    resumed: bool = False


NOTHING_NEW = Lately()


def plan(
    snapshot: Snapshot,
    timetable: Timetable,
    now: datetime,
    *,
    reachable: bool = True,
    halted_waits: bool = False,
    lately: Lately = NOTHING_NEW,
) -> Plan:
    """Plan a task at the time `now`.

    Args:
        reachable: True if the runtime is reachable. Otherwise the state of a running fire is unknown, so times that
            come due stay uncovered until the runtime is reachable. They are then on time or missed as usual.
        halted_waits: queue the due times behind a fire that waits for its author, instead of leaving them uncovered.
            Callers set it before an edit, so that the old schedule still decides about these times.
        lately: the newest reports about the task's turns.
    """
    task, rows, paced = snapshot.task, _scheduled(snapshot.open), _paced(snapshot.open)
    if task.state is not TaskState.ACTIVE or task.definition.schedule.kind in _WITHOUT_TIMES:
        return _without_schedule(snapshot, timetable, now, lately)
    halted = any(row.outcome in model.HALTED for row in paced)
    asks = task.definition.overlap is model.Overlap.CANCEL_RUNNING and not halted and not lately.resumed
    if halted and not halted_waits:
        return _idle(snapshot, asks=asks)
    busy = halted or any(row.outcome in model.UNDER_WAY for row in paced)
    if busy and not reachable:
        return _idle(snapshot, asks=asks)
    waits = halted or lately.resumed  # times that came due while a fire waited for its author are missed
    skips = task.definition.overlap is model.Overlap.SKIP and not waits and not _unsent(rows)
    if skips and busy and not halted_waits and _in_doubt(task, timetable, now, lately):
        return _idle(snapshot, asks=asks)
    ended_at = lately.ended_at if skips else None
    if ended_at is None and (alone := plan_alone(snapshot, timetable, now)):
        return alone
    made = _plan_active(snapshot, timetable, now, busy=busy, skips=skips, asks=asks, ended_at=ended_at)
    return made if len(rows) == len(paced) else event_triggers.releasing_after(snapshot, made, now)


def _plan_active(
    snapshot: Snapshot,
    timetable: Timetable,
    now: datetime,
    *,
    busy: bool,
    skips: bool,
    asks: bool,
    ended_at: datetime | None,
) -> Plan:
    """Plan a task that may fire.

    While a fire of the task is running (`busy`), a fire that comes due is skipped (`skips`) or asks to cancel the turn
    (`asks`). Times that came due before a turn ended (`ended_at`) are still uncovered, and are skipped too.
    """
    overlapped = _passed_over(snapshot, timetable, now, ended_at)
    if overlapped is not None:
        snapshot = replace(snapshot, task=replace(snapshot.task, cursor_at=overlapped.last_at))
    task, rows = snapshot.task, _scheduled(snapshot.open)
    due_at = due_of(task.id, timetable, task.definition.jitter)
    due = entries.fallen_due(timetable, task.cursor_at, now, task.definition.grace, due_at)
    room = _room(task, _paced(snapshot.open))
    aged = () if busy else _given_up(snapshot, due, now)
    unsent = _without(_unsent(rows), aged)
    blocked = room == 0 and not (unsent and _folds(task)) and due.last_at is not None
    if blocked:
        due = entries.Due()
    late = _late(task, unsent, due, now, busy=busy)
    caught = catch_up(task, timetable, due, late, now)
    if aged:
        missed = caught.missed + sum(map(entries.newly_missed, aged))
        caught = replace(caught, changed=aged + caught.changed, missed=missed)
    if gave_way := event_triggers.giving_way(snapshot.open, unsent, now):
        caught = replace(caught, changed=caught.changed + gave_way)
    caught, cursor = _within(caught, room, task, due)
    caught, restored = _existing(snapshot, caught)
    still = _still_unsent(unsent, caught, task=task, busy=busy)
    caught = _absorbed(snapshot, still, caught)
    line_up = coalesce if _folds(task) else queue
    lined = skip(task, caught.fires) if skips and busy else line_up(task, still, caught.fires, now, busy=busy)
    if asks and caught.fires:
        lined = asking(lined)
    if not asks:
        caught = replace(caught, changed=asks_no_more(_paced(snapshot.open)) + caught.changed)
    if overlapped is not None:
        caught = replace(caught, skips=(overlapped, *caught.skips))
    if task.definition.jitter:
        caught, lined = _put_off(caught, lined, task, due_at)
    made = _assemble(snapshot, timetable, cursor, caught, lined, now=now, blocked=blocked)
    return replace(made, restored=restored) if restored else made


def withdraw(snapshot: Snapshot, timetable: Timetable, reason: str, now: datetime, *, manual: bool) -> Plan:
    """Settle a task's unsent fires as skipped for `reason`; include manual fires only if `manual`. Keep the cursor."""
    unsent = [
        fire for fire in snapshot.open if fire.outcome in model.UNSENT and (manual or fire.kind is not FireKind.MANUAL)
    ]
    task = replace(snapshot.task, wake_at=None, accepted=snapshot.task.accepted - entries.returned_places(unsent))
    if task.pacing is not None:
        task = replace(task, pacing=self_paced.withdrawn(task, unsent, reason))
    return joined(snapshot, timetable, task, (), tuple(entries.settled_skipped(fire, reason, now) for fire in unsent))


def pass_over(snapshot: Snapshot, timetable: Timetable, reason: str, now: datetime) -> Plan:
    """Record all times that came due by now as one skipped run, and move the cursor to now."""
    run = entries.run_between(timetable, snapshot.task.cursor_at, now)
    task = replace(snapshot.task, cursor_at=max(now, snapshot.task.cursor_at))
    return joined(snapshot, timetable, task, (entries.skipped_run(task, run, reason),) if run else (), ())


def _put_off(
    caught: CaughtUp, lined: Lined, task: Task, due_at: Callable[[datetime], datetime]
) -> tuple[CaughtUp, Lined]:
    """Make no fire ready before its due time, which includes the jitter."""
    new, changed = (tuple(put_off(fire, task, due_at) for fire in fires) for fires in (lined.new, lined.changed))
    caught = replace(caught, changed=tuple(put_off(fire, task, due_at) for fire in caught.changed))
    return caught, replace(lined, new=new, changed=changed)


def _given_up(snapshot: Snapshot, due: entries.Due, now: datetime) -> tuple[Fire, ...]:
    """Return unsent fires as skipped if they waited too long or no newer fire can cover them.

    A fire that no newer fire can cover was held or awaits a retry, and times after it were skipped.
    """
    task, unsent = snapshot.task, _unsent(_scheduled(snapshot.open))
    aged = waited_too_long(task, unsent, now)
    rest = _without(unsent, aged)
    skipped = (*aged, snapshot.tail) if snapshot.tail else aged
    if not skipped or not (_folds(task) or task.definition.catch_up is model.CatchUp.RUN_ONCE):
        return aged
    newest_at = max(fire.first_at for fire in skipped)
    behind = tuple(row for row in rest if row.last_at < newest_at)
    newer = due.last_at is not None or len(behind) < len(rest)
    return aged + tuple(entries.settled_skipped(row, MISSED, now) for row in behind) if newer else aged


def _without(rows: tuple[Fire, ...], settled: tuple[Fire, ...]) -> tuple[Fire, ...]:
    numbers = {fire.entry_id for fire in settled}
    return tuple(row for row in rows if row.entry_id not in numbers)


def _unsent(rows: tuple[Fire, ...]) -> tuple[Fire, ...]:
    return tuple(row for row in rows if row.outcome in model.UNSENT and row.outcome is not Outcome.HELD)


def _in_doubt(task: Task, timetable: Timetable, now: datetime, lately: Lately) -> bool:
    """Return True if a scheduled time may have come due after the running fire ended."""
    due_at = due_of(task.id, timetable, task.definition.jitter)
    due = entries.fallen_due(timetable, task.cursor_at, now, task.definition.grace, due_at)
    return due.missed is not None or (due.on_time is not None and not lately.complete)


def _passed_over(snapshot: Snapshot, timetable: Timetable, now: datetime, ended_at: datetime | None) -> Fire | None:
    """Return the record of the times that came due and do not fire; None if there are none.

    While a fire of an event is unsent, the record covers all due times. After a turn, only those before its end.
    """
    awaited = event_triggers.is_awaited(snapshot.open)
    if not awaited and (record := event_triggers.debounced(snapshot, timetable, now)):
        return record
    if not awaited and ended_at is None:
        return None
    until, reason = (now, event_triggers.QUEUED) if awaited else (min(ended_at or now, now), OVERLAP)
    room = _room(snapshot.task, _paced(snapshot.open))
    run = entries.run_between(timetable, snapshot.task.cursor_at, until) if room != 0 else None
    return entries.skipped_run(snapshot.task, run, reason) if run else None


def _scheduled(fires: Iterable[Fire]) -> tuple[Fire, ...]:
    return tuple(fire for fire in fires if fire.kind is FireKind.SCHEDULED)


def _paced(fires: Iterable[Fire]) -> tuple[Fire, ...]:
    """Return the fires that overlap rules apply to: all except manual fires and backfills."""
    return tuple(fire for fire in fires if fire.kind in model.COUNTED)


def _idle(snapshot: Snapshot, *, asks: bool = True) -> Plan:
    task = snapshot.task
    kept = task if task.state is TaskState.PAUSED else replace(task, wake_at=None)
    return Plan(task=kept, tail=snapshot.tail, changed=() if asks else asks_no_more(_paced(snapshot.open)))


def _without_schedule(snapshot: Snapshot, timetable: Timetable, now: datetime, lately: Lately) -> Plan:
    """Plan a task that is stopped, or that has no schedule because turns or events trigger its fires."""
    task = snapshot.task
    if task.state is TaskState.PAUSED and task.wake_at is not None and now >= task.wake_at:
        return _come_back(snapshot, timetable, task.wake_at)
    if task.state is not TaskState.ACTIVE:
        return _stopped(snapshot, timetable, now)
    if not task.definition.is_self_paced:
        stepped, changed = event_triggers.next_step(task, snapshot.open, now, resumed=lately.resumed)
        return Plan(task=stepped, changed=changed, tail=snapshot.tail)
    stepped, wake = self_paced.next_step(task, snapshot.open, now)
    return Plan(task=stepped, new=(wake,) if wake else (), tail=snapshot.tail)


def _stopped(snapshot: Snapshot, timetable: Timetable, now: datetime) -> Plan:
    """Withdraw the fires of a stopped task that a hold, a refusal or a failure made unsent again."""
    state, idle = snapshot.task.state, _idle(snapshot)
    if state not in _STOPPED and not (state in _ENDED and snapshot.task.definition.is_self_paced):
        return idle
    withdrawn = withdraw(snapshot, timetable, state.value, now, manual=state is not TaskState.PAUSED)
    if not withdrawn.changed:
        return idle
    return replace(withdrawn, task=replace(withdrawn.task, wake_at=idle.task.wake_at))


def _come_back(snapshot: Snapshot, timetable: Timetable, until: datetime) -> Plan:
    """End a pause at the time `until`. Skip the times due by then; the next planning decides about later times."""
    back = replace(snapshot.task, state=TaskState.ACTIVE, reason="", wake_at=until)
    return pass_over(replace(snapshot, task=back), timetable, TaskState.PAUSED.value, until)


def _room(task: Task, rows: tuple[Fire, ...]) -> int | None:
    """Return how many more fires `max_fires` allows; None if there is no limit."""
    limit = task.definition.max_fires
    if limit is None:
        return None
    return max(0, limit - task.accepted - sum(row.accepted_at is None for row in rows))


def _folds(task: Task) -> bool:
    return task.definition.overlap is not model.Overlap.QUEUE


def _late(task: Task, unsent: tuple[Fire, ...], due: entries.Due, now: datetime, *, busy: bool) -> tuple[Fire, ...]:
    """Return the late unsent fires, about which catch-up decides; none while a fire is running."""
    if busy:
        return ()
    sendable = tuple(row for row in unsent if row.outcome is Outcome.PENDING and not row.is_queued)
    late = late_fires(sendable, due, now)
    if late and task.definition.catch_up is model.CatchUp.RUN_ONCE:
        late += tuple(row for row in unsent if row.is_queued)
    return late


def _within(caught: CaughtUp, room: int | None, task: Task, due: entries.Due) -> tuple[CaughtUp, datetime]:
    """Limit the number of new fires; the cursor stops at the last fire within the limit."""
    cursor = due.last_at or task.cursor_at
    if room is None or _folds(task) or len(caught.fires) <= room:
        return caught, cursor
    kept = caught.fires[:room]
    return replace(caught, fires=kept), kept[-1].last_at if kept else task.cursor_at


def _still_unsent(unsent: tuple[Fire, ...], caught: CaughtUp, *, task: Task, busy: bool) -> list[Fire]:
    """Return the unsent fires that overlap decides about, after catch-up."""
    newest = {fire.entry_id: fire for fire in caught.changed}
    still = [fire for row in unsent if (fire := newest.get(row.entry_id, row)).outcome in model.UNSENT]
    # An unsent fire is undelivered and does not overlap, so it stays unchanged while another fire is running.
    only_waiting = busy and _folds(task)
    return [fire for fire in still if fire.outcome is Outcome.WAITING] if only_waiting else still


def _absorbed(snapshot: Snapshot, still: list[Fire], caught: CaughtUp) -> CaughtUp:
    """Extend a waiting fire over the times that would be skipped after it, so that it covers one run."""
    task = snapshot.task
    if not still or not caught.skips or task.definition.overlap is model.Overlap.QUEUE:
        return caught
    run = entries.merged((*caught.skips, *caught.fires))
    if run.last_at in snapshot.taken:
        return caught
    return replace(caught, skips=(), fires=(entries.fresh(task, run.last_at, run, caught_up=True),))


def _assemble(
    snapshot: Snapshot,
    timetable: Timetable,
    cursor: datetime,
    caught: CaughtUp,
    lined: Lined,
    *,
    now: datetime,
    blocked: bool,
) -> Plan:
    before = {fire.entry_id: fire for fire in snapshot.open}
    changed = {fire.entry_id: fire for fire in (*caught.changed, *lined.changed)}
    rows = [changed.get(fire.entry_id, fire) for fire in _paced(snapshot.open)] + list(lined.new)
    settled = [before[fire.entry_id] for fire in changed.values() if fire.outcome not in model.OPEN]
    task = replace(
        snapshot.task,
        cursor_at=cursor,
        missed=snapshot.task.missed + caught.missed + lined.missed,
        accepted=snapshot.task.accepted - entries.returned_places(settled),
        rewound_until=_still_rewound(snapshot.task, cursor),
    )
    opened = [row for row in rows if row.outcome in model.OPEN]
    if not opened and (ended := _ended(task, timetable, now)):
        task = replace(task, state=ended, wake_at=None)
    else:
        # A fire that was just settled no longer counts towards the limit.
        full = blocked and _room(task, tuple(opened)) == 0
        task = replace(task, wake_at=_wake(task, timetable, opened, now, full=full))
    return joined(snapshot, timetable, task, caught.skips + lined.new, tuple(changed.values()))


def _ended(task: Task, timetable: Timetable, now: datetime) -> TaskState | None:
    limit = task.definition.max_fires
    if limit is not None and task.accepted >= limit:
        return TaskState.DONE
    if task.definition.on is not None:
        end = task.definition.ends_at
        return TaskState.EXPIRED if end is not None and now > end else None
    if timetable.next_after(task.cursor_at) is not None:
        return None
    fired = timetable.last_at_or_before(task.cursor_at) is not None
    return TaskState.DONE if task.definition.schedule.kind is ScheduleKind.AT and fired else TaskState.EXPIRED


def _wake(task: Task, timetable: Timetable, rows: list[Fire], now: datetime, *, full: bool) -> datetime | None:
    """Return the next time when planning could change anything. If `full`, no new fire is possible."""
    wakes = [None if full else timetable.next_after(task.cursor_at)]
    if task.definition.on is not None:
        wakes.append(event_triggers.ends_after(task.definition, now))
    for row in _scheduled(rows):
        if row.outcome is not Outcome.PENDING or row.is_queued or row.send_by is None:
            continue
        if task.definition.catch_up is model.CatchUp.SKIP and row.send_by >= now:
            wakes.append(row.send_by + LEAST)
        if task.definition.catch_up_window is not None:
            wakes.append(max(row.send_by, row.last_at + task.definition.catch_up_window) + LEAST)
    return model.earliest(*wakes)


def _still_rewound(task: Task, cursor: datetime) -> datetime | None:
    until = task.rewound_until
    return None if until is None or cursor >= until else until


def _existing(snapshot: Snapshot, caught: CaughtUp) -> tuple[CaughtUp, tuple[Fire, ...]]:
    """Separate new fires from existing fires whose times recur after a clock step; existing fires never fire again."""
    if not snapshot.taken:
        return caught, ()
    fresh = tuple(fire for fire in caught.fires if fire.nominal_at not in snapshot.taken)
    return replace(caught, fires=fresh), tuple(fire for fire in caught.fires if fire.nominal_at in snapshot.taken)


@dataclass(frozen=True, kw_only=True, slots=True)
class Alone:
    """The plan for a task with no open fire and one due time that is on time.

    Attributes:
        plan: the changes to write. The fire in the plan is not yet ready.
        until: the latest instant when the due time is on time.
        following: the task's next time; None if there is none.
    """

    plan: Plan
    until: datetime
    following: datetime | None

    def goes_at(self, now: datetime) -> bool:
        """Return True if planning the task at `now` gives this plan."""
        (fire,) = self.plan.new
        return fire.nominal_at <= now <= self.until and (self.following is None or now < self.following)


def fires_alone(snapshot: Snapshot, timetable: Timetable) -> Alone | None:
    """Return the plan for a task's next scheduled time, in advance; None if only `plan` can decide."""
    task, definition = snapshot.task, snapshot.task.definition
    if snapshot.open or snapshot.taken or task.rewound_until or definition.on or definition.jitter:
        return None
    if definition.max_fires is not None or definition.catch_up_window is not None:
        return None
    due_at = timetable.next_after(task.cursor_at)
    if due_at is None:
        return None
    following = timetable.next_after(due_at)
    fire = entries.fresh(task, due_at)
    late = fire.send_by + LEAST if fire.send_by and definition.catch_up is model.CatchUp.SKIP else None
    after = replace(task, cursor_at=due_at, wake_at=model.earliest(following, late))
    plan = Plan(task=after, new=(fire,), tail=snapshot.tail)
    return Alone(plan=plan, until=due_at + definition.grace, following=following)


def plan_alone(snapshot: Snapshot, timetable: Timetable, now: datetime) -> Plan | None:
    """Return the plan of an active task with no open fire and one due time that is on time; None for any other task."""
    alone = fires_alone(snapshot, timetable)
    if alone is None or not alone.goes_at(now):
        return None
    (fire,) = alone.plan.new
    return replace(alone.plan, new=(replace(fire, ready_at=now),))


def ahead(snapshot: Snapshot, timetable: Timetable) -> Alone | None:
    """Return the plan that `plan` will make while a task's next time is on time; None if the plan may differ."""
    task = snapshot.task
    if task.state is not TaskState.ACTIVE or task.definition.schedule.kind in _WITHOUT_TIMES:
        return None
    return fires_alone(snapshot, timetable)
