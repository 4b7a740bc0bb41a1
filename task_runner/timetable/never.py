"""No time at all: what a self-paced task names, whose turns ask for the next wake each."""

from dataclasses import dataclass
from datetime import datetime

from task_runner.timetable.protocol import Sliced


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
