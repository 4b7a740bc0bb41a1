"""Durations as people write them: `15m`, `90s`, `1h30m`, `every 2 hours`, `1d`."""

import re
from datetime import timedelta

from turnkeeper.errors import InvalidInput

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
    rest = int(duration.total_seconds())
    parts = []
    for unit in ("d", "h", "m", "s"):
        amount, rest = divmod(rest, _SECONDS[unit])
        if amount:
            parts.append(f"{amount}{unit}")
    return "".join(parts) or "0s"


def format_rough(seconds: float) -> str:
    """Write a span for a glance, in its two largest units.

    >>> format_rough(93_784), format_rough(0.25)
    ('1d 2h', '250ms')
    """
    if 0 < seconds < 1:
        return f"{seconds * 1000:.0f}ms"
    rest = int(seconds)
    parts = []
    for unit in ("d", "h", "m", "s"):
        amount, rest = divmod(rest, _SECONDS[unit])
        if amount:
            parts.append(f"{amount}{unit}")
    return " ".join(parts[:2]) or "0s"
