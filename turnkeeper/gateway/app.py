"""The gateway's application: the door before everything, then each surface under its path."""

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from importlib.util import find_spec
from typing import Any

from starlette.applications import Starlette
from starlette.routing import Mount, Route

from turnkeeper.gateway import lg, mcp, page
from turnkeeper.gateway.calls import Gateway, Surface
from turnkeeper.gateway.door import Door
from turnkeeper.gateway.keys import Keys


def surfaces(gateway: Gateway) -> dict[str, Surface]:
    """Return what is served under which path; MCP only where its extra is installed."""
    found = {"/lg": lg.surface(gateway)}
    if find_spec("mcp") is not None:
        found["/mcp"] = mcp.surface(gateway)
    return {**found, "": page.surface(gateway)}


def build(gateway: Gateway, keys: Keys, offered: Mapping[str, Surface]) -> Any:
    """Return the whole application, which offers each surface under its path."""

    @asynccontextmanager
    async def running(_app: Starlette) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            for surface in offered.values():
                await stack.enter_async_context(surface.running())
            yield

    exactly = [Route(path, endpoint=surface.app) for path, surface in offered.items() if path]
    routes = [*exactly, *(Mount(path, app=surface.app) for path, surface in offered.items())]
    app = Starlette(routes=routes, lifespan=running)
    return Door(app, keys, gateway.sessions, gateway.settings.web, gateway.clock)
