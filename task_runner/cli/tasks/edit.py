"""`edit` and `backfill`."""

from typing import Annotated, Any

import typer

from protos.turnkeeper.v1 import schedules_pb2 as wire
from task_runner.cli.client import runner
from task_runner.cli.rows import local, nominal_row, task_row, time
from task_runner.cli.tasks.options import fill, takes_task_options
from task_runner.cli.tasks.show import complete_channel
from task_runner.cli.tasks.state import NameArgument
from turnkeeper import console
from turnkeeper.entropy import SystemEntropy
from turnkeeper.errors import InvalidInput


@takes_task_options
def edit(
    name: NameArgument,
    category: Annotated[str | None, typer.Option("--category", help="What the turn may do.")] = None,
    channel: Annotated[
        str | None, typer.Option("--channel", help="Where its conversation appears.", autocompletion=complete_channel)
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show old and new times side by side.")] = False,
    output: console.OutputOption = console.Output.TABLE,
    **given: Any,
) -> None:
    """Change a task from now on; what is not given stays as it is, and none takes a value away: --max-fires none.

    The old schedule is planned up to now first: nothing in the past becomes due by an edit.

    Example: task-runner edit digest --cron "0 8 * * 1-5" --dry-run
    """
    given |= {"category": category, "channel": channel}
    if all(value is None for value in given.values()):
        raise InvalidInput("nothing to change", where="edit", hint="give an option, for example --cron or --prompt")
    chosen = runner()
    task = chosen.call("GetTask", wire.GetTaskRequest(name=name))
    spec = wire.TaskSpec()
    spec.CopyFrom(task.spec)
    if spec.thread_id == task.id:
        spec.ClearField("thread_id")
    if given["catch_up"] is not None and given["overlap"] is None:
        spec.ClearField("overlap")  # each policy has a default of its own
    fill(spec, given)
    request = wire.UpdateTaskRequest(name=task.id, spec=spec, dry_run=dry_run, revision=task.revision)
    answer = chosen.call("UpdateTask", request)
    for warning in answer.warnings:
        console.note(f"warning: {warning}")
    _show(answer, output, dry_run=dry_run)


def _show(answer: Any, output: console.Output, *, dry_run: bool) -> None:
    sides = {side: [nominal_row(each) for each in getattr(answer, f"{side}_next")] for side in ("old", "new")}
    changed = list(answer.changed_fields)
    if output in {console.Output.JSON, console.Output.JSONL}:
        row = task_row(answer.task) | {"changed": changed, "old_next": sides["old"], "new_next": sides["new"]}
        console.show_record(row, output, name_key="name", lines=[])
        return
    rows = [
        {side: local(sides[side][place]["nominal_at"]) if place < len(sides[side]) else "-" for side in sides}
        for place in range(max(map(len, sides.values())))
    ]
    columns = [
        console.Column("OLD NEXT", lambda row: row["old"]),
        console.Column("NEW NEXT", lambda row: row["new"]),
    ]
    said = f"changes {', '.join(changed)}" if changed else "changes nothing"
    footer = f"{answer.task.spec.name}: {said}{' (dry run: nothing was written)' if dry_run else ''}"
    console.show_rows(rows, columns, output, name_key="new", footer=footer)


def backfill(
    name: NameArgument,
    from_: Annotated[str, typer.Option("--from", help="From this time on.")],
    to: Annotated[str, typer.Option("--to", help="Until this time, which is not included.")],
    all_: Annotated[bool, typer.Option("--all", help="Also times that had a fire.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say how many.")] = False,
    output: console.OutputOption = console.Output.TABLE,
) -> None:
    """Fire for past times that never had a fire: skipped ones, and those before the task was created.

    Example: task-runner backfill digest --from 2026-11-01 --to 2026-11-08 --dry-run
    """
    chosen = runner()
    request = wire.BackfillTaskRequest(name=name, to=to, all=all_, dry_run=dry_run, request_id=SystemEntropy().hex(12))
    setattr(request, "from", from_)
    answer = chosen.call("BackfillTask", request)
    row = {
        "count": answer.count,
        "first_nominal_at": time(answer, "first_nominal_at"),
        "last_nominal_at": time(answer, "last_nominal_at"),
        "fire_ids": list(answer.fire_ids),
    }
    span = f" from {local(row['first_nominal_at'])} to {local(row['last_nominal_at'])}" if answer.count else ""
    lines = [("fires", f"{answer.count}{span}{' (dry run: nothing was written)' if dry_run else ''}")]
    console.show_record(row, output, name_key="count", lines=lines)
    if not dry_run:
        chosen.note_unless_serving()


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command()(edit)
    app.command()(backfill)
