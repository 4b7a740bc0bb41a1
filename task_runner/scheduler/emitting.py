"""What an author, or an agent, tells of as an event."""

from datetime import datetime

from protos.turnkeeper.v1 import schedules_pb2 as wire
from task_runner.model.events import Event, check_data, check_emitted_name
from task_runner.model.replace import replace
from task_runner.model.task import check_request_id
from task_runner.scheduler.events import Heard, hear
from task_runner.store.port import Session


def read_emitted(request: wire.EmitEventRequest, now: datetime, new_id: str) -> Event:
    """Return the event that a request tells of. Raises InvalidInput: a name of our own, no id, no JSON object."""
    return Event(
        name=check_emitted_name(request.name),
        id=check_request_id(request.event_id or new_id, "event_id"),
        at=now,
        fire_id=request.fire_id,
        turn_id=request.created_by.turn_id,
        thread_id=request.thread_id,
        channel=request.channel,
        agent=request.created_by.agent,
        category=request.created_by.category,
        data_json=check_data(request.data_json),
    )


def emit(session: Session, event: Event, now: datetime) -> Heard:
    """Take an event in that somebody tells of; one told by a running turn is an effect of that turn's fire."""
    # What only names its turn may be told before the receipt of that turn's fire came in.
    fire = session.fires.by_ids([event.fire_id]).get(event.fire_id) or session.events.fire_of_turn(event.turn_id)
    if fire is not None:
        task = session.tasks.find(fire.task_id)
        event = replace(event, fire_id=fire.fire_id, task_id=fire.task_id)
        if task is not None:
            known = task.definition
            thread_id, channel = known.thread_id or task.id, known.channel
            event = replace(event, task_name=known.name, thread_id=thread_id, channel=channel)
    return hear(session, [event], now)
