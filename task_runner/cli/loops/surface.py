"""The commands about loops."""

from turnkeeper.config.surfaces import Later, Panel, Surface

_LOOP = Later(
    "task_runner.cli.loops.commands:app",
    "Prompts that run repeatedly: on an interval, on a cron expression, or at their own pace.",
    Panel.WORK,
)
SURFACE = Surface(name="loops", place=51, commands={"loop": _LOOP})
