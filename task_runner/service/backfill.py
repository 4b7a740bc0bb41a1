"""Backfill: fires for past scheduled times without a fire."""

from collections import deque
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta

from task_runner.model import task as model
from task_runner.model.fields import parse_instant
from task_runner.model.task import Fire, FireKind, TaskState
from task_runner.planner.entries import describe, timetable_of
from task_runner.planner.log_records import LogRecord, committed
from task_runner.scheduler import planning
from task_runner.service.changes import find_living, requested
from task_runner.service.views import stamp
from task_runner.store.store import Session
from turnkeeper.errors import Conflict, InvalidInput
from turnkeeper.v1 import schedules_pb2 as wire

MOST_AT_ONCE = 10_000
_LEAST = timedelta(microseconds=1)
_WITHOUT_TIMES = frozenset({model.ScheduleKind.DYNAMIC, model.ScheduleKind.ON})
_NOT_FOR_A_TIME = frozenset({FireKind.MANUAL, FireKind.EVENT})


def backfill(
    asked: wire.BackfillTaskRequest, now: datetime, session: Session
) -> tuple[wire.BackfillTaskResponse, list[LogRecord]]:
    """Commit a fire for each scheduled time in [from, to) that never had an accepted fire; with `all`, for each time.

    Use the schedule in force at each time, and the task's first schedule for times before its creation. The fires wait
    for catch-up slots, in order. The cursor and the limit on fires do not move. A repeated request adds nothing.

    Raises:
        NotFound, Conflict: the task does not exist, or it cannot fire.
        InvalidInput: the span is not valid or has more than 10,000 scheduled times.
    """
    task = find_living(session, asked.name)
    if task.state in {TaskState.DISABLED, TaskState.QUARANTINED, TaskState.PAUSED}:
        hint = f"first run: turnkeeper task resume {task.definition.name}"
        raise Conflict(f"{task.definition.name!r} is {task.state}", hint=hint)
    if task.definition.schedule.kind in _WITHOUT_TIMES:
        what = f"{task.definition.name!r} is {describe(task.definition)}: its schedule names no times"
        raise InvalidInput(what, where="backfill", hint="fire it manually: turnkeeper task run")
    zone = task.definition.timezone
    start, end = (parse_instant(getattr(asked, name), zone, field=name) for name in ("from", "to"))
    if end <= start:
        raise InvalidInput("must be later than `from`", where="to")
    # Times after the cursor fire on schedule.
    nominals = list(_nominals(session.tasks.revisions(task.id), start, min(end, task.cursor_at + _LEAST)))
    if len(nominals) > MOST_AT_ONCE:
        what = f"more than {MOST_AT_ONCE} scheduled times lie between from and to"
        raise InvalidInput(what, where="backfill", hint="take a shorter span")
    if not asked.all and nominals:
        nominals = _without_fire(nominals, session.fires.touching(task.id, nominals[0], nominals[-1]))
    suffix, missed = f"~b{asked.request_id}", {"kind": FireKind.BACKFILL, "caught_up": True}
    fires = [requested(task, nominal_at, suffix, now, **missed) for nominal_at in nominals]
    known = session.fires.by_ids([fire.fire_id for fire in fires])
    new = [fire for fire in fires if fire.fire_id not in known]
    written = session.fires.add_all(new, planning.frozen_request(task, session.at_home))
    answer = wire.BackfillTaskResponse(count=len(fires))
    if fires:
        stamp(answer.first_nominal_at, fires[0].nominal_at)
        stamp(answer.last_nominal_at, fires[-1].nominal_at)
    if not asked.dry_run:
        answer.fire_ids.extend(fire.fire_id for fire in fires)
    return answer, [committed(fire) for fire in written]


def _nominals(revisions: Sequence[model.Revision], start: datetime, end: datetime) -> Iterator[datetime]:
    """Yield the scheduled times in [start, end), at most a few more than `MOST_AT_ONCE`."""
    room = MOST_AT_ONCE + 1
    for number, each in enumerate(revisions):
        low = start if number == 0 else max(start, each.valid_from)
        # If the clock stepped back, a later revision may be in force from an earlier time.
        high = min([end, *(later.valid_from for later in revisions[number + 1 :])])
        if low < high and room > 0:
            found = timetable_of(each.definition).upcoming(low - _LEAST, room, until=high - _LEAST)
            room -= len(found)
            yield from found


def _without_fire(nominals: Sequence[datetime], known: Sequence[Fire]) -> list[datetime]:
    """Return the scheduled times without a fire that was accepted, covers the time, or is about to be sent."""
    had = [
        fire
        for fire in known
        if fire.count
        and fire.kind not in _NOT_FOR_A_TIME
        and (fire.accepted_at is not None or fire.outcome in model.OPEN)
    ]
    spans = deque(sorted((fire.first_at, fire.last_at) for fire in had))
    rest: list[datetime] = []
    reach = nominals[0] - _LEAST
    for at in nominals:
        while spans and spans[0][0] <= at:
            reach = max(reach, spans.popleft()[1])
        if at > reach:
            rest.append(at)
    return rest
