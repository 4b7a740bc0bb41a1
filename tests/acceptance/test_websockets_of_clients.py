"""WebSockets of LangGraph's newer protocol: who may open one, what each scope may do there, and how one ends."""

import json
from collections.abc import Iterator
from socket import create_connection
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from tests.support.langgraph import Lg, constellation_with_web, said
from tests.support.postgres import Server

pytestmark = pytest.mark.process
CHANNELS = ["values", "lifecycle"]


@pytest.fixture(scope="module")
def lg(postgres_server: Server | None) -> Iterator[Lg]:
    with constellation_with_web(postgres_server) as found:
        yield found


def opened(lg: Lg, thread_id: str, *, path: str = "", **headers: str) -> ClientConnection:
    url = lg.url.replace("http://", "ws://").removesuffix("/lg")
    place = path or f"/lg/threads/{thread_id}/stream/events"
    given = {"x-api-key": lg.keys["decide"], **headers}
    return connect(f"{url}{place}", additional_headers=given, origin=None)


def send(socket: ClientConnection, method: str, id_: int = 1, **params: Any) -> dict[str, Any]:
    """Send a command and return its answer; events that come first are left out."""
    socket.send(json.dumps({"id": id_, "method": method, "params": params}))
    while True:
        answer: dict[str, Any] = json.loads(socket.recv(timeout=60))
        if answer["type"] != "event":
            return answer


def start(lg: Lg, socket: ClientConnection, text: str = "Hello") -> dict[str, Any]:
    return send(socket, "run.start", 2, assistant_id="agent0", input=said(text))


def test_a_socket_runs_a_graph_and_sends_what_it_subscribes_to(lg: Lg) -> None:
    thread = lg.thread()
    with opened(lg, thread) as socket:
        assert send(socket, "subscription.subscribe", channels=CHANNELS)["type"] == "success"
        run_id = start(lg, socket)["result"]["run_id"]
        events = []
        while not events or events[-1]["params"]["data"] != {"event": "completed", "graph_name": "agent0"}:
            events.append(json.loads(socket.recv(timeout=60)))
        assert {one["method"] for one in events} == {*CHANNELS}
    assert lg.ask("GET", f"/threads/{thread}/runs/{run_id}")["status"] == "success"
    seen = lg.stream(f"/threads/{thread}/stream/events", {"channels": CHANNELS}, until="values")
    assert seen[-1][0] == "values", "a stream has the same events"


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("", {"x-api-key": ""}, 401),
        ("", {"x-api-key": "tk_forged"}, 401),
        ("", {"Origin": "https://evil.example"}, 403),
        ("/ui/", {}, 404),
        ("/mcp", {}, 404),
    ],
)
def test_a_socket_is_refused_before_it_opens(lg: Lg, path: str, headers: dict[str, str], status: int) -> None:
    with pytest.raises(InvalidStatus) as refused:
        opened(lg, lg.thread(), path=path, **headers)
    assert refused.value.response.status_code == status


def test_a_socket_under_another_host_is_refused(lg: Lg) -> None:
    url = f"ws://evil.example:{lg.web.port}/lg/threads/x/stream/events"
    with create_connection(("127.0.0.1", lg.web.port)) as plain, pytest.raises(InvalidStatus) as refused:
        connect(url, sock=plain, additional_headers={"x-api-key": lg.keys["decide"]})
    assert refused.value.response.status_code == 421


def test_a_key_that_only_reads_watches_and_commands_nothing(lg: Lg) -> None:
    thread = lg.thread()
    with opened(lg, thread, **{"x-api-key": lg.keys["read"]}) as socket:
        assert send(socket, "subscription.subscribe", channels=CHANNELS)["type"] == "success"
        assert "scope work" in start(lg, socket)["message"]
    assert lg.ask("GET", f"/threads/{thread}/runs") == []


def test_a_socket_of_a_key_that_works_decides_nothing(lg: Lg) -> None:
    waiting = lg.waiting()
    (interrupt_id,) = waiting["interrupts"]
    with opened(lg, waiting["thread_id"], **{"x-api-key": lg.keys["work"]}) as socket:
        answer = send(socket, "input.respond", interrupt_id=interrupt_id, response={"type": "accept", "args": None})
    assert "may not decide" in answer["message"]
    assert lg.ask("GET", f"/threads/{waiting['thread_id']}")["status"] == "interrupted"


def test_what_is_no_command_is_refused_and_the_socket_stays_open(lg: Lg) -> None:
    with opened(lg, lg.thread()) as socket:
        for text in ("{", "[]", '{"method": []}', '{"method": "subscription.subscribe", "params": {"channels": 1}}'):
            socket.send(text)
            assert json.loads(socket.recv(timeout=60))["type"] == "error", text
        assert start(lg, socket)["type"] == "success"
    with opened(lg, "unknown") as socket:
        assert "not found" in send(socket, "subscription.subscribe", channels=CHANNELS)["message"]


def test_a_frame_that_is_too_large_ends_the_socket(lg: Lg) -> None:
    with opened(lg, lg.thread()) as socket:
        socket.send(json.dumps({"method": "x" * (1 << 20)}))
        with pytest.raises(ConnectionClosed):
            socket.recv(timeout=60)


def test_a_socket_ends_once_its_key_is_revoked(lg: Lg) -> None:
    thread, key = lg.thread(), lg.web.key("brief", "read")
    with opened(lg, thread, **{"x-api-key": key}) as socket:
        assert send(socket, "subscription.subscribe", channels=CHANNELS)["type"] == "success"
        lg.constellation.command("turnkeeper", "web", "keys", "revoke", "brief")
        lg.turn(thread)
        with pytest.raises(ConnectionClosed):
            socket.recv(timeout=60)
