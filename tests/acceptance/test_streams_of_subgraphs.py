"""The stream mode `lifecycle`: where subgraphs begin and end. Without subgraphs it sends nothing, and a header says so."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.langgraph import Lg
from tests.support.machines import constellation_on, new_home
from tests.support.postgres import Server
from tests.support.web import configure, serving

pytestmark = pytest.mark.process
GRAPH = """
from typing import TypedDict
from langgraph.graph import START, StateGraph

class State(TypedDict, total=False):
    topic: str

inner = StateGraph(State)
inner.add_node("research", lambda state: {"topic": state["topic"] + "!"})
inner.add_edge(START, "research")
outer = StateGraph(State)
outer.add_node("team", inner.compile())
outer.add_edge(START, "team")
graph = outer.compile()
"""


@pytest.fixture(scope="module")
def lg(tmp_path_factory: pytest.TempPathFactory, postgres_server: Server | None) -> Iterator[Lg]:
    file: Path = tmp_path_factory.mktemp("graph") / "team.py"
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


def streamed(lg: Lg, modes: list[str], **options: Any) -> tuple[str, list[tuple[str, str]]]:
    """Return the header of modes that send nothing, and the name and phase of each event of a run."""
    body = {"assistant_id": "agent0", "input": {"topic": "x"}, "stream_mode": modes, **options}
    place = f"/threads/{lg.thread()}/runs/stream"
    with lg.http.stream("POST", place, json=body) as answer:
        silent = answer.headers.get("x-turnkeeper-not-streamed", "")
        said = [line.partition(": ")[2] for line in answer.iter_lines() if line.startswith(("event: ", "data: "))]
    events = zip(said[::2], map(json.loads, said[1::2]), strict=True)
    return silent, [(name.partition(":")[0], data.get("event", "") if data else "") for name, data in events]


@pytest.mark.parametrize("more", [[], ["custom"]])
def test_the_beginning_and_the_end_of_each_subgraph_are_sent_with_stream_subgraphs(lg: Lg, more: list[str]) -> None:
    silent, events = streamed(lg, ["lifecycle", *more], stream_subgraphs=True)
    phases = [("lifecycle|team", "started"), ("lifecycle|team", "completed")]
    assert (silent, events) == ("", [("metadata", ""), *phases, ("end", "")])


def test_without_stream_subgraphs_a_header_names_the_mode_as_one_that_sends_nothing(lg: Lg) -> None:
    assert streamed(lg, ["lifecycle"]) == ("lifecycle", [("metadata", ""), ("end", "")])
