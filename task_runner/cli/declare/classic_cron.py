"""The days that a cron expression names, if a reader may expect others: those of classic cron, or every second week."""

from dataclasses import replace

from task_runner.timetable.cron import AROUND, CronDays, Field, fields_of, parsed

_DAYS = ("Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat")
_ALL_SHAPES = 28 * 365 + 7  # days after 1 January 1970 within which each shape of a year has occurred


def otherwise_in_classic_cron(expression: str) -> str:
    """Describe how classic cron combines the two day fields, if it would fire on other days. Otherwise return "".

    In classic cron a field that begins with a star is unrestricted, so both fields of `*/2 * 1` must match.

    Raises:
        InvalidCron: the expression cannot be read, or it never fires.

    Source: Vixie cron, which stores a flag for a field that begins with a star.
    """
    typed = expression.strip(AROUND)
    days = parsed(typed, "").days
    assert isinstance(days, CronDays)
    _, minute, hour, day, _, weekday = fields_of(typed, "")
    classic = replace(days, either=not (day.text.startswith("*") or weekday.text.startswith("*")))
    # The days that match both fields are a subset of the days that match either, so equal counts mean equal days.
    if classic.count(0, _ALL_SHAPES) == days.count(0, _ALL_SHAPES):
        return ""
    here, there = ("either", "both") if days.either else ("both", "either")
    return (
        f"classic cron names days that match {there} of {day.text} (day of month) and {weekday.text} (weekday), "
        f"a cron expression here names days that match {here}; {_remedy(days, minute, hour)}"
    )


def misread(expression: str) -> list[str]:
    """Describe the days of an expression that is easily misread. Return an empty list for any other expression.

    Raises:
        InvalidCron: the expression cannot be read, or it never fires.
    """
    typed = expression.strip(AROUND)
    _, minute, hour, day, _, weekday = fields_of(typed, "")
    days = parsed(typed, "").days
    assert isinstance(days, CronDays)
    numbers = sorted(days.weekdays)
    other = otherwise_in_classic_cron(typed)
    parts = [f"{typed}: {other}"] if other else []
    if "/" in weekday.text and not weekday.text.startswith("H") and not other and len(numbers) > 1:
        *first, last = (_DAYS[number] for number in numbers)
        parts = [f"{typed} fires each week on {', '.join(first)} and {last}"]
    if "/" in day.text + weekday.text and parts:
        rule = ["FREQ=WEEKLY;INTERVAL=2", f"BYDAY={_DAYS[numbers[0]][:2].upper()}", *_times(minute, hour)]
        parts.append(f"to fire every second week: --rrule '{';'.join(rule)}'")
    return ["; ".join(parts)] if parts else []


def _remedy(days: CronDays, minute: Field, hour: Field) -> str:
    """Return how to write the days of classic cron: as a rule if a day must match both fields, else as two tasks."""
    if not days.either:
        return "create a task for each of the two"
    if days.last_day or days.nth:
        return "write it as --rrule"
    names = ",".join(_DAYS[day][:2].upper() for day in sorted(days.weekdays))
    parts = [f"BYMONTH={','.join(map(str, sorted(days.months)))}"] if len(days.months) < 12 else []
    parts.append(f"BYMONTHDAY={','.join(map(str, sorted(days.month_days)))}")
    return f"write it as --rrule 'FREQ=DAILY;{';'.join([*parts, f'BYDAY={names}', *_times(minute, hour)])}'"


def _times(minute: Field, hour: Field) -> list[str]:
    named = zip(("BYHOUR", "BYMINUTE"), (hour, minute), strict=True)
    return [f"{name}={','.join(map(str, sorted(one.values()[0])))}" for name, one in named]
