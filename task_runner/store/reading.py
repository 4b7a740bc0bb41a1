"""The store's data for a list, read by a command while no daemon runs.

The store module takes longer to load than everything else in the command. The statements here are those of `tasks.py`,
`fires.py` and `store.py`, written out for SQLite; nothing in the file changes.
"""

from collections.abc import Callable, Collection
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

from task_runner.model.task import Fire, Task, TaskState
from task_runner.store.rows import Glance, Outage, fire_of, glances_of, task_of
from turnkeeper.storage.schema_revision import read_current
from turnkeeper.times import from_us

T = TypeVar("T")
MIGRATIONS = "task_runner.store:migrations"
_ASKED_AT_ONCE = 500


def read(path: Path, work: Callable[["Reader"], T]) -> T | None:
    """Return the result of `work` on a store. None if only the store module can open the file or report its fault.

    The caller holds the lock of the process that owns the store.
    """
    return read_current(path, MIGRATIONS, lambda connection: work(Reader(connection)))


class Reader:
    """The part of a session that a list needs.

    Attributes:
        tasks, fires, outages: this object, under a session's names.
    """

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self.tasks = self.fires = self
        self.outages = _Outages(connection)

    def listed(self, **wanted: str) -> list[Task]:
        """Return the existing tasks, next to fire first, tasks without a next fire last, then by name."""
        only = {name: value for name, value in wanted.items() if value}
        where = " AND ".join(["state <> ?", *(f"{name} = ?" for name in only)])
        query = f"SELECT * FROM tasks WHERE {where} ORDER BY wake_us IS NULL, wake_us, name"  # noqa: S608  our names
        return [
            task_of(_Row(row)) for row in self._connection.execute(query, [TaskState.DELETED.value, *only.values()])
        ]

    def glances(self, ids: Collection[str]) -> dict[str, Glance]:
        """Return the fires of these tasks as a list shows them."""
        asked, opened, last = list(ids), list[Any](), list[Fire]()
        for first in range(0, len(asked), _ASKED_AT_ONCE):
            some = asked[first : first + _ASKED_AT_ONCE]
            among = ", ".join("?" * len(some))
            opened += self._connection.execute(_OPEN.format(among), some)
            last += (fire_of(tuple(row)) for row in self._connection.execute(_LAST_SENT.format(among), some))
        return glances_of(asked, opened, last)

    def edited_at(self, ids: Collection[str]) -> dict[str, datetime]:
        """Return the start of validity of each task's newest revision."""
        wanted = {*ids}
        return {task_id: from_us(us) for task_id, us in self._connection.execute(_EDITED) if task_id in wanted}

    def lateness(self, task_id: str, limit: int) -> list[float]:
        """Return the lateness, in seconds, of a task's newest sent fires."""
        return [max(0, row[0]) / 1e6 for row in self._connection.execute(_LATENESS, [task_id, limit])]


class _Outages:
    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def listed(self) -> list[Outage]:
        rows = self._connection.execute("SELECT from_us, to_us, lasts FROM outages ORDER BY number DESC")
        return [Outage(from_us(since), from_us(to), bool(lasts)) for since, to, lasts in rows]


class _Row:
    """A row with columns as attributes, as in SQLAlchemy."""

    def __init__(self, row: Any) -> None:
        self.__dict__.update(dict(row))


_OPEN = """
SELECT task_id, outcome, reason FROM fires WHERE is_open = 1 AND task_id IN ({})
"""
_LAST_SENT = """
SELECT * FROM fires WHERE entry_id IN (
  SELECT (SELECT max(entry_id) FROM fires AS newer WHERE newer.task_id = tasks.id AND newer.fired_us IS NOT NULL)
  FROM tasks WHERE id IN ({}))
"""
_LATENESS = """
SELECT fired_us - due_us FROM fires WHERE task_id = ? AND fired_us IS NOT NULL ORDER BY entry_id DESC LIMIT ?
"""
_EDITED = "SELECT task_id, max(valid_from_us) FROM revisions GROUP BY task_id"
