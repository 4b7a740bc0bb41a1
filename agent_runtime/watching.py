"""Turn events as the wire carries them. Pure."""

from agent_runtime.conversation import stamp
from agent_runtime.records import EventRecord
from protos.turnkeeper.v1 import agent_runtime_pb2 as wire


def event_message(event: EventRecord, incarnation: str) -> wire.TurnEvent:
    """Return a turn event of the store that `incarnation` names."""
    return wire.TurnEvent(
        incarnation=incarnation,
        sequence=event.sequence,
        turn_id=event.turn_id,
        fire_id=event.fire_id,
        thread_id=event.thread_id,
        trigger=wire.TurnEvent.Trigger.Value(event.trigger.upper()),
        state=wire.TurnEvent.State.Value(event.state),
        at=stamp(event.at),
        summary=event.summary,
        error=event.error,
        held_by=event.held_by,
        tokens_in=event.tokens_in,
        tokens_out=event.tokens_out,
        wake_after_s=event.wake_after_s,
        attempt=event.attempt,
    )
