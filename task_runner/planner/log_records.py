"""The runner's records for the event log, which are made inside a transaction and written after the commit.

If the store is slow to answer, records about the wait are written at once (`turnkeeper.bus.event_log.told_if_late`).
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from task_runner.model.task import Fire, Outcome, Snapshot
from task_runner.planner.entries import Plan
from turnkeeper.times import from_us, rfc3339


class LogRecord(NamedTuple):
    """One record of the event log.

    Attributes:
        name: for example `fire.committed`.
        fields: ids, states, times, counts; never a prompt.
    """

    name: str
    fields: dict[str, Any]


class Attempt(Protocol):
    """The fields that a record about an attempt of a fire needs."""

    @property
    def fire_id(self) -> str: ...
    @property
    def task_id(self) -> str: ...
    @property
    def attempt(self) -> int: ...


def of_plan(snapshot: Snapshot, plan: Plan, entries: Sequence[Fire]) -> list[LogRecord]:
    """Return the log records of a written plan; `entries` are the plan's entries with their numbers."""
    before = {fire.entry_id: fire.outcome for fire in snapshot.open}
    events = [skipped(run) for run in plan.skipped]
    for fire in entries:
        if not fire.fire_id:
            continue
        if fire.outcome is Outcome.PENDING and before.get(fire.entry_id, Outcome.WAITING) is Outcome.WAITING:
            events.append(committed(fire))
        elif fire.outcome in {Outcome.SKIPPED, Outcome.COALESCED} and fire.entry_id in before:
            events.append(settled(fire))
    if plan.task.cursor_at != snapshot.task.cursor_at:
        events.append(LogRecord("cursor.moved", {"task_id": plan.task.id, "to": rfc3339(plan.task.cursor_at)}))
    armed = plan.task.pacing
    if armed is not None and armed.armed_at is not None and armed != snapshot.task.pacing:
        told = {"task_id": plan.task.id, "wake_at": rfc3339(armed.armed_at), "iteration": armed.iteration + 1}
        events.append(LogRecord("task.armed", told | {"reason": armed.why}))
    if plan.task.state is not snapshot.task.state:
        events.append(LogRecord(f"task.{plan.task.state}", {"task_id": plan.task.id, "reason": plan.task.reason}))
    return events


def committed(fire: Fire) -> LogRecord:
    """Return the record of a fire that is on disk with its request."""
    times = {"nominal_at": rfc3339(fire.nominal_at), "due_at": rfc3339(fire.due_at)}
    return of_fire("fire.committed", fire, **times, **_span(fire), kind=fire.kind.value, policy=fire.policy.value)


def skipped(fire: Fire) -> LogRecord:
    """Return the record of a run of scheduled times that does not fire."""
    named = {"fire_id": fire.fire_id} if fire.fire_id else {}
    return LogRecord("fire.skipped", {"task_id": fire.task_id, "reason": fire.reason} | _span(fire) | named)


def settled(fire: Fire) -> LogRecord:
    return of_fire("fire.settled", fire, outcome=fire.outcome.value, reason=fire.reason)


def waiting(what: str) -> LogRecord:
    """Return the record of a request that the store has not answered; `what` describes the request."""
    return LogRecord("store.waits", {"about": what})


def due(fire_id: str, nominal_us: int) -> LogRecord:
    """Return the record of a fire that is due and not yet on disk."""
    return LogRecord("fire.due", {"fire_id": fire_id, "nominal_at": rfc3339(from_us(nominal_us))})


def of_fire(name: str, fire: Attempt, **fields: Any) -> LogRecord:
    return LogRecord(name, {"fire_id": fire.fire_id, "task_id": fire.task_id, "attempt": fire.attempt} | fields)


def _span(fire: Fire) -> dict[str, Any]:
    first, last = rfc3339(fire.first_at), rfc3339(fire.last_at)
    return {"count": fire.count, "first_nominal_at": first, "last_nominal_at": last}
