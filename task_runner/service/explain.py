"""Explanation of the past or future outcome of one time, from the ledger and the schedule in force."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import NamedTuple

from task_runner.model import task as model
from task_runner.model.task import CatchUp, Definition, Fire, FireKind, Outcome, Revision, ScheduleKind, Task, TaskState
from task_runner.planner import event_triggers, overlap
from task_runner.planner.entries import describe, due_of, timetable_of
from task_runner.service.causes import cause_of, lasting
from task_runner.service.changes import find
from task_runner.service.explained_time import in_force, time_in_question
from task_runner.service.views import show_fire, stamp
from task_runner.store.rows import Cause, Note, Outage
from task_runner.store.store import Session
from turnkeeper.config.surfaces import offered
from turnkeeper.errors import BUDGET
from turnkeeper.times import format_duration, format_rough, rfc3339
from turnkeeper.v1 import schedules_pb2 as wire

_ONE_SECOND = timedelta(seconds=1)
_NEWEST = 1000
_STOPPED = frozenset({TaskState.PAUSED, TaskState.DISABLED, TaskState.QUARANTINED})
_NOT_BEGUN = frozenset({Outcome.PENDING, Outcome.SENT, Outcome.ACCEPTED})
_SKIPPED = {
    "missed": "It was missed: it was not sent within the grace of {grace}, and catch-up skip runs no missed fires.",
    "catch_up_window": "It was missed longer ago than catch_up_window allows ({window}).",
    "max_catch_up": "More fires were missed than max_catch_up ({most}) allows: the newest were kept.",
    "max_fires": "The limit on fires was reached, until an edit changed the limit.",
    "queue_full": "More fires were queued than max_catch_up ({most}) allows: the oldest were skipped.",
    "overlap": "The task's previous fire was still running, so overlap skip started no other fire.",
    "queued": "A fire of an event was waiting to be sent, so times that came due meanwhile were skipped.",
    "paused": "The task was paused at that time.",
    "disabled": "The task was disabled at that time.",
    "deleted": "The task was deleted before it was sent.",
    "quarantined": "The task was quarantined before it was sent.",
    "rescheduled": "Another wake time replaced it after it was committed and before it was sent.",
    "taken over": "Its author wrote on the thread before it was sent, and took over.",
    "superseded": "It was committed but not yet sent when an edit removed its time from the schedule.",
}
_HOURLY = format_duration(event_triggers.HOURLY)
_SKIPPED_EVENTS = {
    event_triggers.OUTSIDE: "It lay outside start_at, end_at and expires_at.",
    event_triggers.LIMIT: "The limit on fires was reached.",
    "overlap": _SKIPPED["overlap"],
    "queue_full": "More fires were queued than max_catch_up allows: the oldest were skipped.",
    event_triggers.OWN_CHAIN: ("A fire of the same task triggered it, and a task's own turns never trigger the task."),
    event_triggers.TOO_LONG: (
        f"{event_triggers.LONGEST_CHAIN} fires had triggered each other before it, which is the longest chain allowed."
    ),
    event_triggers.TOO_MANY: (
        f"Events had triggered {event_triggers.MOST_AN_HOUR} fires of the task within {_HOURLY}, which is the limit."
    ),
    event_triggers.TAKEN: "The task already has a fire for an event with that id and second.",
}
_ENDS = {
    Outcome.SUCCEEDED: "Its turn succeeded",
    Outcome.REJECTED: "Its turn ended without your approval",
    Outcome.FAILED: "Its turn failed",
    Outcome.CANCELLED: "Its turn was cancelled",
}


class Explanation(NamedTuple):
    """The outcome of a time.

    Attributes:
        entry: the ledger entry that supports the verdict, if any.
    """

    verdict: str
    lines: tuple[str, ...]
    entry: Fire | None = None


@dataclass(frozen=True, kw_only=True)
class Question:
    """Data for an explanation.

    Attributes:
        revisions: its revisions, oldest first.
        at: the time to explain, a whole second.
        entries: the ledger entries that cover the time, or that have an id with the time.
        newest: the task's newest entries, newest first, if the task was self-paced.
        notes: the triggers of the entries that events made, by entry number.
        unanswered: the fire that was running at that time and ended after its approval expired; None if there is none.
        newest_meant: True if no time was given; explain the newest fire, including a manual fire.
    """

    task: Task
    revisions: Sequence[Revision]
    at: datetime
    now: datetime
    entries: Sequence[Fire]
    open: Sequence[Fire] = ()
    newest: Sequence[Fire] = ()
    notes: Mapping[int, Note] = field(default_factory=dict)
    unanswered: Fire | None = None
    newest_meant: bool = False

    @property
    def revision(self) -> Revision:
        """The revision in force at the time to explain; for manual fires alone, when the newest was requested."""
        by_hand = [each.due_at for each in self.entries if each.kind is FireKind.MANUAL]
        return in_force(self.revisions, by_hand[-1] if by_hand and len(by_hand) == len(self.entries) else self.at)

    @property
    def definition(self) -> Definition:
        """The definition in force at the time to explain."""
        return self.revision.definition

    @property
    def is_before_creation(self) -> bool:
        """True if the task did not exist yet at the time to explain."""
        created_at = self.revisions[0].valid_from
        return self.at < (created_at.replace(microsecond=0) if self.newest_meant else created_at)


def explain(request: wire.ExplainFireRequest, now: datetime, session: Session) -> wire.ExplainFireResponse:
    """Answer from the data of one transaction. Raises NotFound, or InvalidInput if the time cannot be parsed."""
    task = find(session, request.name)
    at, day = time_in_question(session, task, request.at, now)
    revisions, entries = session.tasks.revisions(task.id), session.fires.touching(task.id, at, at)
    (snapshot,) = session.tasks.snapshots([task.id])
    asked = Question(
        task=task,
        revisions=revisions,
        at=at,
        now=now,
        entries=entries,
        notes=_notes(session, _of_events(entries)),
        newest=session.fires.history(task.id, _NEWEST) if in_force(revisions, at).definition.is_self_paced else (),
        open=snapshot.open,
        unanswered=session.fires.unanswered_at(task.id, at),
        newest_meant=not request.at,
    )
    said, outages = explained(asked), session.outages_of_all_kinds()
    covered = at if (entry := said.entry) and entry.first_at <= at <= entry.last_at else None  # none by a manual fire
    cause = cause_of(entry, asked.definition.grace, outages, covered) if entry else ""
    more = *_followed(session, asked, entry), *_why(said, asked, cause, outages), *_lost(entry, outages)
    if entry is not None and entry.outcome in _NOT_BEGUN and (held := offered("cordon of fires", session)):
        more = *more, f"At present, it waits for {held}."
    if entry is not None and asked.newest_meant and task.definition.schedule.kind is ScheduleKind.ON:
        more = *more, *_awaited(task.definition)
    said = said._replace(lines=(*said.lines, *more, *([day] if day else [])))
    if asked.newest_meant and (stop := _stop_by_budget(task, outages)):
        said = said._replace(verdict="budget", lines=(stop, *said.lines))
    elif asked.newest_meant and task.state in _STOPPED and (halt := _stopped(task)) and halt.lines[0] not in said.lines:
        said = said._replace(lines=(*said.lines, *halt.lines))
    answer = wire.ExplainFireResponse(verdict=said.verdict, lines=said.lines)
    stamp(answer.at, at)
    if not asked.is_before_creation:
        answer.revision, answer.edited_by = asked.revision.number, asked.revision.edited_by
    if said.entry is not None:
        answer.fire.CopyFrom(show_fire(said.entry, task.definition.name, cause))
    return answer


def _stop_by_budget(task: Task, outages: Sequence[Outage]) -> str:
    """Return a sentence about the start and the end of the stop by a task's budget; empty if no budget stops it now."""
    if task.state is not TaskState.PAUSED or not task.reason.startswith(BUDGET):
        return ""
    stops = [each for each in outages if each.lasts and each.task_id == task.id and each.cause is Cause.PAUSED]
    since = f" since {rfc3339(stops[0].since.replace(microsecond=0))}" if stops else ""
    name = task.definition.name
    until = rfc3339(task.wake_at) if task.wake_at else f"you resume the task (turnkeeper task resume {name})"
    return f"The budget of {name} stops it{since} until {until}: {task.reason.removeprefix(BUDGET)}."


def _followed(session: Session, asked: Question, entry: Fire | None) -> list[str]:
    """Describe the fires of other tasks that led to an entry, or that a task waits for."""
    note = asked.notes.get(entry.entry_id) if entry is not None else None
    if asked.definition.schedule.kind is not ScheduleKind.ON or (entry is not None and note is None):
        return []
    return offered("tasks before", session, asked.task, note) or []


def _why(said: Explanation, asked: Question, cause: str, outages: Sequence[Outage]) -> list[str]:
    if cause:
        return [f"The cause: {cause}."]
    at_present = lasting(outages, asked.task.id)
    if at_present and said.verdict in {"future", "unplanned", *(outcome.value for outcome in model.UNDER_WAY)}:
        return [f"At present: {at_present}. No fire is sent until this ends."]
    return []


def _lost(entry: Fire | None, outages: Sequence[Outage]) -> list[str]:
    """Describe the loss after which a fire was taken over from the runtime, if it was."""
    of = [each for each in outages if each.cause is Cause.LOST and each.task_id == (entry and entry.task_id)]
    return [f"The {each}." for each in of if entry and entry.fire_id and f" {entry.fire_id}," in each.why]


def _notes(session: Session, entries: Sequence[Fire]) -> dict[int, Note]:
    """Return the triggers of entries, by entry number, with the names of their tasks."""
    notes = session.events.notes([each.entry_id for each in entries])
    ids = {task_id for note in notes.values() for task_id in note.chain}
    names = {id_: task.definition.name for id_ in ids if (task := session.tasks.find(id_)) is not None}
    return {
        number: replace(note, chain=tuple(names.get(id_, id_) for id_ in note.chain)) for number, note in notes.items()
    }


def explained(asked: Question) -> Explanation:
    """Return the past or future outcome of a time."""
    if not asked.is_before_creation and asked.definition.is_self_paced:
        return _of_self_paced(asked)
    if not asked.is_before_creation and asked.definition.schedule.kind is ScheduleKind.ON:
        return _of_event_task(asked)
    scheduled = [each for each in asked.entries if each.kind is FireKind.SCHEDULED and each.count]
    covering = next((each for each in scheduled if each.first_at <= asked.at <= each.last_at), None)
    others = tuple(line for each in asked.entries if each is not covering for line in _also_fired(each))
    if events := _of_events(asked.entries):
        others += _events(asked.definition, events, asked.notes).lines
    by_hand = next((each for each in reversed(asked.entries) if each.kind is FireKind.MANUAL), None)
    if covering is None and by_hand is not None and asked.newest_meant:
        verdict, lines = _entry(by_hand, by_hand.nominal_at, asked.definition)
        return Explanation(verdict, (_head(asked), f"{by_hand.fire_id} was requested manually.", *lines), by_hand)
    said = _of_entry(asked, covering) if covering is not None else _of_nothing(asked)
    return said._replace(lines=(_head(asked), *said.lines, *_unanswered(asked, covering), *others))


def _unanswered(asked: Question, covering: Fire | None) -> list[str]:
    """Report that a time came due while a fire waited for an approval that then expired."""
    fire = asked.unanswered
    if fire is None or fire.ended_at is None or (covering is not None and covering.entry_id == fire.entry_id):
        return []
    after = f"; catch-up {covering.policy} then decided about it" if covering is not None else ""
    return [f"It came due while {fire.fire_id} waited for you, until {rfc3339(fire.ended_at)}: {fire.reason}{after}."]


def _of_self_paced(asked: Question) -> Explanation:
    said = _wakes(asked)
    stopped = _stopped(asked.task) if asked.task.state not in {TaskState.DONE, TaskState.EXPIRED} else None
    if stopped is not None:
        said = said._replace(verdict=stopped.verdict, lines=(*said.lines, *stopped.lines))
    others = (line for each in asked.entries if each.kind is not FireKind.WAKE for line in _also_fired(each))
    return said._replace(lines=(_head(asked), *said.lines, *others))


def _of_event_task(asked: Question) -> Explanation:
    said = _events(asked.definition, _of_events(asked.entries), asked.notes)
    if said.entry is None and (stopped := _stopped(asked.task)) is not None:
        said = said._replace(verdict=stopped.verdict, lines=(*said.lines, *stopped.lines))
    others = (line for each in asked.entries for line in _also_fired(each))
    return said._replace(lines=(_head(asked), *said.lines, *others))


def _head(asked: Question) -> str:
    name, task = asked.task.definition.name, asked.task
    if asked.is_before_creation:
        return f"{name} was created at {rfc3339(task.created_at)}, later than {rfc3339(asked.at)}."
    each = asked.revision
    until = next((later for later in asked.revisions if later.number > each.number), None)
    span = f"from {rfc3339(each.valid_from)}" + (f" until {rfc3339(until.valid_from)}" if until else " on")
    schedule = f"{describe(each.definition)} in {each.definition.timezone}"
    return f"At {rfc3339(asked.at)} revision {each.number} of {name} was in force ({span}): {schedule}."


def _of_entry(asked: Question, entry: Fire) -> Explanation:
    if not _is_scheduled(asked) and entry.nominal_at != asked.at:
        return _not_scheduled(asked)
    verdict, lines = _entry(entry, asked.at, asked.definition, asked.open)
    return Explanation(verdict, tuple(lines), entry)


def _of_nothing(asked: Question) -> Explanation:
    """Explain a time that no scheduled entry covers."""
    if asked.is_before_creation:
        if _names(asked.task.definition, asked.at):  # a backfill uses the current schedule
            span = f"--from {rfc3339(asked.at)} --to {rfc3339(asked.at + timedelta(minutes=1))}"
            backfill = f"turnkeeper task backfill {asked.task.definition.name} {span}"
            hint = f"The task did not exist, so nothing was due. `{backfill}` runs it now, as the run of that time."
        else:
            hint = "The task did not exist, so nothing was due. The present schedule does not include that time either."
        return Explanation("before_creation", (hint,))
    if not _is_scheduled(asked):
        return _not_scheduled(asked)
    limit = asked.task.definition.max_fires
    if limit is not None and asked.task.accepted >= limit and asked.at > asked.task.cursor_at:
        line = f"It does not fire: max_fires is {limit}, and {asked.task.accepted} fires have been accepted."
        return Explanation("limit", (line,))
    resumes_at = asked.task.wake_at if asked.task.state is TaskState.PAUSED else None
    if (resumes_at is None or asked.at <= resumes_at) and (stopped := _stopped(asked.task)) is not None:
        return stopped
    return _future(asked) if asked.at > asked.now else _not_yet_planned(asked)


def _stopped(task: Task) -> Explanation | None:
    why = f": {task.reason}" if task.reason else ""
    back = f" It resumes automatically at {rfc3339(task.wake_at)}." if task.wake_at else ""
    skipped = "Times that come due meanwhile are skipped when it is"
    lines = {
        TaskState.PAUSED: f"The task is paused{why}. {skipped} resumed.{back}",
        TaskState.DISABLED: f"The task is disabled. {skipped} enabled.",
        TaskState.QUARANTINED: f"The task is quarantined{why}. It does not fire until it is resumed.",
        TaskState.DELETED: "The task was deleted. It does not fire again.",
        TaskState.DONE: "The task is done and does not fire again.",
        TaskState.EXPIRED: "The task has ended: its schedule names no more times within its bounds.",
    }
    if task.id.startswith("loop-") or task.definition.is_self_paced:
        lines[TaskState.DISABLED] = f"The loop is stopped. {skipped} resumed."
    if task.state not in lines:
        return None
    verdict = "budget" if task.state is TaskState.PAUSED and task.reason.startswith(BUDGET) else task.state.value
    return Explanation(verdict, (lines[task.state],))


def _future(asked: Question) -> Explanation:
    definition = asked.task.definition
    due_at = due_of(asked.task.id, timetable_of(asked.definition), asked.definition.jitter)(asked.at)
    put_off = f", delayed by its jitter to {rfc3339(due_at)}" if due_at != asked.at else ""
    grace = format_duration(definition.grace)
    fires = f"It will fire at {rfc3339(asked.at)}{put_off}, as {asked.task.id}@{asked.at:%Y%m%dT%H%M%SZ}."
    late = f"If it cannot be sent within the grace of {grace}, catch-up {definition.catch_up} decides;"
    lines = [fires, f"{late} if the task's previous fire is still under way, overlap {definition.overlap}."]
    if asked.task.state is TaskState.PAUSED and asked.task.wake_at is not None:
        lines.append(f"The task is paused, and resumes automatically before it, at {rfc3339(asked.task.wake_at)}.")
    if any(fire.outcome in model.HALTED for fire in asked.open):
        lines.append("A fire of the task waits for you. No other fire is sent until you decide.")
    return Explanation("future", tuple(lines))


def _not_yet_planned(asked: Question) -> Explanation:
    halted = next((fire for fire in asked.open if fire.outcome in model.HALTED), None)
    busy = next((fire for fire in asked.open if fire.outcome in model.UNDER_WAY), None)
    if halted is not None:
        held = "" if halted.outcome is Outcome.INTERRUPTED else " is held and"
        line = (
            f"It has not been planned: {halted.fire_id}{held} waits for you: turnkeeper approvals list. It counts as"
            f" missed, and after your decision catch-up {asked.task.definition.catch_up} decides."
        )
        return Explanation(halted.outcome.value, (line,))
    if busy is not None and asked.task.definition.overlap is model.Overlap.SKIP:
        line = (
            f"It has not been planned: {busy.fire_id} was running at the last contact. When its end is known, times "
            "that came due before that end are skipped (overlap skip), and later times count as missed."
        )
    elif busy is not None:
        line = f"It has not been planned: {_busy(busy)}."
    elif asked.at <= asked.task.cursor_at:
        line = "The ledger has no entry for it: it came due at the moment of an edit, or the clock was changed."
    else:
        line = "It is due and has not been planned: the runner has not run since."
    return Explanation("unplanned", (line,))


def _busy(fire: Fire) -> str:
    if fire.outcome is Outcome.SENT and fire.fired_at is not None:
        return f"{fire.fire_id} was sent at {rfc3339(fire.fired_at)}, and the agent runtime has not answered"
    return f"{fire.fire_id} is running"


def _not_scheduled(asked: Question) -> Explanation:
    for verdict, line, bare in _reasons(asked):
        if timetable_of(bare).last_at_or_before(asked.at) == asked.at:
            return Explanation(verdict, (line,))
    timetable = timetable_of(asked.definition)
    before, after = timetable.last_at_or_before(asked.at), timetable.next_after(asked.at)
    near = [f"the previous time is {rfc3339(before)}" if before else "", f"the next {rfc3339(after)}" if after else ""]
    neighbours = ", ".join(part for part in near if part)
    line = f"The schedule does not include that time{': ' if neighbours else ''}{neighbours}."
    other = next((each for each in asked.revisions if _names(each.definition, asked.at)), None)
    if other is None:
        return Explanation("not_nominal", (line,))
    does = f"Revision {other.number}, in force from {rfc3339(other.valid_from)}, includes that time."
    return Explanation("superseded", (line, does))


def _reasons(asked: Question) -> list[tuple[str, str, Definition]]:
    """Return each rule that may exclude a time, with the definition without that rule."""
    definition = asked.definition
    open_ended = replace(definition, start_at=None, end_at=None, expires_at=None)
    bounds = ", ".join(
        f"{name} is {rfc3339(at)}" for name in ("start_at", "end_at", "expires_at") if (at := getattr(definition, name))
    )
    found: list[tuple[str, str, Definition]] = []
    if definition.exclude:
        found.append(("excluded", "The schedule includes it, but it is excluded.", replace(definition, exclude=())))
    off = replace(definition, ignore_calendar=True)  # without a calendar, the definition includes the same times
    found.append(("excluded", "The schedule includes it, but the home's calendar excludes it.", off))
    if bounds:
        found.append(("outside_bounds", f"The schedule includes it, but it lies outside: {bounds}.", open_ended))
    return found


def _is_scheduled(asked: Question) -> bool:
    return _names(asked.definition, asked.at)


def _names(definition: Definition, at: datetime) -> bool:
    return timetable_of(definition).next_after(at - _ONE_SECOND) == at


def _also_fired(entry: Fire) -> list[str]:
    """Describe the other fires for the time, both sent and planned."""
    if entry.kind is FireKind.SCHEDULED and entry.outcome is Outcome.COALESCED and entry.fire_id:
        return [f"{entry.fire_id} was committed for it and was merged into {entry.reason}."]
    if entry.kind in {FireKind.SCHEDULED, FireKind.EVENT}:
        return []
    how = "manually" if entry.kind is FireKind.MANUAL else "by a backfill"
    return [f"In addition, {entry.fire_id} was requested {how}: {entry.outcome}."]


def _entry(entry: Fire, at: datetime, definition: Definition, opened: Sequence[Fire] = ()) -> tuple[str, list[str]]:
    """Return one word and sentences about a time that an entry covers, under the definition in force then.

    `opened` are the task's open entries.
    """
    lines: list[str] = []
    if entry.count > 1:
        run = f"{entry.count} scheduled times from {rfc3339(entry.first_at)} to {rfc3339(entry.last_at)}"
        lines.append(f"{entry.fire_id} stands for {run}." if entry.fire_id else f"One entry covers {run}.")
    if entry.outcome is Outcome.SKIPPED:
        return "skipped", [*lines, _skipped(entry, definition)]
    if entry.outcome is Outcome.PRUNED:
        return "pruned", [*lines, "Its outcome was pruned from the history."]
    if entry.outcome is Outcome.WAITING:
        busy = next((_busy(fire) for fire in opened if fire.outcome in model.UNDER_WAY), "The previous fire is open")
        what = f"{busy}: it waits in one entry with further times that come due, and is sent after that fire."
        if entry.reason == overlap.CANCELS:
            what += " The turn is asked to end at its next await (overlap cancel-running)."
        return "coalesced", [*lines, what]
    if definition.thread_id == model.EACH_FIRE:
        lines.append(f"It has its own thread: {entry.fire_id}.")
    lines += _sending(entry)
    lines += _turn(entry)
    if entry.outcome is Outcome.INTERRUPTED and (ends := definition.approval_timeout) is not None:
        lines.append(f"Its request expires {format_duration(ends)} after it was made, if no one answers.")
    if entry.nominal_at != at:
        return "stood_for", lines
    late = entry.fired_at is not None and entry.fired_at > entry.due_at + definition.grace
    return ("late" if late and entry.outcome is Outcome.SUCCEEDED else entry.outcome.value), lines


def _skipped(entry: Fire, definition: Definition) -> str:
    text = _SKIPPED.get(entry.reason, f"It was skipped: {entry.reason}.")
    if entry.reason.startswith(event_triggers.DEBOUNCED):
        fire_id = entry.reason.removeprefix(event_triggers.DEBOUNCED)
        text = f"It came within the debounce of {fire_id}, the fire of an event, which also covers it."
    window = format_duration(definition.catch_up_window) if definition.catch_up_window is not None else "none"
    return text.format(grace=format_duration(definition.grace), window=window, most=definition.max_catch_up)


def _sending(entry: Fire) -> list[str]:
    came = "asked for" if entry.kind is FireKind.MANUAL else "due"
    due = f"It was {came} at {rfc3339(entry.due_at)}"
    if entry.due_at > entry.nominal_at:
        why = "the event by its debounce" if entry.kind is FireKind.EVENT else "its scheduled time by its jitter"
        put_off = entry.due_at - entry.nominal_at
        # The name of an event or a manual fire contains the second when it happened.
        within = entry.kind in {FireKind.EVENT, FireKind.MANUAL} and put_off < _ONE_SECOND
        due += "" if within else f", {_after(put_off)} {why}"
    lines = [f"{due}."]
    if entry.caught_up:
        how = "one fire for all" if entry.policy is CatchUp.RUN_ONCE else "each by itself"
        lines.append(f"It was missed and caught up by catch-up {entry.policy} ({how}).")
    if entry.outcome is Outcome.PENDING:
        when = f"from {rfc3339(entry.ready_at)} on" if entry.ready_at else "when the previous fire has ended"
        why = f" ({entry.reason})" if entry.reason else ""
        return [*lines, f"{entry.fire_id} is committed but not sent; it is sent {when}{why}."]
    if entry.fired_at is not None:
        late = entry.fired_at - entry.due_at
        lines.append(f"It was sent at {rfc3339(entry.fired_at)}, {_after(late)} it was {came}.")
    if entry.attempt > 1:
        lines.append(f"This is attempt {entry.attempt}: the runtime held an earlier one, or its turn failed.")
    return lines


def _turn(entry: Fire) -> list[str]:
    turn = f" {entry.turn_id}" if entry.turn_id else ""
    waits = f"{entry.reason} (turnkeeper approvals list)" if entry.reason else "waits for you"
    under_way = {
        Outcome.SENT: "The runtime has not answered: the fire is sent again, with the same id, until it does.",
        Outcome.ACCEPTED: f"The runtime accepted it as turn{turn}, which has not started.",
        Outcome.RUNNING: f"Its turn{turn} is running.",
        Outcome.INTERRUPTED: f"Its turn{turn} waits for you: turnkeeper approvals list.",
        Outcome.HELD: f"Its thread {waits}: the fire is held, and is sent again after the decision.",
    }
    if entry.outcome not in _ENDS:
        return [under_way[entry.outcome]] if entry.outcome in under_way else []
    ended = f" at {rfc3339(entry.ended_at)}" if entry.ended_at else ""
    why = f": {entry.reason}" if entry.reason else ""
    return [f"{_ENDS[entry.outcome]}{ended}{why}.{f' It is turn{turn}.' if turn else ''}"]


def _after(span: timedelta) -> str:
    return f"{format_rough(span.total_seconds())} after" if span > timedelta(milliseconds=1) else "when"


def _of_events(entries: Sequence[Fire]) -> list[Fire]:
    return sorted((each for each in entries if each.kind is FireKind.EVENT), key=lambda each: not each.fire_id)


def _events(definition: Definition, entries: Sequence[Fire], notes: Mapping[int, Note]) -> Explanation:
    """Explain the outcome of the events of one second, from the entries that the events made."""
    if not entries:
        return Explanation("no_event", ("No event that triggers the task arrived at that time.", *_awaited(definition)))
    lines = [line for entry in entries for line in _of_event(entry, notes.get(entry.entry_id), definition)]
    return Explanation(entries[0].outcome.value, tuple(lines), entries[0])


def _awaited(definition: Definition) -> list[str]:
    """Describe the events that a task fires for."""
    on = definition.on
    if on is None:
        return []
    if (words := describe(definition)).startswith("after ") and not on.debounce:
        late = f"a success before {rfc3339(on.since)} does not count"
        return [f"It fires {words} succeeded; {late}."]
    held = f" with {', '.join(on.filters)}" if on.filters else ""
    opens = "opens" if definition.is_hybrid else "closes"
    span = format_duration(on.debounce)
    window = f", once in {span}, when that window {opens}" if on.debounce else ""
    return [f"It fires for every {on.event}{held}{window}; events before {rfc3339(on.since)} do not count."]


def _of_event(entry: Fire, note: Note | None, definition: Definition) -> list[str]:
    cause = []
    if note is not None and note.cause:
        how = "by way of" if len(note.chain) > 1 else "a fire of"
        chain = f", {how} {' → '.join(note.chain)}" if note.chain else ""
        cause = [f"That event came from {note.cause}{chain}."]
    if entry.fire_id:
        event = f"{note.event} ({note.event_id}) of {rfc3339(note.at)}" if note else "an event"
        return [f"{entry.fire_id} was triggered by {event}.", *cause, *_entry(entry, entry.nominal_at, definition)[1]]
    span = f"at {rfc3339(entry.last_at)}"
    if entry.count > 1:
        span = f"from {rfc3339(entry.first_at)} to {rfc3339(entry.last_at)}"
    newest = f", the newest {note.event} ({note.event_id})" if note else ""
    line = f"{entry.count} trigger{'s' if entry.count > 1 else ''} {span}{newest}:"
    if entry.outcome is Outcome.COALESCED:
        return [f"{line} within its window, or before it was sent, each was merged into {entry.reason}."]
    why = _SKIPPED_EVENTS.get(entry.reason, f"The task was {entry.reason} at that time.")
    return [f"{line} skipped ({entry.reason}). {why}", *cause]


def _wakes(asked: Question) -> Explanation:
    """Explain the newest wake of a self-paced task up to a time, and the next wake."""
    wakes = [entry for entry in asked.newest if entry.kind is FireKind.WAKE]
    past = [wake for wake in wakes if wake.nominal_at <= asked.at]
    if not past or asked.at > asked.now:
        return _next_wake(asked.task, wakes)
    wake, before = past[0], past[1] if len(past) > 1 else None
    verdict, lines = _entry(wake, wake.nominal_at, asked.definition)
    following = _next_wake(asked.task, wakes).lines if wake is wakes[0] else ()
    return Explanation(verdict, (_numbered(wake, before, asked.at), *lines, *following), wake)


def _numbered(wake: Fire, before: Fire | None, at: datetime) -> str:
    asked = "" if wake.nominal_at == at else f", the newest wake up to {rfc3339(at)}"
    number = wake.fire_id.rpartition("~w")[2]
    line = f"{wake.fire_id} is iteration {number}{asked}, armed for {rfc3339(wake.nominal_at)}."
    if before is None or before.ended_at is None or before.ended_at > wake.nominal_at:
        return line
    later = format_rough((wake.nominal_at - before.ended_at).total_seconds())
    return f"{line} The previous one, turn {before.turn_id or before.fire_id}, ended {later} earlier."


def _next_wake(task: Task, wakes: Sequence[Fire]) -> Explanation:
    pacing = task.pacing
    opened = next((wake for wake in wakes if wake.outcome in model.OPEN), None)
    if task.state in {TaskState.DONE, TaskState.EXPIRED}:
        line = f"The task has ended: {task.reason or 'it does not wake again'}."
        return Explanation(task.state.value, (line,))
    if opened is not None:
        line = f"{opened.fire_id} is {opened.outcome}: the end of its turn determines if and when the next wake comes."
        if pacing is not None and pacing.armed_at is not None:
            line += f"If the turn requests no time, that is at {rfc3339(pacing.armed_at)}: {pacing.why}."
        return Explanation(opened.outcome.value, (line, _if_silent(task.definition)))
    if pacing is None or pacing.armed_at is None:
        why = pacing.why if pacing is not None and pacing.why else "no turn or command has requested one"
        return Explanation("unarmed", (f"No wake is armed: {why}.",))
    line = f"The next wake, iteration {pacing.iteration + 1}, comes at {rfc3339(pacing.armed_at)}: {pacing.why}."
    missed = "If it is missed, it runs once, as soon as possible."
    return Explanation("future", (line, missed, _if_silent(task.definition)))


def _if_silent(definition: Definition) -> str:
    what = {"end": "the task ends", "wait": "it waits for: turnkeeper loop reschedule"}.get(
        definition.if_silent, f"the next comes {definition.if_silent} later"
    )
    delay = format_duration(definition.first) if definition.first is not None else ""
    first = f" It woke first {delay} after its creation." if delay not in {"", "0s"} else ""
    return f"If a turn asks for no further wake, {what}.{first}"
