"""The `task-runner` command line, and its commands as `turnkeeper` has them."""

import sys
from collections.abc import Callable

import typer

from task_runner.cli import apply, loop, show, simulate, state, tasks
from turnkeeper import console
from turnkeeper.commands import Panel

_COMMANDS: dict[Panel, tuple[Callable[..., object], ...]] = {
    Panel.WORK: (tasks.create, tasks.edit, apply.apply, apply.export, apply.import_, state.delete, state.restore),
    Panel.LOOK: (show.list_, show.show, show.next_, show.history, show.explain, simulate.simulate),
    Panel.FIRE: (state.run, tasks.backfill, state.pause, state.resume, state.disable, state.enable, state.cancel),
    Panel.START: (state.tick,),
}


def _add_tasks(app: typer.Typer) -> None:
    for panel, commands in _COMMANDS.items():
        for command in commands:
            app.command(command.__name__.rstrip("_"), rich_help_panel=panel)(command)


def _add_loops_and_events(app: typer.Typer) -> None:
    app.add_typer(loop.commands(), name="loop", rich_help_panel=Panel.WORK)
    app.command("emit", rich_help_panel=Panel.WORK)(state.emit)


def application() -> typer.Typer:
    """Return the program with all its commands."""
    app = typer.Typer(help="Tasks on a schedule, and the ledger of what fired.", pretty_exceptions_enable=False)
    app.command("serve", rich_help_panel=Panel.START)(state.serve)
    _add_tasks(app)
    _add_loops_and_events(app)
    return app


task = typer.Typer(help="Tasks: what an agent does on a schedule or at an event, and what became of it.")
_add_tasks(task)
people = typer.Typer()
people.add_typer(task, name="task", rich_help_panel=Panel.WORK)
_add_loops_and_events(people)


def main() -> int:
    """Run the command line; return the exit code."""
    return console.run(application(), sys.argv[1:])
