"""A timetable within bounds."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from task_runner.timetable.protocol import Sliced, Timetable

_LEAST = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class Bounded(Sliced):
    """The nominal times of a timetable from `start_at` to `end_at`.

    Attributes:
        timetable: whose nominal times.
        start_at, end_at: aware datetimes, both included; None for no bound.
    """

    timetable: Timetable
    start_at: datetime | None = None
    end_at: datetime | None = None

    def next_after(self, after: datetime) -> datetime | None:
        """Return the first nominal time within the bounds strictly after `after`, None if there is none."""
        nominal = self.timetable.next_after(self._not_before_start(after))
        ended = nominal is not None and self.end_at is not None and nominal > self.end_at
        return None if ended else nominal

    def last_at_or_before(self, at: datetime) -> datetime | None:
        """Return the last nominal time within the bounds not after `at`, None if there is none."""
        nominal = self.timetable.last_at_or_before(self._not_after_end(at))
        early = nominal is not None and self.start_at is not None and nominal < self.start_at
        return None if early else nominal

    def count(self, after: datetime, until: datetime) -> int:
        """Return how many nominal times within the bounds lie in (after, until]."""
        return self.timetable.count(self._not_before_start(after), self._not_after_end(until))

    def describe(self) -> str:
        """Return what the timetable says and the bounds there are.

        >>> from datetime import UTC
        >>> from task_runner.timetable.interval import parse_every
        >>> start = datetime(2026, 1, 1, tzinfo=UTC)
        >>> Bounded(parse_every("7m", anchor=start), start_at=start).describe()
        'every 7m, exactly, from 2026-01-01T00:00:00+00:00'
        """
        line = self.timetable.describe()
        if self.start_at is not None:
            line += f", from {self.start_at.isoformat()}"
        return line if self.end_at is None else f"{line}, until {self.end_at.isoformat()}"

    def _not_before_start(self, after: datetime) -> datetime:
        return after if self.start_at is None else max(after, self.start_at - _LEAST)

    def _not_after_end(self, until: datetime) -> datetime:
        return until if self.end_at is None else min(until, self.end_at)
