"""The commands `explain`, `simulate` and `backfill`."""

import os
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from task_runner.cli import rows as texts
from task_runner.cli.client import NameArgument, Runner, all_tasks, complete_name, runner
from task_runner.cli.rows import column, instant, time_column, time_of
from task_runner.model.task import Definition
from task_runner.service.simulate import LONGEST, Outage, Row, Span, simulated
from task_runner.service.task_spec import Defaults, parse_spec
from turnkeeper import console
from turnkeeper.config.surfaces import offered, required
from turnkeeper.entropy import SystemEntropy
from turnkeeper.errors import InvalidInput, TurnkeeperError
from turnkeeper.times import EPOCH, parse_duration, parse_rfc3339, rfc3339, time_of_day
from turnkeeper.v1 import schedules_pb2 as wire


def explain(
    name: NameArgument,
    at: Annotated[
        str, typer.Option(help="The time to explain; default the newest fire. Without a day, the nearest with a fire.")
    ] = "",
    output: console.OutputOption = console.Output.TABLE,
) -> None:
    """Explain what happened or will happen at a time, and which rule decides.

    Example: turnkeeper task explain digest --at 2026-11-20T09:00
    """
    given = at if time_of_day(at) else console.time_given(at, past=True)
    answer = runner().call(wire.ExplainFireRequest(name=name, at=given))
    coming = console.time_given(at)
    if answer.verdict == "before_creation" and not coming.endswith("Z") and coming != given:  # a weekday without a date
        answer = runner().call(wire.ExplainFireRequest(name=name, at=coming))
    asked = offered("questions of a turn", answer.fire.turn_id) or ()
    if output in {console.Output.TABLE, console.Output.WIDE}:
        deliveries = offered("deliveries of a fire", console.home(), answer.fire) or ()
        for line in (*answer.lines, *asked, *deliveries):
            console.say(console.for_people(line))
        return
    row = texts.row_of(answer, without={"lines", "fire", "revision"}) | {
        "lines": list(answer.lines),
        "questions": list(asked),
        "revision": answer.revision or None,
        "fire": texts.fire_row(answer.fire) if answer.HasField("fire") else None,
    }
    console.show_record(row, output, name_key="verdict", lines=[])


def show_prompt(chosen: Runner, task: wire.Task, output: console.Output) -> bool:
    """Print the prompt of a task as its next fire would send it. Variables for values of events remain."""
    away = list[str]()

    def answer(name: str) -> str:
        fires = chosen.call(wire.ListFiresRequest(name=name, outcome="succeeded", limit=1)).fires
        try:
            channel = chosen.call(wire.GetTaskRequest(name=name)).spec.channel
            return chosen.last_texts(fires[0].turn_id, channel).get("agent", "") if fires else ""
        except TurnkeeperError as error:
            away.append(f"the last answer of {name} is unavailable now: {error}")
            return ""

    known = texts.time(task, "next_fire_at")
    at = parse_rfc3339(known) if known else time_of("0s", "--rendered", task.spec.timezone)
    text = required("rendered prompt", task.spec.prompt, task, at, answer)
    row = {"name": task.spec.name, "at": rfc3339(at), "prompt": text}
    if output in {console.Output.TABLE, console.Output.WIDE}:
        console.say(text)
    else:
        console.show_record(row, output, name_key="name", lines=[])
    for note in away:
        console.note(note)
    return True


def simulate(
    from_: Annotated[str, typer.Option("--from", help="From this time on.")],
    to: Annotated[str, typer.Option(help="Until this time, which is not included.")],
    names: Annotated[
        list[str] | None,
        typer.Argument(help="Tasks, or .toml files that declare tasks; default all.", autocompletion=complete_name),
    ] = None,
    down: Annotated[list[str] | None, typer.Option(help="A span in which the runner is down, as T1..T2.")] = None,
    turn: Annotated[str, typer.Option(help="The duration of each turn.")] = "0s",
    output: console.OutputOption = console.Output.TABLE,
) -> None:
    """Run the planner on a virtual clock, and print every fire and skip with its reason. Changes nothing.

    Paused and disabled tasks are simulated as if they were active; every turn succeeds.

    Example: turnkeeper task simulate digest --from 2026-03-28 --to 2026-04-01 --down 2026-03-29T00:00..2026-03-29T06:00
    """
    chosen = _chosen(names or [])
    zone = _zone(chosen)
    span = Span(
        start=time_of(from_, "--from", zone),
        end=time_of(to, "--to", zone),
        outages=sorted(_outage(text, zone) for text in down or []),
        turn=parse_duration(turn, field="--turn"),
    )
    if not timedelta(0) < span.end - span.start <= LONGEST:
        raise InvalidInput("must be later than --from, by ten years at most", where="--to")
    tasks = [(each.id, _definition(each, span)) for each in chosen]
    if on := sorted(definition.name for _, definition in tasks if definition.on):
        console.note(f"events are not simulated: {', '.join(on)} would also fire for them")
    found = (row for task in tasks for row in simulated(*task, span))
    rows = sorted(found, key=lambda row: (row.nominal_at, row.task, row.fired_at or row.nominal_at))
    fired = sum(row.fired_at is not None for row in rows)
    skipped = sum(row.stands_for for row in rows if row.outcome.value == "skipped")
    footer = f"{fired} fire{'' if fired == 1 else 's'}, {skipped} scheduled times skipped"
    console.show_rows([_shape(row) for row in rows], _COLUMNS, output, name_key="task", footer=footer)


def backfill(
    name: NameArgument,
    from_: Annotated[str, typer.Option("--from", help="From this time on.")],
    to: Annotated[str, typer.Option(help="Until this time, which is not included.")],
    all_: Annotated[bool, typer.Option("--all", help="Include times that already had a fire.")] = False,
    dry_run: Annotated[bool, typer.Option(help="Only show the number of fires.")] = False,
    output: console.OutputOption = console.Output.TABLE,
) -> None:
    """Fire for past times without a fire: skipped times, and times before the task was created.

    Example: turnkeeper task backfill digest --from 2026-11-01 --to 2026-11-08 --dry-run
    """
    chosen = runner()
    from_, to = (console.time_given(text, past=True) for text in (from_, to))
    request = wire.BackfillTaskRequest(name=name, to=to, all=all_, dry_run=dry_run, request_id=SystemEntropy().hex(12))
    setattr(request, "from", from_)
    answer = chosen.call(request)
    row = {
        "count": answer.count,
        "first_nominal_at": texts.time(answer, "first_nominal_at"),
        "last_nominal_at": texts.time(answer, "last_nominal_at"),
        "fire_ids": list(answer.fire_ids),
    }
    span = (
        f" from {texts.local(row['first_nominal_at'])} to {texts.local(row['last_nominal_at'])}" if answer.count else ""
    )
    lines = [("fires", f"{answer.count}{span}{' (dry run: nothing was written)' if dry_run else ''}")]
    console.show_record(row, output, name_key="count", lines=lines)
    if not dry_run:
        chosen.note_unless_serving()


class _Chosen(NamedTuple):
    """A task to simulate.

    Attributes:
        id: the id of the task; for a task in a file, its name.
        since: the time of the declaration; None for a task in a file, which counts as created at the start of the span.
        where: returns the position of a field in a file.
    """

    id: str
    spec: wire.TaskSpec
    since: datetime | None = None
    where: Callable[[str], str] = str


def _chosen(names: list[str]) -> list[_Chosen]:
    files = [name for name in names if name.endswith(".toml")]
    if files and len(files) == len(names):
        return list(_declared(files))
    runs = runner()
    known = [name for name in names if name not in files]
    found = [runs.call(wire.GetTaskRequest(name=name)) for name in known] or all_tasks()
    return [*(_Chosen(task.id, task.spec, _since(task)) for task in found), *_declared(files)]


def _declared(files: list[str]) -> Iterator[_Chosen]:
    """Yield the tasks that files declare, without using a home."""
    if not files:
        return
    # Imported late, because few commands need TOML or the machine's zone.
    timezone = import_module("task_runner.daemon.reads").machine_zone(os.environ)
    reading: Any = import_module("task_runner.cli.declare.task_file")
    for each in reading.read_declarations(map(Path, files)):
        each.spec.timezone = each.spec.timezone or timezone
        yield _Chosen(each.spec.name, each.spec, where=each.where)


def _since(task: Any) -> datetime:
    # Treat a schedule with an anchor as declared at the anchor, and any other as declared at the epoch.
    return instant(task.anchor_at) if task.HasField("anchor_at") else EPOCH


def _definition(chosen: _Chosen, span: Span) -> Definition:
    try:
        defaults = Defaults(timezone=chosen.spec.timezone)
        return parse_spec(chosen.spec, defaults, chosen.since or span.start, own_id=chosen.id)
    except InvalidInput as error:
        error.where = chosen.where(error.where)
        raise


def _zone(chosen: list[_Chosen]) -> str:
    """Return the zone of the tasks; empty if they have several zones."""
    zones = {each.spec.timezone for each in chosen}
    return zones.pop() if len(zones) == 1 else ""


def _outage(text: str, zone: str) -> Outage:
    first, dots, last = text.partition("..")
    outage = Outage(time_of(first, "--down", zone), time_of(last, "--down", zone)) if dots else None
    if outage is None or outage.end <= outage.start:
        raise InvalidInput(f"{text[:60]!r} is not a span", where="--down", hint="write T1..T2, with T2 later than T1")
    return outage


def _shape(row: Row) -> dict[str, Any]:
    return {
        "task": row.task,
        "nominal_at": rfc3339(row.nominal_at),
        "fired_at": None if row.fired_at is None else rfc3339(row.fired_at),
        "outcome": row.outcome.value,
        "reason": row.reason or None,
        "count": row.stands_for,
    }


_COLUMNS = [
    time_column("NOMINAL", "nominal_at"),
    column("TASK", "task"),
    time_column("FIRED", "fired_at"),
    column("OUTCOME", "outcome"),
    column("REASON", "reason", "-"),
    column("COUNT", "count", right=True),
]
