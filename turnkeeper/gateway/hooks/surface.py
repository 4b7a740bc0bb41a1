"""Requests of callers without a key: webhooks that become events, and links that decide one question."""

from turnkeeper.config.surfaces import Later, Mount, Panel, Surface

SURFACE = Surface(
    name="hooks",
    place=35,
    mount=Mount("/hooks", "turnkeeper.gateway.hooks.application:surface"),
    offers={"decision link": "turnkeeper.gateway.hooks.links:link_to"},
    commands={
        "hooks": Later(
            "turnkeeper.gateway.hooks.commands:app",
            "Webhooks that this home accepts: each request becomes an event, for which tasks wait.",
            Panel.WORK,
        ),
    },
)
