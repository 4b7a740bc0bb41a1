"""`next` and `history`."""

from typing import Annotated

import typer

from protos.turnkeeper.v1 import schedules_pb2 as wire
from task_runner.cli.client import runner
from task_runner.cli.rows import fire_row, local, nominal_row
from task_runner.cli.tasks.show import complete_name
from turnkeeper import console
from turnkeeper.errors import InvalidInput
from turnkeeper.times import format_rough, parse_rfc3339


def next_(
    name: Annotated[str | None, typer.Argument(help="A task's name or id.", autocompletion=complete_name)] = None,
    cron: Annotated[str | None, typer.Option("--cron", help="A cron expression instead of a task.")] = None,
    every: Annotated[str | None, typer.Option("--every", help="An interval instead of a task.")] = None,
    rrule: Annotated[str | None, typer.Option("--rrule", help="A recurrence rule instead of a task.")] = None,
    tz: Annotated[str | None, typer.Option("--tz", help="IANA zone for the expression.")] = None,
    from_: Annotated[str | None, typer.Option("--from", help="Times after this instant instead of now.")] = None,
    limit: console.LimitOption = 5,
    output: console.OutputOption = console.Output.TABLE,
) -> None:
    """Preview the next times of a task, or of a schedule, without creating anything.

    Example: task-runner next --cron "30 2 * * *" --tz Europe/Riga -n 3
    """
    if sum(given is not None for given in (name, cron, every, rrule)) != 1:
        raise InvalidInput("give exactly one of a task's name, --cron, --every and --rrule", where="next")
    request = wire.PreviewScheduleRequest(name=name or "", count=limit)
    if cron is not None:
        request.spec.cron = cron
    if every is not None:
        request.spec.every = every
    if rrule is not None:
        request.spec.rrule = rrule
    if tz is not None:
        request.spec.timezone = tz
    if from_ is not None:
        getattr(request, "from").FromDatetime(_instant(from_))
    answer = runner().call("PreviewSchedule", request)
    rows = [nominal_row(nominal) for nominal in answer.nominals]
    columns = [
        console.Column("NEXT", lambda row: local(row["nominal_at"])),
        console.Column(f"IN {answer.timezone}", lambda row: row["local"]),
        console.Column("DUE", lambda row: local(row["due_at"]), wide=True),
    ]
    console.show_rows(rows, columns, output, name_key="nominal_at", footer=answer.schedule)
    if answer.HasField("on"):
        console.note(f"fires when {answer.on} comes{'' if not rows else ', beside these times'}")


def history(
    name: Annotated[str, typer.Argument(help="A task's name or id.", autocompletion=complete_name)],
    limit: console.LimitOption = 50,
    output: console.OutputOption = console.Output.TABLE,
) -> None:
    """Show what fired, what did not, and why; newest first.

    Example: task-runner history digest -o json
    """
    answer = runner().call("ListFires", wire.ListFiresRequest(name=name, limit=limit))
    rows = [fire_row(fire) for fire in answer.fires]
    console.show_rows(rows, _COLUMNS, output, name_key="fire_id")


_COLUMNS = [
    console.Column("NOMINAL", lambda row: local(row["nominal_at"])),
    console.Column("FIRED", lambda row: local(row["fired_at"]) or "-"),
    console.Column("LATE", lambda row: "-" if row["late_s"] is None else format_rough(row["late_s"]), right=True),
    console.Column("OUTCOME", lambda row: row["outcome"]),
    console.Column("REASON", lambda row: row["reason"] or "-"),
    console.Column("COUNT", lambda row: str(row["count"]), right=True),
    console.Column("KIND", lambda row: row["kind"]),
    console.Column("TRY", lambda row: str(row["attempt"]), right=True),
    console.Column("FIRE", lambda row: row["fire_id"] or "-", wide=True),
    console.Column("FIRST", lambda row: local(row["first_nominal_at"]), wide=True),
    console.Column("LAST", lambda row: local(row["last_nominal_at"]), wide=True),
    console.Column("ENDED", lambda row: local(row["ended_at"]) or "-", wide=True),
    console.Column("TURN", lambda row: row["turn_id"] or "-", wide=True),
]


def _instant(text: str) -> object:
    try:
        return parse_rfc3339(text)
    except ValueError as error:
        hint = "write for example 2026-11-21T09:00:00Z"
        raise InvalidInput(f"{text[:60]!r} is not an instant", where="--from", hint=hint) from error


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("next")(next_)
    app.command()(history)
