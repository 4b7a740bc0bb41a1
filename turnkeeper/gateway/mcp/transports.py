"""Transports of the MCP server: stdin and stdout, as a child of its client, and streamable HTTP.

Over HTTP, the caller is the key that the door identified, and a session belongs to its key.
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
from turnkeeper.gateway.calls import MOST_OF_ONE, MOST_STREAMS, Gateway, Offered, Streams, Who
from turnkeeper.gateway.door import page_of
from turnkeeper.gateway.mcp.desk import Desk
from turnkeeper.gateway.mcp.server import following, make_server
from turnkeeper.rpc.channel import AsyncCaller

MOST_SESSIONS = 256


def serve(home: Home) -> None:
    """Serve one client until it closes stdin or a signal ends the process. Raises InvalidInput for bad settings."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # the thread that reads stdin cannot be interrupted
    asyncio.run(_serve(home))


async def _serve(home: Home) -> None:
    settings, daemons = load_settings(home), AsyncCaller(home)
    page = page_of(settings.web) if settings.web.enabled else ""
    desk = Desk(daemons=daemons, settings=settings.mcp, page=page)
    server, subscribers = make_server(desk)
    try:
        async with following(desk, subscribers.publish):
            await server.run_stdio_async()
    finally:
        await daemons.close()


class App:
    """The ASGI application. Each request counts as a stream until it is answered."""

    def __init__(self, manager: StreamableHTTPSessionManager, streams: Streams) -> None:
        self._manager, self._streams = manager, streams

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer one request, or answer 429 if there are too many."""
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
        daemons=gateway.daemons(who),
        settings=gateway.settings.mcp,
        page=page_of(gateway.settings.web),
        clock=gateway.clock,
    )
    server, subscribers = make_server(desk)
    # The door has already checked Host and Origin, and it limits bodies.
    manager = StreamableHTTPSessionManager(server.inner, max_sessions=MOST_SESSIONS)

    @asynccontextmanager
    async def running() -> AsyncIterator[None]:
        async with following(desk, subscribers.publish), manager.run():
            yield

    return Offered(App(manager, gateway.streams), running)
