"""One instant."""

from dataclasses import dataclass
from datetime import datetime

from task_runner.timetable.instants import from_seconds, to_seconds
from task_runner.timetable.protocol import Sliced


@dataclass(frozen=True, slots=True)
class Once(Sliced):
    """A single nominal time.

    Attributes:
        at: an aware datetime; a fraction of a second is rounded up, so that it is never early.
    """

    at: datetime

    def __post_init__(self) -> None:
        second = to_seconds(self.at) + (self.at.microsecond > 0)
        object.__setattr__(self, "at", from_seconds(second))

    def next_after(self, after: datetime) -> datetime | None:
        """Return the instant if it lies strictly after `after`."""
        return self.at if self.at > after else None

    def last_at_or_before(self, at: datetime) -> datetime | None:
        """Return the instant if it does not lie after `at`."""
        return self.at if self.at <= at else None

    def count(self, after: datetime, until: datetime) -> int:
        """Return 1 if the instant lies in (after, until], else 0."""
        return int(after < self.at <= until)

    def describe(self) -> str:
        """Return the instant in UTC.

        >>> from datetime import UTC
        >>> Once(datetime(2026, 11, 21, 9, tzinfo=UTC)).describe()
        'at 2026-11-21T09:00:00Z'
        """
        return f"at {self.at.isoformat().removesuffix('+00:00')}Z"
