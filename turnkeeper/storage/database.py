"""One SQLite file behind one thread: full durability, and one COMMIT for all that waits.

A unit of work is a function of a connection. The writer thread takes every unit that has queued up, runs each in a
savepoint inside one transaction, commits once, and only then answers them all: no caller gets an answer before its work
is on disk, and a unit that fails undoes itself alone. Sixty-four concurrent units cost one sync instead of sixty-four.
"""

import sqlite3
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar, cast

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.exc import DatabaseError
from sqlalchemy.pool import StaticPool

from turnkeeper.errors import Corrupt
from turnkeeper.storage.schema_revision import check_revision
from turnkeeper.storage.worker_thread import Call, WorkerThread

T = TypeVar("T")


class Database:
    """A SQLite file, opened and owned by one process.

    Attributes:
        path: the file.
    """

    def __init__(self, path: Path, *, migrations: str, read_only: bool = False) -> None:
        """Open the file and bring its schema up to date.

        Args:
            path: the file; made, mode 0600, unless `read_only`.
            migrations: the Alembic script location, as `package:folder`.
            read_only: open without the right to write; the schema must be current already.

        Raises:
            Conflict: written by a newer version; the file is left as it is.
            Corrupt: not a SQLite file, or, with `read_only`, of an older schema.
        """
        self.path = path
        self._read_only = read_only
        try:
            check_revision(path, migrations)
        except sqlite3.DatabaseError as error:
            raise Corrupt(f"cannot be read as a store: {error}", where=str(path)) from error
        self._engine = _open(path, read_only=read_only)
        try:
            _migrate(self._engine, migrations, path, read_only=read_only)
        except DatabaseError as error:
            self._engine.dispose()
            raise Corrupt(f"cannot be read as a store: {error.orig}", where=str(path)) from error
        except Corrupt:
            self._engine.dispose()
            raise
        self._connection = self._engine.connect()
        self._thread = WorkerThread(f"db-{path.stem}", lambda batch: _run_batch(self._connection, batch))

    async def run(self, work: Callable[[Connection], T]) -> T:
        """Run `work` in the next transaction; return its result once that is on disk. Its exception undoes it alone.

        A cancelled caller leaves work that has begun running: whether it commits is then unknown to that caller.
        """
        return cast("T", await self._thread.run(work))

    def submit(self, work: Callable[[Connection], T]) -> "Future[T]":
        """Queue `work` from any thread; the future ends once it is on disk, or with its exception."""
        return self._thread.submit(work)

    def close(self) -> None:
        """Finish what is queued, then close the file."""
        self._thread.close()
        self._connection.close()
        self._engine.dispose()


def _run_batch(connection: Connection, batch: Sequence[Call]) -> None:
    """Run the units in one transaction; they are answered only after the commit."""
    driver: Any = connection.connection.driver_connection
    try:
        with connection.begin():
            for call in batch:
                # Said to the driver itself: a savepoint of SQLAlchemy's costs more than most units.
                driver.execute("SAVEPOINT unit")
                try:
                    call.result = call.work(connection)
                except Exception as error:
                    call.error = error
                    if not driver.in_transaction:  # a full disk may undo all that the others did, too
                        raise
                    driver.execute("ROLLBACK TO unit")
                driver.execute("RELEASE unit")
    except Exception as error:  # noqa: BLE001  nothing of the batch is on disk: every caller must know
        for call in batch:
            call.error = call.error or error


def _open(path: Path, *, read_only: bool) -> Engine:
    if not read_only:
        path.touch(mode=0o600, exist_ok=True)
    mode = "ro" if read_only else "rw"
    engine = create_engine(
        f"sqlite:///file:{path}?mode={mode}&uri=true",
        poolclass=StaticPool,
        connect_args={"check_same_thread": False, "timeout": 10, "cached_statements": 512},
    )
    event.listen(engine, "connect", _prepare_read if read_only else _prepare_write)
    event.listen(engine, "begin", _begin_read if read_only else _begin_write)
    return engine


def _prepare_write(connection: Any, _record: object) -> None:
    connection.isolation_level = None
    for pragma in (
        "journal_mode=WAL",
        "synchronous=FULL",
        "foreign_keys=ON",
        "busy_timeout=10000",
        "cache_size=-65536",
    ):
        connection.execute(f"PRAGMA {pragma}")


def _prepare_read(connection: Any, _record: object) -> None:
    connection.isolation_level = None
    connection.execute("PRAGMA query_only=ON")


def _begin_write(connection: Connection) -> None:
    connection.exec_driver_sql("BEGIN IMMEDIATE")


def _begin_read(connection: Connection) -> None:
    connection.exec_driver_sql("BEGIN")


def _migrate(engine: Engine, migrations: str, path: Path, *, read_only: bool) -> None:
    config = Config()
    config.set_main_option("script_location", migrations)
    config.set_main_option("path_separator", "os")
    scripts = ScriptDirectory.from_config(config)
    with engine.connect() as connection:
        found = MigrationContext.configure(connection).get_current_revision()
    if found == scripts.get_current_head():
        return
    if read_only:
        raise Corrupt("has an older schema", where=str(path), hint="start the daemon once to migrate it")
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "head")
