"""`pause`, `resume`, `disable`, `cancel`, `enable`, `delete` and `run`."""

from typing import Annotated, Any

import typer

from protos.turnkeeper.v1 import schedules_pb2 as wire
from task_runner.cli.client import Runner, runner
from task_runner.cli.rows import fire_row
from task_runner.cli.tasks.show import complete_name, show_task
from turnkeeper import console
from turnkeeper.clock import SystemClock
from turnkeeper.entropy import SystemEntropy
from turnkeeper.errors import EXIT_DENIED, EXIT_FAILURE, InvalidInput

NameArgument = Annotated[str, typer.Argument(help="A task's name or id.", autocompletion=complete_name)]
_POLL_S = 0.1
_OPEN = frozenset({"waiting", "pending", "sent", "accepted", "running"})
_FOR_AUTHOR = frozenset({"interrupted", "held"})


def pause(
    name: NameArgument,
    note: Annotated[str, typer.Option("--note", help="Why, for whoever resumes it.")] = "",
    until: Annotated[str, typer.Option("--until", help="When it comes back by itself.")] = "",
    output: console.OutputOption = console.Output.TABLE,
) -> None:
    """Pause a task; what comes due meanwhile is skipped.

    Example: task-runner pause digest --note holidays --until 2026-12-27T09:00
    """
    _change("PauseTask", wire.PauseTaskRequest(name=name, note=note, until=until), output, "paused")


def resume(
    name: NameArgument,
    replay: Annotated[bool, typer.Option("--replay", help="Catch up on what came due while it stood still.")] = False,
    output: console.OutputOption = console.Output.TABLE,
) -> None:
    """Let a paused task fire again; what came due meanwhile is one recorded skip, or with --replay was missed.

    Example: task-runner resume digest --replay
    """
    _change("ResumeTask", wire.ResumeTaskRequest(name=name, replay=replay), output, "resumed")


def disable(
    name: NameArgument,
    cancel_running: Annotated[bool, typer.Option("--cancel-running", help="Cancel its running turn too.")] = False,
    output: console.OutputOption = console.Output.TABLE,
) -> None:
    """Stop a task from firing, until it is enabled. Its thread, channel and history stay.

    Example: task-runner disable digest
    """
    request = wire.DisableTaskRequest(name=name, cancel_running=cancel_running)
    _change("DisableTask", request, output, "disabled")


def cancel(name: NameArgument, output: console.OutputOption = console.Output.TABLE) -> None:
    """Stop a task from firing and cancel its running turn at its next await.

    Example: task-runner cancel digest
    """
    _change("DisableTask", wire.DisableTaskRequest(name=name, cancel_running=True), output, "cancelled")


def enable(name: NameArgument, output: console.OutputOption = console.Output.TABLE) -> None:
    """Let a disabled task fire again, on the same thread.

    Example: task-runner enable digest
    """
    _change("EnableTask", wire.EnableTaskRequest(name=name), output, "enabled")


def delete(name: NameArgument, output: console.OutputOption = console.Output.TABLE) -> None:
    """Delete a task; its history stays readable by its id, and a running turn finishes.

    Example: task-runner delete digest
    """
    _change("DeleteTask", wire.DeleteTaskRequest(name=name), output, "deleted")


def run(
    name: NameArgument,
    wait: Annotated[bool, typer.Option("--wait", help="Follow it: 0 succeeded, 1 failed, 7 for the author.")] = False,
    output: console.OutputOption = console.Output.TABLE,
) -> int:
    """Fire a task now, beside its schedule.

    With --wait: exits with 0 when it succeeded, 1 when it failed, 7 when it waits for you.

    Example: task-runner run digest --wait
    """
    chosen = runner()
    if wait and not chosen.serving:
        raise InvalidInput("nothing would fire it: no daemon runs", where="--wait", hint="start it: turnkeeper up")
    fire = chosen.call("RunTask", wire.RunTaskRequest(name=name, request_id=SystemEntropy().hex(12)))
    if wait:
        fire = _follow(chosen, fire)
    row = fire_row(fire)
    lines = [(key, str(row[key])) for key in ("fire_id", "outcome", "reason", "turn_id") if row[key]]
    console.show_record(row, output, name_key="fire_id", lines=lines)
    chosen.note_unless_serving()
    if not wait or fire.outcome == "succeeded":
        return 0
    return EXIT_DENIED if fire.outcome in _FOR_AUTHOR else EXIT_FAILURE


def _follow(chosen: Runner, fire: Any) -> Any:
    clock = SystemClock()
    with console.status(f"waiting for {fire.fire_id}"):
        while fire.outcome in _OPEN:
            clock.block(_POLL_S)
            fire = chosen.call("GetFire", wire.GetFireRequest(fire_id=fire.fire_id))
    return fire


def _change(method: str, request: Any, output: console.Output, done: str) -> None:
    chosen = runner()
    task = chosen.call(method, request)
    if output in {console.Output.TABLE, console.Output.WIDE}:
        typer.echo(f"{console.plain(task.spec.name)} {done}")
    else:
        show_task(task, output)
    if done in {"resumed", "enabled"}:
        chosen.note_unless_serving()


def register(app: typer.Typer) -> None:
    """Add the commands."""
    for command in (pause, resume, disable, cancel, enable, delete, run):
        app.command()(command)
