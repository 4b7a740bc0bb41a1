"""Exclusions as people give them: days as they are, calendar files as the days and spans of their events."""

from collections.abc import Iterable, Iterator
from datetime import UTC, date, datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import Any

from icalendar import Calendar

from task_runner.timetable import LEAST, MOST_EXCLUDED, parse_rrule, zone
from turnkeeper.clock import SystemClock
from turnkeeper.config.toml_file import read_text
from turnkeeper.errors import InvalidInput
from turnkeeper.times import rfc3339

CALENDAR = ".ics"
# A repeated event is written out for that long: a file can be read again before it runs out.
HORIZON = timedelta(days=3653)
_MOST_REPEATED = 1000
_DAY = timedelta(days=1)


def read_exclusions(texts: Iterable[str], folder: Path) -> list[str]:
    """Return exclusions with each `.ics` file, found from `folder`, replaced by what its events cover.

    Raises:
        NotFound: no such file.
        InvalidInput: a file that is no calendar.
    """
    found: list[str] = []
    for text in texts:
        for item in (part.strip() for part in text.split(",")):
            # One more than a task can have: enough to be told so.
            found += islice(_events(folder / item), MOST_EXCLUDED + 1) if item.lower().endswith(CALENDAR) else [item]
    return list(dict.fromkeys(found))


def _events(path: Path) -> Iterator[str]:
    text = read_text(path)
    try:
        calendar = Calendar.from_ical(text)
        for event in calendar.walk("VEVENT"):
            yield from _written(event)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, InvalidInput) as error:
        raise InvalidInput(f"cannot be read as a calendar: {error}", where=str(path)) from error


def _written(event: Any) -> list[str]:
    start, end = event.start, event.end
    if not isinstance(start, datetime):
        days = max(1, (end - start).days)
        return [_days(first, days) for first in _repeated(event, start)]
    span = end - start
    return [_span(first, span) for first in _repeated(event, start)]


def _days(first: date, days: int) -> str:
    first = first.date() if isinstance(first, datetime) else first
    return first.isoformat() if days == 1 else f"{first}..{first + (days - 1) * _DAY}"


def _span(first: date, span: timedelta) -> str:
    assert isinstance(first, datetime)
    start = first if first.tzinfo is not None else first.astimezone()
    return f"{rfc3339(start)}..{rfc3339(start.astimezone(UTC) + span)}"


def _repeated(event: Any, start: date) -> Iterator[date]:
    """Yield when an event takes place, in the ten years to come if it repeats."""
    if "RRULE" not in event:
        yield start
        return
    rules = event["RRULE"]
    rule: Any = rules[0] if isinstance(rules, list) else rules
    at = start if isinstance(start, datetime) else datetime.combine(start, datetime.min.time())
    naive = at.replace(tzinfo=None)
    limits = rule.pop("UNTIL", [])
    last = min([SystemClock().now().replace(tzinfo=None) + HORIZON, *(_naive(limit, at) for limit in limits)])
    without = {_naive(day.dt, at) for day in _listed(event.get("EXDATE"))}
    # Read as times of UTC, which skips and repeats none: these are times of the event's own wall clock.
    first = naive.replace(tzinfo=UTC)
    table = parse_rrule(rule.to_ical().decode(), zone=zone("UTC"), anchor=first)
    for each in table.upcoming(first - LEAST, _MOST_REPEATED, until=last.replace(tzinfo=UTC)):
        if each.replace(tzinfo=None) not in without:
            yield each.replace(tzinfo=at.tzinfo)


def _naive(limit: date, like: datetime) -> datetime:
    """Return a limit as the wall clock of the event shows it; a whole day lasts until its end."""
    if not isinstance(limit, datetime):
        return datetime.combine(limit, datetime.max.time() if like.hour else datetime.min.time())
    return (
        limit.astimezone(like.tzinfo).replace(tzinfo=None)
        if limit.tzinfo and like.tzinfo
        else limit.replace(tzinfo=None)
    )


def _listed(excluded: Any) -> list[Any]:
    each = excluded if isinstance(excluded, list) else [] if excluded is None else [excluded]
    return [day for one in each for day in one.dts]
