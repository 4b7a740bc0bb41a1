"""Statements that are made once: on the way of every turn, putting them together costs more than running them."""

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Boolean, Connection
from sqlalchemy.dialects import sqlite
from sqlalchemy.sql import Executable, Select

Values = Mapping[str, Any]
_DIALECT = sqlite.dialect(paramstyle="named")


class Prepared:
    """A statement as the text that SQLite is given, run on the connection's open transaction.

    Its parameters are passed by the names of its `bindparam`s; what stands in it as a value stays. Errors are those of
    the driver.
    """

    def __init__(self, statement: Executable, *, columns: Sequence[str] | None = None) -> None:
        """Compile a statement; `columns` names those that an insert writes."""
        made: Any = statement
        compiled = made.compile(dialect=_DIALECT, column_keys=columns)
        self.text = str(compiled)
        # A parameter that a caller forgets is the driver's error, not a null.
        self._given = {name: value for name, value in compiled.params.items() if type(value) in {str, int, bool}}
        selected = list(made.selected_columns) if isinstance(statement, Select) else []
        self._names = [column.key for column in selected]
        self._flags = [column.key for column in selected if isinstance(column.type, Boolean)]

    def rows(self, connection: Connection, **values: Any) -> list[dict[str, Any]]:
        """Return what a query finds, each row by its columns' names."""
        found = self._execute(connection, values).fetchall()
        rows = [dict(zip(self._names, row, strict=True)) for row in found]
        for name in self._flags:
            for row in rows:
                row[name] = bool(row[name])  # SQLite keeps them as numbers
        return rows

    def row(self, connection: Connection, **values: Any) -> dict[str, Any] | None:
        """Return the first row that a query finds, if any."""
        found = self.rows(connection, **values)
        return found[0] if found else None

    def value(self, connection: Connection, **values: Any) -> Any:
        """Return the first column of the first row that a query finds; None without one."""
        found = self._execute(connection, values).fetchone()
        return None if found is None else found[0]

    def run(self, connection: Connection, **values: Any) -> int:
        """Change rows; return how many."""
        return int(self._execute(connection, values).rowcount)

    def run_each(self, connection: Connection, many: Sequence[Values]) -> None:
        """Change rows once for each of `many`."""
        _driver(connection).executemany(self.text, [{**self._given, **values} for values in many])

    def _execute(self, connection: Connection, values: Values) -> Any:
        return _driver(connection).execute(self.text, {**self._given, **values})


def _driver(connection: Connection) -> Any:
    return connection.connection.driver_connection
