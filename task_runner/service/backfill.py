"""Backfill: fires for past nominal times that never had one, beside what the ledger says of them."""

from collections import deque
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta

from protos.turnkeeper.v1 import schedules_pb2 as wire
from task_runner.model.task import OPEN, Fire, FireKind, Outcome, Revision, ScheduleKind, Task, TaskState, fire_id
from task_runner.planner.log_records import LogRecord, committed
from task_runner.planner.schedule import describe, timetable_of
from task_runner.scheduler.planning import frozen_request
from task_runner.service.changes import find_living
from task_runner.service.task_spec import parse_instant
from task_runner.service.views import stamp
from task_runner.store.port import Session
from turnkeeper.errors import Conflict, InvalidInput

MOST_AT_ONCE = 10_000
_LEAST = timedelta(microseconds=1)
_WITHOUT_TIMES = frozenset({ScheduleKind.DYNAMIC, ScheduleKind.ON})
_BESIDE = frozenset({FireKind.MANUAL, FireKind.EVENT})


def backfill(
    session: Session, asked: wire.BackfillTaskRequest, now: datetime
) -> tuple[wire.BackfillTaskResponse, list[LogRecord]]:
    """Commit a fire for each nominal time in [from, to) that never had an accepted one, or for every one with `all`.

    The times are those of the schedule in force then, before the task was created those of its first. The fires wait
    for catch-up slots, in order; the cursor and the limit on fires do not move. The same request again adds nothing.

    Raises:
        NotFound, Conflict: no such task, or one that does not fire.
        InvalidInput: not a span, or more than 10,000 nominal times.
    """
    task = find_living(session, asked.name)
    if task.state in {TaskState.DISABLED, TaskState.QUARANTINED, TaskState.PAUSED}:
        raise Conflict(f"{task.definition.name!r} is {task.state}", hint="resume or enable it first")
    if task.definition.schedule.kind in _WITHOUT_TIMES:
        what = f"{task.definition.name!r} is {describe(task.definition)}: its schedule names no times"
        raise InvalidInput(what, where="backfill", hint="fire it by hand: task-runner run")
    zone = task.definition.timezone
    start, end = (parse_instant(getattr(asked, name), zone, field=name) for name in ("from", "to"))
    if end <= start:
        raise InvalidInput("must be later than from", where="to")
    # What lies ahead of the cursor fires by itself.
    nominals = list(_nominals(session.tasks.revisions(task.id), start, min(end, task.cursor_at + _LEAST)))
    if len(nominals) > MOST_AT_ONCE:
        what = f"more than {MOST_AT_ONCE} nominal times lie between from and to"
        raise InvalidInput(what, where="backfill", hint="take a shorter span")
    if not asked.all and nominals:
        nominals = _without_fire(nominals, session.fires.touching(task.id, nominals[0], nominals[-1]))
    fires = [_fire(task, nominal_at, asked.request_id, now) for nominal_at in nominals]
    known = session.fires.by_ids([fire.fire_id for fire in fires])
    written = session.fires.add_all([fire for fire in fires if fire.fire_id not in known], frozen_request(task))
    answer = wire.BackfillTaskResponse(count=len(fires))
    if fires:
        stamp(answer.first_nominal_at, fires[0].nominal_at)
        stamp(answer.last_nominal_at, fires[-1].nominal_at)
    if not asked.dry_run:
        answer.fire_ids.extend(fire.fire_id for fire in fires)
    return answer, [committed(fire) for fire in written]


def in_force(revisions: Sequence[Revision], at: datetime) -> Revision:
    """Return the revision in force at a time; before the first, the first."""
    return next((each for each in reversed(revisions) if each.valid_from <= at), revisions[0])


def _nominals(revisions: Sequence[Revision], start: datetime, end: datetime) -> Iterator[datetime]:
    """Yield the nominal times in [start, end), a little more than the most at once where there are as many."""
    room = MOST_AT_ONCE + 1
    for number, each in enumerate(revisions):
        low = start if number == 0 else max(start, each.valid_from)
        # After the clock stepped back a later revision may be in force from an earlier time.
        high = min([end, *(later.valid_from for later in revisions[number + 1 :])])
        if low < high and room > 0:
            found = timetable_of(each.definition).first_n(low - _LEAST, high - _LEAST, room)
            room -= len(found)
            yield from found


def _without_fire(nominals: Sequence[datetime], entries: Sequence[Fire]) -> list[datetime]:
    """Return the nominal times that no fire was accepted for, or stands for, or is about to be sent for."""
    had = [
        fire
        for fire in entries
        if fire.kind not in _BESIDE and (fire.accepted_at is not None or fire.outcome in OPEN) and fire.count
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


def _fire(task: Task, nominal_at: datetime, request_id: str, now: datetime) -> Fire:
    return Fire(
        task_id=task.id,
        fire_id=fire_id(task.id, nominal_at, f"~b{request_id}"),
        kind=FireKind.BACKFILL,
        nominal_at=nominal_at,
        due_at=nominal_at,
        first_at=nominal_at,
        last_at=nominal_at,
        outcome=Outcome.PENDING,
        policy=task.definition.catch_up,
        caught_up=True,
        ready_at=now,
        retries=task.definition.retries,
    )
