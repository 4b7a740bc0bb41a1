"""Planning inside a transaction: read tasks, call the pure planner, and write plans and the requests of fires."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from types import MappingProxyType

from google.protobuf.timestamp_pb2 import Timestamp

from task_runner.model import task as model
from task_runner.model.task import LONGEST_REASON, OF_GRAPH, Fire, FireKind, Outcome, Snapshot, Task, TaskState, replace
from task_runner.planner import log_records, self_paced
from task_runner.planner.budgets import Ended, pauses_until, settle_up
from task_runner.planner.entries import Plan, timetable_of
from task_runner.planner.overlap import CANCELS
from task_runner.planner.planner import NOTHING_NEW, Lately, plan, withdraw
from task_runner.store.rows import STOPPED, Key, Outgoing
from task_runner.store.store import Session
from turnkeeper.config.surfaces import offered
from turnkeeper.times import to_us
from turnkeeper.v1 import agent_runtime_pb2 as wire

LARGEST_BATCH = 128  # tasks in a batch: few, so that the first fires are sent while the next tasks are planned
NOTHING_ENDED: Mapping[str, Sequence[Ended]] = MappingProxyType({})
# Fields that a request and a task's definition share by name.
_PASSED_ON = ("channel", "agent", "category", "prompt", "payload_json", "read_only", "timezone", "needs", *OF_GRAPH)
_ON_APPROVALS = ("approval_reminder", "approval_escalation", "approval_timeout")


def frozen_request(task: Task, at_home: str) -> bytes:
    """Return the task's part of a fire's request, which later edits do not change: prompt, payload, category.

    For an agent in a terminal, the prompt of a self-paced task ends with the commands for the next wake. They name the
    home (:class:`task_runner.store.Session`).
    If each fire has its own thread, the thread is `model.EACH_FIRE` until the fire is sent.
    """
    definition = task.definition
    request = wire.FireRequest(
        task_id=task.id, task_name=definition.name, thread_id=definition.thread_id or task.own_thread
    )
    for name in _PASSED_ON:
        setattr(request, name, getattr(definition, name))
    for name in _ON_APPROVALS:
        if (after := getattr(definition, name)) is not None:
            setattr(request, f"{name}_s", int(after.total_seconds()))
    if definition.is_self_paced and not model.HOSTED.fullmatch(definition.agent):
        again, end = (
            f"turnkeeper{at_home} loop {how}" for how in (f"reschedule {task.id} SECONDS", f"delete {task.id} --yes")
        )
        request.prompt += f"\n\n(To be woken again: {again}. To end the loop: {end})"
    return request.SerializeToString()


def complete_request(outgoing: Outgoing) -> wire.FireRequest:
    """Return the request of a sent fire. The bytes are the same each time the same attempt is sent."""
    request = complete(wire.FireRequest.FromString(outgoing.request), outgoing.fire)
    if request.thread_id == model.EACH_FIRE:
        request.thread_id = outgoing.fire.fire_id
    return request


def complete(request: wire.FireRequest, fire: Fire) -> wire.FireRequest:
    """Add the fire's own fields to a request; return the request."""
    request.fire_id, request.kind, request.attempt = fire.fire_id, fire.kind.value, fire.attempt
    _set(request.nominal_at, fire.nominal_at)
    _set(request.due_at, fire.due_at)
    if fire.fired_at is not None:
        _set(request.fired_at, fire.fired_at)
    request.catch_up.policy, request.catch_up.count = fire.policy.value, fire.count
    _set(request.catch_up.first_nominal_at, fire.first_at)
    _set(request.catch_up.last_nominal_at, fire.last_at)
    if "{{" in request.prompt:
        request.prompt = offered("prompt as sent", request, fire) or request.prompt
    return request


def stamped(sent_at: datetime) -> bytes:
    """Return the part of a request that holds the time of its first sending. Concatenated parts form one message."""
    request = wire.FireRequest()
    _set(request.fired_at, sent_at)
    return request.SerializeToString()


def traced(traceparent: str) -> bytes:
    """Return the part of a request that holds its trace context."""
    return wire.FireRequest(traceparent=traceparent).SerializeToString()


def _set(stamp: Timestamp, at: datetime) -> None:
    """Set a timestamp like `stamp.FromDatetime(at)`, several times faster."""
    stamp.seconds, us = divmod(to_us(at), 1_000_000)
    stamp.nanos = us * 1000


@dataclass(frozen=True, kw_only=True, slots=True)
class Planned:
    """The result of a round of planning.

    Attributes:
        skipped: number of scheduled times that were recorded as skipped.
        asking: number of fires that now ask to cancel the turn ahead of them.
        events: the log records, to be written after the commit.
        sent: the fires that are on disk as sent, each with its request and its lateness in seconds.
    """

    tasks: int = 0
    committed: int = 0
    skipped: int = 0
    asking: int = 0
    events: list[log_records.LogRecord] = field(default_factory=list)
    sent: list[tuple[Key, bytes, float]] = field(default_factory=list)

    def __add__(self, other: "Planned") -> "Planned":
        return Planned(**{name: getattr(self, name) + getattr(other, name) for name in Planned.__slots__})


def plan_tasks(
    session: Session,
    ids: Sequence[str],
    now: datetime,
    *,
    reachable: bool = True,
    ended: Mapping[str, Sequence[Ended]] = NOTHING_ENDED,
    resumed: Collection[str] = (),
    complete: bool = True,
) -> Planned:
    """Plan tasks in isolation: quarantine a task that cannot be planned, with the error, and continue with the others.

    Args:
        reachable: True if the runtime is reachable.
        ended: by task id, the turns that ended; their usage is counted and may pause the task.
        resumed: the ids of tasks with a turn that no longer waits for its author.
        complete: True if all reports about the tasks' turns arrived.
    """
    plans: list[tuple[Snapshot, Plan]] = []
    events: list[log_records.LogRecord] = []
    for snapshot in session.tasks.snapshots(ids) if ids else ():
        turns = ended.get(snapshot.task.id, ())
        ends = [turn.at for turn in turns if turn.fire.kind is FireKind.SCHEDULED]
        lately = NOTHING_NEW
        if ends or not complete or snapshot.task.id in resumed:
            last = max(ends, default=None)
            lately = Lately(complete=complete, ended_at=last, resumed=snapshot.task.id in resumed)
        try:
            plans.append((snapshot, _planned(snapshot, turns, now, reachable=reachable, lately=lately)))
        except Exception as error:  # noqa: BLE001  the task is quarantined, and the others are planned
            events.append(quarantine(session, snapshot.task.id, f"cannot be planned: {error}"))
    done = write_plans(session, plans)
    return Planned(tasks=len(ids), events=events) + done


def _planned(snapshot: Snapshot, ended: Sequence[Ended], now: datetime, *, reachable: bool, lately: Lately) -> Plan:
    timetable = timetable_of(snapshot.task.definition)
    if not ended:
        return plan(snapshot, timetable, now, reachable=reachable, lately=lately)
    task, why = settle_up(snapshot.task, ended)
    if task.definition.is_self_paced:
        task, slower = self_paced.turns_ended(task, ended)
        why = why or slower[:LONGEST_REASON]
    snapshot = replace(snapshot, task=task)
    if not why or task.state is not TaskState.ACTIVE:
        return plan(snapshot, timetable, now, reachable=reachable, lately=lately)
    withdrawn, until = withdraw(snapshot, timetable, TaskState.PAUSED.value, now, manual=False), pauses_until(task, why)
    return replace(withdrawn, task=replace(withdrawn.task, state=TaskState.PAUSED, reason=why, wake_at=until))


def write_plans(session: Session, plans: Sequence[tuple[Snapshot, Plan]]) -> Planned:
    requests = {
        str(planned.task.id): frozen_request(planned.task, session.at_home)
        for _, planned in plans
        if any(fire.outcome is Outcome.PENDING for fire in (*planned.new, *planned.changed))
    }
    written = session.fires.write_plans([planned for _, planned in plans], requests)
    events: list[log_records.LogRecord] = []
    for (snapshot, planned), entries in zip(plans, written, strict=True):
        events += log_records.of_plan(snapshot, planned, entries)
        if planned.task.state is not snapshot.task.state:
            _note_stop(session, planned.task.id, planned.task.state, planned.task.reason)
    return Planned(
        committed=sum(event.name == "fire.committed" for event in events),
        skipped=sum(event.fields["count"] for event in events if event.name == "fire.skipped"),
        asking=sum(fire.reason == CANCELS and fire.outcome is Outcome.WAITING for each in written for fire in each),
        events=events,
    )


def take_over(session: Session, thread_ids: Collection[str], now: datetime) -> tuple[Planned, list[Fire]]:
    """End the active self-paced tasks on these threads, because an author wrote there.

    Return the result, and the fires that the runtime need not start.
    """
    found = session.tasks.paced_on(thread_ids)
    snapshots = session.tasks.snapshots([task.id for task in found]) if found else ()
    # A paused task continues when it is resumed.
    active = [snapshot for snapshot in snapshots if snapshot.task.state is TaskState.ACTIVE]
    plans = [(snapshot, *self_paced.taken_over(snapshot, now)) for snapshot in active]
    done = write_plans(session, [(snapshot, over) for snapshot, over, _ in plans]) if plans else Planned()
    return done, [fire for *_, needless in plans for fire in needless]


def _note_stop(session: Session, task_id: str, state: TaskState, why: str) -> None:
    """Record when and why a task stopped, or close that record if the task is no longer stopped."""
    now = session.now()
    for stopped, cause in STOPPED.items():
        if stopped is not state:
            session.stoppages.end(cause, task_id, now)
    if state in STOPPED:
        session.stoppages.begin(STOPPED[state], task_id, now, why)


def quarantine(session: Session, task_id: str, why: str) -> log_records.LogRecord:
    """Quarantine a task that cannot continue; return the log record."""
    session.tasks.quarantine(task_id, why[:LONGEST_REASON])
    _note_stop(session, task_id, TaskState.QUARANTINED, why[:LONGEST_REASON])
    return log_records.LogRecord("task.quarantined", {"task_id": task_id, "reason": why[:LONGEST_REASON]})
