"""The time that `explain` explains: the given time, the nearest time with a fire, or the newest due time."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from task_runner.model.fields import parse_instant
from task_runner.model.task import FireKind, Revision, Task, TaskState
from task_runner.planner.entries import timetable_of
from task_runner.store.store import Session
from task_runner.timetable import zone
from turnkeeper.errors import InvalidInput
from turnkeeper.times import time_of_day

_STAYS = frozenset({TaskState.PAUSED, TaskState.DISABLED, TaskState.QUARANTINED})  # the cursor does not move meanwhile
_AROUND = range(-7, 8)  # days around today: tasks that fire once a week have two fires in them


class Asked(NamedTuple):
    """The time to explain, a whole second.

    Attributes:
        day: a sentence that names the chosen day; empty if the question named a day.
    """

    at: datetime
    day: str = ""


def time_in_question(session: Session, task: Task, text: str, now: datetime) -> Asked:
    """Return the time in `text`. If `text` is empty, return the newest time that was due, or else the next time.

    If `text` is only a time of day, return the nearest such time with a fire of the task, or else the nearest one.
    """
    if text and (hour := time_of_day(text)) is not None:
        return _nearest(session, task, hour, now)
    if text:
        return Asked(parse_instant(text, task.definition.timezone, field="at").replace(microsecond=0))
    return Asked(max(_newest(session, task, now), task.created_at.replace(microsecond=0)))


def in_force(revisions: Sequence[Revision], at: datetime) -> Revision:
    """Return the revision in force at a time; for a time before the first revision, return the first."""
    return next((each for each in reversed(revisions) if each.valid_from <= at), revisions[0])


def _nearest(session: Session, task: Task, hour: tuple[int, int], now: datetime) -> Asked:
    """Return a time of day in the task's zone, on a day within a week of today."""
    timezone = task.definition.timezone
    today, times = now.astimezone(zone(timezone)).date(), list[datetime]()
    for days in _AROUND:
        day = today + timedelta(days=days)
        try:
            times.append(parse_instant(f"{day}T{hour[0]:02}:{hour[1]:02}", timezone, field="at"))
        except InvalidInput:  # the clocks skip that time on that day
            continue
    times.sort(key=lambda at: abs(at - now))
    revisions = session.tasks.revisions(task.id)

    def fires(at: datetime) -> bool:
        if any(entry.nominal_at == at for entry in session.fires.touching(task.id, at, at)):
            return True
        timetable = timetable_of(in_force(revisions, at).definition)
        return at >= task.created_at and timetable.last_at_or_before(at) == at

    found = next((at for at in times if fires(at)), None)
    at = times[0] if found is None else found
    here = at.astimezone(zone(timezone))
    why = "the nearest with a fire" if found is not None else "the nearest; the task has no fire at that time of day"
    line = f"{here:%H:%M} was taken to be on {here:%a %Y-%m-%d} in {timezone}, {why}. For another day, give a date."
    return Asked(at, line)


def _newest(session: Session, task: Task, now: datetime) -> datetime:
    """Return the newest time that was due; if there is none, return the next one."""
    this_second = now.replace(microsecond=0)
    if task.definition.is_self_paced:
        return this_second
    if task.definition.on is not None and not task.definition.is_hybrid:
        event = session.events.newest(task.id)
        return this_second if event is None else event.last_at
    timetable = timetable_of(task.definition)
    last = timetable.last_at_or_before(now if task.state in _STAYS else min(now, task.cursor_at))
    at = last if last is not None and last >= task.created_at else timetable.next_after(now) or last or now
    newest = next(iter(session.fires.history(task.id, 1)), None)
    if newest is not None and newest.kind is FireKind.MANUAL and (newest.nominal_at >= at or at > now):
        return newest.nominal_at
    return at
