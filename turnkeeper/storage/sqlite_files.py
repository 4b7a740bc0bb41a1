"""SQLite files in backups and restores: copy them while a process has them open, change them while none has."""

import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from turnkeeper.errors import Corrupt

_BUSY_S = 30.0


@contextmanager
def snapshots(paths: Sequence[Path]) -> Iterator[dict[Path, sqlite3.Connection]]:
    """Open snapshots of several files at the same instant. Writers wait while the snapshots begin.

    Skip missing files.

    Raises:
        Corrupt: a file cannot be read, now or while the snapshots are open.
    """
    present = [path for path in paths if path.exists()]
    try:
        with ExitStack() as opened:
            readers = {path: opened.enter_context(closing(_connect(path))) for path in present}
            with ExitStack() as held:
                for path in present:
                    writer = held.enter_context(closing(_connect(path)))
                    writer.execute("BEGIN IMMEDIATE")
                    held.callback(writer.execute, "ROLLBACK")
                for reader in readers.values():
                    reader.execute("BEGIN")
                    reader.execute("SELECT count(*) FROM sqlite_master").fetchone()
            yield readers
    except sqlite3.Error as error:
        where = str(present[0].parent)
        raise Corrupt(f"a store cannot be copied: {error}", where=where, hint="turnkeeper doctor") from error


def reader(path: Path, wait_s: float) -> sqlite3.Connection:
    """Open a file that others may write. The connection cannot write, and no writer waits for it.

    Args:
        wait_s: seconds to wait for a process that has locked the file.

    Raises:
        sqlite3.Error: the file cannot be read at present, or is not a database.
    """
    store = sqlite3.connect(locator(path), uri=True, timeout=wait_s, isolation_level=None)
    try:
        store.execute("PRAGMA query_only=ON")
        store.execute("BEGIN")
        store.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except sqlite3.Error:
        store.close()
        raise
    store.row_factory = sqlite3.Row
    return store


@contextmanager
def reading(path: Path) -> Iterator[sqlite3.Connection]:
    """Open a snapshot as :func:`reader` does, and wait for processes that have locked the file. Raises Corrupt."""
    try:
        with closing(reader(path, _BUSY_S)) as snapshot:
            yield snapshot
    except sqlite3.Error as error:
        raise Corrupt(f"it cannot be read: {error}", where=str(path), hint="turnkeeper doctor") from error


def is_open_file(store: Any) -> bool:
    """Return True if the connection reads a file, not a server's database."""
    return isinstance(store, sqlite3.Connection)


def has_table(snapshot: sqlite3.Connection, name: str) -> bool:
    return bool(snapshot.execute("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?", (name,)).fetchone())


def locator(path: Path) -> str:
    """Return the URI that opens a file read-only and creates no file beside it."""
    # Without a log, no process has the file open. `immutable` prevents SQLite from making a log.
    how = "mode=ro" if path.with_name(f"{path.name}-wal").exists() else "immutable=1"
    return f"{path.absolute().as_uri()}?{how}"


def copy(snapshot: sqlite3.Connection, target: Path) -> None:
    """Write a snapshot to a new file with mode 0600 and without a log beside it."""
    target.touch(mode=0o600)
    with closing(sqlite3.connect(target, isolation_level=None)) as written:
        snapshot.backup(written)
        written.execute("PRAGMA journal_mode=DELETE")


def change(path: Path, statement: str) -> None:
    """Run one statement on a file that no process has open, and commit it."""
    with closing(_connect(path)) as connection:
        connection.execute(statement)


def _connect(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"file:{path}?mode=rw", uri=True, timeout=_BUSY_S, isolation_level=None)


class Cell(NamedTuple):
    """Text or bytes value in a row."""

    table: str
    column: str
    value: str | bytes
    row: Mapping[str, Any]
    rowid: int


def cells(store: sqlite3.Connection) -> Iterator[Cell]:
    """Yield every text value and every bytes value of every table."""
    tables = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%' ORDER BY name"
    for (table,) in store.execute(tables).fetchall():
        found = store.execute(f'SELECT rowid, * FROM "{table}"')  # noqa: S608  the file's own name
        names = [column[0] for column in found.description[1:]]
        for rowid, *values in found:
            row = dict(zip(names, values, strict=True))
            yield from (
                Cell(table, name, each, row, rowid) for name, each in row.items() if isinstance(each, str | bytes)
            )


@contextmanager
def alone(path: Path) -> Iterator[sqlite3.Connection]:
    """Open a file that no process has open, to overwrite some of its content. Commit the change at the end.

    Then compact the file and empty its log, so that neither contains removed or overwritten data.
    """
    with closing(_connect(path)) as store:
        store.execute("PRAGMA secure_delete=ON")
        store.execute("BEGIN EXCLUSIVE")
        yield store
        store.execute("COMMIT")
        store.execute("VACUUM")
        store.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def overwrite(store: sqlite3.Connection, cell: Cell, value: str | bytes) -> None:
    store.execute(f'UPDATE "{cell.table}" SET "{cell.column}" = ? WHERE rowid = ?', (value, cell.rowid))  # noqa: S608


def remove(store: sqlite3.Connection, table: str, column: str, values: Iterable[str]) -> None:
    """Remove the rows that have one of these values in a column."""
    store.executemany(f'DELETE FROM "{table}" WHERE "{column}" = ?', [(each,) for each in values])  # noqa: S608
