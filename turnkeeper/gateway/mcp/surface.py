"""Turnkeeper for MCP clients."""

from turnkeeper.config.surfaces import Later, Mount, Panel, Surface

SURFACE = Surface(
    name="mcp",
    place=26,
    settings=("mcp",),
    mount=Mount("/mcp", "turnkeeper.gateway.mcp.transports:surface", package="mcp"),
    commands={
        "mcp": Later(
            "turnkeeper.gateway.mcp:mcp",
            "Serve an MCP client, such as Claude Code or Cursor, on stdin and stdout.",
            Panel.TALK,
        ),
    },
)
