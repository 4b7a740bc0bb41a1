"""`apply` and `export`."""

import importlib
from pathlib import Path
from typing import Annotated, Any

import typer

from protos.turnkeeper.v1 import schedules_pb2 as wire
from task_runner.cli.api import Runner, runner
from turnkeeper import console
from turnkeeper.errors import Conflict

_PER_REQUEST = 2000


def apply(
    paths: Annotated[list[Path] | None, typer.Argument(help="Files or folders; default the home's tasks.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", "--diff", help="Only say what would change.")] = False,
    output: console.OutputOption = console.Output.TABLE,
) -> None:
    """Create or update the tasks that files declare; one that says nothing new is left alone.

    Without an argument it reads the home's tasks folder. All or none: a mistake anywhere changes nothing.

    Example: task-runner apply tasks.toml --dry-run
    """
    chosen = runner()
    specs = _declarations().read_declarations(paths or [console.home().tasks])
    rows = []
    with console.status(f"applying {len(specs)} tasks"):
        for start in range(0, len(specs), _PER_REQUEST):
            request = wire.ApplyTasksRequest(specs=specs[start : start + _PER_REQUEST], dry_run=dry_run)
            rows += [
                {
                    "name": done.name,
                    "action": done.action,
                    "changed": list(done.changed_fields),
                    "warnings": list(done.warnings),
                }
                for done in chosen.call("ApplyTasks", request).applied
            ]
    for warning in sorted({warning for row in rows for warning in row["warnings"]}):
        console.note(f"warning: {warning}")
    console.show_rows(rows, _COLUMNS, output, name_key="name", footer=_summary(rows, dry_run=dry_run))
    chosen.note_unless_serving()


def export(
    names: Annotated[list[str] | None, typer.Argument(help="Names or ids; default all.")] = None,
    split: Annotated[Path | None, typer.Option("--split", help="Write one file for each task here.")] = None,
) -> None:
    """Write tasks as TOML that `apply` reads back without changing anything.

    Example: task-runner export > tasks.toml
    """
    specs = _specs(runner(), names or [])
    if split is None:
        typer.echo(_declarations().write_declarations(specs), nl=False)
        return
    split.mkdir(parents=True, exist_ok=True)
    for spec in specs:
        path = split / f"{spec.name}.toml"
        if path.is_symlink() or (path.exists() and not path.is_file()):
            raise Conflict("is not a plain file", where=str(path))
        path.write_text(_declarations().write_declarations([spec]), encoding="utf-8")
    console.note(f"{len(specs)} files written to {split}")


def _specs(chosen: Runner, names: list[str]) -> list[wire.TaskSpec]:
    if names:
        tasks = [chosen.call("GetTask", wire.GetTaskRequest(name=name)) for name in names]
    else:
        tasks = list(chosen.call("ListTasks", wire.ListTasksRequest()).tasks)
    specs = []
    for task in sorted(tasks, key=lambda task: task.spec.name):
        spec = wire.TaskSpec()
        spec.CopyFrom(task.spec)
        if spec.thread_id == task.id:
            spec.ClearField("thread_id")  # its own: another home gives another
        specs.append(spec)
    return specs


def _declarations() -> Any:
    # Imported only now: the other commands need neither TOML nor the models that check it.
    return importlib.import_module("task_runner.cli.declarations")


def _summary(rows: list[dict[str, object]], *, dry_run: bool) -> str:
    counts = {action: sum(row["action"] == action for row in rows) for action in ("created", "updated", "unchanged")}
    said = ", ".join(f"{count} {action}" for action, count in counts.items() if count) or "nothing declared"
    return f"{said} (dry run: nothing was written)" if dry_run else said


_COLUMNS = [
    console.Column("NAME", lambda row: row["name"]),
    console.Column("ACTION", lambda row: row["action"]),
    console.Column("CHANGED", lambda row: ", ".join(row["changed"]) or "-"),
]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command()(apply)
    app.command()(export)
