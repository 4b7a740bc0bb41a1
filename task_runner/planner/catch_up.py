"""Catch-up: decides about scheduled times that were missed for any cause. Pure.

One rule applies to every cause: runner down, machine asleep, runtime unreachable, clock stepped, thread waiting for its
author. The rule covers the scheduled times that came due and the task's own fires that were never sent.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from task_runner.model.task import CatchUp, Fire, Outcome, Task, replace
from task_runner.planner import entries
from task_runner.timetable import LEAST, Timetable

MISSED = "missed"
TOO_OLD = "catch_up_window"
CAPPED = "max_catch_up"
# The most fires in one plan of a task, even if an older home allows more, because one transaction writes them all.
MOST_FIRES = 10_000


@dataclass(frozen=True, kw_only=True, slots=True)
class CaughtUp:
    """The decision of the catch-up policy.

    Attributes:
        fires: new fires, oldest first; none is ready yet.
        skips: new records of runs that do not fire, oldest first.
        changed: the task's unsent fires that changed, settled or not.
        missed: number of scheduled times that newly count as missed.
    """

    fires: tuple[Fire, ...] = ()
    skips: tuple[Fire, ...] = ()
    changed: tuple[Fire, ...] = ()
    missed: int = 0


def late_fires(unsent: tuple[Fire, ...], due: entries.Due, now: datetime) -> tuple[Fire, ...]:
    """Return the unsent fires that are missed: they are late, or a later scheduled time is already due.

    A fire that waited for an overlapping one is missed only after the grace period that began with its release.
    """
    newest = max((fire.nominal_at for fire in unsent), default=None)
    return tuple(
        fire
        for fire in unsent
        if (fire.send_by is not None and now > fire.send_by)
        or (not fire.released and (due.last_at is not None or fire.nominal_at != newest))
    )


def catch_up(task: Task, timetable: Timetable, due: entries.Due, late: tuple[Fire, ...], now: datetime) -> CaughtUp:
    """Apply the task's policy to the scheduled times that came due and to its late unsent fires."""
    old_fires, old_run, due = _too_old(task, timetable, due, late, now)
    old = CaughtUp(
        skips=(entries.skipped_run(task, old_run, TOO_OLD),) if old_run else (),
        changed=tuple(entries.settled_skipped(fire, TOO_OLD, now) for fire in old_fires),
        missed=sum(map(entries.newly_missed, old_fires)) + (old_run.count if old_run else 0),
    )
    rest = tuple(fire for fire in late if fire not in old_fires)
    decide = {CatchUp.SKIP: _skip, CatchUp.RUN_ONCE: _run_once, CatchUp.RUN_ALL: _run_all}[task.definition.catch_up]
    decided = decide(task, timetable, due, rest, now)
    return CaughtUp(
        fires=decided.fires,
        skips=old.skips + decided.skips,
        changed=old.changed + decided.changed,
        missed=old.missed + decided.missed,
    )


def waited_too_long(task: Task, unsent: Iterable[Fire], now: datetime) -> tuple[Fire, ...]:
    """Return the queued fires for missed times that are now older than the catch-up window.

    A fire that was on time and then queued is not missed, regardless of how long it waited.
    """
    window = task.definition.catch_up_window
    if window is None:
        return ()
    return tuple(
        entries.settled_skipped(fire, TOO_OLD, now)
        for fire in unsent
        if fire.caught_up and (fire.outcome is Outcome.WAITING or fire.is_queued) and fire.last_at < now - window
    )


def _too_old(
    task: Task, timetable: Timetable, due: entries.Due, late: tuple[Fire, ...], now: datetime
) -> tuple[tuple[Fire, ...], entries.Run | None, entries.Due]:
    """Split off the misses older than the catch-up window. Return the old fires, the old times and all later times."""
    window = task.definition.catch_up_window
    if window is None:
        return (), None, due
    horizon = now - window
    fires = tuple(fire for fire in late if fire.last_at < horizon)
    if due.missed is None or due.missed.first_at >= horizon:
        return fires, None, due
    before = due.missed.first_at - LEAST
    run = entries.run_between(timetable, before, min(horizon - LEAST, due.missed.last_at))
    rest = entries.run_between(timetable, horizon - LEAST, due.missed.last_at)
    return fires, run, entries.Due(missed=rest, on_time=due.on_time)


def _skip(task: Task, _timetable: Timetable, due: entries.Due, late: tuple[Fire, ...], now: datetime) -> CaughtUp:
    return CaughtUp(
        fires=_on_time(task, due),
        skips=(entries.skipped_run(task, due.missed, MISSED),) if due.missed else (),
        changed=tuple(entries.settled_skipped(fire, MISSED, now) for fire in late),
        missed=sum(map(entries.newly_missed, late)) + (due.missed.count if due.missed else 0),
    )


def _run_once(task: Task, _timetable: Timetable, due: entries.Due, late: tuple[Fire, ...], now: datetime) -> CaughtUp:
    if not late and due.missed is None:
        return CaughtUp(fires=_on_time(task, due))
    if due.last_at is None and len(late) == 1:
        return CaughtUp()
    if due.last_at is not None:
        run = entries.merged([*late, due.missed, entries.single(due.on_time) if due.on_time else None])
        fire = entries.fresh(task, due.last_at, run, caught_up=True)
        folded = late
    else:
        *older, newest = late
        run = entries.merged(late)
        fire = replace(entries.covering(newest, run), caught_up=True)
        folded = tuple(older)
    changed = tuple(entries.settled_coalesced(one, fire.fire_id, now) for one in folded)
    if fire.entry_id:
        changed += (fire,)
    return CaughtUp(
        fires=() if fire.entry_id else (fire,),
        changed=changed,
        missed=run.count - 1 - sum(one.count - entries.newly_missed(one) for one in late),
    )


def _run_all(task: Task, timetable: Timetable, due: entries.Due, _late: tuple[Fire, ...], _now: datetime) -> CaughtUp:
    if due.missed is None:
        return CaughtUp(fires=_on_time(task, due))
    before, last = due.missed.first_at - LEAST, due.missed.last_at
    kept = timetable.last_n(before, last, min(task.definition.max_catch_up, MOST_FIRES))
    fires = tuple(entries.fresh(task, nominal_at, caught_up=True) for nominal_at in kept)
    cut = due.missed.count - len(kept)
    skips: tuple[Fire, ...] = ()
    if cut and (run := entries.run_between(timetable, before, kept[0] - LEAST)):
        skips = (entries.skipped_run(task, run, CAPPED),)
    return CaughtUp(fires=fires + _on_time(task, due), skips=skips, missed=cut)


def _on_time(task: Task, due: entries.Due) -> tuple[Fire, ...]:
    return () if due.on_time is None else (entries.fresh(task, due.on_time),)
