"""LangGraph's checkpointer interface on a file that commits in groups.

The checkpoints of the process: one SQLite file, write-ahead log, synced at every commit, only known types read.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
    get_checkpoint_id,
    get_checkpoint_metadata,
)
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from agent_runtime.graph.checkpointer import rows
from agent_runtime.graph.checkpointer.file import CheckpointFile, Work
from agent_runtime.graph.checkpointer.rows import Found, Rows, changes
from turnkeeper.entropy import SystemEntropy
from turnkeeper.storage.worker_thread import WorkerThread

_PAGE = 16  # checkpoints that a listing holds at a time


class GroupedSaver(BaseCheckpointSaver[str]):
    """Keeps checkpoints in one SQLite file, at full durability, for any number of threads and event loops.

    What `put` and `put_writes` were given is on disk when they return, and whoever reads after that reads it. The
    methods without `a` are for threads that run no event loop; on one that does they raise
    :class:`asyncio.InvalidStateError`, as they would hold it up.
    """

    def __init__(self, path: Path) -> None:
        """Open or make the file. Raises Corrupt if it is not one of ours."""
        # Strict whatever the environment says: a crafted row must not name a class to be built.
        super().__init__(serde=JsonPlusSerializer(allowed_msgpack_modules=None))
        self._file = CheckpointFile(path)
        self._entropy = SystemEntropy()

    def close(self) -> None:
        """Finish what is queued, then close the file."""
        self._file.close()

    async def aclose(self) -> None:
        """Finish what is queued, then close the file, without blocking the loop."""
        await asyncio.to_thread(self.close)

    # Reading

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Return the checkpoint that `config` names, or the newest of its thread and namespace; None without one."""
        place = _place(config)
        return self._tuple(config, place, _blocking(self._file.reader, lambda c: rows.get(c, *place)))

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Return the checkpoint that `config` names, or the newest of its thread and namespace; None without one."""
        place = _place(config)
        return self._tuple(config, place, await self._file.reader.run(lambda c: rows.get(c, *place)))

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,  # noqa: A002  the interface's name
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """Yield the checkpoints that match, newest first.

        Args:
            config: its thread, and namespace and id where it names them; None for all threads.
            filter: what their metadata must hold, by key.
            before: only those with lesser ids than this one's.
            limit: at most so many.

        Raises:
            ValueError: a key of `filter` is none.
        """
        where = _matching(config, before, filter)
        found = _blocking(self._file.reader, lambda c: rows.ids(c, where, limit))
        for start in range(0, len(found), _PAGE):
            page = found[start : start + _PAGE]
            yield from self._tuples(page, _blocking(self._file.reader, lambda c, page=page: _get_all(c, page)))

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,  # noqa: A002  the interface's name
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """Yield the checkpoints that match, newest first, as :meth:`list` does."""
        where = _matching(config, before, filter)
        found = await self._file.reader.run(lambda c: rows.ids(c, where, limit))
        for start in range(0, len(found), _PAGE):
            page = found[start : start + _PAGE]
            for each in self._tuples(page, await self._file.reader.run(lambda c, page=page: _get_all(c, page))):
                yield each

    def get_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """Return, for channels that are kept as changes, the last whole value and the changes since."""
        place = _place(config)
        found = _blocking(self._file.reader, lambda c: changes(c, place, channels, self.serde.loads_typed))
        return cast("Mapping[str, DeltaChannelHistory]", found)

    async def aget_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """Return, for channels that are kept as changes, the last whole value and the changes since."""
        place = _place(config)
        found = await self._file.reader.run(lambda c: changes(c, place, channels, self.serde.loads_typed))
        return cast("Mapping[str, DeltaChannelHistory]", found)

    # Writing

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,  # noqa: ARG002  the interface's; values stand in the checkpoint itself
    ) -> RunnableConfig:
        """Store a checkpoint behind the one that `config` names; return the config that names it."""
        self._change(self._checkpoint(config, checkpoint, metadata))
        return _config(*_place(config)[:2], checkpoint["id"])

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,  # noqa: ARG002  the interface's; values stand in the checkpoint itself
    ) -> RunnableConfig:
        """Store a checkpoint behind the one that `config` names; return the config that names it."""
        await self._achange(self._checkpoint(config, checkpoint, metadata))
        return _config(*_place(config)[:2], checkpoint["id"])

    def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Store what a task wrote beside the checkpoint that it ran from."""
        self._change(self._writes(config, writes, task_id, task_path))

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Store what a task wrote beside the checkpoint that it ran from."""
        await self._achange(self._writes(config, writes, task_id, task_path))

    def delete_thread(self, thread_id: str) -> None:
        """Delete all of a thread."""
        self._change(lambda c: rows.drop_threads(c, [str(thread_id)]))

    async def adelete_thread(self, thread_id: str) -> None:
        """Delete all of a thread."""
        await self._achange(lambda c: rows.drop_threads(c, [str(thread_id)]))

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Delete the checkpoints of these runs and their writes, also where a later one builds on them."""
        self._change(lambda c: rows.drop_runs(c, run_ids))

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Delete the checkpoints of these runs and their writes, also where a later one builds on them."""
        await self._achange(lambda c: rows.drop_runs(c, run_ids))

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy every checkpoint and write of a thread to another."""
        self._change(lambda c: rows.copy_thread(c, str(source_thread_id), str(target_thread_id)))

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy every checkpoint and write of a thread to another."""
        await self._achange(lambda c: rows.copy_thread(c, str(source_thread_id), str(target_thread_id)))

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Keep of each thread what going on needs (`keep_latest`), or nothing (`delete`)."""
        self._change(self._pruning(thread_ids, strategy))

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Keep of each thread what going on needs (`keep_latest`), or nothing (`delete`)."""
        await self._achange(self._pruning(thread_ids, strategy))

    async def aprune_ended(self, thread_id: str) -> None:
        """Prune a thread that is at its end: of what single runs of subgraphs left, nothing is needed any more."""
        await self._achange(lambda c: rows.keep_newest(c, thread_id, self.serde.loads_typed, at_end=True))

    def get_next_version(self, current: str | None, channel: None) -> str:  # noqa: ARG002  the interface's
        """Return a version that sorts behind `current`; two that follow the same one differ."""
        number = 0 if current is None else int(str(current).split(".", 1)[0])
        return f"{number + 1:032}.{self._entropy.uniform(0.0, 1.0):016}"

    # Between LangGraph's shapes and rows

    def _checkpoint(self, config: RunnableConfig, checkpoint: Checkpoint, metadata: CheckpointMetadata) -> Rows:
        thread_id, namespace, parent = _place(config)
        kind, blob = self.serde.dumps_typed(checkpoint)
        known = _json(get_checkpoint_metadata(config, metadata)).encode("utf-8", "ignore")
        return Rows(
            table="checkpoints", rows=[(thread_id, namespace, checkpoint["id"], parent or None, kind, blob, known)]
        )

    def _writes(self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str) -> Rows:
        thread_id, namespace, checkpoint_id = _place(config)
        encoded = [
            (
                *(thread_id, namespace, checkpoint_id, task_id, task_path),
                *(WRITES_IDX_MAP.get(channel, index), channel, *self.serde.dumps_typed(value)),
            )
            for index, (channel, value) in enumerate(writes)
        ]
        # An error, an interrupt or an answer takes the place of the one before; a task's results are never changed.
        return Rows(table="writes", rows=encoded, replace=all(channel in WRITES_IDX_MAP for channel, _ in writes))

    def _pruning(self, thread_ids: Sequence[str], strategy: str) -> Work:
        if strategy == "delete":
            return lambda c: rows.drop_threads(c, thread_ids)
        if strategy != "keep_latest":
            raise ValueError(f"unknown strategy {strategy!r}: keep_latest or delete")
        return lambda c: rows.keep_newest_of(c, thread_ids, self.serde.loads_typed)

    def _tuples(
        self, places: Sequence[tuple[str, str, str]], found: Sequence[Found | None]
    ) -> Iterator[CheckpointTuple]:
        for place, each in zip(places, found, strict=True):
            if (made := self._tuple(None, place, each)) is not None:  # None: it was deleted while the listing went on
                yield made

    def _tuple(
        self, config: RunnableConfig | None, place: tuple[str, str, str], found: Found | None
    ) -> CheckpointTuple | None:
        if found is None:
            return None
        named = config is not None and get_checkpoint_id(config)
        parent = _config(place[0], place[1], found.parent_id) if found.parent_id else None
        return CheckpointTuple(
            config if config is not None and named else _config(place[0], place[1], found.checkpoint_id),
            self.serde.loads_typed(found.blob),
            cast("CheckpointMetadata", json.loads(found.metadata) if found.metadata is not None else {}),
            parent,
            [(task, channel, self.serde.loads_typed(blob)) for task, channel, blob in found.writes],
        )

    def _change(self, work: Work) -> None:
        _blocking(self._file.writer, work)

    async def _achange(self, work: Work) -> None:
        await self._file.writer.run(work)


def _blocking(thread: WorkerThread, work: Any) -> Any:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return thread.run_blocking(work)
    raise asyncio.InvalidStateError(
        "this would hold up the event loop: await the method of the same name with an a in front, "
        "or run the graph with ainvoke or astream"
    )


def _json(metadata: Any) -> str:
    """Return metadata as JSON, which SQLite reads; null stands for a number that JSON lacks, as NaN and Infinity."""
    text = json.dumps(metadata, ensure_ascii=False)
    if "NaN" in text or "Infinity" in text:
        text = json.dumps(json.loads(text, parse_constant=lambda _name: None), ensure_ascii=False)
    return text


def _place(config: RunnableConfig) -> tuple[str, str, str]:
    """Return thread, namespace and checkpoint id; the last is empty where the newest is meant."""
    given = config["configurable"]
    return str(given["thread_id"]), given.get("checkpoint_ns") or "", str(get_checkpoint_id(config) or "")


def _config(thread_id: str, namespace: str, checkpoint_id: str) -> RunnableConfig:
    return {"configurable": {"thread_id": thread_id, "checkpoint_ns": namespace, "checkpoint_id": checkpoint_id}}


def _matching(config: RunnableConfig | None, before: RunnableConfig | None, wanted: Any) -> dict[str, tuple[Any, ...]]:
    limit = None if before is None else get_checkpoint_id(before) or ""
    return rows.matching(config["configurable"] if config is not None else None, limit, wanted)


def _get_all(connection: Any, places: Sequence[tuple[str, str, str]]) -> Sequence[Found | None]:
    return [rows.get(connection, *place) for place in places]


async def open_saver(path: Path) -> GroupedSaver:
    """Open or make the file, mode 0600. Raises Corrupt if it is not one of ours."""
    return await asyncio.to_thread(GroupedSaver, path)
