"""`turnkeeper mcp`."""

import sys
from importlib import import_module
from importlib.util import find_spec

from turnkeeper.config.build import install_command
from turnkeeper.console import home, note
from turnkeeper.errors import InvalidInput


def mcp() -> None:
    """Serve an MCP client, such as Claude Code or Cursor, on stdin and stdout.

    The client starts this command itself, as its configuration says. It can schedule work, look at it and talk to your
    agent. It decides nothing: what waits for your decision waits for you.

    Example: turnkeeper mcp
    """
    place = home()
    place.check()
    if find_spec("mcp") is None:
        hint = f"run: {install_command('turnkeeper[mcp]')}"
        raise InvalidInput("the package that it takes is not installed", where="turnkeeper mcp", hint=hint)
    if sys.stdin.isatty():
        note("this speaks MCP to a program that starts it, and waits for one; end it with Ctrl-D")
    import_module("turnkeeper.gateway.mcp.transports").serve(place)
