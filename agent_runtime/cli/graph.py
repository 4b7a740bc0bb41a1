"""`agent-runtime graph`: check an author's graph as the daemon would load it. Needs no daemon and no home.

Loading a graph takes LangGraph, which takes a second to import: it is loaded only here.
"""

import asyncio
import os
import sys
from collections.abc import Mapping
from contextlib import redirect_stdout
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from agent_runtime.cli.rows import FOR_PEOPLE, columns
from agent_runtime.daemon.__main__ import ENVIRONMENT
from agent_runtime.model.trigger import FIRST_AGENT
from turnkeeper.config.home import Home
from turnkeeper.console import Output, OutputOption, home, note, show_record, show_rows
from turnkeeper.console import status as spinner
from turnkeeper.errors import EXIT_USAGE, NotFound

app = typer.Typer(help="Your own LangGraph graph, if turns run one.", rich_markup_mode=None)

_TOOLS = columns("TOOL=name SCOPE EFFECT GRANTED_BY=granted_by", effect=lambda row: f"{row['effect']} (undeclared)")
_UNGUARDABLE = columns("NOT_GUARDED=where WHY")
_SERVER = "it asks a LangGraph server, which Turnkeeper is not: that fails unless one runs and it is given its URL"
_NOTES = (
    ("makes_tools", "makes tools", "they are listed only as their classes name them; each is judged when it is called"),
    ("shared_names", "shared", "two tools have this name, so no category grants either; rename one"),
    ("calls_inside", "tools in tools", "each such call is judged by itself, whatever was approved around it"),
    ("asks", "asks you", "questions of the graph's own, whatever a category grants"),
    ("calls_server", "calls server", _SERVER),
)
_VERDICTS = {
    "guarded": "every tool call is guarded",
    "trusted": "runs, but not guarded everywhere: you trust it in [categories] trusted_graphs",
    "refused": "refused",
}


@app.callback(no_args_is_help=True)
def graph() -> None:
    """Your own LangGraph graph, if turns run one."""


@app.command("check")
def check(
    reference: Annotated[
        str | None,
        typer.Argument(
            metavar="REF",
            help="./langgraph.json:NAME, FILE.py:ATTRIBUTE or MODULE:ATTRIBUTE; if omitted, the one in config.toml.",
        ),
    ] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Load a LangGraph graph and show its tools, the scope that each needs, who grants it, and what is not guarded.

    Loading runs the project's own code, as the daemon does. Exits with 2 when the daemon would refuse the graph.

    Example: agent-runtime graph check ./langgraph.json:agent
    """
    place = home()
    settings: Any = import_module("turnkeeper.config.settings").load_settings(place)
    os.environ.update(ENVIRONMENT)
    # A relative path typed here means this folder; one in config.toml means the folder of that file.
    text, base = (reference, Path.cwd()) if reference else (_configured(place, settings), place.root)
    with spinner("loading"), redirect_stdout(sys.stderr):  # what the project prints is not our data
        found = asyncio.run(_report(place, settings, text, base))
    _show(found, output)
    if found["verdict"] == "refused":
        note(f"refused: {found['problem']}")
        raise typer.Exit(EXIT_USAGE)


@app.command("install")
def install(
    reference: Annotated[
        str, typer.Argument(metavar="REF", help="./langgraph.json:NAME, FILE.py:ATTRIBUTE or MODULE:ATTRIBUTE.")
    ],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print the command.")] = False,
) -> None:
    """Install the packages that a project needs and does not find, where Turnkeeper is installed.

    What is installed already stays at its version. The project's own code is not installed: it runs from its folder.

    Example: agent-runtime graph install ./langgraph.json:agent
    """
    packages: Any = import_module("agent_runtime.graph.foreign.packages")
    project: Any = import_module("agent_runtime.graph.foreign.project")
    needed = packages.packages_of(project.find_graph(reference, Path.cwd()))
    for conflict in needed.conflicts:
        note(f"the project {conflict}; that version stays")
    if not needed.missing:
        note("nothing is missing")
    elif dry_run:
        typer.echo(needed.command)
    else:
        note(f"installing {', '.join(needed.missing)}")
        packages.install(needed)
        note("installed")


def _configured(place: Home, settings: Any) -> str:
    agent = settings.agents.get(FIRST_AGENT)
    if agent is None or not agent.graph:
        hint = f"name one, or write graph = … under [agents.{FIRST_AGENT}]"
        raise NotFound(
            "no graph of your own is configured: turns run the default agent", where=str(place.config), hint=hint
        )
    return str(agent.graph)


async def _report(place: Home, settings: Any, text: str, base: Path) -> Mapping[str, Any]:
    opening: Any = import_module("agent_runtime.graph.foreign.load")
    report: Any = import_module("agent_runtime.graph.foreign.load").report
    categories: Any = import_module("agent_runtime.permissions.categories").Categories(place, settings)
    usable = [entry.category for entry in categories.all() if entry.category is not None]
    trusted = opening.targets(settings.categories.trusted_graphs, place.root)
    # A model may want its key when it is made.
    import_module("agent_runtime.graph.models.make").take_keys(place, os.environ)
    async with opening.open_graph(text, base, trusted=trusted, environ=os.environ) as opened:
        found: Mapping[str, Any] = report(
            opened, usable, opening.absolute_text(text, base), settings.memory.default_tier
        )
        return found


def _show(found: Mapping[str, Any], output: Output) -> None:
    lines = [
        ("graph", str(found["reference"])),
        ("loaded", f"{found['target']} ({found['kind']})"),
        ("nodes", ", ".join(found["nodes"])),
        ("subgraphs", ", ".join(found["subgraphs"]) or "none"),
        ("input", _input(found)),
        *([("stops", f"{', '.join(found['stops'])}: asks you each time")] if found["stops"] else []),
        *_store(found["store"]),
        *(("packages", f"missing {one}") for one in found["packages"]["missing"]),
        *([("install", found["packages"]["install"])] if found["packages"]["missing"] else []),
        *(("packages", one) for one in found["packages"]["conflicts"]),
        *(("ignored", f"{key}: {why}") for key, why in found["ignored"].items()),
        *([("not set", f"{', '.join(found['unset'])}: put them into the project's .env")] if found["unset"] else []),
        *((what, f"{', '.join(found[key])}: {why}") for key, what, why in _NOTES if found[key]),
        ("verdict", _VERDICTS[found["verdict"]]),
    ]
    show_record(found, output, name_key="reference", lines=lines)
    if output not in FOR_PEOPLE:
        return
    for rows, shape in (([*found["tools"], *found["made_tools"]], _TOOLS), (found["unguardable"], _UNGUARDABLE)):
        if rows:
            typer.echo()
            show_rows(rows, shape, output, name_key="")


def _store(store: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Write where a namespace without a tier is kept, how it is searched, who may use it, and what is ignored."""
    kept = (
        f"a namespace without a tier is in {store['default_tier']} as {store['kept_as']}…, searched {store['search']}"
    )
    read, written = (", ".join(store[key]) or "nobody" for key in ("read_by", "written_by"))
    ignored = [("ignored", f"{key}: {why}") for key, why in store["ignored"].items()]
    return [("store", kept), ("granted", f"reading the store to {read}; writing it to {written}"), *ignored]


def _input(found: Mapping[str, Any]) -> str:
    """Write the input's fields: which are required, and which one takes a turn's prompt."""
    schema, prompt = found["input_schema"], found["prompt_goes_to"]
    marks = dict.fromkeys(schema["required"], " (required)") | {prompt: " (the prompt)"}
    fields = ", ".join(f"{name}{marks.get(name, '')}" for name in schema["properties"]) or "nothing"
    return fields if prompt else f"{fields}; no field takes the prompt"
