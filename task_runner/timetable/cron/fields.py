"""One field of a cron expression: from its text to the set of values that it names."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

from task_runner.timetable.instants import InvalidCron

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
