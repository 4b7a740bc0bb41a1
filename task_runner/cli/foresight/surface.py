"""Explanations of the outcome of one time, simulations of tasks on a virtual clock, and fires for past times."""

from turnkeeper.config.surfaces import Panel, Surface, commands_in

_LOOK = {
    "commands:explain": "Explain what happened or will happen at a time, and which rule decides.",
    "commands:simulate": "Run the planner on a virtual clock, and print every fire and skip with its reason.",
}
_FIRE = {
    "commands:backfill": "Fire for past times without a fire: skipped times, and times before the task was created.",
}
SURFACE = Surface(
    name="foresight",
    subcommands={"task": commands_in("task_runner.cli.foresight", {Panel.LOOK: _LOOK, Panel.FIRE: _FIRE})},
    offers={
        "prompt as it would be": "task_runner.cli.foresight.commands:show_prompt",
        "ExplainFire": "task_runner.service.explain:explain",
        "Simulate": "task_runner.service.simulate:answer",
        "BackfillTask": "task_runner.service.backfill:backfill",
    },
    also=(
        "task_runner.service.backfill",
        "task_runner.service.explain",
        "task_runner.service.explained_time",
        "task_runner.service.simulate",
    ),
    needs=("declarations",),
)
