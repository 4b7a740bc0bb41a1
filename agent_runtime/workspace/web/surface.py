"""Pages of the public web, which a turn may read."""

from turnkeeper.config.surfaces import Surface

SURFACE = Surface(name="web-reader", offers={"web": "agent_runtime.workspace.web.page:WebReader"})
