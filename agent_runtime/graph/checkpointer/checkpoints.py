"""The checkpoints of the process: one SQLite file, write-ahead log, synced at every commit, only known types read."""

import asyncio
from pathlib import Path

from agent_runtime.graph.checkpointer import GroupedSaver


class Checkpoints:
    """The open file and its saver.

    Attributes:
        saver: what graphs are compiled with.
    """

    def __init__(self, saver: GroupedSaver) -> None:
        self.saver = saver

    async def prune(self, thread_id: str) -> None:
        """Keep of a thread at its end what its next turn needs: a long thread stays small."""
        await self.saver.aprune_ended(thread_id)

    async def close(self) -> None:
        """Finish what is queued, then close the file."""
        await asyncio.to_thread(self.saver.close)


async def open_checkpoints(path: Path) -> Checkpoints:
    """Open or make the file, mode 0600. Raises Corrupt if it is not one of ours."""
    return Checkpoints(await asyncio.to_thread(GroupedSaver, path))
