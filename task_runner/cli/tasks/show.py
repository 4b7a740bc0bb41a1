"""`list` and `show`.

Showing a list again and again.
"""

from collections.abc import Callable
from datetime import datetime
from typing import Annotated, Any

import typer

from protos.turnkeeper.v1 import schedules_pb2 as wire
from task_runner.cli.client import NOT_RUNNING, runner
from task_runner.cli.rows import local, task_row, time
from task_runner.cli.tasks.options import tags_of
from turnkeeper import console
from turnkeeper.clock import SystemClock
from turnkeeper.errors import Conflict, Unreachable
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


def complete_name(incomplete: str) -> list[str]:
    """Return the names that a task's name may be completed to."""
    answer = runner().call("ListTasks", wire.ListTasksRequest())
    return [task.spec.name for task in answer.tasks if task.spec.name.startswith(incomplete)]


def complete_channel(incomplete: str) -> list[str]:
    """Return the channels of tasks that a channel's name may be completed to."""
    answer = runner().call("ListTasks", wire.ListTasksRequest())
    return sorted({task.spec.channel for task in answer.tasks if task.spec.channel.startswith(incomplete)})


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
    times = {"next_fire_at", "due_at", "last_fire_at", "created_at", "start_at", "end_at", "expires_at"}
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
        console.Column("TZ", plain("timezone"), wide=True),
        console.Column("OVERLAP", plain("overlap"), wide=True),
        console.Column("THREAD", plain("thread_id"), wide=True),
        console.Column("AGENT", plain("agent"), wide=True),
        console.Column("JITTER", plain("jitter"), wide=True),
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


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("list")(list_)
    app.command()(show)
