"""Tasks from files, and tasks as files."""

from turnkeeper.config.surfaces import Panel, Surface, commands_in

_WORK = {
    "apply:apply": "Create or update the tasks that files declare.",
    "apply:export": "Write tasks as TOML that `apply` reads back without changing anything.",
    "apply:import_": "Create a task for each entry of a crontab, and list the entries that cannot be imported.",
}
SURFACE = Surface(
    name="declarations",
    subcommands={"task": commands_in("task_runner.cli.declare", {Panel.WORK: _WORK})},
    offers={
        "words on cron": "task_runner.cli.declare.classic_cron:misread",
        "exclusions": "task_runner.cli.declare.exclusions:read_exclusions",
        "calendar file": "task_runner.cli.declare.exclusions:read_calendar",
    },
)
