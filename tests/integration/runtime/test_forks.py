"""Forks of a thread: a run begins at an earlier state, the branch before stays readable, and nothing is done twice."""

import asyncio
import json
from typing import Any

import pytest

from agent_runtime.graph.engine import history
from tests.integration.runtime import authors_graphs
from tests.integration.runtime.authors_graphs import AuthorsBench
from tests.integration.runtime.harness import STATES, soon
from tests.integration.runtime.test_inputs_of_clients import GRAPH, client, hang_at, state_of
from tests.integration.runtime.test_state_writes import CALLING, human, write

bench = authors_graphs.bench
ANSWERING = """
from langchain_core.messages import AIMessage
from langgraph.graph import START, MessagesState, StateGraph

said = []

def model(state):
    said.append(state["messages"][-1].text)
    return {"messages": [AIMessage(f"answer {len(said)} to {state['messages'][-1].text}")]}

builder = StateGraph(MessagesState)
builder.add_node(model)
builder.add_edge(START, "model")
graph = builder.compile()
"""


async def states(bench: AuthorsBench) -> list[Any]:
    """Return the kept states of the thread, newest first, once pruning is over."""
    await bench.runtime.worker._turns.pruned()
    graph = bench.runtime.engines.of("")._graph
    return [one async for one in graph.aget_state_history({"configurable": {"thread_id": "thread-a"}})]


def id_of(state: Any) -> str:
    return str(state.config["configurable"]["checkpoint_id"])


def texts(state: Any) -> list[str]:
    return [one.text for one in state.values.get("messages", [])]


async def talked(bench: AuthorsBench) -> list[Any]:
    """Run two turns of a client; return the states."""
    bench.bring(ANSWERING)
    await bench.open()
    for number, text in enumerate(("One", "Two"), 1):
        event = await bench.run(number, **client(human(text)))
        assert event.state == STATES.SUCCEEDED, event.error
    return await states(bench)


async def test_each_turn_of_a_client_keeps_its_states_with_their_parents(bench: AuthorsBench) -> None:
    found = await talked(bench)
    assert [(one.next, one.metadata["source"], one.metadata["step"]) for one in reversed(found)] == [
        (("__start__",), "input", -1),
        (("model",), "loop", 0),
        ((), "loop", 1),
        (("__start__",), "input", 2),
        (("model",), "loop", 3),
        ((), "loop", 4),
    ]
    assert [texts(one)[-1:] for one in reversed(found)] == [
        [], ["One"], ["answer 1 to One"], ["answer 1 to One"], ["Two"], ["answer 2 to Two"],
    ]  # fmt: skip
    parents = [one.parent_config and one.parent_config["configurable"]["checkpoint_id"] for one in found]
    assert parents == [*(id_of(one) for one in found[1:]), None]


async def test_a_turn_that_no_client_began_keeps_one_state(bench: AuthorsBench) -> None:
    bench.bring(ANSWERING)
    await bench.open()
    for number in (1, 2):
        event = await bench.run(number, prompt="Hello")
        assert event.state == STATES.SUCCEEDED, event.error
    assert len(await states(bench)) == 1


async def test_a_later_turn_that_no_client_began_keeps_its_states_so_that_the_history_is_one_tree(
    bench: AuthorsBench,
) -> None:
    await talked(bench)
    for number, given in enumerate(({"prompt": "Three"}, client(human("Four"))), 3):
        event = await bench.run(number, **given)
        assert event.state == STATES.SUCCEEDED, event.error
    found = await states(bench)
    parents = [one.parent_config and one.parent_config["configurable"]["checkpoint_id"] for one in found]
    assert parents == [*(id_of(one) for one in found[1:]), None]
    assert len(found) == 12


async def test_an_edited_message_begins_a_branch_and_the_one_before_stays(bench: AuthorsBench) -> None:
    before = await talked(bench)
    start = before[2]
    assert start.next == ("__start__",)
    event = await bench.run(3, **client(human("Three"), checkpoint_id=id_of(start)))
    assert event.state == STATES.SUCCEEDED, event.error
    found = await states(bench)
    assert texts(found[0]) == ["One", "answer 1 to One", "Three", "answer 3 to Three"]
    assert found[2].parent_config["configurable"]["checkpoint_id"] == id_of(start)
    assert found[3:] == before, "the branch before"
    event = await bench.run(4, **client(human("Four")))
    assert texts((await states(bench))[0])[-4:] == ["Three", "answer 3 to Three", "Four", "answer 4 to Four"]
    lines = [[line.text for line in turn.messages if line.role == "agent"] for turn in await bench.conversation()]
    assert lines[2] == ["answer 3 to Three"], "the conversation shows what the branch said"


async def test_an_answer_is_made_again_from_the_state_before_it(bench: AuthorsBench) -> None:
    before = await talked(bench)
    assert before[1].next == ("model",)
    event = await bench.run(3, **client({}, checkpoint_id=id_of(before[1]), replays=True))
    assert event.state == STATES.SUCCEEDED, event.error
    found = await states(bench)
    assert texts(found[0]) == ["One", "answer 1 to One", "Two", "answer 3 to Two"]
    assert (found[1].metadata["source"], found[1].next) == ("fork", ("model",))
    assert found[1].parent_config["configurable"]["checkpoint_id"] == id_of(before[1])
    assert found[2:] == before
    lines = [[line.text for line in turn.messages if line.role == "agent"] for turn in await bench.conversation()]
    assert lines[2] == ["answer 3 to Two"]


@pytest.mark.one_machine("it cuts the write of a checkpoint in this process")
@pytest.mark.parametrize("is_written", [False, True], ids=["before it is written", "when it is on disk"])
@pytest.mark.parametrize("source", ["input", "fork"])
async def test_a_fork_is_made_once_if_the_process_dies_around_it(
    bench: AuthorsBench, source: str, is_written: bool
) -> None:
    before = await talked(bench)
    given = client(human("Three"), checkpoint_id=id_of(before[2]))
    if source == "fork":
        given = client({}, checkpoint_id=id_of(before[1]), replays=True)
    reached = hang_after(bench, source) if is_written else hang_at(bench, source)
    receipt = await bench.accept(bench.fire(3, **given))
    await soon(reached.wait(), "the checkpoint")
    await bench.crash()
    event = await bench.stopped(receipt.turn_id)
    assert event.state == STATES.SUCCEEDED, event.error
    found = await states(bench)
    *known, asked, answer = texts(found[0])
    assert (known, asked) == (["One", "answer 1 to One"], "Two" if source == "fork" else "Three")
    assert answer.endswith(f"to {asked}")
    assert [one.metadata["source"] for one in found[: len(found) - len(before)]].count(source) == 1
    assert found[-len(before) :] == before


def hang_after(bench: AuthorsBench, source: str) -> asyncio.Event:
    """Let the process hang once the next checkpoint of this source is on disk. Return the event that it is."""
    saver, reached = bench.runtime.engines.of("")._graph.checkpointer, asyncio.Event()
    put = saver.aput

    async def cut(config: Any, checkpoint: Any, metadata: Any, versions: Any) -> Any:
        done = await put(config, checkpoint, metadata, versions)
        if metadata["source"] == source:
            reached.set()
            await asyncio.Event().wait()
        return done

    saver.aput = cut
    return reached


async def test_a_call_that_was_approved_is_asked_about_again_when_its_state_runs_again(bench: AuthorsBench) -> None:
    bench.bring(CALLING)
    await bench.open()
    waits = await bench.run(**client(human("Paint")))
    (asked,) = await bench.pending()
    await bench.resolve(asked.interrupt_id, "approve", args_hash=asked.args_hash)
    event = await bench.stopped(waits.turn_id, after=waits.sequence)
    assert (event.state, bench.module.painted) == (STATES.SUCCEEDED, ["b"])
    before = await states(bench)
    (calls,) = (one for one in before if one.next == ("tools",))
    event = await bench.run(2, **client({}, checkpoint_id=id_of(calls), replays=True))
    assert (event.state, bench.module.painted) == (STATES.INTERRUPTED, ["b"])
    (again,) = await bench.pending()
    assert (again.interrupt_id != asked.interrupt_id, again.tool) == (True, "paint")
    refused = await bench.run(3, **client(human("Hello"), checkpoint_id=id_of(calls)))
    assert (refused.state, "waits for a decision" in refused.error) == (STATES.CANCELLED, True)
    assert [one.interrupt_id for one in await bench.pending()] == [again.interrupt_id]
    await bench.resolve(again.interrupt_id, "reject")
    event = await bench.stopped(event.turn_id, after=event.sequence)
    assert bench.module.painted == ["b"]


async def test_the_steps_after_a_write_never_run(bench: AuthorsBench) -> None:
    bench.bring(CALLING)
    await bench.open()
    await bench.run(**client(human("Hello")))
    forged = {"name": "paint", "args": {"what": "a"}, "id": "c"}
    said = {"type": "ai", "content": "", "id": "f", "tool_calls": [forged]}
    await bench.run(2, **write({"messages": [said]}, as_node="model"))
    newest = (await states(bench))[0]
    assert (newest.next, newest.metadata["source"]) == (("tools",), "update")
    event = await bench.run(3, **client({}, checkpoint_id=id_of(newest), replays=True))
    assert (event.state, "not run" in event.error) == (STATES.FAILED, True)
    event = await bench.run(4, **client(human("And?"), checkpoint_id=id_of(newest)))
    assert (event.state, bench.module.painted, await bench.pending()) == (STATES.SUCCEEDED, [], [])


async def test_a_checkpoint_that_is_not_kept_fails_the_run_and_changes_nothing(bench: AuthorsBench) -> None:
    before = await talked(bench)
    event = await bench.run(3, **client(human("Three"), checkpoint_id="1ef"))
    assert (event.state, "no checkpoint '1ef'" in event.error) == (STATES.FAILED, True)
    assert await states(bench) == before


async def test_the_newest_states_stay_within_limits_of_their_number_and_size(
    bench: AuthorsBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "MOST_KEPT", 4)
    whole = await talked(bench)
    assert len(whole) == 4
    monkeypatch.setattr(history, "MOST_BYTES", 1)
    await bench.run(3, **client(human("Three")))
    assert len(await states(bench)) == 1


async def test_a_crash_in_a_branch_continues_the_branch(bench: AuthorsBench) -> None:
    bench.bring(GRAPH)
    await bench.open()
    await bench.run(**client({"topic": "x"}))
    (start,) = (one for one in await states(bench) if one.next == ("__start__",))
    event = await bench.run(2, **client({"topic": "y"}, checkpoint_id=id_of(start), interrupt_before=["second"]))
    assert event.state == STATES.INTERRUPTED, event.error
    await bench.crash()
    (asked,) = await bench.pending()
    await bench.resolve(asked.interrupt_id, "approve", args_hash=asked.args_hash)
    event = await bench.stopped(event.turn_id, after=event.sequence)
    values = (await state_of(bench)).values
    assert (event.state, values["topic"], values["steps"]) == (STATES.SUCCEEDED, "y", ["first", "second"])


def test_a_client_cannot_forge_the_marks_of_checkpoints() -> None:
    ours = {"turn_id": "t", "grant": "{}"}
    forged = {"turn_id": "x", "grant": "x", "before_turn": "x", history.KEPT: False, "mine": 1}
    run = {"metadata": forged, "config": {"metadata": forged, "checkpoint_id": "x"}, "checkpoint_id": "c"}
    config = {"configurable": {"thread_id": "a"}, "metadata": ours}
    begun = history.client_run(config, run, begins=True)
    assert begun["metadata"] == {**ours, history.KEPT: True, "mine": 1}
    assert begun["configurable"] == {"thread_id": "a", "checkpoint_id": "c"}
    assert history.client_run(config, run, begins=False)["configurable"] == {"thread_id": "a"}
    assert json.loads(json.dumps(config)) == {"configurable": {"thread_id": "a"}, "metadata": ours}
