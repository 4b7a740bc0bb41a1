"""Checkpoints in a PostgreSQL database. Only who asks for such a database imports this module, and psycopg with it."""

from collections.abc import Sequence
from contextlib import ExitStack
from functools import cache
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus
from sqlalchemy import make_url

from agent_runtime.graph.checkpointer.groups import Checkpoints
from agent_runtime.graph.checkpointer.rows import check_columns, continue_ids
from turnkeeper.errors import Corrupt, Unreachable

# What is a checkpoint's own stands in bytes: it may hold what a text of PostgreSQL cannot, as a NUL.
SCHEMA = (
    """CREATE TABLE IF NOT EXISTS checkpoints (
        thread_id text COLLATE "C" NOT NULL, checkpoint_ns text COLLATE "C" NOT NULL DEFAULT '',
        checkpoint_id text COLLATE "C" NOT NULL, parent_checkpoint_id text COLLATE "C",
        type text, checkpoint bytea, metadata bytea,
        PRIMARY KEY (thread_id, checkpoint_ns, checkpoint_id))""",
    """CREATE TABLE IF NOT EXISTS writes (
        thread_id text COLLATE "C" NOT NULL, checkpoint_ns text COLLATE "C" NOT NULL DEFAULT '',
        checkpoint_id text COLLATE "C" NOT NULL, task_id text COLLATE "C" NOT NULL,
        task_path text COLLATE "C" NOT NULL DEFAULT '', idx integer NOT NULL, channel text COLLATE "C" NOT NULL,
        type text, value bytea,
        PRIMARY KEY (thread_id, checkpoint_ns, checkpoint_id, task_id, idx))""",
)


class CheckpointDatabase(Checkpoints):
    """The checkpoints of a PostgreSQL database, which one process writes."""

    def __init__(self, url: str) -> None:
        """Open the database and make its tables where they are not there.

        Raises:
            Corrupt: tables of other columns, or checkpoints that new ones would not come after.
            Unreachable: the server does not answer.
        """
        where = make_url(url).render_as_string()  # without its password
        try:
            with ExitStack() as opened:
                writing = _Connection(url)
                opened.callback(writing.close)
                _prepare(writing, where)
                super().__init__(writing, _Connection(url, read_only=True), begin="BEGIN")
                opened.pop_all()
        except psycopg.OperationalError as error:
            raise Unreachable(f"cannot be opened: {str(error).partition(chr(10))[0]}", where=where) from error
        except psycopg.DatabaseError as error:
            raise Corrupt(f"cannot be read as checkpoints: {error}", where=where) from error


def _prepare(connection: "_Connection", where: str) -> None:
    connection.execute("BEGIN")
    for statement in SCHEMA:
        connection.execute(statement)
    connection.execute("COMMIT")
    check_columns(connection, where)
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
