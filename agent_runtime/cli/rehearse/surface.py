"""The commands about categories: list, grant, check, and rehearse a proposed category on past turns."""

from turnkeeper.config.surfaces import Later, Panel, Surface

SURFACE = Surface(
    name="categories",
    place=20,
    commands={
        "categories": Later(
            "agent_runtime.cli.categories:app", "Categories: the permissions of each kind of standing work.", Panel.KNOW
        ),
    },
    offers={"categories rehearse": "agent_runtime.cli.rehearse:command"},
    also=("agent_runtime.cli.categories", "agent_runtime.permissions.grant", "agent_runtime.permissions.lint"),
)
