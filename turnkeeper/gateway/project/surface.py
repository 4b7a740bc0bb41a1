"""HTTP routes and the login of an author's project, for LangGraph's clients."""

from turnkeeper.config.surfaces import Process, Surface

SURFACE = Surface(
    name="project",
    place=28,
    settings=("project",),
    process=Process(
        name="project",
        package="turnkeeper.gateway.project",
        reads=frozenset({"agents", "project"}),
        asks=frozenset(),
        extra="web",
        needs=("starlette", "uvicorn"),
    ),
    offers={"project of clients": "turnkeeper.gateway.project.gate:around"},
    needs=("gateway", "graphs", "lg"),
)
