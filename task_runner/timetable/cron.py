"""Cron in a zone: local times turned into instants by one rule for fixed times and one for the others.

A **fixed** time (hour and minute are plain lists) fires at the first instant at which the wall clock shows it or a
later time. So one that a gap skips fires when the gap ends, all that one gap skips share that one nominal, and one
that is shown twice fires the first time. With a wildcard or a step in hour or minute, every instant fires at which
the wall clock shows a named time: a repeated hour fires twice, a skipped one not at all.
"""

from dataclasses import dataclass, field
from datetime import datetime
from zoneinfo import ZoneInfo

from task_runner.timetable.expression import parse_expression
from task_runner.timetable.instants import (
    EARLIEST_S,
    LATEST_S,
    SECONDS_PER_DAY,
    from_seconds,
    to_seconds,
)
from task_runner.timetable.offsets import Stretch, ZoneOffsets, offsets_of
from task_runner.timetable.pattern import LocalPattern
from task_runner.timetable.protocol import Sliced

# A fifth Sunday in February returns after at most 40 years; only a time that a zone always skips takes longer.
HORIZON_S = 100 * 366 * SECONDS_PER_DAY


@dataclass(frozen=True, kw_only=True, slots=True)
class CronTimetable(Sliced):
    """The nominal times of a cron expression in a zone; made by :func:`parse_cron`.

    Searches end after a hundred years: `next_after` is None for an expression whose every time the zone skips, such
    as a step within the hour that daylight saving takes away each year.

    Attributes:
        expression: as typed.
        zone: whose wall clock it reads.
        pattern: its local times.
    """

    expression: str
    zone: ZoneInfo
    pattern: LocalPattern = field(repr=False)
    offsets: ZoneOffsets = field(repr=False, compare=False)

    def next_after(self, after: datetime) -> datetime | None:
        """Return the first nominal time strictly after `after`, None if there is none in a hundred years."""
        second = max(to_seconds(after) + 1, EARLIEST_S)
        horizon = min(second + HORIZON_S, LATEST_S)
        while second < horizon:
            stretch = self.offsets.at(second)
            local = self.pattern.first_from(self._low(stretch, second), stretch.end + stretch.offset)
            if local is not None:
                return from_seconds(max(stretch.start, local - stretch.offset))
            second = stretch.end
        return None

    def last_at_or_before(self, at: datetime) -> datetime | None:
        """Return the last nominal time not after `at`, None if there is none in a hundred years."""
        second = min(to_seconds(at), LATEST_S - 1)
        horizon = max(second - HORIZON_S, EARLIEST_S)
        while second >= horizon:
            stretch = self.offsets.at(second)
            local = self.pattern.last_until(second + stretch.offset, self._low(stretch, stretch.start))
            if local is not None:
                return from_seconds(max(stretch.start, local - stretch.offset))
            second = stretch.start - 1
        return None

    def count(self, after: datetime, until: datetime) -> int:
        """Return how many nominal times lie in (after, until]; the work grows with the years between."""
        first = max(to_seconds(after) + 1, EARLIEST_S)
        end = min(to_seconds(until) + 1, LATEST_S)
        total = 0
        while first < end:
            stretch = self.offsets.at(first)
            low = self._low(stretch, first)
            total += self._count(stretch, low, min(end, stretch.end) + stretch.offset)
            first = stretch.end
        return total

    def describe(self) -> str:
        """Return the expression as typed."""
        return self.expression

    def _low(self, stretch: Stretch, second: int) -> int:
        """Return the first local time that belongs to the stretch from `second` on.

        At its start that is its floor, which lies in a gap below the first local time shown: the fixed times between
        fire at the start.
        """
        local = second + stretch.offset
        if not self.pattern.fixed:
            return local
        return stretch.floor if second == stretch.start else max(local, stretch.floor)

    def _count(self, stretch: Stretch, low: int, end: int) -> int:
        shown = stretch.start + stretch.offset
        if low >= shown:
            return self.pattern.count(low, end)
        skipped = self.pattern.count(low, shown + 1)
        return min(skipped, 1) + self.pattern.count(shown + 1, end)


def parse_cron(expression: str, *, name: str, zone: ZoneInfo) -> CronTimetable:
    """Make the timetable of a cron expression; `name` is what `H` hashes.

    >>> from datetime import UTC
    >>> cron = parse_cron("30 9 * * mon-fri", name="standup", zone=ZoneInfo("Europe/Riga"))
    >>> cron.next_after(datetime(2026, 11, 20, 12, tzinfo=UTC)).isoformat()
    '2026-11-23T07:30:00+00:00'

    Raises:
        InvalidCron: the expression cannot be read, or it never fires; its `caret` shows where.
    """
    return CronTimetable(
        expression=expression.strip(),
        zone=zone,
        pattern=parse_expression(expression, name=name),
        offsets=offsets_of(zone),
    )
