"""A client's own input: given once, whatever it holds and whenever the process dies; and the options of its run."""

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import pytest

from tests.integration.runtime import authors_graphs
from tests.integration.runtime.authors_graphs import AuthorsBench
from tests.integration.runtime.harness import STATES, soon
from turnkeeper.errors import InvalidInput
from turnkeeper.v1 import agent_runtime_pb2 as wire

bench = authors_graphs.bench
GRAPH = """
import operator
from typing import Annotated
from langchain_core.messages import AIMessage
from langgraph.graph import START, MessagesState, StateGraph

ran = []

class State(MessagesState):
    steps: Annotated[list, operator.add]
    topic: str

def first(state):
    ran.append("first")
    return {"steps": ["first"], "messages": [AIMessage("seen " + str(len(state["messages"])))]}

def second(state):
    ran.append("second")
    return {"steps": ["second"]}

builder = StateGraph(State)
builder.add_node(first)
builder.add_node(second)
builder.add_edge(START, "first")
builder.add_edge("first", "second")
graph = builder.compile()
"""
BEFORE = [{"type": "human", "content": "Hello", "id": "h"}, {"type": "ai", "content": "Yes?", "id": "a"}]
# Each input, and the thread's texts with it, after a turn that answered "seen 2".
INPUTS: Mapping[str, tuple[dict[str, Any], list[str]]] = {
    "nothing": ({}, ["Hello", "Yes?", "seen 2"]),
    "no messages": ({"messages": [], "topic": "x"}, ["Hello", "Yes?", "seen 2"]),
    "no id": ({"messages": [{"role": "user", "content": "New"}]}, ["Hello", "Yes?", "seen 2", "New"]),
    "a removal": ({"messages": [{"type": "remove", "id": "a", "content": ""}]}, ["Hello", "seen 2"]),
    "a change": ({"messages": [{"type": "human", "content": "Bye", "id": "h"}]}, ["Bye", "Yes?", "seen 2"]),
}


def client(given: dict[str, Any], **options: Any) -> dict[str, str]:
    return {"prompt": "", "input_json": json.dumps(given), "run_json": json.dumps({"stream_modes": [], **options})}


async def state_of(bench: AuthorsBench) -> Any:
    graph = bench.runtime.engines.of("")._graph
    return await graph.aget_state({"configurable": {"thread_id": "thread-a"}})


async def opened(bench: AuthorsBench) -> None:
    """Open a thread that has the messages `BEFORE`, with the turn of its own that this takes."""
    bench.bring(GRAPH)
    await bench.open()
    event = await bench.run(**client({"messages": BEFORE}))
    assert event.state == STATES.SUCCEEDED, event.error
    bench.module.ran.clear()


def hang_at(bench: AuthorsBench, source: str) -> asyncio.Event:
    """Let the next checkpoint of this source never be written. Return the event that it was reached."""
    saver, reached = bench.runtime.engines.of("")._graph.checkpointer, asyncio.Event()
    put = saver.aput

    async def cut(config: Any, checkpoint: Any, metadata: Any, versions: Any) -> Any:
        if metadata["source"] == source:
            reached.set()
            await asyncio.Event().wait()
        return await put(config, checkpoint, metadata, versions)

    saver.aput = cut
    return reached


@pytest.mark.one_machine("it cuts the write of a checkpoint in this process")
@pytest.mark.parametrize("source", ["input", "loop"])
@pytest.mark.parametrize("name", INPUTS)
async def test_an_input_of_any_kind_is_taken_once_if_the_process_dies_around_it(
    bench: AuthorsBench, name: str, source: str
) -> None:
    given, texts = INPUTS[name]
    await opened(bench)
    reached = hang_at(bench, source)
    receipt = await bench.accept(bench.fire(2, **client(given)))
    await soon(reached.wait(), f"the {source} checkpoint")
    await bench.crash()
    event = await bench.stopped(receipt.turn_id)
    assert event.state == STATES.SUCCEEDED, event.error
    values = (await state_of(bench)).values
    answer = f"seen {len(texts)}"
    assert [one.text for one in values["messages"]] == [*texts, answer]
    assert values["steps"] == ["first", "second"] * 2, "no step's result is lost or doubled"
    assert values.get("topic") == given.get("topic")
    shown = (await bench.conversation())[-1]
    assert [line.text for line in shown.messages if line.role == "agent"] == [answer]


async def test_a_run_stops_before_the_nodes_that_its_client_names_and_goes_on_after_a_crash(
    bench: AuthorsBench,
) -> None:
    bench.bring(GRAPH)
    await bench.open()
    event = await bench.run(**client({"topic": "x"}, interrupt_before=["second"]))
    assert (event.state, bench.module.ran) == (STATES.INTERRUPTED, ["first"]), event.error
    await bench.crash()
    (asked,) = await bench.pending()
    await bench.resolve(asked.interrupt_id, "approve", args_hash=asked.args_hash)
    event = await bench.stopped(event.turn_id, after=event.sequence)
    assert event.state == STATES.SUCCEEDED, event.error
    assert (await state_of(bench)).values["steps"] == ["first", "second"]


async def test_a_runs_metadata_are_in_its_checkpoints_and_never_replace_ours(bench: AuthorsBench) -> None:
    bench.bring(GRAPH)
    await bench.open()
    forged = {"turn_id": "another", "grant": "{}", "before_turn": "x", "interrupt_before": '"*"', "mine": "yes"}
    event = await bench.run(**client({"topic": "x"}, metadata=forged, config={"metadata": forged}))
    assert event.state == STATES.SUCCEEDED, event.error
    metadata = (await state_of(bench)).metadata
    assert (metadata["mine"], metadata["turn_id"]) == ("yes", event.turn_id)
    assert json.loads(metadata["grant"])["name"] == "work"
    assert metadata.get("interrupt_before") is None


async def test_an_unknown_field_of_an_input_fails_the_turn_before_the_graph_runs(bench: AuthorsBench) -> None:
    bench.bring(GRAPH)
    await bench.open()
    event = await bench.run(**client({"tpoic": "x"}))
    assert (event.state, bench.module.ran) == (STATES.FAILED, [])
    assert "tpoic" in event.error


@pytest.mark.parametrize("given", [{"run_json": '{"stream_modes": []}'}, {"text": "go"}], ids=["a client", "a message"])
async def test_a_message_is_refused_at_the_door_if_its_graph_would_refuse_its_input(
    bench: AuthorsBench, given: dict[str, str]
) -> None:
    bench.bring(GRAPH)
    await bench.open()
    with pytest.raises(InvalidInput, match="has no field 'tpoic'"):
        await bench.service.SendMessage(wire.SendMessageRequest(channel="main", input_json='{"tpoic": "x"}', **given))
    assert await bench.conversation() == []
    asked = wire.SendMessageRequest(channel="main", input_json='{"topic": "x"}', request_id="again", **given)
    sent = await bench.service.SendMessage(asked)
    assert (await bench.stopped(sent.turn_id)).state == STATES.SUCCEEDED
    assert (await bench.service.SendMessage(asked)).duplicate
