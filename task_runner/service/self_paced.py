from datetime import datetime, timedelta

from task_runner.model.task import FireKind, Outcome, TaskState
from task_runner.planner import self_paced
from task_runner.planner.log_records import LogRecord
from task_runner.scheduler.planning import plan_tasks, write_plans
from task_runner.service.changes import Changed, find_living, stop
from task_runner.store.port import Session
from turnkeeper.errors import Conflict

OVER_WITH_DAEMON = "it was to last as long as the daemon"


def reschedule(session: Session, name: str, seconds: int, now: datetime) -> Changed:
    """Let a self-paced task wake so many seconds from now; what was armed, or not sent yet, gives way.

    Raises:
        NotFound: no such task.
        Conflict: it keeps a schedule of its own, does not fire at present, or has used up its fires.
        InvalidInput: not a number of seconds that can be waited for.
    """
    task = find_living(session, name)
    called, definition = task.definition.name, task.definition
    if not self_paced.is_self_paced(definition):
        what = f"{called!r} is no self-paced task: when it fires next is up to its schedule"
        raise Conflict(what, hint="change that with: task-runner edit")
    if task.state in {TaskState.DISABLED, TaskState.QUARANTINED}:
        raise Conflict(f"{called!r} is {task.state}", hint="enable it first")
    if definition.max_fires is not None and task.accepted >= definition.max_fires:
        raise Conflict(f"{called!r} has fired {task.accepted} times, and max_fires is {definition.max_fires}")
    delay = timedelta(seconds=max(-1, min(seconds, self_paced.LONGEST_DELAY // timedelta(seconds=1) + 1)))
    (snapshot,) = session.tasks.snapshots([task.id])
    armed = self_paced.rescheduled(snapshot.task, now, delay)
    unsent = [fire for fire in snapshot.open if fire.kind is FireKind.WAKE and fire.outcome is Outcome.PENDING]
    plan = self_paced.without_wakes(snapshot, armed, unsent, "rescheduled", now)
    done = write_plans(session, [(snapshot, plan)])
    done += plan_tasks(session, [task.id], now)
    return Changed(task=session.tasks.snapshots([task.id])[0].task, events=done.events)


def end_ephemeral(session: Session, now: datetime) -> list[LogRecord]:
    """Delete the tasks that last as long as the daemon; return the facts."""
    events: list[LogRecord] = []
    for task in session.tasks.ephemeral():
        events += stop(session, task.id, TaskState.DELETED, OVER_WITH_DAEMON, now).events
    return events
