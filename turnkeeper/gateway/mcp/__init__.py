"""Turnkeeper for MCP clients: tools, resources and prompts, on stdio (`turnkeeper mcp`) and over HTTP, under `/mcp`."""

from importlib import import_module

from turnkeeper.gateway.calls import Gateway, Surface


def surface(gateway: Gateway) -> Surface:
    """Return the surface over HTTP."""
    # Imported only now: the package of the protocol is an extra of its own.
    found: Surface = import_module("turnkeeper.gateway.mcp.transports").surface(gateway)
    return found
