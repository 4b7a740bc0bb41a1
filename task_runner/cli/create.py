"""`create`: a task from options."""

import importlib
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from protos.turnkeeper.v1 import schedules_pb2 as wire
from task_runner.cli.api import runner
from task_runner.cli.shapes import local, nominal_row, task_row, time
from turnkeeper import console
from turnkeeper.errors import InvalidInput

_SCHEDULES = ("cron", "every", "at", "in")


def create(
    name: Annotated[str, typer.Argument(help="Its name: a-z, 0-9 and -, at most 63.")],
    category: Annotated[str, typer.Option("--category", help="What the turn may do.")],
    channel: Annotated[str, typer.Option("--channel", help="Where its conversation appears.")],
    cron: Annotated[str | None, typer.Option("--cron", help="A cron expression, in the task's zone.")] = None,
    every: Annotated[str | None, typer.Option("--every", help="An interval: 90s, 15m, 1h30m, 1d.")] = None,
    at: Annotated[str | None, typer.Option("--at", help="Once, at an ISO instant or a local wall time.")] = None,
    in_: Annotated[str | None, typer.Option("--in", help="Once, that long from now.")] = None,
    prompt: Annotated[str | None, typer.Option("--prompt", help="What the agent is to do.")] = None,
    prompt_file: Annotated[str | None, typer.Option("--prompt-file", help="The prompt's file; - is stdin.")] = None,
    payload: Annotated[str | None, typer.Option("--payload", help="A JSON object, or @FILE.")] = None,
    tz: Annotated[str | None, typer.Option("--tz", help="IANA zone; default the machine's.")] = None,
    catch_up: Annotated[str | None, typer.Option("--catch-up", help="skip, run-once (default) or run-all.")] = None,
    catch_up_window: Annotated[str | None, typer.Option("--catch-up-window", help="Older misses are skipped.")] = None,
    max_catch_up: Annotated[int | None, typer.Option("--max-catch-up", help="Most fires that catch up.")] = None,
    grace: Annotated[str | None, typer.Option("--grace", help="How late is still on time.")] = None,
    overlap: Annotated[str | None, typer.Option("--overlap", help="coalesce (default) or queue.")] = None,
    start: Annotated[str | None, typer.Option("--start", help="No nominal time before.")] = None,
    end: Annotated[str | None, typer.Option("--end", help="No nominal time after.")] = None,
    expires: Annotated[str | None, typer.Option("--expires", help="A time, or how long from now.")] = None,
    max_fires: Annotated[int | None, typer.Option("--max-fires", help="Done after so many fires.")] = None,
    thread: Annotated[str | None, typer.Option("--thread", help="The thread; default the task's own.")] = None,
    agent: Annotated[str | None, typer.Option("--agent", help="Whose inbox; default agent0.")] = None,
    read_only: Annotated[bool, typer.Option("--read-only", help="Leave only tools that read.")] = False,
    paused: Annotated[bool, typer.Option("--paused", help="Create it paused.")] = False,
    tag: Annotated[list[str] | None, typer.Option("--tag", help="A label, as key=value.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be created.")] = False,
    output: console.OutputOption = console.Output.TABLE,
) -> None:
    """Create a task: when, with what permissions, where, and what to do.

    Says what it understood and when it fires next. One of --cron, --every, --at and --in, and a prompt, are required.

    Example: task-runner create digest --cron "0 9 * * 1-5" --category catch-up-summary --channel general
    --prompt "Catch me up."
    """
    given = {"cron": cron, "every": every, "at": at, "in": in_}
    spec = wire.TaskSpec(
        name=name, category=category, channel=channel, prompt=_prompt(prompt, prompt_file), paused=paused
    )
    optional: dict[str, Any] = {
        **_one_schedule(given), "timezone": tz, "catch_up": catch_up, "catch_up_window": catch_up_window,
        "max_catch_up": max_catch_up, "grace": grace, "overlap": overlap, "start_at": start, "end_at": end,
        "expires_at": expires, "max_fires": max_fires, "thread_id": thread, "agent": agent,
    }  # fmt: skip
    for field, value in optional.items():
        if value is not None:
            setattr(spec, field, value)
    if read_only:
        spec.read_only = True
    if payload:
        spec.payload_json = _read(payload[1:]) if payload.startswith("@") else payload
    spec.tags.update(tags_of(tag or []))
    _create(spec, dry_run=dry_run, output=output)


def tags_of(texts: list[str]) -> dict[str, str]:
    """Return `key=value` options as a mapping. Raises InvalidInput."""
    pairs = [text.partition("=") for text in texts]
    for key, equals, value in pairs:
        if not key or not equals or not value:
            raise InvalidInput(f"{key[:60]!r} is not key=value", where="--tag")
    return {key: value for key, _, value in pairs}


def _create(spec: wire.TaskSpec, *, dry_run: bool, output: console.Output) -> None:
    chosen = runner()
    answer = chosen.call("CreateTask", wire.CreateTaskRequest(spec=spec, dry_run=dry_run))
    for warning in answer.warnings:
        console.note(f"warning: {warning}")
    row = task_row(answer.task) | {"next": [nominal_row(nominal) for nominal in answer.next]}
    lines = [
        ("task", f"{spec.name} ({answer.task.id})" if answer.task.id else f"{spec.name} (not created: dry run)"),
        ("schedule", answer.task.schedule),
        ("timezone", row["timezone"]),
        ("catch-up", row["catch_up"]),
        *(("next", f"{local(time(nominal, 'nominal_at'))}") for nominal in answer.next),
    ]
    console.show_record(row, output, name_key="name", lines=lines)
    if not dry_run:
        chosen.note_unless_serving()


def _one_schedule(given: dict[str, str | None]) -> dict[str, str]:
    named = {kind: text for kind, text in given.items() if text is not None}
    if len(named) != 1:
        flags = ", ".join(f"--{kind}" for kind in _SCHEDULES)
        raise InvalidInput(
            "give exactly one schedule" if named else "no schedule", where="create", hint=f"one of {flags}"
        )
    return named


def _prompt(text: str | None, file: str | None) -> str:
    if (text is None) == (file is None):
        raise InvalidInput("give exactly one of --prompt and --prompt-file", where="prompt")
    if text is not None:
        return text
    return sys.stdin.read() if file == "-" else _read(str(file))


def _read(file: str) -> str:
    # Imported only now: what it brings along for TOML takes longer to load than most commands take.
    text: str = importlib.import_module("turnkeeper.tomlfile").read_text(Path(file))
    return text


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(create)
