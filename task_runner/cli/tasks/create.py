"""`create`: a task from options."""

from typing import Annotated, Any

import typer

from protos.turnkeeper.v1 import schedules_pb2 as wire
from task_runner.cli.client import runner
from task_runner.cli.rows import events_lines, local, nominal_row, task_row, time
from task_runner.cli.tasks.options import fill, flags, takes_task_options
from task_runner.cli.tasks.show import complete_channel
from turnkeeper import console
from turnkeeper.errors import InvalidInput


@takes_task_options
def create(
    name: Annotated[str, typer.Argument(help="Its name: a-z, 0-9 and -, at most 63.")],
    category: Annotated[str, typer.Option("--category", help="What the turn may do.")],
    channel: Annotated[
        str, typer.Option("--channel", help="Where its conversation appears.", autocompletion=complete_channel)
    ],
    paused: Annotated[bool, typer.Option("--paused", help="Create it paused.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be created.")] = False,
    output: console.OutputOption = console.Output.TABLE,
    **given: Any,
) -> None:
    """Create a task: when, with what permissions, where, and what to do.

    Says what it understood and when it fires next. A schedule (--cron, --every, --at, --in, --rrule or --dynamic) or
    an event (--on), and a prompt are required.

    Example: task-runner create digest --cron "0 9 * * 1-5" --category catch-up-summary --channel general
    --prompt "Catch me up."
    """
    spec = wire.TaskSpec(name=name, category=category, channel=channel, paused=paused)
    fill(spec, given)
    if spec.WhichOneof("schedule") is None and not spec.on:
        raise InvalidInput("no schedule", where="create", hint=f"one of {flags()}")
    if given["prompt"] is None and given["prompt_file"] is None:
        raise InvalidInput("give exactly one of --prompt and --prompt-file", where="prompt")
    create_spec(spec, dry_run=dry_run, output=output)


def create_spec(spec: wire.TaskSpec, *, dry_run: bool, output: console.Output, loop: bool = False) -> None:
    """Create a task, or a loop, and say what was understood."""
    chosen = runner()
    answer = chosen.call("CreateTask", wire.CreateTaskRequest(spec=spec, dry_run=dry_run, loop=loop))
    for warning in answer.warnings:
        console.note(f"warning: {warning}")
    row = task_row(answer.task) | {"next": [nominal_row(nominal) for nominal in answer.next]}
    lines = [
        ("loop" if loop else "task", _called(answer.task)),
        ("schedule", answer.task.schedule),
        ("timezone", row["timezone"]),
        ("catch-up", row["catch_up"]),
        *([("if-silent", row["if_silent"])] if row["if_silent"] else []),
        *([("expires", local(row["expires_at"]))] if row["expires_at"] and answer.task.id else []),
        *(("next", f"{local(time(nominal, 'nominal_at'))}") for nominal in answer.next),
        *events_lines(answer.task.spec),
    ]
    console.show_record(row, output, name_key="name", lines=lines)
    if not dry_run:
        chosen.note_unless_serving()


def _called(task: wire.Task) -> str:
    if not task.id:
        return f"{task.spec.name} (not created: dry run)"
    return task.id if task.spec.name == task.id else f"{task.spec.name} ({task.id})"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(create)
