"""Conversion of a user's exclusions: days stay unchanged, calendar files become the days and spans of their events.

A library computes when recurring events take place. Calendars come from outside, so each event is checked first. The
check limits the work, and refuses or reports events that the library would silently ignore.
"""

from collections.abc import Iterable, Iterator
from datetime import UTC, date, datetime, timedelta
from importlib import import_module
from pathlib import Path
from typing import Any

from task_runner.timetable import MOST_EXCLUDED, Timetable, zone
from turnkeeper import console
from turnkeeper.clock import SystemClock
from turnkeeper.config.build import install_command
from turnkeeper.config.surfaces import required
from turnkeeper.config.toml_file import read_text
from turnkeeper.errors import InvalidInput
from turnkeeper.times import rfc3339

CALENDAR = ".ics"
# Bounds, in years, of the parts in which events are read. Most oversized calendars are detected in the first part.
_YEARS = (0, 1, 2, 4, 10)
_MOST_READ = 10_000
_AGAIN = "before then, read the calendar again: apply the file, or edit the task"
# A rule is expanded from its start. The limit allows an hourly event for five years, or one per workday for a century.
_MOST_REPEATED = 50_000
_DAY = timedelta(days=1)
_FIRST = datetime(2, 1, 1, tzinfo=UTC)
_TIMES = ("DTSTART", "DTEND", "DURATION", "RRULE", "RDATE", "EXDATE", "RECURRENCE-ID", "EXRULE", "STATUS")
_UNREADABLE = (ValueError, KeyError, TypeError, AttributeError, OverflowError, InvalidInput)


def read_exclusions(texts: Iterable[str], folder: Path, now: datetime | None = None) -> list[str]:
    """Replace each `.ics` file, relative to `folder`, by the exclusions of its events.

    Events count from the first day of last month on. So catch-up still sees past exclusions, and a second reading of an
    unchanged file on the next day changes nothing. If later events are ignored, a note gives the first ignored day.

    Raises:
        NotFound: a file does not exist.
        InvalidInput: a file is not a calendar, or the times of an event cannot be determined.
    """
    begin = _begin(now or SystemClock().now())
    given: list[str] = []
    covered = set[str]()
    for item in (part.strip() for text in texts for part in text.split(",")):
        if item.lower().endswith(CALENDAR):
            covered |= _covered(folder / item, begin)
        else:
            given.append(item)
    ordered, room = sorted(covered.difference(given)), max(0, MOST_EXCLUDED - len(given))
    if len(ordered) > room:
        what = f"events from {ordered[room][:10]} on are left out: a task accepts {MOST_EXCLUDED} exclusions"
        console.note(f"warning: {what}; {_AGAIN}")
    return list(dict.fromkeys([*given, *ordered[:room]]))


def read_calendar(path: Path, now: datetime) -> list[str]:
    """Return the exclusions of the events of a file, as :func:`read_exclusions` does. Raises its errors."""
    return sorted(_covered(path, _begin(now)))[:MOST_EXCLUDED]


def _begin(now: datetime) -> datetime:
    """Return the start of last month."""
    first = now.astimezone(UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    return (first - _DAY).replace(day=1)


def _covered(path: Path, begin: datetime) -> set[str]:
    """Return the days and spans of a calendar file for ten years, or fewer if a task cannot hold so many."""
    text, found = read_text(path), set[str]()
    try:
        read = import_module("icalendar").Calendar.from_ical
        occurrences = import_module("recurring_ical_events")
    except ImportError as error:
        what, hint = "cannot be read: the package for calendars is missing", install_command("turnkeeper[calendars]")
        raise InvalidInput(what, where=str(path), hint=hint) from error
    try:
        calendars: Any = read(text, multiple=True)
        if not calendars:
            raise InvalidInput("it is empty")
        for calendar in calendars:
            for event in calendar.walk("VEVENT"):
                _check(event, begin)
            for note in _left_out(calendar):
                console.note(f"warning: {path}: {note}")
            covered, end = _expanded(_query(occurrences, calendar), begin)
            found |= covered
            if len(covered) <= MOST_EXCLUDED and any(_is_after(event, end) for event in calendar.walk("VEVENT")):
                console.note(f"warning: {path}: events from {end:%Y-%m-%d} on are left out; {_AGAIN}")
    except _UNREADABLE as error:
        raise InvalidInput(f"cannot be read as a calendar: {error}", where=str(path)) from error
    return found


def _query(occurrences: Any, calendar: Any) -> Any:
    """Return the library's query for the events of a calendar."""

    class Covering(occurrences.EventAdapter):  # type: ignore[misc]  # the library has no types
        """An event whose occurrences become exclusions. Unlike the library, this class copies no event."""

        def __init__(self, event: Any) -> None:
            super().__init__(event)
            self._is_off = str(event.get("STATUS", "")).upper() == "CANCELLED"

        def as_component(self, start: date, stop: date, _keep: object) -> dict[str, str]:
            """Return the exclusion of an occurrence as `covers`; "" if the event is cancelled or has no length."""
            return {"covers": "" if self._is_off else _written(start, stop)}

    return occurrences.of(calendar, components=[occurrences.ComponentsWithName("VEVENT", Covering)])


def _expanded(query: Any, begin: datetime) -> tuple[set[str], datetime]:
    """Return a query's exclusions and the end of the period read. Stop at more exclusions than a task allows."""
    found, read, last = set[str](), 0, begin
    for years in _YEARS[1:]:
        if len(found) <= MOST_EXCLUDED and read <= _MOST_READ:
            first, last = last, begin.replace(year=begin.year + years)
            covered = [each["covers"] for each in query.between(first, last)]
            found, read = found.union(covered), read + len(covered)
    return found - {""}, last


def _written(start: date, end: date) -> str:
    """Convert an occurrence to an exclusion; empty if it has no length."""
    if not isinstance(start, datetime):
        last = max(start, end - _DAY)
        return start.isoformat() if last == start else f"{start}..{last}"
    assert isinstance(end, datetime)
    # Write a time without a zone unchanged, because the task's zone applies to the exclusion.
    return "" if end <= start else f"{_instant(start)}..{_instant(end)}"


def _instant(at: datetime) -> str:
    return rfc3339(at) if at.tzinfo else at.isoformat(timespec="seconds")


def _left_out(calendar: Any) -> Iterator[str]:
    """Yield a note for each component of a calendar that excludes no time."""
    others = [part.name for part in calendar.subcomponents if part.name not in {"VEVENT", "VTIMEZONE"}]
    for name in dict.fromkeys(others):
        yield f"{others.count(name)} {name} are left out: only events exclude times"
    known = set[tuple[str, str]]()
    for event in calendar.walk("VEVENT"):
        version = (str(event.get("UID", "")), str(event["RECURRENCE-ID"].dt) if "RECURRENCE-ID" in event else "")
        if version[0] and version in known:
            yield f"{_named(event)} has the UID of another event; the event with the highest SEQUENCE counts"
        known.add(version)
        if "DTSTART" in event and isinstance(event.start, datetime) and event.start == event.end:
            yield f"{_named(event)} has no length and excludes nothing"


def _named(event: Any) -> str:
    start = event["DTSTART"].to_ical().decode() if "DTSTART" in event else "no date"
    return f"the event {str(event.get('SUMMARY', ''))[:60]!r} of {start[:30]}"


def _check(event: Any, begin: datetime) -> None:
    """Raise InvalidInput if the times of an event cannot be determined, or if the event repeats too often."""
    try:
        broken = sorted({name for name, _ in event.errors} & set(_TIMES))
        if broken or "EXRULE" in event:
            raise InvalidInput("cannot be read", where=", ".join(broken or ["EXRULE"]))
        if event.end < event.start:
            raise InvalidInput("it ends before it starts")
        for named, at in (pair for name in _TIMES for pair in _times(event, name)):
            if named and isinstance(at, datetime) and at.tzinfo is None:
                raise InvalidInput(f"{named!r} is not a time zone")
        for table in _tables(event):
            if table.count(_FIRST, begin.replace(year=begin.year + _YEARS[-1])) > _MOST_REPEATED:
                raise InvalidInput(f"it repeats more than {_MOST_REPEATED} times")
    except _UNREADABLE as error:
        raise InvalidInput(f"{_named(event)}: {error}", hint="correct the event, or remove it") from error


def _times(event: Any, name: str) -> Iterator[tuple[str, date]]:
    """Yield the times of a property (for a period, its start) with the time zone that the property names."""
    for value in _listed(event, name):
        for each in getattr(value, "dts", [value]):
            at = getattr(each, "dt", None)
            if isinstance(at := at[0] if isinstance(at, tuple) else at, date):
                yield value.params.get("TZID", ""), at


def _is_after(event: Any, end: datetime) -> bool:
    starts = [event.start, *(at for _, at in _times(event, "RDATE"))]
    return max(map(_naive, starts)) >= end.replace(tzinfo=None) or any(
        table.next_after(end) for table in _tables(event)
    )


def _tables(event: Any) -> Iterator[Timetable]:
    """Yield the timetables of an event's rules. Raises InvalidInput for a rule that `--rrule` refuses."""
    for rule in _listed(event, "RRULE"):
        # The times are those of the event's own wall clock. Read them as UTC, which neither skips nor repeats a time.
        anchor = _naive(event.start).replace(tzinfo=UTC)
        yield required("recurrence rules", rule.to_ical().decode(), zone("UTC"), anchor)


def _naive(at: date) -> datetime:
    return at.replace(tzinfo=None) if isinstance(at, datetime) else datetime.combine(at, datetime.min.time())


def _listed(event: Any, name: str) -> list[Any]:
    value = event.get(name, [])
    return value if isinstance(value, list) else [value]
