"""Import of a LangGraph user's threads from a file of LangGraph's own SQLite saver.

The file and its log are only copied, because opening the file, even for reading, could write next to it. LangGraph's
saver reads the copy, which proves that every checkpoint is readable; then the rows are copied unchanged.
"""

import hashlib
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from langgraph.checkpoint.base import WRITES_IDX_MAP, CheckpointTuple
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.serde.types import INTERRUPT
from langgraph.checkpoint.sqlite import SqliteSaver

from agent_runtime.graph.checkpointer import rows
from agent_runtime.model.turn import Said
from turnkeeper.errors import Conflict, InvalidInput, NotFound

_BESIDE = ("", "-wal", "-journal")  # the files of a SQLite database
_TRIES = 3
_NEXT = "branch:to:"  # prefix of the channels that start a step
_BYTES = {"checkpoint", "metadata", "value"}  # columns that an older saver wrote as text
_UNKNOWN_BEFORE = {"task_path"}  # LangGraph's saver adds this column to an older file
_NOT_THEIRS = "is not a file of LangGraph's SQLite saver"
_HINT = "give the checkpoints.sqlite of langgraph-checkpoint-sqlite"


@dataclass(frozen=True, kw_only=True)
class PastTurn:
    """A turn that ran before its thread was imported.

    Attributes:
        mark: the id of the prompt's message; empty if it has none.
        lines: the answers of agents and tools.
    """

    prompt: str
    mark: str
    lines: tuple[Said, ...]


@dataclass(frozen=True, kw_only=True)
class PastThread:
    """An imported thread of a LangGraph user, read from a file.

    Attributes:
        digest: a digest of all its rows.
        waits: True if its graph asked a question without an answer.
        turns: its conversation, oldest first.
    """

    thread_id: str
    digest: str
    checkpoints: int
    waits: bool
    turns: tuple[PastTurn, ...]

    @property
    def key(self) -> str:
        """The idempotency key of the thread's import. The key is never released, so a thread is imported only once."""
        return f"import:{self.thread_id}"


ReadTurns = Callable[[Mapping[str, Any]], Sequence[PastTurn]]


@contextmanager
def copy_of(path: Path) -> Iterator[Path]:
    """Yield a copy of a SQLite file with all committed data; leave the file itself unchanged.

    Raises:
        NotFound: no such file exists.
        InvalidInput: the file cannot be read.
        Conflict: a program is writing to the file.
    """
    if not path.exists():
        raise NotFound("no such file", where=str(path))
    if not path.is_file() or not os.access(path, os.R_OK):
        raise InvalidInput("cannot be read as a file", where=str(path))
    with tempfile.TemporaryDirectory(prefix="turnkeeper-threads-") as folder:
        copy = Path(folder) / "checkpoints.sqlite"
        for _ in range(_TRIES):
            before = _state(path)
            for end in _BESIDE:
                source, target = Path(f"{path}{end}"), Path(f"{copy}{end}")
                target.unlink(missing_ok=True)
                if source.exists():
                    shutil.copyfile(source, target)
            if _state(path) == before:
                break
        else:
            raise Conflict("changed during reading", where=str(path), hint="stop the program that writes to it")
        yield copy


def _state(path: Path) -> list[tuple[int, int, int] | None]:
    found: list[tuple[int, int, int] | None] = []
    for end in _BESIDE:
        try:
            known = Path(f"{path}{end}").stat()
            found.append((known.st_ino, known.st_size, known.st_mtime_ns))
        except FileNotFoundError:
            found.append(None)
    return found


def read_threads(copy: Path, wanted: Collection[str], where: str, read_turns: ReadTurns) -> list[PastThread]:
    """Read the threads of a file, all or the wanted ones; `read_turns` finds the turns in a state's values.

    Raises:
        InvalidInput: not a file of LangGraph's saver, damaged, or in an unknown format.
        NotFound: a wanted thread is not in the file.
    """
    try:
        with closing(_open(copy)) as connection:
            _check_tables(connection, where)
            saver = SqliteSaver(connection, serde=JsonPlusSerializer(allowed_msgpack_modules=None))
            saver.setup()
            found = [row[0] for row in connection.execute("SELECT DISTINCT thread_id FROM checkpoints ORDER BY 1")]
            if missing := sorted(set(wanted) - set(found)):
                hint = f"it has {', '.join(found[:5])}" if found else "it has no threads"
                raise NotFound(f"has no thread {missing[0]!r}", where=where, hint=hint)
            return [_thread(saver, one, where, read_turns) for one in found if not wanted or one in wanted]
    except sqlite3.DatabaseError as error:
        raise _damaged(error, where) from error


def take_in(connection: rows.Connection, copy: Path, thread_ids: Sequence[str], where: str) -> int:
    """Add all rows of threads to the checkpoints; return their number. Existing rows must be equal.

    Raises:
        Conflict: a thread with that id has other checkpoints here.
        Corrupt: new checkpoints would not sort after these.
    """
    count = 0
    with closing(_open(copy)) as source:
        for thread_id in thread_ids:
            _refuse_other(connection, source, thread_id)
            for table in rows.COLUMNS:
                for chunk in _chunks(source, table, thread_id):
                    rows.add(connection, rows.Rows(table=table, rows=chunk))
                    count += len(chunk)
    rows.continue_ids(connection, where)
    return count


def take_out(connection: rows.Connection, copy: Path, thread_ids: Sequence[str]) -> None:
    """Delete the rows that `take_in` added."""
    with closing(_open(copy)) as source:
        for thread_id in thread_ids:
            for place in _ids(source, thread_id):
                rows.drop(connection, thread_id, *place)


def _open(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(path, isolation_level=None, check_same_thread=False)


def _check_tables(connection: sqlite3.Connection, where: str) -> None:
    try:
        tables = {row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    except sqlite3.DatabaseError as error:
        if "not a database" in str(error):
            raise InvalidInput("is not a SQLite file", where=where, hint=_HINT) from error
        raise
    if missing := sorted(set(rows.COLUMNS) - tables):
        raise InvalidInput(f"{_NOT_THEIRS}: it has no table {missing[0]}", where=where, hint=_HINT)
    for table, columns in rows.COLUMNS.items():
        lacking = set(columns.split(", ")) - _UNKNOWN_BEFORE - rows.columns_of(connection, table)
        if lacking:
            what = f"its table {table} lacks {', '.join(sorted(lacking))}: another version of the saver wrote it"
            raise InvalidInput(what, where=where, hint="open it once with the newest langgraph-checkpoint-sqlite")
    (found,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    if found != "ok":
        raise InvalidInput(f"is damaged: {found}", where=where, hint="give an undamaged copy of it")


def _thread(saver: SqliteSaver, thread_id: str, where: str, read_turns: ReadTurns) -> PastThread:
    newest: CheckpointTuple | None = None
    count = 0
    try:
        for found in saver.list({"configurable": {"thread_id": thread_id}}):
            count += 1
            if newest is None and not found.config["configurable"]["checkpoint_ns"]:
                newest = found  # the greatest id comes first
        turns = read_turns(newest.checkpoint["channel_values"] if newest is not None else {})
        waits = newest is not None and _waits(newest)
    except NotImplementedError as error:
        what = f"thread {thread_id!r} is in a format that cannot be read: {error}"
        raise InvalidInput(what, where=where, hint="only unencrypted JSON and msgpack can be read") from error
    except (sqlite3.DatabaseError, ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise _damaged(error, where, f"thread {thread_id!r}") from error
    digest = hashlib.sha256()
    for table in rows.COLUMNS:
        for chunk in _chunks(saver.conn, table, thread_id):
            digest.update(repr(chunk).encode())
    return PastThread(
        thread_id=thread_id, digest=digest.hexdigest(), checkpoints=count, waits=waits, turns=tuple(turns)
    )


def _waits(newest: CheckpointTuple) -> bool:
    """Return whether a step of the checkpoint asked a question or has not run yet, as after a stop before a step."""
    if any(channel.startswith(_NEXT) for channel in newest.checkpoint["channel_values"]):
        return True
    writes = newest.pending_writes or []
    done = {task for task, channel, _ in writes if channel not in WRITES_IDX_MAP}
    return any(channel == INTERRUPT and task not in done for task, channel, _ in writes)


def _chunks(source: Any, table: str, thread_id: str) -> Iterator[list[tuple[Any, ...]]]:
    query = f"SELECT {rows.COLUMNS[table]} FROM {table} WHERE thread_id = ? ORDER BY {rows.KEYS[table]}"  # noqa: S608
    found = source.execute(query, (thread_id,))
    while chunk := found.fetchmany(rows.MOST_ROWS):
        yield [tuple(map(_as_bytes, rows.COLUMNS[table].split(", "), row)) for row in chunk]


def _as_bytes(column: str, value: Any) -> Any:
    return value.encode() if column in _BYTES and isinstance(value, str) else value


def _ids(source: Any, thread_id: str) -> set[tuple[str, str]]:
    query = "SELECT checkpoint_ns, checkpoint_id FROM checkpoints WHERE thread_id = ?1"
    return {(row[0], row[1]) for row in source.execute(query, (thread_id,)).fetchall()}


def _refuse_other(connection: rows.Connection, source: sqlite3.Connection, thread_id: str) -> None:
    here = _ids(connection, thread_id)
    if here and here != _ids(source, thread_id):
        raise Conflict(f"a thread {thread_id!r} exists here with another history", where="thread_id")


def _damaged(error: Exception, where: str, what: str = "it") -> InvalidInput:
    said = str(error).partition("\n")[0][:200]
    return InvalidInput(
        f"{what} is damaged: {type(error).__name__}: {said}", where=where, hint="give an undamaged copy"
    )
