"""After the clock stepped back: cursors that a wrong clock moved into the future come back to now."""

from datetime import datetime, timedelta

from task_runner.model import Fire, TaskState
from task_runner.planner import Plan
from task_runner.planning import LARGEST_BATCH
from task_runner.replacing import replace
from task_runner.runs import run_between
from task_runner.schedules import timetable_of
from task_runner.store import Session
from task_runner.timetable import Timetable
from task_runner.trail import Event
from turnkeeper.clock import rfc3339

# A cursor that lies further ahead of the clock than this was moved by a clock that was wrong.
LARGEST_LEAD = timedelta(minutes=5)
_LARGEST_REWIND = 10_000
_LEAST = timedelta(microseconds=1)


def rewind(session: Session, now: datetime) -> list[Event]:
    """Set cursors that lie far ahead of `now` back to it, and cut what their entries cover beyond it.

    Fires that exist keep their ids, so that none fires twice when its nominal time comes again. Works on one batch of
    tasks; returns the facts, none when there is nothing left to do.
    """
    events: list[Event] = []
    ids = session.tasks.ahead_of(now + LARGEST_LEAD, LARGEST_BATCH)
    for snapshot in session.tasks.snapshots(ids) if ids else ():
        task, timetable = snapshot.task, timetable_of(snapshot.task.definition)
        while beyond := session.fires.after_nominal(task.id, now, _LARGEST_REWIND):
            _cut(session, beyond, timetable, now)
        pauses = task.state is TaskState.PAUSED  # wakes when its pause ends, wherever its cursor is
        wake_at = task.wake_at if pauses or task.wake_at is None else now
        moved = replace(task, cursor_at=now, wake_at=wake_at, rewound_until=task.cursor_at)
        session.fires.write_plans([Plan(task=moved)], {})
        events += [
            Event("clock.stepped_back", {"task_id": task.id, "cursor_was": rfc3339(task.cursor_at)}),
            Event("cursor.moved", {"task_id": task.id, "to": rfc3339(now)}),
        ]
    return events


def _cut(session: Session, fires: list[Fire], timetable: Timetable, now: datetime) -> None:
    gone: list[int] = []
    kept: list[Fire] = []
    for fire in fires:
        run = run_between(timetable, fire.first_at - _LEAST, now)
        if run is None and not fire.fire_id:
            gone.append(fire.entry_id)
        elif run is None:
            kept.append(replace(fire, count=0))
        else:
            kept.append(replace(fire, count=run.count, first_at=run.first_at, last_at=run.last_at))
    session.fires.remove_runs(gone)
    session.fires.update(kept)
