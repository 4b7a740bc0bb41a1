"""Assistants by the names that clients give, and the pages of lists."""

from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.clock import ManualClock
from turnkeeper.errors import InvalidInput, NotFound, Unreachable
from turnkeeper.gateway.lg.api import LONGEST_AWAY, Api, assistant_id, in_daemons, ordered, page_of, selected
from turnkeeper.gateway.lg.runs import Runs, Started
from turnkeeper.v1 import agent_runtime_pb2 as wire


class Runtime:
    """A runtime with a default graph, another one, and an assistant of the default one."""

    async def ListAssistants(self, _request: wire.ListAssistantsRequest) -> wire.ListAssistantsResponse:
        return wire.ListAssistantsResponse()

    async def ListGraphs(self, _request: Any) -> wire.ListGraphsResponse:
        graphs = [
            wire.Graph(name="garden", graph="garden", is_default=True),
            wire.Graph(name="research", graph="research"),
            wire.Graph(name="brief", graph="garden", is_assistant=True),
        ]
        return wire.ListGraphsResponse(graphs=graphs)


@pytest.fixture
def api() -> Api:
    web = SimpleNamespace(langgraph_channel="general", langgraph_category="loop")
    gateway: Any = SimpleNamespace(clock=ManualClock(), settings=SimpleNamespace(web=web, default_graph="garden"))
    return Api(gateway)


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ("agent0", ("garden", "")),
        ("garden", ("garden", "")),
        (assistant_id("agent0"), ("garden", "")),
        (assistant_id("garden"), ("garden", "")),
        ("research", ("research", "research")),
        (assistant_id("brief"), ("brief", "brief")),
    ],
)
async def test_an_assistant_is_found_by_its_name_its_id_and_the_default_ones_own_name(
    api: Api, given: str, found: tuple[str, str]
) -> None:
    known = await api.graph_of(Runtime(), given)
    assert (known.name, in_daemons(known)) == found


async def test_an_unknown_assistant_is_answered_with_the_names_that_there_are(api: Api) -> None:
    with pytest.raises(NotFound, match="brief, garden, research"):
        await api.graph_of(Runtime(), "x")


async def test_an_assistant_of_the_default_graph_names_it_as_its_project_does(api: Api) -> None:
    assert {one.name: one.graph for one in await api.assistants(Runtime())}["brief"] == "garden"


def test_a_thread_of_the_default_graph_has_its_name_and_agent0_is_another_word_for_it(api: Api) -> None:
    given = ("", "garden", "agent0", "research")
    assert [api.name_of(graph) for graph in given] == ["garden", "garden", "garden", "research"]


def test_a_page_tells_its_total_and_where_the_next_one_begins() -> None:
    assert page_of(list(range(5)), {"limit": 2, "offset": 1}) == (
        [1, 2], {"x-pagination-total": "5", "x-pagination-next": "3"},
    )  # fmt: skip
    assert page_of([1], {}) == ([1], {"x-pagination-total": "1"})
    with pytest.raises(InvalidInput):
        page_of([1], {"limit": "many"})


def test_a_list_has_the_order_and_the_fields_that_are_asked_for() -> None:
    rows = [{"a": "1", "b": "x"}, {"a": "2", "b": None}]
    assert [row["a"] for row in ordered(rows, {}, "a")] == ["2", "1"]
    assert [row["a"] for row in ordered(rows, {"sort_by": "b", "sort_order": "asc"}, "a")] == ["2", "1"]
    with pytest.raises(InvalidInput):
        ordered(rows, {"sort_by": "c"}, "a")
    assert selected(rows[0], ["b"]) == {"b": "x"}


async def test_whoever_waits_for_a_run_that_begins_later_is_told_in_the_end_that_a_daemon_stays_away(api: Api) -> None:
    class Away:
        looks = 0

        async def GetTask(self, _request: Any) -> None:
            self.looks += 1
            raise Unreachable("task-runner is not running")

    api.gateway.clock = SimpleNamespace(sleep=_at_once)
    runtime = Away()
    with pytest.raises(Unreachable):
        await Runs(api)._following(runtime, Started("t", f"run-{0:032x}", ""))
    assert runtime.looks == LONGEST_AWAY + 1


async def _at_once(_seconds: float) -> None: ...
