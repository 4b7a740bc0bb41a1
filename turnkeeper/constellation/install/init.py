"""Creates a state directory: settings with explanations, an example, or the author's LangGraph project.

A project's graph is loaded before the settings name it. A separate process of the runtime loads the graph, so the
project's code never runs in this process.
"""

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, get_args

from turnkeeper.config.home import Home
from turnkeeper.config.settings import Settings, as_written, load_settings
from turnkeeper.config.toml_file import TomlFile, read_text, with_key
from turnkeeper.errors import EXIT_CONFLICT, EXIT_NOT_FOUND, Conflict, InvalidInput, NotFound
from turnkeeper.storage.files import create, replace_whole
from turnkeeper.storage.locking import is_held

_ENVIRONMENT = """\
# Keys for model providers, read by the agent runtime. Keep this file to yourself (mode 0600).
# OPENAI_API_KEY=
# ANTHROPIC_API_KEY=
"""


def initialise(home: Home, *, example: bool) -> list[Path]:
    """Create the directory and its missing files. Overwrite nothing. Return the files that were written."""
    home.create()
    home.check_sockets()
    written = [*write_new(home.config, config_text()), *write_new(home.environment, _ENVIRONMENT)]
    if example:
        written += write_new(home.tasks / "example.toml", read_text(Path(__file__).with_name("example.toml")))
        if not load_settings(home).folder.path:  # otherwise the example reads the folder that the author chose
            text = with_key(read_text(home.config), "folder", "path", str(Path.cwd()))
            replace_whole(home.config, text.encode())
    return written


def config_text() -> str:
    """Return a `config.toml` with every key: its meaning, and its default as a comment."""
    lines = ["# Settings of this home. A key that is left out has the default shown here; an unknown key is an error."]
    for section, declared in Settings.model_fields.items():
        value, head = declared.get_default(call_default_factory=True), f"[{section}]"
        if section == "graphs":
            lines += ["", f"# {head}", "# names of graphs, each with a graph as above", '# NAME = "FILE.py:ATTRIBUTE"']
            continue
        if isinstance(value, dict):  # the author chooses the names of these sections
            value, head = (
                get_args(declared.annotation)[1](),
                f"# [{section}.{AGENT if section == 'agents' else 'NAME'}]",
            )
        lines += ["", head]
        for key, field in type(value).model_fields.items():
            shown = json.dumps(as_written(getattr(value, key)), ensure_ascii=False)
            stated = section == "categories" and key == "autonomous_allowed"
            lines += [f"# {field.description}", f"{'' if stated else '# '}{key} = {shown}"]
    return "\n".join(lines) + "\n"


def write_new(path: Path, text: str) -> list[Path]:
    """Write a new file, mode 0600. Return the file, or nothing if it already existed."""
    with suppress(FileExistsError):
        create(path, text.encode(), sync=False)
        return [path]
    return []


AGENT = "agent0"
LONGEST_LOOK_S = 120.0
_CATEGORY = """\
# What a task of this project may do. A tool that is not granted asks you at each call.
# `turnkeeper categories grant {name} TOOL` grants one, and --autonomous lets fires finish without you.
name = "{name}"
description = "Runs the graph {graph}"
autonomous = false  # true, and named in autonomous_allowed in config.toml: its first call waits for no approval

[scopes]{graphs}
tools = [
    # The store of LangGraph. With memory = ["graph"] below, the graph reads and writes what it keeps there for itself
    # without asking, and no other memory. "{tier}" in its place grants the whole tier that holds it.
    "memory.read", "memory.search", "memory.put", "memory.forget",{tools}
]
memory = ["graph"]
"""


@dataclass(frozen=True, kw_only=True)
class Project:
    """A graph that the runtime can run.

    Attributes:
        reference: the absolute reference for the settings.
        name: the name for its category, for example the name of its folder.
        work: the option that gives a task its work: the prompt, or fields of the input if the graph takes no prompt.
    """

    reference: str
    name: str
    tools: tuple[str, ...]
    work: str = "--prompt 'What to do'"


class Tasks(StrEnum):
    """The graph of tasks that name no graph, if a home gets a new graph.

    `move`: `agent0` and all these tasks run the new graph. `keep`: they run the previous graph. Tasks can name the new.
    """

    MOVE = "move"
    KEEP = "keep"


def look_at(home: Home, reference: str) -> Project:
    """Load a graph in the same way as the runtime. Do not change the home.

    Raises:
        InvalidInput: the graph does not exist, or the runtime would refuse it. The error says why and where.
    """
    return _project(_asked(home, "graph", "check", reference, where=reference))


def next_steps(home: Home, project: Project | None, *, example: bool) -> list[str]:
    """Return the steps after `init`, one on each line."""
    if project is None:
        reads = f"each morning, whats-new reads {load_settings(home).folder.path}"
        steps = ["then: turnkeeper task apply", "      turnkeeper task run whats-new --wait", reads]
        return ["next: turnkeeper up", *(steps if example else [])]
    named = load_settings(home).graphs.get(project.name) == project.reference
    tools = "      for tools that fires may use without you:"
    grant = f"      turnkeeper categories grant {project.name} TOOL --autonomous"
    return [
        "next: turnkeeper graph check",
        *([tools, grant] if project.tools else []),
        f"then: turnkeeper up{' --restart' * is_held(home, 'agent-runtime')}",
        "      turnkeeper task create NAME --cron '0 7 * * *' \\",
        f"          --category {project.name} --channel {project.name} \\",
        f"          {f'--graph {project.name} ' * named}{project.work}",
    ]


def install_packages(home: Home, reference: str | None) -> None:
    """Install the missing packages of a project. The runtime's command reports its actions.

    Raises:
        InvalidInput: there is no such project, or its packages conflict with the installed ones.
    """
    if not reference:
        raise InvalidInput("installs the packages of a project", where="--install", hint="give --graph REF")
    done = subprocess.run([*_program(home), "graph", "install", reference], stdin=subprocess.DEVNULL, check=False)  # noqa: S603  ours
    if done.returncode:
        raise InvalidInput("its packages were not installed; nothing was written", where=reference)


def import_threads(home: Home, file: Path, *, dry_run: bool = False) -> str:
    """Let the runtime import the threads of LangGraph's SQLite saver, all of them or none. Return a summary.

    Raises:
        InvalidInput: the runtime refuses the file; the error contains the reason.
        NotFound: there is no such file.
        Conflict: the file is in use, or a thread already has a different history here.
    """
    found = _asked(home, "threads", "import", str(file), *["--dry-run"] * dry_run, where=str(file))
    fresh = [one for one in found if one["state"] == "imported"]
    waiting = sum(bool(one["waits"]) for one in fresh)
    asks = f", waiting for you: {waiting}" if waiting else ""
    return f"imported {len(fresh)} of {len(found)} threads{asks}: turnkeeper threads list"


def _asked(home: Home, *argv: str, where: str, package: str = "agent_runtime") -> Any:
    """Return the JSON that a command of the runtime, or of another package, prints. Raises the command's error."""
    program = [*_program(home, package), *argv, "-o", "json"]
    try:
        done = subprocess.run(  # noqa: S603  our own interpreter and module
            program, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LONGEST_LOOK_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise InvalidInput(f"did not load within {LONGEST_LOOK_S:.0f} s", where=where) from error
    if done.returncode:
        said = done.stderr.strip().splitlines() or [f"loading it ended with exit code {done.returncode}"]
        kind = {EXIT_NOT_FOUND: NotFound, EXIT_CONFLICT: Conflict}.get(done.returncode, InvalidInput)
        raise kind(said[-1].removeprefix("error: ").removeprefix("refused: "))
    return json.loads(done.stdout)


def _program(home: Home, package: str = "agent_runtime") -> list[str]:
    # -P: a file of the project in the current folder must not replace one of our modules.
    return [sys.executable, "-P", "-m", package, "--home", str(home.root)]


def would_move(home: Home, project: Project) -> str:
    """Return a sentence about the agent and the tasks that would change to the project's graph. Empty if none would."""
    settings = load_settings(home)
    before = settings.agents[AGENT].graph if AGENT in settings.agents else ""
    if project.reference in {before, *settings.graphs.values()} or not home.root.exists():
        return ""
    rows = _asked(home, "list", where="tasks", package="task_runner")
    moving = [str(row["name"]) for row in rows if not row.get("graph")]
    named = f"{', '.join(moving[:_MOST_NAMED])}{' and others' * (len(moving) > _MOST_NAMED)}"
    runs = f"the graph {before}" if before else "the agent of Turnkeeper"
    who = [f"{AGENT} runs {runs}"] * bool(before or moving) + [f"so do the tasks {named}"] * bool(moving)
    return "; ".join(who)


_MOST_NAMED = 5


def take_on(home: Home, project: Project, tasks: Tasks = Tasks.MOVE) -> list[Path]:
    """Write the graph into `config.toml`, as the graph of `agent0` or under its own name, and add a category.

    The category grants no tool of the project, only the graph's own part of the store.

    Returns:
        The files that were written; empty if nothing was missing.

    Raises:
        Conflict: a different graph has the name.
    """
    settings, changed, keeps = load_settings(home), [], tasks is Tasks.KEEP
    if keeps and (project.name == settings.default_graph or project.name in settings.graphs):
        if settings.graphs.get(project.name) != project.reference:
            hint = f"add it under another name, below [graphs]: NAME = {_quoted(project.reference)}"
            raise Conflict(f"{project.name!r} is the name of another graph", where=str(home.config), hint=hint)
    elif keeps or AGENT not in settings.agents or settings.agents[AGENT].graph != project.reference:
        table, key = ("graphs", project.name) if keeps else (f"agents.{AGENT}", "graph")
        text = with_key(read_text(home.config), table, key, project.reference)
        TomlFile(home.config, text).validate(Settings)
        replace_whole(home.config, text.encode())
        changed.append(home.config)
    tools = "".join(f"\n    # {_quoted(scope)}," for scope in project.tools)
    text = _CATEGORY.format(
        name=project.name,
        graph=_quoted(project.reference)[1:-1],  # the template contains the quotes
        graphs=f"\ngraphs = [{_quoted(project.name)}]" * keeps,
        tools=tools,
        tier=settings.memory.default_tier,
    )
    return [*changed, *write_new(home.categories / f"{project.name}.toml", text)]


def _project(found: Mapping[str, Any]) -> Project:
    place, _, graph = str(found["absolute"]).rpartition(":")
    folder = Path(place).parent.name if "/" in place else place.split(".")[0]
    name = re.sub(r"[^a-z0-9]+", "-", folder.lower()).strip("-") or graph.lower()
    name = name if name[:1].isalpha() else f"graph-{name}"
    tools = tuple(str(tool["scope"]) for tool in (*found["tools"], *found["made_tools"]))
    project = Project(reference=str(found["absolute"]), name=name[:64], tools=tools)
    prompt, schema = found["prompt_goes_to"], found["input_schema"]
    fields = schema.get("required") or list(schema.get("properties", ()))
    fields = [one for one in fields if one != prompt][: None if schema.get("required") else 1]
    given = f"--input {shlex.quote('{' + ', '.join(f'{json.dumps(one)}: …' for one in fields) + '}')}"
    work = f"{project.work} {given}" if prompt else given
    return replace(project, work=work) if fields and prompt in {"", "messages"} else project


def _quoted(text: str) -> str:
    """Return a TOML string. A JSON string without control characters is also a TOML string."""
    return json.dumps(text, ensure_ascii=False)
