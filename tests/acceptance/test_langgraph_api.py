"""The LangGraph API, request by request: each that is answered has a test of its name."""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from websockets.sync.client import connect

from tests.support.constellation import AGENT_RUNTIME
from tests.support.langgraph import Lg, constellation_with_web, said
from tests.support.postgres import Server

pytestmark = pytest.mark.process
RUN = {"assistant_id": "agent0", "input": said("Hello")}
APPROVE = {"decisions": [{"type": "approve"}]}
DECIDE = {"assistant_id": "agent0", "input": {}, "command": {"resume": APPROVE}, "on_disconnect": "cancel"}


@pytest.fixture(scope="module")
def lg(postgres_server: Server | None) -> Iterator[Lg]:
    with constellation_with_web(postgres_server) as found:
        yield found


@pytest.fixture(scope="module")
def thread(lg: Lg) -> str:
    """A thread with one turn."""
    made = lg.thread(team="ops")
    lg.turn(made)
    return made


def test_get_ok(lg: Lg) -> None:
    assert lg.ask("GET", "/ok", headers={"x-api-key": ""}) == {"ok": True}


def test_get_info(lg: Lg) -> None:
    info = lg.ask("GET", "/info", headers={"x-api-key": ""})
    assert (info["flags"]["assistants"], info["flags"]["crons"]) == (True, True)


def test_post_assistants(lg: Lg) -> None:
    made = lg.ask("POST", "/assistants", {"graph_id": "agent0", "name": "Mine"})
    assert (made["graph_id"], made["name"], made["version"]) == ("agent0", "Mine", 1)
    lg.ask("DELETE", f"/assistants/{made['assistant_id']}", status=204)
    assert "missing" in lg.refused("POST", "/assistants", {})
    assert "assistant 'x' not found" in lg.refused("POST", "/assistants", {"graph_id": "x"}, status=404)


def test_post_assistants_search(lg: Lg) -> None:
    (found,) = lg.ask("POST", "/assistants/search", {})
    assert (found["name"], found["graph_id"]) == ("agent0", "agent0")
    assert lg.ask("POST", "/assistants/search", {"graph_id": "another"}) == []


def test_post_assistants_count(lg: Lg) -> None:
    assert lg.ask("POST", "/assistants/count", {}) == 1


def test_get_assistants_assistant_id(lg: Lg) -> None:
    by_name = lg.ask("GET", "/assistants/agent0")
    assert lg.ask("GET", f"/assistants/{by_name['assistant_id']}") == by_name
    assert "assistant 'agnt0' not found; did you mean agent0?" in lg.refused("GET", "/assistants/agnt0", status=404)


def test_patch_assistants_assistant_id(lg: Lg) -> None:
    lg.refused("PATCH", "/assistants/agent0", {"name": "x"})


def test_delete_assistants_assistant_id(lg: Lg) -> None:
    lg.refused("DELETE", "/assistants/agent0")


def test_get_assistants_assistant_id_graph(lg: Lg) -> None:
    graph = lg.ask("GET", "/assistants/agent0/graph")
    assert {"__start__", "model", "tools", "__end__"} <= {one["id"] for one in graph["nodes"]}
    assert ("tools", "model") in {(one["source"], one["target"]) for one in graph["edges"]}
    assert lg.ask("GET", "/assistants/agent0/graph?xray=true")["nodes"]
    assert "not a number" in lg.ask("GET", "/assistants/agent0/graph?xray=deep", status=422)["detail"]


def test_get_assistants_assistant_id_schemas(lg: Lg) -> None:
    assert "messages" in lg.ask("GET", "/assistants/agent0/schemas")["input_schema"]["properties"]


def test_get_assistants_assistant_id_subgraphs(lg: Lg) -> None:
    assert lg.ask("GET", "/assistants/agent0/subgraphs") == {}


def test_get_assistants_assistant_id_subgraphs_namespace(lg: Lg) -> None:
    assert lg.ask("GET", "/assistants/agent0/subgraphs/tools") == {}


def test_post_assistants_assistant_id_versions(lg: Lg) -> None:
    (found,) = lg.ask("POST", "/assistants/agent0/versions", {})
    assert found == lg.ask("GET", "/assistants/agent0")


def test_post_assistants_assistant_id_latest(lg: Lg) -> None:
    lg.refused("POST", "/assistants/agent0/latest", {"version": 1})


def test_post_threads(lg: Lg) -> None:
    made = lg.ask("POST", "/threads", {"thread_id": "0a1b2c3d-0000-4000-8000-00000000000a", "metadata": {"a": 1}})
    assert (made["status"], made["metadata"]["a"], made["interrupts"]) == ("idle", 1, {})
    again = {"thread_id": made["thread_id"], "metadata": {"a": 2}}
    lg.ask("POST", "/threads", again, status=409)
    assert lg.ask("POST", "/threads", again | {"if_exists": "do_nothing"})["metadata"]["a"] == 1
    lg.refused("POST", "/threads", {"ttl": {"ttl": 5}})


@pytest.mark.parametrize("key", ["checkpoint_id", "thread_ts", "turn_id", "grant", "langgraph_auth_user", "__pregel_x"])
def test_no_door_takes_a_key_by_which_a_thread_could_be_moved_back(
    lg: Lg, thread: str, key: str, tmp_path: Path
) -> None:
    says, context = f"{key!r} is set by Turnkeeper or LangGraph", {key: "x"}
    run = {"assistant_id": "agent0", "input": said("Hello"), "context": context}
    cron = run | {"schedule": "0 9 * * *"}
    for path, body in (
        *((f"/threads/{thread}/runs{way}", run) for way in ("", "/wait", "/stream")),
        *((f"/runs{way}", run) for way in ("", "/wait", "/stream")),
        (f"/threads/{thread}/runs/crons", cron),
        ("/runs/crons", cron),
    ):
        assert says in lg.ask("POST", path, body, status=422)["detail"], path
    made = lg.cron()
    assert says in lg.ask("PATCH", f"/runs/crons/{made['cron_id']}", {"context": context}, status=422)["detail"]
    text, rest = json.dumps(context), ("--every", "1h", "--category", "loop", "--channel", "c", "--prompt", "p")
    file = tmp_path / "task.toml"
    file.write_text(
        f'[[task]]\nname = "f"\nevery = "1h"\ncategory = "loop"\nchannel = "c"\nprompt = "p"\ncontext = {{{key} = "x"}}\n'
    )
    for argv in (
        *(("send", "general", "Hello", option, text) for option in ("--context", "--config")),
        *(("task", "create", "x", *rest, option, text) for option in ("--context", "--config")),
        ("task", "apply", str(file)),
    ):
        refused = lg.constellation.attempt("turnkeeper", *argv)
        assert (refused.returncode, says in refused.stderr) == (2, True), (argv, refused.stderr)


def test_get_threads_thread_id(lg: Lg, thread: str) -> None:
    lg.turn(thread)
    found = lg.ask("GET", f"/threads/{thread}")
    assert found["values"]["messages"][0]["type"] == "human"
    assert found["metadata"]["graph_id"] == "agent0"
    lg.ask("GET", "/threads/nowhere", status=404)


def test_patch_threads_thread_id(lg: Lg) -> None:
    made = lg.thread(a=1, b=2)
    changed = lg.ask("PATCH", f"/threads/{made}", {"metadata": {"b": 3}})
    assert (changed["metadata"]["a"], changed["metadata"]["b"]) == (1, 3)
    lg.ask("PATCH", f"/threads/{made}", {"metadata": {"b": 4}}, status=204, headers={"prefer": "return=minimal"})
    lg.ask("PATCH", "/threads/nowhere", {"metadata": {"b": 3}}, status=404)


def test_post_threads_search(lg: Lg, thread: str) -> None:
    found = lg.ask("POST", "/threads/search", {"metadata": {"team": "ops", "graph_id": "agent0"}})
    assert [one["thread_id"] for one in found] == [thread]
    assert found[0]["values"]["messages"]
    assert lg.ask("POST", "/threads/search", {"ids": [thread], "select": ["thread_id"]}) == [{"thread_id": thread}]
    assert lg.ask("POST", "/threads/search", {"ids": [thread], "status": "busy"}) == []
    lg.refused("POST", "/threads/search", {"status": "lost"})
    lg.refused("POST", "/threads/search", {"values": {"a": 1}})


def test_post_threads_count(lg: Lg, thread: str) -> None:
    assert lg.ask("POST", "/threads/count", {"metadata": {"team": "ops"}}) == 1


def test_post_threads_prune(lg: Lg) -> None:
    lg.refused("POST", "/threads/prune", {"thread_ids": ["a"]})


def test_delete_threads_thread_id(lg: Lg) -> None:
    """A deleted thread is gone for every client; its turn stays in the conversation of its channel."""
    made = lg.thread(team="gone")
    turn = lg.turn(made, "Hello from a thread that is deleted")
    lg.ask("DELETE", f"/threads/{made}", status=204)
    for method, path, body in (
        ("GET", f"/threads/{made}", None),
        ("GET", f"/threads/{made}/state", None),
        ("POST", f"/threads/{made}/runs", RUN),
        ("DELETE", f"/threads/{made}", None),
    ):
        assert "not found" in lg.refused(method, path, body, status=404)
    assert "was deleted" in lg.refused("POST", f"/threads/{made}/runs", RUN | {"if_not_exists": "create"}, status=404)
    assert lg.ask("POST", "/threads/search", {"metadata": {"team": "gone"}}) == []
    assert turn in [one["turn_id"] for one in lg.constellation.conversation()]


def test_a_thread_whose_turn_waits_is_deleted_and_its_turn_is_cancelled(lg: Lg) -> None:
    waits = lg.waiting()["thread_id"]
    (turn,) = (one["run_id"] for one in lg.ask("GET", f"/threads/{waits}/runs"))
    lg.ask("DELETE", f"/threads/{waits}", status=204)
    assert lg.constellation.ask("agent-runtime", "turns", "show", turn)["status"] == "cancelled"
    assert lg.constellation.ask("agent-runtime", "approvals", "list") == []


def test_post_threads_thread_id_copy(lg: Lg, thread: str) -> None:
    made = lg.ask("POST", f"/threads/{lg.thread(team='copied')}/copy")
    assert made["metadata"]["team"] == "copied"
    assert "before its first run" in lg.refused("POST", f"/threads/{thread}/copy")


def test_get_threads_thread_id_state(lg: Lg, thread: str) -> None:
    state = lg.ask("GET", f"/threads/{thread}/state")
    assert (state["next"], state["checkpoint"]["thread_id"]) == ([], thread)
    assert lg.ask("GET", f"/threads/{lg.thread()}/state")["checkpoint"] is None
    lg.ask("GET", "/threads/nowhere/state", status=404)


def test_get_threads_thread_id_state_checkpoint_id(lg: Lg, thread: str) -> None:
    newest = lg.ask("GET", f"/threads/{thread}/state")
    assert lg.ask("GET", f"/threads/{thread}/state/{newest['checkpoint']['checkpoint_id']}") == newest
    lg.ask("GET", f"/threads/{thread}/state/turn-0", status=404)


def test_post_threads_thread_id_state_checkpoint(lg: Lg, thread: str) -> None:
    newest = lg.ask("GET", f"/threads/{thread}/state")
    assert lg.ask("POST", f"/threads/{thread}/state/checkpoint", {"checkpoint": newest["checkpoint"]}) == newest


def test_post_threads_thread_id_state(lg: Lg) -> None:
    found = lg.waiting()
    place = f"/threads/{found['thread_id']}/state"
    written = {"values": {"messages": [{"role": "ai", "content": "Forged", "id": "f"}]}}
    assert "busy" in lg.refused("POST", place, written, status=409)
    lg.ask("POST", place, {"values": None, "as_node": "__end__"})
    assert lg.ask("GET", f"/threads/{found['thread_id']}")["interrupts"] == {}
    lg.ask("POST", place, {"values": None, "as_node": "__end__"}, status=409)


def test_post_threads_thread_id_history(lg: Lg) -> None:
    made = lg.thread()
    first, second = lg.turn(made), lg.turn(made, "And now?")
    states = lg.ask("POST", f"/threads/{made}/history", {"limit": 5})
    assert states[0] == lg.ask("GET", f"/threads/{made}/state")
    assert states[0]["metadata"]["run_id"] == second != first
    before = lg.ask("POST", f"/threads/{made}/history", {"before": states[0]["checkpoint"]})
    assert states[0]["checkpoint_id"] not in [one["checkpoint_id"] for one in before]
    assert lg.ask("POST", f"/threads/{made}/history", {"metadata": {"run_id": "another"}}) == []


def test_get_threads_thread_id_history(lg: Lg, thread: str) -> None:
    assert len(lg.ask("GET", f"/threads/{thread}/history?limit=1")) == 1


def test_post_threads_thread_id_runs(lg: Lg) -> None:
    made = lg.thread()
    answer = lg.http.post(f"/threads/{made}/runs", json=RUN)
    run = answer.json()
    assert answer.headers["content-location"] == f"/threads/{made}/runs/{run['run_id']}"
    assert run["status"] in {"pending", "running", "success"}
    assert run["assistant_id"] == lg.ask("GET", "/assistants/agent0")["assistant_id"]
    lg.ask("POST", "/threads/nowhere/runs", RUN, status=404)
    lg.ask("POST", "/threads/made-by-a-run/runs", RUN | {"if_not_exists": "create"})
    lg.refused("POST", f"/threads/{made}/runs", RUN | {"assistant_id": "nobody"}, status=404)
    lg.refused("POST", f"/threads/{made}/runs", RUN | {"webhook": "http://127.0.0.1/"}, status=403)
    picture = [
        {"type": "text", "text": "What is it?"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,"}},
    ]
    kept = lg.ask("POST", f"/threads/{lg.thread()}/runs/wait", RUN | {"input": said(picture, id="p")})["messages"][0]
    assert (kept["id"], kept["content"]) == ("p", picture)
    lg.ask("POST", f"/threads/{made}/runs", "not an object", status=422)


def test_a_message_with_an_id_or_a_key_is_taken_once(lg: Lg) -> None:
    made = lg.thread()
    body = {"assistant_id": "agent0", "input": said("Once", id="0b8f8d0e")}
    runs = {lg.ask("POST", f"/threads/{made}/runs", body)["run_id"] for _ in range(3)}
    headers = {"idempotency-key": "k1"}
    keyed = {lg.ask("POST", f"/threads/{made}/runs", RUN, headers=headers)["run_id"] for _ in range(2)}
    assert (len(runs), len(keyed)) == (1, 1)
    of_another = lg.ask("POST", f"/threads/{made}/runs", RUN, headers=headers | {"x-api-key": lg.keys["work"]})[
        "run_id"
    ]
    assert of_another not in keyed, "a key of a client counts for its own API key"


@pytest.mark.parametrize("key", ["checkpoint_id", "checkpoint_ns", "thread_id", "turn_id", "grant", "__pregel_send"])
def test_a_context_cannot_hold_what_langgraph_sets(lg: Lg, thread: str, key: str) -> None:
    body = RUN | {"context": {key: "x"}}
    assert f"'{key}' is set by" in lg.refused("POST", f"/threads/{thread}/runs", body)
    assert f"'{key}' is set by" in lg.refused("POST", "/runs/crons", body | {"schedule": "0 9 * * *"})


def test_post_threads_thread_id_runs_stream(lg: Lg) -> None:
    made = lg.thread()
    modes = ["values", "messages-tuple", "updates", "events"]
    found = lg.stream(f"/threads/{made}/runs/stream", RUN | {"stream_mode": modes, "stream_subgraphs": True})
    names = [name for name, _ in found]
    assert (names[0], names[-1]) == ("metadata", "end")
    assert set(names) == {"metadata", "values", "messages", "updates", "events", "end"}
    spoken: dict[str, str] = {}
    for name, data in found:
        if name == "messages" and data[0]["type"] == "AIMessageChunk":
            spoken[data[0]["id"]] = spoken.get(data[0]["id"], "") + data[0]["content"]
    last = [data for name, data in found if name == "values"][-1]["messages"]
    assert spoken == {one["id"]: one["content"] for one in last if one["type"] == "ai"}


def test_where_a_run_is_has_no_prefix(lg: Lg) -> None:
    made = lg.thread()
    with lg.http.stream("POST", f"/threads/{made}/runs/stream", json=RUN | {"stream_mode": "updates"}) as answer:
        location = answer.headers["location"]
        assert location == f"{answer.headers['content-location']}/stream?stream_mode=updates"
        assert location.startswith(f"/threads/{made}/runs/turn-")
        answer.read()
    assert {name for name, _ in lg.stream(location)} == {"metadata", "updates", "end"}


def test_post_threads_thread_id_runs_wait(lg: Lg) -> None:
    made = lg.thread()
    answer = lg.http.post(f"/threads/{made}/runs/wait", json=RUN)
    assert answer.headers["location"] == f"{answer.headers['content-location']}/join"
    assert answer.json()["messages"][-1]["type"] == "ai"


def test_a_decision_without_an_id_needs_a_look_and_a_key_that_may_decide(lg: Lg) -> None:
    thread_id = lg.waiting()["thread_id"]
    place = f"/threads/{thread_id}/runs/wait"
    work = {"x-api-key": lg.keys["work"]}
    assert "scope decide" in lg.refused("POST", place, DECIDE, status=403, headers=work)
    other = {"x-api-key": lg.web.key("other", "decide")}
    assert "was not shown" in lg.refused("POST", place, DECIDE, status=409, headers=other)
    assert lg.ask("POST", place, DECIDE)["messages"][-1]["type"] == "ai"
    lg.ask("POST", place, DECIDE)  # repeated, it is the same decision about the same call
    rejects = DECIDE | {"command": {"resume": {"decisions": [{"type": "reject"}]}}}
    lg.ask("POST", place, rejects, status=409)
    assert "nothing waits" in lg.refused("POST", place, DECIDE, status=409, headers=other)


def test_what_waits_is_in_the_values_of_a_run_that_stops_there(lg: Lg) -> None:
    found = lg.waiting()
    (asked,) = found["interrupts"]
    run = lg.ask("GET", f"/threads/{found['thread_id']}/runs?limit=1")[0]
    assert run["status"] == "interrupted"
    joined = lg.ask("GET", f"/threads/{found['thread_id']}/runs/{run['run_id']}/join")
    assert [one["id"] for one in joined["__interrupt__"]] == [asked]
    resume = {asked: [{"type": "response", "args": "Not now."}]}
    decided = DECIDE | {"command": {"resume": resume}, "stream_mode": ["values", "messages-tuple"]}
    told = lg.stream(f"/threads/{found['thread_id']}/runs/stream", decided)
    assert told[-1][0] == "end"
    assert "Not now." in json.dumps(told[-2][1])


def test_the_end_as_goto_rejects_what_waits(lg: Lg) -> None:
    found = lg.waiting()
    place = f"/threads/{found['thread_id']}/runs/wait"
    assert "__interrupt__" not in lg.ask("POST", place, DECIDE | {"command": {"goto": "__end__"}})
    lg.ask("POST", place, DECIDE | {"command": {"goto": "__end__"}}, status=409)
    lg.refused("POST", place, DECIDE | {"command": {"goto": "agent"}})


def test_a_busy_thread_takes_the_next_message_in_line_or_refuses_it_if_asked_to(lg: Lg) -> None:
    place = f"/threads/{lg.waiting()['thread_id']}/runs"
    assert "is busy" in lg.refused("POST", place, RUN | {"multitask_strategy": "reject"}, status=409)
    run = lg.ask("POST", place, RUN | {"multitask_strategy": "enqueue"})
    kept = lg.ask("GET", f"{place}/{run['run_id']}/join")
    assert (lg.ask("GET", f"{place}/{run['run_id']}")["status"], len(kept["__interrupt__"])) == ("pending", 1)


def test_of_one_key_thirty_two_answers_are_under_way_at_once_and_one_more_begins_nothing(lg: Lg) -> None:
    place, key = f"/threads/{lg.thread()}", {"x-api-key": lg.web.key("many", "work")}
    with ExitStack() as stack:
        for _ in range(32):
            answer = stack.enter_context(lg.http.stream("GET", f"{place}/stream", headers=key))
            assert answer.status_code == 200
        for way in ("wait", "stream"):
            said = lg.refused("POST", f"{place}/runs/{way}", RUN, status=503, headers=key)
            assert "32 of one client; close another" in said
        assert lg.ask("GET", f"{place}/runs", headers=key) == [], "it was begun"
        run = lg.ask("POST", f"{place}/runs", RUN, headers=key)
        lg.ask("GET", f"{place}/runs/{run['run_id']}/join", status=429, headers=key)
        assert lg.ask("GET", f"{place}/runs/{run['run_id']}/join")["messages"], "another key is answered"


def test_post_runs(lg: Lg) -> None:
    run = lg.ask("POST", "/runs", RUN)
    assert lg.ask("GET", f"/threads/{run['thread_id']}/runs/{run['run_id']}")["run_id"] == run["run_id"]
    assert "threads are kept" in lg.refused("POST", "/runs", RUN | {"on_completion": "delete"})
    lg.ask("POST", "/runs", DECIDE, status=409)


def test_post_runs_stream(lg: Lg) -> None:
    assert [name for name, _ in lg.stream("/runs/stream", RUN)][-1] == "end"


def test_post_runs_wait(lg: Lg) -> None:
    assert lg.ask("POST", "/runs/wait", RUN)["messages"][0]["content"] == "Hello"


def test_post_runs_batch(lg: Lg, thread: str) -> None:
    runs = lg.ask("POST", "/runs/batch", [RUN, RUN | {"thread_id": thread}])
    assert (len(runs), runs[1]["thread_id"]) == (2, thread)
    lg.ask("POST", "/runs/batch", {}, status=422)


def test_get_threads_thread_id_runs(lg: Lg) -> None:
    made = lg.thread()
    ids = [lg.turn(made) for _ in range(3)]
    assert [run["run_id"] for run in lg.ask("GET", f"/threads/{made}/runs?limit=2&offset=1")] == ids[1::-1]
    assert lg.ask("GET", f"/threads/{made}/runs?status=error") == []
    lg.ask("GET", f"/threads/{made}/runs?status=lost", status=422)


def test_get_threads_thread_id_runs_run_id(lg: Lg, thread: str) -> None:
    run_id = lg.turn(thread)
    assert lg.ask("GET", f"/threads/{thread}/runs/{run_id}")["status"] == "success"
    lg.ask("GET", f"/threads/{thread}/runs/turn-0", status=404)
    lg.ask("GET", f"/threads/{lg.thread()}/runs/{run_id}", status=404)


def test_delete_threads_thread_id_runs_run_id(lg: Lg, thread: str) -> None:
    lg.refused("DELETE", f"/threads/{thread}/runs/{lg.turn(thread)}")


def test_get_threads_thread_id_runs_run_id_join(lg: Lg, thread: str) -> None:
    run_id = lg.turn(thread)
    assert lg.ask("GET", f"/threads/{thread}/runs/{run_id}/join")["messages"]


def test_get_threads_thread_id_runs_run_id_stream(lg: Lg, thread: str) -> None:
    place = f"/threads/{thread}/runs/{lg.turn(thread)}/stream"
    whole = lg.stream(f"{place}?stream_mode=values&stream_mode=updates")
    assert [name for name, _ in whole] == ["metadata", "values", "end"], "a run that is over shows its state"
    again = lg.stream(f'{place}?stream_mode=["values","updates"]', headers={"last-event-id": "3.2"})
    assert [name for name, _ in again] == ["metadata", "values", "end"], "the newest whole values, not the pieces"


def test_post_threads_thread_id_runs_run_id_cancel(lg: Lg, thread: str) -> None:
    run_id = lg.ask("POST", f"/threads/{thread}/runs", RUN)["run_id"]
    place = f"/threads/{thread}/runs/{run_id}/cancel"
    assert "stay in its thread" in lg.refused("POST", f"{place}?action=rollback")
    assert lg.ask("POST", f"{place}?wait=1")["status"] in {"success", "interrupted"}
    assert lg.ask("GET", f"/threads/{thread}/runs/{run_id}")["status"] in {"success", "interrupted"}


def test_post_runs_cancel(lg: Lg, thread: str) -> None:
    run_id = lg.ask("POST", f"/threads/{thread}/runs", RUN)["run_id"]
    lg.ask("POST", "/runs/cancel", {"thread_id": thread, "run_ids": [run_id]}, status=204)
    lg.ask("POST", "/runs/cancel", {"thread_id": thread, "status": "running"}, status=204)
    lg.refused("POST", "/runs/cancel", {"status": "all"})


def test_get_threads_thread_id_stream(lg: Lg) -> None:
    made = lg.thread()
    lg.turn(made)
    place = f"/threads/{made}/stream?stream_mode=run_modes"
    found = lg.stream(place, until="run_done", then=lambda: lg.ask("POST", f"/threads/{made}/runs", RUN))
    assert (found[-1][1]["status"], [name for name, _ in found].count("metadata")) == ("success", 1)


def test_post_threads_thread_id_commands(lg: Lg) -> None:
    made = lg.waiting()["thread_id"]

    def command(method: str, **params: Any) -> Any:
        return lg.ask("POST", f"/threads/{made}/commands", {"id": 7, "method": method, "params": params})

    (asked,) = lg.ask("GET", f"/threads/{made}")["interrupts"]
    answered = command("input.respond", interrupt_id=asked, namespace=[], response=APPROVE)
    assert (answered["type"], answered["id"]) == ("success", 7)
    assert command("run.start", assistant_id="agent0", input=said("And now?"))["result"]["thread_id"] == made
    assert command("state.fork", checkpoint_id="x")["type"] == "error"
    assert command("run.start", assistant_id="nobody", input=said("x"))["error"] == "no_such_run"


def test_socket_threads_thread_id_stream_events(lg: Lg, thread: str) -> None:
    url = f"{lg.url.replace('http://', 'ws://')}/threads/{thread}/stream/events"
    with connect(url, additional_headers={"x-api-key": lg.keys["read"]}) as socket:
        socket.send(json.dumps({"id": 1, "method": "subscription.subscribe", "params": {"channels": ["values"]}}))
        assert json.loads(socket.recv(timeout=60)) == {"type": "success", "id": 1, "result": {}}
        assert json.loads(socket.recv(timeout=60))["method"] == "values"


def test_post_threads_thread_id_stream_events(lg: Lg) -> None:
    made = lg.thread()
    lg.turn(made)
    body = {"channels": ["values", "messages", "lifecycle"]}
    found = lg.stream(f"/threads/{made}/stream/events", body, until="values")
    assert [name for name, _ in found] == ["lifecycle", "values"]
    assert all(data["type"] == "event" and data["event_id"] for _, data in found)
    lg.ask("POST", f"/threads/{made}/stream/events", {}, status=422)


def test_post_runs_crons(lg: Lg) -> None:
    cron = lg.cron(metadata={"name": "each-morning"}, enabled=False, on_run_completed="keep")
    assert (cron["thread_id"], cron["enabled"], cron["on_run_completed"]) == (None, False, "keep")
    (task,) = [one for one in lg.constellation.ask("task-runner", "list") if one["name"] == "each-morning"]
    assert (task["id"], task["state"]) == (cron["cron_id"], "disabled")
    body = {"assistant_id": "agent0", "schedule": "0 9 * * *", "input": said("x")}
    for wrong in ({"schedule": "every day"}, {"input": {}}, {"on_run_completed": "delete"}, {"timezone": "Mars/One"}):
        lg.ask("POST", "/runs/crons", body | wrong, status=422)
    lg.ask("POST", "/runs/crons", body | {"assistant_id": "nobody"}, status=404)


def test_post_threads_thread_id_runs_crons(lg: Lg, thread: str) -> None:
    cron = lg.cron(thread, timezone="Europe/Paris")
    assert (cron["thread_id"], cron["timezone"], cron["enabled"]) == (thread, "Europe/Paris", True)
    lg.ask("POST", "/threads/nowhere/runs/crons", {}, status=404)


def test_patch_runs_crons_cron_id(lg: Lg, thread: str) -> None:
    cron = lg.cron(thread)
    place = f"/runs/crons/{cron['cron_id']}"
    changed = lg.ask("PATCH", place, {"schedule": "30 7 * * *", "enabled": False, "metadata": {"a": "b"}})
    assert (changed["schedule"], changed["enabled"], changed["metadata"]["a"]) == ("30 7 * * *", False, "b")
    assert lg.ask("PATCH", place, {"enabled": True})["enabled"]
    lg.ask("PATCH", "/runs/crons/nowhere", {"enabled": True}, status=404)
    lg.ask("PATCH", place, {"webhook": "http://127.0.0.1/"}, status=422)


def test_delete_runs_crons_cron_id(lg: Lg, thread: str) -> None:
    cron = lg.cron(thread)
    lg.ask("DELETE", f"/runs/crons/{cron['cron_id']}", status=204)
    lg.ask("DELETE", f"/runs/crons/{cron['cron_id']}", status=404)


def test_post_runs_crons_search(lg: Lg, thread: str) -> None:
    made = [lg.cron(thread, metadata={"team": "search"})["cron_id"] for _ in range(3)]
    find = {"metadata": {"team": "search"}, "thread_id": thread, "assistant_id": "agent0", "sort_order": "asc"}
    assert [one["cron_id"] for one in lg.ask("POST", "/runs/crons/search", find | {"offset": 1, "limit": 1})] == [
        made[1]
    ]


def test_post_runs_crons_count(lg: Lg, thread: str) -> None:
    lg.cron(thread, metadata={"team": "count"})
    assert lg.ask("POST", "/runs/crons/count", {"metadata": {"team": "count"}}) == 1


def test_put_store_items(lg: Lg) -> None:
    item = {"namespace": ["workspace", "people"], "key": "put", "value": {"likes": "tea"}}
    lg.ask("PUT", "/store/items", item, status=204)
    lg.ask("PUT", "/store/items", item | {"value": {"likes": "coffee"}}, status=204)
    assert lg.ask("GET", "/store/items?namespace=workspace.people&key=put")["value"] == {"likes": "coffee"}
    for wrong in ({"value": "text"}, {"namespace": []}, {"ttl": 5}, {"index": ["likes"]}):
        lg.ask("PUT", "/store/items", item | wrong, status=422)


def test_get_store_items(lg: Lg) -> None:
    assert lg.ask("GET", "/store/items?namespace=workspace.people&key=nobody") is None


def test_delete_store_items(lg: Lg) -> None:
    item = {"namespace": ["workspace", "people"], "key": "gone", "value": {"likes": "tea"}}
    lg.ask("PUT", "/store/items", item, status=204)
    lg.ask("DELETE", "/store/items", {"namespace": item["namespace"], "key": "gone"}, status=204)
    assert lg.ask("GET", "/store/items?namespace=workspace.people&key=gone") is None


def test_post_store_items_search(lg: Lg) -> None:
    for age in (36, 85):
        item = {"namespace": ["workspace", "ages"], "key": str(age), "value": {"age": age, "text": "a gardener"}}
        lg.ask("PUT", "/store/items", item, status=204)
    find = {"namespace_prefix": ["workspace", "ages"]}
    assert len(lg.ask("POST", "/store/items/search", find)["items"]) == 2
    older = lg.ask("POST", "/store/items/search", find | {"filter": {"age": {"$gt": 40}}})["items"]
    assert [one["key"] for one in older] == ["85"]
    assert len(lg.ask("POST", "/store/items/search", find | {"query": "gardener"})["items"]) == 2
    lg.ask("POST", "/store/items/search", find | {"filter": {"age": {"$near": 40}}}, status=422)


def test_post_store_namespaces(lg: Lg) -> None:
    lg.ask("PUT", "/store/items", {"namespace": ["workspace", "n", "a"], "key": "k", "value": {}}, status=204)
    assert lg.ask("POST", "/store/namespaces", {"prefix": ["workspace", "n"]}) == {
        "namespaces": [["workspace", "n", "a"]]
    }
    cut = lg.ask("POST", "/store/namespaces", {"prefix": ["workspace", "n"], "max_depth": 2})
    assert cut == {"namespaces": [["workspace", "n"]]}


def test_anything_else_is_not_there_and_nothing_is_501(lg: Lg) -> None:
    assert "langgraph-api.md" in lg.ask("GET", "/mcp", status=404)["detail"]
    lg.ask("PUT", "/threads", {}, status=404)


def test_only_while_a_daemon_is_down_it_says_503(lg: Lg) -> None:
    lg.constellation.kill(AGENT_RUNTIME)
    try:
        lg.ask("POST", "/threads/search", {}, status=503)
        lg.ask("GET", "/ok")
    finally:
        lg.constellation.start(AGENT_RUNTIME)
    lg.constellation.until("the gateway to reach it", lambda: lg.http.post("/threads/search", json={}).is_success)
