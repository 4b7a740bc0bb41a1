"""The interface of timetables, their time zones, and simple timetables.

The simple ones are an interval, an instant, no times, and bounds on another one.

Timetables compute with whole seconds since 1970 in UTC.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from functools import cache
from zoneinfo import ZoneInfo, available_timezones

from turnkeeper.errors import InvalidInput
from turnkeeper.times import format_duration, parse_duration

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
SECONDS_PER_DAY = 86_400
# One year is reserved at both ends of datetime's range, so that no offset leads out of the range.
EARLIEST_S = -62_104_060_800
LATEST_S = 253_370_764_800
LEAST = timedelta(microseconds=1)
_ONE_SECOND = timedelta(seconds=1)
# Files of the database that are not zones, or whose meaning depends on the machine.
_NO_ZONES = frozenset({"localtime", "posixrules", "Factory", "leapseconds", "tzdata.zi"})
_NO_FOLDERS = ("posix/", "right/", "SystemV/")


def to_seconds(at: datetime) -> int:
    """Convert an aware datetime to whole seconds since 1970 in UTC, rounding down. Raises TypeError: `at` is naive."""
    since = at - EPOCH
    return since.days * SECONDS_PER_DAY + since.seconds


def from_seconds(second: int) -> datetime:
    """Convert whole seconds since 1970 to an aware datetime in UTC."""
    return EPOCH + timedelta(0, second)


def zone(name: str) -> ZoneInfo:
    """Return the zone with an IANA name. The name is case-sensitive.

    >>> zone("Europe/Riga").key
    'Europe/Riga'

    Raises:
        InvalidInput: the zone does not exist, or its meaning depends on the machine (`localtime`).
    """
    if name not in zone_names():
        close = get_close_matches(name[:64].title(), zone_names(), n=1)
        hint = f"did you mean {close[0]}?" if close else "write an IANA name, for example Europe/Riga"
        raise InvalidInput(f"{name[:80]!r} is not a time zone", where="timezone", hint=hint)
    return ZoneInfo(name)


@cache
def zone_names() -> frozenset[str]:
    """Return all names that :func:`zone` accepts."""
    return frozenset(
        name for name in available_timezones() if name not in _NO_ZONES and not name.startswith(_NO_FOLDERS)
    )


class Timetable(ABC):
    """The scheduled times of one schedule: whole seconds in UTC, in strictly ascending order.

    A timetable is an immutable value and reads no clock, so a repeated call returns the same result. Arguments are
    aware datetimes in any zone; results are aware datetimes in UTC. A fraction of a second in an argument counts:
    09:00:00 is not after 09:00:00, and it is before 09:00:00.5.
    """

    __slots__ = ()

    @abstractmethod
    def next_after(self, after: datetime) -> datetime | None:
        """Return the first scheduled time strictly after `after`; None if there is none."""

    @abstractmethod
    def last_at_or_before(self, at: datetime) -> datetime | None:
        """Return the last scheduled time not after `at`; None if there is none."""

    @abstractmethod
    def count(self, after: datetime, until: datetime) -> int:
        """Return the number of scheduled times in (after, until], without enumerating them."""

    @abstractmethod
    def describe(self) -> str:
        """Describe in one line when the timetable fires."""

    def upcoming(self, after: datetime, limit: int, *, until: datetime | None = None) -> list[datetime]:
        """Return the first `limit` scheduled times strictly after `after`, and up to `until` if that is given."""
        found: list[datetime] = []
        at = self.next_after(after)
        while at is not None and len(found) < limit and (until is None or at <= until):
            found.append(at)
            at = self.next_after(at)
        return found

    def last_n(self, after: datetime, until: datetime, n: int) -> list[datetime]:
        """Return the `n` newest scheduled times in (after, until], ascending."""
        found: list[datetime] = []
        at = self.last_at_or_before(until)
        while at is not None and at > after and len(found) < n:
            found.append(at)
            at = self.last_at_or_before(at - _ONE_SECOND)
        found.reverse()
        return found


@dataclass(frozen=True, kw_only=True, slots=True)
class EveryTimetable(Timetable):
    """Scheduled times at anchor + n x interval for every integer n. Times before the anchor count too."""

    anchor: datetime
    interval: timedelta

    def __post_init__(self) -> None:
        if self.interval < _ONE_SECOND or self.interval % _ONE_SECOND:
            raise InvalidInput("the interval must be whole seconds, at least 1 s", where="every")
        object.__setattr__(self, "anchor", from_seconds(to_seconds(self.anchor)))

    def next_after(self, after: datetime) -> datetime | None:
        """Return the first scheduled time strictly after `after`; None beyond the range of timetables."""
        return self._at(self._number(to_seconds(after)) + 1)

    def last_at_or_before(self, at: datetime) -> datetime | None:
        """Return the last scheduled time not after `at`; None beyond the range of timetables."""
        return self._at(self._number(to_seconds(at)))

    def count(self, after: datetime, until: datetime) -> int:
        """Return the number of scheduled times in (after, until], by one subtraction."""
        return max(0, self._number(to_seconds(until)) - self._number(to_seconds(after)))

    def describe(self) -> str:
        """Return the exact interval.

        >>> from datetime import UTC
        >>> parse_every("90m", anchor=datetime(2026, 1, 1, tzinfo=UTC)).describe()
        'every 1h30m, exactly'
        """
        return f"every {format_duration(self.interval)}, exactly"

    def _number(self, second: int) -> int:
        return (second - to_seconds(self.anchor)) // (self.interval // _ONE_SECOND)

    def _at(self, number: int) -> datetime | None:
        second = to_seconds(self.anchor) + number * (self.interval // _ONE_SECOND)
        return from_seconds(second) if EARLIEST_S <= second < LATEST_S else None


def parse_every(text: str, *, anchor: datetime) -> EveryTimetable:
    """Parse an interval like `15m` or `every 2 hours`. Raises InvalidInput if malformed or below one second."""
    return EveryTimetable(anchor=anchor, interval=parse_duration(text, field="every"))


@dataclass(frozen=True, slots=True)
class Once(Timetable):
    """A single scheduled time.

    Attributes:
        at: an aware datetime. A fraction of a second is rounded up, so that the task never fires early.
    """

    at: datetime

    def __post_init__(self) -> None:
        second = to_seconds(self.at) + (self.at.microsecond > 0)
        object.__setattr__(self, "at", from_seconds(second))

    def next_after(self, after: datetime) -> datetime | None:
        """Return the instant if it is after `after`, else None."""
        return self.at if self.at > after else None

    def last_at_or_before(self, at: datetime) -> datetime | None:
        """Return the instant if it is not after `at`, else None."""
        return self.at if self.at <= at else None

    def count(self, after: datetime, until: datetime) -> int:
        """Return 1 if the instant is in (after, until], else 0."""
        return int(after < self.at <= until)

    def describe(self) -> str:
        """Return the instant in UTC.

        >>> from datetime import UTC
        >>> Once(datetime(2026, 11, 21, 9, tzinfo=UTC)).describe()
        'at 2026-11-21T09:00:00Z'
        """
        return f"at {self.at.isoformat().removesuffix('+00:00')}Z"


@dataclass(frozen=True, slots=True)
class Never(Timetable):
    """A timetable without scheduled times."""

    def next_after(self, after: datetime) -> datetime | None:  # noqa: ARG002  required by the interface
        return None

    def last_at_or_before(self, at: datetime) -> datetime | None:  # noqa: ARG002
        return None

    def count(self, after: datetime, until: datetime) -> int:  # noqa: ARG002
        return 0

    def describe(self) -> str:
        """Return a placeholder for the schedule."""
        return "self-paced"


@dataclass(frozen=True, slots=True)
class Bounded(Timetable):
    """The scheduled times of a timetable that are between `start_at` and `end_at`.

    Attributes:
        start_at, end_at: aware datetimes, both included; None for no bound.
    """

    timetable: Timetable
    start_at: datetime | None = None
    end_at: datetime | None = None

    def next_after(self, after: datetime) -> datetime | None:
        """Return the first scheduled time within the bounds strictly after `after`; None if there is none."""
        found = self.timetable.next_after(self._not_before_start(after))
        ended = found is not None and self.end_at is not None and found > self.end_at
        return None if ended else found

    def last_at_or_before(self, at: datetime) -> datetime | None:
        """Return the last scheduled time within the bounds not after `at`; None if there is none."""
        found = self.timetable.last_at_or_before(self._not_after_end(at))
        early = found is not None and self.start_at is not None and found < self.start_at
        return None if early else found

    def count(self, after: datetime, until: datetime) -> int:
        """Return the number of scheduled times within the bounds in (after, until]."""
        return self.timetable.count(self._not_before_start(after), self._not_after_end(until))

    def describe(self) -> str:
        """Return the description of the timetable, followed by its bounds.

        >>> from datetime import UTC
        >>> start = datetime(2026, 1, 1, tzinfo=UTC)
        >>> Bounded(parse_every("7m", anchor=start), start_at=start).describe()
        'every 7m, exactly, from 2026-01-01T00:00:00+00:00'
        """
        line = self.timetable.describe()
        if self.start_at is not None:
            line += f", from {self.start_at.isoformat()}"
        return line if self.end_at is None else f"{line}, until {self.end_at.isoformat()}"

    def _not_before_start(self, after: datetime) -> datetime:
        return after if self.start_at is None else max(after, self.start_at - LEAST)

    def _not_after_end(self, until: datetime) -> datetime:
        return until if self.end_at is None else min(until, self.end_at)
