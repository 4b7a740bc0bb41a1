"""The agent whose turns are measured: one model call, one tool call, one more model call; on our runtime or bare."""

import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiosqlite
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.tools import tool
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

from agent_runtime.daemon.assembly import assemble
from agent_runtime.graph.checkpointer.saver import GroupedSaver
from agent_runtime.model.turn import TurnContext
from agent_runtime.service.servicer import Servicer
from tests.support.scripted import ScriptedModel, calls
from turnkeeper.config.home import Home
from turnkeeper.config.settings import CategorySettings, Settings
from turnkeeper.v1 import agent_runtime_pb2 as wire

STATES = wire.TurnEvent.State
SCRIPT = {"go": [calls(("note", {"text": "hello"})), AIMessage("It is noted.")]}
CATEGORY = """
name = "work"
autonomous = true
[scopes]
tools = ["tool:note"]
"""


@tool
async def note(text: str) -> str:
    """Note a text."""
    return f"noted {text}"


class Bare:
    """The agent on LangGraph alone."""

    def __init__(self, saver: Any) -> None:
        self._graph = create_agent(ScriptedModel(script=SCRIPT), [note], checkpointer=saver)
        self._options: dict[str, Any] = {"durability": "sync"} if saver is not None else {}

    async def turn(self, number: int, *, thread: str = "") -> None:
        config = {"configurable": {"thread_id": thread or f"thread-{number}"}}
        await self._graph.ainvoke({"messages": [HumanMessage("go")]}, config, **self._options)


@asynccontextmanager
async def without_saver() -> AsyncIterator[Bare]:
    yield Bare(None)


@asynccontextmanager
async def on_stock_saver() -> AsyncIterator[Bare]:
    with tempfile.TemporaryDirectory(prefix="tk-") as folder:
        async with aiosqlite.connect(Path(folder) / "checkpoints.db") as connection:
            await connection.execute("PRAGMA journal_mode=WAL")
            await connection.execute("PRAGMA synchronous=FULL")
            saver = AsyncSqliteSaver(connection, serde=JsonPlusSerializer(allowed_msgpack_modules=None))
            await saver.setup()
            yield Bare(saver)


@asynccontextmanager
async def on_our_saver() -> AsyncIterator[Bare]:
    with tempfile.TemporaryDirectory(prefix="tk-") as folder:
        saver = GroupedSaver(Path(folder) / "checkpoints.db")
        yield Bare(saver)
        saver.close()


class _Call:
    """What a servicer is told of the call, where there is no wire."""

    async def send_initial_metadata(self, _metadata: Any) -> None: ...


class Whole:
    """The agent on our runtime: a fire is accepted, and its turn is over when the event that says so has been read."""

    def __init__(self, service: Servicer, incarnation: str) -> None:
        self._service = service
        self._ends: dict[str, asyncio.Future[None]] = {}
        self._watching = asyncio.create_task(self._watch(incarnation))

    async def turn(self, number: int, *, thread: str = "") -> None:
        request = wire.FireRequest(
            fire_id=f"task-00000001@{number + 1}",
            task_id="task-00000001",
            task_name="digest",
            attempt=1,
            prompt="go",
            category="work",
            channel="main",
            kind="manual",
            thread_id=thread or f"thread-{number}",
        )
        request.nominal_at.FromSeconds(1_790_000_000 + number)
        receipt = await self._service.Fire(request, None)
        end = self._ends.setdefault(receipt.turn_id, asyncio.get_running_loop().create_future())
        await asyncio.wait([end, self._watching], return_when=asyncio.FIRST_COMPLETED)
        assert end.done(), f"nobody watches any more: {self._watching}"

    async def _watch(self, incarnation: str) -> None:
        async for event in self._service.WatchTurns(wire.WatchTurnsRequest(incarnation=incarnation), _Call()):
            assert event.state in {STATES.STARTED, STATES.SUCCEEDED}, STATES.Name(event.state)
            if event.state == STATES.SUCCEEDED:
                self._ends.setdefault(event.turn_id, asyncio.get_running_loop().create_future()).set_result(None)

    async def close(self) -> None:
        self._watching.cancel()
        await asyncio.gather(self._watching, return_exceptions=True)


@asynccontextmanager
async def on_our_runtime(place: Path | None = None) -> AsyncIterator[Whole]:
    """Everything on: envelope, turn table, guard, checkpoints, conversation, events."""
    with tempfile.TemporaryDirectory(prefix="tk-") as folder:
        home = Home(root=place or Path(folder) / "home")
        home.create()
        (home.categories / "work.toml").write_text(CATEGORY)
        settings = Settings(categories=CategorySettings(autonomous_allowed=("work",)))
        async with assemble(home, settings, environ={}, build=_build) as runtime:
            await runtime.worker.start()
            whole = Whole(Servicer(runtime), runtime.store.incarnation)
            yield whole
            await whole.close()
            await runtime.worker.stop(5.0)
            runtime.mailboxes.close()


def _build(_specs: Any, middleware: Any, saver: Any) -> Any:
    model = ScriptedModel(script=SCRIPT)
    return create_agent(model, [note], middleware=middleware, context_schema=TurnContext, checkpointer=saver)
