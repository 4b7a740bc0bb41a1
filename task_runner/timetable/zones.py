"""IANA time zones by name."""

from difflib import get_close_matches
from functools import cache
from zoneinfo import ZoneInfo, available_timezones

from turnkeeper.errors import InvalidInput

# Files of the database that are no place on earth: what they mean depends on the machine, or is nothing.
_NO_ZONES = frozenset({"localtime", "posixrules", "Factory", "leapseconds", "tzdata.zi"})
_NO_FOLDERS = ("posix/", "right/", "SystemV/")


def zone(name: str) -> ZoneInfo:
    """Return the zone of that IANA name, written exactly so.

    >>> zone("Europe/Riga").key
    'Europe/Riga'

    Raises:
        InvalidInput: there is no such zone, or it means something else on another machine (`localtime`).
    """
    if name not in zone_names():
        close = get_close_matches(name[:64].title(), zone_names(), n=1)
        hint = f"did you mean {close[0]}?" if close else "write an IANA name, for example Europe/Riga"
        raise InvalidInput(f"{name[:80]!r} is not a time zone", where="timezone", hint=hint)
    return ZoneInfo(name)


@cache
def zone_names() -> frozenset[str]:
    """Return all names that :func:`zone` takes."""
    return frozenset(
        name for name in available_timezones() if name not in _NO_ZONES and not name.startswith(_NO_FOLDERS)
    )
