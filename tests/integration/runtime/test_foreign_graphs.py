"""Graphs that authors bring run under the same promises, and know nothing of ours."""

import asyncio
import json
import textwrap
from pathlib import Path

import pytest

from agent_runtime.daemon.assembly import assemble
from agent_runtime.store.turn_reads import get_turn
from tests.integration.runtime import authors_graphs
from tests.integration.runtime.authors_graphs import (
    BYPASS,
    SPENDER,
    TALKER,
    THINKER,
    WAITER,
    AuthorsBench,
    keeping,
    talking,
    working,
)
from tests.integration.runtime.harness import STATES, soon
from turnkeeper.config.home import Home
from turnkeeper.config.settings import AgentSettings, ModelSettings, Settings
from turnkeeper.errors import InvalidInput
from turnkeeper.v1 import agent_runtime_pb2 as wire

bench = authors_graphs.bench


async def test_a_prompt_becomes_a_message_and_the_answer_is_shown(bench: AuthorsBench) -> None:
    await talking(bench)
    event = await bench.run(prompt="hello", payload_json='{"a": 1}')
    assert (event.state, event.summary) == (STATES.SUCCEEDED, 'I heard: hello\n\nPayload: {"a": 1}')
    (shown,) = await bench.conversation()
    assert [line.role for line in shown.messages] == ["trigger", "agent"]


async def test_the_graph_of_the_page_asks_in_its_first_fire_and_never_again(bench: AuthorsBench) -> None:
    page = (Path(__file__).parents[3] / "docs" / "graphs.md").read_text("utf-8")
    section = page.partition("### A question in a task that runs at night")[2]
    bench.bring(textwrap.dedent(section[section.index("    from typing") : section.index("Then create")]))
    await bench.open()
    first = await bench.run(prompt="", input_json="{}")
    assert first.state == STATES.INTERRUPTED
    (asked,) = await bench.pending()
    await bench.resolve(asked.interrupt_id, "answer", message="yes")
    assert (await bench.stopped(first.turn_id, after=first.sequence)).state == STATES.SUCCEEDED
    second = await bench.run(2, prompt="", input_json="{}")
    assert (second.state, json.loads(second.summary)["done"]) == (STATES.SUCCEEDED, "ordered")


CALLS_BY_ITSELF = """
from typing import TypedDict
from langchain_core.tools import tool
from langgraph.graph import START, StateGraph
from langgraph.types import interrupt

@tool
def look(text: str) -> str:
    "Look at it."
    return text.upper()

class State(TypedDict, total=False):
    seen: str

def node(state):
    seen = [look.invoke({"text": text}) for text in ("beds", "beds", "fence")]
    return {"seen": " ".join([*seen, interrupt("more?")])}

graph = StateGraph(State).add_node("node", node).add_edge(START, "node")
"""


async def test_a_call_that_a_node_makes_by_itself_is_shown_once_however_often_the_node_runs(
    bench: AuthorsBench,
) -> None:
    bench.bring(CALLS_BY_ITSELF)
    bench.category("work", tools=["tool:look"])
    await bench.open()
    first = await bench.run(prompt="go")
    await bench.crash()
    (asked,) = await bench.pending()
    await bench.resolve(asked.interrupt_id, "answer", message="no")
    assert (await bench.stopped(first.turn_id, after=first.sequence)).state == STATES.SUCCEEDED
    (shown,) = await bench.conversation()
    calls = [(call.name, json.loads(call.args_json)["text"]) for one in shown.messages for call in one.tool_calls]
    assert calls == [("look", "beds"), ("look", "beds"), ("look", "fence")]
    assert [one.text for one in shown.messages if one.text] == ["go", "no", '{"seen": "BEDS BEDS FENCE no"}']


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
        "the graph caught the question about paint, so the author was not asked: "
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
    receipt = await bench.accept(bench.fire(payload_json='{"topic": "rain"}'))
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


async def test_the_tokens_of_each_model_of_a_graph_are_recorded(bench: AuthorsBench) -> None:
    used = "usage_metadata={'input_tokens': 5, 'output_tokens': 7, 'total_tokens': 12}"
    by = "response_metadata={'model_name': 'gpt-5-2025-08-07', 'model_provider': 'openai'}"
    bench.bring(TALKER.replace('{asked.content}")', f'{{asked.content}}", {used}, {by})'))
    await bench.open()
    event = await bench.run(1, prompt="hello")
    assert json.loads(event.models_json) == {"openai:gpt-5-2025-08-07": {"tokens_in": 5, "tokens_out": 7}}


async def test_tokens_count_where_no_message_tells_them_and_over_a_question(bench: AuthorsBench) -> None:
    bench.bring(THINKER)
    await bench.open()
    event = await bench.run()
    assert (event.state, event.tokens_in, event.tokens_out) == (STATES.INTERRUPTED, 5, 2)
    (asked,) = await bench.pending()
    await bench.resolve(asked.interrupt_id, "answer", message="yes")
    event = await bench.stopped(event.turn_id, after=event.sequence)
    assert (event.state, event.tokens_in, event.tokens_out) == (STATES.SUCCEEDED, 10, 4)
    assert json.loads(event.models_json) == {"": {"tokens_in": 10, "tokens_out": 4}}
    answered = bench.trail("model.answered")  # what the metrics count
    assert [(one["turn_id"], one["tokens_in"], one["tokens_out"]) for one in answered] == [(event.turn_id, 5, 2)] * 2


RETURNS = """
from typing import TypedDict
from langgraph.graph import START, StateGraph

class State(TypedDict, total=False):
    messages: list
    city: str
    report: str

def answer(state):
    said = state["messages"][-1].content
    return {"object": {"messages": [{"role": "assistant", "content": "a tent"}]},
            "field": {"report": "a tent"},
            "same": {"report": "a tent"},
            "odd": {"messages": [{"content": "a tent", "role": "stranger"}]}}.get(said)

graph = StateGraph(State)
graph.add_node("answer", answer)
graph.add_edge(START, "answer")
"""


async def test_nothing_is_said_only_of_a_graph_that_returned_nothing(bench: AuthorsBench) -> None:
    bench.bring(RETURNS)
    await bench.open()
    prompts = ("object", "field", "same", "nothing", "object")
    for number, prompt in enumerate(prompts, 1):
        event = await bench.run(number, prompt=prompt, input_json='{"city": "Ghent"}', thread_id="one")
        assert event.state == STATES.SUCCEEDED, event.error
    shown = [turn.messages[-1].text for turn in await bench.conversation()]
    returned = '{"report": "a tent"}'
    assert shown == ["a tent", returned, returned, "nothing to do this fire", "a tent"]


async def test_a_silent_category_stays_silent_about_what_a_graph_keeps_in_its_state(bench: AuthorsBench) -> None:
    bench.bring(RETURNS)
    bench.category("quiet", silent=True, autonomous=True)
    await bench.open()
    assert (await bench.run(1, prompt="field", category="quiet")).state == STATES.SILENT
    assert (await bench.run(2, prompt="object", category="quiet")).state == STATES.SUCCEEDED


@pytest.mark.parametrize("cut", ["cancel", "limit", "stop"])
async def test_tokens_of_a_step_that_is_cut_count_on_its_day(bench: AuthorsBench, cut: str) -> None:
    bench.bring(SPENDER)
    bench.settings = bench.settings.model_copy(update={"model": ModelSettings(daily_token_cap=7)})
    bench.category("work", seconds=1 if cut == "limit" else 60)
    await bench.open()
    receipt = await bench.accept(bench.fire())
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
    again = await bench.accept(bench.fire(payload_json='{"ask": "well?"}'))
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
