"""The commands `create` and `edit`, and the options that describe a task."""

import re
import sys
from collections.abc import Callable, Mapping
from keyword import iskeyword
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from task_runner.cli.client import NameArgument, complete_channel, read_file, runner, tags_of
from task_runner.cli.rows import events_lines, local, note_if_idle, row_of, task_row, time
from task_runner.model.fields import BY_NAME, EXCLUSIONS, FIELDS, INSTANT, JSON, SCHEDULES, Field, put
from task_runner.model.task import own_thread
from turnkeeper import console
from turnkeeper.config.surfaces import offered, required
from turnkeeper.errors import InvalidInput
from turnkeeper.v1 import schedules_pb2 as wire

F = TypeVar("F", bound=Callable[..., Any])
# The headings of the help, with their options. Any other option is listed under the last heading.
PANELS = {
    "What to do": "channel prompt prompt_file file payload_json input_json thread_id graph context_json config_json"
    " agent tags",
    "When": "cron every at in rrule dynamic on after filters debounce first if_silent timezone jitter exclude"
    " ignore_calendar start_at end_at",
    "Permissions": "category read_only approval_reminder approval_escalation approval_timeout",
    "If missed, or while the previous fire runs": "catch_up grace catch_up_window max_catch_up overlap",
    "Limits": "paused expires_at max_fires retries pause_after_failures budget queue needs ephemeral",
    "Output": "dry_run output help",
}
NONE = "none"
"""The value of an option that removes a field."""
# Limit the digits, because `int` accepts any number of digits, in every script.
_NUMBER = re.compile(r"-?[0-9]{1,18}")


def _option(field: Field) -> Any:
    if field.kind.type is int:
        option = typer.Option(field.flag, help=field.help, parser=_number_or_none, metavar="NUMBER")
        return Annotated[int | None, option]
    types = {str: str | None, object: str | None, bool: bool | None}
    return Annotated[types.get(field.kind.type, list[str] | None), typer.Option(field.flag, help=field.help)]


def _number_or_none(text: str) -> int | str:
    if text == NONE:
        return NONE
    if not _NUMBER.fullmatch(text):
        raise typer.BadParameter(f"{text[:40]!r} is not a whole number")
    return int(text)


def _options() -> dict[str, Any]:
    """Return the options by the names of their fields. A trailing _ avoids Python's keywords."""
    options: dict[str, Any] = {}
    for field in FIELDS:
        if field.flag:
            options[f"{field.name}_" if iskeyword(field.name) else field.name] = _option(field)
        if field.name == "on":
            help_ = "Follow these tasks, as a,b: fire once each has succeeded, with their answers."
            options["after"] = Annotated[str | None, typer.Option("--after", help=help_)]
        if field.name == "prompt":
            help_ = "A file with the prompt; - means stdin."
            options["prompt_file"] = Annotated[str | None, typer.Option("--prompt-file", help=help_)]
            help_ = "A text file to give with the prompt; can be repeated."
            options["file"] = Annotated[list[str] | None, typer.Option("--file", help=help_)]
    return options


def takes_task_options(command: F) -> F:
    """Add the options of the fields to a command. Its `**given` receives their values; None for an omitted option."""
    console.declared(command, command, {name: (option, None) for name, option in _options().items()})
    command.panels = PANELS  # type: ignore[attr-defined]
    return command


def fill(spec: wire.TaskSpec, given: Mapping[str, Any]) -> None:
    """Set the given options in a spec. Raises InvalidInput for options that exclude each other."""
    values = {name.rstrip("_"): value for name, value in given.items() if value not in (None, [])}
    if sum(name in values for name in SCHEDULES) > 1:
        raise InvalidInput("give exactly one schedule", where="schedule", hint=f"one of {flags()}")
    if "prompt" in values and "prompt_file" in values:
        raise InvalidInput("give exactly one of --prompt and --prompt-file", where="prompt")
    if after := values.pop("after", ""):
        values |= {"on": "task.succeeded", "filters": [*values.get("filters", ()), f"after={after.replace(' ', '')}"]}
    if file := values.pop("prompt_file", ""):
        values["prompt"] = sys.stdin.read() if file == "-" else read_file(file)
    if (files := values.pop("file", [])) or "prompt" in values:
        prompt = values.get("prompt")
        give = required if files else offered
        values["prompt"] = give("prompt with documents", console.named_home(), prompt, files, spec.prompt) or prompt
    cleared = _clear(spec, values)
    for name in (field.name for field in FIELDS if field.name in values and field.name not in cleared):
        put(spec, name, _value(BY_NAME[name], values[name], getattr(spec, name)))
    if not spec.dynamic and not {"first", "if_silent"} & (values.keys() - cleared):
        spec.ClearField("first")  # fields that only a self-paced task has
        spec.ClearField("if_silent")


def _clear(spec: Any, values: Mapping[str, Any]) -> set[str]:
    """Remove the fields whose option is `none`; return their names. Without an event, remove its filters too."""
    cleared = {name for name, value in values.items() if BY_NAME[name].is_clearable and value in (NONE, [NONE])}
    if values.get("on") == "":
        cleared.add("on")
    for name in (*cleared, *(("filters", "debounce") if "on" in cleared else ())):
        spec.ClearField(name)
    return cleared


def _value(field: Field, value: Any, held: Any) -> Any:
    """Return the value of an option. Of pairs, those with other keys stay, and `none` removes the pair of a key."""
    if field.kind is JSON:
        return read_file(value[1:]) if value.startswith("@") else value
    if field.kind is INSTANT or field.name == "at":
        return console.time_given(value)
    if field.kind is EXCLUSIONS:
        return required("exclusions", value, Path())
    if field.kind.type not in {dict[str, str], dict[str, int]}:
        return value
    pairs = tags_of(value, field.flag)
    new = {key: text for key, text in pairs.items() if text != NONE or key not in held}
    kept = {key: old for key, old in held.items() if key not in pairs}
    return kept | (_limits_of(new, field.flag) if field.kind.type == dict[str, int] else new)


def flags() -> str:
    """Return the options that give a schedule, for a message."""
    return ", ".join(f"--{kind}" for kind in (*SCHEDULES, "on"))


def _limits_of(pairs: Mapping[str, str], flag: str) -> dict[str, int]:
    limits = {}
    for key, value in pairs.items():
        if (amount := offered("amount of money", key, value)) is not None:
            limits[key] = amount
            continue
        if not (value.isascii() and value.isdigit() and len(value) < 16):
            what = "an amount, such as 2.50" if key.startswith("money") else "a whole number"
            raise InvalidInput(f"{value[:40]!r} is not {what}", where=flag)
        limits[key] = int(value)
    return limits


@takes_task_options
def create(
    name: Annotated[str, typer.Argument(help="Its name: a-z, 0-9 and -, at most 63.")],
    category: Annotated[str, typer.Option(help="The permissions of the turn: turnkeeper categories list.")],
    channel: Annotated[str, typer.Option(help="The channel of its conversation.", autocompletion=complete_channel)],
    paused: Annotated[bool, typer.Option(help="Create it paused.")] = False,
    dry_run: Annotated[bool, typer.Option(help="Only show what would be created.")] = False,
    output: console.OutputOption = console.Output.TABLE,
    **given: Any,
) -> None:
    """Create a task with its schedule, permissions, channel and instructions.

    Prints the parsed task and its next times; with -q only its name. A schedule (--cron, --every, --at, --in, --rrule
    or --dynamic) or an event (--on), and a prompt are required. A graph that takes no prompt needs --input or
    --payload.

    Example: turnkeeper task create digest --cron "0 9 * * 1-5" --category catch-up-summary --channel general
    --prompt "Catch me up."
    """
    spec = wire.TaskSpec(name=name, category=category, channel=channel, paused=paused)
    fill(spec, given)
    if spec.WhichOneof("schedule") is None and not spec.on:
        raise InvalidInput("no schedule", where="create", hint=f"one of {flags()}")
    if all(given[name] is None for name in ("prompt", "prompt_file", "input_json", "payload_json")):
        raise InvalidInput("give exactly one of --prompt and --prompt-file", where="prompt")
    create_spec(spec, dry_run=dry_run, output=output)


def create_spec(spec: wire.TaskSpec, *, dry_run: bool, output: console.Output, loop: bool = False) -> None:
    """Create a task or a loop, and show the parsed task."""
    chosen = runner()
    answer = chosen.call(wire.CreateTaskRequest(spec=spec, dry_run=dry_run, loop=loop))
    for warning in [*answer.warnings, *((spec.cron and offered("words on cron", spec.cron)) or ())]:
        console.note(f"warning: {warning}")
    row = task_row(answer.task) | {"next": [row_of(nominal) for nominal in answer.next]}
    lines = [
        ("loop" if loop else "task", _called(answer.task)),
        ("schedule", answer.task.schedule),
        ("timezone", row["timezone"]),
        ("catch-up", row["catch_up"]),
        *([("if-silent", row["if_silent"])] if row["if_silent"] else []),
        *([("expires", local(row["expires_at"]))] if row["expires_at"] and answer.task.id else []),
        *(("next", f"{local(time(nominal, 'nominal_at'), day=True)}") for nominal in answer.next),
        *events_lines(answer.task.spec, answer.task.schedule),
    ]
    alone = console.is_quiet() and output in {console.Output.TABLE, console.Output.WIDE}
    console.show_record(row, console.Output.NAME if alone else output, name_key="name", lines=lines)
    note_if_idle(answer.task)
    if loop and not dry_run:
        console.note(f"run it now: turnkeeper task run {answer.task.id}")
        console.note(f"stop it: turnkeeper loop stop {answer.task.id}")
    if not dry_run:
        chosen.note_unless_serving()


def _called(task: wire.Task) -> str:
    if not task.id:
        return f"{task.spec.name} (not created: dry run)"
    return task.id if task.spec.name == task.id else f"{task.spec.name} ({task.id})"


@takes_task_options
def edit(
    name: NameArgument,
    category: Annotated[
        str | None, typer.Option(help="The permissions of the turn: turnkeeper categories list.")
    ] = None,
    channel: Annotated[
        str | None, typer.Option(help="The channel of its conversation.", autocompletion=complete_channel)
    ] = None,
    dry_run: Annotated[bool, typer.Option(help="Only show old and new times side by side.")] = False,
    output: console.OutputOption = console.Output.TABLE,
    **given: Any,
) -> None:
    """Change a task from now on. Omitted options stay unchanged; none removes a value: --max-fires none.

    An edit does not make a past time due: up to now, the old schedule applies.

    Example: turnkeeper task edit digest --cron "0 8 * * 1-5" --dry-run
    """
    given |= {"category": category, "channel": channel}
    if all(value is None for value in given.values()):
        raise InvalidInput("nothing to change", where="edit", hint="give an option, for example --cron or --prompt")
    chosen = runner()
    task = chosen.call(wire.GetTaskRequest(name=name))
    spec = wire.TaskSpec()
    spec.CopyFrom(task.spec)
    if spec.thread_id == own_thread(task.id, spec.graph):
        spec.ClearField("thread_id")
    if given["catch_up"] is not None and given["overlap"] is None:
        spec.ClearField("overlap")  # each policy has its own default
    fill(spec, given)
    request = wire.UpdateTaskRequest(name=task.id, spec=spec, dry_run=dry_run, revision=task.revision)
    answer = chosen.call(request)
    cron = given["cron"] and answer.task.spec.cron
    for warning in [*answer.warnings, *((cron and offered("words on cron", cron)) or ())]:
        console.note(f"warning: {warning}")
    _show(answer, output, dry_run=dry_run)


def _show(answer: Any, output: console.Output, *, dry_run: bool) -> None:
    sides = {side: [row_of(each) for each in getattr(answer, f"{side}_next")] for side in ("old", "new")}
    changed = [name.removesuffix("_json") for name in answer.changed_fields]
    if output in {console.Output.JSON, console.Output.JSONL}:
        row = task_row(answer.task) | {"changed": changed, "old_next": sides["old"], "new_next": sides["new"]}
        console.show_record(row, output, name_key="name", lines=[])
        return
    rows = [
        {side: local(sides[side][place]["nominal_at"], day=True) if place < len(sides[side]) else "-" for side in sides}
        for place in range(max(map(len, sides.values())))
    ]
    columns = [console.Column("OLD NEXT", lambda row: row["old"]), console.Column("NEW NEXT", lambda row: row["new"])]
    names = (re.sub("_(json|at|id)$", "", name).replace("_", "-") for name in answer.changed_fields)
    named = ", ".join("event" if name == "on" else name for name in names)
    what = f"{named or 'nothing'} {'would be changed' if dry_run else 'changed'}"
    written = " (dry run: nothing was written)" if dry_run else ""
    if sides["old"] == sides["new"]:
        fires = rows and answer.task.state == "active"
        rows, upcoming = [], f"; its times stay the same, next {rows[0]['new']}" if fires else ""
        footer = f"{answer.task.spec.name}: {what}{upcoming}{written}"
    else:
        footer = f"{answer.task.spec.name}: {what}{written or f', now {answer.task.schedule}'}"
    console.show_rows(rows, columns, output, name_key="new", footer=footer)
    note_if_idle(answer.task)
