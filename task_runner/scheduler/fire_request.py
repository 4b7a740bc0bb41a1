"""What leaves for the runtime: frozen when a fire is committed, completed from the ledger when it is sent."""

from datetime import datetime

from google.protobuf.timestamp_pb2 import Timestamp

from protos.turnkeeper.v1 import agent_runtime_pb2 as wire
from task_runner.model.task import Task
from task_runner.store.port import Outgoing
from turnkeeper.times import to_us


def frozen_request(task: Task) -> bytes:
    """Return what a fire carries of its task for ever, whatever becomes of the task: prompt, payload, category."""
    definition = task.definition
    request = wire.FireRequest(
        task_id=task.id,
        task_name=definition.name,
        thread_id=definition.thread_id or task.id,
        channel=definition.channel,
        agent=definition.agent,
        category=definition.category,
        prompt=definition.prompt,
        payload_json=definition.payload_json,
        read_only=definition.read_only,
        timezone=definition.timezone,
    )
    return request.SerializeToString()


def complete_request(outgoing: Outgoing) -> wire.FireRequest:
    """Return the request of a sent fire: the same bytes each time one attempt is sent."""
    fire = outgoing.fire
    request = wire.FireRequest.FromString(outgoing.request)
    request.fire_id, request.kind, request.attempt = fire.fire_id, fire.kind.value, fire.attempt
    _set(request.nominal_at, fire.nominal_at)
    _set(request.due_at, fire.due_at)
    if fire.fired_at is not None:
        _set(request.fired_at, fire.fired_at)
    request.catch_up.policy, request.catch_up.count = fire.policy.value, fire.count
    _set(request.catch_up.first_nominal_at, fire.first_at)
    _set(request.catch_up.last_nominal_at, fire.last_at)
    return request


def _set(stamp: Timestamp, at: datetime) -> None:
    """Do as `stamp.FromDatetime(at)` does, several times faster."""
    stamp.seconds, us = divmod(to_us(at), 1_000_000)
    stamp.nanos = us * 1000
