"""The measured agent's turns as users run them on a PostgreSQL without Turnkeeper, up to 16 at once.

On LangGraph's stock saver alone, nothing queues or retries a turn. In a job of Procrastinate, a turn is queued and uses
the stock saver. In a workflow of DBOS, each call of the model and of the tool is a durable step, without LangGraph.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path

import procrastinate
from dbos import DBOS, DBOSConfig

from benchmarks.agents import SCRIPT, Bare, note
from benchmarks.bench_shared import stock
from benchmarks.peers import answer
from tests.support.scripted import ScriptedModel

AT_ONCE = 16
Run = Callable[[range], Awaitable[object]]


def main(folder: str) -> None:
    """Answer, for one of :data:`WAYS`, a database and a range of turns, how many seconds they took."""
    assert Path(folder).is_dir()
    with asyncio.Runner() as runner:
        stack, ways = AsyncExitStack(), dict[str, Run]()

        async def turns(way: str, url: str, begin: int, end: int) -> float:
            if way not in ways:
                ways[way] = await stack.enter_async_context(WAYS[way](url))
            begun = time.perf_counter()
            await ways[way](range(begin, end))
            return time.perf_counter() - begun

        answer(turns=lambda **asked: runner.run(turns(**asked)))


@asynccontextmanager
async def on_saver(url: str) -> AsyncIterator[Run]:
    async with stock(url, Path()) as saver:
        agent, gate = Bare(saver), asyncio.Semaphore(AT_ONCE)

        async def turn(number: int) -> None:
            async with gate:
                await agent.turn(number)

        yield lambda numbers: asyncio.gather(*map(turn, numbers))


@asynccontextmanager
async def in_jobs(url: str) -> AsyncIterator[Run]:
    app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=url))
    async with app.open_async(), stock(url, Path()) as saver:
        await app.schema_manager.apply_schema_async()
        agent = Bare(saver)

        @app.task(name="turn")
        async def turn(number: int) -> None:
            await agent.turn(number)

        async def run(numbers: range) -> None:
            await turn.batch_defer_async(*({"number": number} for number in numbers))
            await app.run_worker_async(concurrency=AT_ONCE, wait=False, install_signal_handlers=False)

        yield run


@asynccontextmanager
async def in_workflows(url: str) -> AsyncIterator[Run]:
    model = ScriptedModel(script=SCRIPT)

    @DBOS.step()
    async def ask(messages: list[object]) -> object:
        return await model.ainvoke(messages)

    @DBOS.step()
    async def use(call: dict[str, object]) -> object:
        return await note.ainvoke(call)

    @DBOS.workflow()
    async def turn(_number: int) -> None:
        messages: list[object] = [("user", "go")]
        messages.append(await ask(messages))
        messages.append(await use(messages[-1].tool_calls[0]))
        messages.append(await ask(messages))

    DBOS(config=DBOSConfig(name="turns", system_database_url=url, log_level="ERROR"))
    DBOS.launch()
    await DBOS.register_queue_async("turns", worker_concurrency=AT_ONCE)

    async def run(numbers: range) -> None:
        handles = [await DBOS.enqueue_workflow_async("turns", turn, number) for number in numbers]
        for handle in handles:
            await handle.get_result()

    yield run
    DBOS.destroy()


WAYS: dict[str, Callable[[str], AbstractAsyncContextManager[Run]]] = {
    "saver": on_saver,
    "jobs": in_jobs,
    "workflows": in_workflows,
}
