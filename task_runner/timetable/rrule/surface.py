"""Recurrence rules of RFC 5545 as schedules."""

from turnkeeper.config.surfaces import Surface

SURFACE = Surface(name="recurrence", offers={"recurrence rules": "task_runner.timetable.rrule:parse_rrule"})
