"""Which version of its schema a store has, asked without opening the store for writing."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

from turnkeeper.errors import Conflict, unopened

T = TypeVar("T")


def check_revision(path: Path, migrations: str) -> None:
    """Refuse a store that a newer version of the program has written. Changes nothing.

    Args:
        path: the store; one that is not there, or has no schema yet, is accepted.
        migrations: the folder of Alembic's migrations, as `package:folder` or as a path. Its files are named
            `REVISION_words.py`.

    Raises:
        Conflict: the store has a revision that this program does not know.
        Corrupt: the file cannot be read as a store.
        MachineTrouble: the machine cannot read it at the moment.
    """
    try:
        found = revision_of(path)
    except sqlite3.Error as error:
        raise unopened(error, str(path), "a store") from error
    refuse_newer(found, migrations, str(path))


def refuse_newer(found: str | None, migrations: str, where: str) -> None:
    """Raise Conflict if `migrations` do not know the revision that was found in the store at `where`."""
    known = known_revisions(migrations)
    if found is not None and found not in known:
        what = f"was written by a newer version (its schema is {found}, this program knows {max(known)})"
        raise Conflict(what, where=where, hint="upgrade turnkeeper")


def newest(migrations: str) -> str:
    """Return the last revision, by the names of the files: to load each of them takes as long as to open a store."""
    return max(known_revisions(migrations))


def revision_of(path: Path) -> str | None:
    """Return the revision of a store's schema; None for one that is not there, or has none. Raises `sqlite3.Error`."""
    if not path.is_file() or not path.stat().st_size:
        return None
    with closing(_reader(path)) as store:
        if store.execute("SELECT 1 FROM sqlite_master WHERE name = 'alembic_version'").fetchone() is None:
            return None
        row = store.execute("SELECT version_num FROM alembic_version").fetchone()
    return None if row is None else str(row[0])


def read_current(path: Path, migrations: str, read: Callable[[Any], T]) -> T | None:
    """Return what `read` finds on a connection to a store, which it cannot change; rows have their columns' names.

    None where the schema is not the newest, or the file cannot be read: whoever opens the store for good says why. The
    caller holds the lock of the process that owns the store.
    """
    try:
        if revision_of(path) != newest(migrations):
            return None
        with closing(_reader(path)) as store:
            store.row_factory = sqlite3.Row
            return read(store)
    except sqlite3.Error:
        return None


def _reader(path: Path) -> sqlite3.Connection:
    # Where there is no log nobody has it open: `immutable` keeps SQLite from making one beside it.
    how = "mode=ro" if path.with_name(f"{path.name}-wal").exists() else "immutable=1"
    return sqlite3.connect(f"file:{path}?{how}", uri=True, timeout=10)


def known_revisions(migrations: str) -> frozenset[str]:
    """Return the revisions of `migrations`, by the names of the files."""
    package, _, folder = migrations.rpartition(":")
    spec = find_spec(package) if package else None
    places = spec.submodule_search_locations if spec else None
    root = Path(places[0]) / folder if places else Path(folder)
    return frozenset(file.name.partition("_")[0] for file in (root / "versions").glob("[0-9]*_*.py"))
