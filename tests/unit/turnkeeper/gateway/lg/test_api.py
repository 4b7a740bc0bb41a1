"""Assistants by the names that clients give, the pages of lists, and answers while a daemon is away."""

import asyncio
import json
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.requests import Request

from tests.support.clock import ManualClock
from turnkeeper.errors import Denied, InvalidInput, MachineTrouble, NotFound, TurnkeeperError, Unreachable
from turnkeeper.gateway.calls import Streams, Who
from turnkeeper.gateway.keys import Scope
from turnkeeper.gateway.lg.api import (
    LONGEST_AWAY,
    Api,
    Call,
    Handler,
    assistant_id,
    in_daemons,
    ordered,
    page_of,
    selected,
)
from turnkeeper.gateway.lg.runs import Started, _following, join, join_stream
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


def call_of(api: Api, **path: str) -> Call:
    who = Who(surface="api", scope=Scope.READ)
    scope = {"type": "http", "headers": [], "path": "/", "query_string": b"", "path_params": path, "who": who}
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
    api.gateway = gateway_of(runtime)
    call = call_of(api)
    call.has_begun = True
    with pytest.raises(Unreachable):
        await _following(call, Started("t", f"run-{0:032x}"))
    assert runtime.looks == LONGEST_AWAY + 1


class Leaving:
    """A runtime with a thread whose only turn just ended. After that, one of the requests fails."""

    def __init__(self, status: str, at: int = 0, error: TurnkeeperError | None = None) -> None:
        self._left, self._ended, self._error = at, False, error
        self._turn = wire.Turn(turn_id="turn", thread_id="thread", status=status, error="the disk is full")

    async def ask(self, request: Any) -> Any:
        self._left -= self._ended
        if self._error is not None and self._ended and not self._left:
            raise self._error
        if isinstance(request, wire.GetTurnRequest):
            return self._turn
        if isinstance(request, wire.GetStateRequest):
            return wire.State(state_json=json.dumps({"values": {"answer": "yes"}}))
        asked = [wire.Interrupt(interrupt_id="asked", question="why?", kind="question")]
        return wire.ListInterruptsResponse(interrupts=asked if self._turn.status == "interrupted" else [])

    async def WatchRun(self, _request: Any) -> AsyncIterator[wire.RunEvent]:
        self._ended = True
        yield wire.RunEvent(turn_id="turn", mode="status", data_json=json.dumps({"status": self._turn.status}))


@pytest.mark.parametrize("status", ["succeeded", "failed", "interrupted"])
@pytest.mark.parametrize("handler", [join_stream, join])
@pytest.mark.parametrize("error", [Unreachable("agent-runtime cannot be reached"), MachineTrouble("the disk fails")])
async def test_an_answer_that_has_begun_is_completed_whichever_of_its_reads_fails(
    api: Api, error: TurnkeeperError, handler: Handler, status: str
) -> None:
    whole = await answered(api, handler, Leaving(status))
    assert (b"the disk is full" in whole, b"why?" in whole) == (status == "failed", status == "interrupted")
    for at in range(1, 5):
        assert await answered(api, handler, Leaving(status, at, error)) == whole


async def answered(api: Api, handler: Handler, runtime: Any) -> bytes:
    """Return the body of the answer to a request about the runtime's run."""
    api.gateway = gateway_of(runtime)
    call, parts = call_of(api, thread_id="thread", run_id="turn"), list[bytes]()

    async def receive() -> Any:
        await asyncio.Event().wait()

    async def send(part: Any) -> None:
        parts.append(part.get("body", b""))

    await (await handler(call))(call.request.scope, receive, send)
    return b"".join(parts)


def gateway_of(runtime: Any) -> Any:
    return SimpleNamespace(clock=SimpleNamespace(sleep=_at_once), daemons=lambda _who: runtime, streams=Streams())


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
