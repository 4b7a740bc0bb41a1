"""Pure timetables that compute when a task fires: cron expressions, intervals and single instants.

A timetable reads no clock and does no I/O; callers pass the time. Scheduled times are whole seconds in UTC.
"""

from task_runner.timetable.cron import CronTimetable, InvalidCron, parse_cron
from task_runner.timetable.exclusions import MOST_EXCLUDED, check_excluded, excluding
from task_runner.timetable.timetable import LEAST, Bounded, EveryTimetable, Never, Once, Timetable, parse_every, zone

__all__ = [
    "LEAST",
    "MOST_EXCLUDED",
    "Bounded",
    "CronTimetable",
    "EveryTimetable",
    "InvalidCron",
    "Never",
    "Once",
    "Timetable",
    "check_excluded",
    "excluding",
    "parse_cron",
    "parse_every",
    "zone",
]
