"""The gateway: HTTP on this machine, for browsers and existing clients."""

from turnkeeper.config.surfaces import Later, Panel, Surface

SURFACE = Surface(
    name="gateway",
    place=40,
    commands={
        "web": Later(
            "turnkeeper.gateway.cli.web:web",
            "The page in the browser, the LangGraph API and MCP over HTTP, on this machine.",
            Panel.TALK,
        ),
    },
)
