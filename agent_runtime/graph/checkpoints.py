"""The checkpointer: one SQLite file, write-ahead log, synced at every commit, and only known types read back."""

import asyncio
from pathlib import Path
from sqlite3 import DatabaseError

import aiosqlite
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

from turnkeeper.errors import Corrupt

_PRUNE = """
DELETE FROM {table} WHERE thread_id = ? AND checkpoint_id < (
    SELECT max(newest.checkpoint_id) FROM checkpoints AS newest
    WHERE newest.thread_id = {table}.thread_id AND newest.checkpoint_ns = {table}.checkpoint_ns
)
"""


class Checkpoints:
    """The open file and its saver.

    Attributes:
        saver: what graphs are compiled with.
    """

    def __init__(self, connection: aiosqlite.Connection) -> None:
        self._connection = connection
        # Strict whatever the environment says: a crafted row must not name a class to be built.
        self.saver = AsyncSqliteSaver(connection, serde=JsonPlusSerializer(allowed_msgpack_modules=None))

    async def prune(self, thread_id: str) -> None:
        """Keep only the newest checkpoint of each of a thread's namespaces: a long thread stays small."""
        async with self.saver.lock:
            for table in ("writes", "checkpoints"):
                await self._connection.execute(_PRUNE.format(table=table), (thread_id,))
            await self._connection.commit()

    async def close(self) -> None:
        """Close the file."""
        await self._connection.close()


async def open_checkpoints(path: Path) -> Checkpoints:
    """Open or make the file, mode 0600. Raises Corrupt if it is not one of ours."""
    await asyncio.to_thread(path.touch, mode=0o600, exist_ok=True)
    connection = await aiosqlite.connect(path)
    try:
        await connection.execute("PRAGMA journal_mode=WAL")
        await connection.execute("PRAGMA synchronous=FULL")
        await connection.execute("PRAGMA busy_timeout=10000")
        checkpoints = Checkpoints(connection)
        await checkpoints.saver.setup()
    except DatabaseError as error:
        await connection.close()
        raise Corrupt(f"cannot be read as checkpoints: {error}", where=str(path)) from error
    return checkpoints
