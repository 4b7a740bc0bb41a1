"""What the gateway answers to those who attack it: a real server on loopback, and requests byte by byte."""

import asyncio
import re
import shutil
import socket
import stat
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any, cast

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tests.support.clock import look_again
from tests.support.constellation import Constellation
from tests.support.program import WEB
from tests.support.web import Web, free_port, serving
from turnkeeper.clock import SystemClock
from turnkeeper.config.home import Home
from turnkeeper.config.settings import WebSettings, load_settings
from turnkeeper.constellation.supervisor.daemons import log_of
from turnkeeper.entropy import SystemEntropy
from turnkeeper.errors import Conflict, InvalidInput
from turnkeeper.gateway import __main__ as server
from turnkeeper.gateway import door, streams
from turnkeeper.gateway.calls import Gateway, Offered, Who
from turnkeeper.gateway.door import HEADERS, Door
from turnkeeper.gateway.keys import Keys, Scope, Sessions
from turnkeeper.gateway.page.application import surface as page
from turnkeeper.gateway.streams import EventStream

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def web() -> Iterator[Web]:
    """A gateway without daemons: none of these requests comes as far as to need one."""
    folder = Path(tempfile.mkdtemp(prefix="tk-"))
    home = Home(root=folder / "home")
    home.create()
    with serving(home, "origins = ['http://chat.example:3000']\n") as found:
        yield found
    shutil.rmtree(folder)


class Idle:
    """A surface whose streams say nothing."""

    def __init__(self, gateway: Gateway) -> None:
        self.sessions = gateway.sessions
        self.streams, self.left, self.all_ended = gateway.streams, 64, asyncio.Event()
        self.surface = Offered(Starlette(routes=[Route("/ok", self.ok), Route("/idle", self.idle)]))

    async def ok(self, _request: Request) -> Response:
        return JSONResponse({"ok": True})

    async def idle(self, _request: Request) -> Any:
        return EventStream(self.events(), self.streams)

    async def events(self) -> AsyncIterator[bytes]:
        try:
            await asyncio.Event().wait()
            yield b""
        finally:
            self.left -= 1
            if not self.left:
                self.all_ended.set()


@asynccontextmanager
async def in_this_process(
    home: Home,
    mcp: Callable[[Gateway], Offered] | None = None,
    more: Callable[[Idle], dict[str, Offered]] = lambda _idle: {},
) -> AsyncIterator[tuple[Idle, int]]:
    home.config.write_text(f"[web]\nport = {free_port()}\n")
    settings, clock, entropy, keys = load_settings(home), SystemClock(), SystemEntropy(), Keys(home)
    keys.create(entropy)
    gateway = Gateway(home, settings, Sessions(keys, clock, entropy), clock=clock, entropy=entropy)
    idle = Idle(gateway)
    offered = {"/lg": idle.surface} | ({"/mcp": mcp(gateway)} if mcp else {}) | more(idle) | {"": page(gateway)}
    web = server.Server(server.config_of(server.build(gateway, keys, offered)))
    task = asyncio.create_task(web.serve(server.listeners(settings.web)))
    await web.ready.wait()
    yield idle, settings.web.port
    web.should_exit = True
    await task
    await gateway.close()


async def asked(port: int, path: str) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost:{port}\r\nConnection: close\r\n\r\n".encode())
    try:
        return await reader.read()
    finally:
        writer.close()


@pytest.fixture(scope="module")
def browser(web: Web) -> Web:
    web.log_in()
    return web


BROWSER = """#!/bin/sh
cat /proc/[0-9]*/cmdline > '{folder}/arguments' 2> /dev/null
printf %s "$1" > '{folder}/given'
"""


def test_no_argument_of_any_process_holds_a_login_and_the_file_that_does_is_gone_afterwards(
    web: Web, tmp_path: Path
) -> None:
    program = tmp_path / "browser"
    program.write_text(BROWSER.format(folder=tmp_path))
    opened = Constellation(web.home).attempt("turnkeeper", "web", "open", BROWSER=f"sh {program} %s")
    address = opened.stdout.strip()
    token = address.partition("#token=")[2]
    page = Path((tmp_path / "given").read_text().removeprefix("file://"))
    assert str(page).encode() in (tmp_path / "arguments").read_bytes()
    assert token.encode() not in (tmp_path / "arguments").read_bytes()
    assert f'url={address}"' in page.read_text()
    assert (stat.S_IMODE(page.stat().st_mode), stat.S_IMODE(page.parent.stat().st_mode)) == (0o600, 0o700)
    assert "paste this address" in opened.stderr
    assert web.post("/ui/login", {"token": token}).status == 303
    assert not page.exists()
    assert web.post("/ui/login", {"token": token}).status == 403


def test_what_clients_send_fills_no_log(web: Web) -> None:
    before = log_of(web.home, WEB).read_text().count("\n")
    for _ in range(3 * server.MOST_LINES):
        with web.connect() as connection:
            connection.sendall(b"no request\r\n\r\n")
            assert b"400" in connection.recv(100)
    said = log_of(web.home, WEB).read_text()
    assert said.count("\n") - before <= 2 * server.MOST_LINES, "which another minute may begin"
    assert "later records of this minute are not logged" in " ".join(said.split())


def test_connections_that_ask_nothing_keep_nobody_out(web: Web) -> None:
    """Neither those that say nothing, nor those that begin a login and never end it."""
    begun = f"POST /ui/login HTTP/1.1\r\nHost: {web.host}\r\nOrigin: {web.origin}\r\nContent-Length: 9\r\n"
    begun += "Content-Type: application/x-www-form-urlencoded\r\n\r\n"
    for said in (b"", begun.encode()):
        with ExitStack() as idle:
            for _ in range(2 * server.MOST_CONNECTIONS + 10):  # more than the server takes
                idle.enter_context(web.connect()).sendall(said)
            assert [web.ask("/lg/ok").status for _ in range(3)] == [200, 200, 200]


def test_of_a_body_whose_request_was_refused_little_more_is_read(web: Web) -> None:
    head = f"POST /lg/threads HTTP/1.1\r\nHost: {web.host}\r\nTransfer-Encoding: chunked\r\n\r\n"
    chunk = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
    sent = 0
    with web.connect() as connection, suppress(ConnectionError):
        connection.sendall(head.encode())
        assert b"401" in connection.recv(100)
        while sent < 64 << 20:
            connection.sendall(chunk)
            sent += len(chunk)
    assert sent < 16 << 20, "what the system's buffers hold, and little more"


@pytest.mark.parametrize(
    "request_",
    [
        "POST /lg/ok HTTP/1.1\r\nHost: {host}\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "GET /lg/ok HTTP/1.1\nHost: {host}\n\n",
        "GET /lg/ok HTTP/1.1\r\nHost: {host}\nX: y\r\n\r\n",
        "GET /lg/ok HTTP/1.1\r\nHost: {host}\r\n\n",
        "GET /lg/ok HTTP/1.1\r\nHost: {host}\r\n\r\nGET /lg/ok HTTP/1.1\nHost: {host}\r\n\r\n",
    ],
)
def test_what_a_proxy_could_read_in_another_way_is_no_request(web: Web, request_: str) -> None:
    with web.connect() as connection:
        connection.sendall(request_.format(host=web.host).encode())
        told = b"".join(iter(lambda: connection.recv(4096), b""))
    answers = re.findall(rb"HTTP/1.1 (\d+)", told)
    assert answers == ([b"200", b"400"] if request_.count("GET") == 2 else [b"400"])


def test_a_key_file_that_others_can_read_counts_no_more_at_once_and_again_when_it_is_right(browser: Web) -> None:
    web, key, path, token = browser, browser.key("mode"), browser.home.keys / "web.json", browser.token()
    assert web.ask("/lg/nothing", x_api_key=key).status == 404
    path.chmod(0o644)
    refused = web.ask("/lg/nothing", x_api_key=key)
    assert (refused.status, f"can be read by other users; run: chmod 600 {path}" in refused.body) == (503, True)
    refused = web.post("/ui/login", {"token": token}, cookie="")
    assert (refused.status, "set-cookie" in refused.headers) == (503, False)
    assert web.ask("/ui/memory", cookie=web.cookie).status == 200, "who is logged in stays so"
    path.chmod(0o600)
    assert web.ask("/lg/nothing", x_api_key=key).status == 404


@pytest.mark.skipif(not server._has_ipv6(), reason="the machine has no ::1, so that no browser looks there")
def test_no_other_program_listens_where_browsers_look_for_the_name_first() -> None:
    settings = WebSettings(port=free_port())
    with socket.socket(socket.AF_INET6) as other:
        other.bind(("::1", settings.port))
        other.listen()
        with pytest.raises(Conflict, match=f"cannot listen on ::1:{settings.port}"):
            server.listeners(settings)
    bound = server.listeners(settings)
    with socket.socket(socket.AF_INET6) as other, pytest.raises(OSError, match="Address already in use"):
        other.bind(("::1", settings.port))
    for each in bound:
        each.close()


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1", "evil.example:{port}", "turnkeeper.localhost:1", "[::1]:{port}"]
)
@pytest.mark.parametrize("path", ["/", "/ui/", "/lg/ok", "/mcp", "/ui/static/page.css"])
def test_a_name_that_is_not_ours_is_misdirected_whatever_is_asked(web: Web, host: str, path: str) -> None:
    assert web.ask(path, host=host.format(port=web.port)).status == 421


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "*", "http://127.0.0.1:1", "http://turnkeeper.localhost:1", ""]
)
def test_a_page_of_another_origin_is_refused_also_of_another_port_and_null(browser: Web, origin: str) -> None:
    for path in ("/ui/", "/lg/ok", "/mcp", "/"):
        assert browser.ask(path, origin=origin, cookie=browser.cookie).status == 403
    for path in ("/ui/logout", "/ui/login"):
        assert browser.post(path, {"page_key": browser.page_key}, origin=origin).status == 403


def test_an_origin_of_the_settings_may_use_the_apis_and_never_the_page(browser: Web) -> None:
    allowed = "http://chat.example:3000"
    answer = browser.ask("/lg/ok", origin=allowed)
    assert (answer.status, answer.headers["access-control-allow-origin"]) == (200, allowed)
    assert "access-control-allow-credentials" not in answer.headers
    preflight = browser.ask("/lg/threads", "OPTIONS", origin=allowed, access_control_request_method="POST")
    assert (preflight.status, preflight.headers["access-control-allow-origin"]) == (204, allowed)
    assert "x-api-key" in preflight.headers["access-control-allow-headers"]
    assert browser.ask("/ui/", origin=allowed, cookie=browser.cookie).status == 403
    assert browser.ask("/ui/", "OPTIONS", origin=allowed).status == 403


def test_a_token_is_taken_once_and_only_by_name(web: Web) -> None:
    token = web.token()
    plain = {"host": f"127.0.0.1:{web.port}", "origin": f"http://127.0.0.1:{web.port}"}
    assert web.post("/ui/login", {"token": token}, **plain).status == 403, (
        "other ports of 127.0.0.1 would get the cookie"
    )
    first = web.post("/ui/login", {"token": token})
    assert first.status == 303
    said = first.headers["set-cookie"].lower()
    assert ["httponly" in said, "samesite=strict" in said, "domain" in said] == [True, True, False]
    assert web.post("/ui/login", {"token": token}).status == 403, "replayed"
    assert web.post("/ui/login", {"token": token[:-1] + "0"}).status == 403
    assert web.post("/ui/login", {"token": web.token(plain_host=True)}, **plain).status == 303
    assert web.post("/ui/login", {"token": web.token()}, sec_fetch_site="same-site").status == 403
    assert web.post("/ui/login", {"token": web.token()}, content_type="text/plain").status == 415
    assert web.ask("/ui/", cookie=f"turnkeeper-{web.port}=" + "0" * 64).status == 401


def test_a_key_counts_only_in_its_header_and_a_cookie_only_on_the_page(browser: Web) -> None:
    key = browser.key("one")
    assert browser.ask("/lg/nothing", x_api_key=key).status == 404
    assert browser.ask("/mcp", authorization=f"Bearer {key}").status not in {401, 403}
    for name in ("x-api-key", "api_key", "key", "token", "authorization"):
        assert browser.ask(f"/lg/nothing?{name}={key}").status == 401
    assert browser.ask("/lg/nothing", cookie=browser.cookie).status == 401
    assert browser.ask("/mcp", cookie=browser.cookie).status == 401
    assert browser.ask("/lg/nothing", authorization=f"Bearer {key}").status == 401
    assert browser.ask("/mcp", x_api_key=key).status == 401
    assert browser.ask("/ui/", x_api_key=key, authorization=f"Bearer {key}").status == 401
    assert browser.ask("/lg/ok").status == 200


def test_a_revoked_key_is_refused_at_once(web: Web) -> None:
    key = web.key("gone", "read")
    assert web.ask("/lg/nothing", x_api_key=key).status == 404
    Keys(web.home).revoke("gone")
    assert web.ask("/lg/nothing", x_api_key=key).status == 401


def test_a_change_needs_the_pages_own_key_beside_the_cookie(browser: Web) -> None:
    assert browser.post("/ui/logout", {}).status == 403
    assert browser.post("/ui/logout", {"page_key": "0" * 32}).status == 403
    unsaid = {"content_type": "application/x-www-form-urlencoded", "cookie": browser.cookie}
    assert browser.ask("/ui/logout", "POST", b"", **unsaid).status == 403, "no Origin at all"


def test_every_answer_keeps_a_browser_from_running_or_framing_what_is_not_ours(browser: Web) -> None:
    for answer in (
        browser.ask("/"),
        browser.ask("/ui/", cookie=browser.cookie),
        browser.ask("/ui/"),
        browser.ask("/lg/ok"),
        browser.ask("/nothing"),
        browser.ask("/", host="evil.example"),
    ):
        assert {key: answer.headers.get(key) for key in HEADERS} == HEADERS
        assert "server" not in answer.headers


def test_a_body_of_five_mebibytes_is_refused_by_its_header_and_by_its_size(browser: Web) -> None:
    head = f"POST /ui/login HTTP/1.1\r\nHost: {browser.host}\r\nOrigin: {browser.origin}\r\nContent-Type: application/x-www-form-urlencoded\r\n"
    with browser.connect() as raw:
        raw.sendall(f"{head}Content-Length: {5 << 20}\r\n\r\n".encode())
        assert b" 413 " in raw.recv(64)
    with browser.connect() as raw:
        raw.sendall(f"{head}Transfer-Encoding: chunked\r\n\r\n".encode())
        with suppress(OSError):  # it has answered and closed
            for _ in range(80):
                raw.sendall(b"10000\r\n" + b"x" * 65536 + b"\r\n")
        assert b" 413 " in raw.recv(64)
    assert browser.ask("/lg/ok").status == 200


async def test_a_request_that_never_says_all_its_headers_is_cut(monkeypatch: pytest.MonkeyPatch, home: Home) -> None:
    monkeypatch.setattr(server, "HEADERS_S", 0.05)
    async with in_this_process(home) as (gateway, port):
        del gateway
        whole = f"GET /lg/ok HTTP/1.1\r\nHost: turnkeeper.localhost:{port}\r\n\r\n"
        for said, then in (("", ""), ("GET / HT", ""), (whole[:-2], ""), (whole, "GET /")):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(said.encode())
            if then:
                assert b"200 OK" in await reader.readuntil(b'{"ok":true}')
                writer.write(then.encode())
            with suppress(ConnectionResetError):
                assert await asyncio.wait_for(reader.read(), 20) == b""
            writer.close()
            with suppress(ConnectionResetError):
                await writer.wait_closed()


async def test_a_body_that_comes_in_small_pieces_is_given_up_after_the_time_for_all_of_it(
    monkeypatch: pytest.MonkeyPatch, home: Home
) -> None:
    monkeypatch.setattr(door, "BODY_S", 0.2)
    async with in_this_process(home) as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        head = f"POST /ui/login HTTP/1.1\r\nHost: localhost:{port}\r\nOrigin: http://localhost:{port}\r\n"
        writer.write(f"{head}Content-Type: application/json\r\nContent-Length: 100000\r\n\r\n".encode())
        answer, sent = asyncio.create_task(reader.readline()), 0
        while not answer.done() and sent < 1000:
            writer.write(b"x")
            sent += 1
            await look_again()
        assert answer.done()
        assert b" 408 " in await answer
        writer.close()


async def test_of_a_hundred_idle_streams_64_are_served_32_of_one_client_and_all_end_with_their_readers(
    home: Home,
) -> None:
    async with in_this_process(home) as (gateway, port):
        keys = [Keys(home).make(f"k{number}", "read", SystemClock().now(), SystemEntropy())[1] for number in range(13)]
        opened = []
        for number in range(100):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            key = keys[0] if number < 33 else keys[1 + number % 12]
            writer.write(f"GET /lg/idle HTTP/1.1\r\nHost: localhost:{port}\r\nx-api-key: {key}\r\n\r\n".encode())
            opened.append((int((await reader.readline()).split()[1]), writer))
        assert sorted(status for status, _ in opened) == [200] * 64 + [429] * 36
        assert [status for status, _ in opened[:33]] == [200] * 32 + [429]
        assert gateway.streams.open == 64
        assert b"200 OK" in await asked(port, "/lg/ok"), "whoever asks meanwhile is answered"
        for _, writer in opened:
            writer.close()
        await asyncio.wait_for(gateway.all_ended.wait(), 20)
        assert gateway.streams.open == 0


async def test_a_stream_whose_reader_takes_nothing_is_ended(monkeypatch: pytest.MonkeyPatch, home: Home) -> None:
    ended = asyncio.Event()

    async def flood(_idle: Idle) -> AsyncIterator[bytes]:
        try:
            while True:
                yield b"data: " + b"x" * (1 << 20) + b"\n\n"
        finally:
            ended.set()

    monkeypatch.setattr(streams, "SLOWEST_S", 0.2)
    monkeypatch.setattr(Idle, "events", flood)
    async with in_this_process(home) as (gateway, port):
        key = Keys(home).make("slow", "read", SystemClock().now(), SystemEntropy())[1]
        with socket.create_connection(("127.0.0.1", port)) as reader:
            reader.sendall(f"GET /lg/idle HTTP/1.1\r\nHost: localhost:{port}\r\nx-api-key: {key}\r\n\r\n".encode())
            await asyncio.wait_for(ended.wait(), 20)
        assert gateway.streams.open == 0


async def test_a_stream_ends_when_its_key_is_revoked(monkeypatch: pytest.MonkeyPatch, home: Home) -> None:
    monkeypatch.setattr(streams, "PING_S", 0.05)
    async with in_this_process(home) as (gateway, port):
        opened = []
        for name in ("gone", "kept"):
            key = Keys(home).make(name, "read", SystemClock().now(), SystemEntropy())[1]
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(f"GET /lg/idle HTTP/1.1\r\nHost: localhost:{port}\r\nx-api-key: {key}\r\n\r\n".encode())
            assert b" 200 " in await reader.readuntil(b": \n\n")
            opened.append((reader, writer))
        (gone, _), (kept, _) = opened
        Keys(home).revoke("gone")
        with suppress(ConnectionResetError):
            await asyncio.wait_for(gone.read(), 20)
        while gateway.streams.open > 1:
            await look_again()
        for _ in range(3):
            assert await kept.readuntil(b": \n\n")
        assert gateway.streams.open == 1
        for _, writer in opened:
            writer.close()


async def test_the_stream_of_a_tab_ends_when_its_browser_logs_out(monkeypatch: pytest.MonkeyPatch, home: Home) -> None:
    monkeypatch.setattr(streams, "PING_S", 0.05)
    async with in_this_process(home) as (gateway, port):
        cookie = gateway.sessions.log_in(Web(home, port).token(), plain_host=False)
        session = gateway.sessions.find(cookie or "")
        assert session is not None
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        head = f"GET /ui/live HTTP/1.1\r\nHost: localhost:{port}\r\nCookie: turnkeeper-{port}={cookie}\r\n\r\n"
        writer.write(head.encode())
        assert b" 200 " in await reader.readuntil(b": \n\n")
        gateway.sessions.log_out(session)
        with suppress(ConnectionResetError):
            await asyncio.wait_for(reader.read(), 20)
        while gateway.streams.open:
            await look_again()
        writer.close()


async def test_of_one_key_eight_requests_of_mcp_are_answered_at_once_and_a_ninth_is_told_to_wait(home: Home) -> None:
    from turnkeeper.gateway.mcp.transports import App  # which takes long, and each worker of pytest imports this module

    go = asyncio.Event()

    class Slow:
        async def asgi_app(self, *answering: Any) -> None:
            await go.wait()
            await Response("done")(*answering)

    async with in_this_process(home, lambda gateway: Offered(App(cast("Any", Slow()), gateway.streams))) as (
        idle,
        port,
    ):
        mine, other = (Keys(home).make(name, "work", SystemClock().now(), SystemEntropy())[1] for name in ("a", "b"))

        async def post(key: str) -> bytes:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            head = f"POST /mcp HTTP/1.1\r\nHost: localhost:{port}\r\nAuthorization: Bearer {key}\r\n"
            writer.write(
                f"{head}Content-Type: application/json\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{{}}".encode()
            )
            try:
                return await reader.read()
            finally:
                writer.close()

        first = [asyncio.create_task(post(mine)) for _ in range(8)]
        while idle.streams.open < 8:
            await look_again()
        refused = await post(mine)
        assert b" 429 " in refused
        assert b"retry-after: 5" in refused
        assert b"8 per key; wait for one" in refused
        another = asyncio.create_task(post(other))
        while idle.streams.open < 9:
            await look_again()
        go.set()
        assert all(b"done" in answer for answer in await asyncio.gather(*first, another))
        assert b"done" in await post(mine)
        assert idle.streams.open == 0


class Forgetful(dict[str, int]):
    """Remembers no token."""

    def __setitem__(self, key: str, value: int) -> None:
        pass


async def nothing(*_given: object) -> None:
    pass


async def anybody(_door: Door, _request: Request, surface: str) -> Who:
    return Who(surface=surface, scope=Scope.DECIDE)


@pytest.mark.parametrize(
    ("rule", "instead", "attack"),
    [
        ("_check_host", lambda *_: None, {"host": "evil.example"}),
        ("_check_origin", lambda *_: {}, {"origin": "http://evil.example"}),
        ("_client", anybody, {"path": "/lg/behind"}),
        ("_check_change", nothing, {"method": "POST", "path": "/ui/logout", "cookie": "yes", "origin": "http://evil.example"}),
        ("_bounded", lambda _request, receive: receive, {"method": "POST", "path": "/ui/login", "length": str(5 << 20)}),
    ],
)  # fmt: skip
async def test_an_attack_succeeds_without_the_rule_that_stops_it(
    monkeypatch: pytest.MonkeyPatch, home: Home, rule: str, instead: Any, attack: dict[str, str]
) -> None:
    async with in_this_process(home) as (idle, port):
        cookie = idle.sessions.log_in(Web(home, port).token(), plain_host=False)
        assert cookie is not None
        sent = {"method": "GET", "path": "/lg/ok", "host": f"localhost:{port}", **attack}
        if "cookie" in sent:
            sent["cookie"] = f"turnkeeper-{port}={cookie}"
        assert await answered(port, **sent) in {401, 403, 413, 421}
        monkeypatch.setattr(Door if hasattr(Door, rule) else door, rule, instead)
        if rule == "_check_change":  # behind which the Origin is asked as well
            monkeypatch.setattr(Door, "_check_origin", lambda *_: {})
            assert await answered(port, **sent) not in {401, 403, 421}
            assert idle.sessions.find(cookie) is None, "the page of another origin logged the browser out"
        else:
            wait_s = 0.3 if rule == "_bounded" else 20.0
            assert await answered(port, wait_s=wait_s, **sent) not in {401, 413, 421}


async def test_a_token_is_good_for_ever_where_none_is_remembered(home: Home) -> None:
    async with in_this_process(home) as (idle, port):
        token = Web(home, port).token()
        assert idle.sessions.log_in(token, plain_host=False) is not None
        assert idle.sessions.log_in(token, plain_host=False) is None
        idle.sessions._taken = Forgetful()
        assert idle.sessions.log_in(token, plain_host=False) is not None


async def answered(
    port: int, *, method: str, path: str, host: str, length: str = "0", wait_s: float = 20.0, **headers: str
) -> int:
    """Return the status of one request, whose body is announced and never sent."""
    lines = [
        f"{method} {path} HTTP/1.1",
        f"Host: {host}",
        f"Content-Length: {length}",
        "Content-Type: application/json",
    ]
    lines += [f"{key}: {value}" for key, value in headers.items()]
    if path == "/ui/login":
        lines.append(f"Origin: http://localhost:{port}")
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write("\r\n".join([*lines, "Connection: close", "", ""]).encode())
    try:
        async with asyncio.timeout(wait_s):
            return int((await reader.readline()).split()[1])
    except TimeoutError:
        return 100  # it waits for the rest of the body
    finally:
        writer.close()


def test_another_address_and_an_origin_of_everybody_are_refused_in_the_settings(home: Home) -> None:
    for said in ("bind = '0.0.0.0'", "origins = ['*']", "origins = ['null']", "origins = ['http://a/']"):
        home.config.write_text(f"[web]\n{said}\n")
        with pytest.raises(InvalidInput, match=r"config\.toml:[12]"):
            load_settings(home)
    home.config.write_text("[web]\nbind = '0.0.0.0'\ninsecure_bind = true\n")
    assert load_settings(home).web.bind == "0.0.0.0"


PAGES = (
    *("/ui/", "/ui/decisions", "/ui/conversations", "/ui/conversations/a", "/ui/turns/t", "/ui/tasks", "/ui/loops", "/ui/tasks/a"),
    *("/ui/tasks/a/edit", "/ui/new", "/ui/tasks/a/slot", "/ui/timeline", "/ui/pages", "/ui/pages/a", "/ui/memory"),
)  # fmt: skip


@pytest.mark.parametrize("path", PAGES)
def test_while_the_daemons_are_away_each_page_says_so_and_since_when(browser: Web, path: str) -> None:
    answer = browser.ask(path, cookie=browser.cookie)
    assert answer.status in {200, 503}
    assert "has not answered since <time" in answer.body


def test_a_change_while_the_daemons_are_away_is_refused_on_the_page_that_it_came_from(browser: Web) -> None:
    page_key = browser.ask("/ui/tasks", cookie=browser.cookie).body.partition('name="page_key" value="')[2][:32]
    for path, form in (
        ("/ui/decisions/interrupt/i", {"do": "approve", "args_hash": "h"}),
        ("/ui/conversations/a", {"text": "x"}),
        ("/ui/turns/t/cancel", {}),
        ("/ui/tasks/a/do/pause", {}),
        ("/ui/tasks/a/do/unknown", {}),
        ("/ui/tasks/a/edit", {"do": "save", "revision": "1"}),
    ):
        answer = browser.post(path, {"page_key": page_key, "next": "/ui/tasks", **form})
        assert answer.status in {303, 404, 503}, path
        if answer.status == 303:
            assert answer.headers["location"] == "/ui/tasks"
            assert "cannot be reached" not in browser.ask("/ui/loops", cookie=browser.cookie).body
            assert "cannot be reached" in browser.ask("/ui/tasks", cookie=browser.cookie).body
