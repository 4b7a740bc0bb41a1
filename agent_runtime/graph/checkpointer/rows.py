"""The two tables of checkpoints on an open connection: writing, reading, listing, pruning and copying.

The statements work on SQLite and PostgreSQL; parameters are numbered, as `?1`. Names are compared by their bytes, so
that listings have the same order on both. Filters on metadata are evaluated in Python, because each database treats
JSON differently.

Checkpoint ids increase from one process to the next, even after the machine's clock was set back. An id begins with the
time when it was made, and the greatest id is the newest. LangGraph makes increasing ids within a process;
`continue_ids` makes the next ids greater than those in the tables.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import islice
from operator import itemgetter
from typing import Any, Protocol

from langgraph.checkpoint.base import DeltaChannelHistory, PendingWrite
from langgraph.checkpoint.base import id as drawing

from turnkeeper.config.surfaces import offered
from turnkeeper.errors import Corrupt

COLUMNS = {
    "checkpoints": "thread_id, checkpoint_ns, checkpoint_id, parent_checkpoint_id, type, checkpoint, metadata",
    "writes": "thread_id, checkpoint_ns, checkpoint_id, task_id, task_path, idx, channel, type, value",
}
KEYS = {
    "checkpoints": "thread_id, checkpoint_ns, checkpoint_id",
    "writes": "thread_id, checkpoint_ns, checkpoint_id, task_id, idx",
}
_KEY_OF = {table: itemgetter(*map(COLUMNS[table].split(", ").index, key.split(", "))) for table, key in KEYS.items()}
Load = Callable[[tuple[str, bytes]], Any]
MOST_ROWS = 64  # the most rows of one INSERT
_COUNTERS = "counters_since_delta_snapshot"  # for a channel stored as changes: the steps since its last whole value
_TASK = ":"  # in a namespace: between a node and the id of its task
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


class Connection(Protocol):
    """The part of a driver's connection that is used here. It is outside a transaction until a statement begins one."""

    @property
    def in_transaction(self) -> bool:
        """True while a transaction is open; False after the connection is lost."""

    def execute(self, statement: str, values: Sequence[Any] = (), /) -> Any:
        """Run a statement; return its cursor."""

    def close(self) -> None:
        """Close it."""


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Rows to write to one table.

    Attributes:
        table: `checkpoints` or `writes`.
        rows: values in the order of the table's columns.
        replace: True if the new rows replace existing ones; otherwise existing rows stay.
    """

    table: str
    rows: Sequence[tuple[Any, ...]]
    replace: bool = True


@dataclass(frozen=True, kw_only=True)
class Found:
    """A checkpoint as it is stored.

    Attributes:
        parent_id: id of the previous checkpoint, if there is one.
        blob: the type and the bytes.
        metadata: JSON, or None.
        writes: (task id, channel, (type, bytes)), in the order in which a run applies them.
    """

    checkpoint_id: str
    parent_id: str | None
    blob: tuple[str, bytes]
    metadata: bytes | None
    writes: Sequence[tuple[str, str, tuple[str, bytes]]] = field(default_factory=tuple)


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """The filter of a listing.

    Attributes:
        columns: values of parameters, by the beginning of their conditions, such as `thread_id =`.
        metadata: values, by their path in the metadata.
    """

    columns: Mapping[str, str]
    metadata: Mapping[str, Any]


def add(connection: Connection, given: Rows) -> None:
    """Write rows, as many per statement as possible, because each statement takes the interpreter's lock once."""
    rows = given.rows
    if given.replace and len(rows) > 1:  # only the last row of each key: PostgreSQL replaces a row once per statement
        rows = list({_KEY_OF[given.table](row): row for row in rows}.values())
    start = 0
    while start < len(rows):
        # Powers of two, so that there are few statements, which stay prepared.
        size = min(MOST_ROWS, 1 << ((len(rows) - start).bit_length() - 1))
        chunk = rows[start : start + size]
        connection.execute(
            insertion(given.table, size, replace=given.replace), [value for row in chunk for value in row]
        )
        start += size


@cache
def insertion(table: str, count: int, *, replace: bool) -> str:
    """Return the statement that writes `count` rows.

    >>> insertion("checkpoints", 2, replace=False)[103:]
    'VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7), (?8, ?9, ?10, ?11, ?12, ?13, ?14) ON CONFLICT DO NOTHING'
    """
    columns = COLUMNS[table]
    width = columns.count(",") + 1
    rows = (", ".join(f"?{row * width + column}" for column in range(1, width + 1)) for row in range(count))
    values = ", ".join(f"({row})" for row in rows)
    return f"INSERT INTO {table} ({columns}) VALUES {values} {_on_conflict(table, replace=replace)}"  # noqa: S608


def _on_conflict(table: str, *, replace: bool) -> str:
    if not replace:
        return "ON CONFLICT DO NOTHING"
    changes = (
        f"{name} = excluded.{name}" for name in COLUMNS[table].split(", ") if name not in KEYS[table].split(", ")
    )
    return f"ON CONFLICT ({KEYS[table]}) DO UPDATE SET {', '.join(changes)}"


def get(connection: Connection, thread_id: str, namespace: str, checkpoint_id: str | None) -> Found | None:
    """Return a checkpoint and its writes from one snapshot; without an id, the newest checkpoint of the namespace."""
    head: Any = None
    writes = []
    for row in connection.execute(_GET, (thread_id, namespace, checkpoint_id or None)).fetchall():
        if row[0] is None:
            head = row
        else:
            writes.append(row)
    if head is None:
        return None
    writes.sort(key=lambda row: (row[2], row[0], row[6]))  # ordered by task path, task and index, as a run applies them
    return Found(
        checkpoint_id=head[1],
        parent_id=head[2],
        blob=(head[3], head[4]),
        metadata=head[5],
        writes=[(row[0], row[1], (row[3], row[4])) for row in writes],
    )


def ids(connection: Connection, wanted: Wanted, limit: int | None) -> list[tuple[str, str, str]]:
    """Return (thread, namespace, id) of the matching checkpoints, newest first."""
    clauses = [f"{condition} ?{number}" for number, condition in enumerate(wanted.columns, 1)]
    query = f"SELECT {KEYS['checkpoints']}, {'metadata' if wanted.metadata else 'NULL'} FROM checkpoints"  # noqa: S608
    query += f" WHERE {' AND '.join(clauses) or 'TRUE'} ORDER BY checkpoint_id DESC, thread_id, checkpoint_ns"
    most = None if limit is None or limit < 0 else limit
    if most is not None and not wanted.metadata:
        query += f" LIMIT {most:d}"
    found = connection.execute(query, list(wanted.columns.values()))
    return [row[:3] for row in islice((row for row in found if _holds(row[3], wanted.metadata)), most)]


def matching(place: Mapping[str, Any] | None, before: str | None, metadata: Mapping[str, Any] | None) -> Wanted:
    """Return the filter of a listing; its values never become part of a statement's text.

    Args:
        place: any of `thread_id`, `checkpoint_ns` and `checkpoint_id`.
        before: return only checkpoints with lesser ids; None for all.
        metadata: required values of the metadata, by key; a dot in a key leads into an object.

    Raises:
        ValueError: a key of `metadata` contains characters other than letters, digits and `_ . -`.
    """
    columns: dict[str, str] = {}
    for name in ("thread_id", "checkpoint_ns", "checkpoint_id"):
        value = (place or {}).get(name)
        if value is not None and (value or name != "checkpoint_id"):
            columns[f"{name} ="] = str(value)
    if before is not None:
        columns["checkpoint_id <"] = before
    for key in metadata or ():
        if not _FILTER_KEY.fullmatch(key):
            raise ValueError(f"invalid filter key {key!r}: use only letters, digits, _, . and -")
    return Wanted(columns=columns, metadata=metadata or {})


def _holds(metadata: bytes | str | None, wanted: Mapping[str, Any]) -> bool:
    if not wanted:
        return True
    known = _known(metadata)
    return all(_comparable(_at(known, key)) == _comparable(value) for key, value in wanted.items())


def _refuse(name: str) -> None:
    raise ValueError(f"JSON has no {name}")


_JSON = json.JSONDecoder(parse_constant=_refuse)


def _known(metadata: bytes | str | None) -> Any:
    """Return metadata, or None if another program wrote invalid JSON, so that a listing does not fail."""
    try:
        return _JSON.decode(metadata if isinstance(metadata, str) else (metadata or b"null").decode())
    except (ValueError, RecursionError):
        return None


def _at(known: Any, path: str) -> Any:
    for name in path.split("."):
        known = known.get(name) if isinstance(known, dict) else None
    return known


def _comparable(value: Any) -> Any:
    """Return a value in its JSON form; a list or an object becomes text."""
    if value is None or isinstance(value, str | int | float):
        return value
    return json.dumps(value, separators=(",", ":")) if isinstance(value, dict | list) else str(value)


def ancestors(connection: Connection, thread_id: str, namespace: str, checkpoint_id: str) -> Iterator[Found]:
    """Yield the checkpoints before a checkpoint, nearest first, with their writes; stop at a cycle."""
    seen = {checkpoint_id}
    found = get(connection, thread_id, namespace, checkpoint_id)
    while found is not None and found.parent_id and found.parent_id not in seen:
        seen.add(found.parent_id)
        found = get(connection, thread_id, namespace, found.parent_id)
        if found is not None:
            yield found


def changes(
    connection: Connection, place: tuple[str, str, str], channels: Sequence[str], load: Load
) -> Mapping[str, DeltaChannelHistory]:
    """Return each channel's history at a checkpoint.

    The place is a thread, a namespace and a checkpoint id; an empty id means the newest.

    Returns:
        By channel, the writes before the checkpoint, oldest first; the checkpoint's own writes are left out. `seed` is
        the value before these writes, if there is one.
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
    for thread_id in thread_ids:
        _drop(connection, "thread_id = ?1", [thread_id])


def drop_runs(connection: Connection, run_ids: Sequence[str]) -> None:
    """Delete the checkpoints of these runs, and their writes. The function reads the metadata of every checkpoint."""
    query = f"SELECT {KEYS['checkpoints']}, metadata FROM checkpoints"  # noqa: S608  constants
    for *place, metadata in connection.execute(query).fetchall():
        if _comparable(_at(_known(metadata), "run_id")) in run_ids:
            drop(connection, *place)


def drop(connection: Connection, thread_id: str, namespace: str, checkpoint_id: str) -> None:
    place = [thread_id, namespace, checkpoint_id]
    _drop(connection, "thread_id = ?1 AND checkpoint_ns = ?2 AND checkpoint_id = ?3", place)


def _drop(connection: Connection, condition: str, values: Sequence[str]) -> None:
    for table in COLUMNS:
        connection.execute(f"DELETE FROM {table} WHERE {condition}", values)  # noqa: S608  constants


def copy_thread(connection: Connection, source: str, target: str) -> None:
    """Copy all rows of a thread under another id; copied rows replace existing rows with the same ids."""
    for table, columns in COLUMNS.items():
        rows = f"SELECT CAST(?1 AS TEXT), {columns.removeprefix('thread_id, ')} FROM {table} WHERE thread_id = ?2"  # noqa: S608
        query = f"INSERT INTO {table} ({columns}) {rows} {_on_conflict(table, replace=True)}"
        connection.execute(query, (target, source))


def keep_newest_of(connection: Connection, thread_ids: Sequence[str], load: Load) -> None:
    """Delete all checkpoints that these threads do not need to continue."""
    for thread_id in thread_ids:
        keep_newest(connection, thread_id, load)


def keep_newest(connection: Connection, thread_id: str, load: Load, *, at_end: bool = False) -> None:
    """Delete all checkpoints except each namespace's newest one and its writes, which the thread needs to continue.

    If a channel is stored as changes since an earlier checkpoint, the checkpoints back to that one stay. With `at_end`,
    no graph runs on the thread. The data of single runs of subgraphs is then deleted too, and clients' states stay.
    """
    newest = """SELECT checkpoint_ns, max(checkpoint_id) FROM checkpoints WHERE thread_id = ?1 GROUP BY checkpoint_ns"""
    for namespace, checkpoint_id in connection.execute(newest, (thread_id,)).fetchall():
        if at_end and _TASK in namespace:
            _drop(connection, "thread_id = ?1 AND checkpoint_ns = ?2", (thread_id, namespace))
        else:
            kept = needed(connection, thread_id, namespace, checkpoint_id, load)
            more = offered("kept-states", connection, thread_id, namespace, load) if at_end else None
            _drop_before(connection, thread_id, namespace, [*kept, *(more or ())])


def needed(connection: Connection, thread_id: str, namespace: str, checkpoint_id: str, load: Load) -> list[str]:
    """Return a checkpoint and the earlier checkpoints that its channels need."""
    head = get(connection, thread_id, namespace, checkpoint_id)
    assert head is not None, "the id was just read in this transaction"
    found = [checkpoint_id]
    open_channels = set(json.loads(head.metadata or b"{}").get(_COUNTERS) or ())
    if open_channels:
        open_channels -= load(head.blob)["channel_values"].keys()
    for before in ancestors(connection, thread_id, namespace, checkpoint_id) if open_channels else ():
        found.append(before.checkpoint_id)
        open_channels -= load(before.blob)["channel_values"].keys()
        if not open_channels:
            break
    return found


def _drop_before(connection: Connection, thread_id: str, namespace: str, kept: Sequence[str]) -> None:
    """Delete rows that are older than the first of `kept` and not in it; newer writes may precede their checkpoint."""
    others = ", ".join(f"?{number}" for number in range(4, 3 + len(kept)))
    condition = "thread_id = ?1 AND checkpoint_ns = ?2 AND checkpoint_id < ?3"
    if others:
        condition += f" AND checkpoint_id NOT IN ({others})"
    _drop(connection, condition, (thread_id, namespace, *kept))


# Ids without a time, from a test or another program, cannot be continued.
_NEWEST = "SELECT max(checkpoint_id) FROM checkpoints WHERE checkpoint_id LIKE '________-____-6___-____-____________'"


def continue_ids(connection: Connection, path: str, thread_id: str = "") -> None:
    """Make every later id of this process greater than those in the tables, or those of one thread.

    Raises:
        Corrupt: ids cannot be made greater, so new checkpoints would look old, and would be pruned.
    """
    of_thread = (f"{_NEWEST} AND thread_id = ?1", [thread_id]) if thread_id else (_NEWEST,)
    (newest,) = connection.execute(*of_thread).fetchone()
    if newest is None:
        return
    # The name is private, so the code checks its effect.
    module: Any = drawing
    before = module._last_v6_timestamp  # noqa: SLF001
    module._last_v6_timestamp = max(before or 0, _time_of(newest))  # noqa: SLF001
    if str(drawing.uuid6()) <= newest:
        module._last_v6_timestamp = before  # noqa: SLF001  a refused file must not change the ids of other files
        what = f"checkpoint {newest} has a time in the future"
        raise Corrupt(what, where=path, hint="set the machine's clock right, then start again")


def _time_of(checkpoint_id: str) -> int:
    """Return the time of an id, in LangGraph's unit; 0 for a string that only looks like an id."""
    try:
        return drawing.UUID(hex=checkpoint_id).time
    except ValueError:
        return 0


def check_columns(connection: Connection, where: str) -> None:
    """Raise Corrupt if a table lacks a column."""
    for table, columns in COLUMNS.items():
        if missing := set(columns.split(", ")) - columns_of(connection, table):
            raise Corrupt(f"its table {table} lacks {', '.join(sorted(missing))}", where=where)


def columns_of(connection: Connection, table: str) -> set[str]:
    return {column[0] for column in connection.execute(f"SELECT * FROM {table} LIMIT 0").description}  # noqa: S608
