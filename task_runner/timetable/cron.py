"""Cron expressions: croniter parses their fields, and this module searches for the times when they fire.

croniter reads names, lists, ranges, steps, `L`, `#` and macros. If the dialect of this module differs from croniter's,
the module translates an item before it calls croniter; ``docs/reference/schedules.md`` shows the differences.
:mod:`task_runner.timetable.wall_clock` handles clock changes. A time is fixed if hour and minute are plain lists.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import date
from functools import cache, lru_cache
from hashlib import blake2b
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

from task_runner.timetable.wall_clock import DayTimes, LocalPattern, WallClock
from task_runner.timetable.zones import offsets_of
from turnkeeper.errors import InvalidInput

LONGEST = 256
LAST = -1
_SHOWN = 72
AROUND = " \t\r\n"
_WORD = re.compile(r"[^ \t]+")
_MACROS = "@hourly @daily @midnight @weekly @monthly @yearly @annually"
# The fields in croniter's order. An expression has the same order, except that the seconds come first.
_TITLES = ("minute", "hour", "day of month", "month", "weekday", "second")
_MINUTE, _HOUR, _DAY, _MONTH, _WEEKDAY, _SECOND = range(6)
_SUNDAY = 7
# Every month has a 28th. If H could choose the 31st, the task would not fire in five months of the year.
_LAST_HASHED_DAY = 28
_VALUE = r"[0-9]+|[A-Z]{3}"
_RANGE = re.compile(rf"(?P<low>{_VALUE})-(?P<high>{_VALUE})(?:/(?P<step>[0-9]+))?")
_HASH = re.compile(r"H(?:\((?P<low>[0-9]+)-(?P<high>[0-9]+)\))?(?:/(?P<step>[0-9]+))?")
_LAST_WEEKDAY = re.compile(rf"L(?P<after>{_VALUE})|(?P<before>{_VALUE})L")
_NOT_OFFERED = re.compile(r"\?|R.*|[0-9]+W|W[0-9]+|.*/0+")
_EPOCH_ORDINAL = 719_163
_LENGTHS = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_FEBRUARY = 2
_WEEK = 7
# Bit d of a weekly mask is set if day d falls on the same weekday as day 0.
_WEEKLY = sum(1 << day for day in range(0, 35, _WEEK))


class InvalidCron(InvalidInput):
    """A cron expression that is invalid.

    Attributes:
        caret: two lines, the expression and carets under its bad field. A very long expression is shortened.
    """

    def __init__(self, what: str, *, expression: str, start: int, width: int, hint: str = "") -> None:
        super().__init__(what, where="cron", hint=hint)
        shown = expression
        if len(shown) > _SHOWN:
            cut = min(start, len(shown) - 1) if start + width > _SHOWN else 0
            before, after = "..." if cut else "", "..." if cut + _SHOWN < len(shown) else ""
            shown, start = before + shown[cut : cut + _SHOWN] + after, start - cut + len(before)
            width = min(width, len(shown) - start)
        # A control character would break the line above the carets.
        line = "".join(sign if sign.isprintable() else "?" for sign in shown)
        self.caret = f"{line}\n{' ' * start}{'^' * max(width, 1)}"


@dataclass(frozen=True, kw_only=True, slots=True)
class CronTimetable(WallClock):
    """The scheduled times of a cron expression in a zone; made by :func:`parse_cron`."""

    expression: str

    def describe(self) -> str:
        """Return the expression as typed."""
        return self.expression


def parse_cron(expression: str, *, name: str, zone: ZoneInfo) -> CronTimetable:
    """Make the timetable of a cron expression: five fields, six with seconds first, or a macro like `@daily`.

    If both day of month and weekday are restricted, a day matches if it satisfies either of them.

    >>> from datetime import UTC, datetime
    >>> cron = parse_cron("30 9 * * mon-fri", name="standup", zone=ZoneInfo("Europe/Riga"))
    >>> cron.next_after(datetime(2026, 11, 20, 12, tzinfo=UTC)).isoformat()
    '2026-11-23T07:30:00+00:00'

    Args:
        name: the name that `H` hashes.
        zone: the zone in whose wall-clock time the expression is written.

    Raises:
        InvalidCron: the expression cannot be read, or it never fires; the error's `caret` shows where.
    """
    typed = expression.strip(AROUND)
    # Without an H the name has no effect, and tasks with the same expression share one parsed pattern.
    pattern = parsed(typed, name if "H" in typed.upper() else "")
    return CronTimetable(expression=expression.strip(), zone=zone, pattern=pattern, offsets=offsets_of(zone))


@lru_cache(maxsize=4096)
def parsed(expression: str, name: str) -> LocalPattern:
    _check_characters(expression)
    fields = list(fields_of(expression, name))
    _, minute, hour, day, _, weekday = fields
    (seconds, _), (minutes, _), (hours, _), (month_days, last_day), (months, _), (weekdays, nth) = (
        each.values() for each in fields
    )
    # A list of all days is unrestricted if the other field has a `*`. Otherwise it counts as a restriction.
    any_day = day.has_star() or (len(month_days) == 31 and "*" in weekday.text)
    any_weekday = weekday.has_star() or (len(weekdays) == _WEEK and "*" in day.text)
    days = days_of(
        month_days=month_days,
        last_day=bool(last_day),
        months=months,
        weekdays=weekdays,
        nth=nth,
        either=not (any_day or any_weekday),
    )
    if not days.ever():
        raise day.refused("it never fires: no chosen month has such a day")
    fixed = not set("*/") & set(minute.text + hour.text)
    return LocalPattern(days=days, times=DayTimes.of(hours, minutes, seconds), fixed=fixed)


def _check_characters(expression: str) -> None:
    if len(expression) > LONGEST:
        what = f"it is {len(expression)} characters long, more than {LONGEST}"
        raise InvalidCron(what, expression=expression, start=0, width=1)
    for place, sign in enumerate(expression):
        if not (sign.isascii() and sign.isprintable()) and sign != "\t":
            raise InvalidCron(f"{sign!r} has no meaning in cron", expression=expression, start=place, width=1)


def fields_of(expression: str, name: str) -> Iterator["Field"]:
    """Yield the fields of an expression, seconds first. Raises InvalidCron."""
    typed = expression.replace("\t", " ")
    if typed.startswith("@"):
        typed = _unfolded(typed)
    words = [(found.start(), found[0]) for found in _WORD.finditer(typed)]
    if len(words) not in {5, 6}:
        start, width = (len(typed) + 1, 1) if len(words) < 5 else (words[min(len(words), 7) - 1][0], len(words[-1][1]))
        what = f"it has {len(words)} fields, not 5, or 6 with seconds first"
        raise InvalidCron(what, expression=typed, start=start, width=width)
    if len(words) == 5:
        words.insert(0, (0, "0"))
    for index, (start, text) in zip((_SECOND, *range(_SECOND)), words, strict=True):
        yield Field(index=index, text=text.upper(), expression=typed, start=start, name=name)


def _unfolded(macro: str) -> str:
    try:
        fields, _ = _croniter().expand(macro)
    except ValueError as error:
        hint = f"one of {_MACROS}"
        raise InvalidCron(f"{macro} is not known", expression=macro, start=0, width=len(macro), hint=hint) from error
    return " ".join(",".join(map(str, values)) for values in fields)


@dataclass(frozen=True, kw_only=True, slots=True)
class Field:
    """A field as typed, with its position, so that an error can point at it.

    Attributes:
        index: croniter's number of the field.
        text: the field, in capitals.
        start: the offset of the field in `expression`.
        name: the task's name, which `H` hashes.
    """

    index: int
    text: str
    expression: str
    start: int
    name: str

    def values(self) -> tuple[frozenset[int], frozenset[tuple[int, int]]]:
        """Return the values of the field, and its weekdays of the month in the form that :class:`CronDays` stores.

        Raises:
            InvalidCron: the field cannot be read, or a value is out of range.
        """
        plain, nth = frozenset[int](), frozenset[tuple[int, int]]()
        for item in self.text.split(","):
            understood = self._understood(item)
            try:
                values, weekdays = _expanded(self.index, understood)
            except ValueError as error:
                raise self._explained(item) from error
            plain, nth = plain | values, nth | weekdays
        return plain, nth

    def has_star(self) -> bool:
        """Return whether one item of the field is a bare `*`."""
        return "*" in self.text.split(",")

    def refused(self, reason: str, *, hint: str = "") -> InvalidCron:
        """Return the error that refuses this field. The caller raises the error."""
        what = f"{_TITLES[self.index]} {self.text!r}: {reason}"
        return InvalidCron(what, expression=self.expression, start=self.start, width=len(self.text), hint=hint)

    def _understood(self, item: str) -> str:
        """Translate an item of this dialect into the equivalent item of croniter."""
        if not item or _NOT_OFFERED.fullmatch(item):
            raise self._explained(item)
        if found := _HASH.fullmatch(item):
            return self._hashed(found)
        if self.index == _WEEKDAY and (found := _LAST_WEEKDAY.fullmatch(item)):
            return f"L{self._value(found['after'] or found['before'])}"
        if found := _RANGE.fullmatch(item):
            low, high = self._value(found["low"]), self._value(found["high"])
            if self.index == _WEEKDAY and low == _SUNDAY:
                low, high = 0, high % _SUNDAY
            if low == high:  # croniter reads this item as the whole field
                return str(low)
            if low > high and int(found["step"] or 1) > 1:
                raise self.refused("a step cannot run over the end of the field", hint="write the values as a list")
        return item

    def _hashed(self, found: re.Match[str]) -> str:
        """Choose a value by the task's name for `H`, `H(a-b)`, `H/n` or `H(a-b)/n`."""
        low, largest = _croniter().RANGES[self.index]
        high, step = largest, int(found["step"] or 1)
        if found["low"]:
            low, high = self._value(found["low"]), self._value(found["high"])
            if low > high or high > largest:
                raise self.refused("H(a-b) takes two values of the field, ascending")
        elif self.index == _DAY and not found["step"]:
            high = _LAST_HASHED_DAY
        if not step:
            raise self._explained(found[0])
        if not found["step"]:
            return str(hashed(self.name, _TITLES[self.index], low, high))
        first = hashed(self.name, _TITLES[self.index], low, min(low + step - 1, high))
        return f"{first}-{high}/{step}" if first < high else str(first)

    def _value(self, text: str) -> int:
        """Return the value of a number or a name. Raises InvalidCron: the field has no such value."""
        low, high = _croniter().RANGES[self.index]
        high = _SUNDAY if self.index == _WEEKDAY else high
        value = int(text) if text.isdigit() else _croniter().ALPHACONV[self.index].get(text.lower())
        if not isinstance(value, int):
            raise self.refused(f"{text} is not a {_TITLES[self.index]}")
        if not low <= value <= high:
            has_seconds = len(_WORD.findall(self.expression)) > len(_TITLES) - 1
            hint = "of six fields, the first is seconds" if has_seconds else ""
            raise self.refused(f"{text[:20]} is out of range, {low} to {high}", hint=hint)
        return value

    def _explained(self, item: str) -> InvalidCron:
        """Return an error that says why croniter does not accept an item."""
        if item.startswith("R"):
            return self.refused("R is not repeatable", hint="H chooses a value by the task's name")
        if not item:
            return self.refused("an item of the list is empty")
        body, _, step = item.partition("/")
        if step and not step.strip("0"):
            return self.refused("a step must be at least 1")
        value, _, week = body.partition("#")
        try:
            for text in re.findall(r"[0-9]+|[A-Z]{2,}", value):
                self._value(text)
        except InvalidCron as refusal:
            return refusal
        if week.isdigit() and self.index == _WEEKDAY:
            return self.refused(f"# takes 1 to 5, not {week[:20]}")
        return self.refused(f"{item!r} cannot be read" if item != self.text else "it cannot be read")


@lru_cache(maxsize=4096)
def _expanded(index: int, item: str) -> tuple[frozenset[int], frozenset[tuple[int, int]]]:
    """Parse an item with croniter. Return its values, or its weekdays of the month. Raises croniter's ValueError."""
    fields = ["*"] * (_SECOND + 1 if index == _SECOND else _SECOND)
    fields[index] = item
    expanded, counted = _croniter().expand(" ".join(fields))
    values = expanded[index]
    if counted:
        pairs = ((day, week) for day, weeks in counted.items() for week in weeks)
        return frozenset(), frozenset((day, LAST if week == "l" else int(week)) for day, week in pairs)
    if values == ["l"]:
        return frozenset(), frozenset({(0, LAST)})
    low, high = _croniter().RANGES[index]
    return frozenset(range(low, high + 1) if values == ["*"] else map(int, values)), frozenset()


@cache
def _croniter() -> Any:
    from croniter import croniter  # noqa: PLC0415  slow to import: help and most commands read no expression

    return croniter


def hashed(name: str, title: str, low: int, high: int) -> int:
    """Choose a value in [low, high] by hashing. A name always gets the same value, and values are spread evenly.

    >>> hashed("report", "minute", 0, 59) == hashed("report", "minute", 0, 59)
    True
    """
    digest = blake2b(f"{title}\0{name}".encode(), digest_size=8).digest()
    return low + int.from_bytes(digest) % (high - low + 1)


class _Year(NamedTuple):
    start: int
    end: int
    mask: int


@dataclass(kw_only=True, slots=True, eq=False)
class CronDays:
    """The days that match the fields day of month, month and weekday. Day 0 is 1 January 1970.

    A year has one of fourteen shapes: it is a leap year or not, and it begins on one of seven weekdays. The matching
    days depend only on the shape, so fourteen masks of 366 bits cover all years. The next day is the lowest set bit;
    the number of days is a count of set bits. Each mask is computed on its first use.

    A missing local day (Pacific/Apia had no 30 December 2011) still counts as a day of its month: the last Friday of
    that month was the 30th, not the 23rd. A missing day never moves the second Monday of a month.

    Attributes:
        last_day: True if the last day of the month matches too.
        months: 1 to 12.
        weekdays: Sunday is 0.
        nth: pairs of weekday and week of the month, 1 to 5, or LAST.
        either: True if a day must satisfy the day of month OR the weekday, as in classic cron when both are given.
            False if it must satisfy both; one of them is then `*`.
    """

    month_days: frozenset[int]
    last_day: bool
    months: frozenset[int]
    weekdays: frozenset[int]
    nth: frozenset[tuple[int, int]]
    either: bool
    _shapes: dict[tuple[bool, int], int] = field(default_factory=dict, init=False)
    _recent: _Year = field(default=_Year(0, 0, 0), init=False)

    def ever(self) -> bool:
        """Return whether any year has a matching day."""
        return any(self._shape(leap=leap, begins_on=weekday) for leap in (True, False) for weekday in range(_WEEK))

    def first_from(self, day: int, last: int) -> int | None:
        """Return the first matching day from `day` on, or None. Search to the end of the year of `last`."""
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
        """Return the last matching day up to `day`, or None. Search to the start of the year of `first`."""
        while day >= first:
            year = self._year(day)
            rest = year.mask & ((2 << (day - year.start)) - 1)
            if rest:
                return year.start + rest.bit_length() - 1
            day = year.start - 1
        return None

    def count(self, low: int, high: int) -> int:
        """Return the number of matching days in [low, high)."""
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
        if not self._recent.start <= day < self._recent.end:
            number = date.fromordinal(day + _EPOCH_ORDINAL).year
            start = date(number, 1, 1).toordinal()
            length = date(number, 12, 31).toordinal() - start + 1
            mask = self._shape(leap=length == 366, begins_on=start % _WEEK)
            self._recent = _Year(start - _EPOCH_ORDINAL, start - _EPOCH_ORDINAL + length, mask)
        return self._recent

    def _shape(self, *, leap: bool, begins_on: int) -> int:
        """Return the mask of matching days for a shape of year. Bit 0 is 1 January, whose weekday is `begins_on`."""
        known = self._shapes.get((leap, begins_on))
        if known is not None:
            return known
        mask, passed = 0, 0
        for month, usual in enumerate(_LENGTHS, start=1):
            length = usual + (leap and month == _FEBRUARY)
            if month in self.months:
                mask |= self._month(length, (begins_on + passed) % _WEEK) << passed
            passed += length
        self._shapes[leap, begins_on] = mask
        return mask

    def _month(self, length: int, begins_on: int) -> int:
        by_day, by_weekday = sum(1 << (day - 1) for day in self.month_days), 0
        if self.last_day:
            by_day |= 1 << (length - 1)
        for weekday in self.weekdays:
            by_weekday |= _WEEKLY << ((weekday - begins_on) % _WEEK)
        for weekday, week in self.nth:
            first = (weekday - begins_on) % _WEEK
            weeks = (length - 1 - first) // _WEEK if week == LAST else week - 1
            by_weekday |= 1 << (first + weeks * _WEEK)
        both = by_day | by_weekday if self.either else by_day & by_weekday
        return both & ((1 << length) - 1)


# Tasks share one CronDays if their expressions have the same day fields.
days_of = lru_cache(maxsize=4096)(CronDays)
