"""Instants and durations, as integers and in the form for people. This module reads no clock."""

import re
from datetime import UTC, datetime, time, timedelta, tzinfo

from turnkeeper.errors import InvalidInput

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_NAMES = {
    "s": ("s", "sec", "secs", "second", "seconds"),
    "m": ("m", "min", "mins", "minute", "minutes"),
    "h": ("h", "hr", "hrs", "hour", "hours"),
    "d": ("d", "day", "days"),
    "w": ("w", "week", "weeks"),
}
_UNIT_OF = {name: unit for unit, names in _NAMES.items() for name in names}
_PART = re.compile(r"([0-9]{1,12})\s*([a-z]+)\s*", re.ASCII)
LONGEST = timedelta(days=36_525)
FORMS = "2h, 2h ago, 7d, now, yesterday, mon, next mon 9am, tomorrow 9am, 17:30 or 2026-11-21 9am"  # for error messages
_WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_DAYS = {"today": 0, "tomorrow": 1, "yesterday": -1}
_HOURS = {"noon": (12, 0), "midnight": (0, 0)}
_HOUR = re.compile(r"(\d{1,2})(?::(\d\d))?\s*(am|pm)?", re.ASCII)


def to_us(at: datetime) -> int:
    """Convert an aware datetime to integer microseconds since 1970 in UTC, exactly.

    >>> to_us(datetime(1970, 1, 1, 0, 0, 1, 5, tzinfo=UTC))
    1000005
    """
    return (at - EPOCH) // _MICROSECOND


def from_us(us: int) -> datetime:
    """Convert microseconds since 1970 to an aware datetime in UTC, exactly.

    >>> from_us(1000005).isoformat()
    '1970-01-01T00:00:01.000005+00:00'
    """
    return EPOCH + timedelta(microseconds=us)


def rfc3339(at: datetime) -> str:
    """Format an instant as RFC 3339 in UTC with `Z`. Fractions appear only if they are not zero.

    >>> rfc3339(from_us(0)), rfc3339(from_us(1_500_000))
    ('1970-01-01T00:00:00Z', '1970-01-01T00:00:01.500000Z')
    """
    text = (at if at.tzinfo is UTC else at.astimezone(UTC)).isoformat()
    return f"{text[:-6]}Z"  # without +00:00


def parse_rfc3339(text: str) -> datetime:
    """Parse an RFC 3339 instant with an offset. Raises ValueError.

    >>> parse_rfc3339("2026-11-20T09:00:00Z").hour
    9
    """
    at = datetime.fromisoformat(text)
    if at.tzinfo is None:
        raise ValueError(f"{text!r} has no offset")
    try:
        return at.astimezone(UTC)
    except OverflowError as error:
        raise ValueError(f"{text!r} lies outside the years 1 to 9999 in UTC") from error


def shown_in(at: datetime, zone: tzinfo | None) -> datetime:
    """Convert an instant to `zone`, or to the machine's zone if None, or to UTC if the year would be 0 or 10000.

    >>> from zoneinfo import ZoneInfo
    >>> shown_in(datetime(9999, 12, 31, 23, 59, tzinfo=UTC), ZoneInfo("Asia/Tokyo")).isoformat()
    '9999-12-31T23:59:00+00:00'
    """
    try:
        return at.astimezone(zone)
    except (OverflowError, ValueError):
        return at.astimezone(UTC)


def parse_duration(text: str, *, field: str = "duration") -> timedelta:
    """Parse a duration of whole seconds, from 0 s to a hundred years.

    >>> parse_duration("1h30m").total_seconds(), parse_duration("every 2 hours").total_seconds()
    (5400.0, 7200.0)

    Raises:
        InvalidInput: the text is not such a duration; for example, a number has no unit, or a unit occurs twice.
    """
    body = text.strip().lower().removeprefix("every ").strip()
    total, position, seen = 0, 0, set[str]()
    while position < len(body):
        part = _PART.match(body, position)
        unit = _UNIT_OF.get(part[2]) if part else None
        if part is None or unit is None or unit in seen:
            raise _refused(text, field)
        seen.add(unit)
        total += int(part[1]) * _SECONDS[unit]
        position = part.end()
    if not seen or total > LONGEST.total_seconds():
        raise _refused(text, field)
    return timedelta(seconds=total)


def written_time(text: str, now: datetime, *, past: bool = False) -> str:
    """Convert a time in the form for people to ISO form: with `Z` for a span from now, else without an offset.

    >>> now = datetime(2026, 11, 20, 15, 30, tzinfo=UTC)  # a Friday
    >>> [written_time(text, now) for text in ("2h", "tomorrow 9am", "mon 17:30", "noon")]
    ['2026-11-20T17:30:00Z', '2026-11-21T09:00:00', '2026-11-23T17:30:00', '2026-11-21T12:00:00']
    >>> [written_time(text, now, past=True) for text in ("1d", "2h ago", "9am", "next mon 9am")]
    ['2026-11-19T15:30:00Z', '2026-11-20T13:30:00Z', '2026-11-20T09:00:00', '2026-11-23T09:00:00']

    Args:
        text: a duration, perhaps with `in` before or `ago` after it; a day (today, tomorrow, yesterday, mon, next mon,
            a date) and a time of day (9am, 17:30, noon), or only one of these. Any other text is returned unchanged.
        now: the present time, in the zone of the text's days.
        past: True if a duration, a weekday or a time of day alone means a time before now.
    """
    words = text.strip().lower()
    if words == "now":
        return rfc3339(now.replace(microsecond=0))
    bare = words.removeprefix("in ").removesuffix(" ago")
    try:
        span = parse_duration(bare)
        back = words.endswith(" ago") or (past and not words.startswith("in "))
        return rfc3339(now.replace(microsecond=0) + (-span if back else span))
    except (InvalidInput, OverflowError):
        return _wall_time(words, now, past=past) or text


def _wall_time(words: str, now: datetime, *, past: bool) -> str:
    """Return the wall time of a day, a time of day, or both. Return an empty string for any other text."""
    first, _, rest = words.removeprefix("next ").partition(" ")
    day = _day(first, now, past=past and not words.startswith("next "))
    rest = rest.strip().removeprefix("at ")
    hour = time_of_day(rest if day else words)
    if hour is None and (day is None or rest):
        return ""
    at = datetime.combine(day or now, time(*(hour or (0, 0))))
    if day is None and (at > now.replace(tzinfo=None)) is past:
        at += timedelta(days=-1 if past else 1)
    return at.isoformat()


def _day(word: str, now: datetime, *, past: bool) -> datetime | None:
    if word in _DAYS:
        return now + timedelta(days=_DAYS[word])
    found = next((place for place, name in enumerate(_WEEKDAYS) if len(word) > 2 and name.startswith(word)), None)
    if found is not None:
        ahead = found - now.weekday()
        return now + timedelta(days=-((-ahead - 1) % 7 + 1) if past else (ahead - 1) % 7 + 1)
    try:
        return datetime.fromisoformat(word) if len(word) == len("2026-11-20") else None
    except ValueError:
        return None


def time_of_day(text: str) -> tuple[int, int] | None:
    """Return the hour and minute of a time of day such as `17:30` or `at 9am`. None for any other text."""
    text = text.strip().lower().removeprefix("at ")
    found = _HOUR.fullmatch(text)
    if text in _HOURS or found is None or not (found[2] or found[3]):
        return _HOURS.get(text)
    hour, minute, half = int(found[1]), int(found[2] or 0), found[3]
    if minute > 59 or hour > (12 if half else 23) or (half and not hour):
        return None
    return (hour % 12 + (12 if half == "pm" else 0) if half else hour), minute


def _refused(text: str, field: str) -> InvalidInput:
    return InvalidInput(f"{text[:80]!r} is not a duration", where=field, hint="write for example 90s, 15m, 1h30m or 1d")


def format_duration(duration: timedelta) -> str:
    """Write a duration of whole seconds exactly, in a form that :func:`parse_duration` reads.

    >>> format_duration(timedelta(seconds=5400)), format_duration(timedelta(0))
    ('1h30m', '0s')
    """
    return "".join(_parts(int(duration.total_seconds())))


def format_rough(seconds: float) -> str:
    """Write a span roughly, in its two largest units.

    >>> format_rough(93_784), format_rough(0.25)
    ('1d 2h', '250ms')
    """
    if 0 < seconds < 1:
        return f"{seconds * 1000:.0f}ms"
    return " ".join(_parts(int(seconds))[:2])


def _parts(rest: int) -> list[str]:
    parts = []
    for unit in ("d", "h", "m", "s"):
        amount, rest = divmod(rest, _SECONDS[unit])
        if amount:
            parts.append(f"{amount}{unit}")
    return parts or ["0s"]
