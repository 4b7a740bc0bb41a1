"""Overlap: decides about a fire that comes due while an earlier fire of its task is open. Pure.

At most one scheduled fire of a task runs at a time. `coalesce` folds all fires that come due meanwhile into one waiting
entry. `queue` queues them in order. `skip` records them as skipped. `cancel-running` works as `coalesce` does, and the
waiting entry also asks to cancel the running turn.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from task_runner.model.task import Fire, Outcome, Overlap, Task, replace
from task_runner.planner import entries

QUEUE_FULL = "queue_full"
OVERLAP = "overlap"
# The reason of a waiting entry that asks to cancel the turn ahead. So the request is on disk with the entry.
CANCELS = Overlap.CANCEL_RUNNING.value


@dataclass(frozen=True, kw_only=True, slots=True)
class Lined:
    """The decision of the overlap policy.

    Attributes:
        new: entries to insert, oldest first.
        missed: number of scheduled times that newly count as missed.
    """

    new: tuple[Fire, ...] = ()
    changed: tuple[Fire, ...] = ()
    missed: int = 0


def coalesce(task: Task, unsent: Sequence[Fire], fires: Sequence[Fire], now: datetime, *, busy: bool) -> Lined:
    """Fold the unsent entries of a task and its new fires into one.

    Args:
        unsent: the task's waiting and unsent entries, oldest first.
        fires: new fires, oldest first.
        busy: True if a fire of the task is running, so that the resulting fire waits.
    """
    items = [*unsent, *fires]
    if not items:
        return Lined()
    newest = items[-1]
    if len(items) == 1 and not newest.entry_id and not busy:
        return Lined(new=(_ready(newest, now),))
    if len(items) == 1 and newest.entry_id and (busy or not _stands_behind(newest)):
        return Lined()
    # A waiting entry has no id yet, so further times extend it in place.
    slot = next((item for item in unsent if item.outcome is Outcome.WAITING), None)
    one = replace(
        entries.covering(newest, entries.merged(items)),
        entry_id=newest.entry_id or (slot.entry_id if slot else 0),
        caught_up=any(item.caught_up for item in items),
    )
    if busy:
        one = entries.waiting(one)
    elif any(item.released or _stands_behind(item) for item in unsent):
        one = entries.released(one, task, now)
    else:
        one = _ready(one, now)
    folded = tuple(
        entries.settled_coalesced(item, one.fire_id, now) for item in unsent if item.entry_id != one.entry_id
    )
    return Lined(new=() if one.entry_id else (one,), changed=folded + ((one,) if one.entry_id else ()))


def queue(task: Task, unsent: Sequence[Fire], fires: Sequence[Fire], now: datetime, *, busy: bool) -> Lined:
    """Queue the unsent and the new fires of a task, oldest first; release the first if no fire is running.

    If more than `max_catch_up` are queued, skip the oldest.
    """
    line = [*unsent, *fires]
    surplus = max(0, len(line) - task.definition.max_catch_up)
    cut = [_cut(task, fire, now) for fire in line[:surplus]]
    line, decided = line[surplus:], list[Fire]()
    if line and not busy:
        head = line[0]
        if head.entry_id and _stands_behind(head):
            decided.append(entries.released(head, task, now))
        elif not head.entry_id:
            decided.append(_ready(head, now))
        line = line[1:]
    decided += [fire for fire in line if not fire.entry_id]
    return Lined(
        new=tuple(fire for fire in cut + decided if not fire.entry_id),
        changed=tuple(fire for fire in cut + decided if fire.entry_id),
        missed=sum(fire.count for fire in cut),
    )


def skip(task: Task, fires: Sequence[Fire]) -> Lined:
    """Return records of new fires as skipped. The records have no fire ids."""
    return Lined(new=tuple(entries.skipped_run(task, fire, OVERLAP) for fire in fires))


def asking(lined: Lined) -> Lined:
    """Mark the waiting entry with the request to cancel the turn ahead."""
    return replace(lined, new=tuple(map(_asking, lined.new)), changed=tuple(map(_asking, lined.changed)))


def asks_no_more(fires: Iterable[Fire]) -> tuple[Fire, ...]:
    """Return the entries that ask to cancel the turn ahead, with that request removed."""
    return tuple(replace(fire, reason="") for fire in fires if fire.reason == CANCELS and _stands_behind(fire))


def _asking(fire: Fire) -> Fire:
    return replace(fire, reason=CANCELS) if fire.outcome is Outcome.WAITING else fire


def _cut(task: Task, fire: Fire, now: datetime) -> Fire:
    """Return a fire as skipped because the queue is full. A new fire becomes a record without a fire id."""
    if fire.entry_id:
        return entries.settled_skipped(fire, QUEUE_FULL, now)
    return entries.skipped_run(task, fire, QUEUE_FULL)


def _stands_behind(fire: Fire) -> bool:
    return fire.outcome is Outcome.WAITING or fire.is_queued


def _ready(fire: Fire, now: datetime) -> Fire:
    # A fire is never ready before its due time, even if the clock stepped back after that time.
    return replace(fire, ready_at=max(now, fire.due_at)) if fire.ready_at is None else fire
