"""Queues: limits that the turns of several tasks share, over all machines."""

from turnkeeper.config.surfaces import Surface

SURFACE = Surface(
    name="queues",
    settings=("queues",),
    offers={
        "queues of a home": "task_runner.dispatcher.queues:use",
        "fires that queues admit": "task_runner.dispatcher.queues:admitted",
        "places in queues": "task_runner.dispatcher.queues:wake",
    },
)
