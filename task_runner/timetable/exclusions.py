"""A timetable that skips excluded days or spans of time."""

import re
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, date, datetime
from zoneinfo import ZoneInfo

from task_runner.timetable.timetable import EPOCH, LATEST_S, LEAST, SECONDS_PER_DAY, Timetable, from_seconds, to_seconds
from task_runner.timetable.wall_clock import first_shown
from task_runner.timetable.zones import PROBE_S, offsets_of
from turnkeeper.errors import InvalidInput

MOST_EXCLUDED = 2000
_DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", re.ASCII)
_WALL = re.compile(_DAY.pattern + r"T[0-9]{2}:[0-9]{2}(:[0-9]{2})?", re.ASCII)
Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Excluding(Timetable):
    """The scheduled times of a timetable that are outside all excluded spans.

    Attributes:
        spans: half-open, in seconds since 1970, ascending; no two spans touch.
    """

    timetable: Timetable
    spans: tuple[Span, ...]

    def next_after(self, after: datetime) -> datetime | None:
        """Return the first scheduled time after `after` outside the spans. Takes at most one step per span."""
        nominal = self.timetable.next_after(after)
        while nominal is not None and (span := self._around(nominal)):
            nominal = self.timetable.next_after(from_seconds(span[1]) - LEAST)
        return nominal

    def last_at_or_before(self, at: datetime) -> datetime | None:
        """Return the last scheduled time up to `at` that is outside the spans. Takes at most one step per span."""
        nominal = self.timetable.last_at_or_before(at)
        while nominal is not None and (span := self._around(nominal)):
            nominal = self.timetable.last_at_or_before(from_seconds(span[0]) - LEAST)
        return nominal

    def count(self, after: datetime, until: datetime) -> int:
        """Return the number of scheduled times in (after, until] that are outside the spans."""
        total = self.timetable.count(after, until)
        for start, end in self.spans:
            low, high = max(after, from_seconds(start) - LEAST), min(until, from_seconds(end) - LEAST)
            if low < high:
                total -= self.timetable.count(low, high)
        return total

    def describe(self) -> str:
        """Return the description of the underlying timetable."""
        return self.timetable.describe()

    def _around(self, nominal: datetime) -> Span | None:
        second = to_seconds(nominal)
        place = bisect_right(self.spans, (second, float("inf"))) - 1
        return self.spans[place] if place >= 0 and second < self.spans[place][1] else None


def excluding(timetable: Timetable, texts: Iterable[str], zone: ZoneInfo) -> Timetable:
    """Restrict a timetable by exclusions that :func:`check_excluded` accepted. Days are days of `zone`."""
    spans: list[Span] = []
    for start, end in sorted(_span(text, zone) for text in texts):
        if spans and start <= spans[-1][1]:
            spans[-1] = (spans[-1][0], max(end, spans[-1][1]))
        elif start < end:
            spans.append((start, end))
    return Excluding(timetable, tuple(spans)) if spans else timetable


def check_excluded(texts: Iterable[str], zone: ZoneInfo) -> tuple[str, ...]:
    """Return the exclusions in canonical form, sorted, without duplicates.

    An exclusion is a day (`2026-12-25`), days (`2026-12-24..2026-12-26`, both included) or a span of instants
    (`2026-12-24T12:00:00Z..2026-12-24T18:00:00Z`, half-open). Times without an offset are wall-clock times of the zone.

    Raises:
        InvalidInput: a string is not an exclusion, a span ends before it starts, or there are more than 2000.
    """
    written = sorted({text.strip() for text in texts})
    if len(written) > MOST_EXCLUDED:
        raise InvalidInput(f"{len(written)} exclusions are more than {MOST_EXCLUDED}", where="exclude")
    for text in written:
        start, end = _span(text, zone)
        first, _, last = text.partition("..")
        # A day that the zone skipped, or that is beyond the range of timetables, is an empty span, not an error.
        if first > last > "" if _DAY.fullmatch(first) else start >= end:
            raise InvalidInput(f"{text[:60]!r} ends before it starts", where="exclude")
    return tuple(written)


def _span(text: str, zone: ZoneInfo) -> Span:
    first, dots, last = text.partition("..")
    try:
        if _DAY.fullmatch(first) and (not dots or _DAY.fullmatch(last)):
            return _midnight(first, zone, 0), _midnight(last or first, zone, 1)
        start, end = datetime.fromisoformat(first), datetime.fromisoformat(last)
        if start.tzinfo is not None and end.tzinfo is not None:
            return to_seconds(start), to_seconds(end)
        if _WALL.fullmatch(first) and _WALL.fullmatch(last):
            return _shown(start, zone), _shown(end, zone)
    except (ValueError, OverflowError):
        pass
    hint = "write 2026-12-25, 2026-12-24..2026-12-26, or a file that ends in .ics"
    raise InvalidInput(f"{text[:60]!r} is not a day", where="exclude", hint=hint)


def _midnight(text: str, zone: ZoneInfo, later: int) -> int:
    """Return the instant when the day `later` days after a date begins, limited to the range of timetables."""
    days = date.fromisoformat(text).toordinal() - EPOCH.toordinal() + later
    return _first_shown(days * SECONDS_PER_DAY, zone)


def _shown(wall: datetime, zone: ZoneInfo) -> int:
    """Return the first instant when a zone's clock shows a time. If a gap skips the time, return the gap's end."""
    return _first_shown(to_seconds(wall.replace(tzinfo=UTC)), zone)


def _first_shown(local: int, zone: ZoneInfo) -> int:
    return to_seconds(first_shown(offsets_of(zone), min(local, LATEST_S - PROBE_S)))
