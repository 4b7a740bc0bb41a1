"""The commonest plan by a short way: nothing of a task is open, and one time of it fell due, on time. Pure.

What it plans is what the long way plans; where that is not certain, it plans nothing.
"""

from datetime import datetime, timedelta

from task_runner.model.replace import replace
from task_runner.model.task import CatchUp, Snapshot
from task_runner.planner.plan import Plan, earliest, fresh, single
from task_runner.timetable import Timetable

_LEAST = timedelta(microseconds=1)


def plan_alone(snapshot: Snapshot, timetable: Timetable, now: datetime) -> Plan | None:
    """Return the plan of an active task of which nothing is open and one time is due, on time; None for any other."""
    task, definition = snapshot.task, snapshot.task.definition
    if snapshot.open or snapshot.taken or task.rewound_until or definition.on or definition.jitter:
        return None
    if definition.max_fires is not None or definition.catch_up_window is not None:
        return None
    due_at = timetable.next_after(task.cursor_at)
    if due_at is None or not due_at <= now <= due_at + definition.grace:
        return None
    following = timetable.next_after(due_at)
    if following is not None and following <= now:
        return None
    fire = replace(fresh(task, due_at, single(due_at), caught_up=False), ready_at=now)
    late = fire.send_by + _LEAST if fire.send_by and definition.catch_up is CatchUp.SKIP else None
    return Plan(
        task=replace(task, cursor_at=due_at, wake_at=earliest(following, late)), new=(fire,), tail=snapshot.tail
    )
