"""The page of schedules by example."""

from datetime import UTC, datetime

from task_runner.timetable import parse_cron, zone
from task_runner.timetable.rrule import parse_rrule
from turnkeeper.errors import InvalidInput

AFTER = datetime(2026, 11, 22, tzinfo=UTC)  # a Sunday
CRON = {
    "30 9 * * 1-5": "each working day",
    "*/15 * * * *": "steps from the start of the field",
    "5/15 * * * *": "steps from 5",
    "0 22-2 * * *": "a range that runs over the end of the field",
    "0 9 * jan mon": "names of months and weekdays; Sunday is 0 or 7",
    "0 9 L * *": "the last day of the month",
    "0 9 * * L5": "the last Friday; also `5L`, `friL` and `Lfri`, which croniter refuses",
    "0 9 * * 1#2": "the second Monday",
    "0 9 * * tue,1#2": "every Tuesday, and the second Monday; croniter refuses it",
    "0 9 * * *,sat#3": "every day, because `*` is in the list; for croniter the third Saturday",
    "0 9 13 * 5": "a day that satisfies either field",
    "0 9 1 * 1#2": "the same; croniter ignores the day of month",
    "0 9 * * 5-5": "Friday; for croniter every day",
    "30 0 9 * * *": "six fields: seconds come first, for croniter last",
    "H H * * *": "values chosen by the name of the task and the field; in day of month 1 to 28",
    "H/15 H(0-8) * * *": "the same, in steps and in a range",
    "@daily": "midnight; also `@hourly`, `@weekly`, `@monthly` and `@yearly`. croniter can hash them",
    "0 22-2/2 * * *": "for croniter a step that runs over the end of the field",
    "R 9 * * *": "a random value could not be repeated",
    "0 9 15W * *": "",
    "0 9 ? * 1": "",
    "0 9 * * * * 2027": "a field for years",
    "0 9 30 2 *": "an expression that never fires",
}
RRULE = {
    "FREQ=MONTHLY;BYDAY=-1FR;BYHOUR=9;BYMINUTE=0": "the last Friday of each month",
    "FREQ=DAILY;BYHOUR=9": "without `BYMINUTE`, the minute of the start",
    "DTSTART:20260302T090000 FREQ=DAILY;INTERVAL=3": "every third day from a start, in the task's zone",
    "DTSTART;VALUE=DATE:20260302 FREQ=YEARLY": "a day as the start",
    "FREQ=DAILY;BYMONTHDAY=1,3,5;BYDAY=MO;BYHOUR=0;BYMINUTE=0": "both conditions have to hold",
    "FREQ=SECONDLY": "use `--every`",
    "FREQ=MINUTELY;INTERVAL=7": "an interval that does not divide the hour",
    "FREQ=HOURLY;INTERVAL=5": "one that does not divide the day",
    "FREQ=DAILY;INTERVAL=1001": "",
    "FREQ=DAILY;COUNT=10001": "",
    "FREQ=DAILY;COUNT=3;UNTIL=20270101T000000Z": "",
    "FREQ=DAILY;BYSECOND=0,30": "",
    "FREQ=DAILY;BYSECOND=60": "",
    "FREQ=DAILY;BYHOUR=9,17;BYSETPOS=1": "",
    "FREQ=HOURLY;BYSETPOS=1": "",
    "FREQ=MONTHLY;BYSETPOS=1": "",
    "FREQ=WEEKLY;BYDAY=1MO": "",
    "FREQ=WEEKLY;BYMONTHDAY=1": "",
    "FREQ=MONTHLY;BYYEARDAY=100": "",
    "FREQ=MONTHLY;BYWEEKNO=20": "",
    "DTSTART;TZID=Europe/Riga:20260302T090000 FREQ=DAILY": "a zone other than the task's",
    "DTSTART:19600302T090000Z FREQ=DAILY": "",
    "FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=30": "a rule that never fires",
    "FREQ=DAILY;FREQ=WEEKLY": "",
    "FREQ=DAILY;BYEASTER=0": "",
    "FREQ=DAILY EXDATE:20261225T000000": "use `--exclude`",
}


def cron_rows() -> list[tuple[str, str, str]]:
    """Return the rows of cron expressions."""
    return [(f"`{text}`", _times_of_cron(text), says) for text, says in CRON.items()]


def rrule_rows() -> list[tuple[str, str, str]]:
    """Return the rows of recurrence rules."""
    return [(f"`{text}`", _times_of_rule(text), says) for text, says in RRULE.items()]


def _times_of_cron(text: str) -> str:
    try:
        return _shown(parse_cron(text, name="digest", zone=zone("UTC")).upcoming(AFTER, 3))
    except InvalidInput as error:
        return _refused(error)


def _times_of_rule(text: str) -> str:
    try:
        return _shown(parse_rrule(text, zone=zone("UTC"), anchor=AFTER).upcoming(AFTER, 3))
    except InvalidInput as error:
        return _refused(error)


def _shown(times: list[datetime]) -> str:
    return ", ".join(f"{at:%a %Y-%m-%d %H:%M:%S}".removesuffix(":00") for at in times)


def _refused(error: InvalidInput) -> str:
    return f"refused: {error.what}" + (f"; {error.hint}" if error.hint else "")
