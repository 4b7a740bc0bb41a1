"""`loop`: prompts that come again and again, made with few words."""

import sys
from typing import Annotated, Any

import typer

from protos.turnkeeper.v1 import schedules_pb2 as wire
from task_runner.cli.client import Runner, runner
from task_runner.cli.loop_list import complete_loop, is_loop, list_
from task_runner.cli.loop_words import read_words, schedule_of
from task_runner.cli.rows import local, time
from task_runner.cli.serve import tick
from task_runner.cli.tasks.create import create_spec
from task_runner.cli.tasks.options import SCHEDULES, fill, takes_task_options
from task_runner.cli.tasks.show import complete_channel, show_task
from turnkeeper import console
from turnkeeper.errors import InvalidInput
from turnkeeper.times import parse_duration

IdArgument = Annotated[str, typer.Argument(help="A loop's id or name.", autocompletion=complete_loop)]


@takes_task_options
def create(
    words: Annotated[
        list[str] | None, typer.Argument(help="15m PROMPT, '0 9 * * 1-5' PROMPT, 'PROMPT every 2 hours', or PROMPT.")
    ] = None,
    name: Annotated[str, typer.Option("--name", help="Its name; default its id.")] = "",
    category: Annotated[str, typer.Option("--category", help="What the turn may do; default loop.")] = "",
    channel: Annotated[str, typer.Option("--channel", help="Default general.", autocompletion=complete_channel)] = "",
    paused: Annotated[bool, typer.Option("--paused", help="Create it paused.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be created.")] = False,
    output: console.OutputOption = console.Output.TABLE,
    **given: Any,
) -> None:
    """Create a loop: on an interval, on a cron expression, or at its own pace when the words name no time.

    Nothing is rounded: "7m" is every 7 minutes, exactly. A self-paced loop starts at once; each of its turns asks for
    the next, and it ends when one does not.

    Example: task-runner loop create 15m "check the build and report what changed"
    """
    spec = wire.TaskSpec(name=name, category=category, channel=channel, paused=paused)
    fill(spec, given | _understood(words or [], given))
    create_spec(spec, dry_run=dry_run, output=output, loop=True)


def _understood(words: list[str], given: dict[str, Any]) -> dict[str, Any]:
    """Return the options that the words stand for, beside those that were given."""
    scheduled = any(given.get("in_" if kind == "in" else kind) for kind in SCHEDULES)
    prompted = given["prompt"] is not None or given["prompt_file"] is not None
    if words and scheduled and prompted:
        raise InvalidInput("is given twice", where="prompt", hint="leave the words or --prompt out")
    if words and scheduled:
        return {"prompt": " ".join(words)}
    if prompted and (scheduled or given.get("on")) and not words:
        return {}
    kind, schedule, prompt = schedule_of(words) if prompted else read_words(words)
    # What waits for an event needs no time beside it.
    pace = {} if kind == "dynamic" and given.get("on") else {kind: schedule or True}
    return pace if prompted else pace | {"prompt": prompt}


def delete(loop: IdArgument, output: console.OutputOption = console.Output.TABLE) -> None:
    """Delete a loop; its history stays readable by its id.

    Example: task-runner loop delete loop-7f3c2a10
    """
    chosen = runner()
    _say(chosen.call("DeleteTask", wire.DeleteTaskRequest(name=_loop(chosen, loop).id)), output, "deleted")


def pause(
    loop: IdArgument,
    note: Annotated[str, typer.Option("--note", help="Why.")] = "",
    until: Annotated[str, typer.Option("--until", help="When it comes back by itself.")] = "",
    output: console.OutputOption = console.Output.TABLE,
) -> None:
    """Keep a loop without firing it, until it is resumed.

    Example: task-runner loop pause loop-7f3c2a10
    """
    chosen = runner()
    request = wire.PauseTaskRequest(name=_loop(chosen, loop).id, note=note, until=until)
    _say(chosen.call("PauseTask", request), output, "paused")


def resume(loop: IdArgument, output: console.OutputOption = console.Output.TABLE) -> None:
    """Let a paused or stopped loop go on, on its thread.

    Example: task-runner loop resume loop-7f3c2a10
    """
    chosen = runner()
    task = _loop(chosen, loop)
    stopped = task.state == "disabled"
    request: Any = wire.EnableTaskRequest(name=task.id) if stopped else wire.ResumeTaskRequest(name=task.id)
    _say(chosen.call("EnableTask" if stopped else "ResumeTask", request), output, "resumed")
    chosen.note_unless_serving()


def reschedule(
    loop: IdArgument,
    seconds: Annotated[str, typer.Argument(help="From now, in seconds, or as 5m.")],
    output: console.OutputOption = console.Output.TABLE,
) -> None:
    """Let a self-paced loop wake that long from now. A loop on an interval or a cron expression keeps its times.

    Example: task-runner loop reschedule loop-7f3c2a10 300
    """
    text = f"{seconds}s" if seconds.isascii() and seconds.isdigit() else seconds
    delay = int(parse_duration(text, field="seconds").total_seconds())
    chosen = runner()
    task = chosen.call("RescheduleTask", wire.RescheduleTaskRequest(name=_loop(chosen, loop).id, seconds=delay))
    _say(task, output, f"wakes at {local(time(task, 'armed_at'))}")
    chosen.note_unless_serving()


def stop(
    loop: Annotated[str, typer.Argument(help="Which; all, if none is named.", autocompletion=complete_loop)] = "",
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask before stopping all.")] = False,
    output: console.OutputOption = console.Output.TABLE,
) -> None:
    """Stop a loop, or all of them, from firing; `loop resume` lets one go on. A turn that runs finishes.

    Example: task-runner loop stop loop-7f3c2a10
    """
    chosen = runner()
    found = [_loop(chosen, loop)] if loop else _going(chosen)
    if not loop and found and not yes:
        if not sys.stdin.isatty():
            raise InvalidInput(f"would stop {len(found)} loops", where="loop stop", hint="name one, or give --yes")
        typer.confirm(f"Stop {len(found)} loop{'' if len(found) == 1 else 's'}?", abort=True, err=True)
    for task in found:
        _say(chosen.call("DisableTask", wire.DisableTaskRequest(name=task.id)), output, "stopped")
    if not found:
        console.note("no loop is active")


def _going(chosen: Runner) -> list[Any]:
    tasks = chosen.call("ListTasks", wire.ListTasksRequest()).tasks
    return [task for task in tasks if is_loop(task) and task.state not in {"disabled", "done", "expired"}]


def _loop(chosen: Runner, name: str) -> Any:
    """Return a loop. Raises NotFound, and InvalidInput for a task that is none."""
    task = chosen.call("GetTask", wire.GetTaskRequest(name=name))
    if not is_loop(task):
        what = f"{task.spec.name!r} is a task on a schedule, not a loop"
        raise InvalidInput(what, where="loop", hint="use the command of the same name without loop")
    return task


def _say(task: Any, output: console.Output, what: str) -> None:
    if output in {console.Output.TABLE, console.Output.WIDE}:
        typer.echo(f"{console.plain(task.spec.name)} {what}")
    else:
        show_task(task, output)


def register(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(help="Prompts that come again: on an interval, on a cron expression, or at their own pace.")
    group.info.no_args_is_help = True
    for command in (create, delete, tick, reschedule, pause, resume, stop):
        group.command()(command)
    group.command("list")(list_)
    app.add_typer(group, name="loop")
