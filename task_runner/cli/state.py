"""The commands `serve`, `tick` and `emit`, and those that change a task's state, such as `pause` and `run`."""

import os
import sys
from contextlib import suppress
from importlib import import_module
from typing import Annotated, Any

import typer

from task_runner.cli.client import PROCESS, NameArgument, Runner, read_file, runner, tags_of
from task_runner.cli.rows import fire_row, row_of
from task_runner.cli.show import show_change
from turnkeeper import console
from turnkeeper.clock import SystemClock
from turnkeeper.config.surfaces import offered, required
from turnkeeper.console.unseen import counted, in_words, plain
from turnkeeper.entropy import SystemEntropy
from turnkeeper.errors import EXIT_DENIED, EXIT_FAILURE, InvalidInput, TurnkeeperError
from turnkeeper.storage.locking import way_to
from turnkeeper.v1 import schedules_pb2 as wire

YesOption = Annotated[bool, typer.Option("-y", "--yes", help="Do not ask for confirmation.")]
_POLL_S = 0.1
_ANSWERED = frozenset({"succeeded", "rejected"})


def pause(
    name: NameArgument,
    note: Annotated[str, typer.Option(help="The reason, for the person who resumes it.")] = "",
    until: Annotated[str, typer.Option(help="When it resumes automatically.")] = "",
    output: console.OutputOption = console.Output.TABLE,
) -> None:
    """Pause a task. Times that come due during the pause are skipped.

    Example: turnkeeper task pause digest --note holidays --until 2026-12-27T09:00
    """
    _change(wire.PauseTaskRequest(name=name, note=note, until=console.time_given(until)), output, "paused")


def resume(
    name: NameArgument,
    replay: Annotated[bool, typer.Option(help="Catch up on times that came due meanwhile.")] = False,
    output: console.OutputOption = console.Output.TABLE,
) -> None:
    """Resume a paused or disabled task, on the same thread.

    Times that came due meanwhile are recorded as one skip; with --replay they count as missed.

    Example: turnkeeper task resume digest --replay
    """
    _change(wire.ResumeTaskRequest(name=name, replay=replay), output, "resumed")


def disable(
    name: NameArgument,
    cancel_running: Annotated[bool, typer.Option(help="Cancel its running turn too.")] = False,
    output: console.OutputOption = console.Output.TABLE,
) -> None:
    """Stop a task from firing until it is resumed. Its thread, channel and history stay.

    Example: turnkeeper task disable digest
    """
    _change(wire.DisableTaskRequest(name=name, cancel_running=cancel_running), output, "disabled")


def cancel(name: NameArgument, output: console.OutputOption = console.Output.TABLE) -> None:
    """Stop a task from firing and cancel its running turn at its next await.

    Example: turnkeeper task cancel digest
    """
    _change(wire.DisableTaskRequest(name=name, cancel_running=True), output, "cancelled")


def delete(name: NameArgument, yes: YesOption = False, output: console.OutputOption = console.Output.TABLE) -> None:
    """Delete a task. For a day, `restore` can undo this. Its history stays, and a running turn finishes.

    On a terminal the command asks first.

    Example: turnkeeper task delete digest
    """
    chosen = runner()
    delete_task(chosen, chosen.call(wire.GetTaskRequest(name=name)), output, yes=yes)


def restore(name: NameArgument, output: console.OutputOption = console.Output.TABLE) -> None:
    """Restore a task or a loop that was deleted within the last day, in its earlier state.

    Times that came due meanwhile are recorded as one skip.

    Example: turnkeeper task restore digest
    """
    _change(wire.RestoreTaskRequest(name=name), output, "restored")


def delete_task(chosen: Runner, task: Any, output: console.Output, *, yes: bool) -> None:
    """Delete a task or a loop; on a terminal, ask first."""
    if not yes and sys.stdin.isatty():
        typer.confirm(f"Delete {plain(task.spec.name)}?", abort=True, err=True)
    show_change(chosen.call(wire.DeleteTaskRequest(name=task.id)), output, "deleted")
    console.note(f"restore it within a day: turnkeeper task restore {plain(task.spec.name)}")


def run(
    name: NameArgument,
    wait: Annotated[bool, typer.Option(help="Wait until the turn ends or waits for you.")] = False,
    prompt: Annotated[str, typer.Option(help="Another prompt for this run.")] = "",
    var: Annotated[list[str] | None, typer.Option(help="A value of {{ var.KEY }} for this run: key=value.")] = None,
    payload: Annotated[str, typer.Option(help="Another payload for this run: a JSON object, or @FILE.")] = "",
    input_: Annotated[str, typer.Option("--input", help="Another input of the graph for this run.")] = "",
    file: Annotated[list[str] | None, typer.Option(help="A text file to give with the prompt, for this run.")] = None,
    output: console.OutputOption = console.Output.TABLE,
) -> int:
    """Fire a task now, in addition to its schedule.

    A paused task runs too, also if its budget stops it, and the tasks that follow it start.
    The run counts toward the task's budget, but not toward --max-fires and --pause-after-failures.
    With --wait, the exit code is 0 if it succeeded, 1 if it failed or was rejected, and 7 if it waits for you.

    Example: turnkeeper task run digest --wait
    """
    chosen = runner()
    if wait and not (chosen.serving or chosen.is_served_elsewhere()):
        raise InvalidInput("no daemon, so the task would not fire", where="--wait", hint=way_to(chosen.home, PROCESS))
    task = chosen.call(wire.GetTaskRequest(name=name))
    spec = task.spec
    if file:
        prompt = required("prompt with documents", chosen.home, prompt or None, file, spec.prompt)
    texts = [read_file(text[1:]) if text.startswith("@") else text for text in (payload, input_)]
    request = wire.RunTaskRequest(name=name, prompt=prompt, payload_json=texts[0], input_json=texts[1])
    request.request_id = SystemEntropy().hex(12)
    request.vars.update(tags_of(var or [], "--var"))
    if task.state == "paused":
        why = f": {plain(task.paused_note)}" if task.paused_note else ""
        told = "a run by hand runs all the same, and starts the tasks that follow it"
        console.note(f"{spec.name} is paused{why}; {told}{offered('paused followers', chosen, spec.name) or ''}")
    fire = chosen.call(request)
    said = dict[str, str]()
    if wait:
        fire = _follow(chosen, fire)
        with suppress(TurnkeeperError):  # the answer exists, but its runtime does not answer now
            said = chosen.last_texts(fire.turn_id if fire.outcome in _ANSWERED else "", spec.channel)
    row = fire_row(fire) | ((offered("answer and values", said) or {}) if wait else {})
    lines = [(key, in_words(str(row[key]))) for key in ("fire_id", "outcome", "reason", "turn_id") if row[key]]
    console.show_record(row, output, name_key="fire_id", lines=lines)
    chosen.note_unless_serving()
    if spec.budget or spec.HasField("max_fires") or spec.HasField("pause_after_failures"):
        console.note("a manual run counts toward the budget, not toward --max-fires and --pause-after-failures")
    if wait and fire.outcome in _ANSWERED:
        _show_answer(fire, said, spec.channel, output)
    if not wait or fire.outcome == "succeeded":
        return 0
    if fire.outcome not in {"interrupted", "held"}:
        return EXIT_FAILURE
    console.note("it waits for your decision: turnkeeper triage")
    return EXIT_DENIED


def _show_answer(fire: Any, said: dict[str, str], channel: str, output: console.Output) -> None:
    """Print the text of the turn and its fields, as its channel shows them, and where to find the rest."""
    if fire.reason == "silent":
        console.note(f"it wrote no message; its actions: turnkeeper turns show {fire.turn_id}")
        return
    shown = [offered("fields in words", text) or text for role in ("agent", "values") if (text := said.get(role))]
    if shown and output in {console.Output.TABLE, console.Output.WIDE}:
        console.say("\n" + "\n\n".join(shown) + "\n")
    console.note(f"{'all of it' if shown else 'its answer'}: turnkeeper conversation show {channel}")


def _follow(chosen: Runner, fire: Any) -> Any:
    """Wait until a fire ends or waits for the author. Print each reason why it cannot be sent meanwhile."""
    clock, told = SystemClock(), ""
    with console.status(f"waiting for {fire.fire_id}"):
        while fire.outcome in {"waiting", "pending", "sent", "accepted", "running"}:
            if fire.reason not in {"", told}:
                console.note(f"{fire.fire_id} is not sent yet: {plain(fire.reason)}; see: turnkeeper status")
                told = fire.reason
            clock.block(_POLL_S)
            fire = chosen.call(wire.GetFireRequest(fire_id=fire.fire_id))
    return fire


def _change(request: Any, output: console.Output, done: str) -> None:
    chosen = runner()
    show_change(chosen.call(request), output, done)
    if done in {"resumed", "restored"}:
        chosen.note_unless_serving()


def emit(
    event: Annotated[str, typer.Argument(help="Its name: at most 64 of a-z, 0-9, _, ., : and -, a letter first.")],
    data: Annotated[str | None, typer.Option(help="A JSON object, or @FILE, at most 64 KiB.")] = None,
    id_: Annotated[
        str | None, typer.Option("--id", help="The event's id; an id that was used before has no effect.")
    ] = None,
    output: console.OutputOption = console.Output.TABLE,
) -> None:
    """Emit an event: every task that waits for it fires, subject to its filters and debounce.

    Example: turnkeeper emit deploy --data '{"branch": "main"}' --id build-4711
    """
    if id_ == "":
        raise InvalidInput("must not be empty", where="--id", hint="omit it for a new id")
    text = read_file(data[1:]) if data is not None and data.startswith("@") else data or ""
    # All attempts of the call share one id.
    request = wire.EmitEventRequest(name=event, data_json=text, event_id=id_ or SystemEntropy().hex(12))
    chosen = runner()
    answer = chosen.call(request)
    told = row_of(answer, without={"event_id", "paused"})
    row = {"event": event, "id": answer.event_id, **told, "paused": [*answer.paused]}
    tasks = counted(answer.matched, "task") if answer.matched else "no task"
    said = "recorded before: nothing happens" if answer.duplicate else f"triggers {tasks}"
    console.show_record(row, output, name_key="id", lines=[("event", event), ("id", answer.event_id), ("result", said)])
    if answer.paused:
        console.note(f"paused, so the event is skipped: {', '.join(answer.paused)}")
    chosen.note_unless_serving()


def serve() -> None:
    """Run the daemon in the foreground, until SIGTERM or Ctrl-C.

    Example: task-runner serve
    """
    home = console.home()
    # This process becomes the daemon, so that only this command pays for the daemon's imports.
    os.execv(sys.executable, [sys.executable, "-P", "-m", "task_runner.daemon", str(home.root)])  # noqa: S606  no shell


def tick() -> None:
    """Plan the tasks that are due now, then exit. If a daemon runs, the daemon does this.

    While no daemon runs, the command also sends due fires to agent-runtime and records the outcomes of earlier fires.
    Called repeatedly, the command does the daemon's work.

    Example: turnkeeper task tick
    """
    chosen = runner()
    done = chosen.call(wire.TickRequest())
    said = f"{counted(done.planned, 'task')} planned, {counted(done.committed, 'fire')} committed"
    typer.echo(f"{said}, {counted(done.skipped, 'time')} skipped")
    if chosen.serving:
        return
    try:
        sent = import_module("task_runner.daemon.assembly").deliver(chosen.home)
        console.note(f"{sent} {'fire' if sent == 1 else 'fires'} sent to agent-runtime")
    except TurnkeeperError as error:
        console.note(f"nothing was sent: {error}")
    chosen.note_unless_serving()
