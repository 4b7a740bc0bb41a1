"""The commands `turnkeeper pause` and `turnkeeper resume`: one pause for many tasks.

The note of each pause begins with :data:`PAUSED`. So `resume` leaves tasks alone that their author paused individually.
"""

from collections.abc import Callable
from typing import Annotated, Any

import typer

from task_runner.cli.client import Runner, runner, tags_of
from task_runner.cli.rows import column, time, time_column
from turnkeeper import console
from turnkeeper.console.unseen import plain
from turnkeeper.errors import EXIT_CONFLICT, Conflict, NotFound
from turnkeeper.v1 import schedules_pb2 as wire

PAUSED = "paused with others"
TagOption = Annotated[list[str] | None, typer.Option("--tag", help="Only tasks with this label, as key=value.")]


def pause(
    until: Annotated[str, typer.Option("--until", help="When they resume automatically.")] = "",
    note: Annotated[str, typer.Option("--note", help="The reason, for the person who resumes them.")] = "",
    tag: TagOption = None,
    output: console.OutputOption = console.Output.TABLE,
) -> int:
    """Pause all tasks, or those with a label. Times that come due meanwhile are skipped.

    A date counts in the zone of each task. Tasks that you paused by name or disabled stay as they are, and tasks that
    you create later fire. A second pause moves the end of the first.

    Example: turnkeeper pause --until 2026-12-27 --note holidays
    """
    at, why = console.time_given(until), f"{PAUSED}{': ' if note else ''}{note}"

    def change(task: Any) -> Any:
        return wire.PauseTaskRequest(name=task.id, note=why, until=at)

    return _change(runner(), tag, "paused", change, lambda task: not _is_stopped(task) or _is_ours(task), output)


def resume(
    tag: TagOption = None,
    replay: Annotated[bool, typer.Option("--replay", help="Catch up on times that came due meanwhile.")] = False,
    output: console.OutputOption = console.Output.TABLE,
) -> int:
    """Resume the tasks that `turnkeeper pause` paused, or those of them with a label.

    Example: turnkeeper resume
    """

    def change(task: Any) -> Any:
        return wire.ResumeTaskRequest(name=task.id, replay=replay)

    return _change(runner(), tag, "resumed", change, _is_ours, output)


def _is_stopped(task: Any) -> bool:
    return task.spec.paused or task.state in {"disabled", "quarantined", "done", "expired"}


def _is_ours(task: Any) -> bool:
    return bool(task.spec.paused and task.paused_note.startswith(PAUSED))


def _change(
    chosen: Runner,
    tag: list[str] | None,
    done: str,
    change: Callable[[Any], Any],
    fits: Callable[[Any], bool],
    output: console.Output,
) -> int:
    """Change each task that fits, and list them. Return the exit code: that of a conflict if a task was left out."""
    tasks = chosen.call(wire.ListTasksRequest(tags=tags_of(tag or []))).tasks
    rows, left_out = list[dict[str, str | None]](), 0
    for task in filter(fits, tasks):
        try:
            changed = chosen.call(change(task))
        except (Conflict, NotFound) as error:  # someone has changed or deleted the task meanwhile
            console.note(plain(f"{task.spec.name} was left out: {error}"))
            left_out += 1
        else:
            end = time(changed, "paused_until")
            rows.append({"name": changed.spec.name, "id": changed.id, "state": changed.state, "paused_until": end})
    columns = [column("NAME", "name"), column("STATE", "state"), time_column("UNTIL", "paused_until")]
    footer = f"{len(rows)} task{'' if len(rows) == 1 else 's'} {done}"
    console.show_rows(rows, columns, output, name_key="name", footer=footer)
    return EXIT_CONFLICT if left_out else 0
