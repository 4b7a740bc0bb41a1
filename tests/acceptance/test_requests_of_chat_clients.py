"""The requests of agent-chat-ui and agent-inbox as they send them, and the fields that they read in the answers."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.langgraph import Lg, constellation_with_web
from tests.support.postgres import Server

pytestmark = pytest.mark.process
MODES = ["messages-tuple", "values", "custom"]
CHAT = {"assistant_id": "agent0", "stream_mode": MODES, "stream_resumable": True, "on_disconnect": "continue"}
RESUMES = CHAT | {"input": {}, "stream_resumable": False, "on_disconnect": "cancel"}
ARGS = {"tier": "channel", "text": "the pump was replaced"}
LISTED = {"metadata": {"graph_id": "agent0"}, "limit": 10, "offset": 0, "status": "interrupted"}


@pytest.fixture(scope="module")
def lg(postgres_server: Server | None) -> Iterator[Lg]:
    with constellation_with_web(postgres_server) as found:
        yield found


def human(text: str, **rest: Any) -> dict[str, Any]:
    return {"messages": [{"type": "human", "content": text, **rest}]}


def chat(lg: Lg, thread: str, **body: Any) -> list[tuple[str, Any]]:
    """Return the events of a run of agent-chat-ui."""
    told = lg.stream(f"/threads/{thread}/runs/stream", CHAT | {"stream_subgraphs": True} | body)
    assert told[-1][0] == "end", "an error is shown to the person"
    return told


def seen_first(lg: Lg, thread: str, type_: str) -> dict[str, Any]:
    """Return the oldest state with the newest message of a type, as the page finds it to edit or to regenerate."""
    states: list[dict[str, Any]] = lg.ask("POST", f"/threads/{thread}/history", {"limit": 10})
    newest = [one["id"] for one in states[0]["values"]["messages"] if one["type"] == type_][-1]
    return [one for one in states if newest in [message["id"] for message in one["values"].get("messages", ())]][-1]


def place_of(state: dict[str, Any]) -> dict[str, Any]:
    """Return the parent of a state as the page names it."""
    return {name: value for name, value in state["parent_checkpoint"].items() if name != "thread_id"}


def said(lg: Lg, thread: str) -> list[Any]:
    values = lg.ask("GET", f"/threads/{thread}/state")["values"]
    return [one["content"] for one in values["messages"] if one["type"] == "human"]


def test_agent_chat_ui_looks_talks_lists_edits_and_regenerates(lg: Lg) -> None:
    assert lg.ask("GET", "/info", headers={"x-auth-scheme": "langsmith-api-key"})
    thread = lg.ask("POST", "/threads", {"metadata": {}})["thread_id"]
    blocks = [{"type": "text", "text": "Hello"}]
    told = chat(lg, thread, input=human("", content=blocks, id="c1"))
    values = [data for name, data in told if name == "values"][-1]
    assert [one["id"] for one in values["messages"] if one["type"] == "human"] == ["c1"]
    assert all({"id", "type", "content"} <= one.keys() for one in values["messages"])
    listed = lg.ask("POST", "/threads/search", {"metadata": {"graph_id": "agent0"}, "limit": 100, "offset": 0})
    shown = next(one for one in listed if one["thread_id"] == thread)
    assert shown["values"]["messages"][0]["content"] == blocks
    answer = values["messages"][-1]["id"]
    chat(lg, thread, input=human("Edited"), checkpoint=place_of(seen_first(lg, thread, "human")))
    assert said(lg, thread) == ["Edited"]
    chat(lg, thread, checkpoint=place_of(seen_first(lg, thread, "ai")))
    states = lg.ask("POST", f"/threads/{thread}/history", {"limit": 10})
    assert said(lg, thread) == ["Edited"]
    assert states[0]["values"]["messages"][-1]["id"] != answer
    for state in states:
        assert {"values", "next", "tasks", "created_at", "checkpoint", "parent_checkpoint"} <= state.keys()


@pytest.mark.parametrize(
    ("command", "decision"),
    [
        ({"resume": {"decisions": [{"type": "approve"}]}}, "approve"),
        ({"resume": {"decisions": [{"type": "reject", "message": "Not now"}]}}, "reject"),
        ({"goto": "__end__"}, "reject"),
    ],
)
def test_agent_chat_ui_decides_about_the_call_that_it_shows(lg: Lg, command: Any, decision: str) -> None:
    thread = lg.waiting()["thread_id"]
    newest = lg.ask("POST", f"/threads/{thread}/history", {"limit": 10})[0]
    (shown,) = [one for task in newest["tasks"] for one in task["interrupts"]]
    (call,), (config,) = shown["value"]["action_requests"], shown["value"]["review_configs"]
    assert (call["name"], call["args"]["text"]) == ("memory_put", "the pump was replaced")
    assert config == {"action_name": "memory_put", "allowed_decisions": ["approve", "edit", "reject"]}
    at = {name: newest["checkpoint"][name] for name in ("checkpoint_ns", "checkpoint_id")}
    told = lg.stream(f"/threads/{thread}/runs/stream", RESUMES | {"command": command, "checkpoint": at})
    assert told[-1][0] == "end"
    assert decided(lg, thread) == decision


@pytest.mark.parametrize(
    ("answer", "decision"),
    [
        ({"type": "accept", "args": {"action": "memory_put", "args": ARGS}}, "approve"),
        ({"type": "accept", "args": None}, "approve"),
        ({"type": "edit", "args": {"action": "memory_put", "args": ARGS | {"text": "changed"}}}, "edit"),
        ({"type": "response", "args": "Not now"}, "reject"),
    ],
)
def test_agent_inbox_lists_what_waits_and_decides(lg: Lg, answer: Any, decision: str) -> None:
    thread = lg.waiting()["thread_id"]
    (listed,) = [one for one in lg.ask("POST", "/threads/search", LISTED) if one["thread_id"] == thread]
    assert listed == lg.ask("GET", f"/threads/{thread}")
    ((asked,),) = listed["interrupts"].values()
    call, config = asked["value"]["action_requests"][0], asked["value"]["review_configs"][0]
    assert (call["name"], call["arguments"]["text"]) == ("memory_put", "the pump was replaced")
    assert "asks to call memory_put" in call["description"]
    assert {"approve", "edit", "reject"} == {*config["allowed_decisions"]}
    assert (listed["status"], listed["created_at"] <= listed["updated_at"]) == ("interrupted", True)
    assert listed["values"]["messages"]
    body = {"assistant_id": "agent0", "command": {"resume": [answer]}, "stream_mode": "events"}
    told = lg.stream(f"/threads/{thread}/runs/stream", body)
    assert told[-1][0] == "end"
    assert decided(lg, thread) == decision
    assert thread not in [one["thread_id"] for one in lg.ask("POST", "/threads/search", LISTED)]


@pytest.mark.parametrize("way", ["ignore", "resolve"])
def test_agent_inbox_ignores_and_resolves(lg: Lg, way: str) -> None:
    thread = lg.waiting()["thread_id"]
    if way == "ignore":
        body = {"assistant_id": "agent0", "command": {"resume": [{"type": "ignore", "args": None}]}}
        lg.ask("GET", f"/threads/{thread}")
        lg.ask("POST", f"/threads/{thread}/runs", body)
    else:
        lg.ask("POST", f"/threads/{thread}/state", {"values": None, "as_node": "__end__"})
    assert decided(lg, thread) == "reject"


def decided(lg: Lg, thread: str) -> str:
    """Return the decision about the only approval of a thread."""
    listed = lg.constellation.ask("agent-runtime", "approvals", "list", "--all")
    (found,) = [one for one in listed if one["thread_id"] == thread]
    return str(found["decision"])
