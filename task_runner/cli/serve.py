"""`serve` and `tick`."""

import os
import sys

import typer

from protos.turnkeeper.v1 import schedules_pb2 as wire
from task_runner.cli.client import runner
from turnkeeper import console


def serve() -> None:
    """Run the daemon in the foreground, until SIGTERM or Ctrl-C.

    Example: task-runner serve
    """
    home = console.home()
    home.check()
    # The same process goes on as the daemon: no command but this one pays for what it imports.
    os.execv(sys.executable, [sys.executable, "-P", "-m", "task_runner.daemon", str(home.root)])  # noqa: S606  no shell


def tick() -> None:
    """Plan what is due now and exit; safe beside a daemon, which then does it.

    Example: task-runner tick
    """
    chosen = runner()
    done = chosen.call("Tick", wire.TickRequest())
    typer.echo(f"{done.planned} tasks planned, {done.committed} fires committed, {done.skipped} nominal times skipped")
    chosen.note_unless_serving()


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command()(serve)
    app.command()(tick)
