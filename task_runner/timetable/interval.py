"""A fixed interval in UTC, counted from an anchor."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from task_runner.timetable.instants import EARLIEST_S, LATEST_S, from_seconds, to_seconds
from task_runner.timetable.protocol import Sliced
from turnkeeper.errors import InvalidInput
from turnkeeper.times import format_duration, parse_duration

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
