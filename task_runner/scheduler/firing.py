"""Firing in one transaction: what is due is written as sent, from what was worked out before it was due.

This is the short way of a fire. It is for tasks of which nothing is open, while the runtime takes fires and none waits
to be sent before them. It writes and tells what the long way does: planning a fire, then claiming it.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, NamedTuple, Protocol

from task_runner.model.task import COUNTED, EACH_FIRE, Snapshot
from task_runner.planner import log_records, planner
from task_runner.planner.schedule import timetable_of
from task_runner.scheduler import planning
from task_runner.scheduler.planning import Planned
from task_runner.store.rows import DueTask, Key, row_of_new_fire
from task_runner.store.store import Session
from turnkeeper.times import to_us
from turnkeeper.v1 import agent_runtime_pb2 as wire

FIRST_CHUNK = 52  # fires: half of a hundred are on disk while the others are planned and sent


class Handover(Protocol):
    """How committed fires get to the runtime."""

    def wake(self) -> None:
        """Look for fires that may be sent: one was committed."""

    def reachable(self) -> bool:
        """Tell whether the runtime can be reached."""

    def room(self) -> int:
        """Return how many fires it takes that are on disk as sent; 0 where each has to be claimed."""

    def take(self, sent: Sequence[tuple[Key, bytes, float]]) -> None:
        """Send fires that are on disk as sent: requests, and how many seconds late each is."""


class NextFire(NamedTuple):
    """The next fire of a task, worked out before it is due.

    Attributes:
        revision, cursor_us: of the task; at any others, this is void.
        from_us, until_us: when the task's plan is this fire and nothing else, both included.
        fire_id, counts: the fire, and whether limits on fires count it.
        entry, moved: the ledger entry as it is sent, and the task's progress.
        frozen, rest: its request in two parts, without the time of sending.
        events: what is told of it.
    """

    revision: int
    cursor_us: int
    from_us: int
    until_us: int
    fire_id: str
    counts: bool
    entry: Mapping[str, Any]
    moved: Mapping[str, Any]
    frozen: bytes
    rest: bytes
    events: Sequence[log_records.LogRecord]

    def goes(self, task: DueTask, now_us: int) -> bool:
        """Tell whether planning a task at a time comes to this fire."""
        same = task.alone and task.revision == self.revision and task.cursor_us == self.cursor_us
        return same and self.from_us <= now_us <= self.until_us


def chunk(planned: int) -> int:
    """Return how many tasks to plan in one transaction after so many others: few at first, then ever more.

    >>> [chunk(planned) for planned in (0, 52, 104, 208, 1000)]
    [52, 52, 104, 128, 128]
    """
    return min(planning.LARGEST_BATCH, max(FIRST_CHUNK, planned))


def prepare(session: Session, ids: Sequence[str]) -> dict[str, NextFire | None]:
    """Return the next fires of tasks by their ids; None for a task that has to be planned. Changes nothing."""
    found: dict[str, NextFire | None] = dict.fromkeys(ids)
    for snapshot in session.tasks.snapshots(ids):
        with suppress(Exception):  # said when it is planned
            found[snapshot.task.id] = _next_fire(session, snapshot)
    return found


def _next_fire(session: Session, snapshot: Snapshot) -> NextFire | None:
    task = snapshot.task
    alone = planner.ahead(snapshot, timetable_of(task.definition))
    if alone is None:
        return None
    (fire,) = alone.plan.new
    row = row_of_new_fire(fire)
    rest = planning.complete(wire.FireRequest(), fire)
    if task.definition.thread_id == EACH_FIRE:
        rest.thread_id = fire.fire_id
    until_us = to_us(alone.until)
    return NextFire(
        revision=task.revision,
        cursor_us=to_us(task.cursor_at),
        from_us=row["nominal_us"],
        until_us=until_us if alone.following is None else min(until_us, to_us(alone.following) - 1),
        fire_id=fire.fire_id,
        counts=fire.kind in COUNTED,
        entry={name: row[name] for name in ("task_id", "fire_id", "policy", "send_by_us", "retries")}
        | {"at": row["nominal_us"]},
        moved={"task": task.id, "cursor_us": to_us(alone.plan.task.cursor_at)}
        | {"wake_us": None if alone.plan.task.wake_at is None else to_us(alone.plan.task.wake_at)},
        frozen=planning.frozen_request(task, session.at_home),
        rest=rest.SerializeToString(),
        events=log_records.of_plan(snapshot, alone.plan, alone.plan.new),
    )


def fire_due(
    session: Session,
    now: datetime,
    limit: int,
    known: Mapping[str, NextFire | None],
    *,
    sent_at: datetime,
    room: int,
    reachable: bool,
) -> Planned:
    """Plan at most `limit` tasks that need it by `now`; write as sent what fires and has nothing before it.

    Args:
        session: the transaction.
        now: the time.
        limit: how many tasks.
        known: what `prepare` returned, of these or other tasks.
        sent_at: the time to write down for what is sent.
        room: how many fires can be sent; 0 for none, so that all become pending.
        reachable: whether the runtime is reachable.
    """
    due = session.tasks.due_tasks(now, limit)
    short: list[NextFire] = []
    if due and len(due) <= room and not _is_waiting(session, now):
        new = [each.task_id for each in due if each.alone and each.task_id not in known]
        known = {**known, **prepare(session, new)} if new else known
        now_us = to_us(now)
        found = [(each, known.get(each.task_id)) for each in due]
        short = [fire for task, fire in found if fire is not None and fire.goes(task, now_us)]
    gone = {fire.entry["task_id"] for fire in short}
    others = [each.task_id for each in due if each.task_id not in gone]
    planned = planning.plan_tasks(session, others, now, reachable=reachable) if others else Planned()
    return planned + fire_all(session, short, sent_at) if short else planned


def _is_waiting(session: Session, now: datetime) -> bool:
    """Tell whether a fire that was committed earlier has yet to be sent."""
    ready_at = session.fires.next_ready(caught_up=False)
    return ready_at is not None and ready_at <= now


def fire_all(session: Session, fires: Sequence[NextFire], sent_at: datetime) -> Planned:
    """Write fires as sent: ledger, frozen requests and the tasks' progress."""
    numbers = session.fires.add_sent(
        [fire.entry for fire in fires], [fire.frozen for fire in fires], [fire.moved for fire in fires], sent_at
    )
    stamp, sent_us = planning.stamped(sent_at), to_us(sent_at)
    return Planned(
        tasks=len(fires),
        committed=len(fires),
        events=[event for fire in fires for event in fire.events],
        sent=[
            (
                Key(fire.fire_id, 1, number, fire.entry["task_id"], fire.counts),
                b"".join((fire.frozen, fire.rest, stamp)),
                (sent_us - fire.from_us) / 1e6,
            )
            for fire, number in zip(fires, numbers, strict=True)
        ],
    )
