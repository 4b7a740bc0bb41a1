"""Tasks that follow other tasks, with their answers."""

from turnkeeper.config.surfaces import Surface

SURFACE = Surface(
    name="flows",
    offers={
        "answers": "task_runner.dispatcher.flows.answers:answers",
        "all before succeeded": "task_runner.dispatcher.flows.answers:is_whole",
    },
)
