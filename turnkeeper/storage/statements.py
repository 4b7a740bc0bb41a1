"""Statements that run on SQLite and on PostgreSQL. This module contains all differences between the two databases.

For a fire or a turn, SQLAlchemy's own work on a statement costs more than SQLite itself. So a :class:`Statement` is
compiled once, and the database's driver then runs its text.
"""

import itertools
import json
import re
import sqlite3
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql import Executable, Select
from sqlalchemy.sql.functions import FunctionElement

from turnkeeper.errors import Conflict, InvalidInput, Unreachable

Values = Mapping[str, Any]
# Text of any length. A server has its own order of text. Lists are sorted by bytes, as in SQLite.
TEXT = sa.String().with_variant(sa.Text(collation="C"), "postgresql")
# The type of row numbers. SQLite numbers an INTEGER PRIMARY KEY itself, and its integers always have eight bytes.
NUMBER = sa.BigInteger().with_variant(sa.Integer, "sqlite")
NEVER_AGAIN: Any = {"sqlite_autoincrement": True}  # table option: do not reuse the number of a deleted row
_ALONE = 0x616C6F6E  # the key of advisory locks for work that only one process may do at a time
AFTER_COMMIT = "after commit"  # in a connection's `info`: the notifications to send, as channels and texts
_SQLITE: Any = sqlite.dialect(paramstyle="named")  # the parameter style in which SQLite's driver takes a mapping


def texts(*names: str, **how: Any) -> list[sa.Column[Any]]:
    """Return text columns that are never null."""
    return [sa.Column(name, TEXT, nullable=False, **how) for name in names]


def numbers(*names: str, nullable: bool = False, **how: Any) -> list[sa.Column[Any]]:
    """Return whole-number columns, also for instants and durations."""
    return [sa.Column(name, sa.BigInteger, nullable=nullable, **how) for name in names]


def partial(where: str) -> dict[str, Any]:
    """Return the arguments of an index over the rows for which `where` is true. A flag is `flag = 1` or `flag = 0`."""
    booleans = re.sub(r"\b(\w+) = ([01])\b", lambda flag: f"{'' if flag[2] == '1' else 'NOT '}{flag[1]}", where)
    return {"sqlite_where": sa.text(where), "postgresql_where": sa.text(booleans)}


class Statement:
    """A statement that is compiled at its first use and run in a connection's open transaction.

    Pass parameters under the names of the statement's `bindparam`s. The parameters decide which columns an insert or
    update writes, so every run of a statement should pass the same names. Errors are SQLAlchemy's.
    """

    def __init__(self, statement: Executable) -> None:
        self.statement: Any = statement
        self._compiled: dict[tuple[str, tuple[str, ...]], tuple[str, Values]] = {}
        selected = list(statement.selected_columns) if isinstance(statement, Select) else []
        self._names = [str(column.key) for column in selected]
        self._flags = [str(column.key) for column in selected if isinstance(column.type, sa.Boolean)]

    def rows(self, connection: sa.Connection, **values: Any) -> list[tuple[Any, ...]]:
        """Return the rows of a query as the driver returns them. In SQLite, flags are 0 and 1."""
        found: list[tuple[Any, ...]] = self._execute(connection, values).fetchall()
        return found

    def dicts(self, connection: sa.Connection, **values: Any) -> list[dict[str, Any]]:
        """Return the rows of a query as mappings from column names to values, with flags as booleans."""
        rows = [dict(zip(self._names, row, strict=True)) for row in self._execute(connection, values)]
        for row, name in itertools.product(rows, self._flags):
            row[name] = bool(row[name])
        return rows

    def first_dict(self, connection: sa.Connection, **values: Any) -> dict[str, Any] | None:
        """Return the first row of a query, as :meth:`dicts` does. Return None if there is no row."""
        return next(iter(self.dicts(connection, **values)), None)

    def values(self, connection: sa.Connection, **values: Any) -> list[Any]:
        return [row[0] for row in self._execute(connection, values)]

    def value(self, connection: sa.Connection, **values: Any) -> Any:
        """Return the first column of a query's first row. Return None if there is no row."""
        found = self._execute(connection, values).fetchone()
        return None if found is None else found[0]

    def run(self, connection: sa.Connection, **values: Any) -> int:
        """Change rows. Return their number."""
        return int(self._execute(connection, values).rowcount)

    def run_each(self, connection: sa.Connection, many: Sequence[Values]) -> None:
        """Run the statement once for each mapping in `many`. All mappings must have the same names."""
        if not many:
            return
        sql, given = self._compile(connection, tuple(many[0]))
        given = {name: value for name, value in given.items() if name not in many[0]}
        try:
            _driver(connection).cursor().executemany(sql, [{**given, **values} for values in many] if given else many)
        except _driver_errors(connection) as error:
            raise _translated(connection, sql, error) from error

    def _execute(self, connection: sa.Connection, values: Values) -> Any:
        sql, given = self._compile(connection, () if self._names else tuple(values))
        try:
            return _driver(connection).execute(sql, {**given, **values})
        except _driver_errors(connection) as error:
            raise _translated(connection, sql, error) from error

    def _compile(self, connection: sa.Connection, names: tuple[str, ...]) -> tuple[str, Values]:
        """Return the SQL text for parameters of these names, and the values that the statement contains."""
        dialect = connection.dialect
        key = dialect.name, names
        if key not in self._compiled:
            compiled = self.statement.compile(
                dialect=_SQLITE if dialect.name == "sqlite" else dialect, column_keys=names or None
            )
            # A missing parameter is an error, not a null.
            given = {name: value for name, value in compiled.params.items() if value is not None}
            self._compiled[key] = str(compiled), given
        return self._compiled[key]


class NumberedInsert:
    """An insert into a table with a primary key that the database numbers."""

    def __init__(self, table: sa.Table, **same: Any) -> None:
        """Take `same`, which maps columns to expressions that are written into every row."""
        (number,) = table.primary_key
        row = sa.insert(table).values(same) if same else sa.insert(table)
        self._plain, self._returning = Statement(row), Statement(row.returning(number))

    def run_each(self, connection: sa.Connection, many: Sequence[Values]) -> list[int]:
        """Insert rows that all have the same columns. Return the numbers of the rows, in the same order."""
        if not many:
            return []
        if connection.dialect.name != "sqlite":
            return [self._returning.value(connection, **values) for values in many]
        self._plain.run_each(connection, many)
        # A file has one writer, and each new number is the greatest number so far plus one.
        (last,) = _driver(connection).execute("SELECT last_insert_rowid()").fetchone()
        return list(range(last - len(many) + 1, last + 1))


class Listed(list[Any]):
    """Values that are passed as one parameter to :func:`among`."""


sqlite3.register_adapter(Listed, json.dumps)


class _Condition(FunctionElement[bool]):
    """A condition that SQLite and PostgreSQL write differently."""

    type = sa.Boolean()

    def self_group(self, against: object = None) -> "_Condition":  # noqa: ARG002
        """Return the condition without a comparison, because with `= 1` SQLite would use no index."""
        return self


class _Among(_Condition):
    """The condition that the value of a column is one of a parameter's values."""

    inherit_cache = True


@compiles(_Among, "sqlite")
def _among_in_sqlite(element: _Among, compiler: Any, **how: Any) -> str:
    column, values = (compiler.process(each, **how) for each in element.clauses)
    return f"{column} IN (SELECT value FROM json_each({values}))"  # noqa: S608  both are compiled


@compiles(_Among, "postgresql")
def _among_in_postgresql(element: _Among, compiler: Any, **how: Any) -> str:
    column, values = (compiler.process(each, **how) for each in element.clauses)
    return f"{column} = ANY ({values})"


class _Like(_Condition):
    """The condition that text matches a pattern, ignoring the case of ASCII letters."""

    inherit_cache = True


@compiles(_Like)
def _like(element: _Like, compiler: Any, **how: Any) -> str:
    column, pattern = (compiler.process(each, **how) for each in element.clauses)
    word = "LIKE" if compiler.dialect.name == "sqlite" else "ILIKE"  # LIKE on a server is case-sensitive
    return f"{column} {word} {pattern} ESCAPE '/'"


def upsert(
    table: sa.Table,
    same: Sequence[sa.Column[Any]],
    change: Collection[str] | Values = (),
    where: sa.ColumnElement[bool] | None = None,
) -> postgresql.Insert:
    """Return an insert that instead updates the row with the same values in the columns `same`, if that row exists.

    Args:
        same: the columns of a unique index.
        change: the columns that take the new values, or other values by column; empty to keep the row unchanged.
        where: the condition under which an existing row changes.
    """
    row = postgresql.insert(table)  # SQLite adopted the syntax from PostgreSQL
    if not change:
        return row.on_conflict_do_nothing(index_elements=same)
    changes = change if isinstance(change, Mapping) else {name: row.excluded[name] for name in change}
    return row.on_conflict_do_update(index_elements=same, set_=changes, where=where)


def among(column: sa.ColumnElement[Any], name: str) -> sa.ColumnElement[bool]:
    """Return the condition that a column is one of the values of the parameter `name`, made by :func:`listed`."""
    plain = sa.Text() if isinstance(column.type, sa.String) else column.type
    return _Among(column, sa.bindparam(name, type_=sa.ARRAY(plain)))


def holds(column: sa.ColumnElement[str], part: str) -> sa.ColumnElement[bool]:
    """Return the condition that text contains other text, ignoring the case of ASCII letters."""
    escaped = part.replace("/", "//").replace("%", "/%").replace("_", "/_")
    return _Like(column, sa.literal(f"%{escaped}%"))


def hold_any(columns: Sequence[sa.ColumnElement[str]], wanted: Iterable[str]) -> sa.ColumnElement[bool]:
    """Return a filter for rows with any term, in its usual spellings, because a database ignores only ASCII case."""
    spellings = dict.fromkeys(form for term in wanted for form in (term, term.upper(), term.capitalize()))
    return sa.or_(sa.false(), *(holds(column, form) for form in spellings for column in columns))


def cursor_at(number: int) -> str:
    """Return an opaque cursor for the page after a row.

    >>> number_of(cursor_at(42))
    42
    """
    return urlsafe_b64encode(f"after {number}".encode()).decode()


def number_of(cursor: str) -> int:
    """Return the number of the row that a cursor points to, or 0 for an empty cursor. Raises InvalidInput."""
    if not cursor:
        return 0
    with suppress(ValueError):
        word, _, number = urlsafe_b64decode(cursor.encode()).decode().partition(" ")
        if word == "after" and number.isascii() and number.isdecimal() and len(number) < 19:
            return int(number)
    raise InvalidInput(f"{cursor[:60]!r} is not a cursor", where="cursor", hint="pass the cursor of the previous page")


def one_of(column: sa.ColumnElement[Any], values: Iterable[str]) -> sa.ColumnElement[bool]:
    """Return the condition that a column is one of some constant values."""
    return sa.or_(*(column == value for value in sorted(values)))


def listed(values: Collection[str] | Collection[int]) -> Listed:
    return Listed(sorted(values))


def file_of(connection: sa.Connection) -> Path:
    """Return the file of a store on this machine."""
    return Path(connection.exec_driver_sql("PRAGMA database_list").all()[0][2])


def of_server(connection: sa.Connection) -> bool:
    """Return True if the database is on a server, so that other processes may write to it."""
    return connection.dialect.name != "sqlite"


_SERVER = """SELECT CASE WHEN pg_is_in_recovery() THEN '' ELSE
    (SELECT system_identifier FROM pg_control_system()) || ' ' || left(pg_walfile_name(pg_current_wal_lsn()), 8) END"""


def server_of(connection: sa.Connection) -> str:
    """Return a server's identity: its system identifier and its timeline. Return an empty string for a standby."""
    system, _, timeline = str(connection.exec_driver_sql(_SERVER).scalar()).partition(" ")
    return f"{system} timeline {int(timeline, 16)}" if system else ""


# The settings that decide whether an acknowledged commit is durable. `local` and `remote_write` are weaker than `on`
# only if there are standbys; a failover may then lose acknowledged commits.
_KEPT = (
    "SELECT pg_is_in_recovery(), current_setting('synchronous_commit'), current_setting('synchronous_standby_names')"
)


AT_STANDBY = "name the primary; if it waits at the end of a recovery, end that: SELECT pg_wal_replay_resume()"
# The settings that :func:`turnkeeper.storage.server.url.in_schema` asks for. A connection pooler may drop them
# silently.
IN_FORCE = "SELECT current_setting('search_path') || ' ' || current_setting('idle_in_transaction_session_timeout')"
_DIRECTLY = "a pooler, such as PgBouncer, is in between: set [store] url to PostgreSQL itself"
_PASSWORD = "put its password into PGPASSWORD, in the environment or the home's .env, or into ~/.pgpass"  # noqa: S105
_UNCONNECTED = {
    "no password supplied": _PASSWORD,
    "password authentication failed": _PASSWORD,
    "no pg_hba.conf entry": "allow this machine in the server's pg_hba.conf",
    "unsupported startup parameter": _DIRECTLY,
    "does not exist": "make the role and its database: createuser ROLE, createdb --owner ROLE NAME",
}


def unconnected(said: str) -> tuple[str, str]:
    """Return a hint, and why a server, or each of several servers, refused a connection. There is no error code."""
    each = re.findall(r"^- host: '(.*?)', port: '(.*?)', hostaddr: \S+: (.*)$", said, re.MULTILINE)
    why = "; ".join(f"{host}:{port}: {one}" for host, port, one in each) or said.partition("\n")[0]
    start = "start it, or correct [store] url; the daemons continue by themselves once it answers"
    return why, next((hint for part, hint in _UNCONNECTED.items() if part in why), start)


def refuse_weak(connection: sa.Connection, where: str) -> None:
    """Raise Unreachable for a standby, and Conflict if the server may lose acknowledged commits."""
    is_standby, kept, standbys = connection.exec_driver_sql(_KEPT).one()
    if is_standby:
        raise Unreachable("is a standby, which takes no writes", where=where, hint=AT_STANDBY)
    if loses(kept, standbys):
        what = f"its synchronous_commit is {kept}: it may lose what it has acknowledged"
        raise Conflict(what, where=where, hint="set it to on, for the server, the database or the role")


def refuse_pooler(in_force: str, schema: str, where: str) -> None:
    """Raise Conflict if a session lacks the settings that it asked for, because tables would go into another schema."""
    if in_force != f"{schema} 10s":
        what = f"does not set search_path and idle_in_transaction_session_timeout as a session asked: {in_force}"
        raise Conflict(what, where=where, hint=_DIRECTLY)


def loses(synchronous_commit: str, standbys: str) -> bool:
    """Return True if a server with these settings may lose a commit that it has acknowledged.

    >>> loses("local", ""), loses("local", "first"), loses("off", ""), loses("remote_apply", "first")
    (False, True, True, False)
    """
    return synchronous_commit == "off" or (synchronous_commit in {"local", "remote_write"} and bool(standbys))


def number_after_id(connection: sa.Connection) -> None:
    """Draw the transaction's id before it numbers rows, so that readers can tell when a missing number is final."""
    if of_server(connection):
        connection.exec_driver_sql("SELECT pg_current_xact_id()")


def in_turn(connection: sa.Connection, names: Collection[str]) -> None:
    """Make other transactions that call this with one of the names wait until this transaction ends."""
    if names and of_server(connection):
        locks = "SELECT pg_advisory_xact_lock(%s, hashtext(name)) FROM unnest(%s::text[]) AS name"
        connection.exec_driver_sql(locks, (_ALONE, [storable(name) for name in sorted(names)]))


def session_of(connection: sa.Connection) -> str:
    """Return the number of a server's session. Return an empty string for a file, which has one writer."""
    return f"{_driver(connection).info.backend_pid}" if of_server(connection) else ""


def alone(connection: sa.Connection, name: str) -> bool:
    """Take the right to do the work `name` until this transaction ends. Return False if another process has it.

    A file has one owner, which does all work.
    """
    if not of_server(connection):
        return True
    asked = connection.exec_driver_sql("SELECT pg_try_advisory_xact_lock(%s, hashtext(%s))", (_ALONE, name))
    return bool(asked.scalar())


def _driver(connection: sa.Connection) -> Any:
    return connection.connection.dbapi_connection


def _driver_errors(connection: sa.Connection) -> type[Exception]:
    dialect: Any = connection.dialect
    errors: type[Exception] = dialect.loaded_dbapi.Error
    return errors


def _translated(connection: sa.Connection, sql: str, error: Exception) -> BaseException:
    """Return a driver's error as SQLAlchemy's. Leave out the parameters, because they may contain private data."""
    base = _driver_errors(connection)
    return DBAPIError.instance(sql, None, error, base, hide_parameters=True, dialect=connection.dialect)


def storable(text: str) -> str:
    """Return the text in a form that both databases accept, with a question mark for NUL and lone surrogates."""
    return text.encode("utf-8", "replace").decode().replace("\0", "?")


def total(column: sa.ColumnElement[int]) -> sa.ColumnElement[int]:
    """Return the sum of whole numbers as a whole number. Return null if there are no rows."""
    return sa.cast(sa.func.sum(column), sa.BigInteger)


class _Function(FunctionElement[Any]):
    """A function of one column that SQLite and PostgreSQL write differently."""


class unindexed(_Function):  # noqa: N801  used as a function
    """A column in a condition that SQLite must evaluate without an index. PostgreSQL decides by its statistics."""

    type = TEXT
    inherit_cache = True


class size_of(_Function):  # noqa: N801
    """The size of a string in bytes."""

    type = sa.BigInteger()
    inherit_cache = True


class last_number(_Function):  # noqa: N801
    """The highest number that a numbered column ever contained, even if its row was deleted. Null if there was none."""

    type = sa.BigInteger()
    inherit_cache = True


class now_us(FunctionElement[int]):  # noqa: N801
    """The time of the database's clock in microseconds since 1970, current even within a long transaction."""

    type = sa.BigInteger()
    inherit_cache = True


@compiles(now_us, "sqlite")
def _now_in_sqlite(_element: now_us, _compiler: Any, **_how: Any) -> str:
    return "CAST((julianday('now') - 2440587.5) * 86400000000 AS INTEGER)"


@compiles(now_us, "postgresql")
def _now_in_postgresql(_element: now_us, _compiler: Any, **_how: Any) -> str:
    return "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint"


def _spell(function: type[_Function], dialect: str, spelling: Callable[[str, Any], str]) -> None:
    @compiles(function, dialect)
    def spelled(element: _Function, compiler: Any, **how: Any) -> str:
        (column,) = element.clauses
        return spelling(compiler.process(column, **how), column)


_spell(unindexed, "sqlite", lambda text, _: f"+{text}")
_spell(unindexed, "postgresql", lambda text, _: text)
_spell(size_of, "sqlite", lambda text, _: f"length(CAST({text} AS BLOB))")
_spell(size_of, "postgresql", lambda text, _: f"octet_length({text})")
_spell(last_number, "sqlite", lambda _, of: f"(SELECT seq FROM sqlite_sequence WHERE name = '{of.table.name}')")  # noqa: S608
_spell(
    last_number,
    "postgresql",
    lambda _, of: f"pg_sequence_last_value(pg_get_serial_sequence('{of.table.name}', '{of.name}')::regclass)",
)
