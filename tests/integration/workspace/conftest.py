"""The workspace over a real store, and a real agent graph on the offline model."""

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from langchain.agents.middleware import AgentMiddleware
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command, interrupt
from sqlalchemy import insert, update

from agent_runtime.graph.agent.default import build_graph
from agent_runtime.graph.context import ToolSpec
from agent_runtime.model.turn import TurnContext
from agent_runtime.permissions.categories import Categories
from agent_runtime.permissions.judge import approve_once, judge
from agent_runtime.store.database import open_database
from agent_runtime.store.idempotency import Call
from agent_runtime.store.schema import messages, turns
from agent_runtime.tools.workspace import workspace_tools
from agent_runtime.workspace.workspace import Workspace
from tests.support.clock import ManualClock
from tests.support.postgres import Places
from tests.support.seeded_entropy import SeededEntropy
from turnkeeper.config.home import Home
from turnkeeper.config.settings import Settings
from turnkeeper.storage.database import Database
from turnkeeper.times import to_us

Told = list[tuple[str, dict[str, Any]]]


@pytest.fixture(scope="session")
def migrated() -> bytes:
    """An empty store, brought up to date once: each migration's sync costs more than most tests."""
    with tempfile.TemporaryDirectory(prefix="tk-") as folder:
        made = Home(root=Path(folder) / "home")
        made.create()
        open_database(made.agent_db).close()
        return made.agent_db.read_bytes()


@pytest.fixture
def place(home: Home, place_of: Places, migrated: bytes) -> Path | str:
    """Where the store is, on whichever database."""
    home.agent_db.write_bytes(migrated)
    return place_of(home.agent_db)


@pytest.fixture
def database(place: Path | str) -> Iterator[Database]:
    opened = open_database(place)
    yield opened
    opened.close()


@pytest.fixture
def told() -> Told:
    return []


@pytest.fixture
def workspace(database: Database, clock: ManualClock, told: Told) -> Workspace:
    return Workspace(database, clock, SeededEntropy(1), lambda event, fields: told.append((event, dict(fields))))


@pytest.fixture
def categories(home: Home) -> Categories:
    return Categories(home, Settings())


Begin = Callable[..., TurnContext]


@pytest.fixture
def begin(database: Database, clock: ManualClock, categories: Categories) -> Begin:
    """Write a running turn's row, as the engine does before a turn starts, and return the turn's context."""

    def make(turn_id: str = "turn-1", **fields: Any) -> TurnContext:
        category = fields.pop("category", None) or categories.get(fields.pop("named", "catch-up-summary"))
        known = {
            "thread_id": f"thread-{turn_id}",
            "channel": "general",
            "agent": "agent0",
            "fire_id": f"fire-{turn_id}",
        }
        context = TurnContext(turn_id=turn_id, category=category, **(known | fields))
        if context.started_by == "author":
            context = replace(context, fire_id="")
        database.submit(lambda connection: connection.execute(insert(turns).values(row_of(context, clock)))).result()
        return context

    return make


def row_of(context: TurnContext, clock: ManualClock) -> dict[str, Any]:
    empty = [
        "task_id",
        "kind",
        "payload_json",
        "timezone",
        "catch_up",
        "traceparent",
        "summary",
        "error",
        "answers_json",
        "resumes",
        "after_message",
    ]
    return dict.fromkeys(empty, "") | {
        "turn_id": context.turn_id,
        "thread_id": context.thread_id,
        "channel": context.channel,
        "agent": context.agent,
        "category": context.category.name,
        "grant_json": "{}",
        "trigger": "fire" if context.fire_id else "author",
        "status": "running",
        "visible": True,
        "fire_id": context.fire_id,
        "attempt": 1,
        "task_name": context.task_name,
        "prompt": context.prompt,
        "read_only": context.read_only,
        "stands_for": context.stands_for,
        "started_at_us": to_us(clock.now()),
        "tries": 1,
        "epoch": 1,
        "tokens_in": 0,
        "tokens_out": 0,
    }  # fmt: skip


@pytest.fixture
def say(database: Database, clock: ManualClock) -> Callable[..., None]:
    """Put a message into a turn's conversation."""

    def put(turn_id: str, role: str, text: str, position: int = 1) -> None:
        row = {
            "turn_id": turn_id, "position": position, "role": role, "text": text,
            "tool_calls_json": "", "tool_call_id": "", "at_us": to_us(clock.now()),
        }  # fmt: skip
        database.submit(lambda connection: connection.execute(insert(messages).values(row))).result()

    return put


@pytest.fixture
def end(database: Database) -> Callable[..., None]:
    def finish(turn_id: str, status: str = "succeeded") -> None:
        change = update(turns).where(turns.c.turn_id == turn_id).values(status=status)
        database.submit(lambda connection: connection.execute(change)).result()

    return finish


def call(context: TurnContext, number: int = 1) -> Call:
    return Call(context=context, key=f"{context.turn_id}|{number}")


class AskingGuard(AgentMiddleware[Any, TurnContext, Any]):
    """The least guard: asks `judge`, interrupts on a no, runs what is approved under `approve_once`."""

    def __init__(self, specs: list[ToolSpec]) -> None:
        super().__init__()
        self._specs = {spec.tool.name: spec for spec in specs}

    async def awrap_tool_call(self, request: Any, handler: Any) -> Any:
        spec, made, context = self._specs[request.tool_call["name"]], request.tool_call, request.runtime.context
        verdict = judge(spec.scope, spec.effect, made["args"], context)
        if verdict.allowed:
            return await handler(request)
        answer = interrupt({"tool": made["name"], "args": made["args"], "missing_scope": verdict.missing_scope})
        if answer != "approve":
            return ToolMessage(content=answer, name=made["name"], tool_call_id=made["id"], status="error")
        once = approve_once(spec.scope, spec.effect, made["args"], context)
        return await handler(replace(request, runtime=replace(request.runtime, context=once)))


@dataclass
class Agent:
    """A graph and what it said."""

    graph: Any
    said: list[BaseMessage] = field(default_factory=list)

    async def run(self, context: TurnContext, prompt: str | None = None, answers: dict[str, str] | None = None) -> Any:
        given = Command(resume=answers) if answers else {"messages": [HumanMessage(prompt or context.prompt)]}
        config = {"configurable": {"thread_id": context.thread_id}}
        state = await self.graph.ainvoke(given, config, context=context)
        self.said = state["messages"]
        return state

    @property
    def calls(self) -> list[str]:
        return [made["name"] for message in self.said if isinstance(message, AIMessage) for made in message.tool_calls]

    @property
    def text(self) -> str:
        return self.said[-1].text


@pytest.fixture
def agent(home: Home, workspace: Workspace, clock: ManualClock) -> Agent:
    specs = workspace_tools(workspace)
    return Agent(
        build_graph(
            Settings(),
            home,
            specs,
            middleware=[AskingGuard(specs)],
            checkpointer=InMemorySaver(),
            clock=clock,
            environ={},
        )
    )
