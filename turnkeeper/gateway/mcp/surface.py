"""Turnkeeper for MCP clients."""

from turnkeeper.config.surfaces import Later, Panel, Surface

SURFACE = Surface(
    name="mcp",
    place=41,
    commands={
        "mcp": Later(
            "turnkeeper.gateway.cli.mcp:mcp",
            "Serve an MCP client, such as Claude Code or Cursor, on stdin and stdout.",
            Panel.TALK,
        ),
    },
)
