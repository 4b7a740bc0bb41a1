"""Runs one SELECT on a snapshot of a home, within limits, on a connection that can do nothing else.

The stores are attached read-only, in their state at the beginning. While SQLite compiles a statement, an allowlist
decides what the statement may read: the tables of :mod:`turnkeeper.constellation.query.tables`, and the columns of the
stores from which these tables are made. None of them contains a hidden text, whatever aliases a statement uses.

If the database is shared, the columns that a statement needs are first copied, all at the same instant.
"""

import contextlib
import json
import os
import resource
import sqlite3
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from turnkeeper.config.home import Home
from turnkeeper.config.surfaces import required
from turnkeeper.constellation.query.tables import TABLES, TRAIL, Text
from turnkeeper.constellation.timeline.sources import Sources
from turnkeeper.constellation.timeline.stores import FOREVER_US, Wanted, shared_url
from turnkeeper.errors import EXIT_FAILURE, Conflict, Exhausted, InvalidInput, TurnkeeperError
from turnkeeper.storage import nodes
from turnkeeper.storage.schema_revision import STORES, readable, told
from turnkeeper.storage.server import handover
from turnkeeper.storage.sqlite_files import locator

MOST_MEMORY_BYTES = 256 << 20  # memory of SQLite; larger results are stored in temporary files
MOST_FILE_BYTES = 1 << 30  # largest size of a temporary file
LONGEST_VALUE_BYTES = 4 << 20
LONGEST_STATEMENT_BYTES = 64 << 10
LONGEST_PATTERN_BYTES = 256
MOST_TRAIL_LINES = 500_000
_GRACE_S = 2.0  # seconds for work that cannot be interrupted
_AGAIN_S = 0.05
_CHUNK = 500  # rows in a batch
_HINT = "for the tables: turnkeeper query --tables; see docs/query.md"
_STORES = {"agent": handover.SCHEMA, "schedules": nodes.SCHEMA}  # the sources, with their schemas in a shared database
_LONGEST_S = 600.0  # seconds for one query of a shared database
_ALLOWED = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_RECURSIVE}
_REFUSED_FUNCTIONS = {"load_extension", "fts3_tokenizer", "readfile", "writefile", "edit", "sqlite_log"}
_LISTS = {"json_each", "json_tree"}
Touched = set[tuple[str, str, str]]


class Snapshot:
    """The tables of a home in their present state.

    Attributes:
        notes: remarks for the user about the answer: missing sources, hidden columns.
        unread: why a shared database cannot be read; None if it can.
    """

    def __init__(self, home: Home, *, texts: bool) -> None:
        """Open the stores. With `texts`, show the texts of people, models and tools."""
        self.notes: list[str] = []
        self.unread: TurnkeeperError | None = None
        self._home, self._texts = home, texts
        self._sources = Sources(home)
        self._unlocked: list[Path] = []
        self._touched: Touched = set()
        self._named: set[str] = set()
        self._allowed: Touched = set()
        self._shared: Any = None
        self._columns: dict[tuple[str, str], list[str]] = {}  # the columns of the tables in a shared database
        self._made_of: dict[str, Touched] = {}
        self._connection = sqlite3.connect(
            ":memory:", uri=True, isolation_level=None, cached_statements=0, check_same_thread=False
        )
        try:
            self._open()
        except BaseException:
            self._connection.close()
            raise

    def close(self) -> None:
        self._connection.close()
        if self._shared is not None:
            self._shared.close()

    def has(self, table: str) -> bool:
        """Return True if a table exists. If it does not exist, `notes` contains the reason."""
        return ("temp", table, "") in self._allowed

    def run(self, statement: str, *, within_s: float, seize: Callable[[], None]) -> Iterator[Sequence[Any]]:
        """Yield the names of the columns, then each row. After the stores are open, call `seize` to limit the process.

        Raises:
            Conflict: a daemon began to write in the meantime.
            InvalidInput: the statement is not a SELECT, is wrong, or reads something that is not allowed.
            Exhausted: the statement needs more time or memory than is allowed.
        """
        if len(statement.encode()) > LONGEST_STATEMENT_BYTES:
            raise InvalidInput(f"is longer than {LONGEST_STATEMENT_BYTES >> 10} KiB", where="SQL")
        if statement.split(None, 1)[:1] and statement.split(None, 1)[0].lower() == "explain":
            raise InvalidInput("only SELECT is allowed", where="SQL", hint=_HINT)
        with _errors_of(within_s), _limited(self._connection, within_s) as busy:
            busy.set()
            self._compile(statement)
            self._load(self._named)
            self._connection.execute("PRAGMA query_only=ON")
            seize()
            self._connection.set_authorizer(self._judge)
            rows = self._connection.execute(statement)
            if rows.description is None:
                raise InvalidInput("there is no SELECT", where="SQL", hint=_HINT)
            chunk: list[Sequence[Any]] = [[column[0] for column in rows.description]]
            while chunk:
                busy.clear()
                yield from chunk
                busy.set()
                chunk = rows.fetchmany(_CHUNK)
            self._check_alone()

    def _check_alone(self) -> None:
        """Raise Conflict if a process began to write a store that no process had open, because its log was not read."""
        for path in self._unlocked:
            if path.with_name(f"{path.name}-wal").exists():
                raise Conflict("a daemon began to write it meanwhile", where=path.name, hint="ask again")

    def _open(self) -> None:
        connection, run = self._connection, self._connection.execute
        for limit, most in (
            (sqlite3.SQLITE_LIMIT_LENGTH, LONGEST_VALUE_BYTES),
            (sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH, LONGEST_PATTERN_BYTES),
            (sqlite3.SQLITE_LIMIT_EXPR_DEPTH, 200),
        ):
            connection.setlimit(limit, most)
        run("PRAGMA temp_store=FILE")
        run(f"CREATE TEMP TABLE {TRAIL} (at_us INTEGER, source TEXT, event TEXT, process TEXT, fields TEXT)")
        if url := shared_url(self._home):
            self._outline(url)
        else:  # the snapshot of `agent` begins first, so that the fire of every turn is in the ledger
            for name, path in (("agent", self._home.agent_db), ("schedules", self._home.schedules_db)):
                self._attach(name, path)
        connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 2)
        run("BEGIN")
        for name in [name for _, name, _ in self._connection.execute("PRAGMA database_list") if name in _STORES]:
            with _unreadable(self.notes, name):
                run(f"SELECT count(*) FROM {name}.sqlite_master").fetchone()  # noqa: S608  its snapshot begins
        self._make_views()

    def _attach(self, name: str, path: Path) -> None:
        if not path.exists():
            self.notes.append(f"{path.name} is not there: its tables are missing")
            return
        with _unreadable(self.notes, path.name), readable(path, STORES[_STORES[name]]) as file:
            place = locator(file)
            if file != path:
                self.notes.append(told(path))
            elif "immutable" in place:
                self._unlocked.append(path)
            self._connection.execute(f"ATTACH ? AS {name}", [place])

    def _outline(self, url: str) -> None:
        """Create empty tables for the tables of a shared database. The snapshot of the database begins here."""
        try:
            self._shared = required("shared-snapshot", url, "", within_s=_LONGEST_S)
            for table, column, schema in self._shared.execute(_OUTLINE):
                store = next(name for name, of in _STORES.items() if of == schema)
                self._columns.setdefault((store, table), []).append(column)
        except Conflict:
            raise
        except TurnkeeperError as error:
            self.notes.append(f"{error}: its tables are missing")
            self.unread = error
            return
        for store in _STORES:
            self._connection.execute(f"ATTACH '' AS {store}")
        for (store, table), columns in self._columns.items():
            self._connection.execute(f'CREATE TABLE {store}."{table}" ({", ".join(map(_quoted, columns))})')

    def _make_views(self) -> None:
        """Create the tables. Record the columns of the stores from which they are made."""
        for name, table in TABLES.items():
            made = "TABLE" if table.copied else "VIEW"
            columns = ", ".join(table.columns)
            select = table.select(texts=self._texts)
            self._touched.clear()
            with contextlib.suppress(sqlite3.OperationalError):  # its store cannot be read; a note says so
                self._connection.set_authorizer(self._note)
                self._connection.execute(f"EXPLAIN {select}")
                self._connection.set_authorizer(None)
                self._made_of[name] = set(self._touched)
                body = f"({columns})" if table.copied else f"AS {select}"
                self._connection.execute(f"CREATE TEMP {made} {name} {body}")
                self._allowed |= {("temp", name, ""), *(("temp", name, column) for column in (*table.columns, "ROWID"))}
                self._allowed |= set() if table.copied else self._touched
            self._connection.set_authorizer(None)
        self._touched.clear()

    def _note(self, action: int, first: str | None, second: str | None, store: str | None, _within: str | None) -> int:
        if action == sqlite3.SQLITE_READ:
            self._touched.add((store or "", first or "", second or ""))
        return sqlite3.SQLITE_OK

    def _judge(self, action: int, first: str | None, second: str | None, store: str | None, within: str | None) -> int:
        """Decide if a statement may do an action. SQLite calls this for each action while it compiles the statement."""
        self._named |= {first or "", within or ""}  # to count the rows of a view, SQLite names its tables
        if action == sqlite3.SQLITE_READ:
            wanted = (store or "", first or "", second or "")
            self._touched.add(wanted)
            allowed = wanted in self._allowed or first in _LISTS or not second  # a count of rows
        elif action == sqlite3.SQLITE_FUNCTION:
            allowed = (second or "").lower() not in _REFUSED_FUNCTIONS
        else:
            allowed = action in _ALLOWED
        return sqlite3.SQLITE_OK if allowed else sqlite3.SQLITE_DENY

    def _compile(self, statement: str) -> None:
        """Compile a statement without running it. This checks everything that the statement reads."""
        self._touched.clear()
        self._named.clear()
        self._connection.set_authorizer(self._judge)
        try:
            self._connection.execute(f"EXPLAIN {statement}").close()
        finally:
            self._connection.set_authorizer(None)
        for name, table in TABLES.items():
            hidden = [key for key, value in table.columns.items() if isinstance(value, Text) and not self._texts]
            named = sorted(key for key in hidden if ("temp", name, key) in self._touched)
            if named:
                self.notes.append(
                    f"hidden, and null here: {', '.join(f'{name}.{key}' for key in named)}; see docs/query.md"
                )

    def _load(self, names: set[str]) -> None:
        """Copy the tables that a statement names and that are not views."""
        wanted = {name: table for name, table in TABLES.items() if name in names}
        self._connection.execute("PRAGMA query_only=OFF")  # an earlier statement enabled it
        if self._shared is not None:
            self._fetch(self._shared, wanted)
        for name, table in wanted.items():
            if table.copied:
                self._connection.execute(f"DELETE FROM temp.{name}")  # noqa: S608  what an earlier statement copied
                self._connection.execute(f"INSERT INTO temp.{name} {table.select(texts=self._texts)}")
        if trails := {trail for table in wanted.values() for trail in table.trails}:
            self._load_trails(trails)

    def _fetch(self, shared: Any, wanted: dict[str, Any]) -> None:
        """Copy the data that a statement needs from a shared database: of a view only the columns that it reads."""
        needed: dict[tuple[str, str], set[str]] = {}
        for name, table in wanted.items():
            for store, source, column in self._made_of.get(name, set()):
                columns = needed.setdefault((store, source), set()) if (store, source) in self._columns else set()
                columns |= {column} if table.copied or (store, source, column) in self._touched else set()
        for (store, source), columns in needed.items():
            names = ", ".join(map(_quoted, sorted(columns) or self._columns[store, source][:1]))
            marks, into = ", ".join("?" * (names.count(",") + 1)), f"{store}.{_quoted(source)}"
            rows = shared.execute(f'SELECT {names} FROM {_STORES[store]}."{source}"')  # noqa: S608
            self._connection.execute(f"DELETE FROM {into}")  # noqa: S608
            self._connection.executemany(f"INSERT INTO {into} ({names}) VALUES ({marks})", rows)  # noqa: S608

    def _load_trails(self, trails: set[str]) -> None:
        self._connection.execute(f"DELETE FROM temp.{TRAIL}")  # noqa: S608
        everything = Wanted(since_us=0, until_us=FOREVER_US)
        streams = self._sources.trails(everything, tuple(trails), newest_first=True)
        if "restart-status" in trails:
            streams.append(self._sources.restarts(everything))
        most = MOST_TRAIL_LINES // max(1, len(streams))
        for stream in streams:
            told = (
                (record.at_us, record.source, record.kind, record.process, json.dumps(record.fields, default=str))
                for record in stream
            )
            self._connection.executemany(f"INSERT INTO {TRAIL} VALUES (?, ?, ?, ?, ?)", islice(told, most))  # noqa: S608
            if next(told, None) is not None:
                self.notes.append(f"a trail has more than {most} lines: its newest days are here")
        self.notes += [f"{name}: {why}" for name, why in sorted(self._sources.skipped.items())]


_OUTLINE = """SELECT table_name, column_name, table_schema FROM information_schema.columns
WHERE table_schema IN ('runner', 'runtime') ORDER BY table_schema, table_name, ordinal_position"""


def _quoted(name: str) -> str:
    return f'"{name}"'


@contextlib.contextmanager
def _unreadable(notes: list[str], name: str) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        notes.append(f"{name} cannot be read: {error}")


@contextlib.contextmanager
def _errors_of(within_s: float) -> Iterator[None]:
    try:
        yield
    except (sqlite3.Error, sqlite3.Warning, MemoryError) as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code == sqlite3.SQLITE_INTERRUPT:
            what = f"took longer than {within_s:g} s"
            raise Exhausted(what, where="SQL", hint="narrow it, or give it more with --timeout") from error
        if isinstance(error, MemoryError) or code in {sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_FULL, sqlite3.SQLITE_TOOBIG}:
            raise Exhausted(
                f"needs more memory or disk than it may have: {error}", where="SQL", hint="narrow it"
            ) from error
        if code == sqlite3.SQLITE_IOERR:
            raise Exhausted(f"needs more disk than it may have: {error}", where="SQL", hint="narrow it") from error
        said = "only one SELECT of the tables is allowed" if "not authorized" in str(error) else str(error)[:300]
        raise InvalidInput(said, where="SQL", hint=_HINT) from error


@contextlib.contextmanager
def _limited(connection: sqlite3.Connection, within_s: float) -> Iterator[threading.Event]:
    """Interrupt the connection after it was busy for `within_s`. End the process if that does not help.

    The block sets the event while the connection is busy, so a slow reader of the answer does not cost time.
    """
    over, busy = threading.Event(), threading.Event()

    def watch() -> None:
        left = within_s
        while busy.wait() and not over.wait(_AGAIN_S):
            left -= _AGAIN_S if busy.is_set() else 0
            if left <= 0:
                connection.interrupt()
            if left <= -_GRACE_S:  # a single call of a function is taking so long, and ignores interrupts
                sys.stderr.write(f"error: SQL: took longer than {within_s:g} s; narrow it\n")
                sys.stderr.flush()
                os._exit(EXIT_FAILURE)

    watcher = threading.Thread(target=watch, name="query-limit", daemon=True)
    watcher.start()
    try:
        yield busy
    finally:
        over.set()
        busy.set()
        watcher.join()


def confine() -> None:
    """Limit this process: use a low priority, and limit SQLite's memory and temporary files."""
    os.nice(10)
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (MOST_FILE_BYTES, hard))
    with contextlib.closing(sqlite3.connect(":memory:")) as any_connection:
        any_connection.execute(f"PRAGMA hard_heap_limit={MOST_MEMORY_BYTES}")
