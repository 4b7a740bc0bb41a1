"""`explain`: what became, or will become, of one time, in sentences, from the ledger and the schedule in force."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from protos.turnkeeper.v1 import schedules_pb2 as wire
from task_runner.model.task import (
    HALTED,
    UNDER_WAY,
    Definition,
    Fire,
    FireKind,
    Outcome,
    Overlap,
    Revision,
    ScheduleKind,
    Task,
    TaskState,
)
from task_runner.planner.schedule import describe, due_of, timetable_of
from task_runner.planner.self_paced import is_self_paced
from task_runner.service.backfill import in_force
from task_runner.service.changes import find
from task_runner.service.explain.entry import account_of
from task_runner.service.explain.events import event_account, newest_at, of_events
from task_runner.service.explain.self_paced import paced_account
from task_runner.service.task_spec import parse_instant
from task_runner.service.views import show_fire, stamp
from task_runner.store.port import Note, Session
from turnkeeper.times import format_duration, rfc3339

_ONE_SECOND = timedelta(seconds=1)
_NEWEST = 1000


@dataclass(frozen=True, kw_only=True)
class Said:
    """An explanation.

    Attributes:
        verdict: one word.
        lines: sentences.
        entry: the ledger entry it rests on, if any.
    """

    verdict: str
    lines: tuple[str, ...]
    entry: Fire | None = None


@dataclass(frozen=True, kw_only=True)
class Asked:
    """All that an explanation rests on.

    Attributes:
        task: the task.
        revisions: its revisions, oldest first.
        at: the time in question, a whole second.
        now: the time.
        entries: the ledger entries that cover, or are named by, the time in question.
        open: the task's open entries.
        newest: the task's newest entries, newest first, where it was self-paced.
        notes: what triggered those entries that an event did, by their numbers.
    """

    task: Task
    revisions: Sequence[Revision]
    at: datetime
    now: datetime
    entries: Sequence[Fire]
    open: Sequence[Fire] = ()
    newest: Sequence[Fire] = ()
    notes: Mapping[int, Note] = field(default_factory=dict)

    @property
    def revision(self) -> Revision:
        """The revision in force at that time."""
        return in_force(self.revisions, self.at)


def explain(session: Session, request: wire.ExplainFireRequest, now: datetime) -> wire.ExplainFireResponse:
    """Answer from one transaction. Raises NotFound, or InvalidInput for a time that cannot be read."""
    task = find(session, request.name)
    (snapshot,) = session.tasks.snapshots([task.id])
    if request.at:
        at = parse_instant(request.at, task.definition.timezone, field="at").replace(microsecond=0)
    else:
        timetable = timetable_of(task.definition)
        at = timetable.last_at_or_before(min(now, task.cursor_at)) or timetable.next_after(now) or now
        at = now.replace(microsecond=0) if is_self_paced(task.definition) else at
        if task.definition.on is not None and not task.definition.is_hybrid:
            at = newest_at(session.events.newest(task.id), now)
        at = max(at, task.created_at.replace(microsecond=0))
    revisions, entries = session.tasks.revisions(task.id), session.fires.touching(task.id, at, at)
    asked = Asked(
        task=task,
        revisions=revisions,
        at=at,
        now=now,
        entries=entries,
        notes=_notes(session, of_events(entries)),
        newest=session.fires.history(task.id, _NEWEST) if is_self_paced(in_force(revisions, at).definition) else (),
        open=snapshot.open,
    )
    said = explained(asked)
    answer = wire.ExplainFireResponse(verdict=said.verdict, lines=said.lines)
    stamp(answer.at, at)
    if at >= asked.revisions[0].valid_from:
        answer.revision = asked.revision.number
    if said.entry is not None:
        answer.fire.CopyFrom(show_fire(said.entry, task.definition.name))
    return answer


def _notes(session: Session, entries: Sequence[Fire]) -> dict[int, Note]:
    """Return what triggered entries, tasks by their names."""
    notes = session.events.notes([each.entry_id for each in entries])
    ids = {task_id for note in notes.values() for task_id in note.chain}
    names = {id_: task.definition.name for id_ in ids if (task := session.tasks.find(id_)) is not None}
    return {
        number: replace(note, chain=tuple(names.get(id_, id_) for id_ in note.chain)) for number, note in notes.items()
    }


def explained(asked: Asked) -> Said:
    """Return what became, or will become, of a time."""
    if is_self_paced(asked.revision.definition) and asked.at >= asked.revisions[0].valid_from:
        return _of_paced(asked)
    if asked.revision.definition.schedule.kind is ScheduleKind.ON and asked.at >= asked.revisions[0].valid_from:
        return _of_events(asked)
    covering = next(
        (each for each in asked.entries if each.kind is FireKind.SCHEDULED and each.count and _covers(each, asked.at)),
        None,
    )
    beside = tuple(line for each in asked.entries if each is not covering for line in _beside(each))
    if events := of_events(asked.entries):
        beside += event_account(asked.revision.definition, events, asked.notes).lines
    said = _of_entry(asked, covering) if covering is not None else _of_nothing(asked)
    return replace(said, lines=(_head(asked), *said.lines, *beside))


def _of_paced(asked: Asked) -> Said:
    """Explain a time of a task whose turns ask for the next one each."""
    stopped = _stopped(asked.task) if asked.task.state not in {TaskState.DONE, TaskState.EXPIRED} else None
    account = paced_account(asked.task, asked.revision.definition, asked.newest, asked.at, asked.now)
    if stopped is not None:
        account = account._replace(verdict=stopped.verdict, lines=(*account.lines, *stopped.lines))
    beside = tuple(line for each in asked.entries if each.kind is not FireKind.WAKE for line in _beside(each))
    return Said(verdict=account.verdict, lines=(_head(asked), *account.lines, *beside), entry=account.entry)


def _of_events(asked: Asked) -> Said:
    """Explain a time of a task that fires for events alone."""
    account = event_account(asked.revision.definition, of_events(asked.entries), asked.notes)
    if account.entry is None and (stopped := _stopped(asked.task)) is not None:
        account = account._replace(verdict=stopped.verdict, lines=(*account.lines, *stopped.lines))
    beside = tuple(line for each in asked.entries for line in _beside(each))
    return Said(verdict=account.verdict, lines=(_head(asked), *account.lines, *beside), entry=account.entry)


def _covers(fire: Fire, at: datetime) -> bool:
    return fire.first_at <= at <= fire.last_at


def _head(asked: Asked) -> str:
    name, task = asked.task.definition.name, asked.task
    if asked.at < asked.revisions[0].valid_from:
        return f"{name} was created at {rfc3339(task.created_at)}, later than {rfc3339(asked.at)}."
    each = asked.revision
    until = next((later for later in asked.revisions if later.number > each.number), None)
    span = f"from {rfc3339(each.valid_from)}" + (f" until {rfc3339(until.valid_from)}" if until else " on")
    schedule = f"{describe(each.definition)} in {each.definition.timezone}"
    return f"At {rfc3339(asked.at)} revision {each.number} of {name} was in force ({span}): {schedule}."


def _of_entry(asked: Asked, entry: Fire) -> Said:
    if not _names(asked, asked.at) and entry.nominal_at != asked.at:
        return replace(_not_nominal(asked), entry=None)
    verdict, lines = account_of(entry, asked.at, asked.revision.definition)
    return Said(verdict=verdict, lines=tuple(lines), entry=entry)


def _of_nothing(asked: Asked) -> Said:
    """Explain a time that no scheduled entry covers."""
    if asked.at < asked.revisions[0].valid_from:
        hint = "Nothing was due then; backfill can fire for it." if _names(asked, asked.at) else "Nothing was due then."
        return Said(verdict="before_creation", lines=(hint,))
    if not _names(asked, asked.at):
        return _not_nominal(asked)
    due_at = due_of(asked.task.id, timetable_of(asked.revision.definition), asked.revision.definition.jitter)(asked.at)
    limit = asked.task.definition.max_fires
    if limit is not None and asked.task.accepted >= limit and asked.at > asked.task.cursor_at:
        return Said(
            verdict="limit",
            lines=(f"It does not fire: max_fires is {limit}, and {asked.task.accepted} fires have been accepted.",),
        )
    if (stopped := _stopped(asked.task)) is not None:
        return stopped
    if asked.at > asked.now:
        return _future(asked, due_at)
    return _not_yet_planned(asked)


def _stopped(task: Task) -> Said | None:
    why = f": {task.reason}" if task.reason else ""
    back = (
        f" It comes back by itself at {rfc3339(task.wake_at)}."
        if task.wake_at and task.state is TaskState.PAUSED
        else ""
    )
    lines = {
        TaskState.PAUSED: f"The task is paused{why}. What comes due meanwhile is skipped when it is resumed.{back}",
        TaskState.DISABLED: "The task is disabled. What comes due meanwhile is skipped when it is enabled.",
        TaskState.QUARANTINED: f"The task is quarantined{why}. Nothing of it fires until it is resumed.",
        TaskState.DELETED: "The task was deleted. Nothing of it fires any more.",
        TaskState.DONE: "The task is done: nothing more of it fires.",
        TaskState.EXPIRED: "The task has ended: its schedule names no more times within its bounds.",
    }
    if task.state not in lines:
        return None
    verdict = "budget" if task.state is TaskState.PAUSED and task.reason.startswith("budget: ") else task.state.value
    return Said(verdict=verdict, lines=(lines[task.state],))


def _future(asked: Asked, due_at: datetime) -> Said:
    definition = asked.task.definition
    put_off = f", put off by its jitter to {rfc3339(due_at)}" if due_at != asked.at else ""
    lines = [f"It will fire at {rfc3339(asked.at)}{put_off}, as {asked.task.id}@{asked.at:%Y%m%dT%H%M%SZ}."]
    grace = format_duration(definition.grace)
    lines.append(
        f"If it cannot be sent within the grace of {grace}, catch-up {definition.catch_up} decides;"
        f" if the task's last fire is still under way, overlap {definition.overlap}."
    )
    if any(fire.outcome in HALTED for fire in asked.open):
        lines.append("A fire of the task waits for its author at present: until that is decided nothing is sent.")
    return Said(verdict="future", lines=tuple(lines))


def _not_yet_planned(asked: Asked) -> Said:
    halted = next((fire for fire in asked.open if fire.outcome in HALTED), None)
    if halted is not None:
        what = "is interrupted" if halted.outcome is Outcome.INTERRUPTED else "is held"
        line = (
            f"It has not been planned: {halted.fire_id} {what} and waits for its author."
            f" Once that is decided, it counts as missed, and catch-up {asked.task.definition.catch_up} decides."
        )
        return Said(verdict=halted.outcome.value, lines=(line,))
    busy = next((fire for fire in asked.open if fire.outcome in UNDER_WAY), None)
    if busy is not None:
        line = f"It has not been planned: {busy.fire_id} is under way, and the runtime cannot be heard."
        if asked.task.definition.overlap is Overlap.SKIP:
            line = (
                f"It has not been planned: {busy.fire_id} was under way when last heard of. Once its end is heard, what"
                " came due before that is skipped (overlap skip), and what came due since was missed."
            )
        return Said(verdict="unplanned", lines=(line,))
    if asked.at <= asked.task.cursor_at:
        line = "The ledger has nothing about it: it came due in the moment of an edit, or its clock was set."
        return Said(verdict="unplanned", lines=(line,))
    return Said(verdict="unplanned", lines=("It is due and has not been planned: the runner was not at work since.",))


def _not_nominal(asked: Asked) -> Said:
    definition = asked.revision.definition
    for verdict, line, bare in _reasons(asked):
        if timetable_of(bare).last_at_or_before(asked.at) == asked.at:
            return Said(verdict=verdict, lines=(line,))
    timetable = timetable_of(definition)
    before, after = timetable.last_at_or_before(asked.at), timetable.next_after(asked.at)
    near = [f"the last before it is {rfc3339(before)}" if before else "", f"the next {rfc3339(after)}" if after else ""]
    neighbours = ", ".join(part for part in near if part)
    lines = [f"The schedule does not name that time{': ' if neighbours else ''}{neighbours}."]
    other = next(
        (each for each in asked.revisions if timetable_of(each.definition).last_at_or_before(asked.at) == asked.at),
        None,
    )
    if other is None:
        return Said(verdict="not_nominal", lines=tuple(lines))
    lines.append(f"Revision {other.number}, in force from {rfc3339(other.valid_from)}, does name it.")
    return Said(verdict="superseded", lines=tuple(lines))


def _reasons(asked: Asked) -> list[tuple[str, str, Definition]]:
    """Return what may keep a time out of the schedule, and the definition without it."""
    definition = asked.revision.definition
    open_ended = replace(definition, start_at=None, end_at=None, expires_at=None)
    bounds = ", ".join(
        f"{name} is {rfc3339(at)}" for name in ("start_at", "end_at", "expires_at") if (at := getattr(definition, name))
    )
    found: list[tuple[str, str, Definition]] = []
    if definition.exclude:
        found.append(("excluded", "The schedule would name it, but it is excluded.", replace(definition, exclude=())))
    if bounds:
        found.append(("outside_bounds", f"The schedule would name it, but it lies outside: {bounds}.", open_ended))
    return found


def _names(asked: Asked, at: datetime) -> bool:
    return timetable_of(asked.revision.definition).next_after(at - _ONE_SECOND) == at


def _beside(entry: Fire) -> list[str]:
    """Say what else fired for that time, or was to."""
    if entry.kind is FireKind.SCHEDULED and entry.outcome is Outcome.COALESCED and entry.fire_id:
        return [f"{entry.fire_id} was committed for it and went into {entry.reason}."]
    if entry.kind in {FireKind.SCHEDULED, FireKind.EVENT}:
        return []
    how = "by hand" if entry.kind is FireKind.MANUAL else "by a backfill"
    return [f"Beside that {entry.fire_id} was asked for {how}: {entry.outcome}."]
