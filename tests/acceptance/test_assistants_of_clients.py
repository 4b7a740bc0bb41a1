"""Assistants that LangGraph's clients make: versions, runs with their config, and what a change never does."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.constellation import AGENT_RUNTIME
from tests.support.langgraph import Lg, said
from tests.support.machines import constellation_on, new_home
from tests.support.postgres import Server
from tests.support.web import configure, serving

pytestmark = pytest.mark.process
GRAPH = """
from typing import TypedDict
from langchain_core.messages import AIMessage
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import interrupt

class Context(TypedDict, total=False):
    user: str

def answer(state, config, runtime):
    if state["messages"][-1].text == "Ask":
        interrupt("Go on?")
    place = config["configurable"].get("place", "nowhere")
    return {"messages": [AIMessage(f"{(runtime.context or {}).get('user')} in {place}")]}

builder = StateGraph(MessagesState, context_schema=Context)
builder.add_node(answer)
builder.add_edge(START, "answer")
graph = builder.compile()
"""


@pytest.fixture(scope="module")
def lg(postgres_server: Server | None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lg]:
    file = tmp_path_factory.mktemp("graph") / "answering.py"
    file.write_text(GRAPH)
    graph = f"[agents.agent0]\ngraph = {json.dumps(f'{file}:graph')}\n"
    with new_home() as home, constellation_on(postgres_server, home) as constellation:
        for one in constellation.homes:
            configure(one, graph)
        constellation.start()
        with serving(home, graph) as web:
            made = Lg(constellation, web)
            yield made
            made.http.close()


def make(lg: Lg, **fields: Any) -> dict[str, Any]:
    found: dict[str, Any] = lg.ask("POST", "/assistants", {"graph_id": "agent0", **fields})
    return found


def answer(lg: Lg, assistant_id: str, thread_id: str = "", **rest: Any) -> str:
    path = f"/threads/{thread_id}/runs/wait" if thread_id else "/runs/wait"
    values = lg.ask("POST", path, {"assistant_id": assistant_id, "input": said("Hello"), **rest})
    return str(values["messages"][-1]["content"])


def test_a_run_has_the_config_and_context_of_its_assistant_below_its_own(lg: Lg) -> None:
    made = make(lg, config={"configurable": {"place": "town"}}, context={"user": "u1"})
    assert answer(lg, made["assistant_id"]) == "u1 in town"
    assert answer(lg, made["assistant_id"], config={"configurable": {"place": "wood"}}) == "u1 in wood"
    assert answer(lg, made["assistant_id"], context={"user": "u2"}) == "u2 in town"
    assert answer(lg, "agent0") == "None in nowhere"
    thread = lg.thread()
    run = lg.ask("POST", f"/threads/{thread}/runs", {"assistant_id": made["assistant_id"], "input": said("Hello")})
    assert run["assistant_id"] == made["assistant_id"]
    (listed,) = lg.ask("GET", f"/threads/{thread}/runs")
    lg.ask("GET", f"/threads/{thread}/runs/{run['run_id']}/join")
    written = {"values": {"messages": []}}
    for act in (lambda: None, lambda: lg.ask("POST", f"/threads/{thread}/state", written)):
        act()
        assert lg.ask("GET", f"/threads/{thread}")["metadata"]["assistant_id"] == made["assistant_id"]
    found = lg.ask("POST", "/threads/search", {"metadata": {"assistant_id": made["assistant_id"]}})
    assert thread in [one["thread_id"] for one in found]
    assert listed["assistant_id"] == made["assistant_id"]


def test_each_change_is_a_version_and_an_earlier_one_can_be_current_again(lg: Lg) -> None:
    made = make(lg, name="Town", metadata={"team": "a", "kind": "x"}, context={"user": "u1"})
    path = f"/assistants/{made['assistant_id']}"
    changed = lg.ask("PATCH", path, {"context": {"user": "u2"}, "metadata": {"team": "b"}})
    assert (changed["version"], changed["name"], changed["metadata"]) == (2, "Town", {"team": "b", "kind": "x"})
    assert answer(lg, made["assistant_id"]) == "u2 in nowhere"
    assert [one["version"] for one in lg.ask("POST", f"{path}/versions", {})] == [2, 1]
    assert [one["version"] for one in lg.ask("POST", f"{path}/versions", {"metadata": {"team": "a"}})] == [1]
    assert lg.ask("POST", f"{path}/latest", {"version": 1})["context"] == {"user": "u1"}
    assert answer(lg, made["assistant_id"]) == "u1 in nowhere"
    assert lg.ask("PATCH", path, {"description": "d"})["version"] == 3
    assert "no version 9" in lg.refused("POST", f"{path}/latest", {"version": 9}, status=404)
    assert lg.ask("GET", path)["version"] == 3


def test_assistants_outlive_the_processes(lg: Lg) -> None:
    made = make(lg, name="Durable", context={"user": "u3"})
    lg.constellation.kill(AGENT_RUNTIME)
    lg.web.kill()
    lg.constellation.start(AGENT_RUNTIME)
    lg.web.start()
    assert lg.ask("GET", f"/assistants/{made['assistant_id']}") == made
    assert answer(lg, made["assistant_id"]) == "u3 in nowhere"


def test_deletion_leaves_runs_and_threads_alone(lg: Lg) -> None:
    made = make(lg, context={"user": "u4"})
    thread, path = lg.thread(), f"/assistants/{made['assistant_id']}"
    body = {"assistant_id": made["assistant_id"], "input": said("Ask")}
    lg.ask("POST", f"/threads/{thread}/runs", body)
    lg.until_waiting(thread)
    assert "threads belong" in lg.refused("DELETE", f"{path}?delete_threads=true")
    lg.ask("DELETE", path, status=204)
    lg.ask("GET", path, status=404)
    lg.ask("DELETE", path, status=404)
    assert "not found" in lg.refused("POST", "/runs/wait", body, status=404)
    values = lg.ask("POST", f"/threads/{thread}/runs/wait", {"assistant_id": "agent0", "command": {"resume": "yes"}})
    assert values["messages"][-1]["content"] == "u4 in nowhere"


def test_an_assistant_is_found_by_its_fields(lg: Lg) -> None:
    made = make(lg, name="Found by words", metadata={"where": {"is": "it"}})
    for wanted in ({"name": "BY WORDS"}, {"metadata": {"where": {"is": "it"}}}):
        (found,) = lg.ask("POST", "/assistants/search", wanted)
        assert found == made
        assert lg.ask("POST", "/assistants/count", wanted) == 1
    by_time = {"sort_by": "created_at", "sort_order": "desc", "limit": 1, "graph_id": "agent0"}
    assert lg.ask("POST", "/assistants/search", by_time)[0]["assistant_id"] == made["assistant_id"]
    assert lg.ask("POST", "/assistants/search", {"graph_id": "another"}) == []


def test_an_id_is_given_once_and_never_that_of_a_declared_assistant(lg: Lg) -> None:
    made = make(lg, context={"user": "u5"})
    same = {"graph_id": "agent0", "assistant_id": made["assistant_id"], "context": {"user": "forged"}}
    lg.ask("POST", "/assistants", same, status=409)
    assert lg.ask("POST", "/assistants", {**same, "if_exists": "do_nothing"}) == made
    declared = lg.ask("GET", "/assistants/agent0")["assistant_id"]
    lg.ask("POST", "/assistants", {"graph_id": "agent0", "assistant_id": declared}, status=409)
    assert "not a UUID" in lg.refused("POST", "/assistants", {"graph_id": "agent0", "assistant_id": "agent0"})
    for method, more in (("PATCH", ""), ("DELETE", ""), ("POST", "/latest")):
        assert "config.toml" in lg.refused(method, f"/assistants/{declared}{more}", {"version": 1})


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"config": {"configurable": {"thread_id": "x"}}}, "thread_id"),
    ({"config": {"configurable": {"__pregel_resuming": True}}}, "__pregel_resuming"),
    ({"context": {"grant": "all"}}, "grant"),
    ({"config": {"category": "work"}}, "config.category"),
    ({"category": "work"}, "category"),
    ({"metadata": {"a": "x" * 20_000}}, "bytes"),
    ({"context": "x"}, "context"),
    ({"description": 1}, "description"),
]


@pytest.mark.parametrize(("fields", "said_about"), WRONG)
def test_an_assistant_holds_no_key_that_decides_what_a_run_may_do(
    lg: Lg, fields: dict[str, Any], said_about: str
) -> None:
    before = lg.ask("POST", "/assistants/count", {})
    body = {"graph_id": "agent0", **fields}
    assert said_about in str(lg.ask("POST", "/assistants", body, status=422)["detail"])
    assert lg.ask("POST", "/assistants/count", {}) == before


def test_a_key_that_only_reads_makes_and_changes_none(lg: Lg) -> None:
    made, headers = make(lg), {"x-api-key": lg.keys["read"]}
    path = f"/assistants/{made['assistant_id']}"
    for method, place, body in (
        ("POST", "/assistants", {"graph_id": "agent0"}),
        ("PATCH", path, {"name": "x"}),
        ("POST", f"{path}/latest", {"version": 1}),
        ("DELETE", path, None),
    ):
        lg.ask(method, place, body, status=403, headers=headers)
    assert lg.ask("GET", path, headers=headers) == made
    assert len(lg.ask("POST", f"{path}/versions", {}, headers=headers)) == 1


def test_a_cron_copies_the_config_of_its_assistant(lg: Lg) -> None:
    made = make(lg, config={"configurable": {"place": "yard"}})
    cron = lg.cron(assistant_id=made["assistant_id"])
    told = lg.constellation.command("task-runner", "show", cron["metadata"]["name"], "--json")
    assert json.loads(told)["config"] == {"place": "yard"}


def test_who_changed_an_assistant_is_on_record(lg: Lg) -> None:
    made = make(lg)
    lg.ask("DELETE", f"/assistants/{made['assistant_id']}", status=204)
    acts = [one for one in lg.constellation.logs if one.get("subject") == made["assistant_id"]]
    assert [one["method"] for one in acts] == ["PutAssistant", "DropAssistant"]
    assert all("/api/" in str(one["via"]) for one in acts)
