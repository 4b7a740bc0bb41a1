"""Intake of events: each event is recorded once, in one transaction with the fires that it triggers.

An author or an agent emits an event, the runtime reports it, or it results from a state change of a fire. This module
finds the tasks that wait for the event and whose filters match. The pure rules of
:mod:`task_runner.planner.event_triggers` then decide about each match. An event of a fire is made only if a task waits
for it. The transaction that records the outcome makes it, so no event is lost or doubled.
"""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from types import MappingProxyType
from typing import Any, NamedTuple

from sqlalchemy.exc import OperationalError

from task_runner.model import events as model_events
from task_runner.model.task import Fire, Outcome, Snapshot, Task, TaskState, check_request_id, replace, thread_of
from task_runner.planner import log_records
from task_runner.planner.event_triggers import TAKEN, Decided, Trigger, decide
from task_runner.planner.ledger import TurnState
from task_runner.planner.overlap import CANCELS
from task_runner.scheduler.planning import Planned, frozen_request, plan_tasks, quarantine
from task_runner.store.store import Session
from turnkeeper.config.surfaces import offered
from turnkeeper.errors import machine_trouble
from turnkeeper.times import rfc3339, to_us
from turnkeeper.v1 import agent_runtime_pb2 as runtime_wire
from turnkeeper.v1 import schedules_pb2 as wire

_LONGEST_PROMPT = 1 << 20  # bytes; the runtime refuses larger requests


@dataclass(frozen=True, kw_only=True, slots=True)
class TakenIn:
    """The result of recording events.

    Attributes:
        fresh: number of events that had not been recorded before.
        matched: number of triggers: an event counts once for each task whose filters match it.
        paused: names of the tasks among them that are paused, so that they skip the events.
    """

    planned: Planned = field(default_factory=Planned)
    fresh: int = 0
    matched: int = 0
    paused: Sequence[str] = ()


def take_in(session: Session, events: Sequence[model_events.Event], now: datetime) -> TakenIn:
    """Record events in order. Events that are already recorded change nothing.

    If the triggers of a task cannot be evaluated, quarantine the task with the error and continue with the others.
    """
    fresh = session.events.remember(events)
    triggers, facts = _triggers(session, fresh, now)
    decisions: list[tuple[Task, Decided]] = []
    for snapshot in session.tasks.snapshots(list(triggers)) if triggers else ():
        try:
            decisions.append((snapshot.task, _decided(session, snapshot, triggers[snapshot.task.id], now)))
        except Exception as error:
            if machine_trouble(error) or isinstance(error, OperationalError):
                raise  # The store cannot be read, which is not the task's fault, so the caller retries.
            facts.append(quarantine(session, snapshot.task.id, f"cannot be triggered: {error}"))
    done = Planned(events=facts) + (_write(session, decisions) if decisions else Planned())
    # Only a task with a schedule has scheduled times that an event's fire replaces.
    done += plan_tasks(session, [task.id for task, made in decisions if made.fires and task.definition.is_hybrid], now)
    paused = [task.definition.name for task, _ in decisions if task.state is TaskState.PAUSED]
    return TakenIn(planned=done, fresh=len(fresh), matched=sum(map(len, triggers.values())), paused=paused)


def _triggers(
    session: Session, events: Sequence[model_events.Event], now: datetime
) -> tuple[dict[str, list[Trigger]], list[log_records.LogRecord]]:
    """Return the events that trigger each task, by task id, and an error for each task with an unusable filter."""
    names = {event.name for event in events}
    listeners: dict[str, list[Task]] = defaultdict(list)
    for task in session.events.listeners(names) if names else ():
        assert task.definition.on is not None
        listeners[task.definition.on.event].append(task)
    pairs: list[tuple[str, model_events.Event]] = []
    facts: list[log_records.LogRecord] = []
    for task in (task for tasks in listeners.values() for task in tasks):
        try:
            found = [each for each in events if _triggers_task(task, each, now)]
            pairs += [
                (task.id, each) for each in found if offered("all before succeeded", session, task, each) is not False
            ]
        except Exception as error:  # noqa: BLE001  the task is quarantined with the error
            facts.append(quarantine(session, task.id, f"cannot be triggered: {error}"))
    chains = session.events.causes({event.fire_id for _, event in pairs if event.fire_id})
    triggers: dict[str, list[Trigger]] = defaultdict(list)
    for task_id, event in pairs:
        triggers[task_id].append(Trigger(event=event, chain=chains.get(event.fire_id, ())))
    return triggers, facts


def _triggers_task(task: Task, event: model_events.Event, now: datetime) -> bool:
    on = task.definition.on
    if on is None or on.event != event.name or task.state is TaskState.DELETED:
        return False
    # If the clock was set back, `on.since` may be in the future; then ignore it.
    return (event.at >= on.since or now < on.since) and model_events.matches(on.filters, event)


def _decided(session: Session, snapshot: Snapshot, triggers: Sequence[Trigger], now: datetime) -> Decided:
    (standing,) = session.events.standings([snapshot])
    decided = decide(standing, triggers, now)
    # Before an edit, an event of another name and the same id may have fired in this second.
    taken = session.fires.by_ids([fire.fire_id for fire, _ in decided.fires]) if decided.fires else {}
    if not taken:
        return decided
    known = {trigger.event.id for fire, trigger in decided.fires if fire.fire_id in taken}
    return decide(standing, triggers, now, refused=dict.fromkeys(known, TAKEN))


def _write(session: Session, decisions: Sequence[tuple[Task, Decided]]) -> Planned:
    """Write fires and records in a few statements, regardless of the number of tasks. Return the result."""
    new: list[tuple[Fire, Trigger, bytes | None]] = []
    for task, decided in decisions:
        new += [(fire, trigger, _request(task, trigger.event, session.at_home)) for fire, trigger in decided.fires]
        new += [(record, trigger, None) for record, trigger in decided.records if not record.entry_id]
    written = session.fires.add_each([fire for fire, _, _ in new], [request for _, _, request in new])
    grown = [pair for _, decided in decisions for pair in decided.records if pair[0].entry_id]
    withdrawn = [fire for _, decided in decisions for fire in decided.withdrawn]
    session.fires.update([*(record for record, _ in grown), *withdrawn])
    session.events.note([*zip(written, (trigger for _, trigger, _ in new), strict=True), *grown])
    fires = [fire for fire in written if fire.fire_id]
    facts = [log_records.committed(fire) for fire in fires if fire.outcome is Outcome.PENDING]
    facts += [log_records.settled(fire) for fire in (*fires, *withdrawn) if fire.outcome is Outcome.SKIPPED]
    facts += [
        log_records.LogRecord(f"trigger.{outcome}", {"task_id": task.id, "reason": reason, "count": count})
        for task, decided in decisions
        for (outcome, reason), count in decided.counts.items()
    ]
    asking = sum(fire.reason == CANCELS for fire in fires)
    return Planned(tasks=len(decisions), committed=len(fires), asking=asking, events=facts)


def _request(task: Task, event: model_events.Event, at_home: str) -> bytes:
    """Return the frozen request of a fire: its task's request, with the event in the prompt, or else after it."""
    request = runtime_wire.FireRequest.FromString(frozen_request(task, at_home))
    bare = replace(event, data_json="")
    # Only the author may pass on another task's answer. A task that an agent created receives none.
    is_open = task.definition.created_by is None or event.name != model_events.SUCCEEDED
    for each in (event, bare) if is_open else (bare,):
        prompt = offered("prompt with an event", request.prompt, each) if "{{" in request.prompt else ""
        prompt = prompt or f"{request.prompt}\n\nEvent: {model_events.prompt_line(each)}"
        if len(prompt.encode()) <= _LONGEST_PROMPT:
            request.prompt = prompt
            break
    return request.SerializeToString()


class Moved(NamedTuple):
    """A fire that one turn event changed."""

    fire: Fire
    state: TurnState
    at: datetime
    said: Mapping[str, Any] = MappingProxyType({})


def emit_outcomes(session: Session, moved: Sequence[Moved], now: datetime) -> Planned:
    """Record the events that result from state changes of fires; return the result of planning."""
    named = [(name, each) for each in moved if (name := _name(each))]
    if not named or not session.events.listeners({name for name, _ in named}):
        return Planned()
    ids = list(dict.fromkeys(each.fire.task_id for _, each in named))
    tasks = {snapshot.task.id: snapshot.task for snapshot in session.tasks.snapshots(ids)}
    return take_in(session, [_event(name, each, tasks[each.fire.task_id]) for name, each in named], now).planned


def _name(moved: Moved) -> str:
    """Return the name of the event; empty if no event results.

    A turn that pauses at its bounds continues with the next fire, so it has not succeeded yet.
    """
    if moved.state is TurnState.RELEASED:
        return model_events.RELEASED
    if moved.fire.outcome is Outcome.SUCCEEDED and moved.state is not TurnState.PAUSED:
        return model_events.SUCCEEDED
    return {Outcome.FAILED: model_events.FAILED, Outcome.REJECTED: model_events.REJECTED}.get(moved.fire.outcome, "")


def _event(name: str, moved: Moved, task: Task) -> model_events.Event:
    fire, definition = moved.fire, task.definition
    thread_id = thread_of(task, fire.fire_id)
    common = {"channel": definition.channel, "category": definition.category, "agent": definition.agent}
    if name == model_events.RELEASED:
        # All held fires of a thread share one release event, which names no fire.
        id_ = model_events.id_of(name, thread_id, to_us(moved.at))
        return model_events.Event(name=name, id=id_, at=moved.at, thread_id=thread_id, task_id=task.id, **common)
    data = {"reason": fire.reason, "kind": fire.kind.value, "attempt": fire.attempt, **moved.said}
    return model_events.Event(
        name=name,
        id=model_events.id_of(name, fire.fire_id, fire.attempt),
        at=moved.at,
        fire_id=fire.fire_id,
        turn_id=fire.turn_id,
        thread_id=thread_id,
        task_id=task.id,
        task_name=definition.name,
        data_json=json.dumps(data | {"nominal_at": rfc3339(fire.nominal_at)}, separators=(",", ":")),
        **common,
    )


def read_emitted(request: wire.EmitEventRequest, now: datetime, new_id: str) -> model_events.Event:
    """Return the event that a request emits. Raises InvalidInput if the name, the id or the JSON object is invalid."""
    return model_events.Event(
        name=model_events.check_emitted_name(request.name),
        id=check_request_id(request.event_id or new_id, "event_id"),
        at=now,
        fire_id=request.fire_id,
        turn_id=request.created_by.turn_id,
        thread_id=request.thread_id,
        channel=request.channel,
        agent=request.created_by.agent,
        category=request.created_by.category,
        data_json=model_events.check_data(request.data_json),
    )


def emit(session: Session, event: model_events.Event, now: datetime) -> TakenIn:
    """Record an event from an author or an agent. An event from a running turn is attributed to that turn's fire."""
    # Try the fire's id first: the receipt that links the fire to its turn may not have arrived.
    fire = session.fires.by_ids([event.fire_id]).get(event.fire_id) or session.events.fire_of_turn(event.turn_id)
    if fire is not None:
        task = session.tasks.find(fire.task_id)
        event = replace(event, fire_id=fire.fire_id, task_id=fire.task_id)
        if task is not None:
            known = task.definition
            thread_id, channel = thread_of(task, fire.fire_id), known.channel
            event = replace(event, task_name=known.name, thread_id=thread_id, channel=channel)
    return take_in(session, [event], now)
