"""Repair after the clock stepped back: cursors that a wrong clock moved into the future return to now."""

from collections.abc import Sequence
from datetime import datetime, timedelta

from task_runner.model.task import Fire, FireKind, Revision, Snapshot, TaskState, replace
from task_runner.planner import entries
from task_runner.planner.entries import timetable_of
from task_runner.planner.log_records import LogRecord
from task_runner.planner.self_paced import whole
from task_runner.scheduler.planning import LARGEST_BATCH
from task_runner.store.store import Session
from task_runner.timetable import LEAST, Timetable
from turnkeeper.times import rfc3339

# If a cursor is further ahead of the clock than this, a wrong clock moved it.
LARGEST_LEAD = timedelta(minutes=5)
# The longest pause before a refused or failed fire is retried.
LONGEST_BACKOFF = timedelta(minutes=10)
_LARGEST_REWIND = 10_000


def rewind(session: Session, now: datetime) -> list[LogRecord]:
    """Set cursors that are far ahead of `now` back to `now`, and cut the later times from their entries.

    Existing fires keep their ids, so that none fires twice when its scheduled time recurs. Process one batch of tasks.
    Return the log records; an empty list means that all tasks were handled.
    """
    events: list[LogRecord] = []
    ids = session.tasks.ahead_of(now + LARGEST_LEAD, LARGEST_BATCH)
    for snapshot in session.tasks.snapshots(ids) if ids else ():
        task, revisions = snapshot.task, session.tasks.revisions(snapshot.task.id)
        if task.cursor_at <= now + LARGEST_LEAD:
            continue  # another runner reset the cursor first
        while beyond := session.fires.after_nominal(task.id, now, _LARGEST_REWIND):
            _cut(session, beyond, revisions, now)
        pauses = task.state is TaskState.PAUSED  # The task wakes at the end of its pause, wherever its cursor is.
        wake_at = task.wake_at if pauses or task.wake_at is None else now
        moved = replace(task, cursor_at=now, wake_at=wake_at, rewound_until=task.cursor_at)
        if task.pacing is not None and task.pacing.armed_at is not None:
            # A wake is relative to the end of a turn, so it keeps the delay that it had before the clock step.
            left = max(timedelta(0), task.pacing.armed_at - task.cursor_at)
            moved = replace(moved, pacing=replace(task.pacing, armed_at=whole(now + left)))
        if task.definition.is_self_paced:
            moved = replace(moved, rewound_until=None)  # a self-paced task has no times that recur
        session.fires.write_plans([entries.Plan(task=moved, tail=_tail(session, snapshot))], {})
        events += [
            LogRecord("clock.stepped_back", {"task_id": task.id, "cursor_was": rfc3339(task.cursor_at)}),
            LogRecord("cursor.moved", {"task_id": task.id, "to": rfc3339(now)}),
        ]
    return events


def bring_back(session: Session, now: datetime, after_entry: int) -> int:
    """Reset the ready time of one batch of unsent fires to the time that a correct clock would have given.

    A scheduled fire still waits until it is due. Return the number of the last entry examined; 0 if none is left.
    """
    found = session.locked(lambda: session.fires.ready_later(now, after_entry, LARGEST_BATCH))
    moved = [(fire, _brought_back(fire, now)) for fire in found]
    session.fires.update([back for fire, back in moved if back != fire])
    return found[-1].entry_id if found else 0


def _brought_back(fire: Fire, now: datetime) -> Fire:
    assert fire.ready_at is not None
    due_at = fire.due_at
    if fire.kind is not FireKind.SCHEDULED and fire.nominal_at > now:
        due_at = now + max(timedelta(0), fire.due_at - fire.nominal_at)  # the time does not recur
    tried = fire.attempt > 1 or fire.refusals > 0
    return replace(
        fire, due_at=due_at, ready_at=min(fire.ready_at, max(due_at, now + LONGEST_BACKOFF if tried else now))
    )


def _cut(session: Session, fires: list[Fire], revisions: Sequence[Revision], now: datetime) -> None:
    gone: list[int] = []
    kept: list[Fire] = []
    for fire in fires:
        run = entries.run_between(_planned_by(revisions, fire), fire.first_at - LEAST, now)
        if run is None and not fire.fire_id:
            gone.append(fire.entry_id)
        elif run is None:
            kept.append(replace(fire, count=0))
        else:
            cut = replace(fire, count=run.count, first_at=run.first_at, last_at=run.last_at)
            # The `nominal_at` of an entry without a fire id is its last scheduled time.
            kept.append(cut if fire.fire_id else replace(cut, nominal_at=run.last_at, due_at=run.last_at))
    session.fires.remove_runs(gone)
    session.fires.update(kept)


def _tail(session: Session, snapshot: Snapshot) -> Fire | None:
    """Return the rest of a task's newest skipped entry after the removal; None if nothing is left."""
    if snapshot.tail is None:
        return None
    number = abs(snapshot.tail.entry_id)
    left = next(iter(session.fires.numbered(number - 1, 1)), None)
    return replace(left, entry_id=-number) if left and left.entry_id == number and left.count else None


def _planned_by(revisions: Sequence[Revision], fire: Fire) -> Timetable:
    """Return the timetable that planned an entry: the newest one with as many times in the span as the entry covers."""
    tables = [timetable_of(each.definition) for each in reversed(revisions) if each.valid_from <= fire.last_at]
    before = fire.first_at - LEAST
    named = (each for each in tables if each.count(before, fire.last_at) == fire.count)
    return next(named, timetable_of(revisions[-1].definition))
