"""Which calendar days a cron expression names: a rule, and one bit a day of the year.

A year has one of fourteen shapes: it is leap or not and begins on one of seven weekdays. The days that a rule names
depend on the shape alone, so fourteen masks of 366 bits answer for all years: the next day is the lowest set bit,
the number of days a count of set bits.
"""

from dataclasses import dataclass, field
from datetime import date
from functools import lru_cache

from task_runner.timetable.cron.fields import LAST

_EPOCH_ORDINAL = 719_163
_LENGTHS = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_FEBRUARY = 2
_WEEKDAYS = 7
_ALL_DAYS = (1 << 31) - 1
# Bit d of a weekly mask is set where day d falls on the weekday of day 0.
_WEEKLY = sum(1 << day for day in range(0, 35, _WEEKDAYS))


@dataclass(frozen=True, kw_only=True, slots=True)
class DayRule:
    """The days named by the fields day of month, month and weekday.

    A missing local day (Pacific/Apia had no 30 December 2011) still counts as a day of its month: the last Friday of
    that month was the 30th, not the 23rd, and the second Monday of a month is never moved by a day that is missing.

    Attributes:
        days: bit d for day of month d.
        last_day: the last day of the month too.
        months: bit m for month m.
        weekdays: bit w for weekday w; Sunday is 0.
        nth: pairs of weekday and week of the month, 1 to 5, or LAST.
        either: a day must satisfy the day of month OR the weekday, as in classic cron when both are given;
            otherwise both, of which one is then `*`.
    """

    days: int
    last_day: bool
    months: int
    weekdays: int
    nth: frozenset[tuple[int, int]]
    either: bool

    def mask(self, *, leap: bool, begins_on: int) -> int:
        """Return the days of such a year, bit 0 for 1 January; `begins_on` is the weekday of that day."""
        mask, passed = 0, 0
        for month, usual in enumerate(_LENGTHS, start=1):
            length = usual + (leap and month == _FEBRUARY)
            if self.months >> month & 1:
                mask |= self._month(length, (begins_on + passed) % _WEEKDAYS) << passed
            passed += length
        return mask

    def _month(self, length: int, begins_on: int) -> int:
        by_day = self.days >> 1
        if self.last_day:
            by_day |= 1 << (length - 1)
        by_weekday = 0
        for weekday in range(_WEEKDAYS):
            if self.weekdays >> weekday & 1:
                by_weekday |= _WEEKLY << ((weekday - begins_on) % _WEEKDAYS)
        for weekday, week in self.nth:
            first = (weekday - begins_on) % _WEEKDAYS
            weeks = (length - 1 - first) // _WEEKDAYS if week == LAST else week - 1
            by_weekday |= 1 << (first + weeks * _WEEKDAYS)
        both = by_day | by_weekday if self.either else by_day & by_weekday
        return both & (_ALL_DAYS >> (31 - length))


@dataclass(frozen=True, slots=True)
class _Year:
    start: int
    end: int
    mask: int


@dataclass(slots=True)
class Days:
    """Answers questions about a rule; days are numbered from 1 January 1970, which is day 0.

    What it keeps is only a memory of what the rule says: it may be shared freely.
    """

    rule: DayRule
    _shapes: dict[tuple[bool, int], int] = field(default_factory=dict)
    _recent: _Year = field(default=_Year(0, 0, 0))

    def ever(self) -> bool:
        """Return whether there is such a day in any year."""
        shapes = ((leap, weekday) for leap in (True, False) for weekday in range(_WEEKDAYS))
        return any(self._shape(leap=leap, begins_on=weekday) for leap, weekday in shapes)

    def first_from(self, day: int, last: int) -> int | None:
        """Return the first such day from `day` on; it may lie behind `last`, up to which years are searched."""
        while day <= last:
            year = self._recent
            if not year.start <= day < year.end:
                year = self._year(day)
            rest = year.mask >> (day - year.start)
            if rest:
                return day + (rest & -rest).bit_length() - 1
            day = year.end
        return None

    def last_until(self, day: int, first: int) -> int | None:
        """Return the last such day up to `day`; it may lie before `first`, down to which years are searched."""
        while day >= first:
            year = self._year(day)
            rest = year.mask & ((2 << (day - year.start)) - 1)
            if rest:
                return year.start + rest.bit_length() - 1
            day = year.start - 1
        return None

    def count(self, low: int, high: int) -> int:
        """Return how many such days lie in [low, high)."""
        total = 0
        while low < high:
            year = self._year(low)
            rest = year.mask >> (low - year.start)
            if high < year.end:
                rest &= (1 << (high - low)) - 1
            total += rest.bit_count()
            low = year.end
        return total

    def _year(self, day: int) -> _Year:
        if self._recent.start <= day < self._recent.end:
            return self._recent
        number = date.fromordinal(day + _EPOCH_ORDINAL).year
        start = date(number, 1, 1).toordinal()
        length = date(number, 12, 31).toordinal() - start + 1
        mask = self._shape(leap=length == 366, begins_on=start % _WEEKDAYS)
        start -= _EPOCH_ORDINAL
        self._recent = _Year(start, start + length, mask)
        return self._recent

    def _shape(self, *, leap: bool, begins_on: int) -> int:
        key = leap, begins_on
        if key not in self._shapes:
            self._shapes[key] = self.rule.mask(leap=leap, begins_on=begins_on)
        return self._shapes[key]


@lru_cache(maxsize=4096)
def days_of(rule: DayRule) -> Days:
    """Return the days of a rule; tasks with the same rule share them."""
    return Days(rule)
