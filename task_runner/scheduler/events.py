"""Taking events in: each once, in one transaction with the fires that it leads to.

Who listens is a lookup by the event's name; the filters of those tasks say which of them it triggers; the pure rules of
:mod:`task_runner.planner.event_triggers` say what becomes of each trigger.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

from protos.turnkeeper.v1 import agent_runtime_pb2 as wire
from task_runner.model.events import Event, matches, told
from task_runner.model.replace import replace
from task_runner.model.task import Fire, Outcome, Snapshot, Task, TaskState
from task_runner.planner import facts as trail
from task_runner.planner.event_triggers import TAKEN, Decided, Trigger, decide
from task_runner.planner.overlap import CANCELS
from task_runner.scheduler.fire_request import frozen_request
from task_runner.scheduler.planning import Planned, plan_tasks, quarantine
from task_runner.store.port import Session

_LONGEST_PROMPT = 1 << 20  # bytes; what is longer the runtime refuses


@dataclass(frozen=True, kw_only=True, slots=True)
class Heard:
    """What events led to.

    Attributes:
        planned: what was committed, and the facts.
        fresh: how many were not taken in before.
        matched: how many triggers there were: an event counts once for each task whose filters agree on it.
    """

    planned: Planned = field(default_factory=Planned)
    fresh: int = 0
    matched: int = 0


def hear(session: Session, events: Sequence[Event], now: datetime) -> Heard:
    """Take events in, in order; those that were taken in before change nothing.

    A task whose triggers cannot be decided over is quarantined with the error; the others go on.
    """
    fresh = session.events.remember(events)
    triggers, facts = _triggers(session, fresh, now)
    decisions: list[tuple[Task, Decided]] = []
    for snapshot in session.tasks.snapshots(list(triggers)) if triggers else ():
        try:
            decisions.append((snapshot.task, _decided(session, snapshot, triggers[snapshot.task.id], now)))
        except Exception as error:  # noqa: BLE001  the task is quarantined with it, which bounds it
            facts.append(quarantine(session, snapshot.task.id, f"cannot be triggered: {error}"))
    done = Planned(events=facts) + (_write(session, decisions) if decisions else Planned())
    # Without a schedule beside it there is nothing that would give way to a fire.
    done += plan_tasks(session, [task.id for task, made in decisions if made.fires and task.definition.is_hybrid], now)
    return Heard(planned=done, fresh=len(fresh), matched=sum(map(len, triggers.values())))


def _triggers(
    session: Session, events: Sequence[Event], now: datetime
) -> tuple[dict[str, list[Trigger]], list[trail.Event]]:
    """Return, by task id, the events that trigger a task; and the facts about tasks that cannot tell."""
    names = {event.name for event in events}
    listeners: dict[str, list[Task]] = defaultdict(list)
    for task in session.events.listeners(names) if names else ():
        assert task.definition.on is not None
        listeners[task.definition.on.event].append(task)
    pairs: list[tuple[str, Event]] = []
    facts: list[trail.Event] = []
    for task in (task for tasks in listeners.values() for task in tasks):
        try:
            pairs += [(task.id, each) for each in events if _triggers_task(task, each, now)]
        except Exception as error:  # noqa: BLE001  as above
            facts.append(quarantine(session, task.id, f"cannot be triggered: {error}"))
    chains = session.events.causes({event.fire_id for _, event in pairs if event.fire_id})
    found: dict[str, list[Trigger]] = defaultdict(list)
    for task_id, event in pairs:
        found[task_id].append(Trigger(event=event, chain=chains.get(event.fire_id, ())))
    return found, facts


def _triggers_task(task: Task, event: Event, now: datetime) -> bool:
    on = task.definition.on
    if on is None or on.event != event.name or task.state is TaskState.DELETED:
        return False
    # After the clock was set back, from when on it listens says nothing.
    return (event.at >= on.since or now < on.since) and matches(on.filters, event)


def _decided(session: Session, snapshot: Snapshot, triggers: Sequence[Trigger], now: datetime) -> Decided:
    (standing,) = session.events.standings([snapshot])
    decided = decide(standing, triggers, now)
    # Another event of that second may have had this id, before an edit let the task listen for this one.
    taken = session.fires.by_ids([fire.fire_id for fire, _ in decided.fires]) if decided.fires else {}
    if not taken:
        return decided
    known = {trigger.event.id for fire, trigger in decided.fires if fire.fire_id in taken}
    return decide(standing, triggers, now, refused=dict.fromkeys(known, TAKEN))


def _write(session: Session, decisions: Sequence[tuple[Task, Decided]]) -> Planned:
    """Write fires and records, in a handful of statements however many tasks there are; return the facts."""
    new: list[tuple[Fire, Trigger, bytes | None]] = []
    for task, decided in decisions:
        new += [(fire, trigger, _request(task, trigger.event)) for fire, trigger in decided.fires]
        new += [(record, trigger, None) for record, trigger in decided.records if not record.entry_id]
    written = session.fires.add_each([fire for fire, _, _ in new], [request for _, _, request in new])
    grown = [pair for _, decided in decisions for pair in decided.records if pair[0].entry_id]
    withdrawn = [fire for _, decided in decisions for fire in decided.withdrawn]
    session.fires.update([*(record for record, _ in grown), *withdrawn])
    session.events.note([*zip(written, (trigger for _, trigger, _ in new), strict=True), *grown])
    fires = [fire for fire in written if fire.fire_id]
    facts = [trail.committed(fire) for fire in fires if fire.outcome is Outcome.PENDING]
    facts += [trail.settled(fire) for fire in (*fires, *withdrawn) if fire.outcome is Outcome.SKIPPED]
    facts += [
        trail.Event(f"trigger.{outcome}", {"task_id": task.id, "reason": reason, "count": count})
        for task, decided in decisions
        for (outcome, reason), count in decided.counts.items()
    ]
    asking = sum(fire.reason == CANCELS for fire in fires)
    return Planned(tasks=len(decisions), committed=len(fires), asking=asking, events=facts)


def _request(task: Task, event: Event) -> bytes:
    """Return what a fire carries for ever: that of its task, and the event behind the prompt."""
    request = wire.FireRequest.FromString(frozen_request(task))
    for each in (event, replace(event, data_json="")):
        prompt = f"{request.prompt}\n\nEvent: {told(each)}"
        if len(prompt.encode()) <= _LONGEST_PROMPT:
            request.prompt = prompt
            break
    return request.SerializeToString()
