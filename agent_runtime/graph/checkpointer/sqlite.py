"""Checkpoints in a SQLite file: its two tables, and the two connections that write and read them.

The functions of an open connection come first: what is written to the tables, how they are read, pruned and copied. The
layout is that of LangGraph's own SQLite saver, so that either opens the other's files.

All that has queued up for writing becomes one transaction with one commit, and is answered after it. It is first tried
as a whole, in as few statements as it takes. Where anything fails, all of it is undone and tried again one by one, each
in a savepoint, so that only what failed fails.

Checkpoint ids rise from one process to the next, also where the machine's clock was set back between them: an id begins
with the time at which it was drawn, and the greatest is the newest. LangGraph lets them rise within a process;
`continue_ids` lets them go on rising behind what the file holds.
"""

import json
import re
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from sqlite3 import Connection
from typing import Any

from langgraph.checkpoint.base import DeltaChannelHistory, PendingWrite
from langgraph.checkpoint.base import id as drawing
from langgraph.checkpoint.base.id import UUID, uuid6

from turnkeeper.errors import Corrupt
from turnkeeper.storage.database import Call, WorkerThread

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
COLUMNS = {
    "checkpoints": "thread_id, checkpoint_ns, checkpoint_id, parent_checkpoint_id, type, checkpoint, metadata",
    "writes": "thread_id, checkpoint_ns, checkpoint_id, task_id, task_path, idx, channel, type, value",
}
# Of a row whose metadata is no JSON, which another program may write: none, and no error for all that ask.
METADATA = "CASE WHEN json_valid(CAST(metadata AS TEXT)) THEN CAST(metadata AS TEXT) END"
Load = Callable[[tuple[str, bytes]], Any]
MOST_ROWS = 64  # of one INSERT
_COUNTERS = "counters_since_delta_snapshot"  # by channel kept as changes: how far back its last whole value lies
_TASK = ":"  # in a namespace: between a node and the one task that it stands for
_FILTER_KEY = re.compile(r"[A-Za-z0-9_.-]+")
_GET = """
SELECT NULL, checkpoint_id, parent_checkpoint_id, type, checkpoint, metadata, 0 FROM checkpoints
WHERE thread_id = ?1 AND checkpoint_ns = ?2 AND checkpoint_id = coalesce(?3, (
    SELECT max(checkpoint_id) FROM checkpoints WHERE thread_id = ?1 AND checkpoint_ns = ?2))
UNION ALL
SELECT task_id, channel, task_path, type, value, NULL, idx FROM writes
WHERE thread_id = ?1 AND checkpoint_ns = ?2 AND checkpoint_id = coalesce(?3, (
    SELECT max(checkpoint_id) FROM checkpoints WHERE thread_id = ?1 AND checkpoint_ns = ?2))
"""


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Rows to be written to one table.

    Attributes:
        table: `checkpoints` or `writes`.
        rows: values in the order of the table's columns.
        replace: whether a row that is there already gives way; otherwise it stays.
    """

    table: str
    rows: Sequence[tuple[Any, ...]]
    replace: bool = True


@dataclass(frozen=True, kw_only=True)
class Found:
    """A checkpoint as it is stored.

    Attributes:
        parent_id: id of the one before it, if there is one.
        blob: type and bytes.
        metadata: JSON, or None.
        writes: (task id, channel, (type, bytes)), in the order in which a run applies them.
    """

    checkpoint_id: str
    parent_id: str | None
    blob: tuple[str, bytes]
    metadata: bytes | None
    writes: Sequence[tuple[str, str, tuple[str, bytes]]] = field(default_factory=tuple)


def add(connection: Connection, given: Rows) -> None:
    """Write rows, as many with one statement as it takes: each statement is a turn at the interpreter's lock."""
    start = 0
    while start < len(given.rows):
        # Powers of two, so that a handful of statements serves all and stays prepared.
        size = min(MOST_ROWS, 1 << ((len(given.rows) - start).bit_length() - 1))
        chunk = given.rows[start : start + size]
        connection.execute(
            insertion(given.table, size, replace=given.replace), [value for row in chunk for value in row]
        )
        start += size


def insertion(table: str, count: int, *, replace: bool) -> str:
    """Return the statement that writes so many rows.

    >>> insertion("writes", 1, replace=False)[:27]
    'INSERT OR IGNORE INTO write'
    """
    columns = COLUMNS[table]
    row = f"({', '.join('?' * len(columns.split(', ')))})"
    verb = "REPLACE" if replace else "IGNORE"
    return f"INSERT OR {verb} INTO {table} ({columns}) VALUES {', '.join([row] * count)}"  # noqa: S608  constants


def get(connection: Connection, thread_id: str, namespace: str, checkpoint_id: str | None) -> Found | None:
    """Return a checkpoint and its writes, of one moment; the newest of the namespace where no id is given."""
    head: Any = None
    writes = []
    for row in connection.execute(_GET, (thread_id, namespace, checkpoint_id or None)).fetchall():
        if row[0] is None:
            head = row
        else:
            writes.append(row)
    if head is None:
        return None
    writes.sort(key=lambda row: (row[2], row[0], row[6]))  # by task path, task and index, as a run applies them
    return Found(
        checkpoint_id=head[1],
        parent_id=head[2],
        blob=(head[3], head[4]),
        metadata=head[5],
        writes=[(row[0], row[1], (row[3], row[4])) for row in writes],
    )


def ids(connection: Connection, where: Mapping[str, Any], limit: int | None) -> list[tuple[str, str, str]]:
    """Return (thread, namespace, id) of the checkpoints that match, newest first."""
    clauses = " AND ".join(where) or "TRUE"
    query = f"SELECT thread_id, checkpoint_ns, checkpoint_id FROM checkpoints WHERE {clauses}"  # noqa: S608  constants
    values = [value for given in where.values() for value in given]
    values.append(-1 if limit is None else limit)
    return connection.execute(f"{query} ORDER BY checkpoint_id DESC LIMIT ?", values).fetchall()


def matching(
    place: Mapping[str, Any] | None, before: str | None, wanted: Mapping[str, Any] | None
) -> dict[str, tuple[Any, ...]]:
    """Return conditions and the values that they are given, never one inside the other.

    Args:
        place: `thread_id`, `checkpoint_ns` and `checkpoint_id`, as far as they are given.
        before: only checkpoints with lesser ids; None for all.
        wanted: what the metadata must hold, by key; a dot leads into an object.

    Raises:
        ValueError: a key of `wanted` is not made of letters, digits and `_ . -`.
    """
    where: dict[str, tuple[Any, ...]] = {}
    for name in ("thread_id", "checkpoint_ns", "checkpoint_id"):
        value = (place or {}).get(name)
        if value is not None and (value or name != "checkpoint_id"):
            where[f"{name} = ?"] = (str(value),)
    if before is not None:
        where["checkpoint_id < ?"] = (before,)
    paths: list[Any] = []
    for key, value in (wanted or {}).items():
        if not _FILTER_KEY.fullmatch(key):
            raise ValueError(f"invalid filter key {key!r}: use only letters, digits, _, . and -")
        paths += [f"$.{key}", _comparable(value)]
    if paths:
        each = f"json_extract({METADATA}, ?) IS ?"
        where[" AND ".join([each] * (len(paths) // 2))] = tuple(paths)
    return where


def ancestors(connection: Connection, thread_id: str, namespace: str, checkpoint_id: str) -> Iterator[Found]:
    """Yield the checkpoints before one, nearest first, with their writes; a chain that bites its tail ends there."""
    seen = {checkpoint_id}
    found = get(connection, thread_id, namespace, checkpoint_id)
    while found is not None and found.parent_id and found.parent_id not in seen:
        seen.add(found.parent_id)
        found = get(connection, thread_id, namespace, found.parent_id)
        if found is not None:
            yield found


def _comparable(value: Any) -> Any:
    """Return a value as SQLite extracts its like from JSON."""
    if value is None or isinstance(value, str | int | float):
        return value
    return json.dumps(value, separators=(",", ":")) if isinstance(value, dict | list) else str(value)


def changes(
    connection: Connection, place: tuple[str, str, str], channels: Sequence[str], load: Load
) -> Mapping[str, DeltaChannelHistory]:
    """Return each channel's history at a checkpoint.

    The place is a thread, a namespace and a checkpoint id; an empty id stands for the newest.

    Returns:
        By channel, the writes on the way to the checkpoint, oldest first and without its own; `seed` is the value they
        are to be applied to, and left out where there is none.
    """
    writes: dict[str, list[PendingWrite]] = {channel: [] for channel in channels}
    seeds: dict[str, Any] = {}
    head = get(connection, *place) if channels else None
    for before in ancestors(connection, place[0], place[1], head.checkpoint_id) if head is not None else ():
        for task_id, channel, blob in reversed(before.writes):
            if channel in writes and channel not in seeds:
                writes[channel].append((task_id, channel, load(blob)))
        values = load(before.blob)["channel_values"]
        seeds |= {channel: values[channel] for channel in writes if channel in values and channel not in seeds}
        if len(seeds) == len(writes):
            break
    return {channel: _history(writes[channel][::-1], seeds, channel) for channel in channels}


def _history(writes: list[PendingWrite], seeds: Mapping[str, Any], channel: str) -> DeltaChannelHistory:
    return {"writes": writes, "seed": seeds[channel]} if channel in seeds else {"writes": writes}


def drop_threads(connection: Connection, thread_ids: Sequence[str]) -> None:
    """Delete all of these threads."""
    for table in COLUMNS:
        connection.executemany(f"DELETE FROM {table} WHERE thread_id = ?", [(each,) for each in thread_ids])  # noqa: S608


def drop_runs(connection: Connection, run_ids: Sequence[str]) -> None:
    """Delete the checkpoints that these runs made, and their writes. Reads the metadata of every checkpoint."""
    runs = f"""SELECT thread_id, checkpoint_ns, checkpoint_id FROM checkpoints
        WHERE json_extract({METADATA}, '$.run_id') IN (SELECT value FROM json_each(?))"""  # noqa: S608  constants
    for table in COLUMNS:
        query = f"DELETE FROM {table} WHERE (thread_id, checkpoint_ns, checkpoint_id) IN ({runs})"  # noqa: S608
        connection.execute(query, (json.dumps(list(run_ids)),))


def copy_thread(connection: Connection, source: str, target: str) -> None:
    """Copy all of a thread under another id; what the other has under the same ids gives way."""
    for table, columns in COLUMNS.items():
        rest = columns.removeprefix("thread_id, ")
        query = f"INSERT OR REPLACE INTO {table} ({columns}) SELECT ?, {rest} FROM {table} WHERE thread_id = ?"  # noqa: S608
        connection.execute(query, (target, source))


def keep_newest_of(connection: Connection, thread_ids: Sequence[str], load: Load) -> None:
    """Delete what going on with each of these threads does not need."""
    for thread_id in thread_ids:
        keep_newest(connection, thread_id, load)


def keep_newest(connection: Connection, thread_id: str, load: Load, *, at_end: bool = False) -> None:
    """Delete what going on with a thread does not need: all but each namespace's newest checkpoint and its writes.

    Where a channel is kept as changes since some earlier checkpoint, the checkpoints back to that one stay. With
    `at_end` nothing on the thread is under way, and what belongs to a single run of a subgraph goes too.
    """
    newest = """SELECT checkpoint_ns, max(checkpoint_id) FROM checkpoints WHERE thread_id = ? GROUP BY checkpoint_ns"""
    for namespace, checkpoint_id in connection.execute(newest, (thread_id,)).fetchall():
        if at_end and _TASK in namespace:
            _drop_namespace(connection, thread_id, namespace)
        else:
            kept = _needed(connection, thread_id, namespace, checkpoint_id, load)
            _drop_before(connection, thread_id, namespace, kept)


def _needed(connection: Connection, thread_id: str, namespace: str, checkpoint_id: str, load: Load) -> list[str]:
    head = get(connection, thread_id, namespace, checkpoint_id)
    assert head is not None, "its id was just read, in this transaction"
    needed = [checkpoint_id]
    open_channels = set(json.loads(head.metadata or b"{}").get(_COUNTERS) or ())
    if open_channels:
        open_channels -= load(head.blob)["channel_values"].keys()
    for before in ancestors(connection, thread_id, namespace, checkpoint_id) if open_channels else ():
        needed.append(before.checkpoint_id)
        open_channels -= load(before.blob)["channel_values"].keys()
        if not open_channels:
            break
    return needed


def _drop_namespace(connection: Connection, thread_id: str, namespace: str) -> None:
    for table in COLUMNS:
        query = f"DELETE FROM {table} WHERE thread_id = ? AND checkpoint_ns = ?"  # noqa: S608  constants
        connection.execute(query, (thread_id, namespace))


def _drop_before(connection: Connection, thread_id: str, namespace: str, kept: Sequence[str]) -> None:
    """Delete what is older than the first of `kept` and not among it: writes may be there before their checkpoint."""
    for table in COLUMNS:
        query = f"""DELETE FROM {table} WHERE thread_id = ? AND checkpoint_ns = ? AND checkpoint_id < ?
            AND checkpoint_id NOT IN (SELECT value FROM json_each(?))"""  # noqa: S608  constants
        connection.execute(query, (thread_id, namespace, kept[0], json.dumps(list(kept))))


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
                add(connection, Rows(table=table, rows=together, replace=given[start].replace))
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
            add(connection, call.work)
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
