"""Jitter: how much later than its nominal time a fire is due. Pure.

The amount is a hash of the task and the nominal time: the same after a crash, an edit or on another machine, and
different for tasks that share a nominal time. It is always less than the gap to the next nominal time, so the fires of
a task stay in the order of their nominal times.
"""

from collections.abc import Callable
from datetime import datetime, timedelta
from hashlib import blake2b

from task_runner.model.replace import replace
from task_runner.model.task import Fire, FireKind, Outcome, Task
from task_runner.timetable import Timetable
from task_runner.timetable.instants import to_seconds

_STEP = timedelta(milliseconds=1)
_YET_TO_GO = frozenset({Outcome.PENDING, Outcome.WAITING})


def due_of(task_id: str, timetable: Timetable, jitter: timedelta) -> Callable[[datetime], datetime]:
    """Return the function from a nominal time of a task to when its fire is due."""
    if not jitter:
        return _at_once

    def due(nominal_at: datetime) -> datetime:
        following = timetable.next_after(nominal_at)
        span = jitter if following is None else min(jitter, following - nominal_at - _STEP)
        digest = blake2b(f"{task_id}\0{to_seconds(nominal_at)}".encode(), digest_size=8).digest()
        return nominal_at + _STEP * (int.from_bytes(digest) % (span // _STEP + 1))

    return due


def put_off(fire: Fire, task: Task, due: Callable[[datetime], datetime]) -> Fire:
    """Return an unsent fire that is ready no earlier than it is due, and on time as long after that as ever."""
    if fire.outcome not in _YET_TO_GO or fire.kind is not FireKind.SCHEDULED:
        return fire
    due_at = due(fire.nominal_at)
    send_by = None if fire.send_by is None else max(fire.send_by, due_at + task.definition.grace)
    ready_at = None if fire.ready_at is None else max(fire.ready_at, due_at)
    return replace(fire, due_at=due_at, send_by=send_by, ready_at=ready_at)


def _at_once(nominal_at: datetime) -> datetime:
    return nominal_at
