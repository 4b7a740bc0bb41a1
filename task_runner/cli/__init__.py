"""The `task-runner` command line."""

import sys

import typer

from task_runner.cli import create, crontab, edit, emit, explain, files, lifecycle, loop, serve, simulate, tasks, times
from turnkeeper import console


def application() -> typer.Typer:
    """Return the program with all its commands."""
    app = typer.Typer(
        help="Tasks on a schedule, and the ledger of what fired.",
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
    )
    for group in (serve, create, tasks, times, explain, lifecycle, edit, simulate, files, crontab, loop, emit):
        group.register(app)
    return app


def main() -> int:
    """Run the command line; return the exit code."""
    return console.run(application(), sys.argv[1:])
