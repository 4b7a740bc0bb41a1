"""The runner's own events: a task's fire succeeded or failed, a thread was released. Taken in as they are made.

They are born in the transaction that takes the outcome in, so that none is lost and none comes twice; while nobody
listens for them, they are not made at all.
"""

import json
from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from task_runner.model.events import FAILED, RELEASED, SUCCEEDED, Event, id_of
from task_runner.model.task import Fire, Outcome, Task
from task_runner.planner.ledger import TurnState
from task_runner.scheduler.events import hear
from task_runner.scheduler.planning import Planned
from task_runner.store.port import Session
from turnkeeper.clock import rfc3339, to_us


class Moved(NamedTuple):
    """A fire that one turn event moved on.

    Attributes:
        fire: the fire afterwards.
        state: what was heard of its turn.
        at: when that was.
    """

    fire: Fire
    state: TurnState
    at: datetime


def tell(session: Session, moved: Sequence[Moved], now: datetime) -> Planned:
    """Take in the events that fires make by moving on; return what they lead to."""
    named = [(name, each) for each in moved if (name := _name(each))]
    if not named or not session.events.listeners({name for name, _ in named}):
        return Planned()
    ids = list(dict.fromkeys(each.fire.task_id for _, each in named))
    tasks = {snapshot.task.id: snapshot.task for snapshot in session.tasks.snapshots(ids)}
    return hear(session, [_event(name, each, tasks[each.fire.task_id]) for name, each in named], now).planned


def _name(moved: Moved) -> str:
    """Return the name of the event, empty for none.

    A turn that pauses within its bounds goes on with the next fire: nothing has succeeded yet.
    """
    if moved.state is TurnState.RELEASED:
        return RELEASED
    if moved.fire.outcome is Outcome.SUCCEEDED and moved.state is not TurnState.PAUSED:
        return SUCCEEDED
    return FAILED if moved.fire.outcome is Outcome.FAILED else ""


def _event(name: str, moved: Moved, task: Task) -> Event:
    fire, definition = moved.fire, task.definition
    thread_id = definition.thread_id or task.id
    common = {"channel": definition.channel, "category": definition.category, "agent": definition.agent}
    if name == RELEASED:
        # However many fires were held, and whoever decided: one release, and no fire's doing.
        id_ = id_of(name, thread_id, to_us(moved.at))
        return Event(name=name, id=id_, at=moved.at, thread_id=thread_id, task_id=task.id, **common)
    data = {"reason": fire.reason, "kind": fire.kind.value, "attempt": fire.attempt}
    return Event(
        name=name,
        id=id_of(name, fire.fire_id, fire.attempt),
        at=moved.at,
        fire_id=fire.fire_id,
        turn_id=fire.turn_id,
        thread_id=thread_id,
        task_id=task.id,
        task_name=definition.name,
        data_json=json.dumps(data | {"nominal_at": rfc3339(fire.nominal_at)}, separators=(",", ":")),
        **common,
    )
