"""The `task-runner` command line."""

import sys
from collections.abc import Callable

import typer

from task_runner.cli import apply, loop, show, simulate, state, tasks
from turnkeeper import console


def application() -> typer.Typer:
    """Return the program with all its commands."""
    app = typer.Typer(
        help="Tasks on a schedule, and the ledger of what fired.",
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
    )
    commands: tuple[Callable[..., object], ...] = (
        state.serve, state.tick, tasks.create, show.list_, show.show, show.next_,
        show.history, show.explain, state.pause, state.resume, state.disable, state.cancel, state.enable, state.delete,
        state.run, tasks.edit, tasks.backfill, simulate.simulate, apply.apply, apply.export, apply.import_,
    )  # fmt: skip
    for command in commands:
        app.command(command.__name__.rstrip("_"))(command)
    app.add_typer(loop.commands(), name="loop")
    app.command()(state.emit)
    return app


def main() -> int:
    """Run the command line; return the exit code."""
    return console.run(application(), sys.argv[1:])
