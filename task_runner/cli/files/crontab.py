"""`import --crontab`: a user's crontab as tasks, and what of it cannot be carried over."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from protos.turnkeeper.v1 import schedules_pb2 as wire
from task_runner.cli.client import runner
from turnkeeper import console
from turnkeeper.config.toml_file import read_text
from turnkeeper.errors import InvalidInput

_VARIABLE = re.compile(r"\s*([A-Za-z_][A-Za-z0-9_]*)\s*=\s*(.*?)\s*$")
_ENTRY = re.compile(r"\s*(@[a-z]+|(?:\S+\s+){4}\S+)\s+(.*\S)\s*$")
_ZONES = {"CRON_TZ", "TZ"}
_LONGEST_STEM = 40


@dataclass(frozen=True)
class Carried:
    """What a crontab says.

    Attributes:
        specs: the tasks, without category and channel.
        left: by line number, what cannot be carried over and why.
    """

    specs: list[wire.TaskSpec]
    left: list[tuple[int, str]]


def read_crontab(text: str) -> Carried:
    """Return the tasks of a user's crontab: each command as a prompt to run it."""
    specs: list[wire.TaskSpec] = []
    left: list[tuple[int, str]] = []
    zone, names = "", set[str]()
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        if found := _VARIABLE.match(line):
            if found[1] in _ZONES:
                zone = found[2].strip("\"'")
            else:
                left.append((number, f"the variable {found[1]}: a turn has an environment of its own"))
            continue
        entry = _ENTRY.match(line)
        if entry is None or entry[1] == "@reboot":
            left.append((number, "@reboot has no time" if entry else f"{line.strip()[:60]!r} is not an entry"))
            continue
        command, percent, _ = _at_percent(entry[2])
        if percent:
            left.append((number, "what stands behind % as the command's input"))
        spec = wire.TaskSpec(name=_name(command, names), cron=" ".join(entry[1].split()))
        spec.prompt = f"Run this command and report what it says:\n\n{command}"
        if zone:
            spec.timezone = zone
        specs.append(spec)
    return Carried(specs, left)


def import_(
    crontab: Annotated[Path, typer.Option("--crontab", help="The file; crontab -l > FILE writes one.")],
    category: Annotated[str, typer.Option("--category", help="What the turns may do.")],
    channel: Annotated[str, typer.Option("--channel", help="Where the conversations appear.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be created.")] = False,
    output: console.OutputOption = console.Output.TABLE,
) -> None:
    """Create a task for each entry of a user's crontab; what cannot be carried over is listed.

    A command becomes the prompt to run it: whether a turn may is up to the category.

    Example: task-runner import --crontab my.cron --category loop --channel general --dry-run
    """
    carried = read_crontab(read_text(crontab))
    for spec in carried.specs:
        spec.category, spec.channel = category, channel
    chosen = runner()
    existing = {task.spec.name for task in chosen.call("ListTasks", wire.ListTasksRequest()).tasks}
    if taken := next((spec.name for spec in carried.specs if spec.name in existing), None):
        raise InvalidInput(f"a task named {taken!r} exists", where=str(crontab), hint="was it imported already?")
    applied = chosen.call("ApplyTasks", wire.ApplyTasksRequest(specs=carried.specs, dry_run=dry_run)).applied
    rows = [
        {"name": done.name, "action": done.action, "cron": spec.cron, "prompt": spec.prompt}
        for done, spec in zip(applied, carried.specs, strict=True)
    ]
    for number, what in carried.left:
        console.note(f"{crontab}:{number}: not carried over: {what}")
    said = f"{len(rows)} created{' (dry run: nothing was written)' if dry_run else ''}"
    console.show_rows(rows, _COLUMNS, output, name_key="name", footer=f"{said}, {len(carried.left)} not carried over")
    chosen.note_unless_serving()


def _at_percent(command: str) -> tuple[str, bool, str]:
    """Part a command at its first % that is not escaped, as cron does."""
    parts = list(_pieces(command))
    return parts[0].rstrip(), len(parts) > 1, "\n".join(parts[1:])


def _pieces(command: str) -> Iterator[str]:
    for piece in re.split(r"(?<!\\)%", command):
        yield piece.replace("\\%", "%")


def _name(command: str, taken: set[str]) -> str:
    words = re.sub(r"[^a-z0-9]+", "-", " ".join(Path(word).name for word in command.split()[:3]).lower())
    stem = words.strip("-")[:_LONGEST_STEM].strip("-") or "entry"
    name, number = f"cron-{stem}", 2
    while name in taken:
        name, number = f"cron-{stem}-{number}", number + 1
    taken.add(name)
    return name


_COLUMNS = [
    console.Column("NAME", lambda row: row["name"]),
    console.Column("ACTION", lambda row: row["action"]),
    console.Column("CRON", lambda row: row["cron"]),
    console.Column("PROMPT", lambda row: row["prompt"], wide=True),
]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("import")(import_)
