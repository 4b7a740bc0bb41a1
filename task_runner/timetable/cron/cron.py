"""Cron in a zone.

A time is fixed where hour and minute are plain lists; how fixed times and the others meet a clock change is the rule of
:mod:`task_runner.timetable.wall_clock`.
"""

from dataclasses import dataclass
from zoneinfo import ZoneInfo

from task_runner.timetable.cron.expression import parse_expression
from task_runner.timetable.offsets import offsets_of
from task_runner.timetable.wall_clock import WallClock


@dataclass(frozen=True, kw_only=True, slots=True)
class CronTimetable(WallClock):
    """The nominal times of a cron expression in a zone; made by :func:`parse_cron`.

    Attributes:
        expression: as typed.
    """

    expression: str

    def describe(self) -> str:
        """Return the expression as typed."""
        return self.expression


def parse_cron(expression: str, *, name: str, zone: ZoneInfo) -> CronTimetable:
    """Make the timetable of a cron expression; `name` is what `H` hashes.

    >>> from datetime import UTC, datetime
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
