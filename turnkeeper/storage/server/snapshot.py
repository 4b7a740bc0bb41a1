"""Reads of a database that several machines share, for commands and pages that show rows."""

import shlex
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from turnkeeper.errors import Conflict, InvalidInput, Unreachable
from turnkeeper.storage import schema_revision
from turnkeeper.storage.server.url import noticing


class SharedSnapshot:
    """A read-only snapshot of a shared database, taken at the first query. Parameters of a query are $1, $2 and so on.

    Raises, also while rows are read: Conflict: a newer version of the program has changed the tables. Unreachable: the
        server does not answer, or a query took too long. InvalidInput: the driver is not installed.
    """

    def __init__(self, url: str, schema: str, *, within_s: float = 60.0, named: bool = False) -> None:
        """Connect. Read the tables in `schema`. Rows are tuples or, if `named`, mappings."""
        try:
            import psycopg.rows  # noqa: PLC0415  only where a server is used
        except ModuleNotFoundError as error:
            hint = "install turnkeeper[postgres]"
            raise InvalidInput("the driver for PostgreSQL is not installed", where="store URL", hint=hint) from error
        self._error, self._count, self._tuples = psycopg.Error, 0, psycopg.rows.tuple_row
        self._cursor, self._heard = psycopg.RawServerCursor, frozenset[str]()
        self._begins = {"search_path": schema, "statement_timeout": f"{within_s:.0f}s"}
        rows: Any = psycopg.rows.dict_row if named else psycopg.rows.tuple_row
        try:
            self._connection = psycopg.connect(noticing(url), row_factory=rows)
            self._connection.read_only = True
            self._connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            self._begin()
            self._refuse_newer()
        except psycopg.Error as error:
            raise _unread(error) from error
        except Conflict:
            self.close()
            raise

    def _begin(self) -> None:
        for name, value in self._begins.items():
            self._connection.execute("SELECT set_config(%s, %s, true)", (name, value))

    def renew(self) -> None:
        """Take a new snapshot at the next read. Raises Unreachable."""
        try:
            self._connection.rollback()
            self._begin()
        except self._error as error:
            raise _unread(error) from error

    def wait(self, seconds: float, channels: Collection[str]) -> None:
        """Release the snapshot, and wait until a process notifies of a commit on a channel, or until the timeout."""
        try:
            self._connection.rollback()
            for channel in set(channels).difference(self._heard):
                self._connection.execute(f'LISTEN "{channel}"'.encode())
                self._connection.commit()
            self._heard = frozenset(channels)
            for _ in self._connection.notifies(timeout=seconds, stop_after=1):
                return
        except self._error as error:
            raise _unread(error) from error

    def _refuse_newer(self) -> None:
        cursor = self._connection.cursor(row_factory=self._tuples)
        for schema, migrations in schema_revision.STORES.items():
            table = f"{schema}.alembic_version"
            if cursor.execute("SELECT to_regclass(%s) IS NOT NULL", [table]).fetchone() == (True,):
                (found,) = cursor.execute(f"SELECT version_num FROM {table}".encode()).fetchone() or (None,)  # noqa: S608
                schema_revision.refuse_newer(found, migrations, "the shared database")

    def execute(self, query: str, values: Sequence[Any] = ()) -> Iterator[Any]:
        self._count += 1
        try:
            with self._cursor(self._connection, f"read_{self._count}") as cursor:
                cursor.itersize = 2000
                cursor.execute(query.encode(), values)
                yield from cursor
        except self._error as error:
            raise _unread(error) from error

    def close(self) -> None:
        self._connection.close()


def _unread(error: Exception) -> Unreachable:
    return Unreachable(f"cannot be read: {str(error).partition(chr(10))[0]}", where="the shared database")


def is_cordoned(connection: Any) -> bool:
    """Return True if each machine that may run turns is cordoned. A database without runtimes has no cordon."""
    has_runtimes = connection.exec_driver_sql("SELECT to_regclass('runtime.meta') IS NOT NULL").scalar()
    return bool(has_runtimes and connection.exec_driver_sql(_ALL_CORDONED).scalar())


_ALL_CORDONED = """SELECT EXISTS (SELECT FROM runtime.meta WHERE left(key, 9) = 'cordoned ') AND NOT EXISTS (
    SELECT FROM runner.nodes n WHERE role = 'agent-runtime'
    AND beat_us > (extract(epoch FROM clock_timestamp()) - 10) * 1000000
    AND NOT EXISTS (SELECT FROM runtime.meta WHERE key = 'cordoned ' || n.name))"""


def copied_by(url: str) -> tuple[str, str]:
    """Return two PostgreSQL commands: one dumps our tables of a database, the other one restores them."""
    where = f"-n runner -n runtime --dbname={shlex.quote(url)}"
    put_back = f"pg_restore --clean --if-exists --single-transaction {where} turnkeeper.dump"
    return f"(umask 077 && pg_dump --format=custom --file=turnkeeper.dump {where})", put_back
