"""Runs, lists and refusals, as clients of other Agent Protocol servers read them."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.langgraph import Lg, said
from tests.support.machines import constellation_on, new_home
from tests.support.web import configure, serving

HELD = """
import asyncio
from pathlib import Path
from langchain_core.messages import AIMessage
from langgraph.graph import END, START, MessagesState, StateGraph

async def hold(state):
    while state["messages"][-1].text == "Hold" and Path(__file__).with_name("held").exists():
        await asyncio.sleep(0.01)
    return {"messages": [AIMessage("Done")]}

builder = StateGraph(MessagesState)
builder.add_node(hold)
builder.add_edge(START, "hold")
builder.add_edge("hold", END)
graph = builder.compile()
"""
RUN: dict[str, Any] = {"assistant_id": "agent0", "input": said("Hello")}
HELLO = RUN | {"assistant_id": "held"}
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def lg(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lg]:
    """A constellation with a second graph, `held`, that holds at the message "Hold"."""
    project = tmp_path_factory.mktemp("project")
    (project / "graph.py").write_text(HELD)
    (project / "held").touch()
    graphs = f"[graphs]\nheld = {json.dumps(f'{project}/graph.py:graph')}\n"
    with new_home() as home, constellation_on(None, home) as constellation:
        shipped = (ROOT / "categories" / "conversation.toml").read_text()
        home.categories.mkdir(exist_ok=True)
        granted = shipped.replace("[scopes]\n", '[scopes]\ngraphs = ["held"]\n', 1)
        (home.categories / "conversation.toml").write_text(granted)
        configure(home, graphs)
        constellation.start()
        with serving(home, graphs) as web:
            made = Lg(constellation, web)
            yield made
            made.http.close()


def held(lg: Lg, thread: str) -> str:
    """Return a run that runs until it is cancelled."""
    place = f"/threads/{thread}/runs"
    run_id = lg.ask("POST", place, {"assistant_id": "held", "input": said("Hold")})["run_id"]

    def runs() -> bool:
        return bool(lg.ask("GET", f"{place}/{run_id}")["status"] == "running" and texts(lg, thread)[-1:] == ["Hold"])

    lg.constellation.until("the run to run", runs)
    return str(run_id)


def texts(lg: Lg, thread: str) -> list[str]:
    """Return the texts of the human messages in a thread's state."""
    messages = lg.ask("GET", f"/threads/{thread}/state")["values"].get("messages", [])
    return [one["content"] for one in messages if one["type"] == "human"]


def made(lg: Lg) -> str:
    """Return a new assistant."""
    return str(lg.ask("POST", "/assistants", {"graph_id": "agent0", "name": "Mine"})["assistant_id"])


def test_a_run_has_the_category_conversation_and_the_homes_own_file_of_it_counts(lg: Lg) -> None:
    file = lg.constellation.home.categories / "conversation.toml"
    before = file.read_text()
    file.write_text(before.replace('  "memory.put",\n', ""))
    try:
        thread = lg.thread()
        body = {"assistant_id": "agent0", "input": said("Remember: the pump was replaced")}
        run = lg.ask("POST", f"/threads/{thread}/runs", body)
        (waiting,) = lg.until_waiting(thread)["interrupts"].values()
    finally:
        file.write_text(before)
    run = lg.ask("GET", f"/threads/{thread}/runs/{run['run_id']}")
    assert run["metadata"]["turnkeeper"]["category"] == "conversation"
    assert waiting[0]["value"]["turnkeeper"]["missing_scope"] == "memory.put"


def test_a_run_that_begins_later_has_the_category_of_crons(lg: Lg) -> None:
    run = lg.ask("POST", f"/threads/{lg.thread()}/runs", RUN | {"after_seconds": 3600})
    assert run["metadata"]["turnkeeper"]["category"] == "loop"


def test_get_health(lg: Lg) -> None:
    assert lg.ask("GET", "/health", headers={"x-api-key": ""}) == {"ok": True}


def test_get_assistants(lg: Lg) -> None:
    found = lg.ask("GET", "/assistants")
    assert found["total"] == len(found["assistants"])
    assert "agent0" in {one["name"] for one in found["assistants"]}


def test_get_threads(lg: Lg) -> None:
    older, newer = lg.thread(), lg.thread()
    found = lg.ask("GET", "/threads?limit=1")
    assert [one["thread_id"] for one in found["threads"]] == [newer]
    assert found["total"] >= 2
    assert [one["thread_id"] for one in lg.ask("GET", "/threads?limit=1&offset=1")["threads"]] == [older]


def test_a_request_without_a_key_is_told_so_by_name(lg: Lg) -> None:
    refused = httpx.get(f"{lg.url}/assistants")
    assert (refused.status_code, refused.json()["error"]) == (401, "unauthorized")


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code"),
    [
        ("POST", "/threads/{thread}/runs", RUN | {"feedback_keys": ["score"]}, 422, "not_supported"),
        ("POST", "/threads/{thread}/runs", {"assistant_id": ""}, 422, "invalid"),
        ("POST", "/threads/{thread}/runs", RUN | {"assistant_id": "nosuch"}, 404, "not_found"),
        ("POST", "/threads/{thread}/state", {"values": {"messages": []}}, 400, "no_graph"),
        ("POST", "/threads/{thread}/state", {"values": None, "as_node": "__end__"}, 409, "conflict"),
    ],
)
def test_a_refusal_has_a_code_and_says_what_to_do_instead(
    lg: Lg, method: str, path: str, body: Any, status: int, code: str
) -> None:
    refused = lg.ask(method, path.format(thread=lg.thread()), body, status=status)
    assert refused["code"] == code
    assert refused["instead"]
    assert refused["instead"] in refused["detail"]


def test_a_run_that_is_over_has_the_values_that_join_answers(lg: Lg) -> None:
    thread = lg.thread()
    place = f"/threads/{thread}/runs/{lg.turn(thread)}"
    run = lg.ask("GET", place)
    assert run["output"] == lg.ask("GET", f"{place}/join")
    assert run["output"]["messages"]
    assert "output" not in lg.ask("GET", f"{place}?select=status")


def test_a_run_that_waits_shows_what_it_asks_and_a_decision_without_an_id_then_counts(lg: Lg) -> None:
    found = lg.waiting()
    thread = found["thread_id"]
    (run,) = lg.ask("GET", f"/threads/{thread}/runs")
    key = {"x-api-key": lg.web.key("another", "decide")}
    decide = {"assistant_id": "agent0", "command": {"resume": [{"type": "ignore", "args": None}]}}
    lg.ask("POST", f"/threads/{thread}/runs", decide, status=409, headers=key)
    output = lg.ask("GET", f"/threads/{thread}/runs/{run['run_id']}", headers=key)["output"]
    assert [one["id"] for one in output["__interrupt__"]] == [*found["interrupts"]]
    lg.ask("POST", f"/threads/{thread}/runs", decide, headers=key)


def test_a_client_that_joins_a_run_gets_the_modes_of_the_run_or_those_that_it_names(lg: Lg) -> None:
    made, modes = lg.thread(), ["updates", "messages-tuple"]
    told = lg.stream(f"/threads/{made}/runs/stream", RUN | {"stream_mode": modes})
    place = f"/threads/{made}/runs/{told[0][1]['run_id']}/stream"
    names = {name for name, _ in told}
    assert names == {"metadata", "updates", "messages", "end"}
    assert lg.stream(place) == told, "as a page does that was loaded again"
    assert {name for name, _ in lg.stream(f"{place}?stream_mode=messages")} >= {"messages/partial"}
    assert [name for name, _ in lg.stream(f"{place}?stream_mode=values")] == ["metadata", "values", "end"]


def test_a_run_that_waits_its_turn_is_listed_as_pending(lg: Lg) -> None:
    place = f"/threads/{lg.waiting()['thread_id']}/runs"
    first, second = (lg.ask("POST", place, RUN)["run_id"] for _ in range(2))

    def listed() -> list[tuple[str, str]]:
        return [(run["run_id"], run["status"]) for run in lg.ask("GET", place)]

    lg.constellation.until("both to be listed", lambda: len(listed()) == 3)
    assert listed()[:2] == [(second, "pending"), (first, "pending")]
    assert [run["run_id"] for run in lg.ask("GET", f"{place}?status=pending&limit=1")] == [second]


def test_a_cancelled_run_says_so_at_once(lg: Lg) -> None:
    found = lg.waiting()
    place = f"/threads/{found['thread_id']}/runs"
    (run,) = lg.ask("GET", place)
    assert lg.ask("POST", f"{place}/{run['run_id']}/cancel")["status"] == "interrupted"
    assert lg.ask("POST", f"{place}/{run['run_id']}/cancel?wait=1")["cancel_reason"] == "cancelled over the API"


def test_a_run_of_a_deleted_assistant_names_its_graphs_own(lg: Lg) -> None:
    thread, assistant = lg.thread(), made(lg)
    place = f"/threads/{thread}/runs"
    lg.ask("POST", f"{place}/wait", RUN | {"assistant_id": assistant})
    (run,) = lg.ask("GET", place)
    assert run["assistant_id"] == assistant
    lg.ask("DELETE", f"/assistants/{assistant}", status=204)
    own = lg.ask("GET", "/assistants/agent0")["assistant_id"]
    assert [one["assistant_id"] for one in lg.ask("GET", place)] == [own]
    assert lg.ask("GET", f"{place}/{run['run_id']}")["assistant_id"] == own


def test_several_values_are_written_at_once_and_without_values_the_state_is_read(lg: Lg) -> None:
    thread = lg.thread()
    lg.turn(thread)
    place = f"/threads/{thread}/state"
    said_twice = [{"messages": [{"role": "user", "content": text, "id": text}]} for text in ("First", "Second")]
    lg.ask("POST", place, {"values": said_twice, "as_node": "model"})
    state = lg.ask("GET", place)
    assert [one["content"] for one in state["values"]["messages"]][-2:] == ["First", "Second"]
    assert lg.ask("POST", place, {}) == lg.ask("POST", place, {"values": None}) == state


def test_events_of_each_call_are_streamed(lg: Lg) -> None:
    body = RUN | {"stream_mode": ["events"]}
    told = [data for name, data in lg.stream(f"/threads/{lg.thread()}/runs/stream", body) if name == "events"]
    assert {"on_chain_start", "on_chain_stream", "on_chain_end"} <= {one["event"] for one in told}
    assert json.dumps(told)


@pytest.mark.parametrize(
    ("strategy", "stays"), [("interrupt", ["Hello", "Hold", "Now this"]), ("rollback", ["Hello", "Now this"])]
)
def test_a_run_takes_the_place_of_those_that_are_not_over(lg: Lg, strategy: str, stays: list[str]) -> None:
    thread = lg.thread()
    place = f"/threads/{thread}/runs"
    lg.ask("POST", f"{place}/wait", HELLO)
    running, queued = held(lg, thread), lg.ask("POST", place, HELLO)["run_id"]
    listed = {run["run_id"]: run["status"] for run in lg.ask("GET", place)}
    assert (listed[running], listed[queued]) == ("running", "pending")
    body = {"assistant_id": "held", "input": said("Now this", id="m1"), "multitask_strategy": strategy}
    answer = lg.http.post(f"{place}/wait", json=body)
    assert [one["content"] for one in answer.json()["messages"] if one["type"] == "human"] == stays
    made = answer.headers["content-location"].rpartition("/")[2]
    statuses = {run["run_id"]: run["status"] for run in lg.ask("GET", place)}
    assert (statuses[running], statuses[queued], statuses[made]) == ("interrupted", "interrupted", "success")
    assert lg.ask("POST", place, body)["run_id"] == made, "the repeated request is the run of before"
    assert texts(lg, thread) == stays


def test_the_first_run_of_a_thread_is_rolled_back_to_nothing(lg: Lg) -> None:
    thread = lg.thread()
    held(lg, thread)
    lg.ask("POST", f"/threads/{thread}/runs/wait", HELLO | {"multitask_strategy": "rollback"})
    assert texts(lg, thread) == ["Hello"]


@pytest.mark.parametrize("strategy", ["interrupt", "rollback"])
def test_a_pending_approval_is_decided_before_another_run_takes_the_place(lg: Lg, strategy: str) -> None:
    found = lg.waiting()
    place = f"/threads/{found['thread_id']}/runs"
    refused = lg.ask("POST", place, RUN | {"multitask_strategy": strategy}, status=409)
    assert refused["code"] == "conflict"
    assert "decide first" in refused["instead"]
    assert lg.ask("GET", f"/threads/{found['thread_id']}")["interrupts"] == found["interrupts"]


def test_an_unknown_strategy_is_refused_with_those_that_exist(lg: Lg) -> None:
    refused = lg.ask("POST", f"/threads/{lg.thread()}/runs", RUN | {"multitask_strategy": "race"}, status=422)
    assert refused["instead"] == "one of enqueue, reject, interrupt, rollback"
