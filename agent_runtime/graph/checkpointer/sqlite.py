"""Checkpoints in a SQLite file. The layout is that of LangGraph's own SQLite saver: each opens the other's files."""

import sqlite3
from pathlib import Path
from typing import Any

from agent_runtime.graph.checkpointer.groups import Checkpoints
from agent_runtime.graph.checkpointer.rows import check_columns, columns_of, continue_ids
from turnkeeper.errors import unopened
from turnkeeper.storage.damage import judged

SCHEMA = (
    """CREATE TABLE IF NOT EXISTS checkpoints (
        thread_id TEXT NOT NULL, checkpoint_ns TEXT NOT NULL DEFAULT '', checkpoint_id TEXT NOT NULL,
        parent_checkpoint_id TEXT, type TEXT, checkpoint BLOB, metadata BLOB,
        PRIMARY KEY (thread_id, checkpoint_ns, checkpoint_id))""",
    """CREATE TABLE IF NOT EXISTS writes (
        thread_id TEXT NOT NULL, checkpoint_ns TEXT NOT NULL DEFAULT '', checkpoint_id TEXT NOT NULL,
        task_id TEXT NOT NULL, task_path TEXT NOT NULL DEFAULT '', idx INTEGER NOT NULL, channel TEXT NOT NULL,
        type TEXT, value BLOB,
        PRIMARY KEY (thread_id, checkpoint_ns, checkpoint_id, task_id, idx))""",
)
BUSY_S = 10.0
CACHE_KB = 4_096  # milliseconds for each connection


class CheckpointFile(Checkpoints):
    """A SQLite file of checkpoints."""

    def __init__(self, path: Path, **how: Any) -> None:
        """Open or make the file, mode 0600, and update an older layout. `how` is passed to `Checkpoints`.

        Raises:
            Corrupt: not SQLite, other columns, or new checkpoints would not sort after the stored ones.
            MachineTrouble: the machine cannot read or write the file now.
        """
        try:
            path.touch(mode=0o600, exist_ok=True)
            writing = _connect(path)
            _prepare(writing, path)
            reading = _connect(path)
            reading.execute("PRAGMA query_only=ON")
        except (sqlite3.DatabaseError, OSError) as error:
            raise unopened(judged(error, str(path)), str(path), "checkpoints") from error
        super().__init__(writing, reading, begin="BEGIN IMMEDIATE", where=str(path), **how)


def _connect(path: Path) -> sqlite3.Connection:
    # Transactions are begun and ended explicitly; each connection is used by one thread at a time.
    connection = sqlite3.connect(path, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
    connection.execute(f"PRAGMA cache_size=-{CACHE_KB}")
    return connection


def _prepare(connection: sqlite3.Connection, path: Path) -> None:
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute("BEGIN IMMEDIATE")
    for statement in SCHEMA:
        connection.execute(statement)
    if "task_path" not in columns_of(connection, "writes"):  # older versions of LangGraph's saver lack this column
        connection.execute("ALTER TABLE writes ADD COLUMN task_path TEXT NOT NULL DEFAULT ''")
    connection.execute("COMMIT")
    check_columns(connection, str(path))
    continue_ids(connection, str(path))
