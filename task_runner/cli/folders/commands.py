"""`turnkeeper folders`: the folders that this home watches."""

from pathlib import Path
from typing import Annotated

import typer

from task_runner.cli.folders import folders
from turnkeeper import console
from turnkeeper.console.commands import App
from turnkeeper.console.lists import Listed, columns, listing
from turnkeeper.errors import InvalidInput

app = App("Folders that this home watches: a file that appears or changes there emits an event.")
Name = Annotated[str, typer.Argument(metavar="NAME", help="The folder's name: a-z, 0-9 and -.")]
_COLUMNS = columns("NAME EVENT PATH #FILES=files PROBLEM")


@app.command()
def add(
    name: Name,
    path: Annotated[Path, typer.Argument(metavar="DIR", help="The folder.")],
    event: Annotated[str, typer.Option(help="The event that a file emits; default folder.NAME.")] = "",
) -> None:
    """Watch a folder. Files that are already there emit no event until they change.

    Hidden files, links and devices are ignored. The event's data contains the file's path, name, size and SHA-256.

    Example: turnkeeper folders add scans ~/Scans
    """
    home = console.home()
    folder = path.expanduser().resolve()
    if not folder.is_dir():
        raise InvalidInput(f"{str(path)[:200]!r} is not a folder", where="DIR")
    if folder.is_relative_to(home.root.resolve()) or home.root.resolve().is_relative_to(folder):
        raise InvalidInput("is or contains Turnkeeper's home, which changes with each fire", where="DIR")
    entry = folders.Watched(path=str(folder), event=event or f"folder.{name}")
    known, problem = folders.scan(entry)
    if problem:
        raise InvalidInput(problem, where="DIR", hint="watch a smaller folder")
    folders.begin(home, name, entry, known)
    console.note(f"files already there: {len(known)}; a task fires for the next files with: --on {entry.event}")


@app.command("list")
@listing(_COLUMNS, "name")
def list_() -> Listed:
    """List the watched folders, with the number of their files.

    Example: turnkeeper folders list
    """
    rows = []
    for name, one in folders.FILE.read(console.home()).items():
        known, problem = folders.scan(one)
        rows.append({"name": name, "event": one.event, "path": one.path, "files": len(known), "problem": problem})
    return Listed(rows, "" if rows else "no folder yet: turnkeeper folders add NAME DIR")


@app.command()
def delete(name: Name) -> None:
    """Stop watching a folder. The files in the folder stay.

    Example: turnkeeper folders delete scans
    """
    folders.FILE.remove(console.home(), name)
    console.note(f"{name} deleted")
