"""What is done to self-paced tasks and to loops beside their schedule, each inside one transaction."""

from collections.abc import Collection
from datetime import datetime, timedelta

from task_runner.model.replace import replace
from task_runner.model.task import Fire, FireKind, Outcome, Snapshot, TaskState
from task_runner.planner import self_paced as selfpaced
from task_runner.planner.facts import Event
from task_runner.planner.plans import Plan
from task_runner.scheduler.planning import Planned, plan_tasks, write_plans
from task_runner.service.changes import Changed, find_living, stop
from task_runner.store.port import Session
from turnkeeper.errors import Conflict

TAKEN_OVER = "its author took over: a message on its thread"
OVER_WITH_DAEMON = "it was to last as long as the daemon"
# Not started: the runtime can still leave it out.
_ON_ITS_WAY = frozenset({Outcome.SENT, Outcome.ACCEPTED})


def reschedule(session: Session, name: str, seconds: int, now: datetime) -> Changed:
    """Let a self-paced task wake so many seconds from now; what was armed, or not sent yet, gives way.

    Raises:
        NotFound: no such task.
        Conflict: it keeps a schedule of its own, does not fire at present, or has used up its fires.
        InvalidInput: not a number of seconds that can be waited for.
    """
    task = find_living(session, name)
    called, definition = task.definition.name, task.definition
    if not selfpaced.is_self_paced(definition):
        what = f"{called!r} is no self-paced task: when it fires next is up to its schedule"
        raise Conflict(what, hint="change that with: task-runner edit")
    if task.state in {TaskState.DISABLED, TaskState.QUARANTINED}:
        raise Conflict(f"{called!r} is {task.state}", hint="enable it first")
    if definition.max_fires is not None and task.accepted >= definition.max_fires:
        raise Conflict(f"{called!r} has fired {task.accepted} times, and max_fires is {definition.max_fires}")
    delay = timedelta(seconds=max(-1, min(seconds, selfpaced.LONGEST_DELAY // timedelta(seconds=1) + 1)))
    (snapshot,) = session.tasks.snapshots([task.id])
    armed = selfpaced.rescheduled(snapshot.task, now, delay)
    unsent = [fire for fire in snapshot.open if fire.kind is FireKind.WAKE and fire.outcome is Outcome.PENDING]
    done = _settle(session, snapshot, replace(snapshot, task=armed), unsent, "rescheduled", now)
    done += plan_tasks(session, [task.id], now)
    return Changed(task=session.tasks.snapshots([task.id])[0].task, events=done.events)


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


def end_ephemeral(session: Session, now: datetime) -> list[Event]:
    """Delete the tasks that last as long as the daemon; return the facts."""
    events: list[Event] = []
    for task in session.tasks.ephemeral():
        events += stop(session, task.id, TaskState.DELETED, OVER_WITH_DAEMON, now).events
    return events


def _settle(
    session: Session, before: Snapshot, after: Snapshot, unsent: list[Fire], reason: str, now: datetime
) -> Planned:
    returned = sum(fire.accepted_at is not None for fire in unsent)
    settled = tuple(
        replace(fire, outcome=Outcome.SKIPPED, reason=reason, ready_at=None, ended_at=now) for fire in unsent
    )
    task = replace(after.task, accepted=after.task.accepted - returned)
    return write_plans(session, [(before, Plan(task=task, changed=settled, tail=before.tail))])
