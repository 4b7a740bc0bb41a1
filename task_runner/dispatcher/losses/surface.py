"""Lost commits of a store: fires that are taken over, and findings."""

from turnkeeper.config.surfaces import Surface

SURFACE = Surface(
    name="losses",
    offers={
        "fires of lost commits": "task_runner.dispatcher.losses:taken_over",
        "turn of an unsent fire": "task_runner.dispatcher.losses:note",
        "findings of daemons": "turnkeeper.constellation.inspect.losses:findings",
    },
    also=("turnkeeper.constellation.inspect.losses",),
)
