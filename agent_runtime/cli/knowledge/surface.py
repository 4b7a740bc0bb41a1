"""The commands of `turnkeeper` for pages, proposals to change them, and memory; the offline model's work on these."""

from turnkeeper.config.surfaces import Later, Panel, Surface

_COMMANDS = {
    "candidates": Later(
        "agent_runtime.cli.knowledge.review:app",
        "Changes that agents propose to the workspace; the workspace changes only when you accept one.",
        Panel.TALK,
    ),
    "deviations": Later(
        "agent_runtime.cli.knowledge.review:deviations_app",
        "Contradictions between one of your pages and another statement; only you close one.",
        Panel.TALK,
    ),
    "revalidation": Later(
        "agent_runtime.cli.knowledge.review:revalidation_app",
        "Pages to check again, because one of their sources has changed.",
        Panel.TALK,
    ),
    "workspace": Later(
        "agent_runtime.cli.knowledge.workspace:app", "The pages that agents read and propose to change.", Panel.KNOW
    ),
    "memory": Later(
        "agent_runtime.cli.knowledge.memory:app", "The memory of agents and authors, in four tiers.", Panel.KNOW
    ),
}
SURFACE = Surface(
    name="knowledge",
    place=21,
    commands=_COMMANDS,
    offers={
        "decisions about knowledge": "agent_runtime.cli.knowledge.review:waiting",
        "knowledge-jobs": "agent_runtime.graph.offline.knowledge:jobs",
        "subagents": "agent_runtime.graph.offline.knowledge:subagents",
    },
    also=("agent_runtime.graph.offline.knowledge",),
)
