"""Import of threads from a LangGraph user's file: read the file, then write checkpoints and turns, all or none."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from datetime import datetime
from pathlib import Path
from typing import Any

from sqlalchemy import Connection

from agent_runtime.graph.checkpointer import threads_file
from agent_runtime.graph.checkpointer.saver import GroupedSaver, open_saver
from agent_runtime.graph.engine.states import past_turns
from agent_runtime.model.graphs import Catalog
from agent_runtime.model.trigger import FIRST_AGENT, Trigger
from agent_runtime.model.turn import LONGEST_SUMMARY
from agent_runtime.permissions.categories import Categories
from agent_runtime.service.requests import CONVERSATION, GetCategory, read_label, usable
from agent_runtime.store import turn_reads, turn_writes
from agent_runtime.store.database import open_database
from agent_runtime.store.schema import handover
from agent_runtime.store.turn_store import Store
from turnkeeper.bus.envelope import turn_id_of
from turnkeeper.clock import SystemClock
from turnkeeper.config.home import Home
from turnkeeper.config.settings import load_settings, staffed
from turnkeeper.config.surfaces import offered
from turnkeeper.entropy import SystemEntropy
from turnkeeper.errors import Conflict, InvalidInput, Unreachable
from turnkeeper.storage.identity import require
from turnkeeper.times import to_us
from turnkeeper.v1 import agent_runtime_pb2 as wire


class ThreadImport:
    """Importer of threads, one file at a time."""

    def __init__(
        self,
        store: Store,
        checkpoints: GroupedSaver,
        get_category: GetCategory,
        catalog: Catalog,
        go_on: Callable[[str], None],
    ) -> None:
        """Call `go_on` with each thread that waits for its author."""
        self._store = store
        self._checkpoints = checkpoints
        self._get_category = get_category
        self._catalog = catalog
        self._go_on = go_on
        self._one = asyncio.Lock()

    async def import_threads(
        self, request: wire.ImportThreadsRequest, _context: Any = None
    ) -> wire.ImportThreadsResponse:
        """Import the threads of a file; a thread that was already imported unchanged is left unchanged.

        Raises:
            NotFound: the file does not exist, or contains no such thread.
            InvalidInput: the file is not one of LangGraph's saver, or a thread's id is not valid here.
            Conflict: the file is in use, a thread has another history here, or the graph or category does not exist.

        After each of these errors, nothing has been written.
        """
        path = Path(request.path)
        if not path.is_absolute():
            raise InvalidInput("is not an absolute path", where="path")
        grant = usable(request.category or CONVERSATION, self._get_category)
        self._catalog.require(request.graph)
        graph = self._catalog.graph_of(request.graph) if request.graph else ""
        async with self._one:
            with ExitStack() as stack:
                copy = await asyncio.to_thread(stack.enter_context, threads_file.copy_of(path))
                wanted = request.thread_ids
                found = await asyncio.to_thread(threads_file.read_threads, copy, wanted, str(path), past_turns)
                channels = {one.thread_id: _channel(one.thread_id, request.channel) for one in found}
                fresh = [one for one in found if not await self._store.read(is_imported, one)]
                if fresh and not request.dry_run:
                    await self._write(copy, str(path), fresh, channels, {"grant": grant, "graph": graph})
        for one in fresh if not request.dry_run else ():
            if one.waits:
                self._go_on(one.thread_id)
        return wire.ImportThreadsResponse(
            threads=[described(one, channels[one.thread_id], one not in fresh) for one in found]
        )

    async def _write(self, copy: Path, where: str, threads: Sequence[threads_file.PastThread], *rest: Any) -> None:
        """Write checkpoints, then the turns that refer to them. After a kill in between, the import can be repeated."""
        ids = [one.thread_id for one in threads]
        await self._checkpoints.achange(lambda connection: threads_file.take_in(connection, copy, ids, where))
        try:
            await import_all(self._store, threads, *rest)
        except BaseException:
            await self._checkpoints.achange(lambda connection: threads_file.take_out(connection, copy, ids))
            raise


def read_only(request: wire.ImportThreadsRequest) -> wire.ImportThreadsResponse:
    """Return the result of an import into an empty home. Raises like the import, except for conflicts with a home."""
    path = Path(request.path)
    with threads_file.copy_of(path) as copy:
        found = threads_file.read_threads(copy, request.thread_ids, str(path), past_turns)
    threads = [described(one, _channel(one.thread_id, request.channel), unchanged=False) for one in found]
    return wire.ImportThreadsResponse(threads=threads)


def described(thread: threads_file.PastThread, channel: str, unchanged: bool) -> wire.ImportedThread:
    return wire.ImportedThread(
        thread_id=thread.thread_id,
        channel=channel,
        state="unchanged" if unchanged else "imported",
        checkpoints=thread.checkpoints,
        turns=len(thread.turns),
        waits=thread.waits,
    )


def _channel(thread_id: str, channel: str) -> str:
    """Return the channel of a thread. Raises InvalidInput if its name is not valid here."""
    try:
        read_label(thread_id, "thread_id")
    except InvalidInput as error:
        what = f"thread {thread_id[:80]!r} has an id that is not valid here"
        hint = "an id is 1 to 128 printable ASCII characters without a slash; name the other threads with --thread"
        raise InvalidInput(what, where="thread_id", hint=hint) from error
    return read_label(channel, "channel") if channel else thread_id


async def import_alone(home: Home, request: wire.ImportThreadsRequest) -> wire.ImportThreadsResponse:
    """Import threads into a home without a running daemon; load no graph. The caller holds the process's lock."""
    settings = staffed(load_settings(home), home)
    if settings.store.is_shared:
        raise Unreachable("agent-runtime does not run", where="[store]", hint="start it with: turnkeeper up")
    clock, entropy = SystemClock(), SystemEntropy()
    require(home, home.agent_db, home.checkpoints_db)
    with closing(open_database(home.agent_db, upgrade=not request.dry_run)) as database:
        store, saver = await Store.take_over(database, clock, entropy), await open_saver(home.checkpoints_db)
        try:
            catalog = offered("catalog", settings, home) or Catalog()
            parts = store, saver, Categories(home, settings).get, catalog, lambda _thread_id: None
            return await ThreadImport(*parts).import_threads(request)
        finally:
            await saver.aclose()


def is_imported(connection: Connection, thread: threads_file.PastThread) -> bool:
    """Return True if this exact thread was already imported, or False if its id is unknown.

    Raises:
        Conflict: the thread was imported with another history, or a thread with this id began here.
    """
    taken = turn_reads.get_keys(connection, [thread.key]).get(thread.key)
    if taken is not None and taken.digest == thread.digest:
        return True
    name, hint = f"thread {thread.thread_id!r}", "omit it by naming the other threads with --thread"
    if taken is not None:
        raise Conflict(f"{name} continued there after its import, and is left unchanged here", hint=hint)
    if turn_reads.newest_on_thread(connection, thread.thread_id) is not None:
        raise Conflict(f"{name} exists here with another history", hint=hint)
    return False


async def import_all(
    store: Store, threads: Sequence[threads_file.PastThread], channels: Mapping[str, str], given: Mapping[str, Any]
) -> None:
    """Write threads that ran elsewhere with their turns, each into its channel: all or none.

    The last turn of a thread that waits for its author waits here too; its question is read from its checkpoint.
    """
    at = store.clock.now()

    def work(connection: Connection) -> None:
        for thread in threads:
            channel = channels[thread.thread_id]
            import_thread(connection, at, thread, store.right.epoch, channel=channel, **given)
            if store.right.shared:
                handover.look(connection, thread.thread_id, f"imported {to_us(at)}", at)

    await store.write(work)


def import_thread(
    connection: Connection, at: datetime, thread: threads_file.PastThread, epoch: int, **given: Any
) -> None:
    """Write the turns of a thread that ran elsewhere. The last turn waits for its author if the thread does."""
    if is_imported(connection, thread):
        return
    for number, turn in enumerate(thread.turns, 1):
        last = number == len(thread.turns)
        trigger = Trigger(
            source="message",
            key=thread.key,
            turn_id=turn_id_of("import", thread.thread_id, number),
            thread_id=thread.thread_id,
            agent=FIRST_AGENT,
            prompt=turn.prompt,
            digest=thread.digest,
            **given,
        )
        waits = last and thread.waits
        ended = {"status": "interrupted"} if waits else {"status": "succeeded", "ended_at_us": to_us(at)}
        turn_writes.add_turn(connection, trigger, epoch=epoch, at=at, after_message=turn.mark, **ended)
        turn_writes.put_transcript(connection, trigger.turn_id, turn.lines, at, known=0)
        turn_writes.change_turn(
            connection, trigger.turn_id, summary=turn_writes.last_words(connection, trigger.turn_id)[:LONGEST_SUMMARY]
        )
        if last:
            turn_writes.add_key(connection, trigger, became="turn", at=at)
