"""`list`, `show`, `next`, `history` and `explain`."""

from collections.abc import Callable
from datetime import datetime
from typing import Annotated, Any

import typer

from protos.turnkeeper.v1 import schedules_pb2 as wire
from task_runner.cli.client import NOT_RUNNING, NameArgument, complete_channel, complete_name, runner
from task_runner.cli.rows import fire_row, local, nominal_row, task_row, time
from task_runner.cli.tasks import tags_of
from task_runner.model.fields import FIELDS, INSTANT
from turnkeeper import console
from turnkeeper.clock import SystemClock
from turnkeeper.errors import Conflict, InvalidInput, Unreachable
from turnkeeper.times import format_rough, parse_rfc3339


def repeat(show: Callable[[], None], clock: SystemClock, every_s: float) -> None:
    """Show something again every few seconds, until interrupted; a runner that is away for a moment ends nothing."""
    while True:
        clock.block(every_s)
        console.console().clear()
        try:
            show()
        except (Unreachable, Conflict) as away:  # Conflict: another process opened the store just now
            console.note(str(away))


_REFRESH_S = 2.0
_LONGEST_PROMPT = 60
Row = Any


def list_(
    category: Annotated[str, typer.Option("--category", help="Only tasks of this category.")] = "",
    channel: Annotated[
        str, typer.Option("--channel", help="Only tasks of this channel.", autocompletion=complete_channel)
    ] = "",
    state: Annotated[str, typer.Option("--state", help="Only tasks in this state.")] = "",
    tag: Annotated[list[str] | None, typer.Option("--tag", help="Only tasks with this label, as key=value.")] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Show it again every two seconds.")] = False,
    limit: console.LimitOption = 1000,
    output: console.OutputOption = console.Output.TABLE,
) -> None:
    """List tasks, next to fire first.

    Example: task-runner list --state active -o wide
    """
    request = wire.ListTasksRequest(
        category=category, channel=channel, state=state, tags=tags_of(tag or []), limit=limit
    )
    clock = SystemClock()
    _show_list(request, clock, output)
    if watch:
        repeat(lambda: _show_list(request, clock, output), clock, _REFRESH_S)


def show(
    name: Annotated[str, typer.Argument(help="Its name or id.", autocompletion=complete_name)],
    output: console.OutputOption = console.Output.TABLE,
) -> None:
    """Show one task whole.

    Example: task-runner show digest -o json
    """
    task = runner().call("GetTask", wire.GetTaskRequest(name=name))
    show_task(task, output)


def show_task(task: Any, output: console.Output) -> None:
    """Print one task."""
    row = task_row(task)
    times = {"next_fire_at", "due_at", "last_fire_at", "created_at"}
    times |= {field.written_as for field in FIELDS if field.kind is INSTANT}
    lines = [(key.replace("_", "-"), local(value) if key in times else _text(value)) for key, value in row.items()]
    console.show_record(row, output, name_key="name", lines=[(key, value) for key, value in lines if value])


def _show_list(request: wire.ListTasksRequest, clock: SystemClock, output: console.Output) -> None:
    chosen = runner()
    answer = chosen.call("ListTasks", request)
    rows = [task_row(task) for task in answer.tasks]
    console.show_rows(rows, _columns(clock.now()), output, name_key="name", footer=_footer(answer))
    if answer.total > len(rows):
        console.note(f"{answer.total - len(rows)} more: raise --limit")


def _columns(now: datetime) -> list[console.Column]:
    def plain(key: str) -> Callable[[Row], str]:
        return lambda row: _text(row[key])

    def left(row: Row) -> str:
        return format_rough(max(0.0, (parse_rfc3339(row["due_at"]) - now).total_seconds())) if row["due_at"] else "-"

    return [
        console.Column("NAME", plain("name")),
        console.Column("SCHEDULE", _schedule),
        console.Column("NEXT", lambda row: local(row["next_fire_at"]) or ("event" if row["on"] else "-")),
        console.Column("LEFT", left),
        console.Column("LAST", lambda row: local(row["last_fire_at"]) or "-"),
        console.Column("RESULT", lambda row: row["last_outcome"] or "-"),
        console.Column("STATE", plain("state")),
        console.Column("CATEGORY", plain("category")),
        console.Column("CHANNEL", plain("channel")),
        console.Column("CATCH-UP", plain("catch_up")),
        console.Column("FIRES", plain("fires"), right=True),
        console.Column("MISSED", plain("missed"), right=True),
        console.Column("ID", plain("id"), wide=True),
        *(console.Column(field.column, plain(field.written_as), wide=True) for field in FIELDS if field.column),
        console.Column("LATE-P95", lambda row: format_rough(row["late_p95_s"]), wide=True, right=True),
        console.Column("PROMPT", lambda row: str(row["prompt"])[:_LONGEST_PROMPT], wide=True),
    ]


def _schedule(row: Row) -> str:
    # Of a self-paced task its climbing number says more than that it has no times.
    return row["schedule"] if row["iteration"] is None else f"{row['schedule']} #{row['iteration']}"


def _footer(answer: wire.ListTasksResponse) -> str:
    parts = [f"{answer.total} task{'' if answer.total == 1 else 's'}"]
    if answer.paused:
        parts.append(f"{answer.paused} paused")
    notes = [", ".join(parts)]
    since = time(answer, "serving_since")
    notes.append(f"task-runner up since {local(since)}" if since else NOT_RUNNING)
    if answer.HasField("decisions_waiting") and answer.decisions_waiting:
        count = answer.decisions_waiting
        notes.append(f"{count} decision{'' if count == 1 else 's'} waiting: agent-runtime approvals list")
    return " · ".join(notes)


def _text(value: object) -> str:
    if value is None or value in ({}, []):
        return ""
    if isinstance(value, list):
        return ", ".join(map(str, value))
    if isinstance(value, dict):
        return " ".join(f"{key}={item}" for key, item in value.items())
    return str(value)


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


def explain(
    name: NameArgument,
    at: Annotated[str, typer.Option("--at", help="The time in question; default the newest that fell due.")] = "",
    output: console.OutputOption = console.Output.TABLE,
) -> None:
    """Say in plain sentences what became, or will become, of a time: which rule decided, and what happened next.

    Example: task-runner explain digest --at 2026-11-20T09:00
    """
    answer = runner().call("ExplainFire", wire.ExplainFireRequest(name=name, at=at))
    row = {
        "at": time(answer, "at"),
        "verdict": answer.verdict,
        "lines": list(answer.lines),
        "revision": answer.revision or None,
        "fire": fire_row(answer.fire) if answer.HasField("fire") else None,
    }
    if output in {console.Output.TABLE, console.Output.WIDE}:
        for line in answer.lines:
            typer.echo(console.plain(line))
        return
    console.show_record(row, output, name_key="verdict", lines=[])
