"""Local times turned into instants, by one rule for fixed times and one for the others.

A **fixed** time fires at the first instant at which the wall clock shows it or a later time. So one that a gap skips
fires when the gap ends, all that one gap skips share that one nominal, and one that is shown twice fires the first
time. Otherwise every instant fires at which the wall clock shows a named time: a repeated hour fires twice, a skipped
one not at all.
"""

from dataclasses import dataclass, field
from datetime import datetime
from zoneinfo import ZoneInfo

from task_runner.timetable.instants import EARLIEST_S, LATEST_S, SECONDS_PER_DAY, from_seconds, to_seconds
from task_runner.timetable.local_times import LocalPattern
from task_runner.timetable.offsets import Stretch, ZoneOffsets
from task_runner.timetable.protocol import Sliced

# A fifth Sunday in February returns after at most 40 years; only a time that a zone always skips takes longer.
HORIZON_S = 100 * 366 * SECONDS_PER_DAY
# No wall clock is further from UTC than this.
_FURTHEST_S = 26 * 3600


@dataclass(frozen=True, kw_only=True, slots=True)
class WallClock(Sliced):
    """The nominal times at which the wall clock of a zone shows the times of a pattern.

    Searches end after a hundred years: `next_after` is None for a pattern whose every time the zone skips, such as a
    step within the hour that daylight saving takes away each year.

    Attributes:
        zone: whose wall clock.
        pattern: the local times.
    """

    zone: ZoneInfo
    pattern: LocalPattern = field(repr=False)
    offsets: ZoneOffsets = field(repr=False, compare=False)

    def next_after(self, after: datetime) -> datetime | None:
        """Return the first nominal time strictly after `after`, None if there is none in a hundred years."""
        second = max(to_seconds(after) + 1, EARLIEST_S)
        horizon = min(second + HORIZON_S, LATEST_S)
        while second < horizon:
            stretch = self.offsets.at(second)
            local = self.pattern.first_from(self._low(stretch, second), stretch.end + stretch.offset)
            if local is not None:
                return from_seconds(max(stretch.start, local - stretch.offset))
            second = stretch.end
        return None

    def last_at_or_before(self, at: datetime) -> datetime | None:
        """Return the last nominal time not after `at`, None if there is none in a hundred years."""
        second = min(to_seconds(at), LATEST_S - 1)
        horizon = max(second - HORIZON_S, EARLIEST_S)
        while second >= horizon:
            stretch = self.offsets.at(second)
            local = self.pattern.last_until(second + stretch.offset, self._low(stretch, stretch.start))
            if local is not None:
                return from_seconds(max(stretch.start, local - stretch.offset))
            second = stretch.start - 1
        return None

    def count(self, after: datetime, until: datetime) -> int:
        """Return how many nominal times lie in (after, until]; the work grows with the years between."""
        first = max(to_seconds(after) + 1, EARLIEST_S)
        end = min(to_seconds(until) + 1, LATEST_S)
        total = 0
        while first < end:
            stretch = self.offsets.at(first)
            low = self._low(stretch, first)
            total += self._count(stretch, low, min(end, stretch.end) + stretch.offset)
            first = stretch.end
        return total

    def _low(self, stretch: Stretch, second: int) -> int:
        """Return the first local time that belongs to the stretch from `second` on.

        At its start that is its floor, which lies in a gap below the first local time shown: the fixed times between
        fire at the start.
        """
        local = second + stretch.offset
        if not self.pattern.fixed:
            return local
        return stretch.floor if second == stretch.start else max(local, stretch.floor)

    def _count(self, stretch: Stretch, low: int, end: int) -> int:
        shown = stretch.start + stretch.offset
        if low >= shown:
            return self.pattern.count(low, end)
        skipped = self.pattern.count(low, shown + 1)
        return min(skipped, 1) + self.pattern.count(shown + 1, end)


def first_shown(offsets: ZoneOffsets, local: int) -> datetime:
    """Return the first instant at which the wall clock shows a local time, in seconds since 1970, or a later one."""
    stretch = offsets.at(max(local - _FURTHEST_S, EARLIEST_S))
    while local >= stretch.end + stretch.offset:
        stretch = offsets.at(stretch.end)
    return from_seconds(max(stretch.start, local - stretch.offset))
