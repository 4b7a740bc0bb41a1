"""Streams of runs that wait for a person: the form of the question, and the modes of the run that answers it."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.langgraph import Lg
from tests.support.machines import constellation_on, new_home
from tests.support.postgres import Server
from tests.support.web import configure, serving

pytestmark = pytest.mark.process
GRAPH = """
from typing import TypedDict
from langgraph.config import get_stream_writer
from langgraph.graph import START, StateGraph
from langgraph.types import interrupt

class State(TypedDict, total=False):
    topic: str

def ask(state):
    answer = interrupt({"question": "Go on?"} if state["topic"] == "fields" else "Go on?")
    get_stream_writer()({"heard": answer})
    return {"topic": answer}

inner = StateGraph(State)
inner.add_node("ask", ask)
inner.add_edge(START, "ask")
outer = StateGraph(State)
outer.add_node("team", inner.compile())
outer.add_edge(START, "team")
graph = outer.compile()
"""


@pytest.fixture(scope="module")
def lg(tmp_path_factory: pytest.TempPathFactory, postgres_server: Server | None) -> Iterator[Lg]:
    file = tmp_path_factory.mktemp("graph") / "team.py"
    file.write_text(GRAPH)
    graph = f"[agents.agent0]\ngraph = {json.dumps(f'{file}:graph')}\n"
    with new_home() as home, constellation_on(postgres_server, home) as constellation:
        for each in constellation.homes:
            configure(each, graph)
        constellation.start()
        with serving(home, graph) as web:
            made = Lg(constellation, web)
            yield made
            made.http.close()


def streamed(lg: Lg, thread: str, modes: list[str], **body: Any) -> list[tuple[str, Any]]:
    """Return the events of a run, without the ids of namespaces."""
    place = f"/threads/{thread}/runs/stream"
    events = lg.stream(place, {"assistant_id": "agent0", "stream_mode": modes, **body})
    return [("|".join(part.partition(":")[0] for part in name.split("|")), data) for name, data in events]


ASKED = {"value": "Go on?"}


def questions(events: list[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """Return each question in the events, without its id."""
    found = [(name, data["__interrupt__"]) for name, data in events if data and "__interrupt__" in data]
    return [(name, [{key: one[key] for key in one if key == "value"} for one in asked]) for name, asked in found]


@pytest.mark.parametrize("inner", [True, False])
def test_a_question_of_a_subgraph_is_given_once_in_each_mode(lg: Lg, inner: bool) -> None:
    thread = lg.thread()
    events = streamed(lg, thread, ["values", "updates"], input={"topic": "x"}, stream_subgraphs=inner)
    assert questions(events) == [("updates", [ASKED]), ("values", [ASKED])]


def test_the_stream_of_a_thread_gives_a_question_in_the_form_in_which_clients_decide(lg: Lg) -> None:
    thread, body = lg.thread(), {"assistant_id": "agent0", "stream_mode": "updates", "input": {"topic": "fields"}}
    place = f"/threads/{thread}/stream"
    events = lg.stream(place, until="updates", then=lambda: lg.ask("POST", f"/threads/{thread}/runs", body))
    (asked,) = events[-1][1]["__interrupt__"]
    assert {**asked, "id": ""} == {"id": "", "value": {"question": "Go on?"}}


def test_an_answer_in_the_newer_protocol_streams_the_channels_of_that_protocol(lg: Lg) -> None:
    thread = lg.thread()
    streamed(lg, thread, ["values"], input={"topic": "x"})
    (asked,) = lg.ask("GET", f"/threads/{thread}")["interrupts"]
    params = {"interrupt_id": asked, "namespace": [], "response": "yes"}
    answer = {"id": 1, "method": "input.respond", "params": params}
    place = f"/threads/{thread}/stream/events"
    events = lg.stream(
        place,
        {"channels": ["custom"]},
        until="custom",
        then=lambda: lg.ask("POST", f"/threads/{thread}/commands", answer),
    )
    assert events[-1][1]["params"]["data"] == {"heard": "yes"}


@pytest.mark.parametrize("first", [["values"], ["updates", "custom"]])
def test_a_run_that_answers_a_question_streams_its_own_modes(lg: Lg, first: list[str]) -> None:
    thread = lg.thread()
    streamed(lg, thread, first, input={"topic": "x"})
    resumed = streamed(lg, thread, ["updates", "custom"], command={"resume": "yes"}, stream_subgraphs=True)
    assert resumed[1:] == [
        ("custom|team", {"heard": "yes"}),
        ("updates|team", {"ask": {"topic": "yes"}}),
        ("updates", {"team": {"topic": "yes"}}),
        ("end", None),
    ]


def test_a_client_that_joins_a_resumed_run_gets_the_modes_of_the_newest_request(lg: Lg) -> None:
    thread = lg.thread()
    (_, begun), *_ = streamed(lg, thread, ["values"], input={"topic": "x"})
    streamed(lg, thread, ["custom"], command={"resume": "yes"}, stream_subgraphs=True)
    run = lg.constellation.ask("agent-runtime", "turns", "show", begun["run_id"])
    assert run["status"] == "succeeded"
    joined = lg.stream(f"/threads/{thread}/runs/{begun['run_id']}/stream")
    assert {name.partition("|")[0] for name, _ in joined} == {"metadata", "custom", "end"}


def test_the_question_of_a_task_is_answered_by_a_run_with_modes_of_its_own(lg: Lg) -> None:
    thread = lg.thread()
    lg.fire(lg.cron(thread, input={"topic": "x"}), thread)
    resumed = streamed(lg, thread, ["custom"], command={"resume": "yes"}, stream_subgraphs=True)
    assert resumed[1:] == [("custom|team", {"heard": "yes"}), ("end", None)]
