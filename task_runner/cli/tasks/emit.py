"""`emit`."""

import importlib
from pathlib import Path
from typing import Annotated

import typer

from protos.turnkeeper.v1 import schedules_pb2 as wire
from task_runner.cli.client import runner
from turnkeeper import console
from turnkeeper.entropy import SystemEntropy
from turnkeeper.errors import InvalidInput


def emit(
    event: Annotated[str, typer.Argument(help="Its name: a-z, 0-9, _, ., : and -, a letter first, at most 64.")],
    data: Annotated[str | None, typer.Option("--data", help="A JSON object, or @FILE, at most 64 KiB.")] = None,
    id_: Annotated[str | None, typer.Option("--id", help="Told again under this id, it is taken once.")] = None,
    output: console.OutputOption = console.Output.TABLE,
) -> None:
    """Tell of something that happened: every task that listens for it fires, as its filters and debounce say.

    Example: task-runner emit deploy --data '{"branch": "main"}' --id build-4711
    """
    if id_ == "":
        raise InvalidInput("must not be empty", where="--id", hint="leave it out for a new one")
    # One id for all the times that the call is tried.
    request = wire.EmitEventRequest(name=event, data_json=_read(data), event_id=id_ or SystemEntropy().hex(12))
    chosen = runner()
    answer = chosen.call("EmitEvent", request)
    row = {"event": event, "id": answer.event_id, "duplicate": answer.duplicate, "matched": answer.matched}
    tasks = "no task" if not answer.matched else f"{answer.matched} task{'s' if answer.matched > 1 else ''}"
    said = "was taken before: nothing happens" if answer.duplicate else f"triggers {tasks}"
    console.show_record(row, output, name_key="id", lines=[("event", event), ("id", answer.event_id), ("it", said)])
    chosen.note_unless_serving()


def _read(data: str | None) -> str:
    if data is None or not data.startswith("@"):
        return data or ""
    # Imported only now: what it brings along for TOML takes longer to load than the call takes.
    text: str = importlib.import_module("turnkeeper.config.toml_file").read_text(Path(data[1:]))
    return text


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(emit)
