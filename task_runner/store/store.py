"""The store of tasks and the ledger.

All work is a synchronous function of a :class:`Session`, run in one transaction. The rows that it reads do not change
meanwhile, and all its writes are on disk when :meth:`Store.run` returns.
"""

from collections.abc import Callable
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import Connection, delete, func, insert, select, update

from task_runner.model.task import Fire
from task_runner.store.events import Events
from task_runner.store.fires import Fires
from task_runner.store.reading import MIGRATIONS
from task_runner.store.rows import Cause, Counts, Outage
from task_runner.store.schema import audit, fires, follow, outages, stoppages
from task_runner.store.tasks import Tasks
from turnkeeper.clock import Clock, SystemClock
from turnkeeper.config.surfaces import required
from turnkeeper.entropy import Entropy, SystemEntropy
from turnkeeper.storage import nodes
from turnkeeper.storage.chain import Recorder
from turnkeeper.storage.database import Database
from turnkeeper.storage.server.handover import TASKS, notify
from turnkeeper.storage.statements import Statement, alone, of_server, upsert
from turnkeeper.times import from_us, to_us

T = TypeVar("T")
_OUTAGES_KEPT = 200
_MOVE = Statement(upsert(follow, [follow.c.peer], ["incarnation", "sequence"]))
CONNECTIONS = 4  # connections to a server


class Session:
    """One transaction.

    If other processes may write the same database, reading a task locks it. Read a task before you change it or its
    fires. Code that finds fires before it has read their tasks uses :meth:`locked`.

    Attributes:
        fires: the ledger, and the requests frozen for its fires.
        outcomes_read: the position in the runtime's turn events.
        events_read: the position in the events inside turns.
        outages: the outages of the agent runtime.
        stoppages: the spans in which nothing could be sent for another cause.
        shared: the tables shared with the runtimes, if the database is on a server.
        at_home: the option with which a command finds this home, ` --home DIR`; empty if unknown.
    """

    def __init__(
        self, connection: Connection, now: Callable[[], datetime], at_home: str = "", *, reads: bool = False
    ) -> None:
        """Begin. With `reads`, the session changes nothing and locks nothing."""
        self.at_home, self.connection = at_home, connection
        self._locks = of_server(connection) and not reads
        self.tasks = Tasks(connection, locks=self._locks)
        self.fires = Fires(connection, now)
        self.events = Events(connection, locks=self._locks)
        self.outcomes_read = Position(connection, "agent-runtime")
        self.events_read = Position(connection, "agent-runtime/events")
        self.outages, self.stoppages, self.now = Outages(connection), Stoppages(connection), now

    def outages_of_all_kinds(self) -> list[Outage]:
        """Return every span in which nothing could be sent, with any cause."""
        return [*self.outages.listed(), *self.stoppages.listed()]

    @property
    def shared(self) -> Any:
        return required("shared-rows", self.connection)

    def alone(self, name: str) -> bool:
        """Take the right to do the work `name` until this transaction ends. False if another runner has it."""
        return alone(self.connection, name)

    def tell(self) -> None:
        """Notify other runners of changed tasks after the commit."""
        notify(self.connection, [""], TASKS)

    def locked(self, find: Callable[[], list[Fire]]) -> list[Fire]:
        """Lock the tasks of the fires that `find` returns. Return the fires, read under the locks."""
        found = find()
        if not self._locks:
            return found
        ids = {fire.task_id for fire in found}
        self.tasks.lock(ids)
        return [fire for fire in find() if fire.task_id in ids]

    def counts(self) -> Counts:
        """Return the store's counts for metrics."""
        return Counts(
            tasks=self.tasks.living(),
            scheduled=self.tasks.scheduled(),
            open_fires=self.fires.open_by_outcome(),
            next_ready_at=self.fires.next_ready(caught_up=False),
        )


class Outages:
    """The newest outages of the agent runtime."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def seen(self, at: datetime) -> None:
        """Record that the runtime cannot be reached now: extend the present outage, or begin one."""
        if self._change(to_us=to_us(at)):
            return
        row = {"from_us": to_us(at), "to_us": to_us(at), "lasts": True}
        made = self._connection.execute(insert(outages).values(row)).inserted_primary_key
        assert made is not None, "the table has a key"
        self._connection.execute(delete(outages).where(outages.c.number <= made[0] - _OUTAGES_KEPT))

    def ended(self, at: datetime) -> None:
        """Record that the runtime was reached."""
        self._change(to_us=to_us(at), lasts=False)

    def left(self) -> None:
        """End the present outage at the time it was last seen, because this process did not run since."""
        self._change(lasts=False)

    def _change(self, **values: Any) -> int:
        return self._connection.execute(update(outages).where(outages.c.lasts).values(values)).rowcount

    def listed(self) -> list[Outage]:
        """Return the outages, newest first."""
        rows = self._connection.execute(select(outages).order_by(outages.c.number.desc()))
        return [Outage(from_us(row.from_us), from_us(row.to_us), row.lasts) for row in rows]


class Stoppages:
    """The newest spans, by cause, in which nothing could be sent for a cause other than an outage of the runtime."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def begin(self, cause: Cause, task_id: str, at: datetime, why: str = "") -> None:
        """Record that a stoppage began. If one has already begun, keep its start."""
        if not self._change(cause, task_id, to_us=to_us(at), why=why):
            self._add(cause, task_id, why, at, at, lasts=True)

    def end(self, cause: Cause, task_id: str, at: datetime, why: str = "") -> None:
        """Record that the present stoppage, if any, ended. Keep `why` if it is given."""
        self._change(cause, task_id, to_us=to_us(at), lasts=False, **({"why": why} if why else {}))

    def happened(self, cause: Cause, since: datetime, to: datetime, why: str = "") -> None:
        """Record a past stoppage of every task."""
        self._add(cause, "", why, since, to, lasts=False)

    def listed(self) -> list[Outage]:
        """Return the stoppages, newest first."""
        rows = self._connection.execute(select(stoppages).order_by(stoppages.c.number.desc()))
        return [
            Outage(from_us(row.from_us), from_us(row.to_us), row.lasts, Cause(row.cause), row.task_id, row.why)
            for row in rows
        ]

    def _change(self, cause: Cause, task_id: str, **values: Any) -> int:
        mine = (stoppages.c.cause == cause.value, stoppages.c.task_id == task_id, stoppages.c.lasts)
        return self._connection.execute(update(stoppages).where(*mine).values(values)).rowcount

    def _add(self, cause: Cause, task_id: str, why: str, since: datetime, to: datetime, *, lasts: bool) -> None:
        row = {"cause": cause.value, "task_id": task_id, "why": why, "lasts": lasts}
        self._connection.execute(insert(stoppages).values(row | {"from_us": to_us(since), "to_us": to_us(to)}))
        alike = select(stoppages.c.number).where(stoppages.c.cause == cause.value, ~stoppages.c.lasts)
        oldest = alike.order_by(stoppages.c.number.desc()).offset(_OUTAGES_KEPT).limit(1).scalar_subquery()
        old = (stoppages.c.cause == cause.value, ~stoppages.c.lasts, stoppages.c.number <= oldest)
        self._connection.execute(delete(stoppages).where(*old))


class Position:
    """The position in one stream of the runtime."""

    def __init__(self, connection: Connection, peer: str) -> None:
        self._connection, self._peer = connection, peer

    def get(self) -> tuple[str, int]:
        """Return the incarnation and the sequence of the last event that was read. Empty and 0 at first."""
        query = select(follow.c.incarnation, follow.c.sequence).where(follow.c.peer == self._peer)
        row = self._connection.execute(query).first()
        return ("", 0) if row is None else (row.incarnation, row.sequence)

    def move(self, incarnation: str, sequence: int) -> None:
        """Record a new position."""
        _MOVE.run(self._connection, peer=self._peer, incarnation=incarnation, sequence=sequence)


class Store:
    """A store of tasks and fires.

    One process owns a file; its one writer thread commits many units of work at once. A server may have many owners.
    """

    def __init__(
        self,
        place: Path | str,
        at_home: str = "",
        clock: Clock | None = None,
        entropy: Entropy | None = None,
        recorder: Recorder | None = None,
        *,
        read_only: bool = False,
        **how: Any,
    ) -> None:
        """Open a file or a PostgreSQL URL, creating it or upgrading its schema. Raises as `Database`.

        In a shared store, `recorder` signs this process's records. `read_only` and `how` are those of `Database`.
        """
        self._database = Database(place, migrations=MIGRATIONS, connections=CONNECTIONS, read_only=read_only, **how)
        self._at_home, self.tells = at_home, True
        self._clock = clock or SystemClock()
        if recorder is not None:
            self._database.check = nodes.refuse_restored(self._clock)
        if read_only:
            return
        at, drawn = self._clock.now(), entropy or SystemEntropy()
        self._database.submit(
            lambda connection: audit.begin(connection, at, drawn, partial(_known, connection), recorder)
        ).result()

    async def run(self, work: Callable[[Session], T]) -> T:
        """Run `work` in one transaction. Return its result after the commit. An exception undoes only this work."""
        return await self._database.run(lambda connection: work(Session(connection, self._clock.now, self._at_home)))

    async def change(self, work: Callable[[Session], T]) -> T:
        """Run an author's change as :meth:`run` does. Notify the runners, unless one of them is in this process."""

        def told(session: Session) -> T:
            if self.tells:
                session.tell()
            return work(session)

        return await self.run(told)

    async def read(self, work: Callable[[Session], T]) -> T:
        """Run read-only `work` without waiting for locks. Return its result."""
        return await self._database.read(lambda c: work(Session(c, self._clock.now, self._at_home, reads=True)))

    async def transact(self, work: Callable[[Connection], T]) -> T:
        """Run work on a plain connection in one transaction, as :meth:`run` does."""
        return await self._database.run(work)

    async def rehearse(self, work: Callable[[Session], T]) -> T:
        """Run `work` in a transaction that is rolled back. Return the result it would have had."""
        done: list[T] = []

        def undone(connection: Connection) -> None:
            with connection.begin_nested() as savepoint:
                done.append(work(Session(connection, self._clock.now)))
                savepoint.rollback()

        await self._database.run(undone)
        return done[0]

    @property
    def is_shared(self) -> bool:
        """True if other processes may write the same database."""
        return self._database.is_shared

    @property
    def trouble(self) -> str:
        """The machine fault that blocks the store. Empty if there is none."""
        return self._database.trouble

    def close(self) -> None:
        """Finish the queued work, then close the store."""
        self._database.close()


def _known(connection: Connection) -> dict[str, int]:
    """Return the last number of the ledger's entries."""
    return {"fire": connection.execute(select(func.max(fires.c.entry_id))).scalar() or 0}
