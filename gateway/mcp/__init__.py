"""MCP over HTTP, under `/mcp`."""

from starlette.applications import Starlette

from gateway.calls import Gateway, Surface, refuse
from turnkeeper.errors import TurnkeeperError


def surface(gateway: Gateway) -> Surface:
    """Return the surface."""
    del gateway
    return Surface(Starlette(exception_handlers={TurnkeeperError: refuse}))
