"""Which calendar days a recurrence rule names, worked out a few years at a time.

A rule goes through the days of each of its periods (a year, a month, a week, a day), keeps those that pass all its
filters, and may choose some of them by position. It is done in windows of whole periods, so that a day in fifty years
costs what one today costs, and a rule without any days is known to be one after as many windows as were asked for.

Source: RFC 5545, section 3.3.10, as a table of filters.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import date, timedelta
from enum import StrEnum

_EPOCH_ORDINAL = 719_163
_LAST = date(9990, 1, 1)
_MOST_KEPT = 64
_WEEK = 7


class Frequency(StrEnum):
    """The period of a rule."""

    YEARLY = "YEARLY"
    MONTHLY = "MONTHLY"
    WEEKLY = "WEEKLY"
    DAILY = "DAILY"


# How many periods one window holds.
_PERIODS = {Frequency.YEARLY: 8, Frequency.MONTHLY: 48, Frequency.WEEKLY: 208, Frequency.DAILY: 1024}


@dataclass(frozen=True, kw_only=True, slots=True)
class DayFilter:
    """What a day must satisfy; an empty set asks for nothing. Negative numbers count from the end, -1 is the last.

    Attributes:
        months: 1 to 12.
        month_days, year_days, weeks: of the month, of the year, of the year by weeks that begin on `week_start`.
        weekdays: pairs of weekday, Monday is 0, and which of its kind in the month or year; 0 for any.
        in_year: weekdays are counted in the year and not in the month.
        positions: which days of a period, counted among those that satisfy the rest.
        week_start: the weekday that weeks begin on.
    """

    months: frozenset[int] = frozenset()
    month_days: frozenset[int] = frozenset()
    year_days: frozenset[int] = frozenset()
    weeks: frozenset[int] = frozenset()
    weekdays: frozenset[tuple[int, int]] = frozenset()
    in_year: bool = False
    positions: frozenset[int] = frozenset()
    week_start: int = 0

    def takes(self, day: date) -> bool:
        """Return whether a day satisfies all but the positions."""
        if self.months and day.month not in self.months:
            return False
        if self.month_days and not self.month_days & _both_ends(day.day, _month_length(day)):
            return False
        if self.weekdays and not self._takes_weekday(day):
            return False
        if self.year_days and not self.year_days & _both_ends(_day_of_year(day), _year_length(day.year)):
            return False
        return not self.weeks or bool(self.weeks & self._week_of(day))

    def chosen(self, days: list[int]) -> list[int]:
        """Return the days of one period at the positions asked for."""
        if not self.positions:
            return days
        return [day for place, day in enumerate(days, 1) if self.positions & _both_ends(place, len(days))]

    def _takes_weekday(self, day: date) -> bool:
        weekday = day.weekday()
        if (weekday, 0) in self.weekdays:
            return True
        place, length = (_day_of_year(day), _year_length(day.year)) if self.in_year else (day.day, _month_length(day))
        first, last = (place - 1) // _WEEK + 1, -((length - place) // _WEEK + 1)
        return (weekday, first) in self.weekdays or (weekday, last) in self.weekdays

    def _week_of(self, day: date) -> frozenset[int]:
        """Return the number of a day's week from both ends of the year that holds most of that week."""
        middle = day - timedelta(days=(day.weekday() - self.week_start) % _WEEK) + timedelta(days=3)
        number = (_day_of_year(middle) - 1) // _WEEK + 1
        return frozenset({number, -((_year_length(middle.year) - _day_of_year(middle)) // _WEEK + 1)})


@dataclass(frozen=True, kw_only=True, slots=True)
class RuleDays:
    """The days of a rule, numbered from 1 January 1970; what it keeps is only a memory of what the rule says.

    Attributes:
        frequency: its period.
        interval: every how many periods.
        start: the day in whose period it starts; earlier days are never named.
        filter: which days of a period.
    """

    frequency: Frequency
    interval: int
    start: date
    filter: DayFilter
    _windows: dict[int, tuple[int, ...]] = field(default_factory=dict, compare=False, repr=False)

    def first_from(self, day: int, last: int) -> int | None:
        """Return the first such day from `day` on; it may lie behind `last`, up to which windows are searched."""
        day = max(day, _numbered(self.start))
        while day <= last and day < _numbered(_LAST):
            number = self._window_of(day)
            days = self._days(number)
            place = bisect_left(days, day)
            if place < len(days):
                return days[place]
            day = self._begin(number + 1)
        return None

    def last_until(self, day: int, first: int) -> int | None:
        """Return the last such day up to `day`; it may lie before `first`, down to which windows are searched."""
        first = max(first, _numbered(self.start))
        day = min(day, _numbered(_LAST) - 1)
        while day >= first:
            number = self._window_of(day)
            days = self._days(number)
            place = bisect_right(days, day)
            if place:
                return days[place - 1]
            day = self._begin(number) - 1
        return None

    def count(self, low: int, high: int) -> int:
        """Return how many such days lie in [low, high)."""
        low, high = max(low, _numbered(self.start)), min(high, _numbered(_LAST))
        total = 0
        while low < high:
            number = self._window_of(low)
            days = self._days(number)
            total += bisect_left(days, high) - bisect_left(days, low)
            low = self._begin(number + 1)
        return total

    def _days(self, number: int) -> tuple[int, ...]:
        known = self._windows.get(number)
        if known is None:
            if len(self._windows) >= _MOST_KEPT:
                self._windows.clear()
            periods = _PERIODS[self.frequency]
            first = number * periods
            found = (day for period in range(first, first + periods) for day in self._days_of(period))
            start = _numbered(self.start)
            known = self._windows[number] = tuple(day for day in found if day >= start)
        return known

    def _days_of(self, period: int) -> Iterator[int]:
        begin = self._period(period * self.interval)
        end = begin + 1 if self.frequency is Frequency.DAILY else self._period(period * self.interval + 1)
        takes = self.filter.takes
        days = [day for day in range(begin, end) if takes(date.fromordinal(day + _EPOCH_ORDINAL))]
        yield from self.filter.chosen(days)

    def _window_of(self, day: int) -> int:
        """Return the number of the window that holds a day; the one that holds `start` is 0."""
        at, span = date.fromordinal(day + _EPOCH_ORDINAL), self.interval * _PERIODS[self.frequency]
        if self.frequency is Frequency.YEARLY:
            return (at.year - self.start.year) // span
        if self.frequency is Frequency.MONTHLY:
            return (12 * (at.year - self.start.year) + at.month - self.start.month) // span
        return (day - self._period(0)) // (span * (_WEEK if self.frequency is Frequency.WEEKLY else 1))

    def _begin(self, window: int) -> int:
        """Return the first day of a window."""
        return self._period(window * self.interval * _PERIODS[self.frequency])

    def _period(self, number: int) -> int:
        """Return the first day of the period so many after that of `start`."""
        if self.frequency is Frequency.YEARLY:
            return _numbered(_month(self.start.year + number, 1))
        if self.frequency is Frequency.MONTHLY:
            years, month = divmod(self.start.month - 1 + number, 12)
            return _numbered(_month(self.start.year + years, month + 1))
        if self.frequency is Frequency.WEEKLY:
            into = (self.start.weekday() - self.filter.week_start) % _WEEK
            return min(_numbered(self.start) - into + _WEEK * number, _numbered(_LAST))
        return min(_numbered(self.start) + number, _numbered(_LAST))


def _numbered(day: date) -> int:
    return day.toordinal() - _EPOCH_ORDINAL


def _month(year: int, month: int) -> date:
    return date(year, month, 1) if year < _LAST.year else _LAST


def _both_ends(place: int, length: int) -> frozenset[int]:
    return frozenset({place, place - length - 1})


def _day_of_year(day: date) -> int:
    return day.toordinal() - date(day.year, 1, 1).toordinal() + 1


def _year_length(year: int) -> int:
    return date(year, 12, 31).toordinal() - date(year, 1, 1).toordinal() + 1


def _month_length(day: date) -> int:
    following = date(day.year + day.month // 12, day.month % 12 + 1, 1)
    return following.toordinal() - date(day.year, day.month, 1).toordinal()
