"""Values whose `repr` shows their whole content."""

from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from pathlib import PosixPath, PurePosixPath, PureWindowsPath
from typing import Any
from uuid import UUID  # noqa: TID251  the class, to know one by; none is made here
from zoneinfo import ZoneInfo

# Only these exact classes: the repr of a subclass may be incomplete.
_EXACT = (
    *(Decimal, date, datetime, time, timedelta, UUID, complex, range, Fraction),
    *(PosixPath, PurePosixPath, PureWindowsPath),
)


def exact_text(value: Any) -> str | None:
    """Return the repr of a value if it shows the whole content; None for any other value."""
    is_exact = type(value) in _EXACT and _is_exact_zone(getattr(value, "tzinfo", None))
    return repr((value, value.is_safe) if type(value) is UUID else value) if is_exact else None


def _is_exact_zone(zone: Any) -> bool:
    """Return whether a zone's repr identifies it. A zone that was read from a file may have any key."""
    if type(zone) is ZoneInfo:
        return zone.key is not None and ZoneInfo(zone.key) is zone
    return type(zone) in {type(None), timezone}
