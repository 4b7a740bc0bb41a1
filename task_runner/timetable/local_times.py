"""A schedule as a set of local times: no zone, no instants.

Local times are seconds since 1970 as the wall clock of some zone would count them.
"""

from dataclasses import dataclass
from typing import Protocol

from task_runner.timetable.instants import SECONDS_PER_DAY

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
