"""Graphs as authors write them, and the bench that runs them."""

import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest_asyncio

from tests.integration.runtime.harness import Bench
from turnkeeper.config.home import Home
from turnkeeper.config.settings import AgentSettings, CategorySettings, Settings

TALKER = """
from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition

done = []

@tool
def look(what: str) -> str:
    "Look at something."
    done.append(("look", what))
    return f"{what} is green"

@tool
async def paint(what: str, colour: str) -> str:
    "Paint something."
    done.append(("paint", what, colour))
    return f"{what} is {colour}"

def model(state):
    asked = state["messages"][-1]
    if asked.type == "human" and asked.content.split(":")[0] in ("look", "paint", "workspace_read"):
        name, _, args = asked.content.partition(": ")
        keys = ("what", "colour")
        call = {"name": name, "args": dict(zip(keys, args.split())), "id": f"call-{len(state['messages'])}"}
        return {"messages": [AIMessage("", tool_calls=[call])]}
    return {"messages": [AIMessage(f"I heard: {asked.content}")]}

graph = StateGraph(MessagesState)
graph.add_node("model", model)
graph.add_node("tools", ToolNode([look, paint]))
graph.add_edge(START, "model")
graph.add_conditional_edges("model", tools_condition)
graph.add_edge("tools", "model")
"""

WORKER = """
from dataclasses import dataclass
from typing import TypedDict
from langgraph.config import get_stream_writer
from langgraph.graph import START, StateGraph
from langgraph.runtime import Runtime
from langgraph.types import interrupt

@dataclass
class Context:
    unit: str = "mm"

@dataclass
class Report:
    depth: int

class Given(TypedDict, total=False):
    prompt: str
    depth: int
    wake: float
    ask: str
    pause: int

class State(Given):
    report: Report
    summary: str

def measure(state, runtime: Runtime[Context]):
    if "wake" in state:
        get_stream_writer()({"wake_after_s": state["wake"]})
    return {"report": Report(depth=state.get("depth", 0)), "summary": f"{state['prompt']} in {runtime.context.unit}"}

def ask(state):
    assert type(state["report"]) is Report, type(state["report"])
    if "ask" in state:
        return {"summary": f"{state['ask']} {interrupt({'question': state['ask']})}"}
    if "pause" in state:
        woken = interrupt({"resume_on": "trigger", "timeout_s": state["pause"]})
        return {"summary": f"woken by {woken['fire_id']} with {woken['payload']}"}
    return {}

inner = StateGraph(State, context_schema=Context)
inner.add_node("measure", measure)
inner.add_edge(START, "measure")

graph = StateGraph(State, input_schema=Given, context_schema=Context)
graph.add_node("inner", inner.compile())
graph.add_node("ask", ask)
graph.add_edge(START, "inner")
graph.add_edge("inner", "ask")
"""


WAITER = """
import asyncio
import operator
from typing import Annotated, TypedDict
from langchain_core.messages import AIMessage
from langgraph.graph import START, StateGraph
from langgraph.graph.message import add_messages

reached = asyncio.Event()
gates = []

class Given(TypedDict):
    topic: str

class State(Given):
    log: Annotated[list[str], operator.add]
    messages: Annotated[list, add_messages]

def note(state):
    return {"log": [state["topic"]], "messages": [AIMessage(f"on {state['topic']}")]}

async def wait(state):
    if gates:
        reached.set()
        await gates.pop().wait()
    return {}

graph = StateGraph(State, input_schema=Given)
graph.add_node("note", note)
graph.add_node("wait", wait)
graph.add_edge(START, "note")
graph.add_edge("note", "wait")
"""

THINKER = """
from typing import TypedDict
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langgraph.graph import START, StateGraph
from langgraph.types import interrupt

class State(TypedDict):
    prompt: str
    text: str

def lines():
    while True:
        yield AIMessage("hm", usage_metadata={"input_tokens": 5, "output_tokens": 2, "total_tokens": 7})

model = GenericFakeChatModel(messages=lines())

def think(state):
    return {"text": model.invoke(state["prompt"]).text}

async def ask(state):
    sure = interrupt({"question": "sure?"})
    return {"text": (await model.ainvoke(sure)).text}

graph = StateGraph(State)
graph.add_node("think", think)
graph.add_node("ask", ask)
graph.add_edge(START, "think")
graph.add_edge("think", "ask")
"""

SPENDER = THINKER.replace(
    """def think(state):
    return {"text": model.invoke(state["prompt"]).text}""",
    """import asyncio
reached = asyncio.Event()

async def think(state):
    await model.ainvoke(state["prompt"])
    reached.set()
    await asyncio.Event().wait()""",
)

BYPASS = TALKER.replace("ToolNode([look, paint])", "OwnNode([look, paint])").replace(
    "def model(state)",
    """class OwnNode(ToolNode):
    def invoke(self, input, config=None, **kwargs):
        return super().invoke(input, config, **kwargs)

def model(state)""",
)
KEEPER = """
from langchain_core.messages import AIMessage
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.runtime import Runtime

async def keep(state, runtime: Runtime):
    kept = await runtime.store.aget(("channel",), "place")
    at = kept.value["at"] + 1 if kept else 1
    if "secret" in state["messages"][-1].content:
        await runtime.store.aput(("channel", "secret"), "place", {"at": at})
    await runtime.store.aput(("channel",), "place", {"at": at})
    return {"messages": [AIMessage(f"at {at}")]}

graph = StateGraph(MessagesState)
graph.add_node("keep", keep)
graph.add_edge(START, "keep")
"""
MEMORY = """
name = "work"
autonomous = true
[scopes]
tools = ["memory.read", "memory.put"]
memory = ["channel"]
"""


class AuthorsBench(Bench):
    """A bench whose graph is the one that its settings name."""

    _build = None  # type: ignore[assignment]

    @property
    def file(self) -> Path:
        return self.home.root.parent / f"project_{self.home.root.parent.name[3:]}.py"

    def bring(self, text: str, **settings: Any) -> None:
        """Write the author's graph beside the home, and name it in the settings."""
        self.file.write_text(text)
        agents = {"agent0": AgentSettings(graph=f"../{self.file.name}:graph")}
        allowed = CategorySettings(autonomous_allowed=("work", "quiet"), **settings)
        self.settings = Settings(agents=agents, categories=allowed)

    @property
    def module(self) -> Any:
        return sys.modules[self.file.stem]


@pytest_asyncio.fixture
async def bench(home: Home) -> AsyncIterator[AuthorsBench]:
    made = AuthorsBench(home)
    before = list(sys.path)
    yield made
    if hasattr(made, "runtime"):
        await made.close()
    sys.path[:] = before


async def talking(bench: AuthorsBench, *tools: str, **category: Any) -> AuthorsBench:
    bench.bring(TALKER)
    bench.category("work", tools=tools, **category)
    await bench.open()
    return bench


async def working(bench: AuthorsBench) -> AuthorsBench:
    bench.bring(WORKER)
    await bench.open()
    return bench


async def keeping(bench: AuthorsBench) -> AuthorsBench:
    bench.bring(KEEPER)
    (bench.home.categories / "work.toml").write_text(MEMORY)
    await bench.open()
    return bench
