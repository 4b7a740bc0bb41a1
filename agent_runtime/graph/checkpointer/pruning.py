"""Dropping and copying what is stored: functions of an open transaction."""

import json
from collections.abc import Callable, Sequence
from sqlite3 import Connection
from typing import Any

from agent_runtime.graph.checkpointer.rows import COLUMNS, METADATA, ancestors, get

Load = Callable[[tuple[str, bytes]], Any]
TABLES = ("writes", "checkpoints")
# LangGraph counts here, for each channel kept as changes alone, how far back its last whole value lies.
_COUNTERS = "counters_since_delta_snapshot"
_TASK = ":"  # in a namespace: between a node and the one task that it stands for


def drop_threads(connection: Connection, thread_ids: Sequence[str]) -> None:
    """Delete all of these threads."""
    for table in TABLES:
        connection.executemany(f"DELETE FROM {table} WHERE thread_id = ?", [(each,) for each in thread_ids])  # noqa: S608


def drop_runs(connection: Connection, run_ids: Sequence[str]) -> None:
    """Delete the checkpoints that these runs made, and their writes. Reads the metadata of every checkpoint."""
    runs = f"""SELECT thread_id, checkpoint_ns, checkpoint_id FROM checkpoints
        WHERE json_extract({METADATA}, '$.run_id') IN (SELECT value FROM json_each(?))"""  # noqa: S608  constants
    for table in TABLES:
        query = f"DELETE FROM {table} WHERE (thread_id, checkpoint_ns, checkpoint_id) IN ({runs})"  # noqa: S608
        connection.execute(query, (json.dumps(list(run_ids)),))


def copy_thread(connection: Connection, source: str, target: str) -> None:
    """Copy all of a thread under another id; what the other has under the same ids gives way."""
    for table in TABLES:
        columns = COLUMNS[table]
        rest = columns.removeprefix("thread_id, ")
        query = f"INSERT OR REPLACE INTO {table} ({columns}) SELECT ?, {rest} FROM {table} WHERE thread_id = ?"  # noqa: S608
        connection.execute(query, (target, source))


def keep_newest_of(connection: Connection, thread_ids: Sequence[str], load: Load) -> None:
    """Delete what going on with each of these threads does not need."""
    for thread_id in thread_ids:
        keep_newest(connection, thread_id, load)


def keep_newest(connection: Connection, thread_id: str, load: Load, *, at_end: bool = False) -> None:
    """Delete what going on with a thread does not need: all but each namespace's newest checkpoint and its writes.

    Where a channel is kept as changes since some earlier checkpoint, the checkpoints back to that one stay.

    Args:
        connection: an open transaction.
        thread_id: which thread.
        load: reads a stored checkpoint.
        at_end: nothing on the thread is under way: what belongs to a single run of a subgraph goes too.
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
    for table in TABLES:
        query = f"DELETE FROM {table} WHERE thread_id = ? AND checkpoint_ns = ?"  # noqa: S608  constants
        connection.execute(query, (thread_id, namespace))


def _drop_before(connection: Connection, thread_id: str, namespace: str, kept: Sequence[str]) -> None:
    """Delete what is older than the first of `kept` and not among it: writes may be there before their checkpoint."""
    for table in TABLES:
        query = f"""DELETE FROM {table} WHERE thread_id = ? AND checkpoint_ns = ? AND checkpoint_id < ?
            AND checkpoint_id NOT IN (SELECT value FROM json_each(?))"""  # noqa: S608  constants
        connection.execute(query, (thread_id, namespace, kept[0], json.dumps(list(kept))))
