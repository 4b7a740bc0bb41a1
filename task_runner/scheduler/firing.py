"""Firing in one transaction: a fire is prepared before it is due, and written as sent when it is due.

This is the short path of a fire. It applies to tasks with no open fire, while the runtime accepts fires and no earlier
fire waits to be sent. The result is the same as on the long path, which plans a fire and then claims it.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, NamedTuple, Protocol

from task_runner.model.task import COUNTED, EACH_FIRE, Snapshot
from task_runner.planner import log_records, planner
from task_runner.planner.entries import timetable_of
from task_runner.scheduler import planning
from task_runner.store.rows import DueTask, Key, row_of_new_fire
from task_runner.store.store import Session
from turnkeeper.times import to_us
from turnkeeper.v1 import agent_runtime_pb2 as wire

FIRST_CHUNK = 52  # fires; a batch of a hundred is split, so that its first half is on disk while the rest are planned


class Handover(Protocol):
    """The hand-over of committed fires to the runtime."""

    def wake(self) -> None:
        """Check for fires to send, because a fire was committed."""

    def reachable(self) -> bool:
        """Return True if the runtime is reachable."""

    def room(self) -> int:
        """Return how many fires :meth:`take` accepts. Return 0 if each fire must be claimed."""

    def take(self, sent: Sequence[tuple[Key, bytes, float]]) -> None:
        """Send fires that are recorded as sent. Each has a key, a request, and a lateness in seconds."""


class NextFire(NamedTuple):
    """The next fire of a task, prepared before it is due.

    Attributes:
        revision, cursor_us: the task's revision and cursor; if either changes, the prepared fire is void.
        from_us, until_us: the span, both ends included, in which planning the task gives only this fire.
        fire_id, counts: the id of the fire, and whether the fire counts towards `max_fires`.
        entry, moved: the columns of the sent ledger entry, and the task's new cursor and wake time.
        frozen, rest: the fire's request in two parts, without the time of sending.
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
        """Return True if planning `task` at `now_us` gives this fire."""
        same = task.alone and task.revision == self.revision and task.cursor_us == self.cursor_us
        return same and self.from_us <= now_us <= self.until_us


def chunk(planned: int) -> int:
    """Return how many tasks to plan in the next transaction after `planned` others: few at first, then more.

    >>> [chunk(planned) for planned in (0, 52, 104, 208, 1000)]
    [52, 52, 104, 128, 128]
    """
    return min(planning.LARGEST_BATCH, max(FIRST_CHUNK, planned))


def prepare(session: Session, ids: Sequence[str]) -> dict[str, NextFire | None]:
    """Return the next fires of tasks by task id; None for a task that must be planned. Writes nothing."""
    found: dict[str, NextFire | None] = dict.fromkeys(ids)
    for snapshot in session.tasks.snapshots(ids):
        with suppress(Exception):  # An error here is reported when the task is planned.
            found[snapshot.task.id] = _next_fire(session, snapshot)
    return found


def _next_fire(session: Session, snapshot: Snapshot) -> NextFire | None:
    task = snapshot.task
    alone = planner.ahead(snapshot, timetable_of(task.definition))
    # The variables of a prompt are filled in, and queues and tags checked, when a fire is claimed.
    if alone is None or "{{" in task.definition.prompt or task.definition.queue or task.definition.needs:
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
) -> planning.Planned:
    """Plan at most `limit` tasks that are due by `now`. Write their prepared fires as sent if that is possible.

    Args:
        known: the result of `prepare`, for these or other tasks.
        room: how many fires can be sent; if more tasks are due, all fires become pending.
        reachable: True if the runtime is reachable.
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
    planned = planning.plan_tasks(session, others, now, reachable=reachable) if others else planning.Planned()
    return planned + fire_all(session, short, sent_at) if short else planned


def _is_waiting(session: Session, now: datetime) -> bool:
    """Return whether an earlier committed fire is still unsent."""
    ready_at = session.fires.next_ready(caught_up=False)
    return ready_at is not None and ready_at <= now


def fire_all(session: Session, fires: Sequence[NextFire], sent_at: datetime) -> planning.Planned:
    """Write fires as sent, with their ledger entries, their frozen requests and the progress of their tasks."""
    numbers = session.fires.add_sent(
        [fire.entry for fire in fires], [fire.frozen for fire in fires], [fire.moved for fire in fires], sent_at
    )
    stamp, sent_us = planning.stamped(sent_at), to_us(sent_at)
    return planning.Planned(
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
