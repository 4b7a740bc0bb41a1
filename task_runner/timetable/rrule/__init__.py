"""Recurrence rules of RFC 5545, as fixed wall-clock times of a zone.

A rule consists of days and times of day, like a cron expression. So it shares cron's search and its rule for clock
changes: a time that a gap skips fires when the gap ends, and a time that occurs twice fires the first time. Rules with
`HOURLY` or `MINUTELY` name wall-clock times too. For elapsed time across a clock change, users choose `every`.

The work for a rule is bounded, because agents write rules too. The days of a year that pass the filter depend on its
first weekday and on its length and those of its neighbours. There are 28 such shapes of a year, each filtered once. The
times of a rule with a COUNT are counted up to the requested time, and the next request continues from there.

Source: RFC 5545, sections 3.3.10 and 3.8.5.3.
"""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from enum import StrEnum
from typing import NoReturn
from zoneinfo import ZoneInfo

from task_runner.timetable.timetable import EPOCH, LEAST, SECONDS_PER_DAY, Bounded, from_seconds, to_seconds
from task_runner.timetable.wall_clock import DayTimes, LocalPattern, WallClock, first_shown
from task_runner.timetable.zones import ZoneOffsets, offsets_of
from turnkeeper.errors import InvalidInput

_EPOCH_ORDINAL = 719_163
_LAST = date(9990, 1, 1)
_MOST_KEPT = 64
_FEW_DAYS = 7  # up to this interval, days are filtered one by one; above it, periods are computed
# A rule with a COUNT ends this long after its start, even if fewer times than COUNT have occurred.
COUNTED_FOR = timedelta(days=73_200)
_WEEK = 7
LONGEST = 1024
MOST_COUNTED = 10_000
_LARGEST_INTERVAL = 1000
_ONE_SECOND = timedelta(seconds=1)
_PER_DAY = {"HOURLY": 24, "MINUTELY": 1440}
_WEEKDAYS = {"MO": 0, "TU": 1, "WE": 2, "TH": 3, "FR": 4, "SA": 5, "SU": 6}
_WEEKDAY = re.compile(r"([+-]?[0-9]{1,2})?(MO|TU|WE|TH|FR|SA|SU)", re.ASCII)
_START = re.compile(
    r"DTSTART(?:;VALUE=DATE(?:-TIME)?|;TZID=(?P<zone>[^:;]+))*:(?P<day>[0-9]{8})(?:T(?P<time>[0-9]{6})(?P<utc>Z?))?",
    re.ASCII | re.IGNORECASE,
)
# By part: the smallest value, the largest value, and whether negative values count from the end.
_NUMBERS: Mapping[str, tuple[int, int, bool]] = {
    "BYMONTH": (1, 12, False),
    "BYMONTHDAY": (1, 31, True),
    "BYYEARDAY": (1, 366, True),
    "BYWEEKNO": (1, 53, True),
    "BYSETPOS": (1, 366, True),
    "BYHOUR": (0, 23, False),
    "BYMINUTE": (0, 59, False),
    "BYSECOND": (0, 59, False),
}
_OF_DAY = ("BYHOUR", "BYMINUTE", "BYSECOND")
# The frequencies that the RFC allows a part with.
_ONLY_WITH = {
    "BYWEEKNO": {"YEARLY"},
    "BYYEARDAY": {"YEARLY", "HOURLY", "MINUTELY"},
    "BYMONTHDAY": {"YEARLY", "MONTHLY", "DAILY", "HOURLY", "MINUTELY"},
}
_KEYS = {"FREQ", "INTERVAL", "COUNT", "UNTIL", "WKST", "BYDAY", *_NUMBERS}


class Frequency(StrEnum):
    """The frequency of a rule."""

    YEARLY = "YEARLY"
    MONTHLY = "MONTHLY"
    WEEKLY = "WEEKLY"
    DAILY = "DAILY"


# The number of periods in a window, which is the unit of the cache.
_PERIODS = {Frequency.YEARLY: 8, Frequency.MONTHLY: 48, Frequency.WEEKLY: 208, Frequency.DAILY: 1024}


@dataclass(frozen=True, kw_only=True, slots=True)
class DayFilter:
    """The conditions on a day. An empty set restricts nothing. Negative numbers count from the end; -1 is the last.

    Attributes:
        months: 1 to 12.
        month_days, year_days, weeks: days of the month, days of the year, and weeks, which begin on `week_start`.
        weekdays: pairs of weekday (Monday is 0) and its occurrence in the month or year; 0 for every occurrence.
        in_year: True if occurrences of weekdays are counted in the year, False if in the month.
        positions: the positions to choose among the days of a period that satisfy the other conditions.
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
        """Return whether a day satisfies all conditions except the positions."""
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
        """Return the days of one period at the chosen positions."""
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
        """Return the number of a day's week, from both ends of the year that contains most of the week."""
        middle = day - timedelta(days=(day.weekday() - self.week_start) % _WEEK) + timedelta(days=3)
        number = (_day_of_year(middle) - 1) // _WEEK + 1
        return frozenset({number, -((_year_length(middle.year) - _day_of_year(middle)) // _WEEK + 1)})


@dataclass(frozen=True, kw_only=True, slots=True)
class RuleDays:
    """The days of a rule, numbered from 1 January 1970. The private fields are only a cache.

    Attributes:
        interval: the distance between matching periods, in periods.
        start: the day when the rule starts; earlier days never match.
    """

    frequency: Frequency
    interval: int
    start: date
    filter: DayFilter
    _windows: dict[int, tuple[int, ...]] = field(default_factory=dict, compare=False, repr=False)
    _shapes: dict[tuple[int, ...], tuple[int, ...]] = field(default_factory=dict, compare=False, repr=False)

    def first_from(self, day: int, last: int) -> int | None:
        """Return the first matching day from `day` on, or None. Search to the end of the window of `last`."""
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
        """Return the last matching day up to `day`, or None. Search to the start of the window of `first`."""
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
        """Return the number of matching days in [low, high)."""
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
            start = _numbered(self.start)
            known = self._windows[number] = tuple(day for day in self._days_of(number) if day >= start)
        return known

    def _days_of(self, window: int) -> Iterator[int]:
        daily, chosen = self.frequency is Frequency.DAILY, self.filter.chosen
        if daily and not chosen([0]):
            return
        if daily and self.interval <= _FEW_DAYS:
            start = self._period(0)
            candidates = self._between(self._begin(window), self._begin(window + 1))
            yield from (day for day in candidates if (day - start) % self.interval == 0)
            return
        periods = _PERIODS[self.frequency]
        for period in range(window * periods, (window + 1) * periods):
            begin = self._period(period * self.interval)
            yield from chosen(self._between(begin, begin + 1 if daily else self._period(period * self.interval + 1)))

    def _between(self, low: int, high: int) -> list[int]:
        found: list[int] = []
        while low < high:
            year = date.fromordinal(low + _EPOCH_ORDINAL).year
            first = _numbered(date(year, 1, 1))
            days, end = self._of_year(year), min(high, first + _year_length(year))
            found += [first + day for day in days[bisect_left(days, low - first) : bisect_left(days, end - first)]]
            low = end
        return found

    def _of_year(self, year: int) -> tuple[int, ...]:
        """Return the days of a year that pass the filter, from 0. Week numbers depend on the adjacent years too."""
        first = date(year, 1, 1)
        shape = (first.weekday(), *map(_year_length, (year - 1, year, year + 1)))
        known = self._shapes.get(shape)
        if known is None:
            every = range(_year_length(year))
            known = tuple(day for day in every if self.filter.takes(date.fromordinal(first.toordinal() + day)))
            self._shapes[shape] = known
        return known

    def _window_of(self, day: int) -> int:
        """Return the number of the window that contains a day. Window 0 contains `start`."""
        at, span = date.fromordinal(day + _EPOCH_ORDINAL), self.interval * _PERIODS[self.frequency]
        if self.frequency is Frequency.YEARLY:
            return (at.year - self.start.year) // span
        if self.frequency is Frequency.MONTHLY:
            return (12 * (at.year - self.start.year) + at.month - self.start.month) // span
        return (day - self._period(0)) // (span * (_WEEK if self.frequency is Frequency.WEEKLY else 1))

    def _begin(self, window: int) -> int:
        return self._period(window * self.interval * _PERIODS[self.frequency])

    def _period(self, number: int) -> int:
        """Return the first day of the period that is `number` periods after the period of `start`."""
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


@dataclass(frozen=True, slots=True)
class RruleTimetable(Bounded):
    """The scheduled times of a rule from its start; made by :func:`parse_rrule`.

    Attributes:
        text: the rule in canonical form.
        has_start: True if the rule itself contains its start.
        most: the maximum number of scheduled times; None for no limit.
    """

    text: str = field(kw_only=True)
    has_start: bool = field(kw_only=True)
    most: int | None = field(kw_only=True, default=None)
    # A cache: the latest instant up to which times were counted, with their number; and the last time, once known.
    _counted: list[tuple[datetime, int]] = field(kw_only=True, default_factory=list, compare=False, repr=False)
    _last: list[datetime] = field(kw_only=True, default_factory=list, compare=False, repr=False)

    def next_after(self, after: datetime) -> datetime | None:
        found = Bounded.next_after(self, after)
        return None if found is None or self._is_over(found) else found

    def last_at_or_before(self, at: datetime) -> datetime | None:
        return Bounded.last_at_or_before(self, self._end() if self._is_over(at) else at)

    def count(self, after: datetime, until: datetime) -> int:
        if self._is_over(until):
            until = self._end()
        return Bounded.count(self, after, until)

    def describe(self) -> str:
        return self.text

    def _is_over(self, at: datetime) -> bool:
        """Return whether the rule has reached its maximum number of times before an instant."""
        if self.most is None or (self._last and at <= self._last[0]):
            return False
        return bool(self._last) or self._number(at) > self.most

    def _number(self, at: datetime) -> int:
        """Return the number of times up to an instant, ignoring the limit. Continues from the last counted instant."""
        assert self.start_at is not None
        before, number = next(reversed(self._counted), (self.start_at - LEAST, 0))
        if at < before:
            return Bounded.count(self, self.start_at - LEAST, at)
        number += Bounded.count(self, before, at)
        self._counted[:] = [(at, number)]
        return number

    def _end(self) -> datetime:
        """Return the last scheduled time of a rule that is over, by bisection."""
        if not self._last:
            assert self.start_at is not None
            assert self.most is not None
            low, high, left = to_seconds(self.start_at) - 1, to_seconds(self._counted[0][0]), self.most
            while high - low > 1:
                middle = (low + high) // 2
                number = Bounded.count(self, from_seconds(low), from_seconds(middle))
                low, high, left = (low, middle, left) if number >= left else (middle, high, left - number)
            self._last[:] = [from_seconds(high)]
        return self._last[0]


@dataclass(frozen=True, kw_only=True)
class _Rule:
    """The parts of a rule, each validated separately.

    Attributes:
        numbers: the values of each `BY…` part except BYDAY.
        weekdays: the values of BYDAY.
    """

    frequency: str
    interval: int
    numbers: Mapping[str, frozenset[int]]
    weekdays: frozenset[tuple[int, int]]
    week_start: int
    count: int | None
    until: str | None

    @property
    def period(self) -> Frequency:
        return Frequency.DAILY if self.frequency in _PER_DAY else Frequency(self.frequency)


def parse_rrule(text: str, zone: ZoneInfo, anchor: datetime) -> RruleTimetable:
    """Make the timetable of `[DTSTART:… ][RRULE:]FREQ=…`; a rule without a DTSTART starts at `anchor`.

    >>> table = parse_rrule("FREQ=MONTHLY;BYDAY=-1FR;BYHOUR=9", zone=ZoneInfo("UTC"), anchor=EPOCH)
    >>> [at.isoformat() for at in table.upcoming(datetime(2026, 11, 1, tzinfo=UTC), 2)]
    ['2026-11-27T09:00:00+00:00', '2026-12-25T09:00:00+00:00']

    Raises:
        InvalidInput: the text is not a rule, the rule is finer than a minute, or it never fires.
    """
    if len(text) > LONGEST:
        _refuse(f"it is {len(text)} characters long, more than {LONGEST}")
    start_text, rule_text = _split(text)
    rule, offsets = _parsed(rule_text), offsets_of(zone)
    begin = _start(start_text, zone) if start_text else anchor.replace(microsecond=0)
    start = begin.astimezone(zone).replace(tzinfo=None) if begin.tzinfo else begin
    shown_at = first_shown(offsets, _seconds(start))
    start_at = begin.astimezone(UTC) if begin.tzinfo else shown_at
    pattern = LocalPattern(days=_days(rule, start.date()), times=_times(rule, start), fixed=True)
    table = WallClock(zone=zone, pattern=pattern, offsets=offsets, begin=to_seconds(start_at))
    if table.next_after(start_at - _ONE_SECOND) is None:
        _refuse("it never fires within a hundred years")
    end_at = _until(rule.until, zone, offsets) if rule.until else None
    if rule.count is not None:
        end_at = start_at + COUNTED_FOR
    # If the wall clock shows a time twice, only an instant can name the second occurrence.
    stamp = f"{start:%Y%m%dT%H%M%S}" if start_at == shown_at else f"{start_at:%Y%m%dT%H%M%SZ}"
    prefix = f"DTSTART:{stamp} RRULE:" if start_text else ""
    return RruleTimetable(table, start_at, end_at, text=prefix + rule_text, has_start=bool(start_text), most=rule.count)


def _split(text: str) -> tuple[str, str]:
    # The zone's name is the only case-sensitive part of a rule.
    words = text.split() if text.isascii() else []
    parts = [word if word.upper().startswith("DTSTART") else word.upper() for word in words]
    starts = [part for part in parts if part.upper().startswith("DTSTART")]
    rules = [part.removeprefix("RRULE:") for part in parts if part.startswith(("RRULE:", "FREQ=")) or "FREQ=" in part]
    if len(starts) + len(rules) != len(parts) or len(rules) != 1 or len(starts) > 1:
        _refuse(
            "it is not one rule", "write FREQ=…;…, with a DTSTART:… before it if need be; for other dates --exclude"
        )
    return "".join(starts), rules[0].rstrip(";")


def _start(text: str, zone: ZoneInfo) -> datetime:
    """Return the start of a rule: an instant if the text ends in Z, else a wall-clock time without a zone."""
    found = _START.fullmatch(text)
    if found is None:
        _refuse(f"{text[:60]!r} cannot be read", "write DTSTART:20260302T090000, in the task's zone")
    named, utc = found["zone"], found["utc"]
    if named and (utc or named.strip('"') != zone.key):
        _refuse(f"DTSTART is in {named[:60]}, the task in {zone.key}", "give the task that zone")
    stamp = f"{found['day']}T{found['time'] or '000000'}"
    try:
        at = datetime.strptime(stamp, "%Y%m%dT%H%M%S")  # noqa: DTZ007  a time in UTC gets its zone below
    except ValueError:
        _refuse(f"{stamp} is not a time")
    if not 1970 <= at.year <= 2200:
        _refuse(f"{stamp} is not a time from 1970 to 2200")
    return at.replace(tzinfo=UTC) if utc else at


def _parsed(text: str) -> _Rule:
    pairs = [part.partition("=") for part in text.split(";")]
    parts = {key: value for key, _, value in pairs}
    if len(parts) != len(pairs):
        _refuse("a part is given twice")
    if unknown := next((key for key in parts if key not in _KEYS), None):
        _refuse(f"{unknown[:40]!r} is not a part of a rule", f"the parts are {', '.join(sorted(_KEYS))}")
    frequency = parts.get("FREQ", "")
    if frequency == "SECONDLY":
        _refuse("it is finer than a minute", "use --every")
    if frequency not in {*Frequency, *_PER_DAY}:
        _refuse(f"FREQ={frequency[:40]} is not known", f"one of {', '.join((*Frequency, *_PER_DAY))}")
    if "COUNT" in parts and "UNTIL" in parts:
        _refuse("COUNT and UNTIL exclude each other")
    numbers = _numbers(parts, frequency)
    rule = _Rule(
        frequency=frequency,
        interval=_number("INTERVAL", parts.get("INTERVAL", "1"), 1, _LARGEST_INTERVAL),
        numbers=numbers,
        weekdays=_weekdays(parts, frequency),
        week_start=_week_start(parts.get("WKST", "MO")),
        count=_number("COUNT", parts["COUNT"], 1, MOST_COUNTED) if "COUNT" in parts else None,
        until=parts.get("UNTIL"),
    )
    _check_together(rule)
    return rule


def _numbers(parts: Mapping[str, str], frequency: str) -> dict[str, frozenset[int]]:
    found: dict[str, frozenset[int]] = {}
    for key, (low, high, signed) in _NUMBERS.items():
        if key not in parts:
            continue
        if frequency not in _ONLY_WITH.get(key, {frequency}):
            _refuse(f"{key} has no meaning with FREQ={frequency}")
        found[key] = frozenset(_number(key, item, low, high, signed=signed) for item in parts[key].split(","))
    return found


def _weekdays(parts: Mapping[str, str], frequency: str) -> frozenset[tuple[int, int]]:
    if "BYDAY" not in parts:
        return frozenset()
    counted = frequency == Frequency.MONTHLY or (frequency == Frequency.YEARLY and "BYWEEKNO" not in parts)
    return frozenset(_weekday(item, counted=counted) for item in parts["BYDAY"].split(","))


def _check_together(rule: _Rule) -> None:
    if len(rule.numbers.get("BYSECOND", ())) > 1:
        _refuse("it is finer than a minute", "use --every")
    if "BYSETPOS" not in rule.numbers:
        return
    if rule.frequency in _PER_DAY or any(len(rule.numbers.get(key, ())) > 1 for key in _OF_DAY):
        _refuse("BYSETPOS needs a single time of day", "use a cron expression, or several tasks")
    if not rule.weekdays and not rule.numbers.keys() - {*_OF_DAY, "BYSETPOS"}:
        _refuse("BYSETPOS needs another BY… part to choose from")


def _days(rule: _Rule, start: date) -> RuleDays:
    def numbers(key: str) -> frozenset[int]:
        return rule.numbers.get(key, frozenset())

    months, month_days, weekdays = numbers("BYMONTH"), numbers("BYMONTHDAY"), rule.weekdays
    # The start supplies each part that the rule omits.
    if not (month_days or weekdays or numbers("BYYEARDAY") or numbers("BYWEEKNO")):
        if rule.period is Frequency.YEARLY:
            months = months or frozenset({start.month})
        if rule.period in {Frequency.YEARLY, Frequency.MONTHLY}:
            month_days = frozenset({start.day})
        elif rule.period is Frequency.WEEKLY:
            weekdays = frozenset({(start.weekday(), 0)})
    chosen = DayFilter(
        months=months,
        month_days=month_days,
        year_days=numbers("BYYEARDAY"),
        weeks=numbers("BYWEEKNO"),
        weekdays=weekdays,
        in_year=rule.period is Frequency.YEARLY and not months,
        positions=numbers("BYSETPOS"),
        week_start=rule.week_start,
    )
    interval = 1 if rule.frequency in _PER_DAY else rule.interval
    return RuleDays(frequency=rule.period, interval=interval, start=start, filter=chosen)


def _times(rule: _Rule, start: datetime) -> DayTimes:
    hours = set(rule.numbers.get("BYHOUR", range(24) if rule.frequency in _PER_DAY else (start.hour,)))
    minutes = set(rule.numbers.get("BYMINUTE", range(60) if rule.frequency == "MINUTELY" else (start.minute,)))
    every, per_hour = rule.interval, 60
    if rule.frequency == "MINUTELY" and every % per_hour == 0:
        minutes &= {start.minute}
        every //= per_hour
    elif rule.frequency == "MINUTELY":
        if per_hour % every:
            _refuse(f"{every} minutes do not divide an hour", "use --every")
        minutes &= set(range(start.minute % every, per_hour, every))
        every = 1
    if rule.frequency in _PER_DAY:
        if _PER_DAY["HOURLY"] % every:
            _refuse(f"{every} hours do not divide a day", "use --every")
        hours &= set(range(start.hour % every, _PER_DAY["HOURLY"], every))
    if not hours or not minutes:
        _refuse("it never fires: no time of day is left")
    return DayTimes.of(frozenset(hours), frozenset(minutes), rule.numbers.get("BYSECOND", frozenset({start.second})))


def _until(text: str, zone: ZoneInfo, offsets: ZoneOffsets) -> datetime:
    for form in ("%Y%m%dT%H%M%SZ", "%Y%m%dT%H%M%S", "%Y%m%d"):
        try:
            at = datetime.strptime(text, form)  # noqa: DTZ007  given its zone below
        except ValueError:
            continue
        if form.endswith("Z"):
            return at.replace(tzinfo=UTC)
        if form.endswith("S"):
            return first_shown(offsets, _seconds(at))
        return first_shown(offsets, _seconds(at) + SECONDS_PER_DAY) - _ONE_SECOND
    return _refuse(f"UNTIL={text[:40]} is not a time", f"write UNTIL=20261231, in {zone.key}")


def _weekday(text: str, *, counted: bool) -> tuple[int, int]:
    found = _WEEKDAY.fullmatch(text)
    if found is None:
        _refuse(f"BYDAY={text[:20]} is not a weekday", "write MO, TU, WE, TH, FR, SA, SU, or for example -1FR")
    if found[1] is None:
        return _WEEKDAYS[found[2]], 0
    if not counted:
        _refuse(f"BYDAY={text} counts weekdays, which only MONTHLY and YEARLY rules do")
    return _WEEKDAYS[found[2]], _number("BYDAY", found[1], 1, 53, signed=True)


def _week_start(text: str) -> int:
    if text not in _WEEKDAYS:
        _refuse(f"WKST={text[:20]} is not a weekday")
    return _WEEKDAYS[text]


def _number(key: str, text: str, low: int, high: int, *, signed: bool = False) -> int:
    digits = text.lstrip("+-") if signed and text[1:].isdigit() else text
    if digits.isdigit() and len(digits) <= 6 and low <= int(digits) <= high:
        return -int(digits) if text.startswith("-") else int(digits)
    return _refuse(f"{key}={text[:20]} is out of range, {low} to {high}")


def _seconds(local: datetime) -> int:
    """Convert a wall-clock time to seconds since 1970, counted by the same wall clock."""
    return (local.replace(tzinfo=UTC) - EPOCH) // _ONE_SECOND


def _refuse(what: str, hint: str = "") -> NoReturn:
    raise InvalidInput(what, where="rrule", hint=hint)
