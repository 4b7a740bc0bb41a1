"""A schedule as a set of local times: no zone, no instants.

Local times are seconds since 1970 as the wall clock of some zone would count them.
"""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol
from zoneinfo import ZoneInfo

from task_runner.timetable.timetable import EARLIEST_S, LATEST_S, SECONDS_PER_DAY, Sliced, from_seconds, to_seconds
from task_runner.timetable.zones import Stretch, ZoneOffsets

_HOUR = 3600
_MINUTE = 60


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
    """The times of a day: every combination of the named hours, minutes and seconds.

    Attributes:
        hours, minutes, seconds: bit v for the value v; none is empty.
    """

    hours: int
    minutes: int
    seconds: int

    def first(self) -> int:
        """Return the first time, in seconds after midnight."""
        return _lowest(self.hours) * _HOUR + _lowest(self.minutes) * _MINUTE + _lowest(self.seconds)

    def last(self) -> int:
        """Return the last time, in seconds after midnight."""
        return _highest(self.hours) * _HOUR + _highest(self.minutes) * _MINUTE + _highest(self.seconds)

    def first_from(self, time: int) -> int | None:
        """Return the first time not before `time`."""
        hour, rest = divmod(time, _HOUR)
        minute, second = divmod(rest, _MINUTE)
        if self.hours >> hour & 1:
            if self.minutes >> minute & 1 and (seconds := self.seconds >> second):
                return time + _lowest(seconds)
            if minutes := self.minutes >> (minute + 1):
                start = time - rest + (minute + 1 + _lowest(minutes)) * _MINUTE
                return start + _lowest(self.seconds)
        if hours := self.hours >> (hour + 1):
            start = (hour + 1 + _lowest(hours)) * _HOUR
            return start + _lowest(self.minutes) * _MINUTE + _lowest(self.seconds)
        return None

    def last_until(self, time: int) -> int | None:
        """Return the last time not after `time`."""
        hour, rest = divmod(time, _HOUR)
        minute, second = divmod(rest, _MINUTE)
        if self.hours >> hour & 1:
            if self.minutes >> minute & 1 and (seconds := self.seconds & _up_to(second + 1)):
                return time - second + _highest(seconds)
            if minutes := self.minutes & _up_to(minute):
                return time - rest + _highest(minutes) * _MINUTE + _highest(self.seconds)
        if hours := self.hours & _up_to(hour):
            return _highest(hours) * _HOUR + _highest(self.minutes) * _MINUTE + _highest(self.seconds)
        return None

    def count(self) -> int:
        """Return how many times a day has."""
        return self.hours.bit_count() * self.minutes.bit_count() * self.seconds.bit_count()

    def count_before(self, time: int) -> int:
        """Return how many times lie before `time`."""
        hour, rest = divmod(time, _HOUR)
        minute, second = divmod(rest, _MINUTE)
        per_minute = self.seconds.bit_count()
        total = (self.hours & _up_to(hour)).bit_count() * self.minutes.bit_count() * per_minute
        if self.hours >> hour & 1:
            total += (self.minutes & _up_to(minute)).bit_count() * per_minute
            if self.minutes >> minute & 1:
                total += (self.seconds & _up_to(second)).bit_count()
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


def _lowest(mask: int) -> int:
    return (mask & -mask).bit_length() - 1


def _highest(mask: int) -> int:
    return mask.bit_length() - 1


def _up_to(bit: int) -> int:
    return (1 << bit) - 1


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
