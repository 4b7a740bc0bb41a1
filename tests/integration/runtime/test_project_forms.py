"""Every form in which LangGraph's own server takes a graph runs: it takes a turn, asks, and goes on after a crash."""

import json

import pytest

from tests.integration.runtime import authors_graphs
from tests.integration.runtime.authors_graphs import MEMORY, AuthorsBench
from tests.integration.runtime.harness import STATES

bench = authors_graphs.bench

STATE = """
from __future__ import annotations
import asyncio
import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypedDict
from langchain_core.messages import AIMessage, AnyMessage
from langchain_core.runnables import RunnableConfig
from langgraph.func import entrypoint, task
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import interrupt
from pydantic import BaseModel
if TYPE_CHECKING:
    from langgraph_sdk.runtime import ServerRuntime

done = []
given = {}

class State(TypedDict, total=False):
    prompt: str
    text: str

def note(state):
    done.append(state["prompt"])
    return {}

def ask(state):
    return {"text": f"{state['prompt']}: {interrupt('sure?')}"}

builder = StateGraph(State)
builder.add_node("note", note)
builder.add_node("ask", ask)
builder.add_edge(START, "note")
builder.add_edge("note", "ask")

@task
def noted(text: str) -> str:
    done.append(text)
    return text

def work(prompt: str) -> str:
    text = noted(prompt).result()
    return f"{text}: {interrupt('sure?')}"
"""

FORMS = {
    "uncompiled": "graph = builder",
    "compiled": "graph = builder.compile()",
    "factory": "def graph(): return builder",
    "factory with a config": "def graph(config: RunnableConfig):\n    given.update(config)\n    return builder.compile()",
    "factory with one argument": "def graph(anything):\n    given.update(anything)\n    return builder",
    "factory with a runtime": (
        "def graph(runtime: ServerRuntime[Any]):\n"
        "    given['for'] = (runtime.access_context, runtime.execution_runtime is runtime, runtime.user)\n"
        "    return builder"
    ),
    "factory with both": (
        "async def graph(runtime: ServerRuntime, config: RunnableConfig):\n"
        "    given.update(config, runtime=runtime)\n"
        "    return builder"
    ),
    "async context manager": (
        "@contextlib.asynccontextmanager\n"
        "async def graph(config):\n    done.append('opened')\n    yield builder\n    done.append('closed')"
    ),
    "context manager": "@contextlib.contextmanager\ndef graph():\n    yield builder.compile()",
    "entrypoint": "graph = entrypoint()(work)",
    "async entrypoint": (
        "@entrypoint()\nasync def graph(prompt: str) -> str:\n"
        "    text = await noted(prompt)\n    return f\"{text}: {interrupt('sure?')}\""
    ),
    "factory of an entrypoint": "def graph(config):\n    return entrypoint()(work)",
}


@pytest.mark.parametrize("form", FORMS)
async def test_a_graph_of_any_form_takes_a_turn_and_goes_on_after_a_crash(bench: AuthorsBench, form: str) -> None:
    bench.bring(STATE + FORMS[form])
    await bench.open()
    event = await bench.run(prompt="paint")
    assert event.state == STATES.INTERRUPTED, event.error
    (asked,) = await bench.pending()
    await bench.crash()
    await bench.resolve(asked.interrupt_id, "answer", message="yes")
    event = await bench.stopped(event.turn_id, after=event.sequence)
    assert event.state == STATES.SUCCEEDED, event.error
    told = json.loads(event.summary)["text"] if event.summary.startswith("{") else event.summary
    assert told == "paint: yes"
    assert bench.module.done.count("paint") == 1, "what had finished ran once"


async def test_a_factory_is_given_what_it_asks_for_and_its_context_manager_stays_open(bench: AuthorsBench) -> None:
    bench.bring(STATE + FORMS["factory with both"] + KEEPS)
    (bench.home.categories / "work.toml").write_text(MEMORY)
    await bench.open()
    assert bench.module.given["configurable"] == {}
    assert [(await bench.run(number)).summary for number in (1, 2)] == ["1", "2"], "the store of the runtime is memory"


KEEPS = """
@entrypoint()
async def workflow(prompt: str) -> str:
    store = given["runtime"].store
    kept = await store.aget(("channel",), "count")
    count = kept.value["n"] + 1 if kept else 1
    await store.aput(("channel",), "count", {"n": count})
    return str(count)

builder = workflow
"""

TAKES = """
@dataclass
class Place:
    name: str
    depth: int = 0

class Model(BaseModel):
    name: str

class Fields(TypedDict, total=False):
    prompt: str
    name: str

class Chat(TypedDict):
    messages: list[AnyMessage]

@entrypoint()
def text(value: str): return f"{type(value).__name__} {value}"
@entrypoint()
def anything(value): return f"{type(value).__name__} {value}"
@entrypoint()
def number(value: int): return value + 1
@entrypoint()
def data(value: dict): return value
@entrypoint()
def fields(value: Fields): return value
@entrypoint()
def place(value: Place): return f"{value.name} {value.depth} {interrupt('deep?')}"
@entrypoint()
def model(value: Model) -> Model: return Model(name=value.name.upper())
@entrypoint()
def talk(value: list[AnyMessage]): return AIMessage("I heard: " + value[-1].content)
@entrypoint()
def chat(value: Chat): return {"messages": [*value["messages"], AIMessage("I heard: " + value["messages"][-1].content)]}
@entrypoint()
def nothing(value: str): return None
"""


@pytest.mark.parametrize(
    ("workflow", "payload", "said"),
    [
        ("text", "", "str go"),
        ("text", '{"a": 1}', 'str go\n\nPayload: {"a": 1}'),
        ("text", '{"input": "given"}', "str given"),
        ("anything", "", "str go"),
        ("anything", '{"input": [1]}', "list [1]"),
        ("number", '{"input": 3}', "4"),
        ("data", '{"a": 1}', '{"a": 1, "prompt": "go"}'),
        ("fields", '{"name": "x"}', '{"name": "x", "prompt": "go"}'),
        ("model", '{"name": "x"}', '{"name": "X"}'),
        ("talk", "", "I heard: go"),
        ("chat", "", "I heard: go"),
        ("nothing", "", "nothing to do this fire"),
    ],
)
async def test_a_workflow_of_functions_takes_and_gives_values_of_any_type(
    bench: AuthorsBench, workflow: str, payload: str, said: str
) -> None:
    bench.bring(f"{STATE}{TAKES}graph = {workflow}")
    await bench.open()
    event = await bench.run(payload_json=payload)
    assert event.state == STATES.SUCCEEDED, event.error
    (turn,) = await bench.conversation()
    assert [line.text for line in turn.messages if line.role == "agent"] == [said]


async def test_an_object_that_a_workflow_takes_is_one_after_a_crash(bench: AuthorsBench) -> None:
    bench.bring(f"{STATE}{TAKES}graph = place")
    await bench.open()
    assert "the graph's input lacks 'name'" in (await bench.run(1)).error
    event = await bench.run(2, payload_json='{"name": "pond"}')
    (asked,) = await bench.pending()
    await bench.crash()
    await bench.resolve(asked.interrupt_id, "answer", message="very")
    event = await bench.stopped(event.turn_id, after=event.sequence)
    assert (event.state, event.summary) == (STATES.SUCCEEDED, "pond 0 very"), event.error


STATEFUL = """
class Counted(TypedDict, total=False):
    count: int
    inner: int
    kept: int

class Inner(TypedDict, total=False):
    inner: int
    hidden: int

async def count(state, runtime):
    kept = await runtime.store.aget(("channel",), "n")
    at = kept.value["n"] + 1 if kept else 1
    await runtime.store.aput(("channel",), "n", {"n": at})
    return {"count": state.get("count", 0) + 1, "kept": at}

inside = StateGraph(Inner)
inside.add_node("add", lambda state: {"hidden": state.get("hidden", 0) + 1, "inner": state.get("hidden", 0) + 1})
inside.add_edge(START, "add")
outer = StateGraph(Counted)
outer.add_node("count", count)
outer.add_node("inside", inside.compile(checkpointer=True))
outer.add_edge(START, "count")
outer.add_edge("count", "inside")

@entrypoint()
def saved(prompt: str, *, previous: int | None = None) -> entrypoint.final[str, int]:
    return entrypoint.final(value=f"turn {previous or 0}", save=(previous or 0) + 1)
"""


async def test_a_fire_sees_what_an_earlier_one_left_in_state_store_and_subgraph(bench: AuthorsBench) -> None:
    bench.bring(f"{STATE}{STATEFUL}graph = outer".replace("async def count(state, runtime)", RUNTIME))
    (bench.home.categories / "work.toml").write_text(MEMORY)
    await bench.open()
    await bench.run(1)
    await bench.crash()
    event = await bench.run(2)
    assert json.loads(event.summary or event.error) == {"count": 2, "inner": 2, "kept": 2}


async def test_a_workflow_of_functions_sees_what_it_saved_the_turn_before(bench: AuthorsBench) -> None:
    bench.bring(f"{STATE}{STATEFUL}graph = saved")
    await bench.open()
    assert (await bench.run(1)).summary == "turn 0"
    await bench.crash()
    assert (await bench.run(2)).summary == "turn 1"


CONFIGURED = """
from langgraph.runtime import Runtime

class Given(TypedDict):
    unit: str

def measure(state: State, runtime: Runtime[Given]):
    return {"text": f"in {(runtime.context or {}).get('unit')}"}

graph = StateGraph(State, context_schema=Given)
graph.add_node("measure", measure)
graph.add_edge(START, "measure")
"""


async def test_a_context_that_is_a_typed_dict_may_be_left_out(bench: AuthorsBench) -> None:
    bench.bring(STATE + CONFIGURED)
    await bench.open()
    assert json.loads((event := await bench.run(1)).summary or event.error)["text"] == "in None"
    assert json.loads((await bench.run(2, context_json='{"unit": "mm"}')).summary)["text"] == "in mm"


RUNTIME = "from langgraph.runtime import Runtime\nasync def count(state, runtime: Runtime)"

AGENT = """
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.tools import tool
from langgraph.func import entrypoint, task
from langgraph.graph.message import add_messages

done = []

@tool
def look(what: str) -> str:
    "Look at something."
    done.append(what)
    return f"{what} is green"

@task
def call_model(messages: list[BaseMessage]) -> BaseMessage:
    asked = messages[-1]
    if asked.type != "human":
        return AIMessage(f"I saw: {', '.join(one.text for one in messages if one.type == 'tool')}")
    calls = [{"name": "look", "args": {"what": one}, "id": f"call-{one}"} for one in asked.text.split()]
    return AIMessage("", tool_calls=calls)

@task
def call_tool(call):
    return look.invoke({**call, "type": "tool_call"})

@entrypoint()
def graph(messages: list[BaseMessage], *, previous: list[BaseMessage] | None = None):
    messages = add_messages(previous or [], messages)
    said = call_model(messages).result()
    while said.tool_calls:
        calls = [call_tool(one) for one in said.tool_calls]
        messages = add_messages(messages, [said, *[one.result() for one in calls]])
        said = call_model(messages).result()
    return add_messages(messages, said)
"""


async def test_an_agent_of_functions_is_guarded_and_shows_each_turns_own_messages(bench: AuthorsBench) -> None:
    bench.bring(AGENT)
    await bench.open()
    event = await bench.run(1, prompt="door pond")
    assert event.state == STATES.INTERRUPTED, event.error
    assert bench.module.done == []
    await bench.crash()
    while event.state == STATES.INTERRUPTED:
        asked = (await bench.pending())[0]
        await bench.resolve(asked.interrupt_id, "approve", args_hash=asked.args_hash)
        event = await bench.stopped(event.turn_id, after=event.sequence)
    assert (event.state, event.summary) == (STATES.SUCCEEDED, "I saw: door is green, pond is green"), event.error
    assert sorted(bench.module.done) == ["door", "pond"], "each ran once"
    bench.category("work", tools=["tool:look"])
    assert (await bench.run(2, prompt="gate")).summary == "I saw: door is green, pond is green, gate is green"
    first, second = [[line.role for line in turn.messages] for turn in await bench.conversation()]
    assert (first, second) == (
        ["trigger", "agent", "tool", "tool", "agent"], ["trigger", "agent", "tool", "agent"],
    )  # fmt: skip
