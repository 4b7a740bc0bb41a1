"""The gateway's process: `turnkeeper web serve` and the supervisor run `python -m turnkeeper.gateway HOME`.

Like the daemons, the process holds a lock, writes a progress counter, and answers the health service on
`state/run/web.sock`. So the supervisor can watch it in the same way. HTTP is served over TCP, on this machine only.
"""

import asyncio
import logging
import os
import re
import signal
import socket
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, nullcontext
from functools import partial
from importlib.util import find_spec
from typing import Any

import h11
import uvicorn
from starlette.applications import Starlette
from starlette.routing import Mount, Route
from uvicorn.protocols.http.h11_impl import H11Protocol

from turnkeeper.bus.event_log import EventLog
from turnkeeper.clock import Clock, SystemClock
from turnkeeper.config.home import Home
from turnkeeper.config.settings import WebSettings, load_settings
from turnkeeper.config.surfaces import imported, surfaces
from turnkeeper.entropy import SystemEntropy
from turnkeeper.errors import Conflict
from turnkeeper.gateway.calls import Gateway, Offered
from turnkeeper.gateway.door import Door
from turnkeeper.gateway.keys import Keys, Sessions
from turnkeeper.rpc.process import Progress
from turnkeeper.rpc.server import UnixServer, keep_reachable, run_daemon
from turnkeeper.storage.locking import ProcessLock

PROCESS = "web"
NICE = 10  # if processor time is scarce, pages wait and fires do not
HEADERS_S = 10.0  # seconds for the first line and the headers of a request
MOST_CONNECTIONS = 256
SPARE_CONNECTIONS = 64  # connections of unknown clients; beyond this number, a new one closes an old one
LARGEST_REST = 256 << 10  # bytes of a body that may arrive after its request was answered
LARGEST_FRAME = 1 << 20  # bytes of a WebSocket's message from a client
MOST_LINES = 20  # log lines of libraries in a minute
_STOP_GRACE_S = 2
_HEAD, _BARE = re.compile(rb"(?s).*?(?:\n\r?\n|$)"), re.compile(rb"(?<!\r)\n")


class Strict(h11.Connection):
    """A parser that is as strict as every proxy: it refuses a request that two parsers could read differently."""

    def next_event(self) -> Any:
        """Return the next event. Raises RemoteProtocolError for a line that ends in LF alone or both length headers."""
        if self.their_state is h11.IDLE:
            head = _HEAD.match(self.trailing_data[0])
            if head is not None and _BARE.search(head[0]):
                raise h11.RemoteProtocolError("a line ends in LF alone")
        event = super().next_event()
        if isinstance(event, h11.Request):
            names = {name.lower() for name, _ in event.headers}
            if {b"content-length", b"transfer-encoding"} <= names:
                raise h11.RemoteProtocolError("both Content-Length and Transfer-Encoding")
        return event


class Protocol(H11Protocol):
    """HTTP/1.1 with a timeout for headers. An answer may close its connection.

    Near the maximum number of connections, a new one closes the oldest one that no key or session has identified.
    """

    _waiting: asyncio.TimerHandle | None = None
    _late = 0

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.conn = Strict(h11.SERVER, self.config.h11_max_incomplete_event_size or 0)
        self.app_state = {**self.app_state, "abort": transport.abort}
        self.made_at = self.loop.time()
        self._make_room()
        self._wait_for_headers()

    def _make_room(self) -> None:
        each = (one for one in self.connections if isinstance(one, Protocol))  # a WebSocket has shown its key
        open_ = [one for one in each if not one.transport.is_closing()]
        others = [one for one in open_ if one is not self and not one.is_known()]
        if len(open_) > MOST_CONNECTIONS - SPARE_CONNECTIONS and others:
            min(others, key=lambda one: one.made_at).transport.abort()

    def is_known(self) -> bool:
        """Return True while a request with a key or a session is being answered."""
        scope: Any = self.cycle.scope if self.cycle is not None and not self.cycle.response_complete else {}
        who = scope.get("who")
        return who is not None and who.scope is not None

    def data_received(self, data: bytes) -> None:
        """Process received data. After a complete request head, cancel the timeout for headers."""
        before = self.cycle
        if before is not None and before.response_complete and before.more_body:  # the rest of an answered request
            self._late += len(data)
            if self._late > LARGEST_REST:
                self.transport.abort()
                return
        super().data_received(data)
        if self.cycle is not before:
            self._stop_waiting()
        elif self._waiting is None and (self.cycle is None or self.cycle.response_complete):
            self._wait_for_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        """Stop the timeout for headers, and pass the connection to the WebSocket protocol."""
        self._stop_waiting()
        super().handle_websocket_upgrade(event)

    def _wait_for_headers(self) -> None:
        self._waiting = self.loop.call_later(HEADERS_S, self.transport.abort)

    def _stop_waiting(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None


class Bounded(logging.Filter):
    """A limit on log records per minute, so that complaints about clients cannot fill the disk."""

    def __init__(self, clock: Clock, most: int = MOST_LINES) -> None:
        super().__init__()
        self._clock, self._most = clock, most
        self._minute = self._count = 0

    def filter(self, record: logging.LogRecord) -> bool:
        """Return True for the first records of a minute. The last of them says that later records are omitted."""
        minute = int(self._clock.monotonic() // 60)
        self._count = self._count + 1 if minute == self._minute else 1
        self._minute = minute
        if self._count == self._most:
            record.msg = f"{record.msg} (later records of this minute are not logged)"
        return self._count <= self._most


class Server(uvicorn.Server):
    """A server that reports when it listens. The process handles signals, to release its lock and its socket."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = asyncio.Event()

    def capture_signals(self) -> Any:
        return nullcontext()

    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets)
        self.ready.set()


def listeners(settings: WebSettings) -> list[socket.socket]:
    """Return the bound sockets: on the address in the settings, and on ::1 if the machine has it.

    Browsers look up turnkeeper.localhost at ::1 first. Another user's program there would get tokens and cookies.

    Raises:
        Conflict: another program already listens on one of the addresses.
    """
    beside = ["::1"] if ":" not in settings.bind and _has_ipv6() else []
    with ExitStack() as opened:
        bound = [opened.enter_context(_listener(host, settings.port)) for host in (settings.bind, *beside)]
        opened.pop_all()  # the server closes the sockets
        return bound


def _has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


def _listener(host: str, port: int) -> socket.socket:
    bound = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host, port))
        bound.listen(MOST_CONNECTIONS)
    except OSError as error:
        bound.close()
        what = f"cannot listen on {host}:{port}: {error.strerror}"
        raise Conflict(what, where="[web] port", hint="stop that program, or set another port") from error
    return bound


def offered(gateway: Gateway) -> dict[str, Offered]:
    """Return the installed surfaces by path, except those whose extra is not installed."""
    mounts = (surface.mount for surface in surfaces().values() if surface.mount)
    served = (one for one in mounts if not one.package or find_spec(one.package))
    return {one.path: imported(one.target)(gateway) for one in sorted(served, reverse=True)}


def build(gateway: Gateway, keys: Keys, parts: Mapping[str, Offered]) -> Any:
    """Return the application: the door first, then each surface under its path."""

    @asynccontextmanager
    async def running(_app: Starlette) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            for part in parts.values():
                await stack.enter_async_context(part.running())
            yield

    exactly = [Route(path, endpoint=part.app) for path, part in parts.items() if path]
    routes = [*exactly, *(Mount(path, app=part.app) for path, part in parts.items())]
    app = Starlette(routes=routes, lifespan=running)
    open_ = [path for path, part in parts.items() if part.checks_callers]
    door = Door(app, keys, gateway.sessions, gateway.settings.web, gateway.clock, open_)
    door.has_guests = gateway.settings.project.enabled
    return door


async def serve(home: Home, lock: ProcessLock) -> None:
    """Serve until SIGTERM or SIGINT. The caller holds the process's lock; this function restores it if needed."""
    clock, entropy, settings, stop = SystemClock(), SystemEntropy(), load_settings(home), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    log, keys = EventLog(home.logs, PROCESS, clock), Keys(home)
    keys.create(entropy)
    gateway = Gateway(home, settings, Sessions(keys, clock, entropy), clock=clock, entropy=entropy)
    bound, health = listeners(settings.web), UnixServer(home.socket(PROCESS))
    web = Server(config_of(build(gateway, keys, offered(gateway))))
    for handler in filter(None, (logging.lastResort, *logging.root.handlers)):  # the MCP package has added a handler
        handler.addFilter(Bounded(clock))
    parts = [asyncio.create_task(web.serve(bound), name="HTTP"), asyncio.create_task(web.ready.wait())]
    try:
        await asyncio.wait(parts, return_when=asyncio.FIRST_COMPLETED)
        await health.start()
        log.emit("process.started")
        progress = Progress(home, PROCESS, os.getpid())
        parts[1] = asyncio.create_task(progress.run(clock, lambda: keep_reachable(lock, health, log)))
        parts.append(asyncio.create_task(stop.wait()))
        await asyncio.wait(parts, return_when=asyncio.FIRST_COMPLETED)
        web.should_exit = True
        await parts[0]
    finally:
        for part in parts:
            part.cancel()
        ended = await asyncio.gather(*parts, return_exceptions=True)
        await gateway.close()
        await health.stop(_STOP_GRACE_S)
        log.emit("process.stopped")
    for error in ended:
        if isinstance(error, BaseException) and not isinstance(error, asyncio.CancelledError):
            raise error


def config_of(app: Any) -> uvicorn.Config:
    """Return the server's configuration: it logs no requests and trusts no proxy headers."""
    sockets: Any = "websockets-sansio" if find_spec("websockets") else "none"  # LangGraph's SDK brings this package
    return uvicorn.Config(
        app, http=Protocol, ws=sockets, ws_max_size=LARGEST_FRAME, log_config=None, access_log=False,
        server_header=False, proxy_headers=False,
        lifespan="on", loop="asyncio", timeout_graceful_shutdown=_STOP_GRACE_S, timeout_keep_alive=60,
        limit_concurrency=2 * MOST_CONNECTIONS, h11_max_incomplete_event_size=32 << 10,
    )  # fmt: skip


main = partial(run_daemon, process=PROCESS, serve=serve, nice=NICE)

if __name__ == "__main__":
    os.umask(0o077)
    sys.exit(main(sys.argv[1:]))
