"""Pauses of many tasks at once: all tasks, or those with a label."""

from turnkeeper.config.surfaces import Panel, Surface, commands_in

_WORK = {
    "commands:pause": "Pause all tasks, or those with a label.",
    "commands:resume": "Resume the tasks that `turnkeeper pause` paused, or those of them with a label.",
}
SURFACE = Surface(name="holidays", place=51, commands=commands_in("task_runner.cli.holidays", {Panel.WORK: _WORK}))
