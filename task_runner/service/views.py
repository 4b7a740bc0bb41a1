"""Convert tasks and ledger entries to protobuf messages."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from google.protobuf.timestamp_pb2 import Timestamp

from task_runner.model.task import HALTED, UNDER_WAY, WAITS, Definition, Fire, Outcome, Task, TaskState
from task_runner.planner import entries, self_paced
from task_runner.planner.entries import describe, due_of, kind_of, timetable_of
from task_runner.service.task_spec import write_spec
from task_runner.store.rows import Glance
from task_runner.timetable import zone
from turnkeeper.errors import InvalidInput
from turnkeeper.times import shown_in
from turnkeeper.v1 import schedules_pb2 as wire

_APPROVALS = "turnkeeper approvals list"
AWAY = "agent-runtime: turnkeeper status"
_LIVING = frozenset({TaskState.ACTIVE, TaskState.DONE, TaskState.EXPIRED})
# States of a task's fires that are more specific than `active`. The first match is shown.
_SHOWN = (
    (frozenset({Outcome.INTERRUPTED}), "interrupted"),
    (frozenset({Outcome.HELD}), "held"),
    (frozenset({Outcome.RUNNING}), "running"),
    (UNDER_WAY | {Outcome.PENDING, Outcome.WAITING}, "waiting"),
)
_COPIED = ("fire_id", "task_id", "reason", "count", "attempt", "turn_id", "entry_id")  # the outcomes of ledger entries
_TIMES = ("nominal_at", "due_at", "fired_at", "accepted_at", "started_at", "ended_at")
STATES = frozenset({*(state.value for state in TaskState), *(shown for _, shown in _SHOWN)})


def state_of(task: Task, opened: frozenset[Outcome]) -> str:
    """Return the state to show in a list: the stored state, or the state of the task's open fires."""
    if task.state in _LIVING:
        for outcomes, shown in _SHOWN:
            if opened & outcomes:
                return shown
    return task.state.value


def show_task(
    task: Task, glance: Glance, now: datetime, lateness: Sequence[float] = (), *, blocked: str = ""
) -> wire.Task:
    """Return a task as a protobuf message.

    Args:
        now: the time. Earlier times that are due but not planned count as missed, and are not shown as next times.
        lateness: the delays of the task's newest fires, in seconds.
        blocked: what the fires of all tasks wait for.

    The time of the last edit is set to the creation time. Callers correct it for later revisions.
    """
    shown = wire.Task(
        id=task.id,
        spec=write_spec(task.definition, paused=task.state is TaskState.PAUSED),
        kind=kind_of(task.definition),
        state=state_of(task, glance.open),
        schedule=describe(task.definition),
        fires=task.fires,
        missed=task.missed,
        revision=task.revision,
    )
    if task.definition.is_self_paced and task.pacing is not None:
        shown.iteration = task.pacing.iteration
        stamp(shown.armed_at, task.pacing.armed_at)
        shown.put_off = task.pacing.put_off if task.pacing.armed_at is not None else ""
        stamp(shown.wakes_from, self_paced.earliest_wake(task, now, running=bool(glance.open)))
    if not shown.spec.HasField("thread_id"):
        shown.spec.thread_id = task.own_thread
    stamp(shown.created_at, task.created_at)
    stamp(shown.updated_at, task.created_at)
    stamp(shown.anchor_at, task.definition.schedule.anchor_at)
    if task.state is TaskState.ACTIVE:
        if shown.HasField("armed_at") and task.pacing is not None and task.pacing.armed_at is not None:
            stamp(shown.next_fire_at, task.pacing.armed_at)
            stamp(shown.due_at, self_paced.wake_due(task, task.pacing.armed_at))
        else:
            _stamp_next(shown, task, now)
        shown.waits_for = _waits_for(glance, blocked)
    if task.state is TaskState.PAUSED:
        shown.paused_note = task.reason
        stamp(shown.paused_until, task.wake_at)
    else:
        shown.reason = task.reason
    if glance.last is not None:
        stamp(shown.last_fire_at, glance.last.fired_at)
        shown.last_outcome = glance.last.outcome.value
    if lateness:
        ordered = sorted(lateness)
        shown.late_p95_s = ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))]
    return shown


def _stamp_next(shown: wire.Task, task: Task, now: datetime) -> None:
    """Set the next future time, and count earlier times that are due but not planned as missed."""
    limit = task.definition.max_fires
    if limit is not None and task.accepted >= limit:
        return
    timetable = timetable_of(task.definition)
    due_at = due_of(task.id, timetable, task.definition.jitter)
    upcoming = timetable.next_after(task.cursor_at)
    if upcoming is not None and due_at(upcoming) <= now:
        due = entries.fallen_due(timetable, task.cursor_at, now, task.definition.grace, due_at)
        shown.missed += due.missed.count if due.missed else 0
        upcoming = timetable.next_after(due.last_at or now)
    if upcoming is not None:
        stamp(shown.next_fire_at, upcoming)
        stamp(shown.due_at, due_at(upcoming))


def _waits_for(glance: Glance, blocked: str) -> str:
    """Say what blocks a task's open fires. Empty if a turn is running or no fire is open."""
    if glance.held_by:
        return f"{glance.held_by.removeprefix('waits for ')}: {_APPROVALS}"
    if glance.refused.startswith(WAITS):
        return glance.refused.removeprefix(WAITS)
    if glance.open & HALTED:
        return f"its author: {_APPROVALS}"
    if glance.refused and blocked != AWAY:
        return f"the repair of this: {glance.refused}"
    return blocked if glance.open and (blocked == AWAY or Outcome.RUNNING not in glance.open) else ""


def show_fire(fire: Fire, name: str, cause: str = "") -> wire.Fire:
    """Return a ledger entry as a protobuf message."""
    copied: dict[str, Any] = {each: getattr(fire, each) for each in _COPIED}
    shown = wire.Fire(task_name=name, kind=fire.kind.value, outcome=fire.outcome.value, cause=cause, **copied)
    for each in _TIMES:
        stamp(getattr(shown, each), getattr(fire, each))
    stamp(shown.first_nominal_at, fire.first_at)
    stamp(shown.last_nominal_at, fire.last_at)
    if fire.fired_at is not None:
        shown.late_s = max(0.0, (fire.fired_at - fire.due_at).total_seconds())
    return shown


def upcoming(definition: Definition, after: datetime, count: int, task_id: str = "") -> list[wire.Nominal]:
    """Return the next nominal times strictly after an instant. If `task_id` is given, apply the task's jitter."""
    local, timetable = zone(definition.timezone), timetable_of(definition)
    due = due_of(task_id, timetable, definition.jitter if task_id else timedelta(0))
    return [_nominal(at, due(at), local) for at in timetable.upcoming(after, count)]


def previewed(definition: Definition, after: datetime, count: int, task: Task | None = None) -> list[wire.Nominal]:
    """Return the next times of a definition, as :func:`upcoming`. For a self-paced task, return only the armed wake.

    Args:
        after: return only times strictly after this instant, and after a pause that ends by itself.
    """
    if task is not None and task.state is TaskState.PAUSED:
        after = max(after, task.wake_at or after)
    if not definition.is_self_paced:
        return upcoming(definition, after, count, task.id if task else "")
    pacing = self_paced.edited(task, definition, after) if task else self_paced.begun(definition, after)
    if pacing is None or pacing.armed_at is None or (task and task.state not in _LIVING):
        return []
    at = pacing.armed_at
    return [_nominal(at, self_paced.wake_due(task, at) if task else at, zone(definition.timezone))]


def stamp(field: Timestamp, at: datetime | None) -> None:
    """Set a timestamp field, or leave the field absent if `at` is None."""
    if at is not None:
        field.FromDatetime(at)


def instant(at: Timestamp, field: str) -> datetime:
    """Return an instant of a request. Raises InvalidInput, which names the field."""
    try:
        return at.ToDatetime(tzinfo=UTC)
    except (ValueError, OverflowError) as error:
        raise InvalidInput("is not a time", where=field) from error


def _nominal(at: datetime, due_at: datetime, local: ZoneInfo) -> wire.Nominal:
    shown = wire.Nominal(local=shown_in(at, local).isoformat())
    stamp(shown.nominal_at, at)
    stamp(shown.due_at, due_at)
    return shown
