"""`apply` and `export`."""

import importlib
from pathlib import Path
from typing import Annotated, Any

import typer

from protos.turnkeeper.v1 import schedules_pb2 as wire
from task_runner.cli.client import Runner, runner
from turnkeeper import console
from turnkeeper.bus.envelope import LARGEST_BYTES
from turnkeeper.errors import Conflict, InvalidInput

# As large as a request may be, but for what stands around the tasks in it.
_PER_REQUEST = LARGEST_BYTES // 2


def apply(
    paths: Annotated[list[Path] | None, typer.Argument(help="Files or folders; default the home's tasks.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would change.")] = False,
    diff: Annotated[bool, typer.Option("--diff", help="Only say what would change, value by value.")] = False,
    prune: Annotated[bool, typer.Option("--prune", help="Delete tasks that no file declares.")] = False,
    output: console.OutputOption = console.Output.TABLE,
) -> None:
    """Create or update the tasks that files declare; one that says nothing new is left alone.

    With --prune: deletes the tasks that no file declares, but for loops, which nobody declares in files.

    Without an argument it reads the home's tasks folder. All or none: a mistake anywhere changes nothing.

    Example: task-runner apply tasks.toml --diff
    """
    chosen = runner()
    declared = _declarations().read_declarations(paths or [console.home().tasks])
    before = {task.spec.name: task for task in _all_tasks(chosen)} if diff else {}
    if prune and not declared:
        raise InvalidInput("nothing is declared", where="--prune", hint="delete the tasks by name")
    rehearsed = dry_run or diff
    rows: list[dict[str, Any]] = []
    with console.status(f"applying {len(declared)} tasks"):
        for part in (parts := _parts(declared)):
            request = wire.ApplyTasksRequest(specs=[each.spec for each in part], dry_run=rehearsed)
            if prune and part is parts[-1]:
                request.prune = True
                request.also_declared.extend(each.spec.name for other in parts[:-1] for each in other)
            rows += [_applied(done) for done in _apply(chosen, part, request)]
    for warning in sorted({warning for row in rows for warning in row["warnings"]}):
        console.note(f"warning: {warning}")
    if diff:
        specs = {each.spec.name: each.spec for each in declared}
        rows = [
            row | {"diff": changes_of(before[row["name"]].spec, specs[row["name"]], row["changed"])}
            if row["action"] == "updated" else row
            for row in rows
        ]  # fmt: skip
    columns = [*_COLUMNS, *([_DIFF] if diff else [])]
    console.show_rows(rows, columns, output, name_key="name", footer=_summary(rows, dry_run=rehearsed))
    chosen.note_unless_serving()


def _parts(declared: list[Any]) -> list[list[Any]]:
    """Return what is declared in parts that each fit into one request, and so into one transaction."""
    parts, room = list[list[Any]](), 0
    for each in declared:
        size = each.spec.ByteSize()
        if not parts or size > room:
            parts, room = [*parts, []], _PER_REQUEST
        parts[-1].append(each)
        room -= size
    return parts


def _apply(chosen: Runner, declared: list[Any], request: wire.ApplyTasksRequest) -> Any:
    try:
        return chosen.call("ApplyTasks", request).applied
    except InvalidInput as error:
        name, _, field = error.where.rpartition(": ")
        named = [each for each in declared if each.spec.name == name] if name else declared
        if len(named) == 1:
            error.where = named[0].where(field)
        raise


def _applied(done: Any) -> dict[str, Any]:
    return {
        "name": done.name,
        "action": done.action,
        "changed": list(done.changed_fields),
        "warnings": list(done.warnings),
    }


def changes_of(old: Any, new: Any, fields: list[str]) -> list[dict[str, str]]:
    """Return what changes in a spec, value by value; a field that the new one leaves out gets its default."""
    return [{"field": field, "old": _value(old, field), "new": _value(new, field)} for field in fields]


def _value(spec: Any, field: str) -> str:
    if field == "schedule":
        kind = spec.WhichOneof("schedule")
        return f"{kind} {getattr(spec, kind)}" if kind else "-"
    value = getattr(spec, field)
    if field in {"tags", "budget"}:
        return " ".join(f"{key}={value[key]}" for key in sorted(value)) or "-"
    if field == "exclude":
        return ", ".join(value) or "-"
    given = any(descriptor.name == field for descriptor, _ in spec.ListFields())
    return str(value) if given else "the default"


def _all_tasks(chosen: Runner) -> list[Any]:
    return list(chosen.call("ListTasks", wire.ListTasksRequest()).tasks)


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
    tasks = [chosen.call("GetTask", wire.GetTaskRequest(name=name)) for name in names] if names else _all_tasks(chosen)
    specs = []
    for task in sorted(tasks, key=lambda task: task.spec.name):
        spec = wire.TaskSpec()
        spec.CopyFrom(task.spec)
        if spec.thread_id == task.id:
            spec.ClearField("thread_id")  # its own: another home gives another
        if task.id.startswith("loop-") and task.id != spec.name:
            spec.id = task.id  # by which it is a loop also elsewhere
        specs.append(spec)
    return specs


def _declarations() -> Any:
    # Imported only now: the other commands need neither TOML nor the models that check it.
    return importlib.import_module("task_runner.cli.files.task_file")


def _summary(rows: list[dict[str, Any]], *, dry_run: bool) -> str:
    counts = {
        action: sum(row["action"] == action for row in rows)
        for action in ("created", "updated", "unchanged", "deleted")
    }
    said = ", ".join(f"{count} {action}" for action, count in counts.items() if count) or "nothing declared"
    return f"{said} (dry run: nothing was written)" if dry_run else said


_COLUMNS = [
    console.Column("NAME", lambda row: row["name"]),
    console.Column("ACTION", lambda row: row["action"]),
    console.Column("CHANGED", lambda row: ", ".join(row["changed"]) or "-"),
]
_DIFF = console.Column(
    "DIFF", lambda row: "; ".join(f"{one['field']}: {one['old']} -> {one['new']}" for one in row.get("diff", ())) or "-"
)


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command()(apply)
    app.command()(export)
