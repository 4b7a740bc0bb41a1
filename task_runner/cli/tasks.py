"""`create`, `edit` and `backfill`, and the options that say what a task is."""

import importlib
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from protos.turnkeeper.v1 import schedules_pb2 as wire
from task_runner.cli.client import NameArgument, complete_channel, runner
from task_runner.cli.rows import events_lines, local, nominal_row, task_row, time
from turnkeeper import console
from turnkeeper.entropy import SystemEntropy
from turnkeeper.errors import InvalidInput

F = TypeVar("F", bound=Callable[..., Any])
NONE = "none"
"""What an option is given to take its value away again."""
# The fields that may have no value, and those of their options that are called otherwise.
_OPTIONAL = frozenset(
    {
        "exclude", "payload", "catch_up_window", "max_catch_up", "grace", "jitter", "start_at", "end_at", "expires_at",
        "max_fires", "retries", "pause_after_failures", "budget", "thread_id", "tag", "first", "if_silent", "debounce",
        "filters",
    }
)  # fmt: skip
# What fits into a field; `int` reads digits of every script, and as many as there are.
_NUMBER = re.compile(r"-?[0-9]{1,18}")
_FIELDS = {"payload": "payload_json", "tag": "tags"}
SCHEDULES = ("cron", "every", "at", "in", "rrule", "dynamic")


def _text(flag: str, help_: str) -> Any:
    return Annotated[str | None, typer.Option(flag, help=help_)]


def _number(flag: str, help_: str) -> Any:
    return Annotated[int | None, typer.Option(flag, help=help_, parser=_number_or_none, metavar="NUMBER")]


def _number_or_none(text: str) -> int | str:
    if text == NONE:
        return NONE
    if not _NUMBER.fullmatch(text):
        raise typer.BadParameter(f"{text[:40]!r} is not a whole number")
    return int(text)


def _texts(flag: str, help_: str) -> Any:
    return Annotated[list[str] | None, typer.Option(flag, help=help_)]


# By the field of a task's spec; a trailing _ only keeps off Python's own words.
_OPTIONS: dict[str, Any] = {
    "cron": _text("--cron", "A cron expression, in the task's zone."),
    "every": _text("--every", "An interval: 90s, 15m, 1h30m, 1d."),
    "at": _text("--at", "Once, at an ISO instant or a local wall time."),
    "in_": _text("--in", "Once, that long from now."),
    "rrule": _text("--rrule", "A recurrence rule: FREQ=MONTHLY;BYDAY=-1FR;BYHOUR=9."),
    "dynamic": Annotated[bool | None, typer.Option("--dynamic", help="Self-paced: each turn asks for the next.")],
    "first": _text("--first", "Self-paced: how long until it wakes first; default 25m."),
    "if_silent": _text("--if-silent", "Self-paced: end, wait or a duration, for a turn that asks for no next one."),
    "on": _text("--on", "An event it fires for, beside a schedule or without one: turn_end, task.succeeded, your own."),
    "filters": _texts("--filter", "Only if this holds of the event: key=value or key~=pattern."),
    "debounce": _text("--debounce", "How long after an event the next ones go into its fire."),
    "exclude": _texts("--exclude", "A day, days as FROM..TO, or an .ics file: nothing is due then."),
    "prompt": _text("--prompt", "What the agent is to do."),
    "prompt_file": _text("--prompt-file", "The prompt's file; - is stdin."),
    "payload": _text("--payload", "A JSON object, or @FILE."),
    "timezone": _text("--tz", "IANA zone; default the machine's."),
    "catch_up": _text("--catch-up", "skip, run-once (default) or run-all."),
    "catch_up_window": _text("--catch-up-window", "Older misses are skipped."),
    "max_catch_up": _number("--max-catch-up", "Most fires that catch up."),
    "grace": _text("--grace", "How late is still on time."),
    "overlap": _text("--overlap", "coalesce (default), queue, skip or cancel-running."),
    "jitter": _text("--jitter", "Put each fire off by up to that long."),
    "start_at": _text("--start", "No nominal time before."),
    "end_at": _text("--end", "No nominal time after."),
    "expires_at": _text("--expires", "A time, or how long from now."),
    "max_fires": _number("--max-fires", "Done after so many fires."),
    "retries": _number("--retries", "Try a failed turn again, up to 5 times."),
    "pause_after_failures": _number("--pause-after-failures", "Pause after so many failed fires in a row."),
    "budget": _texts("--budget", "A limit that pauses it, as tokens_per_day=100000; turns, seconds, tokens."),
    "thread_id": _text("--thread", "The thread; default the task's own."),
    "agent": _text("--agent", "Whose inbox; default agent0."),
    "read_only": Annotated[bool | None, typer.Option("--read-only/--no-read-only", help="Only tools that read.")],
    "ephemeral": Annotated[bool | None, typer.Option("--ephemeral", help="Gone when the daemon stops.")],
    "tag": _texts("--tag", "A label, as key=value."),
}


def takes_task_options(command: F) -> F:
    """Give a command these options beside its own; they arrive in its `**given`, None where not given."""
    signature = inspect.signature(command)
    own = [each for each in signature.parameters.values() if each.kind is not inspect.Parameter.VAR_KEYWORD]
    added = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
        for name, annotation in _OPTIONS.items()
    ]
    own = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in own]
    command.__signature__ = signature.replace(parameters=own + added)  # type: ignore[attr-defined]
    command.__annotations__.update(_OPTIONS)
    return command


def fill(spec: wire.TaskSpec, given: Mapping[str, Any]) -> None:
    """Write the options that were given into a spec. Raises InvalidInput for those that exclude each other."""
    values = _cleared(spec, {name.rstrip("_"): value for name, value in given.items() if value is not None})
    if len([name for name in SCHEDULES if name in values]) > 1:
        raise InvalidInput("give exactly one schedule", where="schedule", hint=f"one of {flags()}")
    if "prompt" in values and "prompt_file" in values:
        raise InvalidInput("give exactly one of --prompt and --prompt-file", where="prompt")
    if file := values.pop("prompt_file", None):
        spec.prompt = sys.stdin.read() if file == "-" else _read(file)
    if payload := values.pop("payload", None):
        spec.payload_json = _read(payload[1:]) if payload.startswith("@") else payload
    for field, pairs in (("tags", values.pop("tag", None)), ("budget", values.pop("budget", None))):
        if pairs:
            spec.ClearField(field)  # type: ignore[arg-type]
            getattr(spec, field).update(tags_of(pairs) if field == "tags" else _limits_of(pairs))
    _fill_on(spec, values)
    if excluded := values.pop("exclude", None):
        spec.ClearField("exclude")
        # Imported only now: few tasks exclude anything, and reading calendars takes a library.
        spec.exclude.extend(importlib.import_module("task_runner.cli.exclusions").read_exclusions(excluded, Path()))
    for field, value in values.items():
        setattr(spec, field, value)
    if not spec.dynamic and not {"first", "if_silent"} & set(values):
        spec.ClearField("first")  # what only a self-paced task has
        spec.ClearField("if_silent")


def _fill_on(spec: wire.TaskSpec, values: dict[str, Any]) -> None:
    """Write what is given of events into a spec; none takes them out of it, or leaves it with them alone."""
    for kind in SCHEDULES:
        if values.get(kind) == NONE:
            del values[kind]
            spec.ClearField(kind)  # type: ignore[arg-type]
    if values.get("on") in {"", NONE}:
        del values["on"]
        spec.ClearField("on")
        spec.ClearField("filters")
        spec.ClearField("debounce")
    if filters := values.pop("filters", None):
        spec.ClearField("filters")
        spec.filters.extend(filters)


def _cleared(spec: wire.TaskSpec, values: dict[str, Any]) -> dict[str, Any]:
    """Take away what is given as none; return the rest."""
    gone = {name for name, value in values.items() if name in _OPTIONAL and value in (NONE, [NONE])}
    for name in gone:
        spec.ClearField(_FIELDS.get(name, name))  # type: ignore[arg-type]
    return {name: value for name, value in values.items() if name not in gone}


def flags() -> str:
    """Return the options that give a schedule, for a message."""
    return ", ".join(f"--{kind}" for kind in (*SCHEDULES, "on"))


def tags_of(texts: Iterable[str], flag: str = "--tag") -> dict[str, str]:
    """Return `key=value` options as a mapping. Raises InvalidInput."""
    pairs = [text.partition("=") for text in texts]
    for key, equals, value in pairs:
        if not key or not equals or not value:
            raise InvalidInput(f"{key[:60]!r} is not key=value", where=flag)
    return {key: value for key, _, value in pairs}


def _limits_of(texts: Iterable[str]) -> dict[str, int]:
    limits = {}
    for key, value in tags_of(texts, "--budget").items():
        if not (value.isascii() and value.isdigit() and len(value) < 16):
            raise InvalidInput(f"{value[:40]!r} is not a whole number", where="--budget")
        limits[key] = int(value)
    return limits


def _read(file: str) -> str:
    # Imported only now: what it brings along for TOML takes longer to load than most commands take.
    text: str = importlib.import_module("turnkeeper.config.toml_file").read_text(Path(file))
    return text


@takes_task_options
def create(
    name: Annotated[str, typer.Argument(help="Its name: a-z, 0-9 and -, at most 63.")],
    category: Annotated[str, typer.Option("--category", help="What the turn may do.")],
    channel: Annotated[
        str, typer.Option("--channel", help="Where its conversation appears.", autocompletion=complete_channel)
    ],
    paused: Annotated[bool, typer.Option("--paused", help="Create it paused.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be created.")] = False,
    output: console.OutputOption = console.Output.TABLE,
    **given: Any,
) -> None:
    """Create a task: when, with what permissions, where, and what to do.

    Says what it understood and when it fires next. A schedule (--cron, --every, --at, --in, --rrule or --dynamic) or
    an event (--on), and a prompt are required.

    Example: task-runner create digest --cron "0 9 * * 1-5" --category catch-up-summary --channel general
    --prompt "Catch me up."
    """
    spec = wire.TaskSpec(name=name, category=category, channel=channel, paused=paused)
    fill(spec, given)
    if spec.WhichOneof("schedule") is None and not spec.on:
        raise InvalidInput("no schedule", where="create", hint=f"one of {flags()}")
    if given["prompt"] is None and given["prompt_file"] is None:
        raise InvalidInput("give exactly one of --prompt and --prompt-file", where="prompt")
    create_spec(spec, dry_run=dry_run, output=output)


def create_spec(spec: wire.TaskSpec, *, dry_run: bool, output: console.Output, loop: bool = False) -> None:
    """Create a task, or a loop, and say what was understood."""
    chosen = runner()
    answer = chosen.call("CreateTask", wire.CreateTaskRequest(spec=spec, dry_run=dry_run, loop=loop))
    for warning in answer.warnings:
        console.note(f"warning: {warning}")
    row = task_row(answer.task) | {"next": [nominal_row(nominal) for nominal in answer.next]}
    lines = [
        ("loop" if loop else "task", _called(answer.task)),
        ("schedule", answer.task.schedule),
        ("timezone", row["timezone"]),
        ("catch-up", row["catch_up"]),
        *([("if-silent", row["if_silent"])] if row["if_silent"] else []),
        *([("expires", local(row["expires_at"]))] if row["expires_at"] and answer.task.id else []),
        *(("next", f"{local(time(nominal, 'nominal_at'))}") for nominal in answer.next),
        *events_lines(answer.task.spec),
    ]
    console.show_record(row, output, name_key="name", lines=lines)
    if not dry_run:
        chosen.note_unless_serving()


def _called(task: wire.Task) -> str:
    if not task.id:
        return f"{task.spec.name} (not created: dry run)"
    return task.id if task.spec.name == task.id else f"{task.spec.name} ({task.id})"


@takes_task_options
def edit(
    name: NameArgument,
    category: Annotated[str | None, typer.Option("--category", help="What the turn may do.")] = None,
    channel: Annotated[
        str | None, typer.Option("--channel", help="Where its conversation appears.", autocompletion=complete_channel)
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show old and new times side by side.")] = False,
    output: console.OutputOption = console.Output.TABLE,
    **given: Any,
) -> None:
    """Change a task from now on; what is not given stays as it is, and none takes a value away: --max-fires none.

    The old schedule is planned up to now first: nothing in the past becomes due by an edit.

    Example: task-runner edit digest --cron "0 8 * * 1-5" --dry-run
    """
    given |= {"category": category, "channel": channel}
    if all(value is None for value in given.values()):
        raise InvalidInput("nothing to change", where="edit", hint="give an option, for example --cron or --prompt")
    chosen = runner()
    task = chosen.call("GetTask", wire.GetTaskRequest(name=name))
    spec = wire.TaskSpec()
    spec.CopyFrom(task.spec)
    if spec.thread_id == task.id:
        spec.ClearField("thread_id")
    if given["catch_up"] is not None and given["overlap"] is None:
        spec.ClearField("overlap")  # each policy has a default of its own
    fill(spec, given)
    request = wire.UpdateTaskRequest(name=task.id, spec=spec, dry_run=dry_run, revision=task.revision)
    answer = chosen.call("UpdateTask", request)
    for warning in answer.warnings:
        console.note(f"warning: {warning}")
    _show(answer, output, dry_run=dry_run)


def _show(answer: Any, output: console.Output, *, dry_run: bool) -> None:
    sides = {side: [nominal_row(each) for each in getattr(answer, f"{side}_next")] for side in ("old", "new")}
    changed = list(answer.changed_fields)
    if output in {console.Output.JSON, console.Output.JSONL}:
        row = task_row(answer.task) | {"changed": changed, "old_next": sides["old"], "new_next": sides["new"]}
        console.show_record(row, output, name_key="name", lines=[])
        return
    rows = [
        {side: local(sides[side][place]["nominal_at"]) if place < len(sides[side]) else "-" for side in sides}
        for place in range(max(map(len, sides.values())))
    ]
    columns = [
        console.Column("OLD NEXT", lambda row: row["old"]),
        console.Column("NEW NEXT", lambda row: row["new"]),
    ]
    said = f"changes {', '.join(changed)}" if changed else "changes nothing"
    footer = f"{answer.task.spec.name}: {said}{' (dry run: nothing was written)' if dry_run else ''}"
    console.show_rows(rows, columns, output, name_key="new", footer=footer)


def backfill(
    name: NameArgument,
    from_: Annotated[str, typer.Option("--from", help="From this time on.")],
    to: Annotated[str, typer.Option("--to", help="Until this time, which is not included.")],
    all_: Annotated[bool, typer.Option("--all", help="Also times that had a fire.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say how many.")] = False,
    output: console.OutputOption = console.Output.TABLE,
) -> None:
    """Fire for past times that never had a fire: skipped ones, and those before the task was created.

    Example: task-runner backfill digest --from 2026-11-01 --to 2026-11-08 --dry-run
    """
    chosen = runner()
    request = wire.BackfillTaskRequest(name=name, to=to, all=all_, dry_run=dry_run, request_id=SystemEntropy().hex(12))
    setattr(request, "from", from_)
    answer = chosen.call("BackfillTask", request)
    row = {
        "count": answer.count,
        "first_nominal_at": time(answer, "first_nominal_at"),
        "last_nominal_at": time(answer, "last_nominal_at"),
        "fire_ids": list(answer.fire_ids),
    }
    span = f" from {local(row['first_nominal_at'])} to {local(row['last_nominal_at'])}" if answer.count else ""
    lines = [("fires", f"{answer.count}{span}{' (dry run: nothing was written)' if dry_run else ''}")]
    console.show_record(row, output, name_key="count", lines=lines)
    if not dry_run:
        chosen.note_unless_serving()
