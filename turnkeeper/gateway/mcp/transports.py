"""Transports of the MCP server: stdin and stdout, as a child of its client, and streamable HTTP.

Over HTTP, the key that the guard identified names the caller, and a session belongs to its key.
"""

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from starlette.responses import JSONResponse

from turnkeeper.config.home import Home
from turnkeeper.config.settings import load_settings
from turnkeeper.gateway.calls import MOST_OF_ONE, MOST_STREAMS, RUNNER, RUNTIME, Gateway, Offered, Streams, Who
from turnkeeper.gateway.door import page_of
from turnkeeper.gateway.mcp.desk import Desk
from turnkeeper.gateway.mcp.server import following, make_server
from turnkeeper.rpc.channel import AsyncCaller, connect
from turnkeeper.v1.agent_runtime_pb2_grpc import AgentRuntimeStub
from turnkeeper.v1.schedules_pb2_grpc import SchedulesStub

MOST_SESSIONS = 256


def serve(home: Home) -> None:
    """Serve one client until it closes stdin or a signal ends the process. Raises InvalidInput for bad settings."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # the thread that reads stdin cannot be interrupted
    asyncio.run(_serve(home))


async def _serve(home: Home) -> None:
    settings = load_settings(home)
    async with connect(home.socket(RUNTIME)) as runtime, connect(home.socket(RUNNER)) as runner:
        desk = Desk(
            runtime=AsyncCaller(runtime, AgentRuntimeStub, RUNTIME),
            runner=AsyncCaller(runner, SchedulesStub, RUNNER),
            settings=settings.mcp,
            page=page_of(settings.web) if settings.web.enabled else "",
        )
        server, subscribers = make_server(desk)
        async with following(desk, subscribers.publish):
            await server.run_stdio_async()


class App:
    """The ASGI application: each request counts as a stream until it is answered."""

    def __init__(self, manager: StreamableHTTPSessionManager, streams: Streams) -> None:
        self._manager, self._streams = manager, streams

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer one request; answer 429 if there are too many."""
        who: Who = scope["who"]
        name = self._streams.enter(who)
        if name is None:
            detail = f"at most {MOST_STREAMS} requests are answered at once, and {MOST_OF_ONE} per key; wait for one"
            await JSONResponse({"detail": detail}, 429, {"retry-after": "5"})(scope, receive, send)
            return
        user = AuthenticatedUser(AccessToken(token=who.key, client_id=who.key, scopes=[]))
        try:
            await self._manager.asgi_app({**scope, "user": user}, receive, send)
        finally:
            self._streams.leave(name)


def surface(gateway: Gateway) -> Offered:
    who = Who(surface="mcp")
    desk = Desk(
        runtime=gateway.runtime(who),
        runner=gateway.runner(who),
        settings=gateway.settings.mcp,
        page=page_of(gateway.settings.web),
        clock=gateway.clock,
    )
    server, subscribers = make_server(desk)
    # The guard has already checked Host and Origin, and limits bodies.
    manager = StreamableHTTPSessionManager(server.inner, max_sessions=MOST_SESSIONS)

    @asynccontextmanager
    async def running() -> AsyncIterator[None]:
        async with following(desk, subscribers.publish), manager.run():
            yield

    return Offered(App(manager, gateway.streams), running)
