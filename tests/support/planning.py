"""A step of the planner, without the loop around it."""

from datetime import datetime

from task_runner.scheduler.planning import LARGEST_BATCH, Planned, plan_tasks
from task_runner.store.store import Session


def plan_due(session: Session, now: datetime, limit: int = LARGEST_BATCH, *, reachable: bool = True) -> Planned:
    """Plan at most `limit` tasks that need it by `now`."""
    return plan_tasks(session, session.tasks.due(now, limit), now, reachable=reachable)
