"""What every timetable answers, and the bounded slices that all of them cut in the same way."""

from datetime import datetime, timedelta
from typing import Protocol, runtime_checkable

_ONE_SECOND = timedelta(seconds=1)


@runtime_checkable
class Timetable(Protocol):
    """The nominal times of one schedule: whole seconds in UTC, ascending, no two equal.

    A timetable is a value. It reads no clock; asking twice gives the same answer. All arguments are aware datetimes
    in any zone, all results aware datetimes in UTC. A fraction of a second in an argument counts: 09:00:00 is not
    after 09:00:00, and it is before 09:00:00.5.
    """

    def next_after(self, after: datetime) -> datetime | None:
        """Return the first nominal time strictly after `after`, None if there is none."""

    def last_at_or_before(self, at: datetime) -> datetime | None:
        """Return the last nominal time not after `at`, None if there is none."""

    def count(self, after: datetime, until: datetime) -> int:
        """Return how many nominal times lie in (after, until]; never enumerates them."""

    def upcoming(self, after: datetime, limit: int) -> list[datetime]:
        """Return the first `limit` nominal times strictly after `after`, fewer where there are no more."""

    def first_n(self, after: datetime, until: datetime, n: int) -> list[datetime]:
        """Return the `n` oldest nominal times in (after, until], ascending."""

    def last_n(self, after: datetime, until: datetime, n: int) -> list[datetime]:
        """Return the `n` newest nominal times in (after, until], ascending."""

    def describe(self) -> str:
        """Return one line that says when this fires."""


class Sliced:
    """The slices, cut out of `next_after` and `last_at_or_before`; the work grows with the nominals returned."""

    __slots__ = ()

    def next_after(self, after: datetime) -> datetime | None:
        """Return the first nominal time strictly after `after`, None if there is none."""
        raise NotImplementedError

    def last_at_or_before(self, at: datetime) -> datetime | None:
        """Return the last nominal time not after `at`, None if there is none."""
        raise NotImplementedError

    def upcoming(self, after: datetime, limit: int) -> list[datetime]:
        """Return the first `limit` nominal times strictly after `after`, fewer where there are no more."""
        found: list[datetime] = []
        nominal = self.next_after(after)
        while nominal is not None and len(found) < limit:
            found.append(nominal)
            nominal = self.next_after(nominal)
        return found

    def first_n(self, after: datetime, until: datetime, n: int) -> list[datetime]:
        """Return the `n` oldest nominal times in (after, until], ascending."""
        found: list[datetime] = []
        nominal = self.next_after(after)
        while nominal is not None and nominal <= until and len(found) < n:
            found.append(nominal)
            nominal = self.next_after(nominal)
        return found

    def last_n(self, after: datetime, until: datetime, n: int) -> list[datetime]:
        """Return the `n` newest nominal times in (after, until], ascending."""
        found: list[datetime] = []
        nominal = self.last_at_or_before(until)
        while nominal is not None and nominal > after and len(found) < n:
            found.append(nominal)
            nominal = self.last_at_or_before(nominal - _ONE_SECOND)
        found.reverse()
        return found
