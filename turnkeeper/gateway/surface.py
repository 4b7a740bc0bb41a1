"""The gateway: HTTP on this machine, for browsers and existing clients."""

from turnkeeper.config.surfaces import Later, Panel, Process, Surface

SURFACE = Surface(
    name="gateway",
    place=25,
    settings=("web",),
    process=Process(
        name="web",
        package="turnkeeper.gateway",
        reads=frozenset({"agents", "assistants", "categories", "graphs", "mcp", "project", "queues", "store", "web"}),
        asks=frozenset({"task-runner", "agent-runtime"}),
        extra="web",
        needs=("starlette", "uvicorn", "jinja2", "markdown_it"),
    ),
    listens=lambda settings: {"web": f"{settings.web.bind}:{settings.web.port}"},
    offers={"keys": "turnkeeper.gateway.keys:listed"},
    commands={
        "web": Later(
            "turnkeeper.gateway.commands:web",
            "The page in the browser, the LangGraph API and MCP over HTTP, on this machine.",
            Panel.TALK,
        ),
    },
)
