"""The store of tasks and the ledger.

All work is a synchronous function of a :class:`Session`, run in one transaction: what it reads cannot change under
it, and what it writes is on disk, whole, when :meth:`Store.run` returns.
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
from task_runner.store.shared import Shared
from task_runner.store.tasks import Tasks
from turnkeeper.clock import Clock, SystemClock
from turnkeeper.entropy import Entropy, SystemEntropy
from turnkeeper.storage import nodes
from turnkeeper.storage.chain import Recorder
from turnkeeper.storage.database import Database
from turnkeeper.storage.server.handover import TASKS, notify
from turnkeeper.storage.statements import alone, of_server, upsert
from turnkeeper.times import from_us, to_us

T = TypeVar("T")
_OUTAGES_KEPT = 200
CONNECTIONS = 4  # to a server


class Session:
    """One transaction.

    Where others may write the same database, what changes a task or its fires has the task's lock first, which reading
    the task gives it. What finds fires before it has read their tasks finds them by :meth:`locked`.

    Attributes:
        fires: the ledger, and the requests frozen for its fires.
        outcomes_read: how far the runtime's turn events were taken in.
        events_read: how far the events that happen inside turns were taken in.
        outages: when the runtime could not be reached.
        stoppages: when nothing could be sent for another cause.
        shared: what runners and runtimes share, where the database is a server's.
        at_home: what a command needs to find this home, ` --home DIR`; empty where that is not known.
    """

    def __init__(
        self, connection: Connection, now: Callable[[], datetime], at_home: str = "", *, reads: bool = False
    ) -> None:
        """Begin; with `reads` nothing is changed, so nothing is locked."""
        self.at_home, self._connection = at_home, connection
        self._locks = of_server(connection) and not reads
        self.tasks = Tasks(connection, locks=self._locks)
        self.fires = Fires(connection, now)
        self.events = Events(connection, locks=self._locks)
        self.outcomes_read = Position(connection, "agent-runtime")
        self.events_read = Position(connection, "agent-runtime/events")
        self.outages, self.stoppages, self.now = Outages(connection), Stoppages(connection), now

    def outages_of_all_kinds(self) -> list[Outage]:
        """Return every span in which nothing could be sent, whatever its cause."""
        return [*self.outages.listed(), *self.stoppages.listed()]

    @property
    def shared(self) -> Shared:
        return Shared(self._connection)

    def alone(self, name: str) -> bool:
        """Return whether no other runner does what is called `name`, and keep it so until this transaction ends."""
        return alone(self._connection, name)

    def tell(self) -> None:
        """Tell other runners, once this is committed, that tasks have changed."""
        notify(self._connection, [""], TASKS)

    def locked(self, find: Callable[[], list[Fire]]) -> list[Fire]:
        """Return the fires that `find` returns, as they are once nobody else can change them."""
        found = find()
        if not self._locks:
            return found
        ids = {fire.task_id for fire in found}
        self.tasks.lock(ids)
        return [fire for fire in find() if fire.task_id in ids]

    def counts(self) -> Counts:
        """Return what metrics show of the store."""
        return Counts(
            tasks=self.tasks.living(),
            scheduled=self.tasks.scheduled(),
            open_fires=self.fires.open_by_outcome(),
            next_ready_at=self.fires.next_ready(caught_up=False),
        )


class Outages:
    """When the agent runtime could not be reached: the newest outages."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def seen(self, at: datetime) -> None:
        """Record that it cannot be reached now: the outage that lasts goes on, or one begins."""
        if self._change(to_us=to_us(at)):
            return
        row = {"from_us": to_us(at), "to_us": to_us(at), "lasts": True}
        made = self._connection.execute(insert(outages).values(row)).inserted_primary_key
        assert made is not None, "the table has a key"
        self._connection.execute(delete(outages).where(outages.c.number <= made[0] - _OUTAGES_KEPT))

    def ended(self, at: datetime) -> None:
        """Record that it was reached."""
        self._change(to_us=to_us(at), lasts=False)

    def left(self) -> None:
        """Let the outage that lasts end when it was last seen: this process did not run since."""
        self._change(lasts=False)

    def _change(self, **values: Any) -> int:
        return self._connection.execute(update(outages).where(outages.c.lasts).values(values)).rowcount

    def listed(self) -> list[Outage]:
        """Return the outages, the newest first."""
        rows = self._connection.execute(select(outages).order_by(outages.c.number.desc()))
        return [Outage(from_us(row.from_us), from_us(row.to_us), row.lasts) for row in rows]


class Stoppages:
    """When nothing could be sent for another cause than an outage of the agent runtime: the newest spans of each."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def begin(self, cause: Cause, task_id: str, at: datetime, why: str = "") -> None:
        """Record that a stoppage began and lasts; one that lasts already keeps its beginning."""
        if not self._change(cause, task_id, to_us=to_us(at), why=why):
            self._add(cause, task_id, why, at, at, lasts=True)

    def end(self, cause: Cause, task_id: str, at: datetime, why: str = "") -> None:
        """Record that a stoppage ended, if one lasts; `why` is kept if it is given."""
        self._change(cause, task_id, to_us=to_us(at), lasts=False, **({"why": why} if why else {}))

    def happened(self, cause: Cause, since: datetime, to: datetime, why: str = "") -> None:
        """Record a stoppage of every task that is over."""
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
    """How far one stream of the runtime was taken in."""

    def __init__(self, connection: Connection, peer: str) -> None:
        self._connection, self._peer = connection, peer

    def get(self) -> tuple[str, int]:
        """Return the incarnation and the sequence of the last event taken in; empty and 0 at first."""
        query = select(follow.c.incarnation, follow.c.sequence).where(follow.c.peer == self._peer)
        row = self._connection.execute(query).first()
        return ("", 0) if row is None else (row.incarnation, row.sequence)

    def move(self, incarnation: str, sequence: int) -> None:
        """Record a new position."""
        values = {"peer": self._peer, "incarnation": incarnation, "sequence": sequence}
        self._connection.execute(upsert(follow, [follow.c.peer], ["incarnation", "sequence"]).values(values))


class Store:
    """A store of tasks and fires.

    A file is owned by one process: one writer thread, many units of work to a commit. The database of a server may have
    many owners.
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
        upgrade: bool = True,
    ) -> None:
        """Open it, making it or bringing its schema up to date: a file, or a PostgreSQL URL. Raises as `Database`.

        Into a store that machines share this one's records are written as by `recorder`. `read_only` and `upgrade` are
        those of `Database`.
        """
        how: Any = {"read_only": read_only, "upgrade": upgrade}
        self._database = Database(place, migrations=MIGRATIONS, connections=CONNECTIONS, **how)
        self._at_home = at_home
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
        """Run `work` in one transaction; return its result once that is on disk. Its exception undoes it alone."""
        return await self._database.run(lambda connection: work(Session(connection, self._clock.now, self._at_home)))

    async def change(self, work: Callable[[Session], T]) -> T:
        """Run what an author changes, as :meth:`run` does; other runners of the database are told of it."""

        def told(session: Session) -> T:
            session.tell()
            return work(session)

        return await self.run(told)

    async def read(self, work: Callable[[Session], T]) -> T:
        """Run `work`, which changes nothing, and waits for nobody, and return its result."""
        return await self._database.run(
            lambda connection: work(Session(connection, self._clock.now, self._at_home, reads=True))
        )

    async def transact(self, work: Callable[[Connection], T]) -> T:
        """Run what takes a plain connection in one transaction, as :meth:`run` does."""
        return await self._database.run(work)

    async def rehearse(self, work: Callable[[Session], T]) -> T:
        """Run `work` in a transaction that is undone; return what it would have done."""
        done: list[T] = []

        def undone(connection: Connection) -> None:
            with connection.begin_nested() as savepoint:
                done.append(work(Session(connection, self._clock.now)))
                savepoint.rollback()

        await self._database.run(undone)
        return done[0]

    @property
    def is_shared(self) -> bool:
        """Whether others may write the same database."""
        return self._database.is_shared

    @property
    def trouble(self) -> str:
        """What of the machine stands in the way of the store; empty where nothing does."""
        return self._database.trouble

    def close(self) -> None:
        """Finish what is queued, then close the store."""
        self._database.close()


def _known(connection: Connection) -> dict[str, int]:
    """Return up to which number the entries of the ledger are."""
    return {"fire": connection.execute(select(func.max(fires.c.entry_id))).scalar() or 0}
