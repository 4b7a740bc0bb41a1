"""The commands of `turnkeeper` about tasks and events."""

from turnkeeper.config.surfaces import Later, Panel, Surface

SUMMARY = "Tasks that an agent runs on a schedule or at an event, and why each ran or did not."
SURFACE = Surface(
    name="task-runner",
    place=50,
    is_core=True,
    commands={
        "emit": Later(
            "task_runner.cli.state:emit",
            "Emit an event: every task that waits for it fires, subject to its filters and debounce.",
            Panel.WORK,
        ),
        "task": Later("task_runner.cli:task", SUMMARY, Panel.WORK),
    },
)
