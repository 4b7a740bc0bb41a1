"""The LangGraph API, under `/lg`."""

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from gateway.calls import Gateway, Surface, refuse
from turnkeeper.errors import TurnkeeperError


async def _ok(_request: Request) -> JSONResponse:
    return JSONResponse({"ok": True})


def surface(gateway: Gateway) -> Surface:
    """Return the surface."""
    del gateway
    return Surface(Starlette(routes=[Route("/ok", _ok)], exception_handlers={TurnkeeperError: refuse}))
