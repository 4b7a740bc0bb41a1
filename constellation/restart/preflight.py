"""Checks before a restart that the daemons can start again; it changes nothing."""

import os
import shutil
import sqlite3
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from turnkeeper.config.home import Home
from turnkeeper.config.settings import load_settings
from turnkeeper.errors import Conflict, TurnkeeperError
from turnkeeper.storage.schema_revision import check_revision

LEAST_FREE_BYTES = 64 << 20
_ENTRY_POINTS = ("agent_runtime.daemon", "task_runner.daemon", "constellation.supervisor")
_SQLITE = b"SQLite format 3\0"


def preflight(home: Home) -> list[TurnkeeperError]:
    """Return everything that would keep a daemon from starting on this home; empty when it can start."""
    return [*_program(), *_files(home), *_stores(home)]


def _program() -> Iterator[TurnkeeperError]:
    if not os.access(sys.executable, os.X_OK):
        yield TurnkeeperError(
            "the Python interpreter is missing", where=sys.executable, hint="install turnkeeper again"
        )
    for name in _ENTRY_POINTS:
        if find_spec(name) is None:
            yield TurnkeeperError(f"{name} is not installed", where=sys.prefix, hint="install turnkeeper again")


def _files(home: Home) -> Iterator[TurnkeeperError]:
    for check in (home.check, home.check_sockets, lambda: load_settings(home)):
        try:
            check()
        except TurnkeeperError as error:
            yield error
    free = shutil.disk_usage(home.root).free
    if free < LEAST_FREE_BYTES:
        what = f"its disk has only {free >> 20} MiB free"
        yield TurnkeeperError(what, where=str(home.root), hint=f"free at least {LEAST_FREE_BYTES >> 20} MiB")


def _stores(home: Home) -> Iterator[TurnkeeperError]:
    for path in (home.schedules_db, home.agent_db, home.checkpoints_db):
        if path.exists() and (reason := unreadable(path)):
            hint = "restore a backup: turnkeeper restore DIR"
            yield TurnkeeperError(f"cannot be read as a store: {reason}", where=str(path), hint=hint)
    yield from newer_stores(home)


def newer_stores(home: Home) -> Iterator[Conflict]:
    """Yield an error for each store that a newer version of the program has written; none for one it cannot read."""
    for path, migrations in (
        (home.schedules_db, "task_runner.store:migrations"),
        (home.agent_db, "agent_runtime.store:migrations"),
    ):
        try:
            check_revision(path, migrations)
        except Conflict as error:
            yield error
        except sqlite3.Error:
            continue  # whoever opens it says what is wrong


def unreadable(path: Path) -> str:
    """Return why a file cannot be opened as a SQLite store; empty if it can. It looks at no page but the first."""
    with path.open("rb") as file:
        head = file.read(len(_SQLITE))
    if head and head != _SQLITE:
        return "file is not a database"
    try:
        connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=10)
        try:
            connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        finally:
            connection.close()
    except sqlite3.Error as error:
        return str(error)
    return ""
