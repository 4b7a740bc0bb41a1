"""Checkpoints in a PostgreSQL that several machines share: ours with the lease proved, beside the stock saver.

The server is one of this run's own, with every commit synced. `python -m benchmarks.bench_shared` prints the table.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

from agent_runtime.graph.checkpointer.saver import GroupedSaver
from agent_runtime.store.leases import under
from benchmarks.places import place
from benchmarks.report import Section, ratio, spread
from tests.support import postgres
from tests.support.cluster import taken
from tests.support.saving import at, checkpoint

AT_ONCE, STEPS = (1, 16), 60
DURABLE = {"fsync": "on", "synchronous_commit": "on", "full_page_writes": "on"}
META: Any = {"source": "loop", "step": 1}
Opened = Callable[[str, Path], AbstractAsyncContextManager[Any]]


@asynccontextmanager
async def stock(url: str, _folder: Path) -> AsyncIterator[Any]:
    """LangGraph's PostgreSQL saver on a pool, as its documentation has it."""
    from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
    from psycopg.rows import dict_row
    from psycopg_pool import AsyncConnectionPool

    how = {"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row}
    async with AsyncConnectionPool(url, max_size=16, kwargs=how, open=False) as pool:
        saver = AsyncPostgresSaver(pool)  # type: ignore[arg-type]
        await saver.setup()
        yield saver


@asynccontextmanager
async def unfenced(url: str, _folder: Path) -> AsyncIterator[Any]:
    saver = GroupedSaver(url)
    yield saver
    saver.close()


@asynccontextmanager
async def fenced(url: str, _folder: Path) -> AsyncIterator[Any]:
    where, lease = taken(url)
    saver = GroupedSaver(where, fenced=True)
    with under(lease):
        yield saver
    saver.close()


@asynccontextmanager
async def on_file(_url: str, folder: Path) -> AsyncIterator[Any]:
    saver = GroupedSaver(folder / "checkpoints.db")
    yield saver
    saver.close()


KINDS: dict[str, Opened] = {"stock": stock, "fenced": fenced, "unfenced": unfenced, "file": on_file}


async def rate(opened: Opened, url: str, folder: Path, at_once: int) -> float:
    """Return steps a second: each writes what a task gave and the checkpoint behind it, and waits for the disk."""
    async with opened(url, folder) as saver:

        async def thread(name: str, steps: int) -> None:
            place = at(name)
            for step in range(steps):
                place = await saver.aput(place, checkpoint(f"id-{step:04}", messages=["x" * 400] * 4), META, {})
                await saver.aput_writes(place, [("messages", "y" * 400)], f"task-{step}")

        await thread("first", 5)  # pays for what the others find ready
        begun = time.perf_counter()
        await asyncio.gather(*(thread(f"thread-{number}", STEPS) for number in range(at_once)))
        return at_once * STEPS / (time.perf_counter() - begun)


def shared(repetitions: int) -> Section:
    """Measure savers in turn, each round on databases of its own."""
    rates: dict[tuple[int, str], list[float]] = {(n, kind): [] for n in AT_ONCE for kind in KINDS}
    binaries = postgres.find_binaries()
    assert binaries is not None, "PostgreSQL is not installed: make test-services"
    server = postgres.Server(binaries, DURABLE)
    try:
        for number in range(repetitions):
            print(f"shared checkpoints: run {number + 1} of {repetitions}", flush=True)
            for (at_once, kind), found in rates.items():
                with place() as folder:
                    found.append(asyncio.run(rate(KINDS[kind], server.create(), folder, at_once)))
    finally:
        server.stop()
    return _section(rates)


def _section(rates: dict[tuple[int, str], list[float]]) -> Section:
    def pairs(at_once: int, over: str, under_: str) -> list[float]:
        return [a / b for a, b in zip(rates[at_once, over], rates[at_once, under_], strict=True)]

    rows = [
        (str(n), *(spread(rates[n, kind]) for kind in KINDS), ratio(rates[n, "fenced"], rates[n, "stock"], 2))
        for n in AT_ONCE
    ]
    return Section(
        title=SHARED,
        about=ABOUT,
        header=("at once", "stock saver", "ours, lease proved", "ours, not proved", "our file", "proved / stock"),
        rows=rows,
        gates={
            "shared checkpoints 16 at once, ours / stock saver": pairs(16, "fenced", "stock"),
            "shared checkpoints 16 at once, ours / our file": pairs(16, "fenced", "file"),
            "shared checkpoints 16 at once, not proved / proved": pairs(16, "unfenced", "fenced"),
        },
    )


SHARED = "Checkpoints in a shared database"
ABOUT = """
Steps a second of so many threads at once in one process: a checkpoint and what a task wrote, each waited for until it
is on disk. A PostgreSQL on this machine that syncs every commit: LangGraph's AsyncPostgresSaver on a pool of 16
connections, and our saver, which proves the lease of its turn in its commits, or does not. Beside them our saver on a
SQLite file.
"""
if __name__ == "__main__":
    print(shared(3).text())
