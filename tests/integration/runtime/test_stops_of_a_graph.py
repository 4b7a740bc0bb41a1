"""A graph that was compiled to stop before or after a step asks its author, and nothing passes the stop by."""

import asyncio
import json
import sys
from typing import Any

import pytest

from tests.integration.runtime import authors_graphs
from tests.integration.runtime.authors_graphs import TALKER, AuthorsBench
from tests.integration.runtime.harness import OVER, STATES
from turnkeeper.errors import InvalidInput
from turnkeeper.v1 import agent_runtime_pb2 as wire

bench = authors_graphs.bench

STEPS = """
from typing import TypedDict
from langgraph.graph import START, StateGraph
from langgraph.types import Send, interrupt
import asyncio

done = []
gate = []
reached = asyncio.Event()

class State(TypedDict, total=False):
    prompt: str
    plan: str
    report: str

def plan(state):
    done.append("plan")
    return {"plan": "of " + state["prompt"]}

async def act(state):
    if gate:
        reached.set()
        await gate.pop().wait()
    done.append("act")
    if state["prompt"] == "ask":
        interrupt("sure?")
    if state["prompt"] == "fail":
        raise RuntimeError("no luck")
    return {"report": "did " + state["plan"]}

def steps():
    builder = StateGraph(State)
    builder.add_node("plan", plan)
    builder.add_node("act", act)
    builder.add_edge(START, "plan")
    builder.add_edge("plan", "act")
    return builder

def around(inner):
    builder = StateGraph(State)
    builder.add_node("inner", inner)
    builder.add_edge(START, "inner")
    return builder

def sending():
    builder = StateGraph(State)
    builder.add_node("plan", plan)
    builder.add_node("act", act)
    builder.add_conditional_edges(START, lambda state: [Send("plan", state)])
    builder.add_edge("plan", "act")
    return builder
"""
STOPS = {
    "before": ('steps().compile(interrupt_before=["act"])', "it stops before act"),
    "after": ('steps().compile(interrupt_after=["plan"])', "it stops after plan"),
    "after one that was sent": ('sending().compile(interrupt_after=["plan"])', "it stops after plan"),
    "both": ('steps().compile(interrupt_after=["plan"], interrupt_before=["act"])', "it stops before act"),
    "in a subgraph": ('around(steps().compile(interrupt_before=["act"])).compile()', "it stops before act"),
    "after, in a subgraph": ('around(steps().compile(interrupt_after=["plan"])).compile()', "it stops after plan"),
}


async def stopped(bench: AuthorsBench, graph: str, **fire: Any) -> tuple[wire.TurnEvent, wire.Interrupt]:
    bench.bring(f"{STEPS}\ngraph = {graph}")
    await bench.open()
    event = await bench.run(**({"prompt": "pond"} | fire))
    assert event.state == STATES.INTERRUPTED, event.error or event.summary
    (asked,) = await bench.pending()
    return event, asked


async def decide(bench: AuthorsBench, event: wire.TurnEvent, decision: str, **how: str) -> wire.TurnEvent:
    (asked,) = await bench.pending()
    await bench.resolve(asked.interrupt_id, decision, args_hash=asked.args_hash, **how)
    return await bench.stopped(event.turn_id, after=event.sequence)


@pytest.mark.parametrize("place", STOPS)
async def test_a_stop_asks_and_outlives_a_crash_and_other_fires(bench: AuthorsBench, place: str) -> None:
    graph, why = STOPS[place]
    event, asked = await stopped(bench, graph)
    assert asked.question == "act"
    (call,) = json.loads(asked.args_json)["calls"]
    assert (call["note"], call["args"]["plan"]) == (why, "of pond")
    assert bench.module.done == ["plan"]
    await bench.crash()
    assert (await bench.run(2)).state == STATES.HELD
    event = await decide(bench, event, "approve")
    assert (event.state, json.loads(event.summary)["report"]) == (STATES.SUCCEEDED, "did of pond"), event.error
    assert bench.module.done[:2] == ["plan", "act"]


ANOTHER = 'builder = StateGraph(State)\nbuilder.add_node("plan", plan)\nbuilder.add_edge(START, "plan")'


async def crash_and_bring_another(bench: AuthorsBench, graph: str = "graph = builder.compile()") -> None:
    """Let the runtime die, and the next one have a graph without the step act."""
    bench.bring(f"{STEPS}\n{ANOTHER}\n{graph}")
    del sys.modules[bench.file.stem]
    await bench.crash()


SENDS = 'sender.add_conditional_edges("plan", lambda state: [Send("act", state)])\ngraph = sender.compile()'
SENDER = 'sender = StateGraph(State)\nsender.add_node("plan", plan)\nsender.add_node("act", act)\nsender.add_edge(START, "plan")'


@pytest.mark.parametrize("graph", ["graph = steps().compile()", f"{SENDER}\n{SENDS}"], ids=["an edge", "a send"])
async def test_a_turn_keeps_waiting_under_a_graph_without_its_step_and_an_answer_fails_it(
    bench: AuthorsBench, graph: str
) -> None:
    bench.bring(f"{STEPS}\n{graph}")
    await bench.open()
    event = await bench.run(prompt="ask")
    assert event.state == STATES.INTERRUPTED
    await crash_and_bring_another(bench)
    assert (await bench.run(2)).state == STATES.HELD
    event = await decide(bench, event, "approve")
    assert event.state == STATES.FAILED
    assert "the graph no longer has the step act" in event.error
    assert (await bench.run(3)).state == STATES.SUCCEEDED


async def test_a_turn_that_was_killed_before_a_step_that_its_graph_no_longer_has_fails(bench: AuthorsBench) -> None:
    bench.bring(f"{STEPS}\ngraph = steps().compile()")
    await bench.open()
    bench.module.gate.append(asyncio.Event())
    await bench.accept(bench.fire(prompt="pond"))
    await bench.module.reached.wait()
    await crash_and_bring_another(bench)
    event = (await bench.events(until=lambda one: STATES.Name(one.state) in OVER))[-1]
    assert (event.state, "the graph no longer has the step act" in event.error) == (STATES.FAILED, True)


NESTED = """
kept = {{"inner": {steps}}}

def hidden(name):
    return kept[name]

async def calls(state):
    return await hidden("inner").ainvoke(state)

def sends():
    outer = StateGraph(State)
    outer.add_node("inner", kept["inner"])
    outer.add_conditional_edges(START, lambda state: [Send("inner", state)])
    return outer

def plain(state):
    return {{"report": "plain"}}

graph = {graph}.compile()
"""
PLACES = {
    "a subgraph": ('around(kept["inner"])', "inner > act"),
    "a subgraph of a subgraph": ('around(around(kept["inner"]).compile())', "inner > inner > act"),
    "a subgraph that was sent to": ("sends()", "inner > act"),
    "a subgraph that a step calls": ("around(calls)", "inner > act"),
}
GONE = {place: (graph, graph, lost) for place, (graph, lost) in PLACES.items()}
GONE["a subgraph that is now a function"] = ('around(kept["inner"])', "around(plain)", "inner > act")
GONE["a subgraph of a subgraph that is now a function"] = (
    'around(around(kept["inner"]).compile())',
    "around(around(plain).compile())",
    "inner > inner > act",
)
GONE["a subgraph of a subgraph that is gone"] = (
    'around(around(kept["inner"]).compile())',
    'around(kept["inner"])',
    "inner > inner",
)


@pytest.mark.parametrize("place", GONE)
async def test_a_turn_keeps_waiting_without_its_step_in_a_subgraph_and_an_answer_fails_it(
    bench: AuthorsBench, place: str
) -> None:
    graph, later, lost = GONE[place]
    bench.bring(STEPS + NESTED.format(steps="steps().compile()", graph=graph))
    await bench.open()
    event = await bench.run(prompt="ask")
    assert event.state == STATES.INTERRUPTED, event.error
    await crash_and_bring_another(bench, NESTED.format(steps="builder.compile()", graph=later))
    assert (await bench.run(2)).state == STATES.HELD
    event = await decide(bench, event, "approve")
    assert (event.state, f"the graph no longer has the step {lost}," in event.error) == (STATES.FAILED, True), event
    assert (await bench.run(3)).state == STATES.SUCCEEDED


@pytest.mark.parametrize("place", GONE)
async def test_a_turn_that_was_killed_before_a_step_that_a_subgraph_no_longer_has_fails(
    bench: AuthorsBench, place: str
) -> None:
    graph, later, lost = GONE[place]
    bench.bring(STEPS + NESTED.format(steps="steps().compile()", graph=graph))
    await bench.open()
    bench.module.gate.append(asyncio.Event())
    await bench.accept(bench.fire(prompt="pond"))
    await bench.module.reached.wait()
    await crash_and_bring_another(bench, NESTED.format(steps="builder.compile()", graph=later))
    event = (await bench.events(until=lambda one: STATES.Name(one.state) in OVER))[-1]
    assert (event.state, f"the graph no longer has the step {lost}," in event.error) == (STATES.FAILED, True), event


@pytest.mark.parametrize("place", ["before", "in a subgraph"])
async def test_a_turn_keeps_waiting_at_a_stop_before_a_step_that_is_gone(bench: AuthorsBench, place: str) -> None:
    event, _ = await stopped(bench, STOPS[place][0])
    around = "around(builder.compile())" if place == "in a subgraph" else "builder"
    await crash_and_bring_another(bench, f"graph = {around}.compile()")
    assert (await bench.run(2)).state == STATES.HELD
    event = await decide(bench, event, "approve")
    lost = "inner > act" if place == "in a subgraph" else "act"
    assert (event.state, f"the graph no longer has the step {lost}," in event.error) == (STATES.FAILED, True), event


@pytest.mark.parametrize("place", PLACES)
async def test_a_new_version_of_a_subgraph_that_has_the_step_takes_the_answer(bench: AuthorsBench, place: str) -> None:
    nested = NESTED.format(steps="steps().compile()", graph=PLACES[place][0])
    bench.bring(STEPS + nested)
    await bench.open()
    event = await bench.run(prompt="ask")
    await crash_and_bring_another(bench, nested)
    event = await decide(bench, event, "answer", message="yes")
    assert (event.state, json.loads(event.summary)["report"]) == (STATES.SUCCEEDED, "did of ask"), event.error


async def test_a_stop_at_every_step_asks_at_every_step(bench: AuthorsBench) -> None:
    event, asked = await stopped(bench, 'steps().compile(interrupt_before="*")')
    assert asked.question == "plan"
    event = await decide(bench, event, "approve")
    assert event.state == STATES.INTERRUPTED
    event = await decide(bench, event, "approve")
    assert (event.state, bench.module.done) == (STATES.SUCCEEDED, ["plan", "act"])


async def test_a_stop_after_the_last_step_is_the_end(bench: AuthorsBench) -> None:
    bench.bring(f'{STEPS}\ngraph = steps().compile(interrupt_after=["act"])')
    await bench.open()
    assert [(await bench.run(number)).state for number in (1, 2)] == [STATES.SUCCEEDED] * 2


async def test_a_rejected_stop_ends_the_turn_with_what_was_done(bench: AuthorsBench) -> None:
    event, _ = await stopped(bench, STOPS["before"][0])
    event = await decide(bench, event, "reject", message="not now")
    assert (event.state, json.loads(event.summary)) == (STATES.SUCCEEDED, {"prompt": "pond", "plan": "of pond"})
    assert bench.module.done == ["plan"]
    assert (await bench.run(2)).state == STATES.INTERRUPTED


@pytest.mark.parametrize("place", ["before", "after", "in a subgraph"])
async def test_an_edit_changes_the_state_before_the_step_runs(bench: AuthorsBench, place: str) -> None:
    event, _ = await stopped(bench, STOPS[place][0])
    event = await decide(bench, event, "edit", args_json='{"plan": "another"}')
    assert (event.state, json.loads(event.summary)["report"]) == (STATES.SUCCEEDED, "did another"), event.error


TALKS = """
from typing import Annotated
from langchain_core.messages import AIMessage
from langgraph.graph.message import add_messages

class Talk(State):
    messages: Annotated[list, add_messages]

def tell(state):
    return {"messages": [AIMessage("on " + state["prompt"])]}

builder = StateGraph(Talk, input_schema=State)
builder.add_node("tell", tell)
builder.add_node("act", lambda state: {"messages": [AIMessage("did " + state["plan"])]})
builder.add_edge(START, "tell")
builder.add_edge("tell", "act")
"""


async def test_an_edit_leaves_a_turn_the_messages_that_are_its_own(bench: AuthorsBench) -> None:
    bench.bring(f'{STEPS}{TALKS}graph = builder.compile(interrupt_before=["act"])')
    await bench.open()
    for number in (1, 2):
        event = await bench.run(number, prompt=f"p{number}")
        event = await decide(bench, event, "edit", args_json=f'{{"plan": "q{number}"}}')
        assert event.state == STATES.SUCCEEDED, event.error
    shown = [[line.text for line in turn.messages if line.role == "agent"] for turn in await bench.conversation()]
    assert shown == [["on p1", "did q1"], ["on p2", "did q2"]]


@pytest.mark.parametrize("wrong", ['{"plann": "x"}', '{"type": "go"}', "[1]"])
async def test_a_wrong_answer_to_a_stop_costs_no_turn(bench: AuthorsBench, wrong: str) -> None:
    event, asked = await stopped(bench, STOPS["before"][0])
    if "plann" in wrong:
        event = await decide(bench, event, "edit", args_json=wrong)
        assert event.state == STATES.INTERRUPTED
        assert "the state has no field 'plann'" in (await bench.pending())[0].message
    else:
        with pytest.raises(InvalidInput, match="takes approve, reject, edit"):
            await bench.resolve(asked.interrupt_id, "answer", args_hash=asked.args_hash, args_json=wrong)
    assert (await decide(bench, event, "approve")).state == STATES.SUCCEEDED


async def test_a_step_that_was_let_go_on_and_was_cut_runs_again_without_a_question(bench: AuthorsBench) -> None:
    event, asked = await stopped(bench, STOPS["before"][0])
    bench.module.gate.append(asyncio.Event())
    await bench.resolve(asked.interrupt_id, "approve", args_hash=asked.args_hash)
    await asyncio.wait_for(bench.module.reached.wait(), 20)
    await bench.crash()
    event = await bench.stopped(event.turn_id, after=event.sequence)
    assert (event.state, bench.module.done.count("plan")) == (STATES.SUCCEEDED, 1), event.error


async def test_an_edited_step_that_was_cut_keeps_the_edit_and_its_input_is_not_given_again(bench: AuthorsBench) -> None:
    event, asked = await stopped(bench, STOPS["before"][0])
    bench.module.gate.append(asyncio.Event())
    await bench.resolve(asked.interrupt_id, "edit", args_hash=asked.args_hash, args_json='{"plan": "another"}')
    await asyncio.wait_for(bench.module.reached.wait(), 20)
    await bench.crash()
    event = await bench.stopped(event.turn_id, after=event.sequence)
    if event.state == STATES.INTERRUPTED:  # the edited state is one that nobody has seen: it is shown
        event = await decide(bench, event, "approve")
    assert (event.state, json.loads(event.summary)["report"]) == (STATES.SUCCEEDED, "did another"), event.error
    assert bench.module.done.count("plan") == 1


@pytest.mark.parametrize("place", ["before", "after, in a subgraph"])
async def test_a_process_that_dies_before_it_asks_passes_no_stop_by(
    bench: AuthorsBench, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.bring(f"{STEPS}\ngraph = {STOPS[place][0]}")
    await bench.open()
    dying = asyncio.Event()

    async def dies(*_args: Any) -> Any:
        dying.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(bench.runtime.store, "interrupted", dies)
    receipt = await bench.accept(bench.fire(prompt="pond"))
    await asyncio.wait_for(dying.wait(), 20)
    await bench.crash()
    event = await bench.stopped(receipt.turn_id)
    assert (event.state, bench.module.done) == (STATES.INTERRUPTED, ["plan"])
    assert (await decide(bench, event, "approve")).state == STATES.SUCCEEDED


async def test_a_question_in_a_step_that_was_let_go_on_is_answered_too(bench: AuthorsBench) -> None:
    event, _ = await stopped(bench, STOPS["before"][0], prompt="ask")
    event = await decide(bench, event, "approve")
    assert (event.state, [one.question for one in await bench.pending()]) == (STATES.INTERRUPTED, ["sure?"])
    await bench.crash()
    event = await decide(bench, event, "answer", message="yes")
    assert event.state == STATES.SUCCEEDED, event.error


async def test_an_agent_that_stops_before_its_tools_shows_the_calls(bench: AuthorsBench) -> None:
    bench.bring(TALKER + '\ngraph = graph.compile(interrupt_before=["tools"])')
    bench.category("work", tools=["tool:look"])
    await bench.open()
    event = await bench.run(prompt="look: door")
    (asked,) = await bench.pending()
    (call,) = json.loads(asked.args_json)["calls"]
    assert call["note"].splitlines() == ["it stops before tools", 'it is to call look({"what": "door"})']
    event = await decide(bench, event, "approve")
    assert (event.state, event.summary) == (STATES.SUCCEEDED, "I heard: door is green")
    event = await bench.run(2, prompt="look: pond")
    event = await decide(bench, event, "reject")
    assert event.state == STATES.SUCCEEDED
    assert (await bench.run(3, prompt="hello")).summary == "I heard: hello", "the call that was not made is answered"
