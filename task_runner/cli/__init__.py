"""The `task-runner` command line, and its commands as `turnkeeper` has them.

What a command needs is imported when it is used: the table holds what help says of it.
"""

from task_runner.cli.surface import SUMMARY
from turnkeeper import console
from turnkeeper.config.surfaces import Later, Panel, commands
from turnkeeper.console.commands import App

_TASKS = {
    "create": Later(
        "task_runner.cli.tasks:create",
        "Create a task: when it fires, what it may do, where it appears, and what the agent must do.",
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
    "delete": Later("task_runner.cli.state:delete", "Delete a task; for a day, `restore` brings it back.", Panel.WORK),
    "restore": Later(
        "task_runner.cli.state:restore",
        "Bring back a task or a loop that was deleted within the last day, in the state that it had.",
        Panel.WORK,
    ),
    "list": Later("task_runner.cli.show:list_", "List tasks, next to fire first.", Panel.LOOK),
    "show": Later("task_runner.cli.show:show", "Show one task in full.", Panel.LOOK),
    "next": Later(
        "task_runner.cli.show:next_",
        "Preview the next times of a task, or of a schedule, without creating anything.",
        Panel.LOOK,
    ),
    "history": Later(
        "task_runner.cli.show:history",
        "Show what fired, what did not, and why, of one task or of all; newest first.",
        Panel.LOOK,
    ),
    "explain": Later(
        "task_runner.cli.show:explain",
        "Explain in plain sentences what happened, or will happen, at a time, and which rule decided.",
        Panel.LOOK,
    ),
    "simulate": Later(
        "task_runner.cli.simulate:simulate",
        "Run the planner itself on a virtual clock, and print every fire and skip with its reason.",
        Panel.LOOK,
    ),
    "run": Later("task_runner.cli.state:run", "Fire a task now, in addition to its schedule.", Panel.FIRE),
    "backfill": Later(
        "task_runner.cli.tasks:backfill",
        "Fire for past times that never had a fire: skipped ones, and those before the task was created.",
        Panel.FIRE,
    ),
    "pause": Later(
        "task_runner.cli.state:pause", "Pause a task; what comes due in the meantime is skipped.", Panel.FIRE
    ),
    "resume": Later("task_runner.cli.state:resume", "Let a paused task fire again.", Panel.FIRE),
    "disable": Later("task_runner.cli.state:disable", "Stop a task from firing until it is enabled.", Panel.FIRE),
    "enable": Later("task_runner.cli.state:enable", "Let a disabled task fire again, on the same thread.", Panel.FIRE),
    "cancel": Later(
        "task_runner.cli.state:cancel",
        "Stop a task from firing and cancel its running turn at its next await.",
        Panel.FIRE,
    ),
    "tick": Later("task_runner.cli.state:tick", "Plan what is due now, then exit.", Panel.FIRE),
}
_SERVE = Later("task_runner.cli.state:serve", "Run the daemon in the foreground, until SIGTERM or Ctrl-C.", Panel.START)
task = App(SUMMARY, _TASKS)


def application() -> App:
    """Return the program with all its commands."""
    others = {name: one for name, one in commands("task_runner").items() if name != "task"}
    return App("Tasks on a schedule, and the ledger of what fired.", {"serve": _SERVE, **_TASKS, **others})


def main() -> int:
    """Run the command line; return the exit code."""
    return console.run_process(application())
