"""What is done to self-paced tasks and to loops beside their schedule, each inside one transaction."""

from collections.abc import Collection
from datetime import datetime

from task_runner.model.replace import replace
from task_runner.model.task import Fire, FireKind, Outcome, Snapshot, TaskState
from task_runner.planner.plan import Plan
from task_runner.scheduler.planning import Planned, write_plans
from task_runner.store.port import Session

TAKEN_OVER = "its author took over: a message on its thread"
# Not started: the runtime can still leave it out.
_ON_ITS_WAY = frozenset({Outcome.SENT, Outcome.ACCEPTED})


def take_over(session: Session, thread_ids: Collection[str], now: datetime) -> tuple[Planned, list[Fire]]:
    """End the self-paced tasks on whose threads an author wrote; return the facts, and fires that need not start."""
    done, needless = Planned(), list[Fire]()
    found = session.tasks.paced_on(thread_ids)
    for snapshot in session.tasks.snapshots([task.id for task in found]) if found else ():
        task, pacing = snapshot.task, snapshot.task.pacing
        if task.state is not TaskState.ACTIVE:  # what does not run is not taken over: it goes on when it is resumed
            continue
        pacing = pacing and replace(pacing, armed_at=None, why=TAKEN_OVER)
        over = replace(task, state=TaskState.DONE, reason=TAKEN_OVER, pacing=pacing, wake_at=None)
        wakes = [fire for fire in snapshot.open if fire.kind is FireKind.WAKE]
        unsent = [fire for fire in wakes if fire.outcome in {Outcome.PENDING, Outcome.HELD}]
        needless += [fire for fire in wakes if fire.outcome in _ON_ITS_WAY]
        done += _settle(session, snapshot, replace(snapshot, task=over), unsent, "taken over", now)
    return done, needless


def _settle(
    session: Session, before: Snapshot, after: Snapshot, unsent: list[Fire], reason: str, now: datetime
) -> Planned:
    returned = sum(fire.accepted_at is not None for fire in unsent)
    settled = tuple(
        replace(fire, outcome=Outcome.SKIPPED, reason=reason, ready_at=None, ended_at=now) for fire in unsent
    )
    task = replace(after.task, accepted=after.task.accepted - returned)
    return write_plans(session, [(before, Plan(task=task, changed=settled, tail=before.tail))])
