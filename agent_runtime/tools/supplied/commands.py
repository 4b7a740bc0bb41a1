"""The commands `turnkeeper tools`: tools of MCP servers and of Python files, as their sources describe them now.

The commands connect to the servers themselves, whether or not the daemon runs. Accepted tools are written into the
home's `tools.json`, which the daemon reads when it starts.
"""

import asyncio
import shlex
import shutil
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from turnkeeper.bus.event_log import record_act
from turnkeeper.clock import SystemClock
from turnkeeper.config.home import Home
from turnkeeper.console import Output, OutputOption, home, named_home, note, show_record, status
from turnkeeper.console.commands import App
from turnkeeper.console.lists import Listed, columns, listing
from turnkeeper.errors import EXIT_FAILURE, InvalidInput, NotFound, TurnkeeperError
from turnkeeper.storage.files import replace_whole
from turnkeeper.storage.locking import is_held

app = App("Tools of MCP servers, and your own.")
_COLUMNS = columns("SCOPE STATE EFFECT GRANTED_BY=granted_by DESCRIPTION +TOOL=tool")
_PROCESS = "agent-runtime"


@app.callback(no_args_is_help=True)
def tools() -> None:
    """See and accept the tools that your MCP servers and Python files give the built-in agent."""


@app.command("list")
@listing(_COLUMNS, "scope")
def list_() -> Listed:
    """List the tools that MCP servers and Python files offer now, and whether you accepted them.

    The command starts or calls each server. If a tool's description, schema or configuration changed since you accepted
    it, each of its calls asks you.

    Example: turnkeeper tools list
    """
    place = named_home()
    found, problems, _ = _look(place, import_module("turnkeeper.config.settings").load_settings(place))
    for name, why in problems.items():
        note(f"{name}: {why}")
    return Listed(found, "whole descriptions and schemas: turnkeeper tools list --json")


@app.command("add")
def add(
    name: Annotated[str, typer.Argument(help="A name for the server, or a Python file: garden.py.")],
    command: Annotated[str, typer.Option(help="The program of the server, with its arguments.")] = "",
    url: Annotated[str, typer.Option(help="The address of the server, in place of a program.")] = "",
    output: OutputOption = Output.TABLE,
) -> None:
    """Write an MCP server or a Python file into config.toml, and accept the tools of the server.

    Write keys manually, as $NAME: `env` for a program, `headers` for an address. The program runs in the home. A
    program of your PATH and a file of the current folder are written with their whole paths.

    Example: turnkeeper tools add files --command "npx -y @modelcontextprotocol/server-filesystem notes"
    """
    place = home()
    toml: Any = import_module("turnkeeper.config.toml_file")
    known: Any = import_module("turnkeeper.config.settings")
    text, settings = toml.read_text(place.config), known.load_settings(place)
    if name.endswith(".py"):
        text = toml.with_items(text, "tools", "files", [str(Path(name).absolute())], settings.tools.files)
    else:
        program, *args = map(_whole, shlex.split(command) or [""])
        for key, value in (("args", args), ("command", shutil.which(program) or program), ("url", url)):
            text = toml.with_key(text, f"mcp_servers.{name}", key, value) if value else text
    _accept(place, toml.TomlFile(place.config, text).validate(known.Settings), [name], output)
    replace_whole(place.config, text.encode())


def _whole(word: str) -> str:
    """Return the whole path if a word of a command names a file of the current folder, else the word."""
    with suppress(OSError):  # a long word cannot name a file
        return str(Path(word).absolute()) if {".", "/"} & {*word} and Path(word).is_file() else word
    return word


@app.command("accept")
def accept(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]", help="A server or a scope; if omitted, every server.")
    ] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Accept the tools of MCP servers as they describe themselves now; the command prints what you accept.

    Only accepted tools are offered to the agent. A category still has to grant them.

    Example: turnkeeper tools accept files
    """
    place = home()
    _accept(place, import_module("turnkeeper.config.settings").load_settings(place), names or [], output)


def _accept(place: Home, settings: Any, names: list[str], output: Output) -> None:
    """Accept tools as they are now. Raises NotFound or InvalidInput, with nothing written, for a name without tools."""
    rows, problems, listed = _look(place, settings)
    offers: Any = import_module("agent_runtime.tools.supplied.offers")
    named = {str(Path(name).absolute()) if name.endswith(".py") else name for name in names}
    for name in named - {part for row in rows for part in (row["scope"], row["source"])}:
        if name in problems:
            raise InvalidInput(problems[name])
        raise NotFound(f"no server or tool {name[:80]!r}", where="NAME", hint="see: turnkeeper tools list")
    wanted = [one for one in listed.values() if not names or {one.source, one.scope} & named]
    whole = {one.source for one in wanted if not names or one.source in named}
    kept = {scope: one for scope, one in offers.read_accepted(place).items() if one.source not in whole}
    offers.write_accepted(place, kept | {one.scope: one for one in wanted})
    record_act(place.logs, _PROCESS, "tools accept", " ".join(one.scope for one in wanted), SystemClock())
    shown = [row for row in rows if not names or {row["scope"], row["source"]} & named]
    args = {row["scope"]: ", ".join(row["schema"].get("properties", {})) for row in shown}
    lines = [(row["scope"], f"({args[row['scope']]}) {row['description']}") for row in shown]
    show_record({"accepted": [row["scope"] for row in shown]}, output, name_key="accepted", lines=lines)
    for name, why in problems.items():
        note(f"{name}: {why}")
    if shown:
        note(f"to grant one: turnkeeper categories grant CATEGORY {shown[0]['scope']}")
    if is_held(place, _PROCESS):
        note("agent-runtime offers them from its next start on: turnkeeper restart")
    if problems and not shown:
        raise typer.Exit(EXIT_FAILURE)


def _look(place: Home, settings: Any) -> tuple[list[dict[str, Any]], dict[str, str], dict[str, Any]]:
    """Return the rows of all tools, the problems of sources, and the offered tools of servers by scope."""
    supply: Any = import_module("agent_runtime.tools.supplied.supply")
    offers: Any = import_module("agent_runtime.tools.supplied.offers")
    accepted = offers.read_accepted(place)
    servers, files = supply.open_sources(settings, place, {})
    if not servers and not files:
        hint = 'add some: turnkeeper tools add NAME --command "PROGRAM", or turnkeeper tools add FILE.py'
        raise NotFound("no tools of yours are configured", where=str(place.config), hint=hint)
    with status("asking the servers"):
        listed, problems = asyncio.run(_listed(servers))
    own = dict[str, Any]()
    for name, file in files.items():
        try:
            own |= {one.scope: one for one in file.load()}
        except TurnkeeperError as error:
            problems[name] = str(error)
    categories: Any = import_module("agent_runtime.permissions.categories").Categories(place, settings)
    usable = [entry.category for entry in categories.all() if entry.category is not None]
    gone = {scope: one for scope, one in accepted.items() if one.source in servers and one.source not in problems}
    rows = [_row(one, _state(one, accepted.get(scope), listed), usable) for scope, one in (gone | listed | own).items()]
    return sorted(rows, key=lambda row: str(row["scope"])), problems, listed


async def _listed(servers: dict[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Ask all servers at once."""
    answers = await asyncio.gather(*(one.listing() for one in servers.values()), return_exceptions=True)
    listed, problems = dict[str, Any](), dict[str, str]()
    for name, answer in zip(servers, answers, strict=True):
        if isinstance(answer, TurnkeeperError):
            problems[name] = str(answer)
        elif isinstance(answer, BaseException):
            raise answer
        else:
            listed |= {one.scope: one for one in answer}
    await asyncio.gather(*(one.close() for one in servers.values()))
    return listed, problems


def _state(one: Any, accepted: Any, listed: dict[str, Any]) -> str:
    if one.scope.startswith("tools:"):
        return "yours"
    if accepted is None:
        return "new: not accepted"
    why = accepted.changed(listed.get(one.scope))
    return f"asks each time: {why}" if why else "accepted"


def _row(one: Any, state: str, categories: list[Any]) -> dict[str, Any]:
    return {
        "scope": one.scope,
        "tool": one.model_name,
        "state": state,
        "effect": one.effect,
        "source": one.source,
        "granted_by": [category.name for category in categories if one.scope in category.tools],
        "description": one.description,
        "schema": one.schema,
    }
