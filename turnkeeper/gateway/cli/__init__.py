"""The commands of `turnkeeper` for browsers and existing clients, imported when one of them is used."""

from turnkeeper.console.commands import App, Later, Panel

PEOPLE = {
    "web": Later(
        "turnkeeper.gateway.cli.web:web",
        "The page in the browser, the LangGraph API and MCP over HTTP, on this machine.",
        Panel.TALK,
    ),
    "mcp": Later(
        "turnkeeper.gateway.cli.mcp:mcp",
        "Serve an MCP client, such as Claude Code or Cursor, on stdin and stdout.",
        Panel.TALK,
    ),
}
app = App("Serve browsers and existing clients.", PEOPLE)
