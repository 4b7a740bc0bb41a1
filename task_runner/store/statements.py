"""Statements that are put together once and given to SQLite's own driver.

On the way of every fire, what SQLAlchemy does between the two costs more than SQLite itself.
"""

import json
import sqlite3
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from sqlalchemy import ColumnElement, Connection, bindparam, func, or_, select
from sqlalchemy.dialects import sqlite
from sqlalchemy.exc import IntegrityError, OperationalError
from sqlalchemy.sql import Executable

Values = Mapping[str, Any]
_DIALECT = sqlite.dialect(paramstyle="named")


class Prepared:
    """A statement as its text, run on a connection's open transaction.

    Its parameters are passed by the names of its `bindparam`s; what stands in it as a value stays. Errors are
    SQLAlchemy's, as those of any other statement are.
    """

    def __init__(self, statement: Executable) -> None:
        self._statement = statement
        self._made: dict[tuple[str, ...], tuple[str, Values]] = {}

    def rows(self, connection: Connection, **values: Any) -> list[tuple[Any, ...]]:
        """Return what a query finds, as SQLite has it: flags are 0 and 1."""
        found: list[tuple[Any, ...]] = self._execute(connection, values).fetchall()
        return found

    def values(self, connection: Connection, **values: Any) -> list[Any]:
        """Return the first column of what a query finds."""
        return [row[0] for row in self._execute(connection, values)]

    def value(self, connection: Connection, **values: Any) -> Any:
        """Return the first column of the first row that a query finds; None without one."""
        found = self._execute(connection, values).fetchone()
        return None if found is None else found[0]

    def run_each(self, connection: Connection, many: Sequence[Values]) -> None:
        """Change rows once for each of `many`, all of the same names; columns among those are written."""
        if not many:
            return
        text, given = self._compiled(tuple(many[0]))
        with _errors(text):
            _driver(connection).executemany(text, [{**given, **values} for values in many] if given else many)

    def _execute(self, connection: Connection, values: Values) -> Any:
        text, given = self._compiled(())
        with _errors(text):
            return _driver(connection).execute(text, {**given, **values})

    def _compiled(self, names: tuple[str, ...]) -> tuple[str, Values]:
        """Return the text for rows of these names, and the parameters that stand in the statement."""
        if names not in self._made:
            statement: Any = self._statement
            compiled = statement.compile(dialect=_DIALECT, column_keys=names or None)
            # A parameter that a caller forgets is the driver's error, not a null.
            given = {name: value for name, value in compiled.params.items() if value is not None}
            self._made[names] = str(compiled), given
        return self._made[names]


def among(column: ColumnElement[Any], name: str) -> ColumnElement[bool]:
    """Return that a column is one of the values that :func:`listed` makes of those passed as parameter `name`."""
    return column.in_(select(func.json_each(bindparam(name)).table_valued("value").c.value))


def one_of(column: ColumnElement[Any], values: Iterable[str]) -> ColumnElement[bool]:
    """Return that a column is one of some values that never change."""
    return or_(*(column == value for value in sorted(values)))


def listed(values: Collection[str] | Collection[int]) -> str:
    """Return values as the parameter that :func:`among` takes."""
    return json.dumps(list(values))


def _driver(connection: Connection) -> Any:
    return connection.connection.driver_connection


@contextmanager
def _errors(text: str) -> Iterator[None]:
    try:
        yield
    except sqlite3.IntegrityError as error:
        raise IntegrityError(text, None, error) from error
    except sqlite3.OperationalError as error:
        raise OperationalError(text, None, error) from error
