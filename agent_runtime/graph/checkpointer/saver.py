"""LangGraph's checkpointer interface on a file or database that commits in groups.

Each method plans work for one of the file's two threads. `_both` makes a blocking and an awaitable method of it.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from inspect import signature
from pathlib import Path
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint import base

from agent_runtime.graph.checkpointer import rows
from agent_runtime.graph.checkpointer.encoding import Encoding, place_of, refuse_long, refuse_nul
from agent_runtime.graph.checkpointer.groups import Checkpoints, Leased, Work
from agent_runtime.graph.checkpointer.sqlite import CheckpointFile
from agent_runtime.store.leases import current
from turnkeeper.config.surfaces import required
from turnkeeper.entropy import Entropy, SystemEntropy
from turnkeeper.storage.database import WorkerThread

P = ParamSpec("P")
R = TypeVar("R")
HELD_S = 0.002  # seconds that a task's writes wait for the following checkpoint
PRUNED_S = 0.05  # seconds that pruning waits for other writes
_PAGE = 16  # checkpoints that a listing keeps in memory


@dataclass(frozen=True, kw_only=True)
class _Plan(Generic[R]):
    """The plan of a method: its work, its thread, the conversion of its result, and its longest delay.

    The plan of a task's writes also names LangGraph's thread, as `results_of`.
    """

    thread: WorkerThread
    work: Work | Leased
    read: Callable[[Any], R]
    hold_s: float = 0.0
    results_of: str = ""

    async def run(self, unsaved: dict["asyncio.Future[Any]", str]) -> Any:
        """Do the work. Until delayed work is on disk, `unsaved` contains it with LangGraph's thread."""
        if not self.hold_s:
            return await self.thread.run(self.work)
        saved = self.thread.begin(self.work, hold_s=self.hold_s)
        unsaved[saved] = self.results_of
        try:
            return await saved
        finally:
            del unsaved[saved]


def _both(
    plan: Callable[Concatenate[Any, P], _Plan[R]],
) -> tuple[Callable[Concatenate[Any, P], R], Callable[Concatenate[Any, P], Coroutine[Any, Any, R]]]:
    """Return two methods: one for threads without an event loop, and one for event loops."""

    @wraps(plan)
    def blocking(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> R:
        planned = plan(self, *args, **kwargs)
        return planned.read(_run_blocking(planned.thread, planned.work))

    @wraps(plan)
    async def awaited(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> R:
        planned = plan(self, *args, **kwargs)
        return planned.read(await planned.run(self.unsaved))

    # LangGraph reads this value before each run, and computing it is slow.
    setattr(awaited, "__signature__", signature(plan))  # noqa: B010  no attribute that functions are declared to have
    return blocking, awaited


class GroupedSaver(Encoding):
    """Checkpointer on a SQLite file or a PostgreSQL database, for any number of threads and event loops.

    Data of `put` and `put_writes` is on disk when they return, and is visible to later reads. The methods without `a`
    are for threads without an event loop; on an event loop they raise :class:`asyncio.InvalidStateError`, because they
    would block the loop.
    """

    def __init__(self, place: Path | str, *, fenced: bool = False, entropy: Entropy | None = None, **how: Any) -> None:
        """Open or make the file, or the tables of the database at a URL. Raises Corrupt if the tables are not ours.

        If `fenced`, each write to the database checks the lease, and raises Fenced if the lease was lost.
        `how` is passed to `CheckpointFile`.
        """
        super().__init__((entropy or SystemEntropy()).uniform)
        self._file = _open(place, fenced=fenced, how=how)
        self.unsaved: dict[asyncio.Future[Any], str] = {}

    @property
    def trouble(self) -> str:
        """The machine fault that blocks the file; empty if there is none."""
        return self._file.writer.trouble or self._file.reader.trouble

    def flush(self) -> None:
        self._file.writer.flush()

    def close(self) -> None:
        """Finish queued work, then close the file."""
        self._file.close()

    async def aclose(self) -> None:
        """Finish queued work, then close the file, without blocking the event loop."""
        await asyncio.to_thread(self.close)

    # Reading

    def _get_tuple(self, config: RunnableConfig) -> _Plan[base.CheckpointTuple | None]:
        """Return the checkpoint that `config` names, or else the newest of its thread and namespace, or None."""
        place = place_of(config)
        return self._reading(lambda c: rows.get(c, *place), lambda found: self.tuple_of(config, place, found))

    get_tuple, aget_tuple = _both(_get_tuple)

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,  # noqa: A002  the interface's name
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[base.CheckpointTuple]:
        """Yield the matching checkpoints, newest first.

        Args:
            config: a thread, optionally with namespace and id; None for all threads.
            filter: required values of the metadata, by key.
            before: return only checkpoints with lesser ids than this one's.

        Raises:
            ValueError: a key of `filter` is invalid.
        """
        where = _matching(config, before, filter)
        for page in _pages(_run_blocking(self._file.reader, lambda c: rows.ids(c, where, limit))):
            yield from self._tuples(page, _run_blocking(self._file.reader, lambda c, page=page: _get_all(c, page)))

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,  # noqa: A002  the interface's name
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[base.CheckpointTuple]:
        """Yield the matching checkpoints, newest first, as :meth:`list` does."""
        where = _matching(config, before, filter)
        for page in _pages(await self._file.reader.run(lambda c: rows.ids(c, where, limit))):
            for each in self._tuples(page, await self._file.reader.run(lambda c, page=page: _get_all(c, page))):
                yield each

    def _get_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> _Plan[Mapping[str, base.DeltaChannelHistory]]:
        """Return, for channels stored as changes, the last whole value and the later changes."""
        place = place_of(config)
        return self._reading(lambda c: rows.changes(c, place, channels, self.serde.loads_typed), lambda found: found)

    get_delta_channel_history, aget_delta_channel_history = _both(_get_delta_channel_history)

    # Writing

    def _put(
        self,
        config: RunnableConfig,
        checkpoint: base.Checkpoint,
        metadata: base.CheckpointMetadata,
        new_versions: base.ChannelVersions,  # noqa: ARG002  the interface's; values stand in the checkpoint itself
    ) -> _Plan[RunnableConfig]:
        """Store a checkpoint after the checkpoint that `config` names; return the new checkpoint's config."""
        row, named = self.row_of(config, checkpoint, metadata)
        return self._writing(rows.Rows(table="checkpoints", rows=[row]), lambda _done: named)

    put, aput = _both(_put)

    def _put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> _Plan[None]:
        """Store a task's writes, with the checkpoint that the task ran from."""
        encoded, fixed = self.rows_of(config, writes, task_id, task_path)
        # The checkpoint of the step's results follows at once, so one commit serves both.
        held: dict[str, Any] = {} if fixed else {"hold_s": HELD_S, "results_of": place_of(config)[0]}
        return self._writing(rows.Rows(table="writes", rows=encoded, replace=fixed), **held)

    put_writes, aput_writes = _both(_put_writes)

    def _delete_thread(self, thread_id: str) -> _Plan[None]:
        return self._prune([str(thread_id)], strategy="delete")

    delete_thread, adelete_thread = _both(_delete_thread)

    def _delete_for_runs(self, run_ids: Sequence[str]) -> _Plan[None]:
        """Delete the checkpoints of these runs and their writes, even if a later checkpoint builds on them."""
        return self._writing(lambda c: rows.drop_runs(c, run_ids))

    delete_for_runs, adelete_for_runs = _both(_delete_for_runs)

    def _copy_thread(self, source_thread_id: str, target_thread_id: str) -> _Plan[None]:
        refuse_nul(str(source_thread_id), str(target_thread_id))
        refuse_long(str(target_thread_id))
        return self._writing(lambda c: rows.copy_thread(c, str(source_thread_id), str(target_thread_id)))

    copy_thread, acopy_thread = _both(_copy_thread)

    def _prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> _Plan[None]:
        """Keep only the checkpoints that each thread needs to continue (`keep_latest`), or none (`delete`)."""
        refuse_nul(*thread_ids)
        if strategy == "delete":
            return self._writing(lambda c: rows.drop_threads(c, thread_ids))
        if strategy != "keep_latest":
            raise ValueError(f"unknown strategy {strategy!r}: keep_latest or delete")
        return self._writing(lambda c: rows.keep_newest_of(c, thread_ids, self.serde.loads_typed))

    prune, aprune = _both(_prune)

    async def aprune_ended(self, thread_id: str) -> None:
        """Prune a thread that is at its end, including all data of single runs of subgraphs."""
        work = self._leased(lambda c: rows.keep_newest(c, thread_id, self.serde.loads_typed, at_end=True))
        await self._file.writer.run(work, hold_s=PRUNED_S)

    async def asaved(self, thread_id: str) -> None:
        """Wait until all task results of a thread on this event loop are on disk. Raises a failed write's error."""
        loop = asyncio.get_running_loop()
        unsaved = [one for one, of in [*self.unsaved.items()] if of == thread_id and one.get_loop() is loop]
        if unsaved:
            self.flush()
            done, _ = await asyncio.wait(unsaved)
            for one in done:
                if not one.cancelled():
                    one.result()

    async def acontinue(self, thread_id: str) -> None:
        """Make later ids greater than those of a thread that another machine may have written."""
        await self._file.reader.run(lambda c: rows.continue_ids(c, thread_id, thread_id))

    async def achange(self, work: Callable[[rows.Connection], R]) -> R:
        """Change the tables in one transaction; after a failure, `work` may run a second time."""
        changed: R = await self._file.writer.run(work)
        return changed

    def _reading(self, work: Callable[[Any], Any], read: Callable[[Any], R]) -> _Plan[R]:
        return _Plan(thread=self._file.reader, work=work, read=read)

    def _writing(self, work: Work, read: Callable[[Any], Any] = lambda _done: None, **held: Any) -> _Plan[Any]:
        return _Plan(thread=self._file.writer, work=self._leased(work), read=read, **held)

    def _leased(self, work: Work) -> Work | Leased:
        return Leased(work, current()) if self._file.is_fenced else work

    def _tuples(
        self, places: Sequence[tuple[str, str, str]], found: Sequence[rows.Found | None]
    ) -> Iterator[base.CheckpointTuple]:
        for place, each in zip(places, found, strict=True):
            if (made := self.tuple_of(None, place, each)) is not None:  # None: deleted during the listing
                yield made


def _run_blocking(thread: WorkerThread, work: Any) -> Any:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return thread.run_blocking(work)
    raise asyncio.InvalidStateError(
        "this would block the event loop: await the method of the same name with an a in front, "
        "or run the graph with ainvoke or astream"
    )


def _matching(config: RunnableConfig | None, before: RunnableConfig | None, wanted: Any) -> rows.Wanted:
    limit = None if before is None else base.get_checkpoint_id(before) or ""
    matching = rows.matching(config["configurable"] if config is not None else None, limit, wanted)
    refuse_nul(*matching.columns.values())
    return matching


def _pages(found: Sequence[tuple[str, str, str]]) -> Iterator[Sequence[tuple[str, str, str]]]:
    return (found[start : start + _PAGE] for start in range(0, len(found), _PAGE))


def _get_all(connection: Any, places: Sequence[tuple[str, str, str]]) -> Sequence[rows.Found | None]:
    return [rows.get(connection, *place) for place in places]


def _open(place: Path | str, *, fenced: bool, how: Mapping[str, Any]) -> Checkpoints:
    if isinstance(place, Path):
        return CheckpointFile(place, **how)
    shared: Checkpoints = required("shared-checkpoints", place, fenced)
    return shared


async def open_saver(place: Path | str, **how: Any) -> GroupedSaver:
    """Open or make the file, mode 0600, or the tables of a database. Raises Corrupt if the tables are not ours."""
    return await asyncio.to_thread(GroupedSaver, place, **how)
