"""Conversion of wall-clock times to instants, with one rule for fixed times and another for all others.

A pattern is a set of local times: certain times of certain days, in seconds since 1970 as a wall clock counts them.

A **fixed** time fires at the first instant when the wall clock shows that time or a later one. So if a gap skips
fixed times, they fire once together when the gap ends. A fixed time that occurs twice fires the first time. Times that
are not fixed fire at every instant when the wall clock shows them: a repeated hour fires twice, and a
skipped hour does not fire.
"""

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from typing import Protocol
from zoneinfo import ZoneInfo

from task_runner.timetable.timetable import EARLIEST_S, LATEST_S, SECONDS_PER_DAY, Timetable, from_seconds, to_seconds
from task_runner.timetable.zones import Stretch, ZoneOffsets

_MINUTE = 60
_MINUTES = tuple(range(24 * 60))
# How far to search. The rarest date, a fifth Sunday in February, recurs within 40 years; a zone can skip a time always.
HORIZON_S = 100 * 366 * SECONDS_PER_DAY
# The offset of any wall clock from UTC is at most this.
_FURTHEST_S = 26 * 3600


class DaySet(Protocol):
    """A set of calendar days, numbered from 1 January 1970, which is day 0."""

    def first_from(self, day: int, last: int) -> int | None:
        """Return the first matching day from `day` on, or None. Search at least to `last`; the day may be later."""

    def last_until(self, day: int, first: int) -> int | None:
        """Return the last matching day up to `day`, or None. Search at least to `first`; the day may be earlier."""

    def count(self, low: int, high: int) -> int:
        """Return the number of matching days in [low, high)."""


@dataclass(frozen=True, slots=True)
class DayTimes:
    """The times of a day: each combination of a minute of the day and a second of the minute.

    Attributes:
        minutes: 0 to 1439, ascending, not empty.
        seconds: 0 to 59, ascending, not empty.
    """

    minutes: tuple[int, ...]
    seconds: tuple[int, ...]

    @staticmethod
    @lru_cache(maxsize=256)
    def of(hours: frozenset[int], minutes: frozenset[int], seconds: frozenset[int]) -> "DayTimes":
        """Return the times for all combinations of these hours, minutes and seconds."""
        # The numbers are shared, so a pattern of every minute holds only references.
        of_day = tuple(_MINUTES[60 * hour + minute] for hour in sorted(hours) for minute in sorted(minutes))
        return DayTimes(of_day, tuple(sorted(seconds)))

    def first(self) -> int:
        """Return the first time, in seconds after midnight."""
        return self.minutes[0] * _MINUTE + self.seconds[0]

    def last(self) -> int:
        """Return the last time, in seconds after midnight."""
        return self.minutes[-1] * _MINUTE + self.seconds[-1]

    def first_from(self, time: int) -> int | None:
        """Return the first time that is not before `time`; None if there is none."""
        minute, second = divmod(time, _MINUTE)
        minutes, seconds = self.minutes, self.seconds
        place = bisect_left(minutes, minute)
        if place < len(minutes) and minutes[place] == minute:
            if second <= seconds[-1]:
                return time - second + seconds[bisect_left(seconds, second)]
            place += 1
        return minutes[place] * _MINUTE + seconds[0] if place < len(minutes) else None

    def last_until(self, time: int) -> int | None:
        """Return the last time that is not after `time`; None if there is none."""
        minute, second = divmod(time, _MINUTE)
        minutes, seconds = self.minutes, self.seconds
        place = bisect_right(minutes, minute)
        if place and minutes[place - 1] == minute:
            if second >= seconds[0]:
                return time - second + seconds[bisect_right(seconds, second) - 1]
            place -= 1
        return minutes[place - 1] * _MINUTE + seconds[-1] if place else None

    def count(self) -> int:
        return len(self.minutes) * len(self.seconds)

    def count_before(self, time: int) -> int:
        """Return the number of times before `time`."""
        minute, second = divmod(time, _MINUTE)
        place = bisect_left(self.minutes, minute)
        total = place * len(self.seconds)
        if place < len(self.minutes) and self.minutes[place] == minute:
            total += bisect_left(self.seconds, second)
        return total


@dataclass(frozen=True, kw_only=True, slots=True)
class LocalPattern:
    """The local times of a schedule: each of its times on each of its days.

    Attributes:
        fixed: True if hour and minute are plain lists, without a wildcard or a step.
    """

    days: DaySet
    times: DayTimes
    fixed: bool

    def first_from(self, low: int, end: int) -> int | None:
        """Return the first local time in [low, end); None if there is none."""
        today, time_of_day = divmod(low, SECONDS_PER_DAY)
        last_day = (end - 1) // SECONDS_PER_DAY
        day = self.days.first_from(today, last_day)
        if day == today:
            time = self.times.first_from(time_of_day)
            if time is not None:
                local = today * SECONDS_PER_DAY + time
                return local if local < end else None
            day = self.days.first_from(today + 1, last_day)
        if day is None:
            return None
        local = day * SECONDS_PER_DAY + self.times.first()
        return local if local < end else None

    def last_until(self, high: int, low: int) -> int | None:
        """Return the last local time in [low, high]; None if there is none."""
        today, time_of_day = divmod(high, SECONDS_PER_DAY)
        first_day = low // SECONDS_PER_DAY
        day = self.days.last_until(today, first_day)
        if day == today:
            time = self.times.last_until(time_of_day)
            if time is not None:
                local = today * SECONDS_PER_DAY + time
                return local if local >= low else None
            day = self.days.last_until(today - 1, first_day)
        if day is None:
            return None
        local = day * SECONDS_PER_DAY + self.times.last()
        return local if local >= low else None

    def count(self, low: int, end: int) -> int:
        """Return the number of local times in [low, end)."""
        if end <= low:
            return 0
        first, last = low // SECONDS_PER_DAY, end // SECONDS_PER_DAY
        whole_days = self.days.count(first, last)
        return whole_days * self.times.count() + self._count_before(end) - self._count_before(low)

    def _count_before(self, local: int) -> int:
        day, time = divmod(local, SECONDS_PER_DAY)
        return self.times.count_before(time) if self.days.count(day, day + 1) else 0


@dataclass(frozen=True, kw_only=True, slots=True)
class WallClock(Timetable):
    """The scheduled times when the wall clock of a zone shows the times of a pattern.

    A search ends after a hundred years. So `next_after` returns None if the zone skips every time of the pattern: for
    example, if all of them are steps within the hour that daylight saving time skips each year.

    Attributes:
        begin: the earliest instant that callers ask for, in seconds. If `begin` lies in the second pass of an overlap,
            the fixed times from `begin` to the end of the overlap count, because their first pass was before `begin`.
    """

    zone: ZoneInfo
    pattern: LocalPattern = field(repr=False)
    offsets: ZoneOffsets = field(repr=False, compare=False)
    begin: int = EARLIEST_S

    def next_after(self, after: datetime) -> datetime | None:
        """Return the first scheduled time strictly after `after`; None if there is none in a hundred years."""
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
        """Return the last scheduled time not after `at`; None if there is none in a hundred years."""
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
        """Return the number of scheduled times in (after, until]. The work grows with the number of years."""
        first = max(to_seconds(after) + 1, EARLIEST_S)
        end = min(to_seconds(until) + 1, LATEST_S)
        total = 0
        while first < end:
            stretch = self.offsets.at(first)
            low = self._low(stretch, first)
            total += self._count(stretch, low, min(end, stretch.end) + stretch.offset)
            first = stretch.end
        return total

    def describe(self) -> str:
        return f"by the wall clock of {self.zone.key}"

    def _low(self, stretch: Stretch, second: int) -> int:
        """Return the lowest local time of the part of a stretch that starts at `second`.

        At the start of the stretch, this is the floor of the stretch. After a gap, the floor is lower than the first
        local time shown, and the fixed times between the two fire at the start of the stretch.
        """
        local = second + stretch.offset
        if not self.pattern.fixed:
            return local
        floor = stretch.floor
        if stretch.start <= self.begin < stretch.end:
            floor = min(floor, self.begin + stretch.offset)
        return floor if second == stretch.start else max(local, floor)

    def _count(self, stretch: Stretch, low: int, end: int) -> int:
        shown = stretch.start + stretch.offset
        if low >= shown:
            return self.pattern.count(low, end)
        skipped = self.pattern.count(low, shown + 1)
        return min(skipped, 1) + self.pattern.count(shown + 1, end)


def first_shown(offsets: ZoneOffsets, local: int) -> datetime:
    """Return the first instant when the wall clock shows a local time (in seconds since 1970) or a later time."""
    stretch = offsets.at(max(local - _FURTHEST_S, EARLIEST_S))
    while local >= stretch.end + stretch.offset:
        stretch = offsets.at(stretch.end)
    return from_seconds(max(stretch.start, local - stretch.offset))
