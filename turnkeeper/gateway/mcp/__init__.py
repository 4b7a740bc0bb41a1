"""Turnkeeper for MCP clients: tools, resources and prompts over stdio (`turnkeeper mcp`) and HTTP (`/mcp`)."""

import sys
from importlib import import_module
from importlib.util import find_spec

from turnkeeper.config.build import install_command
from turnkeeper.console import home, note
from turnkeeper.errors import InvalidInput


def mcp() -> None:
    """Serve an MCP client, such as Claude Code or Cursor, on stdin and stdout.

    The client starts this command itself, from its configuration. It can schedule work, inspect work, and talk to your
    agent. It makes no decisions, because approvals wait for you.

    Example: turnkeeper mcp
    """
    place = home()
    if find_spec("mcp") is None:
        hint = f"run: {install_command('turnkeeper[mcp]')}"
        raise InvalidInput("the required package is not installed", where="turnkeeper mcp", hint=hint)
    if sys.stdin.isatty():
        note("this command waits for an MCP client on stdin; a client usually starts it; Ctrl-D ends it")
    import_module("turnkeeper.gateway.mcp.transports").serve(place)
