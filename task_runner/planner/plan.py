"""New ledger entries, and the same entries one step further. Pure."""

from collections.abc import Iterable
from datetime import datetime

from task_runner.model.replace import replace
from task_runner.model.task import COUNTED, CatchUp, Fire, Outcome, Task, fire_id
from task_runner.planner.runs import Run


def fresh(task: Task, nominal_at: datetime, run: Run, *, caught_up: bool) -> Fire:
    """Return the fire of a nominal time, not yet ready to be sent; it stands for `run`."""
    return Fire(
        task_id=task.id,
        fire_id=fire_id(task.id, nominal_at),
        nominal_at=nominal_at,
        due_at=nominal_at,
        outcome=Outcome.PENDING,
        count=run.count,
        first_at=run.first_at,
        last_at=run.last_at,
        policy=task.definition.catch_up,
        caught_up=caught_up,
        send_by=nominal_at + task.definition.grace,
        retries=task.definition.retries,
    )


def skipped_run(task: Task, run: Run, reason: str) -> Fire:
    """Return the record of a run of nominal times that did not fire."""
    return Fire(
        task_id=task.id,
        nominal_at=run.last_at,
        due_at=run.last_at,
        outcome=Outcome.SKIPPED,
        reason=reason,
        count=run.count,
        first_at=run.first_at,
        last_at=run.last_at,
        policy=task.definition.catch_up,
    )


def waiting(fire: Fire) -> Fire:
    """Return a fire as it waits for an earlier one of its task: without an id, to be extended in place."""
    return replace(fire, outcome=Outcome.WAITING, reason="", fire_id="", send_by=None, ready_at=None)


def covering(fire: Fire, run: Run) -> Fire:
    """Return an entry that covers `run`."""
    return replace(fire, count=run.count, first_at=run.first_at, last_at=run.last_at)


def settled_skipped(fire: Fire, reason: str, now: datetime) -> Fire:
    """Return a fire withdrawn unsent; it goes on covering its nominal times."""
    return replace(fire, outcome=Outcome.SKIPPED, reason=reason, ready_at=None, ended_at=now)


def settled_coalesced(fire: Fire, into: str, now: datetime) -> Fire:
    """Return a fire folded into the fire `into`, which covers its nominal times from now on."""
    return replace(fire, outcome=Outcome.COALESCED, reason=into, count=0, ready_at=None, ended_at=now)


def released(fire: Fire, task: Task, now: datetime) -> Fire:
    """Return a fire that waited for an earlier one, now ready to be sent; being late is no miss for a grace more."""
    ready_at = max(now, fire.due_at)  # the clock may have stepped back since its time came
    return replace(
        fire,
        outcome=Outcome.PENDING,
        reason="",
        fire_id=fire.fire_id or fire_id(task.id, fire.nominal_at),
        released=True,
        send_by=ready_at + task.definition.grace,
        ready_at=ready_at,
    )


def is_queued(fire: Fire) -> bool:
    """Tell whether a fire stands behind an earlier one of its task."""
    return fire.outcome is Outcome.PENDING and fire.ready_at is None


def newly_missed(fire: Fire) -> int:
    """Return how many nominal times of an entry count as missed once it does not fire, that did not count before."""
    return 1 if fire.caught_up and fire.policy is CatchUp.RUN_ONCE else fire.count


def returned_places(fires: Iterable[Fire]) -> int:
    """Return how many places under the limit on fires are given back by settling these unsent."""
    return sum(fire.accepted_at is not None and fire.kind in COUNTED for fire in fires)
