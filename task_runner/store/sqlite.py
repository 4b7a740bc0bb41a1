"""The store on SQLite: one file, one writer thread, many units of work to a commit."""

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from sqlalchemy import Connection, select

from task_runner.store.events import SqliteEvents
from task_runner.store.fires import SqliteFires
from task_runner.store.port import Session
from task_runner.store.schema import follow
from task_runner.store.tasks import SqliteTasks
from turnkeeper.storage.database import Database
from turnkeeper.storage.statements import upsert

T = TypeVar("T")
MIGRATIONS = "task_runner.store:migrations"
_PEER = "agent-runtime"


class SqliteStore:
    """The runner's store in one SQLite file, owned by one process; see :class:`task_runner.store.port.Store`."""

    def __init__(self, path: Path) -> None:
        """Open the file, making it or bringing its schema up to date. Raises Corrupt."""
        self._database = Database(path, migrations=MIGRATIONS)

    async def run(self, work: Callable[[Session], T]) -> T:
        """Run `work` in the next transaction; return its result once that is on disk."""
        return await self._database.run(lambda connection: work(SqliteSession(connection)))

    async def rehearse(self, work: Callable[[Session], T]) -> T:
        """Run `work`, undo it, and return its result."""
        done: list[T] = []

        def undone(connection: Connection) -> None:
            with connection.begin_nested() as savepoint:
                done.append(work(SqliteSession(connection)))
                savepoint.rollback()

        await self._database.run(undone)
        return done[0]

    def close(self) -> None:
        """Finish what is queued, then close the file."""
        self._database.close()


class SqliteSession:
    """One transaction."""

    def __init__(self, connection: Connection) -> None:
        self.tasks = SqliteTasks(connection)
        self.fires = SqliteFires(connection)
        self.follow = SqliteFollow(connection)
        self.events = SqliteEvents(connection)


class SqliteFollow:
    """The position in the runtime's events; see :class:`task_runner.store.port.Follow`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def position(self) -> tuple[str, int]:
        """Return the incarnation and sequence of the last event taken in."""
        query = select(follow.c.incarnation, follow.c.sequence).where(follow.c.peer == _PEER)
        row = self._connection.execute(query).first()
        return ("", 0) if row is None else (row.incarnation, row.sequence)

    def move(self, incarnation: str, sequence: int) -> None:
        """Record a new position."""
        values = {"peer": _PEER, "incarnation": incarnation, "sequence": sequence}
        self._connection.execute(upsert(follow, [follow.c.peer], ["incarnation", "sequence"]).values(values))
