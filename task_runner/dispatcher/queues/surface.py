"""Queues: limits that the turns of several tasks share, over all machines, and what fires wait for."""

from turnkeeper.config.surfaces import Surface

SURFACE = Surface(
    name="queues",
    settings=("queues",),
    offers={
        "limits of queues": "task_runner.dispatcher.queues:admission",
        "cordon of fires": "task_runner.dispatcher.queues:cordon",
        "queues of a store": "task_runner.dispatcher.queues:shown",
        "places in queues": "task_runner.dispatcher.queues:wake",
    },
)
