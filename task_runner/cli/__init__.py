"""The `task-runner` command line, and its commands as part of `turnkeeper`.

A command's module is imported when the command is used. The table contains the help texts.
"""

from task_runner.cli.surface import SUMMARY
from turnkeeper import console
from turnkeeper.config.surfaces import Later, Panel, commands
from turnkeeper.console.commands import App

_TASKS = {
    "create": Later(
        "task_runner.cli.tasks:create",
        "Create a task with its schedule, permissions, channel and instructions.",
        Panel.WORK,
    ),
    "edit": Later("task_runner.cli.tasks:edit", "Change a task from now on.", Panel.WORK),
    "apply": Later("task_runner.cli.apply:apply", "Create or update the tasks that files declare.", Panel.WORK),
    "export": Later(
        "task_runner.cli.apply:export",
        "Write tasks as TOML that `apply` reads back without changing anything.",
        Panel.WORK,
    ),
    "import": Later(
        "task_runner.cli.apply:import_",
        "Create a task for each entry of a crontab, and list what cannot be imported.",
        Panel.WORK,
    ),
    "delete": Later("task_runner.cli.state:delete", "Delete a task.", Panel.WORK),
    "restore": Later(
        "task_runner.cli.state:restore",
        "Restore a task or a loop that was deleted within the last day, in its earlier state.",
        Panel.WORK,
    ),
    "list": Later("task_runner.cli.show:list_", "List tasks, ordered by next fire time.", Panel.LOOK),
    "show": Later("task_runner.cli.show:show", "Show all fields of one task.", Panel.LOOK),
    "next": Later(
        "task_runner.cli.show:next_",
        "Preview the next times of a task, or of a schedule, without creating anything.",
        Panel.LOOK,
    ),
    "history": Later(
        "task_runner.cli.show:history",
        "Show fired and skipped times, with reasons, of one task or of all; newest first.",
        Panel.LOOK,
    ),
    "explain": Later(
        "task_runner.cli.show:explain",
        "Explain what happened or will happen at a time, and which rule decides.",
        Panel.LOOK,
    ),
    "simulate": Later(
        "task_runner.cli.simulate:simulate",
        "Run the planner on a virtual clock, and print every fire and skip with its reason.",
        Panel.LOOK,
    ),
    "run": Later("task_runner.cli.state:run", "Fire a task now, in addition to its schedule.", Panel.FIRE),
    "backfill": Later(
        "task_runner.cli.tasks:backfill",
        "Fire for past times without a fire: skipped times, and times before the task was created.",
        Panel.FIRE,
    ),
    "pause": Later("task_runner.cli.state:pause", "Pause a task.", Panel.FIRE),
    "resume": Later("task_runner.cli.state:resume", "Resume a paused task.", Panel.FIRE),
    "disable": Later("task_runner.cli.state:disable", "Stop a task from firing until it is enabled.", Panel.FIRE),
    "enable": Later("task_runner.cli.state:enable", "Enable a disabled task, on the same thread.", Panel.FIRE),
    "cancel": Later(
        "task_runner.cli.state:cancel",
        "Stop a task from firing and cancel its running turn at its next await.",
        Panel.FIRE,
    ),
    "tick": Later("task_runner.cli.state:tick", "Plan the tasks that are due now, then exit.", Panel.FIRE),
}
_SERVE = Later("task_runner.cli.state:serve", "Run the daemon in the foreground, until SIGTERM or Ctrl-C.", Panel.START)
task = App(SUMMARY, _TASKS)


def application() -> App:
    """Return the program with all its commands."""
    others = {name: one for name, one in commands("task_runner").items() if name != "task"}
    return App("Tasks on a schedule, and the ledger of their fires.", {"serve": _SERVE, **_TASKS, **others})


def main() -> int:
    return console.run_process(application())
