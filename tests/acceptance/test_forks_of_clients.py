"""Edit and regenerate, as LangGraph's clients ask for them, against a real constellation, also while it is killed."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from tests.acceptance.test_langgraph_clients import KILLS, SLOW, killed_during
from tests.support.langgraph import Lg, constellation_with_web, said
from tests.support.postgres import Server

pytestmark = pytest.mark.process
RUN = {"assistant_id": "agent0", "input": said("Hello")}


@pytest.fixture(scope="module")
def lg(postgres_server: Server | None) -> Iterator[Lg]:
    with constellation_with_web(postgres_server) as found:
        yield found


@pytest.fixture
async def client(lg: Lg) -> AsyncIterator[Any]:
    async with lg.client() as found:
        yield found


def texts(values: Any) -> list[str]:
    return [one["content"] for one in values["messages"] if one["type"] == "human"]


async def before_message(client: Any, thread_id: str, text: str) -> tuple[Any, Any]:
    """Return the state before a person's message, and the one from which its answer was made."""
    states = await client.threads.get_history(thread_id, limit=100)
    first = next(one for one in reversed(states) if texts(one["values"])[-1:] == [text])
    by_id = {one["checkpoint_id"]: one for one in states}
    return by_id[first["parent_checkpoint"]["checkpoint_id"]], first


async def test_a_history_holds_the_states_of_each_run(client: Any) -> None:
    thread = (await client.threads.create())["thread_id"]
    for text in ("Hello", "And now?"):
        await client.runs.wait(thread, "agent0", input=said(text))
    states = await client.threads.get_history(thread, limit=100)
    assert [one["next"] for one in states].count(["__start__"]) == 2
    assert [one["metadata"]["source"] for one in states if one["next"] == ["__start__"]] == ["input", "input"]
    steps = [one["metadata"]["step"] for one in states]
    assert steps == [*range(steps[0], -2, -1)]
    known = {one["checkpoint_id"] for one in states}
    parents = [one["parent_checkpoint_id"] for one in states]
    assert {*parents[:-1]} < known
    assert parents[-1] is None
    assert [await client.threads.get_state(thread, one["checkpoint"]) for one in states] == states
    assert not [one for one in states if "kept_for_clients" in one["metadata"]]


async def test_an_edited_message_makes_a_branch_beside_the_old_one(lg: Lg, client: Any) -> None:
    thread = (await client.threads.create())["thread_id"]
    await client.runs.wait(thread, "agent0", input=said("Hello"))
    await client.runs.wait(thread, "agent0", input=said("And now?", id="m1"))
    old = await client.threads.get_state(thread)
    start, _ = await before_message(client, thread, "And now?")
    assert start["next"] == ["__start__"]
    edited = {"input": said("And then?", id="m1"), "checkpoint": start["checkpoint"]}
    values = await client.runs.wait(thread, "agent0", **edited)
    assert texts(values) == ["Hello", "And then?"]
    assert await client.threads.get_state(thread, old["checkpoint"]) == old
    assert texts(await client.runs.wait(thread, "agent0", input=said("Last"))) == ["Hello", "And then?", "Last"]
    body = {"assistant_id": "agent0", "input": edited["input"], "checkpoint_id": start["checkpoint_id"]}
    lg.ask("POST", f"/threads/{thread}/runs/wait", body)
    assert len(await client.runs.list(thread)) == 4, "the repeated request is the run of before"
    changed = body | {"input": said("And what?", id="m1")}
    assert texts(lg.ask("POST", f"/threads/{thread}/runs/wait", changed)) == ["Hello", "And what?"]


async def test_an_answer_is_made_again_without_an_input(client: Any) -> None:
    thread = (await client.threads.create())["thread_id"]
    first = await client.runs.wait(thread, "agent0", input=said("Hello"))
    _, asked = await before_message(client, thread, "Hello")
    again = await client.runs.wait(thread, "agent0", input=None, checkpoint=asked["checkpoint"])
    assert texts(again) == ["Hello"]
    assert [one["type"] for one in again["messages"]] == [one["type"] for one in first["messages"]]
    assert again["messages"][-1]["id"] != first["messages"][-1]["id"]
    assert (await client.threads.get_history(thread))[0]["values"]["messages"] == again["messages"]


@pytest.mark.parametrize("process", ["gateway", "runtime"])
async def test_a_kill_during_a_fork_leaves_one_branch(lg: Lg, client: Any, process: str) -> None:
    thread = lg.thread()
    await client.runs.wait(thread, "agent0", input=said("Hello"))
    start, asked = await before_message(client, thread, "Hello")
    for given in ({"input": said(SLOW), "checkpoint": start["checkpoint"]}, {"checkpoint": asked["checkpoint"]}):
        parts = client.runs.stream(thread, "agent0", **{"input": None, "stream_mode": ["values"], **given})
        found = await killed_during(lg, parts, lambda: KILLS[process](lg))
        assert found[-1].event == "end"
        newest = (await client.threads.get_state(thread))["values"]
        assert texts(newest) == ([SLOW] if given.get("input") else ["Hello"])
    states = await client.threads.get_history(thread, limit=100)
    forks = [one for one in states if one["parent_checkpoint_id"] == start["checkpoint_id"]]
    forks += [one for one in states if one["parent_checkpoint_id"] == asked["checkpoint_id"]]
    assert sorted(one["metadata"]["source"] for one in forks) == ["fork", "input", "loop", "loop"]
    assert [run["status"] for run in await client.runs.list(thread)] == ["success"] * 3


def test_a_fork_that_cannot_be_is_refused_and_leaves_nothing(lg: Lg) -> None:
    made = lg.thread()
    lg.ask("POST", f"/threads/{made}/runs/wait", {"assistant_id": "agent0"}, status=422)
    lg.ask("POST", "/runs/wait", {"assistant_id": "agent0"}, status=422)
    unmade = {"assistant_id": "agent0", "if_not_exists": "create"}
    lg.ask("POST", "/threads/never-made/runs", unmade, status=404)
    lg.turn(made)
    newest = lg.ask("GET", f"/threads/{made}/state")
    lg.ask("POST", f"/threads/{made}/runs", RUN | {"checkpoint_id": "1ef"}, status=404)
    inner = {"checkpoint": {"checkpoint_id": newest["checkpoint_id"], "checkpoint_ns": "tools:1"}}
    assert "subgraph" in lg.refused("POST", f"/threads/{made}/runs", RUN | inner)
    written = {"values": {"messages": [{"role": "ai", "content": "Written", "id": "w"}]}, "as_node": "model"}
    lg.ask("POST", f"/threads/{made}/state", written)
    assert "after a write" in lg.refused("POST", f"/threads/{made}/runs", {"assistant_id": "agent0"})
    assert len(lg.ask("GET", f"/threads/{made}/runs")) == 1
    waits = lg.waiting()["thread_id"]
    oldest = lg.ask("POST", f"/threads/{waits}/history", {"limit": 100})[-1]["checkpoint_id"]
    assert "decide first" in lg.refused("POST", f"/threads/{waits}/runs", RUN | {"checkpoint_id": oldest}, status=409)


def test_a_run_that_names_the_newest_state_continues_it(lg: Lg) -> None:
    made = lg.thread()
    lg.turn(made)
    newest = lg.ask("GET", f"/threads/{made}/state")["checkpoint_id"]
    body = RUN | {"config": {"configurable": {"checkpoint_id": newest}}}
    assert texts(lg.ask("POST", f"/threads/{made}/runs/wait", body)) == ["Hello", "Hello"]
    run = lg.ask("GET", f"/threads/{made}/runs")[0]
    assert lg.ask("POST", f"/threads/{made}/history", {"metadata": {"run_id": run["run_id"]}})


def test_a_refused_write_leaves_no_failure(lg: Lg) -> None:
    made = lg.thread()
    lg.turn(made)
    wrong = {"values": {"nothing": 1}}
    assert "no field 'nothing'" in lg.ask("POST", f"/threads/{made}/state", wrong, status=422)["detail"]
    assert lg.ask("GET", f"/threads/{made}")["status"] == "idle"
    turns = lg.constellation.ask("agent-runtime", "turns", "list")
    refused = next(one for one in turns if one["thread_id"] == made and one["status"] != "succeeded")
    assert (refused["status"], refused["error"][:26]) == ("cancelled", "the state was not written:")


async def test_many_forks_at_once_run_one_after_the_other(client: Any) -> None:
    thread = (await client.threads.create())["thread_id"]
    await client.runs.wait(thread, "agent0", input=said("Hello"))
    start, _ = await before_message(client, thread, "Hello")
    each = [
        client.runs.wait(thread, "agent0", input=said(f"Fork {n}"), checkpoint=start["checkpoint"]) for n in range(3)
    ]
    await asyncio.gather(*each)
    states = await client.threads.get_history(thread, limit=100)
    ends = [texts(one["values"]) for one in states if not one["next"]]
    assert sorted(ends) == [["Fork 0"], ["Fork 1"], ["Fork 2"], ["Hello"]]
