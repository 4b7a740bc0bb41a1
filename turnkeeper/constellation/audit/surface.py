"""Audit: the check that no record of a decision or an outcome was changed."""

from turnkeeper.config.surfaces import Later, Panel, Surface

SURFACE = Surface(
    name="audit",
    place=34,
    commands={
        "audit": Later(
            "turnkeeper.constellation.audit.commands:audit",
            "Check that no record of a decision or an outcome was changed.",
            Panel.LOOK,
        ),
    },
)
