"""`loop list`: what comes next, with what is left until then."""

from collections.abc import Callable
from datetime import datetime
from typing import Annotated, Any

import typer

from protos.turnkeeper.v1 import schedules_pb2 as wire
from task_runner.cli.client import NOT_RUNNING, runner
from task_runner.cli.rows import local, task_row, time
from task_runner.cli.tasks.show import repeat
from turnkeeper import console
from turnkeeper.clock import SystemClock
from turnkeeper.times import format_rough, parse_rfc3339

_REFRESH_S = 1.0
_LONGEST_PROMPT = 60
_ENDED = frozenset({"done", "expired"})
_MODES = {"every": "fixed", "on": "event"}
Row = Any


def is_loop(task: Any) -> bool:
    """Tell whether a task is a loop: made as one, or self-paced."""
    return bool(task.id.startswith("loop-") or task.kind == "dynamic")


def complete_loop(incomplete: str) -> list[str]:
    """Return the names that a loop's name may be completed to."""
    tasks = runner().call("ListTasks", wire.ListTasksRequest()).tasks
    return [task.spec.name for task in tasks if is_loop(task) and task.spec.name.startswith(incomplete)]


def list_(
    all_: Annotated[bool, typer.Option("--all", help="Also those that have ended.")] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Show it again every second.")] = False,
    output: console.OutputOption = console.Output.TABLE,
) -> None:
    """List loops, next to fire first.

    Example: task-runner loop list --watch
    """
    clock = SystemClock()
    _show(clock, output, ended=all_)
    if watch:
        repeat(lambda: _show(clock, output, ended=all_), clock, _REFRESH_S)


def loop_row(task: Any) -> dict[str, Any]:
    """Return a loop as a task's row, with what is particular to loops."""
    row = task_row(task)
    mode = "hybrid" if task.kind != "on" and row.get("on") else _MODES.get(task.kind, task.kind)
    paced = task.kind == "dynamic"
    return row | {"mode": mode, "iteration": task.iteration if paced else task.fires}


def _show(clock: SystemClock, output: console.Output, *, ended: bool) -> None:
    answer = runner().call("ListTasks", wire.ListTasksRequest())
    loops = [task for task in answer.tasks if is_loop(task)]
    rows = [loop_row(task) for task in loops if ended or task.state not in _ENDED]
    rows.sort(key=lambda row: (row["next_fire_at"] is None, row["due_at"] or "", row["id"]))
    hidden = len(loops) - len(rows)
    notes = [f"{len(rows)} loop{'' if len(rows) == 1 else 's'}", *([f"{hidden} ended: --all"] if hidden else [])]
    since = time(answer, "serving_since")
    notes.append(f"task-runner up since {local(since)}" if since else NOT_RUNNING)
    console.show_rows(rows, _columns(clock.now()), output, name_key="id", footer=" · ".join(notes))


def _columns(now: datetime) -> list[console.Column]:
    def plain(key: str) -> Callable[[Row], str]:
        return lambda row: str(row[key] or "")

    def left(row: Row) -> str:
        return format_rough(max(0.0, (parse_rfc3339(row["due_at"]) - now).total_seconds())) if row["due_at"] else "-"

    return [
        console.Column("ID", plain("id")),
        console.Column("MODE", plain("mode")),
        console.Column("TARGET", plain("agent")),
        console.Column("INTERVAL", lambda row: row["schedule"].removesuffix(", exactly")),
        console.Column("NEXT", lambda row: local(row["next_fire_at"]) or "-"),
        console.Column("LEFT", left),
        console.Column("LAST", lambda row: local(row["last_fire_at"]) or "-"),
        console.Column("ITERATION", lambda row: f"#{row['iteration']}", right=True),
        console.Column("STATE", plain("state")),
        console.Column("PROMPT", lambda row: row["prompt"][:_LONGEST_PROMPT]),
        console.Column("NAME", plain("name"), wide=True),
        console.Column("RESULT", plain("last_outcome"), wide=True),
        console.Column("CATEGORY", plain("category"), wide=True),
        console.Column("CHANNEL", plain("channel"), wide=True),
        console.Column("THREAD", plain("thread_id"), wide=True),
        console.Column("REASON", plain("reason"), wide=True),
    ]
