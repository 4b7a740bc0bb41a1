"""Checkpoints in a PostgreSQL database. This module, and so psycopg, is imported only for such a database.

If several runtimes write to the database, each commit first locks the leases of its threads, in one statement. Calls
under a lease that has ended are refused, and write nothing.
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
from agent_runtime.store.leases import Fenced, Lease
from turnkeeper.errors import Unreachable, unopened
from turnkeeper.storage.database import Call
from turnkeeper.storage.server.handover import CHECKPOINTS

_MAKING = "SELECT pg_advisory_xact_lock(1667787892)"  # serializes processes that start together and create the tables


class CheckpointDatabase(Checkpoints):
    """The checkpoints of a PostgreSQL database, written by one process; with `fenced`, by its threads' owners."""

    def __init__(self, url: str, fenced: bool = False) -> None:
        """Open the database, and make missing tables.

        Raises:
            Corrupt: the tables have other columns, or new checkpoints would not sort after the stored ones.
            MachineTrouble, Unreachable: the server does not answer, or refuses work now.
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
        """Lock the leases of a batch until its end; refuse calls under a lease that has ended."""
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
    if not fenced:  # with `fenced`, ids continue from those of each thread when the process takes the thread
        continue_ids(connection, where)


class _Connection:
    """A psycopg connection that takes parameters as `?1` and reconnects if it is lost between transactions."""

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
            self._driver.close()  # the server is a standby now, or the old primary, so the next statement reconnects
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
