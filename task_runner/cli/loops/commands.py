"""The command `loop`, for repeated prompts. A few words create one: an interval, a cron expression or neither."""

import sys
from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any

import typer

from task_runner.cli import rows as texts
from task_runner.cli.client import Runner, all_tasks, complete_channel, runner
from task_runner.cli.show import show_change, up_since
from task_runner.cli.state import YesOption, delete_task, restore, tick
from task_runner.cli.tasks import create_spec, fill, takes_task_options
from task_runner.model.fields import SCHEDULES
from task_runner.model.words import read_words, schedule_of
from turnkeeper import console
from turnkeeper.console.commands import App
from turnkeeper.console.lists import columns
from turnkeeper.console.unseen import in_words
from turnkeeper.errors import InvalidInput
from turnkeeper.rpc.pages import page_of
from turnkeeper.times import parse_duration
from turnkeeper.v1 import schedules_pb2 as wire

_REFRESH_S = 1.0
_LONGEST_PROMPT = 60
_ENDED = frozenset({"done", "expired"})
_MODES = {"every": "fixed", "on": "event"}


def complete_loop(incomplete: str) -> list[str]:
    """Return the loop names that complete a prefix."""
    return [task.spec.name for task in all_tasks() if texts.is_loop(task) and task.spec.name.startswith(incomplete)]


IdArgument = Annotated[str, typer.Argument(help="A loop's id or name.", autocompletion=complete_loop)]


@takes_task_options
def create(
    words: Annotated[
        list[str] | None, typer.Argument(help="15m PROMPT, '0 9 * * 1-5' PROMPT, 'PROMPT every 2 hours', or PROMPT.")
    ] = None,
    name: Annotated[str, typer.Option(help="Its name; default its id.")] = "",
    category: Annotated[str, typer.Option(help="The permissions of the turn; default loop.")] = "",
    channel: Annotated[str, typer.Option(help="Default: general.", autocompletion=complete_channel)] = "",
    paused: Annotated[bool, typer.Option(help="Create it paused.")] = False,
    dry_run: Annotated[bool, typer.Option(help="Only show what would be created.")] = False,
    output: console.OutputOption = console.Output.TABLE,
    **given: Any,
) -> None:
    """Create a loop: on an interval, on a cron expression, or at its own pace when the words name no time.

    Intervals are exact: "7m" is every 7 minutes. A self-paced loop starts at once. Each of its turns asks for the next
    turn, and the loop ends when a turn asks for none.

    Example: turnkeeper loop create 15m "check the build and report what changed"
    """
    spec = wire.TaskSpec(name=name, category=category, channel=channel, paused=paused)
    fill(spec, given | _understood(words or [], given))
    create_spec(spec, dry_run=dry_run, output=output, loop=True)


def _understood(words: list[str], given: dict[str, Any]) -> dict[str, Any]:
    """Return the options that the words represent, without the given options."""
    scheduled = any(given.get("in_" if kind == "in" else kind) for kind in SCHEDULES)
    prompted = given["prompt"] is not None or given["prompt_file"] is not None
    if words and scheduled and prompted:
        raise InvalidInput("is given twice", where="prompt", hint="omit either the words or --prompt")
    if words and scheduled:
        return {"prompt": " ".join(words)}
    if prompted and (scheduled or given.get("on")) and not words:
        return {}
    kind, schedule, prompt = schedule_of(words) if prompted else read_words(words)
    # A task that waits for an event needs no schedule.
    pace = {} if kind == "dynamic" and given.get("on") else {kind: schedule or True}
    return pace if prompted else pace | {"prompt": prompt}


def delete(loop: IdArgument, yes: YesOption = False, output: console.OutputOption = console.Output.TABLE) -> None:
    """Delete a loop. For a day, `restore` can undo this. Its history stays, and a running turn finishes.

    On a terminal the command asks first.

    Example: turnkeeper loop delete loop-7f3c2a10
    """
    chosen = runner()
    delete_task(chosen, _loop(chosen, loop), output, yes=yes)


def pause(
    loop: IdArgument,
    note: Annotated[str, typer.Option(help="The reason, for the person who resumes it.")] = "",
    until: Annotated[str, typer.Option(help="When it resumes automatically.")] = "",
    output: console.OutputOption = console.Output.TABLE,
) -> None:
    """Pause a loop until it is resumed.

    Example: turnkeeper loop pause loop-7f3c2a10
    """
    chosen = runner()
    request = wire.PauseTaskRequest(name=_loop(chosen, loop).id, note=note, until=console.time_given(until))
    show_change(chosen.call(request), output, "paused")


def resume(loop: IdArgument, output: console.OutputOption = console.Output.TABLE) -> None:
    """Resume a paused or stopped loop on its thread.

    Example: turnkeeper loop resume loop-7f3c2a10
    """
    chosen = runner()
    task = _loop(chosen, loop)
    show_change(chosen.call(wire.ResumeTaskRequest(name=task.id)), output, "resumed")
    chosen.note_unless_serving()


def reschedule(
    loop: IdArgument,
    seconds: Annotated[str, typer.Argument(help="The time from now: seconds, or a duration such as 5m.")],
    output: console.OutputOption = console.Output.TABLE,
) -> None:
    """Set the next wake of a self-paced loop. Loops of other kinds keep their times.

    Example: turnkeeper loop reschedule loop-7f3c2a10 300
    """
    text = f"{seconds}s" if seconds.isascii() and seconds.isdigit() else seconds
    delay = int(parse_duration(text, field="seconds").total_seconds())
    chosen = runner()
    task = chosen.call(wire.RescheduleTaskRequest(name=_loop(chosen, loop).id, seconds=delay))
    show_change(task, output, f"wakes at {texts.local(texts.time(task, 'armed_at'))}")
    chosen.note_unless_serving()


def stop(
    loop: Annotated[
        str, typer.Argument(help="A loop's id or name; default all loops.", autocompletion=complete_loop)
    ] = "",
    yes: Annotated[bool, typer.Option(help="Do not ask before stopping all.")] = False,
    output: console.OutputOption = console.Output.TABLE,
) -> None:
    """Stop a loop, or all loops, from firing; `loop resume` undoes it. A running turn finishes.

    Example: turnkeeper loop stop loop-7f3c2a10
    """
    chosen = runner()
    found = [_loop(chosen, loop)] if loop else _going()
    if not loop and found and not yes:
        if not sys.stdin.isatty():
            raise InvalidInput(f"would stop {len(found)} loops", where="loop stop", hint="name one loop, or give --yes")
        typer.confirm(f"Stop {len(found)} loop{'' if len(found) == 1 else 's'}?", abort=True, err=True)
    for task in found:
        show_change(chosen.call(wire.DisableTaskRequest(name=task.id)), output, "stopped")
    if not found:
        console.note("no loop is active")


def _going() -> list[Any]:
    return [task for task in all_tasks() if texts.is_loop(task) and task.state not in {"disabled", "done", "expired"}]


def _loop(chosen: Runner, name: str) -> Any:
    """Return a loop. Raises NotFound, and InvalidInput for a task that is not a loop."""
    task = chosen.call(wire.GetTaskRequest(name=name))
    if not texts.is_loop(task):
        what = f"{task.spec.name!r} is a task on a schedule, not a loop"
        raise InvalidInput(what, where="loop", hint="use the command of the same name without loop")
    return task


def list_(
    all_: Annotated[bool, typer.Option("--all", help="Include loops that have ended.")] = False,
    watch: Annotated[bool, typer.Option("-w", "--watch", help="Refresh the list every second.")] = False,
    cursor: console.CursorOption = "",
    limit: console.LimitOption = 1000,
    output: console.OutputOption = console.Output.TABLE,
) -> None:
    """List loops, ordered by next fire time.

    Example: turnkeeper loop list --watch
    """
    cut = {"limit": limit, "cursor": cursor}
    console.show_again(lambda now: _show(now, output, cut, ended=all_), watch=watch, every_s=_REFRESH_S)


def loop_row(task: Any) -> dict[str, Any]:
    """Return the row of a task, with the fields that only loops have."""
    row = texts.task_row(task)
    mode = "hybrid" if task.kind != "on" and row.get("on") else _MODES.get(task.kind, task.kind)
    paced = task.kind == "dynamic"
    return row | {"mode": mode, "iteration": task.iteration if paced else task.fires}


def _show(now: datetime, output: console.Output, cut: Mapping[str, Any], *, ended: bool) -> None:
    answer = runner().call(wire.ListTasksRequest())
    loops = [task for task in answer.tasks if texts.is_loop(task)]
    rows = [loop_row(task) for task in loops if ended or task.state not in _ENDED]
    rows.sort(key=lambda row: (row["next_fire_at"] is None, row["due_at"] or "", row["id"]))
    hidden = len(loops) - len(rows)
    notes = [f"{len(rows)} loop{'' if len(rows) == 1 else 's'}", *([f"{hidden} ended: --all"] if hidden else [])]
    notes.append(up_since(answer))
    notes += [f"{row['id']} is {row['put_off']}" for row in rows if row["put_off"]][:3]
    shown, told = page_of(rows, "id", **cut)
    named = [*_COLUMNS[:2], texts.left_column(now), *_COLUMNS[2:]]
    console.show_page(shown, named, output, name_key="id", page=told, footer=" · ".join(notes))


_COLUMNS = columns(  # a narrow terminal omits the last columns
    "ID INTERVAL=schedule #ITERATION PROMPT STATE NEXT=next_fire_at LAST=last_fire_at MODE TARGET=agent +NAME "
    "+RESULT=last_outcome +CATEGORY +CHANNEL +THREAD=thread_id +REASON",
    schedule=lambda row: row["schedule"].removesuffix(", exactly"),
    iteration=lambda row: f"#{row['iteration']}",
    prompt=lambda row: row["prompt"][:_LONGEST_PROMPT],
    state=lambda row: "put off" if row["put_off"] and row["state"] == "active" else texts.state_of(row),
    last_outcome=lambda row: in_words(row["last_outcome"] or "-"),
    reason=lambda row: row["reason"] or row["put_off"] or "",
)


app = App("Prompts that run repeatedly: on an interval, on a cron expression, or at their own pace.")
for command in (create, delete, restore, tick, reschedule, pause, resume, stop):
    app.command()(command)
app.command("list")(list_)
