"""`simulate`."""

import os
from collections.abc import Iterator
from datetime import datetime, timedelta
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from task_runner.cli.client import all_tasks, complete_name, runner
from task_runner.cli.rows import column, instant, time_column
from task_runner.model.task import Definition
from task_runner.service.simulate import LONGEST, Outage, Row, Span, simulated
from task_runner.service.task_spec import Defaults, parse_spec
from turnkeeper import console
from turnkeeper.errors import InvalidInput
from turnkeeper.times import EPOCH, parse_duration, rfc3339
from turnkeeper.v1 import schedules_pb2 as wire


def simulate(
    from_: Annotated[str, typer.Option("--from", help="From this time on.")],
    to: Annotated[str, typer.Option("--to", help="Until this time, which is not included.")],
    names: Annotated[
        list[str] | None,
        typer.Argument(help="Tasks, or .toml files that declare some; default all.", autocompletion=complete_name),
    ] = None,
    down: Annotated[list[str] | None, typer.Option("--down", help="A time when the runner is down, as T1..T2.")] = None,
    turn: Annotated[str, typer.Option("--turn", help="How long a turn takes.")] = "0s",
    output: console.OutputOption = console.Output.TABLE,
) -> None:
    """Run the planner itself on a virtual clock, and print every fire and skip with its reason. Changes nothing.

    Paused and disabled tasks are simulated as if they were active; every turn succeeds.

    Example: turnkeeper task simulate digest --from 2026-03-28 --to 2026-04-01 --down 2026-03-29T00:00..2026-03-29T06:00
    """
    span = Span(
        start=_instant(from_, "--from"),
        end=_instant(to, "--to"),
        outages=sorted(_outage(text) for text in down or []),
        turn=parse_duration(turn, field="--turn"),
    )
    if not timedelta(0) < span.end - span.start <= LONGEST:
        raise InvalidInput("must be later than --from, by ten years at most", where="--to")
    tasks = _tasks(names or [], span)
    if on := sorted(definition.name for _, definition in tasks if definition.on):
        console.note(f"events are not simulated: {', '.join(on)} would also fire for them")
    found = (row for task in tasks for row in simulated(*task, span))
    rows = sorted(found, key=lambda row: (row.nominal_at, row.task, row.fired_at or row.nominal_at))
    fired = sum(row.fired_at is not None for row in rows)
    skipped = sum(row.stands_for for row in rows if row.outcome.value == "skipped")
    footer = f"{fired} fires, {skipped} scheduled times skipped"
    console.show_rows([_shape(row) for row in rows], _COLUMNS, output, name_key="task", footer=footer)


def _tasks(names: list[str], span: Span) -> list[tuple[str, Definition]]:
    files = [name for name in names if name.endswith(".toml")]
    if files and len(files) == len(names):
        return list(_declared(files, span))
    chosen = runner()
    known = [name for name in names if name not in files]
    found = [chosen.call("GetTask", wire.GetTaskRequest(name=name)) for name in known] or all_tasks()
    return [*((task.id, _definition(task)) for task in found), *_declared(files, span)]


def _declared(files: list[str], span: Span) -> Iterator[tuple[str, Definition]]:
    """Yield the tasks of files, as if they were created when the span begins; this needs no home."""
    if not files:
        return
    # Imported only now: few commands need TOML, or the machine's zone.
    timezone = import_module("task_runner.daemon.reads").machine_zone(os.environ)
    reading: Any = import_module("task_runner.cli.task_file")
    for each in reading.read_declarations(map(Path, files)):
        try:
            yield each.spec.name, parse_spec(each.spec, Defaults(timezone=timezone), span.start, own_id=each.spec.name)
        except InvalidInput as error:
            error.where = each.where(error.where)
            raise


def _definition(task: Any) -> Definition:
    # A schedule that counts from an anchor is read as if it were declared there; any other, before all time.
    declared_at = instant(task.anchor_at) if task.HasField("anchor_at") else EPOCH
    return parse_spec(task.spec, Defaults(timezone=task.spec.timezone), declared_at, own_id=task.id)


def _outage(text: str) -> Outage:
    first, dots, last = text.partition("..")
    outage = Outage(_instant(first, "--down"), _instant(last, "--down")) if dots else None
    if outage is None or outage.end <= outage.start:
        raise InvalidInput(f"{text[:60]!r} is not a span", where="--down", hint="write T1..T2, with T2 later than T1")
    return outage


def _instant(text: str, flag: str) -> datetime:
    try:
        return datetime.fromisoformat(console.time_given(text)).astimezone()
    except (ValueError, OverflowError) as error:
        hint = "write for example 2026-11-21T09:00:00Z, tomorrow 9am, or 2026-11-21 for local time"
        raise InvalidInput(f"{text[:60]!r} is not a time", where=flag, hint=hint) from error


def _shape(row: Row) -> dict[str, Any]:
    return {
        "task": row.task,
        "nominal_at": rfc3339(row.nominal_at),
        "fired_at": None if row.fired_at is None else rfc3339(row.fired_at),
        "outcome": row.outcome.value,
        "reason": row.reason or None,
        "count": row.stands_for,
    }


_COLUMNS = [
    time_column("NOMINAL", "nominal_at"),
    column("TASK", "task"),
    time_column("FIRED", "fired_at"),
    column("OUTCOME", "outcome"),
    column("REASON", "reason", "-"),
    column("COUNT", "count", right=True),
]
