"""The open file: one thread and connection that write, one that reads.

All that has queued up for writing becomes one transaction with one commit, and is answered after it. It is first tried
as a whole, in as few statements as it takes. Where anything fails, all of it is undone and tried again one by one, each
in a savepoint, so that only what failed fails.

Checkpoint ids rise from one process to the next, also where the machine's clock was set back between them: an id begins
with the time at which it was drawn, and the greatest is the newest. LangGraph lets them rise within a process; this
module lets them go on rising behind what the file holds.
"""

import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from sqlite3 import Connection
from typing import Any

from langgraph.checkpoint.base import id as drawing
from langgraph.checkpoint.base.id import UUID, uuid6

from agent_runtime.graph.checkpointer import rows
from agent_runtime.graph.checkpointer.rows import COLUMNS, SCHEMA, Rows
from turnkeeper.errors import Corrupt
from turnkeeper.storage.database import Call, WorkerThread

BUSY_S = 10.0
Work = Rows | Callable[[Connection], Any]
# What is not drawn by time, as the ids of a test or of another program, has no time to go on from.
_NEWEST = "SELECT max(checkpoint_id) FROM checkpoints WHERE checkpoint_id GLOB '????????-????-6???-????-????????????'"


class CheckpointFile:
    """A SQLite file of checkpoints.

    Attributes:
        writer: the thread that writes; its work is :class:`Rows` or a function of a connection in a transaction.
        reader: the thread that reads what has been committed; its work is a function of a connection.
    """

    def __init__(self, path: Path) -> None:
        """Open or make the file, mode 0600, and bring an older layout up to date.

        Raises:
            Corrupt: not SQLite, tables of other columns, or checkpoints that new ones would not come after.
        """
        path.touch(mode=0o600, exist_ok=True)
        try:
            self._writing = _connect(path)
            _prepare(self._writing, path)
            self._reading = _connect(path)
            self._reading.execute("PRAGMA query_only=ON")
        except sqlite3.DatabaseError as error:
            raise Corrupt(f"cannot be read as checkpoints: {error}", where=str(path)) from error
        self.writer = WorkerThread("checkpoints-write", self._write)
        self.reader = WorkerThread("checkpoints-read", self._read)

    def close(self) -> None:
        """Finish what is queued, then close the file."""
        self.writer.close()
        self.reader.close()
        self._reading.close()
        self._writing.close()

    def _write(self, batch: Sequence[Call]) -> None:
        try:
            self._writing.execute("BEGIN IMMEDIATE")
            _together(self._writing, batch)
            self._writing.execute("COMMIT")
        except BaseException:  # noqa: BLE001  whose fault it was shows when they are tried one by one
            _undo(self._writing)
            _one_by_one(self._writing, batch)

    def _read(self, batch: Sequence[Call]) -> None:
        for call in batch:
            try:
                call.result = call.work(self._reading)
            except BaseException as error:  # noqa: BLE001  handed to the caller
                call.error = error


def _together(connection: Connection, batch: Sequence[Call]) -> None:
    """Do a batch's work. Rows are gathered; each table's keep their order, and functions theirs among all."""
    gathered: dict[str, list[Rows]] = {}
    for call in batch:
        if isinstance(call.work, Rows):
            gathered.setdefault(call.work.table, []).append(call.work)
        else:
            _add(connection, gathered)
            call.result = call.work(connection)
    _add(connection, gathered)


def _add(connection: Connection, gathered: dict[str, list[Rows]]) -> None:
    for table, given in gathered.items():
        start = 0
        for end in range(1, len(given) + 1):
            if end == len(given) or given[end].replace != given[start].replace:
                together = [row for part in given[start:end] for row in part.rows]
                rows.add(connection, Rows(table=table, rows=together, replace=given[start].replace))
                start = end
    gathered.clear()


def _one_by_one(connection: Connection, batch: Sequence[Call]) -> None:
    try:
        connection.execute("BEGIN IMMEDIATE")
        for call in batch:
            _alone(connection, call)
        connection.execute("COMMIT")
    except BaseException as error:  # noqa: BLE001  nothing of the batch is on disk: everyone is told
        _undo(connection)
        for call in batch:
            call.error = call.error or error


def _alone(connection: Connection, call: Call) -> None:
    """Run one call in a savepoint. Raises where its failure has undone what the others did, as a full disk may."""
    connection.execute("SAVEPOINT alone")
    try:
        if isinstance(call.work, Rows):
            rows.add(connection, call.work)
        else:
            call.result = call.work(connection)
    except BaseException as error:
        call.error = error
        if not connection.in_transaction:
            raise
        connection.execute("ROLLBACK TO alone")
    connection.execute("RELEASE alone")


def _undo(connection: Connection) -> None:
    if connection.in_transaction:
        connection.execute("ROLLBACK")


def _connect(path: Path) -> Connection:
    # Transactions are begun and ended here, in so many words; each connection is used by one thread at a time.
    connection = sqlite3.connect(path, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA cache_size=-16384")
    return connection


def _prepare(connection: Connection, path: Path) -> None:
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute("BEGIN IMMEDIATE")
    for statement in SCHEMA:
        connection.execute(statement)
    if "task_path" not in _columns(connection, "writes"):  # LangGraph's saver did without it once
        connection.execute("ALTER TABLE writes ADD COLUMN task_path TEXT NOT NULL DEFAULT ''")
    connection.execute("COMMIT")
    for table, columns in COLUMNS.items():
        if missing := set(columns.split(", ")) - _columns(connection, table):
            raise Corrupt(f"its table {table} lacks {', '.join(sorted(missing))}", where=str(path))
    continue_ids(connection, str(path))


def _columns(connection: Connection, table: str) -> set[str]:
    return {row[0] for row in connection.execute("SELECT name FROM pragma_table_info(?)", (table,))}


def continue_ids(connection: Connection, path: str) -> None:
    """Let every id that this process draws from now on be greater than those in the file.

    Raises:
        Corrupt: they would not be: what is written from now on would be taken for old, and pruned.
    """
    (newest,) = connection.execute(_NEWEST).fetchone()
    if newest is None:
        return
    # The name is private, so its effect is checked.
    module: Any = drawing
    module._last_v6_timestamp = max(module._last_v6_timestamp or 0, _time_of(newest))  # noqa: SLF001
    if str(uuid6()) <= newest:
        what = f"checkpoint {newest} is of a time that is still to come"
        raise Corrupt(what, where=path, hint="set the machine's clock right, then start again")


def _time_of(checkpoint_id: str) -> int:
    """Return when an id was drawn, in units of LangGraph's own; 0 for what only looks like an id."""
    try:
        return UUID(hex=checkpoint_id).time
    except ValueError:
        return 0
