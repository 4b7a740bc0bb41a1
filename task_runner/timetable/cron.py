"""One field of a cron expression: from its text to the set of values that it names."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from functools import lru_cache, partial
from hashlib import blake2b
from zoneinfo import ZoneInfo

from task_runner.timetable.timetable import InvalidCron
from task_runner.timetable.wall_clock import DayTimes, LocalPattern, WallClock
from task_runner.timetable.zones import offsets_of

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


LAST = -1
_WEEKS = 5
_MONTH_NAMES = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")
_WEEKDAY_NAMES = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")
_VALUE = r"[0-9]+|[A-Z]{3}"
_ITEM = re.compile(
    rf"(?:(?P<star>\*)|(?P<hash>H)(?:\((?P<from>[0-9]+)-(?P<to>[0-9]+)\))?"
    rf"|(?P<low>{_VALUE})(?:-(?P<high>{_VALUE}))?)(?:/(?P<step>[0-9]+))?"
)
_NTH = re.compile(rf"(?P<day>{_VALUE})#(?P<nth>[0-9]+)")
_LAST_WEEKDAY = re.compile(rf"L(?P<after>{_VALUE})|(?P<before>{_VALUE})L")


@dataclass(frozen=True, kw_only=True, slots=True)
class FieldKind:
    """What a field of this kind may hold.

    Attributes:
        title: how messages call it.
        low, high: the smallest and largest value, both included.
        accepted: the largest number accepted; 7 is a second name of Sunday.
        hashed: the largest value that `H` may choose.
        names: names of values.
    """

    title: str
    low: int
    high: int
    accepted: int
    hashed: int
    names: Mapping[str, int] = field(default_factory=dict)


def _numbered(names: Sequence[str], first: int) -> dict[str, int]:
    return {name: number for number, name in enumerate(names, start=first)}


SECOND = FieldKind(title="second", low=0, high=59, accepted=59, hashed=59)
MINUTE = FieldKind(title="minute", low=0, high=59, accepted=59, hashed=59)
HOUR = FieldKind(title="hour", low=0, high=23, accepted=23, hashed=23)
# Every month has a 28th: an H that chose the 31st would leave five months out.
DAY = FieldKind(title="day of month", low=1, high=31, accepted=31, hashed=28)
MONTH = FieldKind(title="month", low=1, high=12, accepted=12, hashed=12, names=_numbered(_MONTH_NAMES, 1))
WEEKDAY = FieldKind(title="weekday", low=0, high=6, accepted=7, hashed=6, names=_numbered(_WEEKDAY_NAMES, 0))


@dataclass(frozen=True, kw_only=True, slots=True)
class FieldText:
    """A field as typed, and where: what a refusal needs to point at it.

    Attributes:
        kind: which field it is.
        text: the field, in capitals.
        expression: the whole expression as typed.
        start, width: where in `expression` the field stands.
        name: the task's name, which `H` hashes.
    """

    kind: FieldKind
    text: str
    expression: str
    start: int
    width: int
    name: str

    def refused(self, reason: str, *, hint: str = "") -> InvalidCron:
        """Return the refusal of this field, to be raised."""
        return InvalidCron(
            f"{self.kind.title} {self.text!r}: {reason}",
            expression=self.expression,
            start=self.start,
            width=self.width,
            hint=hint,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class FieldValues:
    """The values that a field names.

    Attributes:
        mask: bit v is set for each plain value v.
        nth: pairs of weekday and week of the month, 1 to 5, or LAST; `L` as a day of month is (0, LAST).
        star: one of its items is a bare `*`.
    """

    mask: int
    nth: frozenset[tuple[int, int]] = frozenset()
    star: bool = False


def parse_field(source: FieldText) -> FieldValues:
    """Parse one field: a list of items, each a value, range, step, `*`, `H`, `L` or `#`.

    Raises:
        InvalidCron: it is none of these, or out of the field's range.
    """
    mask, nth, star = 0, set[tuple[int, int]](), False
    for item in source.text.split(","):
        special = _special(source, item)
        if special is not None:
            nth.add(special)
            continue
        mask |= _mask(source, item)
        star = star or item == "*"
    return FieldValues(mask=mask, nth=frozenset(nth), star=star)


def hashed(name: str, title: str, low: int, high: int) -> int:
    """Choose a value in [low, high] by hashing: the same for the same name, spread evenly over names.

    >>> hashed("report", "minute", 0, 59) == hashed("report", "minute", 0, 59)
    True
    """
    digest = blake2b(f"{title}\0{name}".encode(), digest_size=8).digest()
    return low + int.from_bytes(digest) % (high - low + 1)


def _special(source: FieldText, item: str) -> tuple[int, int] | None:
    if source.kind is DAY:
        return (0, LAST) if item == "L" else None
    if source.kind is not WEEKDAY:
        return None
    if found := _NTH.fullmatch(item):
        # Past three digits it is out of range whatever it says.
        week = int(found["nth"][:4])
        if not 1 <= week <= _WEEKS:
            raise source.refused(f"# takes 1 to {_WEEKS}, not {found['nth'][:20]}")
        return _value(source, found["day"]) % 7, week
    if found := _LAST_WEEKDAY.fullmatch(item):
        return _value(source, found["after"] or found["before"]) % 7, LAST
    return None


def _mask(source: FieldText, item: str) -> int:
    if item == "*":
        return _span(source.kind.low, source.kind.high)
    found = _ITEM.fullmatch(item)
    if found is None:
        raise _unreadable(source, item)
    step = int(found["step"] or 1)
    if step == 0:
        raise source.refused("a step must be at least 1")
    kind = source.kind
    if found["star"]:
        return _bits(range(kind.low, kind.high + 1, step))
    if found["hash"]:
        return _hashed_mask(source, found, step)
    low = _value(source, found["low"])
    if found["high"]:
        return _range_mask(source, low, _value(source, found["high"]), step)
    # "5/15" runs on to the end of the field; "5" is itself alone.
    low = low % 7 if kind is WEEKDAY else low
    return _bits(range(low, kind.high + 1, step)) if found["step"] else 1 << low


def _range_mask(source: FieldText, low: int, high: int, step: int) -> int:
    kind = source.kind
    if kind is WEEKDAY and low == kind.accepted:
        low, high = 0, high % 7
    if low <= high:
        return _bits(value % 7 if kind is WEEKDAY else value for value in range(low, high + 1, step))
    if step > 1:
        raise source.refused("a step cannot run over the end of the field", hint="write the values as a list")
    return _span(low, kind.high) | _span(kind.low, high)


def _hashed_mask(source: FieldText, found: re.Match[str], step: int) -> int:
    kind = source.kind
    low, high = kind.low, kind.high if found["step"] else kind.hashed
    if found["from"]:
        low, high = _value(source, found["from"]), _value(source, found["to"])
        if low > high or high > kind.high:
            raise source.refused("H(a-b) takes two values of the field, ascending")
    if not found["step"]:
        return 1 << hashed(source.name, kind.title, low, high)
    first = hashed(source.name, kind.title, low, min(low + step - 1, high))
    return _bits(range(first, high + 1, step))


def _value(source: FieldText, text: str) -> int:
    kind = source.kind
    if text in kind.names:
        return kind.names[text]
    if not text.isdigit():
        raise source.refused(f"{text} is no {kind.title}")
    value = int(text)
    if not kind.low <= value <= kind.accepted:
        raise source.refused(f"{text[:20]} is out of range, {kind.low} to {kind.accepted}")
    return value


def _unreadable(source: FieldText, item: str) -> InvalidCron:
    if item.startswith("R"):
        return source.refused("R is not repeatable", hint="H chooses a value by the task's name")
    if not item:
        return source.refused("an item of the list is empty")
    return source.refused(f"{item!r} cannot be read" if item != source.text else "it cannot be read")


def _span(low: int, high: int) -> int:
    return (2 << high) - (1 << low)


def _bits(values: Iterable[int]) -> int:
    mask = 0
    for value in values:
        mask |= 1 << value
    return mask


LONGEST = 256
_AROUND = " \t\r\n"
_KINDS = (SECOND, MINUTE, HOUR, DAY, MONTH, WEEKDAY)
_FIELDS = (5, 6)
_FIELD = re.compile(r"[^ \t]+")
_FULL_MONTH = (1 << 32) - 2
_FULL_WEEK = (1 << 7) - 1
_MACROS = {
    "@HOURLY": "0 * * * *",
    "@DAILY": "0 0 * * *",
    "@MIDNIGHT": "0 0 * * *",
    "@WEEKLY": "0 0 * * 0",
    "@MONTHLY": "0 0 1 * *",
    "@YEARLY": "0 0 1 1 *",
    "@ANNUALLY": "0 0 1 1 *",
}


def parse_expression(expression: str, *, name: str) -> LocalPattern:
    """Parse a cron expression of five fields, of six with seconds first, or a macro like `@daily`.

    Day of month and weekday: if both are restricted, a day that satisfies either is named.

    Source: crontab(5) for fields, names, lists and the rule of either day; Jenkins for `H`; Quartz for `L` and `#`.
    Where tools differ (`*/2` as a day of month restricts it; `5/2` as a weekday ends on Saturday) this follows
    croniter, but `5-5` is 5.

    Raises:
        InvalidCron: it cannot be read, or it names no day of any year.
    """
    # Without an H the name means nothing, and tasks with the same expression share one parsing.
    return _parsed(expression.strip(_AROUND), name if "H" in expression.upper() else "")


def forget_parsed() -> None:
    """Forget what equal expressions share, to measure the parsing itself."""
    _parsed.cache_clear()


@lru_cache(maxsize=4096)
def _parsed(expression: str, name: str) -> LocalPattern:
    _check_characters(expression)
    sources = _split(expression, name)
    second, minute, hour, day, month, weekday = map(parse_field, sources)
    days = _days(day, month, weekday, day_text=sources[3].text, weekday_text=sources[5].text)
    if not days.ever():
        raise sources[3].refused("it never fires: no chosen month has such a day")
    return LocalPattern(
        days=days,
        times=DayTimes(hour.mask, minute.mask, second.mask),
        fixed=not set("*/") & set(sources[1].text + sources[2].text),
    )


def _check_characters(expression: str) -> None:
    if len(expression) > LONGEST:
        raise InvalidCron(
            f"it is {len(expression)} characters long, more than {LONGEST}",
            expression=expression,
            start=0,
            width=1,
        )
    for place, sign in enumerate("" if expression.isascii() and expression.isprintable() else expression):
        if not (sign.isascii() and sign.isprintable()) and sign != "\t":
            raise InvalidCron(f"{sign!r} has no meaning in cron", expression=expression.strip(), start=place, width=1)


def _split(expression: str, name: str) -> list[FieldText]:
    typed = expression.replace("\t", " ")
    refused = partial(InvalidCron, expression=typed)
    if typed.startswith("@"):
        macro = _MACROS.get(typed.upper())
        if macro is None:
            hint = f"one of {' '.join(_MACROS).lower()}"
            raise refused(f"{typed} is not known", start=0, width=len(typed), hint=hint)
        typed = macro
    places = [(found.start(), found[0]) for found in _FIELD.finditer(typed)]
    if len(places) not in _FIELDS:
        start, last = places[min(len(places), 7) - 1] if places else (0, "")
        start, width = (start, len(last)) if len(places) > max(_FIELDS) else (len(typed) + 1, 1)
        raise refused(f"it has {len(places)} fields, not 5, or 6 with seconds first", start=start, width=width)
    if len(places) == min(_FIELDS):
        places.insert(0, (0, "0"))
    return [
        FieldText(kind=kind, text=text.upper(), expression=typed, start=start, width=len(text), name=name)
        for kind, (start, text) in zip(_KINDS, places, strict=True)
    ]


def _days(day: FieldValues, month: FieldValues, weekday: FieldValues, *, day_text: str, weekday_text: str) -> Days:
    # A list of all days restricts nothing beside a field with a `*`, but beside a plain one it does.
    any_day = day.star or (day.mask == _FULL_MONTH and "*" in weekday_text)
    any_weekday = weekday.star or (weekday.mask == _FULL_WEEK and "*" in day_text)
    rule = DayRule(
        days=day.mask,
        last_day=(0, LAST) in day.nth,
        months=month.mask,
        weekdays=weekday.mask,
        nth=weekday.nth,
        either=not (any_day or any_weekday),
    )
    return days_of(rule)


@dataclass(frozen=True, kw_only=True, slots=True)
class CronTimetable(WallClock):
    """The nominal times of a cron expression in a zone; made by :func:`parse_cron`.

    Attributes:
        expression: as typed.
    """

    expression: str

    def describe(self) -> str:
        """Return the expression as typed."""
        return self.expression


def parse_cron(expression: str, *, name: str, zone: ZoneInfo) -> CronTimetable:
    """Make the timetable of a cron expression; `name` is what `H` hashes.

    >>> from datetime import UTC, datetime
    >>> cron = parse_cron("30 9 * * mon-fri", name="standup", zone=ZoneInfo("Europe/Riga"))
    >>> cron.next_after(datetime(2026, 11, 20, 12, tzinfo=UTC)).isoformat()
    '2026-11-23T07:30:00+00:00'

    Raises:
        InvalidCron: the expression cannot be read, or it never fires; its `caret` shows where.
    """
    return CronTimetable(
        expression=expression.strip(),
        zone=zone,
        pattern=parse_expression(expression, name=name),
        offsets=offsets_of(zone),
    )
