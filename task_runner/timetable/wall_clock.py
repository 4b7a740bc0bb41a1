"""Times of a wall clock turned into instants, by one rule for fixed times and one for the others.

A pattern is a set of local times: named times on named days, in seconds since 1970 as some wall clock counts them.

A **fixed** time fires at the first instant at which the wall clock shows it or a later time. So one that a gap skips
fires when the gap ends, all that one gap skips share that one scheduled time, and one that is shown twice fires the
first time. Otherwise every instant fires at which the wall clock shows a named time: a repeated hour fires twice, a
skipped one not at all.
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
# A fifth Sunday in February returns after at most 40 years; only a time that a zone always skips takes longer.
HORIZON_S = 100 * 366 * SECONDS_PER_DAY
# No wall clock is further from UTC than this.
_FURTHEST_S = 26 * 3600


class DaySet(Protocol):
    """Some calendar days, numbered from 1 January 1970, which is day 0."""

    def first_from(self, day: int, last: int) -> int | None:
        """Return the first such day from `day` on; it may lie behind `last`, up to which is searched."""

    def last_until(self, day: int, first: int) -> int | None:
        """Return the last such day up to `day`; it may lie before `first`, down to which is searched."""

    def count(self, low: int, high: int) -> int:
        """Return how many such days lie in [low, high)."""


@dataclass(frozen=True, slots=True)
class DayTimes:
    """The times of a day: each of some minutes of the day with each of some seconds of the minute.

    Attributes:
        minutes: 0 to 1439, ascending; there is at least one.
        seconds: 0 to 59, ascending; there is at least one.
    """

    minutes: tuple[int, ...]
    seconds: tuple[int, ...]

    @staticmethod
    @lru_cache(maxsize=256)
    def of(hours: frozenset[int], minutes: frozenset[int], seconds: frozenset[int]) -> "DayTimes":
        """Return every combination of these hours, minutes and seconds."""
        # The numbers are shared: a pattern of every minute holds references only.
        of_day = tuple(_MINUTES[60 * hour + minute] for hour in sorted(hours) for minute in sorted(minutes))
        return DayTimes(of_day, tuple(sorted(seconds)))

    def first(self) -> int:
        """Return the first time, in seconds after midnight."""
        return self.minutes[0] * _MINUTE + self.seconds[0]

    def last(self) -> int:
        """Return the last time, in seconds after midnight."""
        return self.minutes[-1] * _MINUTE + self.seconds[-1]

    def first_from(self, time: int) -> int | None:
        """Return the first time not before `time`."""
        minute, second = divmod(time, _MINUTE)
        minutes, seconds = self.minutes, self.seconds
        place = bisect_left(minutes, minute)
        if place < len(minutes) and minutes[place] == minute:
            if second <= seconds[-1]:
                return time - second + seconds[bisect_left(seconds, second)]
            place += 1
        return minutes[place] * _MINUTE + seconds[0] if place < len(minutes) else None

    def last_until(self, time: int) -> int | None:
        """Return the last time not after `time`."""
        minute, second = divmod(time, _MINUTE)
        minutes, seconds = self.minutes, self.seconds
        place = bisect_right(minutes, minute)
        if place and minutes[place - 1] == minute:
            if second >= seconds[0]:
                return time - second + seconds[bisect_right(seconds, second) - 1]
            place -= 1
        return minutes[place - 1] * _MINUTE + seconds[-1] if place else None

    def count(self) -> int:
        """Return how many times a day has."""
        return len(self.minutes) * len(self.seconds)

    def count_before(self, time: int) -> int:
        """Return how many times lie before `time`."""
        minute, second = divmod(time, _MINUTE)
        place = bisect_left(self.minutes, minute)
        total = place * len(self.seconds)
        if place < len(self.minutes) and self.minutes[place] == minute:
            total += bisect_left(self.seconds, second)
        return total


@dataclass(frozen=True, kw_only=True, slots=True)
class LocalPattern:
    """The local times of a schedule: named times on named days.

    Attributes:
        days: which days.
        times: which times on each of them.
        fixed: hour and minute are plain lists, without wildcard and step.
    """

    days: DaySet
    times: DayTimes
    fixed: bool

    def first_from(self, low: int, end: int) -> int | None:
        """Return the first local time in [low, end), None if there is none."""
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
        """Return the last local time in [low, high], None if there is none."""
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
        """Return how many local times lie in [low, end)."""
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
    """The scheduled times at which the wall clock of a zone shows the times of a pattern.

    Searches end after a hundred years: `next_after` is None for a pattern whose every time the zone skips, such as a
    step within the hour that daylight saving takes away each year.

    Attributes:
        zone: whose wall clock.
        pattern: the local times.
        begin: an instant, in seconds, that no caller asks before. If the wall clock shows it for the second time, the
            fixed times from there to the end of the overlap count, as the first pass lies before the beginning.
    """

    zone: ZoneInfo
    pattern: LocalPattern = field(repr=False)
    offsets: ZoneOffsets = field(repr=False, compare=False)
    begin: int = EARLIEST_S

    def next_after(self, after: datetime) -> datetime | None:
        """Return the first scheduled time strictly after `after`, None if there is none in a hundred years."""
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
        """Return the last scheduled time not after `at`, None if there is none in a hundred years."""
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
        """Return how many scheduled times lie in (after, until]; the work grows with the years between."""
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
        """Return the first local time that belongs to the stretch from `second` on.

        At its start that is its floor, which lies in a gap below the first local time shown: the fixed times between
        fire at the start.
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
    """Return the first instant at which the wall clock shows a local time, in seconds since 1970, or a later one."""
    stretch = offsets.at(max(local - _FURTHEST_S, EARLIEST_S))
    while local >= stretch.end + stretch.offset:
        stretch = offsets.at(stretch.end)
    return from_seconds(max(stretch.start, local - stretch.offset))
