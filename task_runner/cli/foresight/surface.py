"""Explanations of the outcome of one time, and simulations of tasks on a virtual clock."""

from turnkeeper.config.surfaces import Panel, Surface, commands_in

_LOOK = {
    "commands:explain": "Explain what happened or will happen at a time, and which rule decides.",
    "commands:simulate": "Run the planner on a virtual clock, and print every fire and skip with its reason.",
}
SURFACE = Surface(
    name="foresight",
    subcommands={"task": commands_in("task_runner.cli.foresight", {Panel.LOOK: _LOOK})},
    offers={
        "ExplainFire": "task_runner.service.explain:explain",
        "Simulate": "task_runner.service.simulate:answer",
    },
    also=("task_runner.service.explain", "task_runner.service.simulate"),
    needs=("declarations",),
)
