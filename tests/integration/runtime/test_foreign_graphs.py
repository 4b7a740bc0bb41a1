"""Graphs that authors bring run under the same promises, and know nothing of ours."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from agent_runtime.daemon.assembly import assemble
from agent_runtime.store.turn_reads import get_turn
from protos.turnkeeper.v1 import agent_runtime_pb2 as wire
from tests.integration.runtime.harness import STATES, Bench, soon
from turnkeeper.config.home import Home
from turnkeeper.config.settings import AgentSettings, CategorySettings, ModelSettings, Settings
from turnkeeper.errors import InvalidInput

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


async def test_a_prompt_becomes_a_message_and_the_answer_is_shown(bench: AuthorsBench) -> None:
    await talking(bench)
    event = await bench.run(prompt="hello", payload_json='{"a": 1}')
    assert (event.state, event.summary) == (STATES.SUCCEEDED, 'I heard: hello\n\nPayload: {"a": 1}')
    (shown,) = await bench.conversation()
    assert [line.role for line in shown.messages] == ["trigger", "agent"]


async def test_a_tool_in_scope_runs(bench: AuthorsBench) -> None:
    await talking(bench, "tool:look")
    assert (await bench.run(prompt="look: door")).summary == "I heard: door is green"
    assert bench.module.done == [("look", "door")]


async def test_a_tool_out_of_scope_asks_and_runs_once_approved(bench: AuthorsBench) -> None:
    await talking(bench, "tool:look")
    event = await bench.run(prompt="paint: door red")
    assert event.state == STATES.INTERRUPTED
    (asked,) = await bench.pending()
    assert (asked.tool, asked.missing_scope, json.loads(asked.args_json)) == (
        "paint", "tool:paint", {"what": "door", "colour": "red"},
    )  # fmt: skip
    assert bench.module.done == []
    await bench.crash()
    await bench.resolve(asked.interrupt_id, "approve", args_hash=asked.args_hash)
    event = await bench.stopped(event.turn_id, after=event.sequence)
    assert (event.state, event.summary) == (STATES.SUCCEEDED, "I heard: door is red")
    assert bench.module.done == [("paint", "door", "red")]


async def test_a_graph_that_catches_a_question_fails_and_says_what_to_do(bench: AuthorsBench) -> None:
    keeping = """
async def run_tools(state):
    call = state["messages"][-1].tool_calls[0]
    try:
        text = await (paint if call["name"] == "paint" else look).ainvoke(call["args"])
    except Exception as error:
        text = f"error: {error}"
    return {"messages": [ToolMessage(text, tool_call_id=call["id"])]}

graph ="""
    text = TALKER.replace("\ngraph =", keeping, 1).replace("ToolNode([look, paint])", "run_tools")
    bench.bring(text.replace("import AIMessage", "import AIMessage, ToolMessage"))
    bench.category("work", tools=["tool:look"])
    await bench.open()
    assert (await bench.run(prompt="look: door")).summary == "I heard: door is green"
    event = await bench.run(2, prompt="paint: door red")
    assert event.state == STATES.FAILED
    assert event.error == (
        "the graph caught the question about paint, so that nobody was asked: "
        "grant tool:paint, or let langgraph.errors.GraphBubbleUp pass"
    )
    assert bench.module.done == [("look", "door")]
    assert await bench.pending() == []
    assert (await bench.run(3, prompt="hello")).summary == "I heard: hello", "its thread goes on"


INNER = """
from typing import TypedDict
from langgraph.graph import START, StateGraph

class State(TypedDict):
    prompt: str
    said: str

def shout(state):
    return {"said": state["prompt"].upper()}

inner = StateGraph(State).add_node("shout", shout).add_edge(START, "shout").compile(checkpointer=False)

def blocking(state):
    return inner.invoke(state)

async def awaiting(state):
    return await inner.ainvoke(state)

graph = StateGraph(State).add_node("node", NODE).add_edge(START, "node").compile()
"""


@pytest.mark.parametrize("node", ["blocking", "awaiting", "inner"])
async def test_a_graph_without_checkpoints_runs_inside_another(bench: AuthorsBench, node: str) -> None:
    bench.bring(INNER.replace("NODE", node))
    await bench.open()
    event = await bench.run(prompt="rain")
    assert (event.state, event.error) == (STATES.SUCCEEDED, "")
    assert json.loads(event.summary) == {"prompt": "rain", "said": "RAIN"}


async def test_a_tool_that_bears_the_name_of_one_of_ours_is_not_granted_by_its_scope(bench: AuthorsBench) -> None:
    bench.bring(TALKER.replace("def look(", "def workspace_read(").replace("[look,", "[workspace_read,"))
    bench.category("work", tools=["workspace.read"])
    await bench.open()
    assert (await bench.run(prompt="workspace_read: door")).state == STATES.INTERRUPTED
    (asked,) = await bench.pending()
    assert asked.missing_scope == "tool:workspace_read"


async def test_a_category_that_is_not_autonomous_proposes_before_the_first_call(bench: AuthorsBench) -> None:
    await talking(bench, "tool:paint", autonomous=False)
    assert (await bench.run(prompt="paint: door red")).state == STATES.INTERRUPTED
    (asked,) = await bench.pending()
    assert asked.kind == "proposal"
    assert bench.module.done == []


async def test_a_graph_without_messages_is_given_the_payload_and_shows_its_output(bench: AuthorsBench) -> None:
    await working(bench)
    event = await bench.run(prompt="rain", payload_json='{"depth": 7}')
    assert event.state == STATES.SUCCEEDED, event.error
    shown = {"prompt": "rain", "depth": 7, "report": {"depth": 7}, "summary": "rain in mm"}
    assert json.loads(event.summary) == shown
    (turn,) = await bench.conversation()
    assert [(line.role, line.text) for line in turn.messages] == [("trigger", "rain"), ("agent", event.summary)]


async def test_a_second_turn_without_messages_starts_afresh_on_the_same_state(bench: AuthorsBench) -> None:
    await working(bench)
    await bench.run(1, prompt="rain", payload_json='{"depth": 7}')
    assert json.loads((await bench.run(2, prompt="snow")).summary)["summary"] == "snow in mm"
    assert await bench.history() == ["STARTED", "SUCCEEDED"] * 2


@pytest.mark.parametrize(
    ("payload", "why"),
    [
        ('{"depth": "seven"}', "depth: input should be a valid integer"),
        ('{"dept": 7}', "no field 'dept'; its fields are prompt, depth, wake, ask, pause"),
    ],
)
async def test_a_payload_that_does_not_fit_fails_the_turn_and_says_why(
    bench: AuthorsBench, payload: str, why: str
) -> None:
    await working(bench)
    event = await bench.run(payload_json=payload)
    assert event.state == STATES.FAILED
    assert why in event.error
    assert (await bench.run(2)).state == STATES.SUCCEEDED


async def test_a_graph_asks_to_be_woken_by_a_custom_event(bench: AuthorsBench) -> None:
    await working(bench)
    event = await bench.run(1, payload_json='{"wake": 90.5}')
    assert (event.state, event.wake_after_s) == (STATES.SUCCEEDED, 91)
    assert not (await bench.run(2, task="b", thread_id="other")).HasField("wake_after_s")


async def test_a_wish_to_be_woken_outlives_a_question(bench: AuthorsBench) -> None:
    await working(bench)
    event = await bench.run(payload_json='{"wake": 60, "ask": "how deep?"}')
    assert (event.state, event.HasField("wake_after_s")) == (STATES.INTERRUPTED, False)
    (asked,) = await bench.pending()
    await bench.crash()
    await bench.resolve(asked.interrupt_id, "answer", message="deep")
    event = await bench.stopped(event.turn_id, after=event.sequence)
    assert (event.state, event.wake_after_s) == (STATES.SUCCEEDED, 60), event.error
    assert json.loads(event.summary)["summary"] == "how deep? deep"


async def test_a_turn_that_pauses_says_when_it_wants_to_be_woken(bench: AuthorsBench) -> None:
    await working(bench)
    event = await bench.run(payload_json='{"wake": 45, "pause": 600}')
    assert (event.state, event.wake_after_s) == (STATES.PAUSED, 45)


@pytest.mark.parametrize("wake", ["-1", "1e9"])
async def test_a_wish_to_be_woken_that_cannot_be_met_fails_the_turn(bench: AuthorsBench, wake: str) -> None:
    await working(bench)
    event = await bench.run(payload_json=f'{{"wake": {wake}}}')
    assert event.state == STATES.FAILED
    assert "give a number of seconds from 0 to 2678400" in event.error


async def test_a_bounded_pause_is_resumed_by_the_tasks_next_fire(bench: AuthorsBench) -> None:
    await working(bench)
    assert (await bench.run(1, payload_json='{"pause": 600}')).state == STATES.PAUSED
    event = await bench.run(2, payload_json='{"depth": 3}')
    assert event.state == STATES.SUCCEEDED, event.error
    assert json.loads(event.summary)["summary"] == 'woken by task-0000000a@2 with {"depth": 3}'


async def test_an_input_that_is_no_message_is_given_once_whatever_crashes(bench: AuthorsBench) -> None:
    bench.bring(WAITER)
    await bench.open()
    bench.module.gates.append(asyncio.Event())
    receipt = await bench.service.Fire(bench.fire(payload_json='{"topic": "rain"}'), None)
    await soon(bench.module.reached.wait(), "the turn to block")
    await bench.crash()
    event = await bench.stopped(receipt.turn_id)
    assert event.state == STATES.SUCCEEDED, event.error
    snapshot = await bench.runtime.worker._engines.of("")._graph.aget_state(
        {"configurable": {"thread_id": event.thread_id}}
    )
    assert snapshot.values["log"] == ["rain"]


async def test_messages_that_a_graph_makes_by_itself_are_shown_with_the_turn_that_made_them(
    bench: AuthorsBench,
) -> None:
    bench.bring(WAITER)
    await bench.open()
    for number, topic in enumerate(("rain", "snow"), 1):
        assert (await bench.run(number, payload_json=f'{{"topic": "{topic}"}}')).summary == f"on {topic}"
    shown = [[line.text for line in turn.messages if line.role == "agent"] for turn in await bench.conversation()]
    assert shown == [["on rain"], ["on snow"]]


async def test_a_payload_without_what_the_input_wants_fails_the_turn(bench: AuthorsBench) -> None:
    bench.bring(WAITER)
    await bench.open()
    event = await bench.run()
    assert (event.state, event.error) == (
        STATES.FAILED, "payload: the graph's input lacks 'topic'; its fields are topic (required)",
    )  # fmt: skip


async def test_a_day_whose_tokens_are_used_up_begins_no_turn_of_a_foreign_graph(bench: AuthorsBench) -> None:
    used = "usage_metadata={'input_tokens': 5, 'output_tokens': 7, 'total_tokens': 12}"
    bench.bring(TALKER.replace('{asked.content}")', f'{{asked.content}}", {used})'))
    bench.settings = bench.settings.model_copy(update={"model": ModelSettings(daily_token_cap=10)})
    await bench.open()
    event = await bench.run(1, prompt="hello")
    assert (event.state, event.tokens_in, event.tokens_out) == (STATES.SUCCEEDED, 5, 7)
    event = await bench.run(2, prompt="hello")
    assert (event.state, event.error.split(";")[0]) == (STATES.FAILED, "daily token cap of 10 reached")


async def test_tokens_count_where_no_message_tells_them_and_over_a_question(bench: AuthorsBench) -> None:
    bench.bring(THINKER)
    await bench.open()
    event = await bench.run()
    assert (event.state, event.tokens_in, event.tokens_out) == (STATES.INTERRUPTED, 5, 2)
    (asked,) = await bench.pending()
    await bench.resolve(asked.interrupt_id, "answer", message="yes")
    event = await bench.stopped(event.turn_id, after=event.sequence)
    assert (event.state, event.tokens_in, event.tokens_out) == (STATES.SUCCEEDED, 10, 4)


@pytest.mark.parametrize("cut", ["cancel", "limit", "stop"])
async def test_tokens_of_a_step_that_is_cut_count_on_its_day(bench: AuthorsBench, cut: str) -> None:
    bench.bring(SPENDER)
    bench.settings = bench.settings.model_copy(update={"model": ModelSettings(daily_token_cap=7)})
    bench.category("work", seconds=1 if cut == "limit" else 60)
    await bench.open()
    receipt = await bench.service.Fire(bench.fire(), None)
    await soon(bench.module.reached.wait(), "the model's answer")
    if cut == "stop":
        await bench.runtime.worker.stop(0.0)
        turn = await bench.runtime.store.read(lambda connection: get_turn(connection, receipt.turn_id))
        assert turn is not None
        assert (turn.status, turn.tokens_in, turn.tokens_out) == ("running", 5, 2)
        return
    if cut == "cancel":
        await bench.service.CancelTurn(wire.CancelTurnRequest(turn_id=receipt.turn_id), None)
    event = await bench.stopped(receipt.turn_id)
    assert (event.state, event.tokens_in, event.tokens_out) == (STATES.CANCELLED, 5, 2)
    assert "daily token cap of 7 reached" in (await bench.run(2)).error


async def test_an_error_of_a_foreign_graph_shows_no_key(bench: AuthorsBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_API_KEY", "sk-0123456789")
    monkeypatch.setenv("STORE", "")  # put back when the test is over
    (bench.file.parent / ".env").write_text("STORE=postgres://me:word@host\n")
    bench.bring(
        TALKER.replace(
            "    asked = state",
            """    import os
    raise RuntimeError("x" * 950 + f" {os.environ['SOME_API_KEY']} refused at {os.environ['STORE']}")
    asked = state""",
        )
    )
    await bench.open()
    (bench.file.parent / ".env").unlink()
    assert (await bench.run()).error == f"RuntimeError: {'x' * 950} [secret] refused at [secret]"


async def test_a_graph_that_cannot_be_guarded_is_refused_unless_its_author_trusts_it(bench: AuthorsBench) -> None:
    bench.bring(BYPASS)
    with pytest.raises(InvalidInput, match=r"tools cannot be guarded: OwnNode .* trusted_graphs"):
        await bench.open()
    assert not bench.home.agent_db.exists()
    bench.bring(BYPASS, trusted_graphs=(f"{bench.file.parent}/../{bench.file.parent.name}/{bench.file.name}:graph",))
    await bench.open()
    assert (await bench.run(prompt="hello")).state == STATES.SUCCEEDED


async def test_a_question_outlives_a_crash_and_a_fire_that_comes_again(bench: AuthorsBench) -> None:
    await working(bench)
    event = await bench.run(payload_json='{"ask": "well?"}')
    await bench.crash()
    again = await bench.service.Fire(bench.fire(payload_json='{"ask": "well?"}'), None)
    assert again.disposition == wire.FireReceipt.DUPLICATE
    assert [one.question for one in await bench.pending()] == ["well?"]
    assert (await bench.turn(event.turn_id)).status == "interrupted"


async def test_what_cannot_work_is_refused_at_start(bench: AuthorsBench) -> None:
    bench.bring(BYPASS)
    with pytest.raises(InvalidInput, match="cannot be guarded"):
        await bench.open()
    assert not bench.home.agent_db.exists(), "nothing was half started"


async def test_only_the_first_agent_has_a_graph(home: Home, tmp_path: Path) -> None:
    settings = Settings(agents={"agent1": AgentSettings(graph="graph.py:graph")})
    with pytest.raises(InvalidInput, match="only agent0 has a graph"):
        async with assemble(home, settings, environ={}):
            pass


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


async def keeping(bench: AuthorsBench) -> AuthorsBench:
    bench.bring(KEEPER)
    (bench.home.categories / "work.toml").write_text(MEMORY)
    await bench.open()
    return bench


async def test_a_graph_goes_on_from_fire_to_fire_by_the_store_it_is_lent(bench: AuthorsBench) -> None:
    await keeping(bench)
    assert [(await bench.run(number)).summary for number in (1, 2, 3)] == ["at 1", "at 2", "at 3"]
    found = await bench.service.ListMemory(wire.ListMemoryRequest(tier="channel", owner="main"), None)
    (entry,) = found.entries
    assert (entry.key, entry.text, entry.form, entry.origin) == ("place", '{"at": 3}', "json", "agent-produced")
    assert entry.turn_id == (await bench.conversation())[-1].turn_id


async def test_a_graph_that_reaches_for_another_channel_waits_for_the_author_over_a_crash(bench: AuthorsBench) -> None:
    await keeping(bench)
    event = await bench.run(prompt="secret")
    assert event.state == STATES.INTERRUPTED
    (asked,) = await bench.pending()
    assert (asked.tool, asked.missing_scope) == ("memory_put", "channel:secret")
    assert json.loads(asked.args_json) == {"tier": "channel", "channel": "secret", "key": "place", "value": {"at": 1}}
    await bench.crash()
    await bench.resolve(asked.interrupt_id, "approve", args_hash=asked.args_hash)
    event = await bench.stopped(event.turn_id, after=event.sequence)
    assert event.state == STATES.SUCCEEDED
    found = await bench.service.ListMemory(wire.ListMemoryRequest(tier="channel"), None)
    assert {entry.owner: entry.text for entry in found.entries} == {"main": '{"at": 1}', "secret": '{"at": 1}'}


async def test_a_grant_is_for_none_of_two_tools_of_one_name(bench: AuthorsBench) -> None:
    bench.bring(
        TALKER.replace("@tool\nasync def paint", '@tool("look")\nasync def paint').replace(
            "ToolNode([look, paint])", 'ToolNode([look])\n)\ngraph.add_node("more", ToolNode([paint])'
        )
    )
    bench.category("work", tools=["tool:look"])
    await bench.open()
    assert (await bench.run(prompt="look: door")).state == STATES.INTERRUPTED
    (asked,) = await bench.pending()
    assert (asked.missing_scope, "no category grants either" in asked.question) == ("tool:look", True)
    assert bench.module.done == []
