"""A thread that runs calls in batches, and a database that uses such a thread to commit a batch once.

A unit of work is a function of a connection. The writer thread takes all queued units, runs each in a savepoint inside
one transaction, commits once, and then answers all callers. No caller gets an answer before its work is on disk. If a
unit fails, only that unit is rolled back. Sixty-four concurrent units cost one sync instead of sixty-four.

A database is a SQLite file or a PostgreSQL database. A file has one writer: one connection on one thread. A server has
many writers. Each unit is a separate transaction, and PostgreSQL may abort units that conflict, for example in a
deadlock. Such units are retried, so a unit must have no effect except its writes and its result.
"""

import asyncio
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast

from sqlalchemy import Connection, Engine, create_engine, event, make_url
from sqlalchemy.exc import DatabaseError, OperationalError
from sqlalchemy.pool import NullPool, StaticPool

from turnkeeper.errors import Conflict, Corrupt, InvalidInput, TurnkeeperError, Unreachable, machine_trouble, unopened
from turnkeeper.storage import schema_revision, statements
from turnkeeper.storage.damage import judged
from turnkeeper.storage.server.url import SEARCHES, in_schema, noticing, parsed, shown

T = TypeVar("T")
LARGEST_BATCH = 512
_migrate = schema_revision.migrate
MOST_TRIES = 10  # the most attempts of a unit on a server
_NOTIFY = "SELECT pg_notify(channel, said) FROM unnest(%s::text[], %s::text[]) AS news (channel, said)"
_CONFLICTS = {"40001", "40P01"}  # PostgreSQL's codes for conflicts that a retry of the same unit can resolve
_READ_ONLY = "25006"  # PostgreSQL's code for a write on a read-only server
CACHE_KB = 16_384  # KiB of pages; a process grows by up to this as its file grows. The system caches files, too.
_FOR_WRITES = ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON", f"cache_size=-{CACHE_KB}")


class Call:
    """One call for a worker thread.

    Attributes:
        work: the work in the form that the thread's `serve` accepts.
        loop: the event loop that awaits the answer; None if a thread waits for it.
        error: the exception that the work raised; None if it raised none.
    """

    __slots__ = ("_future", "error", "loop", "result", "work")

    def __init__(self, work: Any, future: "Future[Any] | asyncio.Future[Any]", loop: Any = None) -> None:
        self.work = work
        self.result: Any = None
        self.error: BaseException | None = None
        self._future = future
        self.loop: asyncio.AbstractEventLoop | None = loop

    def wanted(self) -> bool:
        """Return True if the caller still waits. After this call, a future of `submit` can no longer be cancelled."""
        if isinstance(self._future, Future):
            return self._future.set_running_or_notify_cancel()
        return not self._future.cancelled()

    def answer(self) -> None:
        """Give the caller the result or the error. If the call has an event loop, call this method on that loop."""
        if self._future.done():
            return
        if self.error is None:
            self._future.set_result(self.result)
        else:
            self._future.set_exception(_for_caller(self.error))


class WorkerThread:
    """A thread that passes calls to `serve` in batches, in the order of their arrival.

    Each function in `others` adds a thread that uses it to serve calls. A thread takes one call at a time.

    `serve` sets the result or the error of each call of its batch. The caller gets a machine error as MachineTrouble.

    Attributes:
        trouble: the machine fault of the last call that had one; empty after the next call that succeeds.
    """

    def __init__(
        self,
        name: str,
        serve: Callable[[Sequence[Call]], None],
        *,
        where: str = "",
        others: Sequence[Callable[[Sequence[Call]], None]] = (),
    ) -> None:
        """Start the thread. `where` is the file that the thread reads and writes."""
        self.trouble = ""
        self._where, self._name = where, name
        self._largest = 1 if others else LARGEST_BATCH
        self._queue: queue.SimpleQueue[list[Call] | None] = queue.SimpleQueue()
        self._held: list[Call] = []
        self._timer: asyncio.TimerHandle  # releases the delayed calls
        self._open = True
        self._guard = threading.Lock()
        self._serves = [serve, *others]
        self._threads = [self._start(number) for number in range(len(self._serves))]

    def _start(self, number: int) -> threading.Thread:
        thread = threading.Thread(target=self._run, args=(number,), name=self._name, daemon=True)
        thread.start()
        return thread

    async def run(self, work: Any, *, hold_s: float = 0.0) -> Any:
        """Run `work` as :meth:`begin` does, and return its result."""
        return await self.begin(work, hold_s=hold_s)

    def begin(self, work: Any, *, hold_s: float = 0.0) -> "asyncio.Future[Any]":
        """Queue `work`; return the future of its result. Cancelling the future stops only work that has not begun.

        Work with `hold_s` is not urgent: it waits up to `hold_s` seconds for the next urgent call, to share its batch.
        """
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Any] = loop.create_future()
        call = Call(work, answer, loop)
        if hold_s:
            self._hold(call, loop, hold_s)
        else:
            self._put(call)
        return answer

    def run_blocking(self, work: Any) -> Any:
        """Run `work` and return its result; blocks the calling thread."""
        return self.submit(work).result()

    def submit(self, work: Any) -> "Future[Any]":
        """Queue `work` from any thread. Return the future of its result."""
        answer: Future[Any] = Future()
        self._put(Call(work, answer))
        return answer

    def close(self) -> None:
        """Run the queued calls, then end the thread. Later calls raise RuntimeError."""
        with self._guard:
            if self._open:
                self._open = False
                self._queue.put(self._held)
                for _ in self._threads:
                    self._queue.put(None)
        for thread in self._threads:
            thread.join()

    def _put(self, call: Call) -> None:
        with self._guard:
            self._check_open()
            held, self._held = self._held, []
            self._queue.put([*held, call])
            if held and held[0].loop is call.loop:  # a timer of another loop may end, and finds no delayed calls
                self._timer.cancel()

    def _hold(self, call: Call, loop: asyncio.AbstractEventLoop, hold_s: float) -> None:
        with self._guard:
            self._check_open()
            self._held.append(call)
            if len(self._held) == 1:
                self._timer = loop.call_later(hold_s, self._let_go, self._held)

    def flush(self) -> None:
        """Queue the delayed calls at once."""
        if held := self._held:
            self._let_go(held)

    def _let_go(self, held: list[Call]) -> None:
        with self._guard:
            if self._held is held and self._open:  # otherwise another call has queued them
                self._held = []
                self._queue.put(held)

    def _check_open(self) -> None:
        if not self._open:
            raise RuntimeError(f"{self._name} is closed")

    def _run(self, number: int) -> None:
        going = True
        while going:
            batch, going = self._next()
            batch = [call for call in batch if call.wanted()]
            try:
                self._serves[number](batch)
            except BaseException as error:  # noqa: BLE001  every caller of the batch gets it; the thread continues
                for call in batch:
                    call.error = error
            self._type_errors(batch)
            _answer(batch)

    def _type_errors(self, batch: Sequence[Call]) -> None:
        """Replace errors that mean a damaged file or a machine fault by our own error types."""
        for call in batch:
            error = None if call.error is None else judged(call.error, self._where)
            if error is None:
                self.trouble = ""
            elif not isinstance(error, TurnkeeperError) and (found := machine_trouble(error, self._where)):
                found.__cause__ = error
                error, self.trouble = found, str(found)
            call.error = error

    def _next(self) -> tuple[list[Call], bool]:
        """Wait for a call. Return the call, the calls queued behind it, and False if the thread must end."""
        batch: list[Call] = []
        calls = self._queue.get()
        while calls is not None:
            batch += calls
            if len(batch) >= self._largest:
                break
            try:
                calls = self._queue.get_nowait()
            except queue.Empty:
                with self._guard:
                    held, self._held = self._held, []
                return [*batch, *held], True
        return batch, calls is not None


class InlineReader:
    """A reader for quick lookups on the caller's thread, because to switch threads costs more than most lookups.

    If a lookup fails there, the worker thread repeats it and reports the error.
    """

    def __init__(self, read: Callable[[Callable[[Any], Any]], Any], thread: WorkerThread) -> None:
        """Take `read`, which runs work on a separate connection that does not wait for locks."""
        self._read = read
        self._thread = thread
        self._guard = threading.Lock()

    async def run(self, work: Any) -> Any:
        """Run `work`, a short read, and return its result."""
        if self._thread.trouble:  # only a call on the thread can clear the trouble
            return await self._thread.run(work)
        try:
            with self._guard:
                return self._read(work)
        except Exception:  # noqa: BLE001  the thread meets the same error, or it has passed
            return await self._thread.run(work)


def _answer(batch: Sequence[Call]) -> None:
    """Answer a batch. Wake each event loop once, even if several callers wait on it."""
    loops: dict[asyncio.AbstractEventLoop, list[Call]] = {}
    for call in batch:
        if call.loop is None:
            call.answer()
        else:
            loops.setdefault(call.loop, []).append(call)
    for loop, calls in loops.items():
        try:
            loop.call_soon_threadsafe(_answer_all, calls)
        except RuntimeError:
            if not loop.is_closed():  # no caller waits on a closed loop
                raise


def _answer_all(calls: Sequence[Call]) -> None:
    for call in calls:
        call.answer()


def _for_caller(error: BaseException) -> Exception:
    """Return an error that a future can hold. Replace StopIteration and errors that would end the event loop."""
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    wrapped = RuntimeError(f"{type(error).__name__}: {error}")
    wrapped.__cause__ = error
    return wrapped


class Query(partial[Any]):
    """A unit that does not take a lock, or is one statement. On a server, each of its statements commits by itself."""


class Database:
    """A SQLite file or a PostgreSQL database, opened and owned by one process.

    Attributes:
        path: the file; for a server's database its URL, without a password.
        dialect: `sqlite` or `postgresql`.
        check: each unit first calls this function, which may raise an error to refuse the unit.
    """

    check: Callable[[Connection], None] | None = None

    def __init__(
        self,
        place: Path | str,
        *,
        migrations: str,
        read_only: bool = False,
        inline: bool = False,
        connections: int = 1,
        upgrade: bool = True,
        worker: type[WorkerThread] = WorkerThread,
    ) -> None:
        """Open the database and bring its schema up to date.

        Args:
            place: a PostgreSQL URL or a file. A missing file is created with mode 0600, unless `read_only`.
            migrations: the Alembic script location, as `package:folder`.
            read_only: open without permission to write; if a file has an older schema, open a migrated copy.
            inline: let :meth:`look` read a file on the caller's thread, with a separate connection.
            connections: the most units that run at once on a server; with one connection, units run in order.
            upgrade: migrate the tables of an older version; if False, write changes to an older file into a copy. On a
                server, only daemons migrate, because other machines may run older programs that could not start again.

        Raises:
            Conflict: a newer version wrote the database. The database stays unchanged. On a server, also if the tables
                are older and `upgrade` is False, or if a running machine could not use newer tables.
            Corrupt: the file cannot be read as a store, or, with `read_only`, has no tables.
            InvalidInput: the URL is not a PostgreSQL URL, or the driver is not installed.
            MachineTrouble: the machine cannot read or write the file at the moment.
            Unreachable: the server does not answer.
        """
        self.path = place if isinstance(place, Path) else shown(place)
        self._copied = ExitStack()
        try:
            if isinstance(place, Path):
                schema_revision.check_revision(place, migrations)
                if read_only or not upgrade:
                    place = self._copied.enter_context(schema_revision.readable(place, migrations))
                self._engine = _open_file(place, read_only=read_only)
            else:
                self._engine = _open_server(place, read_only=read_only)
        except OSError as error:
            raise unopened(error, str(place), "a store") from error
        try:
            _migrate(self._engine, migrations, str(self.path), read_only=read_only, upgrade=upgrade)
            self._connections = [self._engine.connect() for _ in range(1 if isinstance(place, Path) else connections)]
            quick = _open_file(place, read_only=True, timeout_s=0.0) if inline and isinstance(place, Path) else None
            self._near = near = quick.connect() if quick is not None else None
        except DatabaseError as error:
            self._engine.dispose()
            raise unopened(judged(error.orig or error, str(self.path)), str(self.path), "a store") from error
        except (Conflict, Corrupt):
            self._engine.dispose()
            raise
        self.dialect = self._engine.dialect.name
        name = place.stem if isinstance(place, Path) else make_url(place).database
        begin = "BEGIN" if read_only else "BEGIN IMMEDIATE"
        run = partial(_run_batch, begin=begin) if isinstance(place, Path) else _run_each
        first, *others = (partial(run, connection) for connection in self._connections)
        self._thread = worker(f"db-{name}", first, where=str(self.path), others=others)
        self._quick = InlineReader(partial(_read, near), self._thread) if near is not None else self._thread

    async def run(self, work: Callable[[Connection], T]) -> T:
        """Run `work` in the next transaction. Return its result after the transaction is on disk.

        An exception rolls back only this work. If the caller is cancelled, work that has begun continues, and the
        caller does not learn whether it commits.
        """
        return cast("T", await self._thread.run(self._checked(work)))

    async def read(self, work: Callable[[Connection], T]) -> T:
        """Run a query that does not take a lock. See `Query`."""
        return await self.run(Query(work))

    async def look(self, work: Callable[[Connection], T]) -> T:
        """Run a quick query on the committed state without waiting for open transactions."""
        return await self.read(work) if self.is_shared else cast("T", await self._quick.run(work))

    def submit(self, work: Callable[[Connection], T]) -> "Future[T]":
        """Queue `work` from any thread. The future gets its result once the work is on disk, or else its exception."""
        return self._thread.submit(self._checked(work))

    def _checked(self, work: Callable[[Connection], T]) -> Callable[[Connection], T]:
        checked = work if self.check is None else lambda c: (cast("Any", self.check)(c), work(c))[1]
        return Query(checked) if isinstance(work, Query) else checked

    @property
    def is_shared(self) -> bool:
        """True if other processes may write the database: it is on a server."""
        return self.dialect != "sqlite"

    @property
    def trouble(self) -> str:
        """The machine fault that blocks the file; empty if there is none."""
        return self._thread.trouble

    def close(self) -> None:
        """Finish the queued work, then close the database."""
        self._thread.close()
        for connection in filter(None, (self._near, *self._connections)):
            connection.close()
            connection.engine.dispose()
        self._copied.close()


@contextmanager
def _transaction(connection: Connection, begin: str) -> Iterator[Any]:
    """Run a transaction through the driver, which costs less than SQLAlchemy. Yield the driver's connection."""
    driver: Any = connection.connection.dbapi_connection
    driver.execute(begin)
    try:
        yield driver
        driver.execute("COMMIT")
    finally:
        if connection.in_transaction():
            connection.rollback()
        if driver.in_transaction:
            driver.execute("ROLLBACK")


def _read(connection: Connection, work: Callable[[Connection], T]) -> T:
    """Run a query on one consistent state of the file."""
    with _transaction(connection, "BEGIN"):
        return work(connection)


def _run_batch(connection: Connection, batch: Sequence[Call], *, begin: str) -> None:
    """Run the units in one transaction. The caller answers them after the commit."""
    driver: Any = None
    try:
        with _transaction(connection, begin) as driver:
            if len(batch) == 1:  # its failure rolls back no other unit
                batch[0].result = batch[0].work(connection)
                return
            for call in batch:
                # The driver's savepoint, because SQLAlchemy's costs more than most units.
                driver.execute("SAVEPOINT unit")
                try:
                    call.result = call.work(connection)
                except Exception as error:  # noqa: BLE001  its caller gets it
                    call.error = error
                    _undo_unit(driver, error)
                driver.execute("RELEASE unit")
    except Exception as error:  # noqa: BLE001  nothing of the batch is on disk: every caller must know
        for call in batch:
            call.error = call.error or error
        _leave_if_lost(connection, driver, error)


def _run_each(connection: Connection, batch: Sequence[Call]) -> None:
    """Run each unit in a separate transaction. Retry a unit that PostgreSQL aborted in favour of another."""
    for call in batch:
        for _ in range(MOST_TRIES):
            call.error = _try_unit(connection, call)
            if getattr(getattr(call.error, "orig", None), "sqlstate", None) not in _CONFLICTS:
                break


def _try_unit(connection: Connection, call: Call) -> Exception | None:
    """Run a unit once; return its error. If the connection was lost, the unit may or may not have been committed."""
    driver: Any = None
    try:
        with connection.begin():
            connection.info.pop(statements.AFTER_COMMIT, None)
            driver = connection.connection.dbapi_connection
            driver.autocommit = isinstance(call.work, Query)
            call.result = call.work(connection)
    except Exception as error:  # noqa: BLE001  its caller gets it
        _leave_if_lost(connection, driver, error)
        return error
    if said := connection.info.pop(statements.AFTER_COMMIT, None):
        try:
            driver.autocommit = True
            driver.execute(_NOTIFY, [list(each) for each in zip(*said, strict=True)])
        except Exception as error:  # noqa: BLE001  listeners also look each second
            _leave_if_lost(connection, driver, error)
    return None


def _leave_if_lost(connection: Connection, driver: Any, error: Exception) -> None:
    """Drop the connection if an error says that it is lost or leads to a standby. The next unit then reconnects."""
    own: Any = getattr(error, "orig", error)
    if getattr(own, "sqlstate", "") == _READ_ONLY or connection.dialect.is_disconnect(own, driver, None):
        connection.invalidate()


def _undo_unit(driver: Any, error: Exception) -> None:
    """Roll back a unit. Raise its error if a full or failing disk rolled back the whole batch."""
    try:
        driver.execute("ROLLBACK TO unit")
    except Exception:  # noqa: BLE001  there is no savepoint any more
        raise error  # noqa: B904  `from` would replace the cause, which names the machine's fault


def make_schemas(url: str, *, upgrade: bool = True) -> None:
    """Migrate each schema of a shared database, because either daemon may start first or alone.

    Raises the same errors as `Database`.
    """
    for schema, migrations in schema_revision.STORES.items():
        Database(in_schema(url, schema), migrations=migrations, upgrade=upgrade).close()


def check_schemas(url: str) -> None:
    """Raise Conflict if a daemon could not use the schemas of a shared database. Changes nothing.

    Raises Unreachable if the server does not answer.
    """
    engine = _open_server(url, read_only=True)
    with engine.connect() as connection:
        for schema, migrations in schema_revision.STORES.items():
            found = schema_revision.revision_in(connection.exec_driver_sql, schema)
            schema_revision.refuse_newer(found, migrations, f"{shown(url)}, schema {schema}")
            if found != schema_revision.newest(migrations):
                schema_revision.refuse_older_nodes(connection, migrations, found, shown(url))
    engine.dispose()


def _open_server(url: str, *, read_only: bool) -> Engine:
    where = parsed(noticing(url))
    if where.drivername != "postgresql":
        raise InvalidInput(f"{where.drivername} is not known", where="store URL", hint="use postgresql://…")
    given = str(where.query.get("options", ""))
    options = {"options": f"{given} -c default_transaction_read_only=on"} if read_only else {}
    try:
        engine = create_engine(where.set(drivername="postgresql+psycopg"), poolclass=NullPool, connect_args=options)
        engine.dialect.use_insertmanyvalues_wo_returning = True  # without it, inserts of many rows would go row by row
        event.listen(engine, "connect", _prepare_session)
        with engine.begin() as connection:
            if not read_only:
                statements.refuse_weak(connection, shown(url))
            if given.startswith(SEARCHES):
                schema = given.split(maxsplit=1)[0].removeprefix(SEARCHES)
                in_force = connection.exec_driver_sql(statements.IN_FORCE).scalar_one()
                statements.refuse_pooler(in_force, schema, shown(url))
                if not read_only:
                    connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({schema_revision.CHANGES})")
                    connection.exec_driver_sql(f'CREATE SCHEMA IF NOT EXISTS "{schema}"')
    except ModuleNotFoundError as error:
        hint = "install turnkeeper[postgres]"
        raise InvalidInput("the driver for PostgreSQL is not installed", where="store URL", hint=hint) from error
    except OperationalError as error:
        why, hint = statements.unconnected(str(error.orig))
        raise Unreachable(f"cannot be opened: {why}", where=shown(url), hint=hint) from error
    except DatabaseError as error:
        raise unopened(error.orig or error, shown(url), "a store") from error
    return engine


def _prepare_session(connection: Any, _record: object) -> None:
    """Make each row of a batch its own statement, and make a lookup by text with a NUL find nothing, as in SQLite.

    `executemany` of psycopg sends all rows and only then marks them as complete. Until then the server counts no idle
    time. A process that is suspended at that point would hold its locks until it resumes.
    """
    from psycopg import Cursor  # noqa: PLC0415  only where a server is used
    from psycopg.types.string import StrDumper  # noqa: PLC0415

    class AnyText(StrDumper):
        def dump(self, obj: str) -> Any:
            return super().dump(obj.replace("\0", "\uffff"))  # a character that no text contains

    class RowByRow(Cursor[Any]):
        def executemany(self, query: Any, params_seq: Any, *, returning: bool = False) -> None:  # noqa: ARG002
            for row in params_seq:
                self.execute(query, row)

    connection.adapters.register_dumper(str, AnyText)
    connection.cursor_factory = RowByRow


def _open_file(path: Path, *, read_only: bool, timeout_s: float = 10.0) -> Engine:
    """Open a file whose connections wait up to `timeout_s` for a lock."""
    mode, begin, pragmas = ("ro", "BEGIN", ["query_only=ON"]) if read_only else ("rw", "BEGIN IMMEDIATE", _FOR_WRITES)
    if not read_only:
        path.touch(mode=0o600, exist_ok=True)
    options = {"check_same_thread": False, "timeout": timeout_s, "cached_statements": 512, "isolation_level": None}
    engine = create_engine(f"sqlite:///file:{path}?mode={mode}&uri=true", poolclass=StaticPool, connect_args=options)
    event.listen(engine, "connect", lambda connection, _record: _prepare(connection, pragmas))
    event.listen(engine, "begin", lambda connection: _begin(connection, begin))
    return engine


def _prepare(connection: Any, pragmas: Sequence[str]) -> None:
    for pragma in pragmas:
        connection.execute(f"PRAGMA {pragma}")


def _begin(connection: Connection, statement: str) -> None:
    """Begin a transaction for SQLAlchemy, unless the driver has already begun one."""
    driver: Any = connection.connection.dbapi_connection
    if not driver.in_transaction:
        connection.exec_driver_sql(statement)
