"""The commands `turnkeeper categories`, which read the category files as the daemon does.

Parsing categories needs pydantic, whose import takes as long as the rest of a command, so it is imported only here.
"""

import tomllib
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from agent_runtime.model.mapping import Row
from agent_runtime.model.turn import Category
from turnkeeper.bus.event_log import record_act
from turnkeeper.clock import SystemClock
from turnkeeper.config.home import Home
from turnkeeper.config.surfaces import offered, required
from turnkeeper.console import Output, OutputOption, home, named_home, note, show_record, show_rows
from turnkeeper.console.commands import App
from turnkeeper.console.lists import Listed, columns, listing
from turnkeeper.errors import EXIT_USAGE, InvalidInput, the_one
from turnkeeper.storage.files import replace_whole
from turnkeeper.storage.locking import is_held

if TYPE_CHECKING:
    from agent_runtime.permissions.categories import Categories, CategoryEntry
    from agent_runtime.permissions.grant import Grant
    from agent_runtime.permissions.lint import Finding

app = App("Categories: the permissions of each kind of standing work.")
_MODULE, _LINT = "agent_runtime.permissions.categories", "agent_runtime.permissions.lint"


def _autonomy(row: Mapping[str, object]) -> str:
    if row["autonomous"]:
        return "yes"
    return "declared, but not allowed by config.toml" if row["declared_autonomous"] else "no"


_COLUMNS = columns(
    "NAME SOURCE AUTONOMOUS SILENT OUTSIDE +MODEL +TOOLS +WRITES +MEMORY DESCRIPTION",
    source=lambda row: str(row["source"]) + (" (overrides shipped)" if row["overrides_shipped"] else ""),
    autonomous=_autonomy,
    silent=lambda row: "yes" if row["silent"] else "no",
    description=lambda row: str(row["problem"] or row["description"]),
)
_FINDINGS = columns("LEVEL WHERE WHAT")


def _in_words(row: Mapping[str, Any]) -> str:
    """Return a category's purpose and grants in a few lines, because a table would cut them."""
    whose = "" if row["source"] == "shipped" else f"  ({row['path']})"
    about = [f"{row['name']}{whose}", f"  {row['problem'] or row['description']}"]
    if row["problem"]:
        return "\n".join(about)
    tools = ", ".join(row["tools"]) or "none"
    first = "" if row["autonomous"] else "; asks before it writes"
    return "\n".join([*about, f"  tools: {tools}{first}"])


@app.command("list")
@listing(_COLUMNS, "name", in_words=_in_words)
def list_() -> Listed:
    """List every category. If a category is not usable, show the error.

    Example: turnkeeper categories list -o wide
    """
    return Listed([_row(entry) for entry in _load().all()], "all fields of one: turnkeeper categories show NAME")


@app.command("show")
def show(
    name: Annotated[str, typer.Argument(help="The category's name.")], output: OutputOption = Output.TABLE
) -> None:
    """Show a category's grants, its file, and whether it overrides a shipped category.

    Example: turnkeeper categories show catch-up-summary
    """
    entries = {entry.name: entry for entry in _load().all()}
    row = _row(entries[the_one([*entries], name, "category", see=f"use one of: {', '.join(entries)}")])
    lines = [
        ("name", row["name"]),
        ("description", row["description"]),
        ("problem", row["problem"]),
        ("source", str(row["source"]) + (", overrides the shipped category" if row["overrides_shipped"] else "")),
        ("file", row["path"]),
        ("autonomous", _autonomy(row)),
        ("silent", "yes" if row["silent"] else "no"),
        ("outside", row["outside"]),
        ("model", row["model"] or "the home's"),
        *(
            (key, ", ".join(row[key]) or "none")
            for key in ("tools", "graphs", "writes", "memory", "channels", "network")
        ),
        ("limits", f"{row['seconds']} s, {row['tool_calls']} tool calls, {row['tokens']} tokens"),
    ]
    show_record(row, output, name_key="name", lines=[(key, value) for key, value in lines if value])


@app.command("grant")
def grant(
    name: Annotated[str, typer.Argument(help="The category's name.")],
    tools: Annotated[
        list[str] | None,
        typer.Argument(metavar="[TOOL]", help="A tool, a scope, or KIND:VALUE as in an approval: memory:account."),
    ] = None,
    autonomous: Annotated[
        bool, typer.Option(help="Also let its fires write within its scopes without approval.")
    ] = False,
    graph: Annotated[
        list[str] | None, typer.Option(help="Also grant the category's tools to this graph of the home.")
    ] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Let a category use tools without approval; with --autonomous, its fires also write without approval.

    The command edits the category's file in the home, and with --autonomous also autonomous_allowed in config.toml; it
    prints the changes. The kind of write and the memory tier of a tool are granted with the tool. Comments in both
    files stay.

    Example: turnkeeper categories grant garden read_beds --autonomous
    """
    if not tools and not autonomous and not graph:
        raise InvalidInput("nothing to grant", where="TOOL", hint="name tools, or give --graph or --autonomous")
    place = home()
    settings = import_module("turnkeeper.config.settings").load_settings(place)
    catalog: Any = required("catalog", settings, place) if graph else None
    for one in graph or ():
        catalog.require(one)
    wanted = [*(tools or ()), *(f"graphs:{catalog.graph_of(one)}" for one in graph or ())]
    found = import_module("agent_runtime.permissions.grant").plan_grant(
        place, settings, name, wanted, autonomous=autonomous
    )
    for path, text in ((found.path, found.text if found.changes else ""), (place.config, found.config)):
        if text:
            place.create()
            replace_whole(path, text.encode())
    record_act(place.logs, "agent-runtime", "categories grant", f"{name} {' '.join(wanted)}".strip(), SystemClock())
    declared = found.autonomous or bool(tomllib.loads(found.text).get("autonomous"))
    allowed = bool(found.config) or found.path.stem in settings.categories.autonomous_allowed
    _show_grant(place, found, output, acts_alone=declared and allowed)


def _show_grant(place: Home, found: "Grant", output: Output, *, acts_alone: bool) -> None:
    """Show the changed files, the grants that have no effect yet, and whether a restart is needed."""
    row: dict[str, Any] = {"category": found.path.stem, "file": str(found.path), "added": found.added}
    row |= {"declared_autonomous": found.autonomous, "allowed_autonomous": bool(found.config)}
    said = [f"{key}: {', '.join(values)}" for key, values in found.added.items()]
    said += ["autonomous = true"] * found.autonomous
    copied = "; a copy of the shipped category, which it overrides" * found.is_new
    lines = [(str(found.path), f"{'; '.join(said)}{copied}")] if found.changes else []
    lines += [(str(place.config), f"autonomous_allowed names {found.path.stem}")] if found.config else []
    show_record(row, output, name_key="category", lines=lines)
    if not lines:
        note("all of this is already granted")
    if not acts_alone:
        note("its fires still ask before they write; to let them write without approval:")
        note(f"  turnkeeper categories grant {found.path.stem} --autonomous")
    for one in import_module(_LINT).lint(found.path) if found.path.exists() else ():
        note(f"{one.level}: {one.where}: {one.what}")
    if is_held(place, "agent-runtime") and (found.config or _is_older(place)):
        note("agent-runtime reads config.toml when it starts: turnkeeper up --restart")


def _is_older(place: Home) -> bool:
    """Return True if the runtime began before `autonomous_allowed` was changed."""
    started: Any = import_module("turnkeeper.config.started")
    start, key = started.read_start(place, "agent-runtime"), "categories.autonomous_allowed"
    return start is not None and start.settings.get(key) != started.settings_now(place, "agent-runtime").get(key)


@app.command("check")
def check(
    file: Annotated[Path | None, typer.Argument(help="A category file; if omitted, every file of the home.")] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Check category files: unknown scopes, contradictions, scopes that no tool needs. Exits with 2 on an error.

    Example: turnkeeper categories check ~/.turnkeeper/categories/research.toml
    """
    place = named_home()
    if file is None:
        place.check()
    files = [file] if file is not None else sorted(place.categories.glob("*.toml"))
    found: list[Finding] = [finding for path in files for finding in import_module(_LINT).lint(path)]
    rows: list[Row] = [{"level": one.level, "where": one.where, "what": one.what} for one in found]
    show_rows(rows, _FINDINGS, output, name_key="where")
    if not rows:
        note(f"{len(files)} file{'' if len(files) == 1 else 's'} checked, no problems found")
    if any(finding.level == "error" for finding in found):
        raise typer.Exit(EXIT_USAGE)


if _rehearse := offered("categories rehearse"):
    app.command("rehearse")(_rehearse)


def _load() -> "Categories":
    place = home()
    settings = import_module("turnkeeper.config.settings").load_settings(place)
    loaded: Categories = import_module(_MODULE).Categories(place, settings)
    return loaded


def _row(entry: "CategoryEntry") -> Row:
    category = entry.category or Category(name=entry.name)
    return category.to_dict() | {
        "model": category.model,
        "graphs": [graph or "(default)" for graph in sorted(category.graphs)],
        "source": entry.source,
        "path": entry.path,
        "overrides_shipped": entry.overrides_shipped,
        "declared_autonomous": entry.declared_autonomous,
        "problem": entry.problem,
    }
