"""One instant.

No time at all: what a self-paced task names, whose turns ask for the next wake each.
"""

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


@dataclass(frozen=True, slots=True)
class Never(Sliced):
    """A timetable without nominal times."""

    def next_after(self, after: datetime) -> datetime | None:  # noqa: ARG002  as all timetables
        """Return None."""
        return None

    def last_at_or_before(self, at: datetime) -> datetime | None:  # noqa: ARG002
        """Return None."""
        return None

    def count(self, after: datetime, until: datetime) -> int:  # noqa: ARG002
        """Return 0."""
        return 0

    def describe(self) -> str:
        """Return what stands for a schedule.

        >>> Never().describe()
        'self-paced'
        """
        return "self-paced"
