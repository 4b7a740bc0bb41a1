"""A fire that never was: so that the first real one does not wait for statements to be compiled."""

from datetime import datetime, timedelta

from protos.turnkeeper.v1 import agent_runtime_pb2 as runtime
from protos.turnkeeper.v1 import schedules_pb2 as wire
from task_runner.dispatcher import dispatcher, outcomes
from task_runner.scheduler import planning
from task_runner.service import changes
from task_runner.service.task_spec import Defaults
from task_runner.store.port import Session
from turnkeeper.entropy import Entropy
from turnkeeper.times import rfc3339


def rehearse_a_fire(session: Session, now: datetime, entropy: Entropy) -> None:
    """Take a task through its life; to be run in a transaction that is undone."""
    at = now.replace(microsecond=0) + timedelta(days=1)
    spec = wire.TaskSpec(name=f"warm-up-{entropy.hex(8)}", category="c", channel="c", prompt="p", at=rfc3339(at))
    task = changes.create(session, spec, Defaults(timezone="UTC"), now, entropy).task
    planning.plan_due(session, now)
    planning.plan_tasks(session, [task.id], at)
    session.tasks.next_wake()
    for outgoing in dispatcher.claim(session, at, 1, 1, single=True):
        fire = outgoing.fire
        session.fires.unanswered(0, 1)
        receipt = runtime.FireReceipt(fire_id=fire.fire_id, attempt=1, disposition=runtime.FireReceipt.ACCEPTED)
        dispatcher.record_receipts(session, [receipt], [None], at)
        event = runtime.TurnEvent(fire_id=fire.fire_id, attempt=1, state=runtime.TurnEvent.SUCCEEDED)
        outcomes.record_news(session, [outcomes.news_of(event, at)], at)
    for caught_up in (False, True):
        session.fires.next_ready(caught_up=caught_up)
    session.follow.move(*session.follow.position())
