"""Audit: whether a record of what was decided was changed."""

from turnkeeper.config.surfaces import Later, Panel, Surface

SURFACE = Surface(
    name="audit",
    place=34,
    commands={
        "audit": Later(
            "turnkeeper.constellation.audit.commands:audit",
            "Check that no record of what was decided and how it ended was changed.",
            Panel.HOME,
        ),
    },
)
