"""The calendar of the home: days when scheduled tasks do not fire."""

from turnkeeper.config.surfaces import Surface

SURFACE = Surface(
    name="calendar",
    settings=("calendar",),
    observers={"task-runner": "task_runner.scheduler.calendar.watch:Watch"},
    declared_in=("state/calendar.json",),
    offers={
        "calendar of a home": "task_runner.scheduler.calendar.calendar:use",
        "days off": "task_runner.scheduler.calendar.calendar:days_off",
        "notes of the calendar": "task_runner.scheduler.calendar.calendar:notes",
    },
    needs=("declarations",),
)
