"""The gateway's application: the door first, then each surface under its path."""

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from importlib.util import find_spec
from typing import Any

from starlette.applications import Starlette
from starlette.routing import Mount, Route

from turnkeeper.config.surfaces import imported, surfaces
from turnkeeper.gateway.calls import Gateway, Offered
from turnkeeper.gateway.door import Door
from turnkeeper.gateway.keys import Keys


def offered(gateway: Gateway) -> dict[str, Offered]:
    """Return the installed surfaces by path, except those whose extra is not installed."""
    mounts = (surface.mount for surface in surfaces().values() if surface.mount)
    served = (one for one in mounts if not one.package or find_spec(one.package))
    return {one.path: imported(one.target)(gateway) for one in sorted(served, reverse=True)}


def build(gateway: Gateway, keys: Keys, parts: Mapping[str, Offered]) -> Any:
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
    return Door(app, keys, gateway.sessions, gateway.settings.web, gateway.clock, open_)
