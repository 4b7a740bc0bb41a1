"""The commands `turnkeeper graph`, which check an author's graph as the daemon would load it, without daemon or home.

Loading a graph needs LangGraph, which takes a second to import, so it is imported only here.
"""

import asyncio
import json
import os
import shlex
import sys
from collections.abc import Mapping
from contextlib import redirect_stdout
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

import typer

from agent_runtime.cli.rows import FOR_PEOPLE
from agent_runtime.daemon.__main__ import ENVIRONMENT, PROCESS
from agent_runtime.model.mapping import parsed
from agent_runtime.model.trigger import FIRST_AGENT
from turnkeeper.config.home import Home
from turnkeeper.console import Output, OutputOption, named_home, note, show_record, show_rows
from turnkeeper.console import status as spinner
from turnkeeper.console.commands import App
from turnkeeper.console.lists import Listed, columns, listing
from turnkeeper.errors import EXIT_USAGE, InvalidInput, NotFound, TurnkeeperError, the_one
from turnkeeper.storage.locking import is_held

app = App("Your own LangGraph graphs.")

assistants_app = App("Graphs with a configuration, by name.")
_ENTRIES = columns("NAME KIND GRAPH DESCRIPTION REFERENCE=reference")
_TOOLS = columns("TOOL=name SCOPE EFFECT GRANTED_BY=granted_by", effect=lambda row: f"{row['effect']} (undeclared)")
_UNGUARDABLE = columns("NOT_GUARDED=where WHY")
_SERVER = "it calls a LangGraph server: the call fails unless you run a server and give the project its URL"
_CATCHES = "a call there that needs approval fails the turn: grant it, or do not catch langgraph.errors.GraphBubbleUp"
_REPEATS = "a call there runs again after your answer to a later call: call one tool in each node, or use a ToolNode"
_ONCE = "a factory is called when the runtime starts, with an empty config: no --config of a task reaches it"
_NOTES = (
    ("made_once", "made once", _ONCE),
    ("makes_tools", "makes tools", "only tools that the code names are listed; each call is still judged"),
    ("shared_names", "shared", "two different tools have this name, so no category grants either of them; rename one"),
    ("calls_inside", "tools in tools", "each such call is judged separately, even inside an approved call"),
    ("asks", "asks you", "the graph asks you itself, even if a category grants the call"),
    ("catches", "catches", _CATCHES),
    ("repeats", "runs again", _REPEATS),
    ("calls_server", "calls server", _SERVER),
    ("reads_terminal", "fails", "a turn has no terminal, so a call of input() fails it; ask with interrupt()"),
)
_VERDICTS = {
    "guarded": "every tool call is guarded",
    "trusted": "runs with unguarded calls: [categories] trusted_graphs names it",
    "refused": "refused",
}


@app.callback(no_args_is_help=True)
def graph() -> None:
    """Check and install your own LangGraph graphs."""


@app.command("check")
def check(
    reference: Annotated[
        str | None,
        typer.Argument(
            metavar="REF",
            help="./langgraph.json:NAME, FILE.py:ATTRIBUTE or MODULE:ATTRIBUTE; if omitted, the graph in config.toml.",
        ),
    ] = None,
    graph: Annotated[str, typer.Option(help="Only this graph of the home, by its name.")] = "",
    output: OutputOption = Output.TABLE,
) -> None:
    """Load LangGraph graphs and show their tools, the scope of each, the categories that grant it, and unguarded calls.

    Without REF, all graphs of the home are checked. Loading runs the project's own code, as the daemon does. The exit
    code is 2 if the daemon would refuse the graph; with several graphs, the first (default) one counts.

    Example: turnkeeper graph check ./langgraph.json:agent
    """
    if reference and graph:
        raise InvalidInput("give only one of REF and --graph", where="graph")
    place = named_home()
    settings: Any = import_module("turnkeeper.config.settings").load_settings(place)
    os.environ.update(ENVIRONMENT)
    # A relative path typed here is relative to this folder; a relative path in config.toml, to that file's folder.
    named = {"": reference} if reference else _configured(place, settings, graph)
    with spinner("loading"), redirect_stdout(sys.stderr):  # output of the project is not data of this command
        first, *others = asyncio.run(_reports(place, settings, named, Path.cwd() if reference else place.root))
    if output in FOR_PEOPLE:
        for number, found in enumerate([first, *others]):
            typer.echo("", nl=bool(number))
            _show(found, output)
    else:
        _show({**first, **({"others": others} if others else {})}, output)
    for found in [first, *others]:
        if found["verdict"] == "refused":
            note(f"{found['name']}: " * bool(others) + f"refused: {found['problem']}")
    start = import_module("turnkeeper.config.started").read_start(place, PROCESS)
    if is_held(place, PROCESS) and start and (edited := start.edited()):
        note(f"the runtime still runs the earlier code of {', '.join(edited)}; run: turnkeeper restart")
    if first["verdict"] == "refused":
        raise typer.Exit(EXIT_USAGE)


@app.command("install")
def install(
    reference: Annotated[
        str, typer.Argument(metavar="REF", help="./langgraph.json:NAME, FILE.py:ATTRIBUTE or MODULE:ATTRIBUTE.")
    ],
    dry_run: Annotated[bool, typer.Option(help="Only print the command.")] = False,
) -> None:
    """Install the missing packages of a project into Turnkeeper's environment.

    Installed packages stay at their version. The project's own code is not installed: it runs from its folder.

    Example: turnkeeper graph install ./langgraph.json:agent
    """
    packages: Any = import_module("agent_runtime.graph.foreign.packages")
    project: Any = import_module("agent_runtime.graph.foreign.project")
    needed = packages.packages_of(project.find_graph(reference, Path.cwd()))
    for conflict in needed.conflicts:
        note(f"the project {conflict}; that version stays")
    if not needed.missing:
        note("all packages that the project lists are installed")
    elif dry_run:
        typer.echo(needed.command)
    else:
        note(f"installing {', '.join(needed.missing)}")
        packages.install(needed)
        note("installed")


def _catalog(place: Home, settings: Any) -> Any:
    return import_module("agent_runtime.graph.foreign.project").read_catalog(settings, place)


def _configured(place: Home, settings: Any, graph: str) -> dict[str, str]:
    """Return the references of the home's graphs by name, the default graph first; or only the named graph."""
    catalog = _catalog(place, settings)
    names = [one.name for one in catalog.entries() if one.reference and not one.is_assistant]
    if graph:
        catalog.require(graph)
        names = [name for name in names if name == catalog.graph_of(graph)]
    if not names:
        hint = f"name a graph, or write graph = … under [agents.{FIRST_AGENT}]"
        raise NotFound(
            "no graph of your own is configured, so turns run the default agent", where=str(place.config), hint=hint
        )
    return {name: catalog.references[name] for name in names}


async def _reports(place: Home, settings: Any, named: Mapping[str, str], base: Path) -> list[Mapping[str, Any]]:
    """Report on graphs; errors of the first graph are raised, because the user asked for it or a start needs it."""
    found: list[Mapping[str, Any]] = []
    for name, text in named.items():
        try:
            found.append(await _report(place, settings, name, text, base))
        except TurnkeeperError as error:
            if not found:
                raise
            found.append({"name": name, "reference": text, "verdict": "refused", "problem": str(error)})
    return found


async def _report(place: Home, settings: Any, name: str, text: str, base: Path) -> Mapping[str, Any]:
    opening: Any = import_module("agent_runtime.graph.foreign.load")
    catalog = _catalog(place, settings) if name else None
    own = {known: one for known, one in catalog.assistants.items() if one.graph == name} if catalog else {}
    categories: Any = import_module("agent_runtime.permissions.categories").Categories(place, settings)
    usable = [entry.category for entry in categories.all() if entry.category is not None]
    trusted = opening.targets(settings.categories.trusted_graphs, place.root)
    # The construction of a model may need the model's API key.
    import_module("agent_runtime.graph.models.make").take_keys(place, os.environ)
    async with opening.open_graph(text, base, trusted=trusted, environ=os.environ) as opened:
        known = {"label": catalog.label(name) if catalog else "", "assistants": own}
        where = opening.absolute_text(text, base), settings.memory.default_tier
        mine = [entry.name for entry in categories.all() if entry.source == "author"]
        said = opening.report(opened, usable, *where, **known)
        named = [one for one in said["categories"] if one in mine]
        grants_in = named[:1] or [*mine[:1], *(["--graph", name] if mine and name else [])]
        return {"name": name, **said, "categories": named, "grants_in": grants_in}


def _show(found: Mapping[str, Any], output: Output) -> None:
    named = f"{found['name']}, {found['reference']}" if found["name"] else str(found["reference"])
    fails = "; a turn that reads from a terminal fails" if found.get("reads_terminal") else ""
    verdict = ("verdict", f"{_VERDICTS[found['verdict']]}{fails}")
    lines = [("graph", named), *(_lines(found) if "tools" in found else ()), verdict]
    show_record(found, output, name_key="reference", lines=lines)
    if output not in FOR_PEOPLE or "tools" not in found:
        return
    for rows, shape in (([*found["tools"], *found["made_tools"]], _TOOLS), (found["unguardable"], _UNGUARDABLE)):
        if rows:
            typer.echo()
            show_rows(rows, shape, output, name_key="")


def _lines(found: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [
        ("loaded", f"{found['target']} ({found['kind']})"),
        ("nodes", ", ".join(found["nodes"])),
        ("subgraphs", ", ".join(found["subgraphs"]) or "none"),
        ("input", _input(found)),
        *([("context", _fields(found["context_schema"]))] if found["context_schema"] else []),
        *(("assistant", ": ".join(filter(None, [one["name"], one["problem"]]))) for one in found["assistants"]),
        *([("stops", f"{', '.join(found['stops'])}: asks you each time")] if found["stops"] else []),
        *_store(found["store"]),
        *(("packages", f"missing {one}") for one in found["packages"]["missing"]),
        *([("install", found["packages"]["install"])] if found["packages"]["missing"] else []),
        *(("packages", one) for one in found["packages"]["conflicts"]),
        *(("ignored", f"{key}: {why}") for key, why in found["ignored"].items()),
        *([("not set", f"{', '.join(found['unset'])}: put them into the project's .env")] if found["unset"] else []),
        *((what, f"{', '.join(found[key])}: {why}") for key, what, why in _NOTES if found[key]),
        *_grant(found),
    ]


def _grant(found: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the command that grants an unattended fire the tools that no category of the home grants."""
    tools = [*found["tools"], *found["made_tools"]]
    asks = [one["name"] for one in tools if not set(found["categories"]) & set(one["granted_by"])]
    if not asks or not found["grants_in"]:
        return []
    category, *of_graph = found["grants_in"]
    return [("to grant", f"turnkeeper categories grant {shlex.join([category, *asks, *of_graph])} --autonomous")]


def _store(store: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Describe where a namespace without a tier is stored, how it is searched, who may use it, and ignored settings."""
    kept = (
        f"a namespace without a tier is in {store['default_tier']} as {store['kept_as']}…, searched {store['search']}"
    )
    read, written = (", ".join(store[key]) or "no category" for key in ("read_by", "written_by"))
    ignored = [("ignored", f"{key}: {why}") for key, why in store["ignored"].items()]
    return [("store", kept), ("granted", f"reading the store to {read}; writing it to {written}"), *ignored]


def _input(found: Mapping[str, Any]) -> str:
    """Describe the input's fields: which are required, and which one receives a turn's prompt."""
    prompt = found["prompt_goes_to"]
    fields = _fields(found["input_schema"], {prompt: " (the prompt)"})
    more = "; --input gives the other fields" if len(found["input_schema"]["properties"]) > 1 else ""
    return fields + more if prompt else f"{fields}; no field receives the prompt"


def _fields(schema: Mapping[str, Any], more: Mapping[str, str] = MappingProxyType({})) -> str:
    marks = dict.fromkeys(schema["required"], " (required)") | dict(more)
    return ", ".join(f"{name}{marks.get(name, '')}" for name in schema["properties"]) or "nothing"


@assistants_app.callback(no_args_is_help=True)
def assistants() -> None:
    """Graphs with a configuration, named as tasks and messages name them with --graph."""


@assistants_app.command("list")
@listing(_ENTRIES, "name")
def list_() -> Listed:
    """List the names for --graph: the graphs of config.toml, and its assistants, which are graphs with a configuration.

    Example: turnkeeper assistants list
    """
    return Listed([_row(one) for one in _entries()], "define one in config.toml: [assistants.NAME]")


@assistants_app.command("show")
def show(
    name: Annotated[str, typer.Argument(help="The name of an assistant or a graph.")],
    output: OutputOption = Output.TABLE,
) -> None:
    """Show the graph behind a name, and the context, config and input that the name gives it.

    Example: turnkeeper assistants show weekly
    """
    entries = {one.name: one for one in _entries()}
    known = f"use one of: {', '.join(entries)}"
    row = _row(entries[the_one([*entries], name, "graph or assistant", see=known)])
    lines = [(key, text if isinstance(text, str) else json.dumps(text)) for key, text in row.items() if text]
    show_record(row, output, name_key="name", lines=lines)


def _entries() -> Any:
    place = named_home()
    settings: Any = import_module("turnkeeper.config.settings").load_settings(place)
    return _catalog(place, settings).entries()


def _row(one: Any) -> dict[str, Any]:
    kind = "assistant" if one.is_assistant else "default graph" if one.is_default else "graph"
    given = {key: parsed(getattr(one, f"{key}_json")) for key in ("context", "config", "input")}
    return {
        "name": one.name,
        "kind": kind,
        "graph": one.graph,
        "reference": one.reference,
        **given,
        "description": one.description,
    }
