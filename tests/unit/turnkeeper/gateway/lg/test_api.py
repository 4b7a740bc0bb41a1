"""Assistants by the names that clients give, and the pages of lists."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
from starlette.requests import Request

from tests.support.clock import ManualClock
from turnkeeper.errors import Denied, InvalidInput, NotFound, Unreachable
from turnkeeper.gateway.calls import Who
from turnkeeper.gateway.keys import Scope
from turnkeeper.gateway.lg.api import LONGEST_AWAY, Api, Call, assistant_id, in_daemons, ordered, page_of, selected
from turnkeeper.gateway.lg.runs import Started, _following
from turnkeeper.v1 import agent_runtime_pb2 as wire


class Runtime:
    """A runtime with a default graph, another one, and an assistant of the default one."""

    async def ask(self, request: Any) -> wire.ListAssistantsResponse | wire.ListGraphsResponse:
        if isinstance(request, wire.ListAssistantsRequest):
            return wire.ListAssistantsResponse()
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
    gateway.daemons = lambda _who: Runtime()
    return Api(gateway)


@pytest.fixture
def call(api: Api) -> Call:
    return call_of(api)


def call_of(api: Api) -> Call:
    scope = {"type": "http", "headers": [], "query_string": b"", "who": Who(surface="api", scope=Scope.READ)}
    return Call(api, Request(scope), Scope.READ)


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
    call: Call, given: str, found: tuple[str, str]
) -> None:
    known = await call.graph_of(given)
    assert (known.name, in_daemons(known)) == found


async def test_an_unknown_assistant_is_answered_with_the_names_that_there_are(call: Call) -> None:
    with pytest.raises(NotFound, match="brief, garden, research"):
        await call.graph_of("x")


async def test_an_assistant_of_the_default_graph_names_it_as_its_project_does(call: Call) -> None:
    assert {one.name: one.graph for one in await call.assistants()}["brief"] == "garden"


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

        async def ask(self, _request: Any) -> None:
            self.looks += 1
            raise Unreachable("task-runner is not running")

    runtime: Any = Away()
    api.gateway = cast("Any", SimpleNamespace(clock=SimpleNamespace(sleep=_at_once), daemons=lambda _who: runtime))
    with pytest.raises(Unreachable):
        await _following(call_of(api), Started("t", f"run-{0:032x}"))
    assert runtime.looks == LONGEST_AWAY + 1


async def _at_once(_seconds: float) -> None: ...


async def test_the_body_of_a_caller_without_the_scope_is_not_read(api: Api) -> None:
    async def receive() -> Any:
        pytest.fail("the body is read")

    async def handler(_call: Call) -> None:
        pytest.fail("the request is handled")

    route = api.route("POST", "/threads", handler, Scope.WORK, "")
    scope = {"type": "http", "headers": [], "query_string": b"", "who": Who(surface="api", scope=Scope.READ)}
    with pytest.raises(Denied):
        await route.endpoint(Request(scope, receive))
