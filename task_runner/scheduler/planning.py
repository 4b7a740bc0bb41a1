"""Planning inside a transaction: read, decide with the pure planner, write."""

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from types import MappingProxyType

from task_runner.model.replace import replace
from task_runner.model.task import LONGEST_REASON, FireKind, Outcome, Snapshot, TaskState
from task_runner.planner import facts, self_paced
from task_runner.planner.budgets import Ended, settle_up
from task_runner.planner.facts import Event
from task_runner.planner.overlap import CANCELS
from task_runner.planner.plan import Plan
from task_runner.planner.planner import NOTHING_NEW, Lately, plan, withdraw
from task_runner.planner.schedule import timetable_of
from task_runner.scheduler.fire_request import frozen_request
from task_runner.store.port import Session

LARGEST_BATCH = 128  # tasks: few enough that the first fires are on their way while the next are planned
NOTHING_ENDED: Mapping[str, Sequence[Ended]] = MappingProxyType({})


@dataclass(frozen=True, kw_only=True, slots=True)
class Planned:
    """What a round of planning did.

    Attributes:
        tasks: how many tasks were looked at.
        committed: how many fires got their identity.
        skipped: how many nominal times were recorded as skipped.
        asking: how many fires began to ask for the end of the turn that they wait for.
        events: the facts, to be written out after the commit.
    """

    tasks: int = 0
    committed: int = 0
    skipped: int = 0
    asking: int = 0
    events: list[Event] = field(default_factory=list)

    def __add__(self, other: "Planned") -> "Planned":
        """Return both rounds as one."""
        return Planned(
            tasks=self.tasks + other.tasks,
            committed=self.committed + other.committed,
            skipped=self.skipped + other.skipped,
            asking=self.asking + other.asking,
            events=self.events + other.events,
        )


def plan_due(session: Session, now: datetime, limit: int = LARGEST_BATCH, *, reachable: bool = True) -> Planned:
    """Plan at most `limit` tasks that need it by `now`."""
    return plan_tasks(session, session.tasks.due(now, limit), now, reachable=reachable)


def prepare(session: Session, ids: Sequence[str]) -> None:
    """Read what planning these tasks will need, so that it is in memory when they fall due. Changes nothing."""
    for snapshot in session.tasks.snapshots(ids):
        with suppress(Exception):  # said when it is planned
            timetable_of(snapshot.task.definition).next_after(snapshot.task.cursor_at)


def plan_tasks(
    session: Session,
    ids: Sequence[str],
    now: datetime,
    *,
    reachable: bool = True,
    ended: Mapping[str, Sequence[Ended]] = NOTHING_ENDED,
    resumed: Collection[str] = (),
    complete: bool = True,
) -> Planned:
    """Plan tasks, each in isolation: one that cannot be planned is quarantined with its error, the others go on.

    Args:
        session: the transaction.
        ids: which tasks.
        now: the time.
        reachable: whether the runtime can be heard.
        ended: by task id, the turns that ended: what they came to is counted, and may pause the task.
        resumed: the ids of the tasks whose author decided, so that a turn goes on.
        complete: whether all that happened to their turns was heard.
    """
    plans: list[tuple[Snapshot, Plan]] = []
    events: list[Event] = []
    for snapshot in session.tasks.snapshots(ids) if ids else ():
        turns = ended.get(snapshot.task.id, ())
        ends = [turn.at for turn in turns if turn.fire.kind is FireKind.SCHEDULED]
        lately = NOTHING_NEW
        if ends or not complete or snapshot.task.id in resumed:
            last = max(ends, default=None)
            lately = Lately(complete=complete, ended_at=last, resumed=snapshot.task.id in resumed)
        try:
            plans.append((snapshot, _planned(snapshot, turns, now, reachable=reachable, lately=lately)))
        except Exception as error:  # noqa: BLE001  the task is quarantined with it, which bounds it
            events.append(quarantine(session, snapshot.task.id, f"cannot be planned: {error}"))
    done = write_plans(session, plans)
    return Planned(tasks=len(ids), events=events) + done


def _planned(snapshot: Snapshot, ended: Sequence[Ended], now: datetime, *, reachable: bool, lately: Lately) -> Plan:
    timetable = timetable_of(snapshot.task.definition)
    if not ended:
        return plan(snapshot, timetable, now, reachable=reachable, lately=lately)
    task, why = settle_up(snapshot.task, ended)
    if self_paced.is_self_paced(task.definition):
        task, slower = self_paced.heard(task, ended)
        why = why or slower[:LONGEST_REASON]
    snapshot = replace(snapshot, task=task)
    if not why or task.state is not TaskState.ACTIVE:
        return plan(snapshot, timetable, now, reachable=reachable, lately=lately)
    withdrawn = withdraw(snapshot, timetable, TaskState.PAUSED.value, now, manual=False)
    return replace(withdrawn, task=replace(withdrawn.task, state=TaskState.PAUSED, reason=why))


def write_plans(session: Session, plans: Sequence[tuple[Snapshot, Plan]]) -> Planned:
    """Write plans; return their facts."""
    requests = {
        str(planned.task.id): frozen_request(planned.task)
        for _, planned in plans
        if any(fire.outcome is Outcome.PENDING for fire in (*planned.new, *planned.changed))
    }
    written = session.fires.write_plans([planned for _, planned in plans], requests)
    events: list[Event] = []
    for (snapshot, planned), entries in zip(plans, written, strict=True):
        events += facts.of_plan(snapshot, planned, entries)
    return Planned(
        committed=sum(event.name == "fire.committed" for event in events),
        skipped=sum(event.fields["count"] for event in events if event.name == "fire.skipped"),
        asking=sum(fire.reason == CANCELS and fire.outcome is Outcome.WAITING for each in written for fire in each),
        events=events,
    )


def quarantine(session: Session, task_id: str, why: str) -> Event:
    """Stop a task that cannot go on; return the fact."""
    session.tasks.quarantine(task_id, why[:LONGEST_REASON])
    return Event("task.quarantined", {"task_id": task_id, "reason": why[:LONGEST_REASON]})
