"""Runs of nominal times: counted and bounded, never listed, so that ten missed years cost what one day costs."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from task_runner.model.task import Fire
from task_runner.timetable import Timetable


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """Some nominal times of one task.

    Attributes:
        count: how many, at least 1.
        first_at, last_at: the oldest and the newest of them.
    """

    count: int
    first_at: datetime
    last_at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class Due:
    """What fell due in (after, now].

    Attributes:
        missed: the nominal times that are no longer on time.
        on_time: the newest one, if it still is.
    """

    missed: Run | None = None
    on_time: datetime | None = None

    @property
    def last_at(self) -> datetime | None:
        """The newest nominal time that fell due; None if none did."""
        return self.on_time or (self.missed.last_at if self.missed else None)


def fallen_due(
    timetable: Timetable, after: datetime, now: datetime, grace: timedelta, due: Callable[[datetime], datetime]
) -> Due:
    """Return the nominal times in (after, now]; only the newest can be on time, until `grace` after it is due."""
    first = timetable.next_after(after)
    if first is None or first > now:
        return Due()
    last = timetable.last_at_or_before(now) or first
    if now > due(last) + grace:
        return Due(missed=run_between(timetable, after, last))
    missed = None if last == first else run_between(timetable, after, last - timedelta(microseconds=1))
    return Due(missed=missed, on_time=last)


def run_between(timetable: Timetable, after: datetime, until: datetime) -> Run | None:
    """Return the run of nominal times in (after, until], None if there are none."""
    if after >= until:
        return None
    first, last = timetable.next_after(after), timetable.last_at_or_before(until)
    if first is None or last is None or first > until:
        return None
    count = 1 if first == last else timetable.count(after, until)
    return Run(count=count, first_at=first, last_at=last)


def run_of(fire: Fire) -> Run | None:
    """Return the run that a ledger entry covers, None if it covers nothing."""
    return Run(count=fire.count, first_at=fire.first_at, last_at=fire.last_at) if fire.count else None


def single(nominal_at: datetime) -> Run:
    """Return the run of one nominal time."""
    return Run(count=1, first_at=nominal_at, last_at=nominal_at)


def merged(runs: Iterable[Run | None]) -> Run:
    """Return one run for all of several, of which at least one is not None."""
    present = [run for run in runs if run is not None]
    return Run(
        count=sum(run.count for run in present),
        first_at=min(run.first_at for run in present),
        last_at=max(run.last_at for run in present),
    )


def earliest(*instants: datetime | None) -> datetime | None:
    """Return the earliest of those that are not None; None if all are."""
    return min((at for at in instants if at is not None), default=None)
