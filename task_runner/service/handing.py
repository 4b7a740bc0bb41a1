"""What a running turn hands on to a task that it makes."""

from protos.turnkeeper.v1 import schedules_pb2 as wire
from task_runner.store.port import Session


def within(session: Session, request: wire.CreateTaskRequest) -> wire.TaskSpec:
    """Return what is to be made; a fire's turn makes nothing with a wider budget than the task of that fire has."""
    fire = session.fires.by_ids([request.fire_id]).get(request.fire_id) if request.fire_id else None
    task = session.tasks.find(fire.task_id) if fire is not None else None
    spec = wire.TaskSpec()
    spec.CopyFrom(request.spec)
    for key, limit in task.definition.budget if task is not None else ():
        spec.budget[key] = min(limit, request.spec.budget.get(key, limit))
    return spec
