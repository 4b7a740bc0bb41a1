"""The commands of `turnkeeper` for browsers and existing clients, imported when one of them is used."""

from turnkeeper.commands import App, Later, Panel

PEOPLE = {
    "web": Later(
        "gateway.cli.web:web",
        "The page in the browser, the LangGraph API and MCP over HTTP, on this machine.",
        Panel.TALK,
    ),
}
app = App("Serve browsers and existing clients.", PEOPLE)
