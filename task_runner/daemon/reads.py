"""Reading operations that a command runs in its own process while no daemon runs, without the parts that write."""

import os
from collections.abc import Mapping
from datetime import timedelta
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import Any

from task_runner.service import lists
from task_runner.service.task_spec import Defaults
from task_runner.store import reading
from task_runner.timetable import zone
from turnkeeper.clock import SystemClock
from turnkeeper.config.home import Home
from turnkeeper.config.surfaces import offered
from turnkeeper.config.toml_file import said_in, shared_url_in
from turnkeeper.errors import InvalidInput
from turnkeeper.storage.locking import ProcessLock, is_held

PROCESS = "task-runner"


def read(home: Home, method: str, request: Any) -> Any:
    """Run an operation of the contract by name. Return None if only the whole service can answer.

    Raises the operation's errors, and Conflict if another process holds the lock.
    """
    offered("calendar of a home", home)
    if method == "PreviewSchedule" and not request.name:
        return _preview(home, request)
    # If a runtime is running, it must be asked how many decisions wait.
    if method == "ListTasks" and home.schedules_db.exists() and not is_held(home, "agent-runtime"):
        return None if is_shared(home) else _list(home, request)  # a shared store is not in the home's file
    return None


def is_shared(home: Home) -> bool:
    """Return whether the settings name a store that several machines share, without loading all settings."""
    return bool(shared_url_in(home.config))


def _preview(home: Home, request: Any) -> Any:
    now = SystemClock().now()
    definition = lists.previewed_definition(request, _defaults(home), now)
    answer = lists.preview(definition)
    answer.nominals.extend(chain.from_iterable(lists.upcoming(request, definition, now, None)))
    return answer


def _defaults(home: Home) -> Defaults:
    """Return the settings that a preview needs: only the time zone, because loading all settings is slow."""
    said = said_in(home.config, "scheduler")
    timezone = said.get("timezone", "") if isinstance(said, dict) else None
    if not isinstance(timezone, str):  # loading all settings gives a better error
        return defaults_of(import_module("turnkeeper.config.settings").load_settings(home).scheduler)
    return Defaults(timezone=timezone or machine_zone(os.environ))


def _list(home: Home, request: Any) -> Any:
    home.create()
    with ProcessLock(home, PROCESS):
        now = SystemClock().now()
        return reading.read(home.schedules_db, lambda session: lists.list_tasks(session, request, now))


def defaults_of(settings: Any) -> Defaults:
    return Defaults(timezone=settings.timezone or machine_zone(os.environ), grace=timedelta(seconds=settings.grace_s))


def machine_zone(environ: Mapping[str, str], etc: Path = Path("/etc")) -> str:
    """Return the time zone from TZ, else from /etc/timezone, else from the link /etc/localtime; UTC if none is set."""
    for name in (environ.get("TZ", "").removeprefix(":"), _written(etc / "timezone"), _linked(etc / "localtime")):
        try:
            return zone(name).key
        except InvalidInput:
            continue
    return "UTC"


def _written(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()[:255]
    except OSError:
        return ""


def _linked(path: Path) -> str:
    try:
        target = os.readlink(path)  # noqa: PTH115  the text of the link, not what it resolves to
    except OSError:
        return ""
    return target.partition("zoneinfo/")[2]
