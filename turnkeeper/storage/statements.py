"""Statements for hot paths: SQLAlchemy compiles each once, then the database's own driver runs its text.

For a fire or a turn, what SQLAlchemy does between the two costs more than SQLite itself. What is special to SQLite in
the statements of the stores stands in this module.
"""

import itertools
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import Boolean, Column, ColumnElement, Connection, String, Table, bindparam, func, or_, select
from sqlalchemy.dialects import sqlite
from sqlalchemy.exc import DBAPIError
from sqlalchemy.sql import Executable, Select

Values = Mapping[str, Any]
_DIALECT: Any = sqlite.dialect(paramstyle="named")
_DRIVER_ERROR = _DIALECT.import_dbapi().Error


class Statement:
    """A statement that is compiled at its first use and run on a connection's open transaction.

    Parameters are passed by the names of its `bindparam`s. An insert or update writes the columns among those names;
    every run of a statement should pass the same ones. Errors are SQLAlchemy's, as those of any other statement.
    """

    def __init__(self, statement: Executable) -> None:
        self._statement = statement
        self._compiled: dict[tuple[str, ...], tuple[str, Values]] = {}
        selected = list(statement.selected_columns) if isinstance(statement, Select) else []
        self._names = [str(column.key) for column in selected]
        self._flags = [str(column.key) for column in selected if isinstance(column.type, Boolean)]

    def rows(self, connection: Connection, **values: Any) -> list[tuple[Any, ...]]:
        """Return the rows that a query finds, as the driver has them: SQLite's flags are 0 and 1."""
        found: list[tuple[Any, ...]] = self._execute(connection, values).fetchall()
        return found

    def dicts(self, connection: Connection, **values: Any) -> list[dict[str, Any]]:
        """Return the rows that a query finds, each by its columns' names, with flags as booleans."""
        rows = [dict(zip(self._names, row, strict=True)) for row in self._execute(connection, values)]
        for row, name in itertools.product(rows, self._flags):
            row[name] = bool(row[name])
        return rows

    def first_dict(self, connection: Connection, **values: Any) -> dict[str, Any] | None:
        """Return the first row that a query finds, as :meth:`dicts` does; None without one."""
        found = self.dicts(connection, **values)
        return found[0] if found else None

    def values(self, connection: Connection, **values: Any) -> list[Any]:
        """Return the first column of what a query finds."""
        return [row[0] for row in self._execute(connection, values)]

    def value(self, connection: Connection, **values: Any) -> Any:
        """Return the first column of the first row that a query finds; None without one."""
        found = self._execute(connection, values).fetchone()
        return None if found is None else found[0]

    def run(self, connection: Connection, **values: Any) -> int:
        """Change rows; return how many."""
        return int(self._execute(connection, values).rowcount)

    def run_each(self, connection: Connection, many: Sequence[Values]) -> None:
        """Change rows once for each of `many`, all of the same names."""
        if not many:
            return
        text, given = self._compile(tuple(many[0]))
        try:
            _driver(connection).executemany(text, [{**given, **values} for values in many] if given else many)
        except _DRIVER_ERROR as error:
            raise _translated(text, error) from error

    def _execute(self, connection: Connection, values: Values) -> Any:
        text, given = self._compile(() if self._names else tuple(values))
        try:
            return _driver(connection).execute(text, {**given, **values})
        except _DRIVER_ERROR as error:
            raise _translated(text, error) from error

    def _compile(self, names: tuple[str, ...]) -> tuple[str, Values]:
        """Return the text for parameters of these names, and the values that stand in the statement itself."""
        if names not in self._compiled:
            statement: Any = self._statement
            compiled = statement.compile(dialect=_DIALECT, column_keys=names or None)
            # A parameter that a caller forgets is an error, not a null.
            given = {name: value for name, value in compiled.params.items() if value is not None}
            self._compiled[names] = str(compiled), given
        return self._compiled[names]


def upsert(
    table: Table,
    same: Sequence[Column[Any]],
    change: Collection[str] | Values = (),
    where: ColumnElement[bool] | None = None,
) -> sqlite.Insert:
    """Return an insert that changes the row with equal columns `same`, where there is one.

    Args:
        table: what is written.
        same: the columns of a unique index.
        change: the columns that take the new values; or columns with other values; empty to keep the row as it is.
        where: the row that is there changes only if it is so.
    """
    row = sqlite.insert(table)
    if not change:
        return row.on_conflict_do_nothing(index_elements=same)
    changes = change if isinstance(change, Mapping) else {name: row.excluded[name] for name in change}
    return row.on_conflict_do_update(index_elements=same, set_=changes, where=where)


def among(column: ColumnElement[Any], name: str) -> ColumnElement[bool]:
    """Return that a column is one of the values that :func:`listed` makes of those passed as parameter `name`."""
    return column.in_(select(func.json_each(bindparam(name, type_=String())).table_valued("value").c.value))


def one_of(column: ColumnElement[Any], values: Iterable[str]) -> ColumnElement[bool]:
    """Return that a column is one of some values that never change."""
    return or_(*(column == value for value in sorted(values)))


def listed(values: Collection[str] | Collection[int]) -> str:
    """Return values as the parameter that :func:`among` takes."""
    return json.dumps(list(values))


def _driver(connection: Connection) -> Any:
    return connection.connection.driver_connection


def _translated(text: str, error: Exception) -> Exception:
    """Return a driver's error as SQLAlchemy's, without the parameters: they may hold what should not be printed."""
    return DBAPIError.instance(text, None, error, _DRIVER_ERROR, hide_parameters=True, dialect=_DIALECT)
