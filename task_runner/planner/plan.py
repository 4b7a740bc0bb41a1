"""What planning one task comes to: what to store, with skips that lie side by side as one entry. Pure."""

from dataclasses import dataclass

from task_runner.model.task import Fire, FireKind, Outcome, Snapshot, Task, replace
from task_runner.planner import entries
from task_runner.timetable import Timetable


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """What to write, in one transaction.

    Attributes:
        task: the task as it is from now on: cursor, wake, state, counts.
        new: entries to insert, by scheduled time.
        changed: entries to replace, by entry id.
        restored: scheduled times that a clock stepped back over: their fires exist, and cover them again.
        skipped: the runs of scheduled times that this plan skips, before any of them extends an earlier entry.
        tail: the element of `new` or `changed`, or the earlier entry, that is the newest of the skipped ones, if any.
    """

    task: Task
    new: tuple[Fire, ...] = ()
    changed: tuple[Fire, ...] = ()
    restored: tuple[Fire, ...] = ()
    skipped: tuple[Fire, ...] = ()
    tail: Fire | None = None


def joined(
    snapshot: Snapshot, timetable: Timetable, task: Task, new: tuple[Fire, ...], changed: tuple[Fire, ...]
) -> Plan:
    """Return a plan in which skipped entries that lie side by side, for one reason, are one entry.

    The oldest of them grows, also one written earlier. What was written before and grows into it stays in the ledger,
    as coalesced, and covers nothing any more.
    """
    skipped = tuple(sorted(filter(_covers_skipped, (*new, *changed)), key=lambda fire: fire.first_at))
    kept = [fire for fire in (*new, *changed) if not _covers_skipped(fire)]
    tail = snapshot.tail
    for fire in skipped:
        if tail is not None and fire.reason == tail.reason and timetable.next_after(tail.last_at) == fire.first_at:
            tail = _grown(tail, fire)
            if fire.entry_id:
                kept.append(entries.settled_coalesced(fire, f"skipped({fire.reason})", fire.ended_at or fire.due_at))
            continue
        if tail is not None and tail is not snapshot.tail:
            kept.append(tail)
        tail = fire
    if tail is not None and tail is not snapshot.tail:
        kept.append(tail)
    return Plan(
        task=task,
        new=tuple(sorted((fire for fire in kept if not fire.entry_id), key=lambda fire: fire.last_at)),
        changed=tuple(fire for fire in kept if fire.entry_id),
        skipped=skipped,
        tail=tail,
    )


def _grown(tail: Fire, fire: Fire) -> Fire:
    grown = entries.covering(tail, entries.merged([tail, fire]))
    return grown if grown.fire_id else replace(grown, nominal_at=grown.last_at, due_at=grown.last_at)


def _covers_skipped(fire: Fire) -> bool:
    return fire.outcome is Outcome.SKIPPED and fire.count > 0 and fire.kind is FireKind.SCHEDULED
