"""Checkpoints in a PostgreSQL database. Only who asks for such a database imports this module, and psycopg with it.

Where several runtimes write the database, each commit first locks the rows of the threads' leases, in one statement for
all that waits. What was asked under a lease that is over is refused, and nothing of it is written.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from functools import cache
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus
from sqlalchemy import make_url

from agent_runtime.graph.checkpointer.groups import Checkpoints, Leased
from agent_runtime.graph.checkpointer.rows import check_columns, continue_ids
from agent_runtime.model.lease import Fenced, Lease
from turnkeeper.errors import Unreachable, unopened
from turnkeeper.storage.database import Call
from turnkeeper.storage.server.handover import CHECKPOINTS

_MAKING = "SELECT pg_advisory_xact_lock(1667787892)"  # of processes that begin at once, one makes the tables


class CheckpointDatabase(Checkpoints):
    """The checkpoints of a PostgreSQL database, written by one process; with `fenced`, by the owners of its threads."""

    def __init__(self, url: str, *, fenced: bool = False) -> None:
        """Open the database and make its tables where they are not there.

        Raises:
            Corrupt: tables of other columns, or checkpoints that new ones would not come after.
            MachineTrouble, Unreachable: the server does not answer, or takes nothing now.
        """
        where = make_url(url).render_as_string()  # without its password
        self.is_fenced = fenced
        try:
            with ExitStack() as opened:
                writing = _Connection(url)
                opened.callback(writing.close)
                _prepare(writing, where, fenced=fenced)
                super().__init__(writing, _Connection(url, read_only=True), begin="BEGIN")
                opened.pop_all()
        except psycopg.OperationalError as error:
            raise Unreachable(f"cannot be opened: {str(error).partition(chr(10))[0]}", where=where) from error
        except psycopg.DatabaseError as error:
            raise unopened(error, where, "checkpoints") from error

    def admit(self, batch: Sequence[Call]) -> Sequence[Call]:
        """Hold the leases of a batch until its end; refuse what was asked under one that is over."""
        if not self.is_fenced:
            return batch
        leases = {call.work.lease for call in batch if isinstance(call.work, Leased) and call.work.lease}
        held = set()
        if leases:
            found = self._writing.execute(_HOLD, [sorted(lease.thread_id for lease in leases)]).fetchall()
            held = {Lease(*row) for row in found} & leases
        admitted = []
        for call in batch:
            if not isinstance(call.work, Leased) or call.work.lease in held:
                admitted.append(call)
            else:
                call.error = Fenced(call.work.lease or Lease("", 0))
        return admitted


_HOLD = "SELECT thread_id, epoch FROM threads WHERE thread_id = ANY (?1) AND owner <> '' ORDER BY thread_id FOR SHARE"


def _prepare(connection: "_Connection", where: str, *, fenced: bool) -> None:
    connection.execute("BEGIN")
    connection.execute(_MAKING)
    for statement in CHECKPOINTS:
        connection.execute(statement)
    connection.execute("COMMIT")
    check_columns(connection, where)
    if not fenced:  # otherwise with each thread, when it is taken
        continue_ids(connection, where)


class _Connection:
    """Takes parameters as `?1`, on a connection of psycopg that is opened again if it is lost between transactions."""

    def __init__(self, url: str, *, read_only: bool = False) -> None:
        self._url = url
        self._read_only = read_only
        self._driver = self._open()

    @property
    def in_transaction(self) -> bool:
        return self._driver.info.transaction_status in {TransactionStatus.INTRANS, TransactionStatus.INERROR}

    def execute(self, statement: str, values: Sequence[Any] = (), /) -> Any:
        between = not self.in_transaction
        try:
            return self._execute(statement, values)
        except psycopg.errors.ReadOnlySqlTransaction:
            self._driver.close()  # a standby by now, or still the old primary: the next statement connects anew
            raise
        except psycopg.OperationalError:
            if not between or not self._driver.closed:
                raise
        self._driver = self._open()
        return self._execute(statement, values)

    def close(self) -> None:
        self._driver.close()

    def _execute(self, statement: str, values: Sequence[Any]) -> Any:
        return self._driver.cursor().execute(_numbered(statement), values or None, prepare=bool(values), binary=True)

    def _open(self) -> "psycopg.Connection[Any]":
        driver = psycopg.connect(self._url, autocommit=True, client_encoding="UTF8", cursor_factory=psycopg.RawCursor)
        if self._read_only:
            driver.execute("SET default_transaction_read_only = on")
        return driver


@cache
def _numbered(statement: str) -> bytes:
    return statement.replace("?", "$").encode()
