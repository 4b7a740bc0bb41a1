"""`explain`."""

from typing import Annotated

import typer

from protos.turnkeeper.v1 import schedules_pb2 as wire
from task_runner.cli.client import runner
from task_runner.cli.rows import fire_row, time
from task_runner.cli.tasks.state import NameArgument
from turnkeeper import console


def explain(
    name: NameArgument,
    at: Annotated[str, typer.Option("--at", help="The time in question; default the newest that fell due.")] = "",
    output: console.OutputOption = console.Output.TABLE,
) -> None:
    """Say in plain sentences what became, or will become, of a time: which rule decided, and what happened next.

    Example: task-runner explain digest --at 2026-11-20T09:00
    """
    answer = runner().call("ExplainFire", wire.ExplainFireRequest(name=name, at=at))
    row = {
        "at": time(answer, "at"),
        "verdict": answer.verdict,
        "lines": list(answer.lines),
        "revision": answer.revision or None,
        "fire": fire_row(answer.fire) if answer.HasField("fire") else None,
    }
    if output in {console.Output.TABLE, console.Output.WIDE}:
        for line in answer.lines:
            typer.echo(console.plain(line))
        return
    console.show_record(row, output, name_key="verdict", lines=[])


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(explain)
