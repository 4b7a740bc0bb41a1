"""Two connections with a thread each: all pending writes become one transaction with one commit.

Each call is answered after the commit. Each group is first tried as a whole, in as few statements as possible. If any
call fails, the whole group is undone and each call is tried again in a separate savepoint, so that only the failing
calls fail.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

from agent_runtime.graph.checkpointer.rows import Connection, Rows, add
from agent_runtime.store.leases import Lease
from turnkeeper.storage.database import Call, WorkerThread

Work = Rows | Callable[[Any], Any]


@dataclass(frozen=True)
class Leased:
    """Work under a lease; the work is refused if the lease has ended."""

    work: Work
    lease: Lease | None


def work_of(call: Call) -> Work:
    return cast("Work", call.work.work if type(call.work) is Leased else call.work)


class Checkpoints:
    """Checkpoints on two open connections, which this object owns.

    Attributes:
        writer: the thread that writes; its work is :class:`Rows` or a function of a connection in a transaction.
        reader: the thread that reads committed data; its work is a function of a connection.
        is_fenced: True if each write must prove its lease.
    """

    is_fenced = False

    def __init__(
        self, writing: Connection, reading: Connection, *, begin: str, where: str = "", worker: Any = WorkerThread
    ) -> None:
        """Start the threads.

        Args:
            writing: the connection for writes, outside a transaction.
            reading: the connection for reads, outside a transaction.
            begin: the statement that begins a transaction.
            where: the database's name in errors.
            worker: the class of the threads.
        """
        self._writing = writing
        self._reading = reading
        self.connections = (reading, writing)
        self._begin = begin
        self.writer: WorkerThread = worker("checkpoints-write", self._write, where=where)
        self.reader: WorkerThread = worker("checkpoints-read", self._read, where=where)

    def close(self) -> None:
        """Finish queued work, then close the connections."""
        self.writer.close()
        self.reader.close()
        for connection in self.connections:
            connection.close()

    def admit(self, batch: Sequence[Call]) -> Sequence[Call]:
        """Return the calls of a batch that may write, in the open transaction; give the other calls an error."""
        return batch

    def _write(self, batch: Sequence[Call]) -> None:
        try:
            self._writing.execute(self._begin)
            _together(self._writing, self.admit(batch))
            self._writing.execute("COMMIT")
        except BaseException:  # noqa: BLE001  trying the calls one by one shows which one fails
            _undo(self._writing)
            self._one_by_one(batch)

    def _one_by_one(self, batch: Sequence[Call]) -> None:
        try:
            self._writing.execute(self._begin)
            for call in self.admit(batch):
                _alone(self._writing, call)
            self._writing.execute("COMMIT")
        except BaseException as error:  # noqa: BLE001  nothing of the batch is on disk: every caller gets an error
            _undo(self._writing)
            for call in batch:
                call.error = call.error or error

    def _read(self, batch: Sequence[Call]) -> None:
        for call in batch:
            try:
                call.result = call.work(self._reading)
            except BaseException as error:  # noqa: BLE001  handed to the caller
                call.error = error


def _together(connection: Connection, batch: Sequence[Call]) -> None:
    """Do a batch's work. Gather rows by table, in order; before a function runs, write the rows gathered so far."""
    gathered: dict[str, list[Rows]] = {}
    for call in batch:
        work = work_of(call)
        if isinstance(work, Rows):
            gathered.setdefault(work.table, []).append(work)
        else:
            _add(connection, gathered)
            call.result = work(connection)
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


def _alone(connection: Connection, call: Call) -> None:
    """Run one call in a savepoint. Raises if its failure has undone the whole transaction, as a full disk may."""
    connection.execute("SAVEPOINT alone")
    work = work_of(call)
    try:
        if isinstance(work, Rows):
            add(connection, work)
        else:
            call.result = work(connection)
    except BaseException as error:
        call.error = error
        if not connection.in_transaction:
            raise
        connection.execute("ROLLBACK TO alone")
    connection.execute("RELEASE alone")


def _undo(connection: Connection) -> None:
    if connection.in_transaction:
        connection.execute("ROLLBACK")
