"""Queues: limits that the turns of several tasks share, over all machines."""

from turnkeeper.config.surfaces import Surface

SURFACE = Surface(
    name="queues",
    settings=("queues",),
    offers={
        "limits of queues": "task_runner.dispatcher.queues:admission",
        "places in queues": "task_runner.dispatcher.queues:wake",
    },
)
