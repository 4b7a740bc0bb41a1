"""The home's calendar: the `.ics` file that `[calendar] file` in config.toml names.

A task with a cron expression, an interval or a recurrence rule excludes the days of the calendar's events, unless the
task ignores the calendar. The runner keeps the newest readable days in `state/calendar.json`. If the file becomes
unreadable, the runner uses those days, and `status` names the error.
"""

import hashlib
import json
from typing import Any, NamedTuple

from task_runner.timetable import check_excluded, zone
from turnkeeper.clock import SystemClock
from turnkeeper.config.home import Home
from turnkeeper.config.surfaces import required
from turnkeeper.config.toml_file import said_in
from turnkeeper.errors import InvalidInput, TurnkeeperError
from turnkeeper.storage.files import replace_whole
from turnkeeper.v1 import schedules_pb2 as wire

SUFFIX = ".ics"
STATE = "state/calendar.json"
MOST_NOTED = 20  # the most excluded times that a preview names
_FIX = "correct it, or clear [calendar] file in config.toml"


class Calendar(NamedTuple):
    """The calendar of a home.

    Attributes:
        days: exclusions, as :func:`task_runner.timetable.check_excluded` writes them.
        key: a digest of the file, and the month of the reading; events before the preceding month do not count.
        trouble: why the file cannot be read; empty if it can.
    """

    days: tuple[str, ...] = ()
    file: str = ""
    key: str = ""
    trouble: str = ""


class _Used:
    """The calendar that this process uses."""

    calendar = Calendar()


def use(home: Home) -> Calendar:
    """Read the calendar of a home, and use it in this process from now on."""
    _Used.calendar = found = read(home, SystemClock().now())
    return found


def current() -> Calendar:
    """Return the calendar that this process uses."""
    return _Used.calendar


def days_off() -> tuple[str, ...]:
    """Return the exclusions of the calendar in use."""
    return _Used.calendar.days


def read(home: Home, now: Any) -> Calendar:
    """Return the calendar of a home, from its file, or else from the days kept when the file was last readable."""
    said = said_in(home.config, "calendar")
    file = said.get("file", "") if isinstance(said, dict) else ""
    if not file:
        return Calendar()
    before = kept(home)
    try:
        if not isinstance(file, str) or not file.lower().endswith(SUFFIX):
            raise InvalidInput(f"{file!r} does not end in {SUFFIX}", where="[calendar] file")
        path = home.root / file
        key = f"{hashlib.sha256(path.read_bytes()).hexdigest()[:32]} {now:%Y-%m}"
        if before.key == key:
            return before._replace(file=file)
        days = check_excluded(required("calendar file", path, now), zone("UTC"))
    except (OSError, TurnkeeperError) as error:
        counts = "its last readable days apply" if before.days else "no day is excluded"
        why = f"the calendar {file} cannot be read, so {counts}: {error}; {_FIX}"
        return Calendar(before.days, str(file), before.key, why)
    return Calendar(days, file, key)


def kept(home: Home) -> Calendar:
    """Return the days that the runner last planned with. It has no days if config.toml has never named a calendar."""
    try:
        said = json.loads((home.root / STATE).read_text())
        return Calendar(tuple(map(str, said["days"])), "", str(said["key"]))
    except (OSError, ValueError, TypeError, KeyError):
        return Calendar()


def keep(home: Home, calendar: Calendar) -> None:
    """Keep the days that the runner plans with now."""
    replace_whole(home.root / STATE, json.dumps({"key": calendar.key, "days": calendar.days}).encode())


def notes(chosen: Any, task: wire.Task, request: wire.PreviewScheduleRequest, answer: Any) -> list[str]:
    """Return sentences for a preview of times: the times that the calendar excludes, or why it cannot be read.

    Args:
        chosen: the runner, which answers the preview.
        task: the previewed task; empty if the request contains a schedule.
    """
    if chosen.homeless or not (found := read(chosen.home, SystemClock().now())).file:
        return []
    bare = wire.PreviewScheduleRequest(
        spec=task.spec if request.name else request.spec, count=request.count + MOST_NOTED
    )
    bare.spec.ignore_calendar = True
    if bare.spec.every and task.HasField("anchor_at"):
        bare.spec.start_at = task.anchor_at.ToJsonString()
    if request.HasField("from"):
        getattr(bare, "from").CopyFrom(getattr(request, "from"))
    said = [found.trouble] if found.trouble else []
    if not answer.nominals or task.spec.ignore_calendar:
        return said
    shown = {one.local for one in answer.nominals}
    every = [one.local for one in chosen.call(bare).nominals]
    between = every[: every.index(answer.nominals[-1].local)] if answer.nominals[-1].local in every else every
    return said + [f"the calendar {found.file} leaves out {at}" for at in between if at not in shown][:MOST_NOTED]
