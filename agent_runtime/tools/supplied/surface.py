"""Tools that the author supplies to the built-in agent, from MCP servers and from Python files."""

from turnkeeper.config.surfaces import Later, Panel, Surface

_TOOLS = Later("agent_runtime.tools.supplied.commands:app", "Tools of MCP servers, and your own.", Panel.KNOW)
SURFACE = Surface(
    name="tools",
    place=20,
    commands={"tools": _TOOLS},
    settings=("mcp_servers", "tools"),
    offers={
        "supplied-tools": "agent_runtime.tools.supplied.supply:supplied_tools",
        "own-tools-job": "agent_runtime.tools.supplied.orders:job",
        "supplied-facts": "agent_runtime.tools.supplied.supply:facts",
        "findings": "agent_runtime.tools.supplied.offers:findings",
    },
)
