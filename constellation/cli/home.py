"""`turnkeeper init`."""

from typing import Annotated

import typer

from constellation.install.init import initialise
from constellation.install.project import Project, check_room, look_at, take_on
from turnkeeper.config.home import Home
from turnkeeper.console import home, note, status


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
    """Make the state directory, with a config.toml that explains itself.

    What is there already is left as it is, so that running it twice does no harm. A graph is loaded first, as the agent
    runtime will load it; where that fails, nothing is written.

    Example: turnkeeper init --graph ./langgraph.json:agent
    """
    place = home()
    project = _look_at(place, graph) if graph else None
    written = initialise(place, example=example)
    written += [path for path in take_on(place, project) if path not in written] if project else []
    for path in written:
        note(f"wrote {path}")
    if not written:
        note(f"{place.root} is complete already")
    if project is not None:
        _say_how_to_go_on(place, project)
        return
    note("next: turnkeeper up")
    if example:
        note(f"then:  agent-runtime workspace import {place.root}/workspace")
        note("       task-runner apply")


def _look_at(place: Home, graph: str) -> Project:
    with status("loading the graph"):
        project = look_at(place, graph)
    check_room(place, project)
    return project


def _say_how_to_go_on(place: Home, project: Project) -> None:
    note("next: agent-runtime graph check")
    if project.tools:
        note(f"      grant what may run unasked: {place.categories / project.name}.toml")
    note("then: turnkeeper up")
    note(f"      task-runner create NAME --cron '0 7 * * *' --category {project.name} --channel {project.name} \\")
    note("          --prompt 'What to do'")
