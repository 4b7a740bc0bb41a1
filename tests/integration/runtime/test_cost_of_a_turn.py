"""What one turn with a tool call costs in changes of threads, commits and syncs: numbers that no machine's speed changes.

Who makes a turn cheaper lowers them here. Who makes it dearer finds out here, and has to say why.
"""

import asyncio
import os
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import langchain
import pytest
from langchain_core.messages import AIMessage
from packaging.version import Version
from sqlalchemy import Connection

from agent_runtime.graph.checkpointer import groups, saver
from agent_runtime.service import reads
from agent_runtime.turns import worker
from tests.integration.runtime.harness import PATIENCE_S, STATES, Bench
from tests.support.clock import look_again
from tests.support.scripted import calls
from turnkeeper.storage import database
from turnkeeper.v1 import agent_runtime_pb2 as wire

# Checkpoints: its input, and one for each step, with what the step wrote. Before LangChain 1.4, a hook after each call of a
# model is a step of its own: see `agent_runtime.graph.models.call`.
PUT = 5 if Version(langchain.__version__) >= Version("1.4") else 7
THREADS = {
    "db-agent": 3,  # is the fire known; the turn begins; it ends
    "checkpoints-read": 2,  # the newest of its thread: before it is decided, and by LangGraph
    "checkpoints-write": PUT,
    "inbox": 3,  # put, claimed, archived
    "graph": 2,  # LangChain's, for each call of a model that is not async
}
COMMITS = {"db-agent": 3, "checkpoints-write": PUT}  # the first of the store changes nothing, and needs no sync
SYNCED_FILES = 3  # the envelope and its folder, and the folder of those that were dealt with


class _Call:
    async def send_initial_metadata(self, _metadata: Any) -> None: ...


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> dict[str, Counter[str]]:
    """Count what happens; and let no clock decide what is written together."""
    for module, name in ((saver, "HELD_S"), (saver, "PRUNED_S"), (worker, "POLL_S")):
        monkeypatch.setattr(module, name, 3600.0)
    found: dict[str, Counter[str]] = {"threads": Counter(), "commits": Counter(), "syncs": Counter()}

    def count(owner: Any, name: str, kind: str, what: Any) -> None:
        original = getattr(owner, name)

        def counting(*args: Any, **kwargs: Any) -> Any:
            found[kind][what(args)] += 1
            return original(*args, **kwargs)

        monkeypatch.setattr(owner, name, counting)

    count(database.WorkerThread, "_put", "threads", lambda args: args[0]._threads[0].name)
    count(ThreadPoolExecutor, "submit", "threads", lambda args: args[0]._thread_name_prefix.replace("asyncio", "graph"))
    count(database, "_run_batch", "commits", lambda _args: "db-agent")
    count(groups.Checkpoints, "_write", "commits", lambda _args: "checkpoints-write")
    for name in ("fsync", "fdatasync"):
        count(os, name, "syncs", lambda _args: "files")
    return found


async def test_a_turn_with_one_tool_call_changes_threads_commits_and_syncs_so_often(
    home: Any, counted: dict[str, Counter[str]]
) -> None:
    bench = Bench(home)
    bench.script["go"] = [calls(("note", {"text": "hello"})), AIMessage("It is noted.")]
    await bench.open()
    events: Counter[int] = Counter()

    async def watch() -> None:
        async for event in bench.service.WatchTurns(wire.WatchTurnsRequest(), _Call()):
            events[event.state] += 1

    watching = asyncio.create_task(watch())
    try:
        for number in (1, 2):  # the first pays for what the others find ready
            for one in counted.values():
                one.clear()
            await bench.accept(bench.fire(number, thread_id=f"thread-{number}"))
            async with asyncio.timeout(PATIENCE_S):
                while events[STATES.SUCCEEDED] < number:
                    await look_again()
            await bench.rest()  # until it is archived
        found = {kind: dict(one) for kind, one in counted.items()}
    finally:
        watching.cancel()
        await bench.close()
    assert found == {"threads": THREADS, "commits": COMMITS, "syncs": {"files": SYNCED_FILES}}


async def test_turns_and_a_conversation_are_read_by_as_many_statements_however_long_they_are(home: Any) -> None:
    """Where the store is a server's, each is a round trip."""
    bench = Bench(home)
    await bench.open()

    def statements(connection: Connection, read: Callable[[Connection], Sequence[object]]) -> tuple[int, int]:
        asked: list[str] = []
        driver: Any = connection.connection.driver_connection
        driver.set_trace_callback(asked.append)
        found = read(connection)
        driver.set_trace_callback(None)
        return len(found), len(asked)

    try:
        for number in (1, 2, 3):
            await bench.run(number)
        for read in (
            lambda most: lambda c: reads.list_turns(c, wire.ListTurnsRequest(limit=most)).turns,
            lambda most: lambda c: reads.newest_turns(c, ("main", ""), limit=most).shown,
        ):
            (one, of_one), (all_, of_all) = [await bench.runtime.store.read(statements, read(most)) for most in (1, 3)]
            assert (one, all_) == (1, 3)
            assert of_all == of_one
    finally:
        await bench.close()


MOST_PAGES_MB = 32


async def test_what_a_runtime_keeps_of_its_files_in_memory_is_bounded(home: Any) -> None:
    """A daemon's memory grew with its files, turn by turn, up to what its connections may keep: 112 MB."""
    bench = Bench(home)
    await bench.open()
    store: Any = bench.runtime.store
    kept: Any = bench.runtime.checkpoints
    drivers = [one.connection.driver_connection for one in (*store._database._connections, store._database._near)]
    try:
        pages_kb = [_cache_kb(one) for one in (*drivers, *kept._file.connections)]
    finally:
        await bench.close()
    assert len(pages_kb) == 4
    assert sum(pages_kb) <= MOST_PAGES_MB * 1024


def _cache_kb(connection: Any) -> int:
    (size,) = connection.execute("PRAGMA cache_size").fetchone()
    assert size < 0, "in pages, whose size may be another"
    return int(-size)
