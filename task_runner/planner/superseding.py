"""After an edit: what the new definition does not fire for any more. Pure."""

from datetime import datetime

from task_runner.model.declaration import EventTrigger
from task_runner.model.replace import replace
from task_runner.model.task import COUNTED, Fire, FireKind, Outcome, Snapshot
from task_runner.planner import self_paced as selfpaced
from task_runner.planner.plan import returned_places, settled_skipped
from task_runner.planner.plans import Plan
from task_runner.timetable import Timetable


def supersede(snapshot: Snapshot, timetable: Timetable, now: datetime, on: EventTrigger | None = None) -> Plan:
    """Settle the unsent fires whose nominal time a new schedule no longer names, or whose event it does not wait for.

    Args:
        snapshot: the task with its new definition.
        timetable: its new nominal times.
        now: the time.
        on: the events it fired for before.
    """
    kept = snapshot.task.definition.on
    same_event = kept is not None and on is not None and kept.event == on.event
    paced = selfpaced.is_self_paced(snapshot.task.definition)
    unsent = {Outcome.PENDING, Outcome.WAITING} if paced else {Outcome.PENDING}
    gone = [
        fire
        for fire in snapshot.open
        if fire.kind in COUNTED and fire.outcome in unsent
        if not (same_event if fire.kind is FireKind.EVENT else _names(timetable, fire))
    ]
    task = replace(snapshot.task, accepted=snapshot.task.accepted - returned_places(gone))
    superseded = tuple(settled_skipped(fire, "superseded", now) for fire in gone)
    return Plan(task=task, changed=superseded, skipped=superseded)


def _names(timetable: Timetable, fire: Fire) -> bool:
    # A wake is no time of a schedule, even where one names the same second.
    return fire.kind is not FireKind.WAKE and timetable.last_at_or_before(fire.nominal_at) == fire.nominal_at
