"""The text of each reference page."""

import inspect
import json
import re
import tempfile
import tomllib
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

from google.rpc import code_pb2

import agent_runtime.daemon.metrics
import task_runner.daemon.metrics
from agent_runtime.tools.agents import agent_tools, subagent_tools
from agent_runtime.tools.folder.folder import folder_tools
from agent_runtime.tools.loops import loop_tools
from agent_runtime.tools.restart import lifecycle_tools
from agent_runtime.tools.workspace import workspace_tools
from task_runner.model import fields as task_fields
from tests.integration.cluster.guards import guards
from tests.reference.commands import commands, program
from tests.reference.schedules import AFTER, cron_rows, rrule_rows
from tests.support.clock import ManualClock
from tests.support.program import every_command
from turnkeeper import errors
from turnkeeper.client import Turnkeeper
from turnkeeper.config import settings
from turnkeeper.constellation.query.tables import TABLES, described
from turnkeeper.constellation.supervisor import markers
from turnkeeper.constellation.timeline.sentences import SENTENCES
from turnkeeper.gateway.lg.api import Api
from turnkeeper.gateway.lg.application import routes
from turnkeeper.gateway.mcp.tools import SCOPES, tools
from turnkeeper.rpc import metrics
from turnkeeper.rpc.errors import code_of

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "reference"
REQUIREMENTS = ROOT / "tests" / "requirements.toml"
REQUESTS = Path(__file__).parent / "langgraph_api.toml"
DIFFERENCES = Path(__file__).parents[1] / "golden" / "differences.toml"
WRITTEN = "`make reference` writes it from the program."


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a table."""
    head = list(head)
    lines = [head, ["---"] * len(head), *([cell.replace("|", r"\|") for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines) + "\n"


def page(title: str, says: str, *parts: str) -> str:
    """Return a page: its title, what it is for, and its parts."""
    return "\n".join([f"# {title}\n", f"{says}\n", *parts])


def the_settings() -> str:
    """Return the page of settings."""
    parts = []
    for name, field in settings.Settings.model_fields.items():
        given = field.annotation
        section = next((one for one in (given, *get_args(given)) if hasattr(one, "model_fields")), None)
        if section is None:
            parts.append(f"## `[{name}]`\n\nNames of graphs, each with a graph as in `[agents.<name>] graph`.\n")
            continue
        title, _, says = (section.__doc__ or "").partition(": ")
        rows = ((f"`{key}`", f"`{_default(one)}`", one.description or "") for key, one in section.model_fields.items())
        parts += [f"## {title}\n", f"{says[0].upper()}{says[1:]}\n", table(("key", "default", "meaning"), rows)]
    says = (
        f"This page lists every key of `config.toml` with its default. {WRITTEN} `turnkeeper config show` prints the "
        "values of a home with their sources. Durations are written as `90s`, `15m`, `1h30m` or `1d`, or as seconds."
    )
    return page("Settings", says, *parts)


def _default(field: Any) -> str:
    value = field.get_default(call_default_factory=True)
    if isinstance(value, bool):
        return str(value).lower()
    value = settings.as_written(value)
    if isinstance(value, str) and not isinstance(field.get_default(), str):
        return value
    return json.dumps(value, default=str) if isinstance(value, str | tuple) else str(value)


def the_fields_of_tasks() -> str:
    """Return the page of a task's fields."""
    (create,) = (one for path, one in every_command(program(), ("turnkeeper",)) if path[1:] == ("task", "create"))
    declared = {one.name: (one.opts[0], one.help) for one in create.params if one.param_type_name == "option"}
    rows = []
    for one in task_fields.FIELDS:
        flag, says = (one.flag, one.help) if one.help else declared.get(one.name, ("", OF_FILES.get(one.name, "")))
        default = "" if one.default in {None, ""} else f"`{str(one.default).lower()}`"
        rows.append((f"`{one.written_as}`", f"`{flag.replace('/', '`, `')}`" if flag else "", default, says))
    says = (
        "This page lists the fields of a task: their keys in task files and in JSON, and the options of `turnkeeper task "
        f"create` and `edit`. {WRITTEN} [Tasks](../tasks.md) explains them."
    )
    return page("Fields of a task", says, table(("key", "option", "default", "meaning"), rows))


# Fields without an option of their own.
OF_FILES = {
    "name": "The name: a-z, 0-9 and -, at most 63.",
    "id": "The id, which never changes; the program chooses it.",
    "paused": "Whether the task is paused.",
}


def the_events() -> str:
    """Return the page of the events in the event log."""
    rows = ((f"`{name}`", said.replace("<", "&lt;")) for name, said in sorted(SENTENCES.items()))
    says = (
        "This page lists the events that processes write into `logs/events-<process>-<date>.jsonl`, with the sentence by "
        f"which `turnkeeper events` tells each. {WRITTEN} A name in braces is a field of the event; a part in brackets is "
        "left out if one of its fields is empty. [Events](../events.md) lists those that can fire a task."
    )
    return page("Events of the log", says, table(("event", "sentence"), rows))


def the_metrics() -> str:
    """Return the page of metrics."""
    runner, runtime = task_runner.daemon.metrics, agent_runtime.daemon.metrics
    with tempfile.TemporaryDirectory() as folder:
        restarts = metrics.restarts(Path(folder), "agent-runtime")
    own = {
        "task-runner": [*runner.Counters().all, *_gauges(runner)],
        "agent-runtime": [*runtime.Counters(lambda: 0.0).all, *_gauges(runtime)],
    }
    shared = {one.name for one in own["task-runner"]} & {one.name for one in own["agent-runtime"]}
    both = [one for one in own["task-runner"] if one.name in shared]
    parts = []
    for title, found in [*own.items(), ("both daemons", [restarts, *both, metrics._COMPLETE])]:
        rows = (_metric(one) for one in found if one.name not in shared or found[0] is restarts)
        parts += [f"## Of {title}\n", table(("metric", "type", "what it is"), rows)]
    says = (
        f"This page lists the metrics of both daemons. {WRITTEN} Times are in seconds. [Metrics](../metrics.md) explains "
        "how to collect them. The daemons also have the `process_…` metrics of every Prometheus client."
    )
    return page("List of metrics", says, *parts)


def _gauges(module: Any) -> list[metrics.Gauge]:
    return [one for one in vars(module).values() if isinstance(one, metrics.Gauge)]


def _metric(one: Any) -> tuple[str, str, str]:
    kind = type(one).__name__.lower()
    values = sorted({value for (value, *_) in getattr(one, "_counts", {}) if value} if one.labels else ())
    said = f"{one.says}: {', '.join(f'`{value}`' for value in values)}" if len(values) > 1 else one.says
    labels = f"{{{','.join(one.labels)}}}" if one.labels else ""
    return f"`{one.name}{'_total' if kind == 'counter' else ''}{labels}`", kind, said


def the_tables() -> str:
    """Return the page of the tables of SQL."""
    says = (
        f"This page lists the {len(TABLES)} tables that `turnkeeper query` reads. {WRITTEN} Instants are texts such as "
        "`2026-11-22T02:00:00.000Z`, in UTC. Columns that end in `_s` are seconds. Columns in *italics* hold words of "
        "people, models or tools: they are null, and a note reports this, unless `config.toml` has `[query] texts = true`."
        " [Questions in SQL](../query.md) has examples."
    )
    return page("Tables", says, described())


def the_errors() -> str:
    """Return the page of errors and exit codes."""
    kinds = [errors.TurnkeeperError, *_below(errors.TurnkeeperError)]
    rows = (
        (f"`{one.__name__}`", str(one.exit_code), f"`{code_pb2.Code.Name(code_of(one('')))}`", _sentence(one.__doc__))
        for one in kinds
        if one.__module__ == errors.__name__
    )
    codes = [
        ("0", "success"),
        *(
            (str(number), MEANINGS[name])
            for name, number in sorted(vars(errors).items(), key=_number)
            if name in MEANINGS
        ),
    ]
    says = (
        f"This page lists the exit codes of the commands, and the kinds of errors with the status that gRPC gives them. "
        f"{WRITTEN} An error is one line on stderr: the place, the fault, and the remedy."
    )
    return page(
        "Errors and exit codes",
        says,
        table(("exit code", "meaning"), codes),
        table(("error", "exit code", "gRPC status", "meaning"), rows),
    )


MEANINGS = {
    "EXIT_FAILURE": "failure",
    "EXIT_USAGE": "wrong usage or invalid input",
    "EXIT_NOT_FOUND": "not found",
    "EXIT_CONFLICT": "the object already exists, or its state forbids the request",
    "EXIT_UNREACHABLE": "a daemon, or the database that machines share, cannot be reached",
    "EXIT_DEGRADED": "degraded: not every process runs",
    "EXIT_DENIED": "waiting for an author, or refused by one",
    "EXIT_INTERRUPTED": "interrupted",
}


def _number(item: tuple[str, Any]) -> int:
    return item[1] if isinstance(item[1], int) else -1


def _below(kind: type[errors.TurnkeeperError]) -> Iterator[type[errors.TurnkeeperError]]:
    for one in kind.__subclasses__():
        yield one
        yield from _below(one)


_ROLE = re.compile(r":\w+:`([^`]+)`")


def _sentence(text: str | None) -> str:
    return " ".join(_ROLE.sub(r"`\1`", (text or "").split("\n\n", 1)[0]).split())


def the_markers() -> str:
    """Return the page of markers."""
    rows = ((f"`{one.path}`", one.meaning, one.writer, one.consumer, one.ends) for one in markers.KINDS)
    says = (
        f"This page lists the marker files of the supervisor and the daemons. {WRITTEN} State is in these files, so the "
        "next process reads it, whichever process died. [Lifecycle](../lifecycle.md) explains them."
    )
    return page("Markers", says, table(("path", "meaning", "writer", "consumer", "cleared or escalated"), rows))


def the_requirements() -> str:
    """Return the page of what the system promises."""
    data = tomllib.loads(REQUIREMENTS.read_text(encoding="utf-8"))
    parts = []
    for group, rows in groupby(data["promise"], lambda row: row["group"]):
        listed = ((row["says"], ", ".join(f"`{test}`" for test in row["tests"])) for row in rows)
        parts += [f"## {group}\n", table(("promise", "shown by"), listed)]
    differences = (
        (
            row["says"],
            row["instead"].replace("](adr/", "](../adr/"),
            ", ".join(f"`{test}`" for test in row.get("tests", ())),
        )
        for row in data["difference"]
    )
    says = (
        "This page lists what the system promises, each with the tests that show it. `make reference` writes it from "
        "`tests/requirements.toml`."
    )
    head = ("asked for", "instead", "shown by")
    return page("Requirements", says, *parts, "## What it does otherwise\n", table(head, differences))


def the_tools() -> str:
    """Return the page of tools and of the shipped categories."""
    absent: Any = None
    specs = [tool for make in OF_AGENTS for tool in make(absent)]
    specs += folder_tools(absent, "folder", absent)
    of_agents = (
        (
            f"`{one.scope}`",
            f"`{one.tool.name}({', '.join(one.tool.args)})`",
            one.effect,
            _sentence(one.tool.description),
        )
        for one in specs
    )
    of_mcp = ((f"`{one.name}`", SCOPES[one.name].name.lower(), _sentence(one.description)) for one in tools())
    shipped = (tomllib.loads(path.read_text("utf-8")) for path in sorted((ROOT / "categories").glob("*.toml")))
    categories = (
        (f"`{one['name']}`", one["description"], ", ".join(f"`{scope}`" for scope in one["scopes"]["tools"]) or "none")
        for one in shipped
    )
    says = (
        f"This page lists the shipped categories, the tools that turns are offered, and the tools for MCP clients. {WRITTEN} "
        "[Categories](../categories.md) explains how to grant tools. A scope is what a category grants; an effect other "
        "than `write` changes nothing."
    )
    return page(
        "Tools and categories",
        says,
        "## Shipped categories\n",
        table(("category", "what its turns do", "scopes"), categories),
        "## Tools of agents\n",
        table(("scope", "tool", "effect", "what a model is told"), of_agents),
        "## Tools for MCP clients\n",
        table(("tool", "scope of a key", "what a client is told"), of_mcp),
    )


def _names(tool: Any) -> str:
    return ", ".join(name.removeprefix("v__") for name in tool.args)


def the_client() -> str:
    """Return the page of the Python client's methods."""
    methods = ((name, one) for name, one in vars_of(Turnkeeper).items() if not name.startswith("_") and callable(one))
    rows = ((f"`{name}{_arguments(one)}`", _sentence(one.__doc__)) for name, one in sorted(methods))
    says = (
        f"This page lists the methods of `turnkeeper.client.Turnkeeper`; `AsyncTurnkeeper` has the same, to be awaited. {WRITTEN} "
        "[Python client](../python-client.md) explains them."
    )
    return page("Methods of the Python client", says, table(("method", "what it does"), rows))


def vars_of(kind: type) -> dict[str, Any]:
    """Return the members of a class and of its bases."""
    return dict(inspect.getmembers(kind))


def _arguments(method: Any) -> str:
    found = list(inspect.signature(method).parameters.values())[1:]
    plain = [one.replace(annotation=inspect.Parameter.empty) for one in found]
    return str(inspect.Signature(plain)).replace("datetime.", "")


def the_guards() -> str:
    """Return the page of the guards of a shared store."""
    parts = []
    for group, found in groupby(guards(), lambda one: one.group):
        rows = (
            (
                one.name,
                f"`{one.path}`: `{' ↵ '.join(one.code)}`",
                f"`{one.without}`" if one.without else "(nothing)",
                ", ".join(f"`{test}`" for test in one.tests),
            )
            for one in found
        )
        parts += [f"## {group}\n", table(("guard", "code", "in its place", "fails"), rows)]
    says = (
        "This page lists the rules that keep machines that share one database ([several machines](../cluster.md)) out of each "
        "other's way: the code that enforces each, and the tests that fail once that code is removed. `make reference` writes "
        "it from `tests/integration/cluster/guards.toml`. `python -m tests.integration.cluster.guards` removes each in a copy "
        "of the checkout, and runs its tests on PostgreSQL; words as arguments choose guards. `↵` is the end of a line."
    )
    return page("Guards of a shared store", says, *parts)


def the_schedules() -> str:
    """Return the page of schedules by example."""
    says = (
        f"This page lists cron expressions and recurrence rules with the first times that they name after {AFTER:%Y-%m-%d}, in "
        f"UTC, or the reason why they are refused. {WRITTEN} [Tasks](../tasks.md) explains them."
    )
    return page(
        "Schedules by example",
        says,
        "## Cron expressions\n",
        table(("`--cron`", "next times", "meaning"), cron_rows()),
        "## Recurrence rules\n",
        table(("`--rrule`", "next times", "meaning"), rrule_rows()),
    )


OF_AGENTS = (workspace_tools, agent_tools, subagent_tools, loop_tools, lifecycle_tools)


def the_requests() -> str:
    """Return the page of the LangGraph API's requests."""
    answers = tomllib.loads(REQUESTS.read_text(encoding="utf-8"))
    web = SimpleNamespace(langgraph_channel="general", langgraph_category="loop")
    gateway: Any = SimpleNamespace(clock=ManualClock(), settings=SimpleNamespace(web=web, default_graph="default"))
    methods = ((one, getattr(one, "methods", {"SOCKET"})) for one in routes(Api(gateway)))
    offered = [f"{method} {one.path}" for one, known in methods for method in sorted(known - {"HEAD"})]
    says = (
        f"This page lists the requests of LangGraph's API that are answered under `/lg`. {WRITTEN} "
        "[LangGraph API](../langgraph-api.md) explains them. Any other request is 404."
    )
    rows = ((f"`{request}`", answers[request]) for request in sorted(offered, key=[*answers].index))
    options = tomllib.loads(REQUESTS.with_name("langgraph_options.toml").read_text(encoding="utf-8"))
    of_runs = ("## Options of runs\n", table(("asked for", "answer"), options.items()))
    listed = tomllib.loads(DIFFERENCES.read_text(encoding="utf-8"))["difference"]
    others = ((one["kind"], ", ".join(f"`{path}`" for path in one["paths"]), one["why"]) for one in listed)
    said = "A test compares the answers to recorded calls with those of `langgraph dev`. `missing` and `added` say what is so here."
    differs = ("## Differences\n", f"{said}\n", table(("kind", "in the answers", "why"), others))
    return page("Requests of the LangGraph API", says, table(("request", "answer"), rows), *of_runs, *differs)


PAGES: dict[str, Callable[[], str]] = {
    "commands.md": commands,
    "settings.md": the_settings,
    "tasks.md": the_fields_of_tasks,
    "events.md": the_events,
    "metrics.md": the_metrics,
    "tables.md": the_tables,
    "errors.md": the_errors,
    "markers.md": the_markers,
    "requirements.md": the_requirements,
    "cluster-guards.md": the_guards,
    "schedules.md": the_schedules,
    "tools.md": the_tools,
    "langgraph-api.md": the_requests,
    "python-client.md": the_client,
}
