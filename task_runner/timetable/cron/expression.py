"""A whole cron expression: from its text to a set of local times."""

import re
from functools import lru_cache, partial

from task_runner.timetable.cron.days import DayRule, Days, days_of
from task_runner.timetable.cron.fields import (
    DAY,
    HOUR,
    LAST,
    MINUTE,
    MONTH,
    SECOND,
    WEEKDAY,
    FieldText,
    FieldValues,
    parse_field,
)
from task_runner.timetable.instants import InvalidCron
from task_runner.timetable.local_times import DayTimes, LocalPattern

LONGEST = 256
_AROUND = " \t\r\n"
_KINDS = (SECOND, MINUTE, HOUR, DAY, MONTH, WEEKDAY)
_FIELDS = (5, 6)
_FIELD = re.compile(r"[^ \t]+")
_FULL_MONTH = (1 << 32) - 2
_FULL_WEEK = (1 << 7) - 1
_MACROS = {
    "@HOURLY": "0 * * * *",
    "@DAILY": "0 0 * * *",
    "@MIDNIGHT": "0 0 * * *",
    "@WEEKLY": "0 0 * * 0",
    "@MONTHLY": "0 0 1 * *",
    "@YEARLY": "0 0 1 1 *",
    "@ANNUALLY": "0 0 1 1 *",
}


def parse_expression(expression: str, *, name: str) -> LocalPattern:
    """Parse a cron expression of five fields, of six with seconds first, or a macro like `@daily`.

    Day of month and weekday: if both are restricted, a day that satisfies either is named.

    Source: crontab(5) for fields, names, lists and the rule of either day; Jenkins for `H`; Quartz for `L` and `#`.
    Where tools differ (`*/2` as a day of month restricts it; `5/2` as a weekday ends on Saturday) this follows
    croniter, but `5-5` is 5.

    Raises:
        InvalidCron: it cannot be read, or it names no day of any year.
    """
    # Without an H the name means nothing, and tasks with the same expression share one parsing.
    return _parsed(expression.strip(_AROUND), name if "H" in expression.upper() else "")


def forget_parsed() -> None:
    """Forget what equal expressions share, to measure the parsing itself."""
    _parsed.cache_clear()


@lru_cache(maxsize=4096)
def _parsed(expression: str, name: str) -> LocalPattern:
    _check_characters(expression)
    sources = _split(expression, name)
    second, minute, hour, day, month, weekday = map(parse_field, sources)
    days = _days(day, month, weekday, day_text=sources[3].text, weekday_text=sources[5].text)
    if not days.ever():
        raise sources[3].refused("it never fires: no chosen month has such a day")
    return LocalPattern(
        days=days,
        times=DayTimes(hour.mask, minute.mask, second.mask),
        fixed=not set("*/") & set(sources[1].text + sources[2].text),
    )


def _check_characters(expression: str) -> None:
    if len(expression) > LONGEST:
        raise InvalidCron(
            f"it is {len(expression)} characters long, more than {LONGEST}",
            expression=expression,
            start=0,
            width=1,
        )
    for place, sign in enumerate("" if expression.isascii() and expression.isprintable() else expression):
        if not (sign.isascii() and sign.isprintable()) and sign != "\t":
            raise InvalidCron(f"{sign!r} has no meaning in cron", expression=expression.strip(), start=place, width=1)


def _split(expression: str, name: str) -> list[FieldText]:
    typed = expression.replace("\t", " ")
    refused = partial(InvalidCron, expression=typed)
    if typed.startswith("@"):
        macro = _MACROS.get(typed.upper())
        if macro is None:
            hint = f"one of {' '.join(_MACROS).lower()}"
            raise refused(f"{typed} is not known", start=0, width=len(typed), hint=hint)
        typed = macro
    places = [(found.start(), found[0]) for found in _FIELD.finditer(typed)]
    if len(places) not in _FIELDS:
        start, last = places[min(len(places), 7) - 1] if places else (0, "")
        start, width = (start, len(last)) if len(places) > max(_FIELDS) else (len(typed) + 1, 1)
        raise refused(f"it has {len(places)} fields, not 5, or 6 with seconds first", start=start, width=width)
    if len(places) == min(_FIELDS):
        places.insert(0, (0, "0"))
    return [
        FieldText(kind=kind, text=text.upper(), expression=typed, start=start, width=len(text), name=name)
        for kind, (start, text) in zip(_KINDS, places, strict=True)
    ]


def _days(day: FieldValues, month: FieldValues, weekday: FieldValues, *, day_text: str, weekday_text: str) -> Days:
    # A list of all days restricts nothing beside a field with a `*`, but beside a plain one it does.
    any_day = day.star or (day.mask == _FULL_MONTH and "*" in weekday_text)
    any_weekday = weekday.star or (weekday.mask == _FULL_WEEK and "*" in day_text)
    rule = DayRule(
        days=day.mask,
        last_day=(0, LAST) in day.nth,
        months=month.mask,
        weekdays=weekday.mask,
        nth=weekday.nth,
        either=not (any_day or any_weekday),
    )
    return days_of(rule)
