"""`turnkeeper init`, `config`, `backup`, `restore` and `demo`."""

from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer

from constellation.install.backup import back_up, back_up_among
from constellation.install.backup import restore as put_back
from constellation.install.init import Project, check_room, initialise, look_at, take_on
from turnkeeper.clock import SystemClock
from turnkeeper.config.home import Home
from turnkeeper.config.settings import effective, load_settings, staffed
from turnkeeper.console import Column, Output, OutputOption, home, note, show_rows
from turnkeeper.console import status as spinner
from turnkeeper.errors import EXIT_FAILURE


def init(
    example: Annotated[
        bool, typer.Option("--example", help="Also write an example workspace and two example tasks.")
    ] = False,
    graph: Annotated[
        str | None,
        typer.Option(
            "--graph",
            metavar="REF",
            help="Run this LangGraph graph: ./langgraph.json:NAME, FILE.py:ATTRIBUTE or MODULE:ATTRIBUTE.",
        ),
    ] = None,
) -> None:
    """Create the state directory, with a config.toml that explains every setting.

    Files that exist are left as they are, so running it twice is safe. With --graph, the graph is loaded first, as the
    agent runtime will load it; if that fails, nothing is written.

    Example: turnkeeper init --graph ./langgraph.json:agent
    """
    place = home()
    project = _look_at(place, graph) if graph else None
    written = initialise(place, example=example)
    written += [path for path in take_on(place, project) if path not in written] if project else []
    for path in written:
        note(f"wrote {path}")
    if not written:
        note(f"{place.root} is already complete")
    if project is not None:
        _say_how_to_go_on(place, project)
        return
    note("next: turnkeeper up")
    if example:
        note(f"then:  agent-runtime workspace import {place.root}/workspace")
        note("       task-runner apply")


def _look_at(place: Home, graph: str) -> Project:
    with spinner("loading the graph"):
        project = look_at(place, graph)
    check_room(place, project)
    return project


def _say_how_to_go_on(place: Home, project: Project) -> None:
    note("next: agent-runtime graph check")
    if project.tools:
        note(f"      grant the tools that may run without asking: {place.categories / project.name}.toml")
    note("then: turnkeeper up")
    note(f"      task-runner create NAME --cron '0 7 * * *' --category {project.name} --channel {project.name} \\")
    note("          --prompt 'What to do'")


config = typer.Typer(help="Show the settings.", no_args_is_help=True, rich_markup_mode=None)

_COLUMNS = (
    Column("KEY", lambda row: str(row["key"])),
    Column("VALUE", lambda row: _shown(row["value"])),
    Column("SOURCE", lambda row: str(row["source"])),
)


@config.command()
def show(
    output: OutputOption = Output.TABLE,
    changed: Annotated[bool, typer.Option("--changed", help="Only settings that differ from their defaults.")] = False,
) -> None:
    """Print every setting in effect and where it comes from.

    Example: turnkeeper config show --changed
    """
    place = home()
    place.check()
    rows = [
        {"key": key, "value": list(value) if isinstance(value, tuple) else value, "source": source}
        for key, value, source in effective(staffed(load_settings(place), place), place)
        if not changed or source != "default"
    ]
    show_rows(rows, _COLUMNS, output, name_key="key")


def _shown(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "(none)"
    return str(value) if value != "" else "(empty)"


_Folder = Annotated[Path, typer.Argument(help="A directory.", metavar="DIR")]


def backup(
    folder: _Folder,
    keep: Annotated[
        int | None,
        typer.Option("--keep", min=1, help="Create it inside DIR, named by the time, and keep the newest N."),
    ] = None,
) -> None:
    """Copy the home into a new directory, also while the daemons run: stores, envelopes, settings, keys; no logs.

    Example: turnkeeper backup ~/backups/monday
    """
    place = home()
    place.check()
    if keep is not None:
        with spinner("copying"):
            target = back_up_among(place, folder.absolute(), SystemClock().now(), keep=keep)
        note(f"wrote {target}; it contains your keys")
        return
    with spinner("copying"):
        manifest = back_up(place, folder.absolute(), SystemClock().now())
    note(f"{folder}: {len(manifest['files'])} files, as of {manifest['at']}; it contains your keys")


def restore(folder: _Folder) -> None:
    """Restore a backup as the home. Refused while a process runs; the present home is moved aside, not removed.

    Before anything changes, every file is compared with the backup's manifest and every store is read completely.

    Example: turnkeeper down && turnkeeper restore ~/backups/monday && turnkeeper up
    """
    place = home()
    with spinner("restoring"):
        aside = put_back(place, folder.absolute(), SystemClock().now())
    note(f"{place.root} is restored; start it with: turnkeeper up")
    if aside is not None:
        note(f"the home from before is now in {aside}")


def demo(
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep the temporary home, so that you can look around in it.")
    ] = False,
) -> None:
    """Show what the product does, in a temporary home and about a minute, and check every claim.

    Nothing outside that home is read or written. Exits with 1 if a claim does not hold.

    Example: turnkeeper demo
    """
    if not import_module("constellation.demo.story").perform(keep=keep):
        raise typer.Exit(EXIT_FAILURE)
