"""Tasks that events fire: create them, tell of an event, and read what came of it."""

from typing import Any

from tests.integration.runner.conftest import Rig
from tests.integration.runner.scripted_runtime import Peer, State
from turnkeeper.v1 import agent_runtime_pb2 as runtime
from turnkeeper.v1 import schedules_pb2 as wire

Entry = tuple[str, str, int]


async def create(rig: Rig, name: str, **fields: Any) -> str:
    spec = {"category": "loop", "channel": "general", "prompt": "p"} | fields
    answer = await rig.service.create_task(wire.CreateTaskRequest(spec=wire.TaskSpec(name=name, **spec)))
    return answer.task.id


async def emit(rig: Rig, name: str = "demo", **fields: Any) -> wire.EmitEventResponse:
    return await rig.service.emit_event(wire.EmitEventRequest(name=name, **fields))


async def ledger(rig: Rig, name: str) -> list[Entry]:
    """(outcome, reason or what it went into, count), oldest first."""
    return [(outcome, "it" if "~e" in reason else reason, count) for outcome, reason, count in await rig.history(name)]


async def fires(rig: Rig, name: str) -> list[wire.Fire]:
    found = (await rig.service.list_fires(wire.ListFiresRequest(name=name, limit=1000))).fires
    return [fire for fire in reversed(found) if fire.fire_id]


async def settle(rig: Rig, peer: Peer, name: str, state: Any = State.SUCCEEDED, count: int = 1, **fields: Any) -> str:
    """Let the newest fire of a task be sent, accepted, and end."""
    before = len(rig.trail.named("fire.settled"))
    fire = (await fires(rig, name))[-1]
    await rig.trail.saw("fire.accepted", count)
    peer.now = rig.clock.now
    for each in (State.STARTED, state):
        await peer.play(fire.fire_id, each, thread_id=fire.task_id, **(fields if each is state else {}))
    await rig.trail.saw("fire.settled", before + 1)
    return fire.fire_id


def told(name: str = "turn_end", **fields: Any) -> runtime.BridgedEvent:
    return runtime.BridgedEvent(name=name, **({"turn_id": "turn-9", "thread_id": "other"} | fields))


async def bridged(rig: Rig, *events: runtime.BridgedEvent) -> None:
    """Take events in as the daemon does when it follows the runtime."""
    for number, event in enumerate(events, 1):
        event.incarnation, event.sequence = event.incarnation or "one", event.sequence or number
        if not event.HasField("at"):
            event.at.FromDatetime(rig.clock.now())
    await rig.runtime_events.take_in(events)
