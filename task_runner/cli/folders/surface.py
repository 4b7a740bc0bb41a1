"""Watched folders: each file that appears or changes emits an event, for which tasks wait."""

from turnkeeper.config.surfaces import Later, Panel, Surface

SURFACE = Surface(
    name="watched-folders",
    place=52,
    observers={"task-runner": "task_runner.cli.folders.folders:Watch"},
    declared_in=("state/folders.json",),
    commands={
        "folders": Later(
            "task_runner.cli.folders.commands:app",
            "Folders that this home watches: a file that appears or changes there emits an event.",
            Panel.HOME,
        ),
    },
)
