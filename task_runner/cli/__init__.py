"""The `task-runner` command line."""

import sys

import typer

from task_runner.cli import loop, serve, simulate
from task_runner.cli.files import apply, crontab
from task_runner.cli.tasks import create, edit, emit, explain, show, state, times
from turnkeeper import console


def application() -> typer.Typer:
    """Return the program with all its commands."""
    app = typer.Typer(
        help="Tasks on a schedule, and the ledger of what fired.",
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
    )
    for group in (serve, create, show, times, explain, state, edit, simulate, apply, crontab, loop, emit):
        group.register(app)
    return app


def main() -> int:
    """Run the command line; return the exit code."""
    return console.run(application(), sys.argv[1:])
