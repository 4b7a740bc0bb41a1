"""A folder of the author, which a turn may read."""

from turnkeeper.config.surfaces import Surface

SURFACE = Surface(
    name="folder",
    settings=("folder",),
    offers={
        "folder-tools": "agent_runtime.tools.folder.folder:folder_tools",
        "jobs": "agent_runtime.tools.folder.folder:offline_jobs",
    },
)
