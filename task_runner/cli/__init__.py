"""The `task-runner` command line, and its commands as part of `turnkeeper`.

A command's module is imported when the command is used. The table contains the help texts.
"""

from task_runner.cli.surface import SUMMARY
from turnkeeper import console
from turnkeeper.config.surfaces import Later, Panel, commands, commands_in, subcommands
from turnkeeper.console.commands import App

_WORK = {
    "tasks:create": "Create a task with its schedule, permissions, channel and instructions.",
    "tasks:edit": "Change a task from now on.",
    "state:delete": "Delete a task.",
    "state:restore": "Restore a task or a loop that was deleted within the last day, in its earlier state.",
}
_LOOK = {
    "show:list_": "List tasks, ordered by next fire time.",
    "show:show": "Show all fields of one task.",
    "show:next_": "Preview the next times of a task, or of a schedule, without creating anything.",
    "show:history": "Show fired and skipped times, with reasons, of one task or of all; newest first.",
}
_FIRE = {
    "state:run": "Fire a task now, in addition to its schedule.",
    "state:pause": "Pause a task.",
    "state:resume": "Resume a paused or disabled task, on the same thread.",
    "state:disable": "Stop a task from firing until it is resumed.",
    "state:cancel": "Stop a task from firing and cancel its running turn at its next await.",
    "state:tick": "Plan the tasks that are due now, then exit.",
}
_TASKS = commands_in("task_runner.cli", {Panel.WORK: _WORK, Panel.LOOK: _LOOK, Panel.FIRE: _FIRE}) | subcommands("task")
_SERVE = Later("task_runner.cli.state:serve", "Run the daemon in the foreground, until SIGTERM or Ctrl-C.", Panel.START)
task = App(SUMMARY, _TASKS)


def application() -> App:
    """Return the program with all its commands."""
    others = {name: one for name, one in commands("task_runner").items() if name != "task"}
    return App("Tasks on a schedule, and the ledger of their fires.", {"serve": _SERVE, **others, **_TASKS})


def main() -> int:
    return console.run_process(application())
