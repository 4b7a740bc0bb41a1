"""What every timetable answers, and the bounded slices that all of them cut in the same way."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Protocol, runtime_checkable

from turnkeeper.errors import InvalidInput
from turnkeeper.times import format_duration, parse_duration

_SHOWN = 72


class InvalidCron(InvalidInput):
    """A cron expression that cannot be taken.

    Attributes:
        caret: two lines, the expression and carets under its bad field; cut where the expression is very long.
    """

    def __init__(self, what: str, *, expression: str, start: int, width: int, hint: str = "") -> None:
        super().__init__(what, where="cron", hint=hint)
        # A control character would break the line that the carets stand under.
        shown = "".join(sign if sign.isprintable() else "?" for sign in expression)
        if len(shown) > _SHOWN:
            cut = min(start, len(shown) - 1) if start + width > _SHOWN else 0
            before, after = "..." if cut else "", "..." if cut + _SHOWN < len(shown) else ""
            shown, start = before + shown[cut : cut + _SHOWN] + after, start - cut + len(before)
            width = min(width, len(shown) - start)
        self.caret = f"{shown}\n{' ' * start}{'^' * max(width, 1)}"


EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
SECONDS_PER_DAY = 86_400
# A year is kept free at both ends of what datetime can hold, so that no offset can lead out of it.
EARLIEST_S = -62_104_060_800
LATEST_S = 253_370_764_800


def to_seconds(at: datetime) -> int:
    """Convert an aware datetime to whole seconds since 1970 in UTC; a fraction is rounded down.

    >>> to_seconds(datetime(1970, 1, 1, 0, 0, 1, 999_999, tzinfo=UTC))
    1

    Raises:
        TypeError: `at` is naive.
    """
    since = at - EPOCH
    return since.days * SECONDS_PER_DAY + since.seconds


def from_seconds(second: int) -> datetime:
    """Convert whole seconds since 1970 to an aware datetime in UTC.

    >>> from_seconds(86_400).isoformat()
    '1970-01-02T00:00:00+00:00'
    """
    return EPOCH + timedelta(0, second)


_ONE_SECOND = timedelta(seconds=1)


@runtime_checkable
class Timetable(Protocol):
    """The nominal times of one schedule: whole seconds in UTC, ascending, no two equal.

    A timetable is a value. It reads no clock; asking twice gives the same answer. All arguments are aware datetimes
    in any zone, all results aware datetimes in UTC. A fraction of a second in an argument counts: 09:00:00 is not
    after 09:00:00, and it is before 09:00:00.5.
    """

    def next_after(self, after: datetime) -> datetime | None:
        """Return the first nominal time strictly after `after`, None if there is none."""

    def last_at_or_before(self, at: datetime) -> datetime | None:
        """Return the last nominal time not after `at`, None if there is none."""

    def count(self, after: datetime, until: datetime) -> int:
        """Return how many nominal times lie in (after, until]; never enumerates them."""

    def upcoming(self, after: datetime, limit: int) -> list[datetime]:
        """Return the first `limit` nominal times strictly after `after`, fewer where there are no more."""

    def first_n(self, after: datetime, until: datetime, n: int) -> list[datetime]:
        """Return the `n` oldest nominal times in (after, until], ascending."""

    def last_n(self, after: datetime, until: datetime, n: int) -> list[datetime]:
        """Return the `n` newest nominal times in (after, until], ascending."""

    def describe(self) -> str:
        """Return one line that says when this fires."""


class Sliced:
    """The slices, cut out of `next_after` and `last_at_or_before`; the work grows with the nominals returned."""

    __slots__ = ()

    def next_after(self, after: datetime) -> datetime | None:
        """Return the first nominal time strictly after `after`, None if there is none."""
        raise NotImplementedError

    def last_at_or_before(self, at: datetime) -> datetime | None:
        """Return the last nominal time not after `at`, None if there is none."""
        raise NotImplementedError

    def upcoming(self, after: datetime, limit: int) -> list[datetime]:
        """Return the first `limit` nominal times strictly after `after`, fewer where there are no more."""
        found: list[datetime] = []
        nominal = self.next_after(after)
        while nominal is not None and len(found) < limit:
            found.append(nominal)
            nominal = self.next_after(nominal)
        return found

    def first_n(self, after: datetime, until: datetime, n: int) -> list[datetime]:
        """Return the `n` oldest nominal times in (after, until], ascending."""
        found: list[datetime] = []
        nominal = self.next_after(after)
        while nominal is not None and nominal <= until and len(found) < n:
            found.append(nominal)
            nominal = self.next_after(nominal)
        return found

    def last_n(self, after: datetime, until: datetime, n: int) -> list[datetime]:
        """Return the `n` newest nominal times in (after, until], ascending."""
        found: list[datetime] = []
        nominal = self.last_at_or_before(until)
        while nominal is not None and nominal > after and len(found) < n:
            found.append(nominal)
            nominal = self.last_at_or_before(nominal - _ONE_SECOND)
        found.reverse()
        return found


_SHORTEST = timedelta(seconds=1)


@dataclass(frozen=True, kw_only=True, slots=True)
class EveryTimetable(Sliced):
    """Nominal times anchor + n x interval for every integer n, also negative: the anchor is a phase, not a bound.

    Attributes:
        anchor: an aware datetime; a fraction of a second is dropped.
        interval: whole seconds, at least one.
    """

    anchor: datetime
    interval: timedelta

    def __post_init__(self) -> None:
        if self.interval < _SHORTEST or self.interval % _SHORTEST:
            raise InvalidInput("the interval must be whole seconds, at least 1 s", where="every")
        object.__setattr__(self, "anchor", from_seconds(to_seconds(self.anchor)))

    def next_after(self, after: datetime) -> datetime | None:
        """Return the first nominal time strictly after `after`, None at the end of time."""
        return self._at(self._number(to_seconds(after)) + 1)

    def last_at_or_before(self, at: datetime) -> datetime | None:
        """Return the last nominal time not after `at`, None at the beginning of time."""
        return self._at(self._number(to_seconds(at)))

    def count(self, after: datetime, until: datetime) -> int:
        """Return how many nominal times lie in (after, until], by one subtraction."""
        return max(0, self._number(to_seconds(until)) - self._number(to_seconds(after)))

    def describe(self) -> str:
        """Return the interval, exactly.

        >>> from datetime import UTC
        >>> parse_every("90m", anchor=datetime(2026, 1, 1, tzinfo=UTC)).describe()
        'every 1h30m, exactly'
        """
        return f"every {format_duration(self.interval)}, exactly"

    def _number(self, second: int) -> int:
        return (second - to_seconds(self.anchor)) // (self.interval // _SHORTEST)

    def _at(self, number: int) -> datetime | None:
        second = to_seconds(self.anchor) + number * (self.interval // _SHORTEST)
        return from_seconds(second) if EARLIEST_S <= second < LATEST_S else None


def parse_every(text: str, *, anchor: datetime) -> EveryTimetable:
    """Make the timetable of an interval like `15m`, `90s`, `1h30m` or `every 2 hours`.

    Raises:
        InvalidInput: not a duration, or shorter than a second.
    """
    return EveryTimetable(anchor=anchor, interval=parse_duration(text, field="every"))


@dataclass(frozen=True, slots=True)
class Once(Sliced):
    """A single nominal time.

    Attributes:
        at: an aware datetime; a fraction of a second is rounded up, so that it is never early.
    """

    at: datetime

    def __post_init__(self) -> None:
        second = to_seconds(self.at) + (self.at.microsecond > 0)
        object.__setattr__(self, "at", from_seconds(second))

    def next_after(self, after: datetime) -> datetime | None:
        """Return the instant if it lies strictly after `after`."""
        return self.at if self.at > after else None

    def last_at_or_before(self, at: datetime) -> datetime | None:
        """Return the instant if it does not lie after `at`."""
        return self.at if self.at <= at else None

    def count(self, after: datetime, until: datetime) -> int:
        """Return 1 if the instant lies in (after, until], else 0."""
        return int(after < self.at <= until)

    def describe(self) -> str:
        """Return the instant in UTC.

        >>> from datetime import UTC
        >>> Once(datetime(2026, 11, 21, 9, tzinfo=UTC)).describe()
        'at 2026-11-21T09:00:00Z'
        """
        return f"at {self.at.isoformat().removesuffix('+00:00')}Z"


@dataclass(frozen=True, slots=True)
class Never(Sliced):
    """A timetable without nominal times."""

    def next_after(self, after: datetime) -> datetime | None:  # noqa: ARG002  as all timetables
        """Return None."""
        return None

    def last_at_or_before(self, at: datetime) -> datetime | None:  # noqa: ARG002
        """Return None."""
        return None

    def count(self, after: datetime, until: datetime) -> int:  # noqa: ARG002
        """Return 0."""
        return 0

    def describe(self) -> str:
        """Return what stands for a schedule.

        >>> Never().describe()
        'self-paced'
        """
        return "self-paced"


_LEAST = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class Bounded(Sliced):
    """The nominal times of a timetable from `start_at` to `end_at`.

    Attributes:
        timetable: whose nominal times.
        start_at, end_at: aware datetimes, both included; None for no bound.
    """

    timetable: Timetable
    start_at: datetime | None = None
    end_at: datetime | None = None

    def next_after(self, after: datetime) -> datetime | None:
        """Return the first nominal time within the bounds strictly after `after`, None if there is none."""
        nominal = self.timetable.next_after(self._not_before_start(after))
        ended = nominal is not None and self.end_at is not None and nominal > self.end_at
        return None if ended else nominal

    def last_at_or_before(self, at: datetime) -> datetime | None:
        """Return the last nominal time within the bounds not after `at`, None if there is none."""
        nominal = self.timetable.last_at_or_before(self._not_after_end(at))
        early = nominal is not None and self.start_at is not None and nominal < self.start_at
        return None if early else nominal

    def count(self, after: datetime, until: datetime) -> int:
        """Return how many nominal times within the bounds lie in (after, until]."""
        return self.timetable.count(self._not_before_start(after), self._not_after_end(until))

    def describe(self) -> str:
        """Return what the timetable says and the bounds there are.

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
        return after if self.start_at is None else max(after, self.start_at - _LEAST)

    def _not_after_end(self, until: datetime) -> datetime:
        return until if self.end_at is None else min(until, self.end_at)
