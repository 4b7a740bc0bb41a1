"""What a list needs of the store, read by a command while no daemon runs.

The store itself takes longer to load than everything else that the command does. The statements here are those of
`tasks.py`, `fires.py` and `store.py`, written out for SQLite; nothing in the file changes.
"""

import json
import sqlite3
from collections.abc import Collection, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from task_runner.model.task import Task, TaskState
from task_runner.store.rows import Glance, Outage, fire_of, glances_of, task_of
from turnkeeper.storage.schema_revision import newest, revision_of
from turnkeeper.times import from_us

MIGRATIONS = "task_runner.store:migrations"


@contextmanager
def reading(path: Path) -> Iterator["Reader | None"]:
    """Open a store for reading; None where it is not there, or its schema is to be brought up to date first.

    The caller holds the lock of the process that owns it. Raises `sqlite3.Error`.
    """
    if revision_of(path) != newest(MIGRATIONS):
        yield None
        return
    # Without a log nobody has it open: `immutable` keeps SQLite from making one beside it.
    how = "mode=ro" if path.with_name(f"{path.name}-wal").exists() else "immutable=1"
    with closing(sqlite3.connect(f"file:{path}?{how}", uri=True, timeout=10)) as connection:
        connection.row_factory = sqlite3.Row
        yield Reader(connection)


class Reader:
    """The part of a session that a list needs.

    Attributes:
        tasks, fires, outages: itself; they stand for what a session has under these names.
    """

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self.tasks = self.fires = self
        self.outages = _Outages(connection)

    def listed(self, **wanted: str) -> list[Task]:
        """Return the living tasks, next to fire first, those that will not fire last, then by name."""
        only = {name: value for name, value in wanted.items() if value}
        where = " AND ".join(["state <> ?", *(f"{name} = ?" for name in only)])
        query = f"SELECT * FROM tasks WHERE {where} ORDER BY wake_us IS NULL, wake_us, name"  # noqa: S608  our names
        return [
            task_of(_Row(row)) for row in self._connection.execute(query, [TaskState.DELETED.value, *only.values()])
        ]

    def glances(self, ids: Collection[str]) -> dict[str, Glance]:
        """Return what a list shows of those tasks' fires."""
        asked = [json.dumps(list(ids))]
        opened = self._connection.execute(_OPEN, asked).fetchall()
        return glances_of(ids, opened, [fire_of(tuple(row)) for row in self._connection.execute(_LAST_SENT, asked)])

    def lateness(self, task_id: str, limit: int) -> list[float]:
        """Return how late, in seconds, a task's newest fires were sent."""
        return [max(0, row[0]) / 1e6 for row in self._connection.execute(_LATENESS, [task_id, limit])]


class _Outages:
    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def listed(self) -> list[Outage]:
        rows = self._connection.execute("SELECT from_us, to_us, lasts FROM outages ORDER BY number DESC")
        return [Outage(from_us(since), from_us(to), bool(lasts)) for since, to, lasts in rows]


class _Row:
    """A row whose columns are attributes, as SQLAlchemy has them."""

    def __init__(self, row: sqlite3.Row) -> None:
        self.__dict__.update(dict(row))


_OPEN = """
SELECT task_id, outcome, reason FROM fires WHERE is_open = 1 AND task_id IN (SELECT value FROM json_each(?))
"""
_LAST_SENT = """
SELECT * FROM fires WHERE entry_id IN (
  SELECT (SELECT max(entry_id) FROM fires AS newer WHERE newer.task_id = tasks.id AND newer.fired_us IS NOT NULL)
  FROM tasks WHERE id IN (SELECT value FROM json_each(?)))
"""
_LATENESS = """
SELECT fired_us - due_us FROM fires WHERE task_id = ? AND fired_us IS NOT NULL ORDER BY entry_id DESC LIMIT ?
"""
