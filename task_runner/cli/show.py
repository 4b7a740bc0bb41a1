"""The commands `list`, `show`, `next` and `history`."""

import sys
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import partial
from typing import Annotated, Any

import typer

from task_runner.cli import rows as texts
from task_runner.cli.client import NameArgument, complete_channel, complete_name, not_running, runner, tags_of
from task_runner.model.fields import FIELDS, INSTANT
from turnkeeper import console
from turnkeeper.clock import SystemClock
from turnkeeper.config.surfaces import offered, required
from turnkeeper.console.lists import columns
from turnkeeper.console.unseen import from_words, in_words, plain
from turnkeeper.errors import InvalidInput, Unreachable
from turnkeeper.times import format_rough
from turnkeeper.v1 import schedules_pb2 as wire

_REFRESH_S = 2.0
_LONGEST_PROMPT = 60
# Fields that users look for come first, then the declaration.
_FIRST = (
    *("name", "id", "state", "paused_note", "paused_until", "reason", "waits_for"),
    *("schedule", "next_fire_at", "last_fire_at", "last_outcome", "missed"),
)


def list_(
    category: Annotated[str, typer.Option(help="Only tasks of this category.")] = "",
    channel: Annotated[str, typer.Option(help="Only tasks of this channel.", autocompletion=complete_channel)] = "",
    state: Annotated[str, typer.Option(help="Only tasks in this state.")] = "",
    outcome: Annotated[str, typer.Option(help="Only tasks whose last fire has this outcome.")] = "",
    tag: Annotated[list[str] | None, typer.Option(help="Only tasks with this label, as key=value.")] = None,
    watch: Annotated[bool, typer.Option("-w", "--watch", help="Refresh the list every two seconds.")] = False,
    follow: Annotated[bool, typer.Option(help="Then print each change to a task when it happens.")] = False,
    cursor: console.CursorOption = "",
    limit: console.LimitOption = 1000,
    output: console.OutputOption = console.Output.TABLE,
) -> None:
    """List tasks, ordered by next fire time.

    Example: turnkeeper task list --state active -o wide
    """
    request = wire.ListTasksRequest(
        category=category, channel=channel, state=from_words(state), tags=tags_of(tag or []), limit=limit, cursor=cursor
    )
    request.outcome = from_words(outcome)
    if follow:
        follow_changes(request, output)
    console.show_again(lambda now: _show_answer(runner().call(request), now, output), watch=watch)


def follow_changes(request: wire.ListTasksRequest, output: console.Output) -> None:
    """Print the list, then each change to a task in it. List again after a restart of the daemon or a lost change."""
    clock, names, cursor = SystemClock(), dict[str, str](), ""
    chosen = runner()
    while True:
        try:
            for told in chosen.stream(wire.WatchTasksRequest(cursor=cursor)):
                cursor = told.cursor
                if not told.task_id:
                    answer = chosen.call(request)
                    names |= {task.id: task.spec.name for task in answer.tasks}
                    _show_answer(answer, clock.now(), console.Output.JSONL if output is console.Output.JSON else output)
                elif told.task_id in names or _passes(told.task, request):
                    names[told.task_id] = told.task.spec.name or names.get(told.task_id, told.task_id)
                    _show_changed(told, names[told.task_id], clock.now(), output)
                sys.stdout.flush()
        except Unreachable as away:
            console.note(str(away))
        clock.block(_REFRESH_S)  # the stream ended, because the daemon is stopping or has ended


def _passes(task: Any, request: wire.ListTasksRequest) -> bool:
    has = {name: getattr(task.spec, name) for name in ("category", "channel")}
    has |= {"state": task.state, "outcome": task.last_outcome}
    fits = all(getattr(request, name) in {"", value} for name, value in has.items())
    tags = {tag: task.spec.tags[tag] for tag in request.tags if tag in task.spec.tags}
    return bool(task.id) and fits and tags == dict(request.tags)


def _show_changed(told: Any, name: str, now: datetime, output: console.Output) -> None:
    row = texts.task_row(told.task) if told.HasField("task") else None
    if output in {console.Output.JSON, console.Output.JSONL}:
        record = {"change": told.change, "task_id": told.task_id, "cursor": told.cursor, "task": row}
        console.show_record(record, console.Output.JSONL, name_key="task_id", lines=[])
    elif output is console.Output.NAME:
        typer.echo(plain(name))
    else:
        next_ = f"next {texts.local(row['next_fire_at'])}" if row and row["next_fire_at"] else ""
        state = row["state"] if row else ""
        typer.echo(plain(f"{console.when(now)}  {told.change:<8} {name}  {state}  {next_}".rstrip()))


def show(
    name: NameArgument,
    rendered: Annotated[
        bool, typer.Option("--rendered", help="Only the prompt, with the present values of its variables.")
    ] = False,
    output: console.OutputOption = console.Output.TABLE,
) -> None:
    """Show all fields of one task.

    Example: turnkeeper task show digest -o json
    """
    chosen = runner()
    task = chosen.call(wire.GetTaskRequest(name=name))
    required("prompt as it would be", chosen, task, output) if rendered else show_task(task, output)


def show_task(task: Any, output: console.Output) -> None:
    row = texts.task_row(task)
    times = {name for name, field in wire.Task.DESCRIPTOR.fields_by_name.items() if field.message_type}
    times |= {field.written_as for field in FIELDS if field.kind is INSTANT}
    keys = [*_FIRST, *(key for key in row if key not in _FIRST)]
    said = row | {"state": texts.state_of(row), "last_outcome": in_words(row["last_outcome"] or "")}
    said["prompt"] = offered("documents in words", row["prompt"]) or row["prompt"]
    lines = [
        (key.replace("_", "-"), texts.local(row[key], day=True) if key in times else texts.text_of(said[key]))
        for key in keys
    ]
    console.show_record(row, output, name_key="name", lines=[(key, value) for key, value in lines if value])


def show_change(task: Any, output: console.Output, done: str) -> None:
    """Report a change to a task, or print the task."""
    if output in {console.Output.TABLE, console.Output.WIDE}:
        end = texts.local(texts.time(task, "paused_until")) if done == "paused" else ""
        typer.echo(f"{plain(task.spec.name)} {in_words(done, loop=texts.is_loop(task))}{end and f' until {end}'}")
    else:
        show_task(task, output)


def _show_answer(answer: wire.ListTasksResponse, now: datetime, output: console.Output) -> None:
    rows = [texts.task_row(task) for task in answer.tasks]
    waiting = any(row["waits_for"] for row in rows)
    found, footer = _columns(now, waiting=waiting), _footer(answer)
    console.show_page(rows, found, output, name_key="name", page=answer, footer=footer)


def _columns(now: datetime, *, waiting: bool) -> list[console.Column]:
    return [
        texts.column("NAME", "name"),
        console.Column("SCHEDULE", _schedule, rank=1),
        console.Column("NEXT", partial(_next, texts.local), short=partial(_next, texts.short)),
        texts.left_column(now, rank=2),
        console.Column("STATE", _state),
        texts.column("MISSED", "missed", right=True, rank=1),
        *([texts.column("WAITS FOR", "waits_for", "-", rank=1)] if waiting else ()),
        texts.time_column("LAST", "last_fire_at", short=lambda row: texts.short(row["last_fire_at"]) or "-"),
        texts.outcome_column("RESULT", "last_outcome"),
        texts.column("CATEGORY", "category", rank=3),
        texts.column("CHANNEL", "channel", rank=3),
        texts.column("CATCH-UP", "catch_up", rank=3),
        texts.column("FIRES", "fires", right=True, rank=3),
        texts.column("ID", "id", wide=True),
        *(texts.column(field.column, field.written_as, wide=True) for field in FIELDS if field.column),
        console.Column("LATE-P95", lambda row: format_rough(row["late_p95_s"]), wide=True, right=True),
        console.Column("PROMPT", lambda row: str(row["prompt"])[:_LONGEST_PROMPT], wide=True),
    ]


def _state(row: Mapping[str, Any]) -> str:
    return texts.state_of(row) + (f" until {texts.short(row['paused_until'])}" if row["paused_until"] else "")


def _next(written: Callable[[str | None], str], row: Mapping[str, Any]) -> str:
    return written(row["next_fire_at"]) or ("event" if row["on"] else "-")


def _schedule(row: Mapping[str, Any]) -> str:
    # A self-paced task has no scheduled times, so the number of its wakes is more useful.
    schedule = str(row["schedule"]).removesuffix(", exactly")
    return schedule if row["iteration"] is None else f"{schedule} #{row['iteration']}"


def _footer(answer: wire.ListTasksResponse) -> str:
    paused = f", {answer.paused} paused" if answer.paused else ""
    notes = [f"{answer.total} task{'' if answer.total == 1 else 's'}{paused}", up_since(answer)]
    if answer.runtime_away and answer.HasField("serving_since"):
        notes.append(f"{answer.runtime_away}: turnkeeper status")
    if count := answer.decisions_waiting:
        notes.append(f"{count} decision{'' if count == 1 else 's'} waiting: turnkeeper approvals list")
    return " · ".join(notes)


def up_since(answer: wire.ListTasksResponse) -> str:
    """Return when the daemon began to serve, or a note that no daemon runs."""
    since = texts.time(answer, "serving_since")
    return f"task-runner up since {texts.local(since)}" if since else not_running(console.named_home())


def next_(
    name: Annotated[str | None, typer.Argument(help="A task's name or id.", autocompletion=complete_name)] = None,
    cron: Annotated[str | None, typer.Option(help="A cron expression instead of a task.")] = None,
    every: Annotated[str | None, typer.Option(help="An interval instead of a task.")] = None,
    rrule: Annotated[str | None, typer.Option(help="A recurrence rule instead of a task.")] = None,
    tz: Annotated[str | None, typer.Option(help="IANA zone for the expression.")] = None,
    from_: Annotated[str | None, typer.Option("--from", help="Times after this instant instead of now.")] = None,
    limit: console.LimitOption = 5,
    output: console.OutputOption = console.Output.TABLE,
) -> None:
    """Preview the next times of a task, or of a schedule, without creating anything.

    Example: turnkeeper task next --cron "30 2 * * *" --tz Europe/Riga -n 3
    """
    if sum(given is not None for given in (name, cron, every, rrule)) != 1:
        raise InvalidInput("give exactly one of a task's name, --cron, --every and --rrule", where="next")
    request = wire.PreviewScheduleRequest(name=name or "", count=limit)
    for field, value in (("cron", cron), ("every", every), ("rrule", rrule), ("timezone", tz)):
        if value is not None:
            setattr(request.spec, field, value)
    task = runner().call(wire.GetTaskRequest(name=name)) if name else wire.Task()
    if from_ is not None:
        getattr(request, "from").FromDatetime(texts.time_of(from_, "--from", tz or task.spec.timezone))
    answer = runner().call(request)
    rows = [texts.row_of(nominal) for nominal in answer.nominals]
    away = any(row["local"][:19].replace("T", " ") not in texts.local(row["nominal_at"]) for row in rows)
    shown = [
        texts.time_column("NEXT", "nominal_at", day=True),
        *[console.Column(f"IN {answer.timezone}", lambda row: _in_its_zone(row["local"]))] * away,
        texts.time_column("DUE", "due_at", day=True, wide=True),
    ]
    console.show_rows(rows, shown, output, name_key="nominal_at", footer=answer.schedule)
    if answer.HasField("on"):
        console.note(f"fires when {answer.on} arrives{'' if not rows else ', besides these times'}")
    for note in offered("notes of the calendar", runner(), task, request, answer) or ():
        console.note(note)
    texts.note_if_idle(task)


def _in_its_zone(text: str) -> str:
    return f"{datetime.fromisoformat(text):%a %Y-%m-%d %H:%M:%S} {text[-6:]}"


@partial(console.watched, also=["--follow"])
def history(
    name: Annotated[str, typer.Argument(help="A task's name or id; default all.", autocompletion=complete_name)] = "",
    outcome: Annotated[str, typer.Option(help="Only fires with this outcome, or one of several: failed,skipped.")] = "",
    all_: Annotated[
        bool, typer.Option("--all", help="Include fires that were merged into another fire before they were sent.")
    ] = False,
    from_: Annotated[str | None, typer.Option("--from", help="Only times from this one on: 2h ago, yesterday.")] = None,
    to: Annotated[str | None, typer.Option(help="Only times before this one.")] = None,
    cursor: console.CursorOption = "",
    limit: console.LimitOption = 50,
    output: console.OutputOption = console.Output.TABLE,
) -> None:
    """Show fired and skipped times, with reasons, of one task or of all; newest first.

    Example: turnkeeper task history digest -o json
    """
    shortened = output in {console.Output.TABLE, console.Output.WIDE} and not all_
    request = wire.ListFiresRequest(name=name, limit=limit, without_folded=shortened, cursor=cursor)
    request.outcome = ",".join(from_words(word.strip()) for word in outcome.split(","))
    for field, given in (("from", from_), ("to", to)):
        if given is not None:
            zone = runner().call(wire.GetTaskRequest(name=name)).spec.timezone if name else ""
            getattr(request, field).FromDatetime(texts.time_of(given, f"--{field}", zone, past=True))
    answer = runner().call(request)
    told = offered("deliveries of fires", console.named_home(), answer.fires) or [[] for _ in answer.fires]
    rows = [texts.fire_row(fire) | {"deliveries": sent} for fire, sent in zip(answer.fires, told, strict=True)]
    delivered = [texts.column("DELIVERED", "deliveries", "-")] if any(row["deliveries"] for row in rows) else []
    named = {fire.task_id: fire.task_name for fire in answer.fires}
    of_task = [] if request.name else [console.Column("TASK", lambda row: named[row["task_id"]])]
    footer = f"{answer.total} fire{'' if answer.total == 1 else 's'}"
    if answer.next_cursor and answer.total > len(rows):
        footer += f", of which {len(rows)} are shown; the next: --cursor {answer.next_cursor}"
    console.show_rows(rows, [*of_task, *_COLUMNS, *delivered], output, name_key="fire_id", footer=footer)


_COLUMNS = columns(
    "NOMINAL=nominal_at FIRED=fired_at #LATE=late_s OUTCOME REASON #COUNT KIND #TRY=attempt +FIRE=fire_id "
    "+FIRST=first_nominal_at +LAST=last_nominal_at +ENDED=ended_at +TURN=turn_id",
    late_s=lambda row: "-" if row["late_s"] is None else format_rough(row["late_s"]),
    outcome=lambda row: in_words(row["outcome"] or "-"),
    # The cause explains why times were skipped, or why a fire was late, but not how its turn ended.
    reason=lambda row: (
        (": " if row["outcome"] == "skipped" else "; late: ").join(filter(None, (row["reason"], row["cause"]))) or "-"
    ),
)
