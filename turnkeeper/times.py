"""Instants and durations, as integers and as people write them. Nothing here reads a clock."""

import re
from datetime import UTC, datetime, timedelta, tzinfo

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
    """Format an instant as RFC 3339 in UTC with `Z`; fractions only where there are any.

    >>> rfc3339(from_us(0)), rfc3339(from_us(1_500_000))
    ('1970-01-01T00:00:00Z', '1970-01-01T00:00:01.500000Z')
    """
    text = (at if at.tzinfo is UTC else at.astimezone(UTC)).isoformat()
    return f"{text[:-6]}Z"  # without +00:00


def parse_rfc3339(text: str) -> datetime:
    """Parse an RFC 3339 instant; it must carry an offset. Raises ValueError.

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
    """Return an instant as a zone shows it, None for the machine's; in UTC where that year would be 0 or 10000.

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
        InvalidInput: anything else, among it a number without a unit and a unit given twice.
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


def _refused(text: str, field: str) -> InvalidInput:
    return InvalidInput(f"{text[:80]!r} is not a duration", where=field, hint="write for example 90s, 15m, 1h30m or 1d")


def format_duration(duration: timedelta) -> str:
    """Write a duration of whole seconds so that :func:`parse_duration` reads it back; exact.

    >>> format_duration(timedelta(seconds=5400)), format_duration(timedelta(0))
    ('1h30m', '0s')
    """
    return "".join(_parts(int(duration.total_seconds())))


def format_rough(seconds: float) -> str:
    """Write a span for a glance, in its two largest units.

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
