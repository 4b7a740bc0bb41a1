"""Pages of the public web, which a turn may read."""

from turnkeeper.config.surfaces import Surface

SURFACE = Surface(
    name="web-reader",
    offers={
        "web": "agent_runtime.workspace.web.page:WebReader",
        "refuse_private": "agent_runtime.workspace.web.addresses:refuse_private",
    },
)
