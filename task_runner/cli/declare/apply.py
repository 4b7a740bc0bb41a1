"""The commands `apply`, `export` and `import`, which convert files to tasks and tasks to files."""

import importlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from task_runner.cli.client import Runner, all_tasks, read_file, runner
from task_runner.cli.rows import column, text_of
from task_runner.model.fields import BY_NAME, given
from turnkeeper import console
from turnkeeper.bus import LARGEST_BYTES
from turnkeeper.clock import SystemClock
from turnkeeper.config.surfaces import offered
from turnkeeper.errors import Conflict, InvalidInput
from turnkeeper.v1 import schedules_pb2 as wire

# Half of the maximum size of a request; the other half is for the data around the tasks.
_PER_REQUEST = LARGEST_BYTES // 2


def apply(
    paths: Annotated[list[Path] | None, typer.Argument(help="Files or folders; default the home's tasks.")] = None,
    dry_run: Annotated[bool, typer.Option(help="Only show what would change.")] = False,
    diff: Annotated[bool, typer.Option(help="Only show what would change, value by value.")] = False,
    prune: Annotated[bool, typer.Option(help="Delete tasks that no file declares.")] = False,
    output: console.OutputOption = console.Output.TABLE,
) -> None:
    """Create or update the tasks that files declare. Tasks whose declaration does not change are left unchanged.

    With --prune: deletes the tasks that no file declares. Loops stay.

    Without an argument: reads the home's tasks folder. If any file has an error, no task changes.

    Example: turnkeeper task apply tasks.toml --diff
    """
    chosen = runner()
    declared = _declarations().read_declarations(paths or [console.named_home().tasks])
    before = {task.spec.name: task for task in all_tasks()} if diff and not chosen.homeless else {}
    if prune and not declared:
        raise InvalidInput("nothing is declared", where="--prune", hint="delete the tasks by name")
    rehearsed = dry_run or diff
    if not rehearsed:
        console.home()
    rows: list[dict[str, Any]] = []
    with console.status(f"applying {len(declared)} tasks"):
        for part in (parts := _parts(declared)):
            request = wire.ApplyTasksRequest(specs=[each.spec for each in part], dry_run=rehearsed)
            if prune and part is parts[-1]:
                request.prune = True
                request.also_declared.extend(each.spec.name for other in parts[:-1] for each in other)
            rows += [
                {"name": done.name, "action": done.action, "changed": list(done.changed_fields)}
                | {"warnings": list(done.warnings)}
                for done in _apply(chosen, part, request)
            ]
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
    """Split declarations into parts that each fit into one request and one transaction."""
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
        return chosen.call(request).applied
    except InvalidInput as error:
        name, _, field = error.where.rpartition(": ")
        # Names of categories, graphs and agents are checked for all tasks at once: find the first task with this value.
        wrong = (each for each in declared if not name and repr(getattr(each.spec, field, None)) in error.what)
        named = [each for each in declared if each.spec.name == name or len(declared) == 1] or [*wrong]
        if named:
            error.where = named[0].where(field)
        raise


def changes_of(old: Any, new: Any, fields: list[str]) -> list[dict[str, str]]:
    """Return the changes between two specs, value by value. A field that the new spec omits gets its default."""
    return [{"field": field, "old": _value(old, field), "new": _value(new, field)} for field in fields]


def _value(spec: Any, field: str) -> str:
    if field == "schedule":
        kind = spec.WhichOneof("schedule")
        return f"{kind} {getattr(spec, kind)}" if kind else "-"
    value = given(spec).get(field, BY_NAME[field].absent if field in BY_NAME else None)
    if field == "budget":
        value = offered("shown budget", value) or value
    if isinstance(value, dict):
        return text_of(dict(sorted(value.items()))) or "-"
    if isinstance(value, list):
        return text_of(value) or "-"
    return str(value) if field in given(spec) else "the default"


def export(
    names: Annotated[list[str] | None, typer.Argument(help="Names or ids; default all.")] = None,
    split: Annotated[Path | None, typer.Option(help="Write one file for each task into this folder.")] = None,
    watch: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Keep one file for each task in this folder; apply edits.")
    ] = None,
) -> None:
    """Write tasks as TOML that `apply` reads back without changing anything.

    With --watch, keep one file for each task in DIR until interrupted. A file that you write creates or changes its
    task; a file that you remove deletes its task. Other changes to tasks are written to the files. If both changed, the
    task stays unchanged, and your file is kept with the suffix .rejected.

    Example: turnkeeper task export > tasks.toml
    """
    if watch is not None:
        if names or split:
            raise InvalidInput("excludes names and --split", where="--watch")
        console.home()
        importlib.import_module("task_runner.cli.declare.mirror").follow(watch, SystemClock())
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
    tasks = [chosen.call(wire.GetTaskRequest(name=name)) for name in names] if names else all_tasks()
    return [_declarations().declaration_of(task) for task in sorted(tasks, key=lambda task: task.spec.name)]


def _declarations() -> Any:
    # Imported late, because the other commands need neither TOML nor the models that validate it.
    return importlib.import_module("task_runner.cli.declare.task_file")


def _summary(rows: list[dict[str, Any]], *, dry_run: bool) -> str:
    counts = {
        action: sum(row["action"] == action for row in rows)
        for action in ("created", "updated", "unchanged", "deleted")
    }
    said = ", ".join(f"{count} {action}" for action, count in counts.items() if count) or "nothing declared"
    return f"{said} (dry run: nothing was written)" if dry_run else said


_COLUMNS = [column("NAME", "name"), column("ACTION", "action"), column("CHANGED", "changed", "-")]
_DIFF = console.Column(
    "DIFF", lambda row: "; ".join(f"{one['field']}: {one['old']} -> {one['new']}" for one in row.get("diff", ())) or "-"
)


_VARIABLE = re.compile(r"\s*([A-Za-z_][A-Za-z0-9_]*)\s*=\s*(.*?)\s*$")
_ENTRY = re.compile(r"\s*(@[a-z]+|(?:\S+\s+){4}\S+)\s+(.*\S)\s*$")
_ZONES = {"CRON_TZ", "TZ"}
_LONGEST_STEM = 40
_NO_COMMANDS = (
    "warning: Turnkeeper runs agents, not commands: these tasks ask the agent to run the command. "
    "Grant their category a tool that can; a fire without such a tool ends and runs nothing"
)
# Words that do not say what a command does, and steps before the one that does the job.
_STARTERS = re.compile(
    r"sudo|nice|ionice|env|nohup|flock|timeout|time|exec|(ba)?sh|python3?|perl|ruby|node|-\w+|\w+=.*|\d+"
)
_STEPS = re.compile(r"cd|\[|test|export|source|\.|sleep")


@dataclass(frozen=True)
class Carried:
    """The contents of a crontab.

    Attributes:
        specs: by line number, the tasks, without category and channel.
        left: by line number, the entries that cannot be imported, with the reasons.
    """

    specs: list[tuple[int, wire.TaskSpec]]
    left: list[tuple[int, str]]


def read_crontab(text: str) -> Carried:
    """Convert a user's crontab to tasks. Each command becomes a prompt to run the command."""
    specs: list[tuple[int, wire.TaskSpec]] = []
    left: list[tuple[int, str]] = []
    timezone, names = "", set[str]()
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        if found := _VARIABLE.match(line):
            if found[1] in _ZONES:
                timezone = found[2].strip("\"'")
            else:
                left.append((number, f"the variable {found[1]}: a turn has its own environment"))
            continue
        entry = _ENTRY.match(line)
        if entry is None or entry[1] == "@reboot":
            no_time = "@reboot has no time: let cron run turnkeeper task run NAME"
            left.append((number, no_time if entry else f"{line.strip()[:60]!r} is not an entry"))
            continue
        cron = " ".join(entry[1].split())
        if refused := _refused(cron, timezone):
            left.append((number, f"{cron}: {refused}"))
            continue
        # As in cron, the command ends at its first unescaped %.
        command, *given = (part.replace("\\%", "%") for part in re.split(r"(?<!\\)%", entry[2]))
        command = command.rstrip()
        if given:
            left.append((number, "the text after %, which is the command's input"))
        spec = wire.TaskSpec(name=_name(command, names), cron=cron)
        told = command.replace("{{", "\\{{")  # two braces of a command are not a variable
        spec.prompt = f"Run this command and report what it says:\n\n{told}"
        if timezone:
            spec.timezone = timezone
        specs.append((number, spec))
    return Carried(specs, left)


def _refused(cron: str, timezone: str) -> str:
    """Return why a cron expression of a crontab cannot be imported; empty if it can be imported."""
    # Imported late: other commands read no cron.
    timetable = importlib.import_module("task_runner.timetable")
    classic_cron = importlib.import_module("task_runner.cli.declare.classic_cron")
    try:
        if timezone:
            timetable.zone(timezone)
        other = classic_cron.otherwise_in_classic_cron(cron)
    except InvalidInput as error:
        return f"{error.what}; {error.hint}" if error.hint else error.what
    return str(other)


def import_(
    crontab: Annotated[Path, typer.Option(help="The crontab file; crontab -l > FILE writes one.")],
    category: Annotated[str, typer.Option(help="The permissions of the turns: turnkeeper categories list.")],
    channel: Annotated[str, typer.Option(help="The channel of the conversations.")],
    dry_run: Annotated[bool, typer.Option(help="Only show what would be created.")] = False,
    output: console.OutputOption = console.Output.TABLE,
) -> None:
    """Create a task for each entry of a crontab, and list the entries that cannot be imported.

    Each command becomes a prompt: the agent needs a tool that runs commands, which the category grants.

    Example: turnkeeper task import --crontab my.cron --category loop --channel general --dry-run
    """
    carried = read_crontab(read_file(str(crontab)))
    console.note(_NO_COMMANDS)
    for number, what in carried.left:
        console.note(f"{crontab}:{number}: not imported: {what}")
    if carried.left and not carried.specs:
        raise InvalidInput("it has no entry that can be imported", where=str(crontab))
    lines, specs = {spec.name: number for number, spec in carried.specs}, [spec for _, spec in carried.specs]
    for spec in specs:
        spec.category, spec.channel = category, channel
        for warning in importlib.import_module("task_runner.cli.declare.classic_cron").misread(spec.cron):
            console.note(f"warning: {warning}")
    chosen = runner()
    existing = set[str]() if chosen.homeless else {task.spec.name for task in all_tasks()}
    if taken := next((name for name in lines if name in existing), None):
        where = f"{crontab}:{lines[taken]}"
        raise InvalidInput(f"a task named {taken!r} exists", where=where, hint="was the crontab imported already?")
    try:
        applied = chosen.call(wire.ApplyTasksRequest(specs=specs, dry_run=dry_run)).applied
    except InvalidInput as error:
        name, _, field = error.where.rpartition(": ")
        if name in lines:
            error.where = f"{crontab}:{lines[name]}: {field}"
        raise
    rows = [
        {"name": done.name, "action": done.action, "cron": spec.cron, "prompt": spec.prompt}
        for done, spec in zip(applied, specs, strict=True)
    ]
    written = " (dry run: nothing was written)" if dry_run else " (missed times run once)"
    said = f"{len(rows)} created{written}"
    console.show_rows(rows, _IMPORTED, output, name_key="name", footer=f"{said}, {len(carried.left)} not imported")
    chosen.note_unless_serving()


def _name(command: str, taken: set[str]) -> str:
    plain = re.sub(r"\d*[<>]+\s*\S+", "", command)  # without redirections
    parts = [part.split() for part in re.split("&&|[|;]", plain) if part.strip()] or [["entry"]]
    typed = next((part for part in parts if not _STEPS.fullmatch(part[0])), parts[0])
    telling = [word for word in typed if not _STARTERS.fullmatch(word)]
    said = " ".join(Path(word.strip("\"'")).stem for word in (telling or typed)[:3])
    stem = re.sub(r"[^a-z0-9]+", "-", said.lower()).strip("-")[:_LONGEST_STEM].strip("-") or "entry"
    name, number = f"cron-{stem}", 2
    while name in taken:
        name, number = f"cron-{stem}-{number}", number + 1
    taken.add(name)
    return name


_IMPORTED = [
    column("NAME", "name"),
    column("ACTION", "action"),
    column("CRON", "cron"),
    column("PROMPT", "prompt", wide=True),
]
