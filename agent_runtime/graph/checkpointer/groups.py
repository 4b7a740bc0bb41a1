"""Two connections behind two threads: all that waits to be written becomes one transaction with one commit.

What was asked is answered after that commit. The work is first tried as a whole, in as few statements as it takes.
Where anything fails, all of it is undone and tried again one by one, each in a savepoint, so that only what failed
fails.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

from agent_runtime.graph.checkpointer.rows import Connection, Rows, add
from agent_runtime.model.lease import Lease
from turnkeeper.storage.database import Call, WorkerThread

Work = Rows | Callable[[Any], Any]


@dataclass(frozen=True)
class Leased:
    """Work that is done only while its lease holds; without one it is refused."""

    work: Work
    lease: Lease | None


def work_of(call: Call) -> Work:
    """Return what a call is to do."""
    return cast("Work", call.work.work if type(call.work) is Leased else call.work)


class Checkpoints:
    """Checkpoints on two open connections, which it owns.

    Attributes:
        writer: the thread that writes; its work is :class:`Rows` or a function of a connection in a transaction.
        reader: the thread that reads what has been committed; its work is a function of a connection.
        connections: all of them.
        is_fenced: what is written has to prove its lease.
    """

    is_fenced = False

    def __init__(self, writing: Connection, reading: Connection, *, begin: str, where: str = "") -> None:
        """Start the threads.

        Args:
            writing: outside a transaction, as each statement finds it that is not between `begin` and its end.
            reading: likewise.
            begin: the statement that begins a transaction.
            where: names the database in errors.
        """
        self._writing = writing
        self._reading = reading
        self.connections = (reading, writing)
        self._begin = begin
        self.writer = WorkerThread("checkpoints-write", self._write, where=where)
        self.reader = WorkerThread("checkpoints-read", self._read, where=where)

    def close(self) -> None:
        """Finish what is queued, then close the connections."""
        self.writer.close()
        self.reader.close()
        for connection in self.connections:
            connection.close()

    def admit(self, batch: Sequence[Call]) -> Sequence[Call]:
        """Return the calls of a batch that may write, in the transaction that has begun; the others get an error."""
        return batch

    def _write(self, batch: Sequence[Call]) -> None:
        try:
            self._writing.execute(self._begin)
            _together(self._writing, self.admit(batch))
            self._writing.execute("COMMIT")
        except BaseException:  # noqa: BLE001  whose fault it was shows when they are tried one by one
            _undo(self._writing)
            self._one_by_one(batch)

    def _one_by_one(self, batch: Sequence[Call]) -> None:
        try:
            self._writing.execute(self._begin)
            for call in self.admit(batch):
                _alone(self._writing, call)
            self._writing.execute("COMMIT")
        except BaseException as error:  # noqa: BLE001  nothing of the batch is on disk: everyone is told
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
    """Do a batch's work. Rows are gathered; each table's keep their order, and functions theirs among all."""
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
    """Run one call in a savepoint. Raises where its failure has undone what the others did, as a full disk may."""
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
