"""Loops: the commands of an author, and the tools of a turn."""

from turnkeeper.config.surfaces import Later, Panel, Surface

_LOOP = Later(
    "task_runner.cli.loops.commands:app",
    "Prompts that run repeatedly: on an interval, on a cron expression, or at their own pace.",
    Panel.WORK,
)
SURFACE = Surface(
    name="loops",
    place=51,
    commands={"loop": _LOOP},
    offers={
        "loops": "agent_runtime.tools.loops:Loops",
        "loop-tools": "agent_runtime.tools.loops:loop_tools",
        "loop-jobs": "agent_runtime.graph.offline.iteration:jobs",
        "words of a loop": "task_runner.model.words:read_line",
    },
    also=("agent_runtime.tools.loops", "agent_runtime.graph.offline.iteration", "task_runner.model.words"),
)
