"""Changes that authors make to tasks, each inside one transaction."""

import re
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any, TypeVar

from task_runner.model import task as model
from task_runner.model.task import Definition, Fire, FireKind, Snapshot, Task, TaskState
from task_runner.planner import budgets, entries, event_triggers, planner, self_paced
from task_runner.planner.entries import timetable_of
from task_runner.planner.log_records import LogRecord, committed
from task_runner.scheduler import planning
from task_runner.service.task_spec import MOST_PER_AGENT, Defaults, as_loop, parse_spec
from task_runner.store.store import Session
from turnkeeper.config.surfaces import required
from turnkeeper.entropy import Entropy
from turnkeeper.errors import Conflict, Exhausted, InvalidInput, NotFound
from turnkeeper.times import parse_rfc3339, rfc3339
from turnkeeper.v1 import schedules_pb2 as wire

T = TypeVar("T")
OVER_WITH_DAEMON = "the daemon stopped, and the task was ephemeral"
RESTORABLE = timedelta(days=1)
# The earlier state of a deleted task, the end of its pause, the time of deletion, and the reason for a stop.
_GONE = re.compile(r"was ([a-z]+)(?: until (\S+))?, deleted at (\S+?)(?:: (.*))?", re.DOTALL)
_BACK = {TaskState.DISABLED: "task.enabled", TaskState.DELETED: "task.restored"}
_MOST_DRAWS = 100
_STOPPED = frozenset({TaskState.PAUSED, TaskState.DISABLED, TaskState.QUARANTINED})


@dataclass(frozen=True, kw_only=True)
class Changed:
    """The result of a change.

    Attributes:
        events: records to write to the event log after the commit.
        action: for a declared task: created, updated, unchanged or deleted.
    """

    task: Task
    events: list[LogRecord] = field(default_factory=list)
    action: str = ""
    fields: tuple[str, ...] = ()


def find(session: Session, name: str) -> Task:
    """Return the task with this name or id. Raises NotFound."""
    task = session.tasks.find(name) if name else None
    if task is None:
        raise NotFound(f"no task named {name[:70]!r}", where="name", hint="see: turnkeeper task list")
    return task


def find_living(session: Session, name: str) -> Task:
    """Return the task with this name or id. Raises NotFound if no such task exists or the task is deleted."""
    task = find(session, name)
    if task.state is TaskState.DELETED:
        hint = f"it can be restored for a day: turnkeeper task restore {task.definition.name}"
        raise NotFound(f"{task.definition.name!r} was deleted", where="name", hint=hint)
    return task


def create(
    session: Session,
    spec: wire.TaskSpec,
    defaults: Defaults,
    now: datetime,
    entropy: Entropy,
    *,
    loop: bool = False,
    by: str = "",
) -> Changed:
    """Store a new task or loop, and record who or what created it.

    Raises:
        InvalidInput: the definition is not valid.
        AlreadyExists: another task has the name.
        Exhausted: the agent that creates the task has reached its limit of tasks.
    """
    (created,) = _create_all(session, [spec], defaults, now, entropy, by, loop=loop)
    return created


def update(
    session: Session,
    name: str,
    spec: wire.TaskSpec,
    defaults: Defaults,
    now: datetime,
    *,
    revision: int = 0,
    by: str = "",
) -> Changed:
    """Give a task a new definition from now on, and record who edited it. The edit does not make a past time due.

    If a new daily budget is already used up today, the task is paused until the next day. If the limit that stops the
    task is raised or removed, the task is resumed.

    Raises:
        Conflict: `revision` is neither 0 nor the task's newest revision.
    """
    task = find_living(session, name)
    if revision not in {0, task.revision}:
        what = f"{task.definition.name!r} was edited in the meantime"
        raise Conflict(what, hint="read its new definition: turnkeeper task show")
    definition = parse_spec(spec, defaults, now, previous=task.definition, own_id=task.id)
    if definition == task.definition:
        return Changed(task=task, action="unchanged")
    events: list[LogRecord] = []
    if budgets.lifts(task, definition):
        resumed = resume(session, task.id, now, replay=False)
        task, events = resumed.task, resumed.events
    events += _plan_up_to(session, task, now).events
    snapshot = _snapshot(session, task.id)
    revised = replace(
        snapshot.task,
        definition=definition,
        revision=task.revision + 1,
        cursor_at=max(now, snapshot.task.cursor_at),
        state=TaskState.ACTIVE if _begins_again(snapshot.task, definition) else snapshot.task.state,
        pacing=self_paced.edited(snapshot.task, definition, now),
    )
    same_times = timetable_of(definition) == timetable_of(task.definition)
    session.tasks.revise(revised, now, ends_tail=not same_times, by=by)
    paced = definition.is_self_paced and task.definition.is_self_paced
    if not paced and _waits_for(definition) != _waits_for(task.definition):
        fresh = replace(_snapshot(session, task.id), task=revised)
        gone = event_triggers.supersede(fresh, timetable_of(definition), now, task.definition.on)
        events += planning.write_plans(session, [(fresh, gone)]).events
    events += planning.plan_tasks(session, [task.id], now).events
    changed = changed_fields(task.definition, definition)
    why = budgets.used_up(revised, now) if "budget" in changed else ""
    if why and _snapshot(session, task.id).task.state is TaskState.ACTIVE:
        until = budgets.pauses_until(revised, why)
        events += stop(session, task.id, TaskState.PAUSED, why, now, until=until).events
    record = {"task_id": task.id, "revision": revised.revision, "fields": list(changed)}
    events.append(LogRecord("task.updated", record))
    return Changed(task=_snapshot(session, task.id).task, events=events, action="updated", fields=changed)


def apply(
    session: Session,
    specs: Sequence[wire.TaskSpec],
    defaults: Defaults,
    now: datetime,
    entropy: Entropy,
    *,
    keep: Collection[str] | None = None,
    by: str = "",
) -> list[Changed]:
    """Create or update several tasks, all or none. Raises InvalidInput, which names the invalid task.

    If `keep` is given, delete every task that is neither declared nor named in `keep`, except loops. Deleted tasks come
    last in the result.
    """
    names = [spec.name for spec in specs]
    if twice := next((name for name, count in Counter(names).items() if count > 1), None):
        raise InvalidInput(f"{twice!r} is declared twice", where="name")
    existing = session.tasks.named(names)
    fresh = [spec for spec in specs if spec.name not in existing]
    created = _create_all(session, fresh, defaults, now, entropy, by, named=True)
    done = {change.task.definition.name: change for change in created}
    for spec in specs:
        if spec.name in existing:
            done[spec.name] = _named(spec, partial(update, session, spec.name, spec, defaults, now, by=by))
    gone = [] if keep is None else _prune(session, {*names, *keep}, now)
    return [*(done[name] for name in names), *gone]


def _prune(session: Session, declared: Collection[str], now: datetime) -> list[Changed]:
    """Delete every task that is not declared, except loops. Return the deleted tasks by name."""
    gone = sorted(
        task.definition.name
        for task in session.tasks.listed()
        if task.definition.name not in declared and not task.id.startswith("loop-")
    )
    return [replace(stop(session, name, TaskState.DELETED, "", now), action="deleted") for name in gone]


def stop(
    session: Session, name: str, state: TaskState, note: str, now: datetime, *, until: datetime | None = None
) -> Changed:
    """Pause (permanently, or `until` a time), disable or delete a task.

    The task's cursor stops, and its unsent fires are withdrawn.
    """
    task = find_living(session, name)
    if task.state is state:
        return Changed(task=_noted(session, task, note, until) if state is TaskState.PAUSED else task)
    if state is TaskState.PAUSED and task.state is not TaskState.ACTIVE:
        raise Conflict(f"{task.definition.name!r} is {task.state}", hint="only an active task can be paused")
    snapshot = _snapshot(session, task.id)
    if state is TaskState.DELETED and not note:
        note = _gone(task, now)
    timetable, manual = timetable_of(task.definition), state is not TaskState.PAUSED
    withdrawn = planner.withdraw(snapshot, timetable, state.value, now, manual=manual)
    plan = replace(withdrawn, task=replace(withdrawn.task, state=state, reason=note, wake_at=until))
    done = planning.write_plans(session, [(snapshot, plan)])
    return Changed(task=plan.task, events=done.events)


def _gone(task: Task, now: datetime) -> str:
    """Return the note that :func:`restore` needs to restore a deleted task."""
    is_paused = task.state is TaskState.PAUSED
    until = f" until {rfc3339(task.wake_at)}" if is_paused and task.wake_at is not None else ""
    why = f": {task.reason}" if task.reason and task.state in _STOPPED else ""
    return f"was {task.state}{until}, deleted at {rfc3339(now)}{why}"


def resume(session: Session, name: str, now: datetime, *, replay: bool) -> Changed:
    """Resume a stopped task. Times due meanwhile become one skipped run; with `replay`, they count as missed."""
    task = find_living(session, name)
    if task.state is TaskState.ACTIVE:
        return Changed(task=task)
    if task.state not in _STOPPED:
        hint = "set when it wakes: turnkeeper loop reschedule" if task.definition.is_self_paced else ""
        raise Conflict(f"{task.definition.name!r} is {task.state}", hint=hint)
    return _go_on(session, task, now, replay=replay)


def restore(session: Session, name: str, now: datetime) -> Changed:
    """Restore a task that was deleted within the last day, in its earlier state. Times since then are skipped.

    Raises:
        NotFound: the task does not exist.
        Conflict: the task is not deleted, was deleted earlier or by its daemon, or another task now has its name.
    """
    task = find(session, name)
    called, gone = task.definition.name, _GONE.fullmatch(task.reason)
    if task.state is not TaskState.DELETED:
        raise Conflict(f"{called!r} is not deleted")
    if gone is None or now - parse_rfc3339(gone[3]) > RESTORABLE:
        raise Conflict(f"{called!r} was deleted more than a day ago", hint="create it again")
    if find(session, called).state is not TaskState.DELETED:
        raise Conflict(f"another task is named {called!r} now", where="name")
    done = _go_on(session, task, now, replay=False)
    if gone[1] in {TaskState.PAUSED, TaskState.DISABLED, TaskState.QUARANTINED}:
        before = TaskState.PAUSED if gone[1] == TaskState.PAUSED else TaskState.DISABLED
        until = parse_rfc3339(gone[2]) if gone[2] else None
        stopped = stop(session, task.id, before, gone[4] or "", now, until=until)
        return replace(stopped, events=done.events + stopped.events)
    return done


def _go_on(session: Session, task: Task, now: datetime, *, replay: bool) -> Changed:
    snapshot = _snapshot(session, task.id)
    active = replace(self_paced.resumed(snapshot.task), state=TaskState.ACTIVE, reason="", failures=0)
    plan = entries.Plan(task=active, tail=snapshot.tail)
    if not replay:
        timetable = timetable_of(task.definition)
        plan = planner.pass_over(replace(snapshot, task=active), timetable, task.state.value, now)
    done = planning.write_plans(session, [(snapshot, plan)])
    events = [event for event in done.events if event.name != "task.active"]
    record = _BACK.get(task.state, "task.resumed")
    events.append(LogRecord(record, {"task_id": task.id, "replay": replay}))
    events += planning.plan_tasks(session, [task.id], now).events
    return Changed(task=_snapshot(session, task.id).task, events=events)


def run_now(
    session: Session, name: str, request_id: str, now: datetime, asked: wire.RunTaskRequest | None = None
) -> tuple[Fire, list[LogRecord], Task]:
    """Commit a manual fire. If the request is repeated, return the same fire.

    Args:
        asked: the request, if it gives a prompt, an input or values for this fire.
    """
    task = find_living(session, name)
    existing = session.fires.by_request(task.id, request_id)
    if existing is not None:
        return existing, [], task
    if task.state in {TaskState.DISABLED, TaskState.QUARANTINED}:
        hint = f"first run: turnkeeper task resume {task.definition.name}"
        raise Conflict(f"{task.definition.name!r} is {task.state}", hint=hint)
    manual = {"kind": FireKind.MANUAL, "request_id": request_id, "due_at": now}
    fire = requested(task, now.replace(microsecond=0), f"~m{request_id}", now, **manual)
    given = task if asked is None else replace(task, definition=required("a run as asked", task.definition, asked))
    written = session.fires.add(fire, planning.frozen_request(given, session.at_home))
    return written, [committed(written)], task


def requested(task: Task, nominal_at: datetime, suffix: str, now: datetime, **fields_: Any) -> Fire:
    """Return a pending fire that was requested individually."""
    return entries.entry(
        task,
        entries.single(nominal_at),
        model.Outcome.PENDING,
        fire_id=model.fire_id(task.id, nominal_at, suffix),
        ready_at=now,
        retries=task.definition.retries,
        **fields_,
    )


def _plan_up_to(session: Session, task: Task, now: datetime) -> planning.Planned:
    """Plan all times up to now under the schedule in force until now."""
    timetable, done = timetable_of(task.definition), planning.Planned()
    if task.state not in _STOPPED:
        snapshot = _snapshot(session, task.id)
        plan = planner.plan(snapshot, timetable, now, halted_waits=True)
        done = planning.write_plans(session, [(snapshot, plan)])
    snapshot = _snapshot(session, task.id)
    if task.state not in _STOPPED and snapshot.task.cursor_at >= now:
        return done
    # The limit on fires stops the cursor, and the new definition may have a different limit.
    reason = task.state.value if task.state in _STOPPED else "max_fires"
    return done + planning.write_plans(session, [(snapshot, planner.pass_over(snapshot, timetable, reason, now))])


def _snapshot(session: Session, task_id: str) -> Snapshot:
    (snapshot,) = session.tasks.snapshots([task_id])
    return snapshot


def _noted(session: Session, task: Task, note: str, until: datetime | None) -> Task:
    snapshot = _snapshot(session, task.id)
    noted = replace(task, reason=note, wake_at=until)
    planning.write_plans(session, [(snapshot, entries.Plan(task=noted, tail=snapshot.tail))])
    return noted


def changed_fields(one: Definition, other: Definition) -> tuple[str, ...]:
    """Return the names of the fields that differ between two definitions."""
    return tuple(each.name for each in fields(Definition) if getattr(one, each.name) != getattr(other, each.name))


def _create_all(
    session: Session,
    specs: Sequence[wire.TaskSpec],
    defaults: Defaults,
    now: datetime,
    entropy: Entropy,
    by: str,
    *,
    named: bool = False,
    loop: bool = False,
) -> list[Changed]:
    ids = _draw_ids(session, entropy, len(specs), "loop" if loop else "task")
    if named:
        ids = _restored(session, specs, ids, entropy)
    if loop:
        specs = [as_loop(spec, id_) for spec, id_ in zip(specs, ids, strict=True)]
    alike: dict[bytes, Task] = {}
    new = [
        _named(spec, partial(_new_task_like, spec, id_, defaults, now, alike))
        if named
        else _new_task(spec, id_, defaults, now)
        for spec, id_ in zip(specs, ids, strict=True)
    ]
    _check_room(session, new)
    session.tasks.add(new, by)
    return [Changed(task=task, events=[_created(task)], action="created") for task in new]


def _restored(
    session: Session, specs: Sequence[wire.TaskSpec], drawn: Sequence[model.TaskId], entropy: Entropy
) -> list[model.TaskId]:
    """Return the ids of declared tasks. A loop gets its own id, or a new loop id if any task has ever had its id."""
    own = [_loop_id(spec) for spec in specs]
    counts = Counter(filter(None, own))
    if not counts:
        return list(drawn)
    if twice := next((id_ for id_, count in counts.items() if count > 1), None):
        raise InvalidInput(f"{twice!r} is declared twice", where="id")
    taken = session.tasks.ids_taken(counts)
    others = iter([id_ for id_ in _draw_ids(session, entropy, 2 * len(counts), "loop") if id_ not in counts])
    return [
        drawn_id if id_ is None else next(others) if id_ in taken else id_
        for id_, drawn_id in zip(own, drawn, strict=True)
    ]


def _loop_id(spec: wire.TaskSpec) -> model.TaskId | None:
    """Return the id that a declared loop had: its `id` or its name. Return None for other tasks."""
    said = spec.id or spec.name
    if said.startswith("loop-") and model.is_task_id(said):
        return model.TaskId(said)
    if spec.id:
        hint = "omit the id: only loops are declared with their earlier ids"
        raise InvalidInput(f"{spec.id[:70]!r} is not a loop's id", where=f"{spec.name}: id", hint=hint)
    return None


def _new_task_like(
    spec: wire.TaskSpec, task_id: model.TaskId, defaults: Defaults, now: datetime, alike: dict[bytes, Task]
) -> Task:
    """Return a new task as :func:`_new_task` does. Parse only one of several specs that differ only in their names.

    `alike` contains the tasks that were parsed, keyed by their specs without the name.
    """
    name = spec.name
    spec.ClearField("name")
    rest = spec.SerializePartialToString(deterministic=True)
    spec.name = name
    like = alike.get(rest)
    # A hash in a cron expression and a named thread depend on the task's name and id.
    if like is None or spec.thread_id or "H" in like.definition.schedule.text:
        alike[rest] = task = _new_task(spec, task_id, defaults, now)
        return task
    model.check_name(name, own_id=task_id)
    return model.replace(like, id=task_id, definition=model.replace(like.definition, name=name))


def _new_task(spec: wire.TaskSpec, task_id: model.TaskId, defaults: Defaults, now: datetime) -> Task:
    definition = parse_spec(spec, defaults, now, own_id=task_id)
    pacing = self_paced.begun(definition, now) if definition.is_self_paced else None
    wake_at = pacing.armed_at if pacing else timetable_of(definition).next_after(now)
    if definition.on is not None:
        wake_at = wake_at or now
    if wake_at is None:
        raise InvalidInput("never fires within its bounds", where="schedule", hint="check start_at and end_at")
    state = TaskState.PAUSED if spec.paused else TaskState.ACTIVE
    return Task(
        id=task_id,
        definition=definition,
        state=state,
        created_at=now,
        cursor_at=now,
        wake_at=wake_at if state is TaskState.ACTIVE else None,
        pacing=pacing,
    )


def _check_room(session: Session, new: Sequence[Task]) -> None:
    made = Counter(task.definition.created_by.agent for task in new if task.definition.created_by)
    for agent, count in made.items():
        present = session.tasks.made_by(agent)
        # A repeated call creates nothing. It fails because the task exists.
        if present + count > MOST_PER_AGENT and not session.tasks.named([task.definition.name for task in new]):
            what = f"agent {agent!r} has {present} tasks that have not ended, and the limit is {MOST_PER_AGENT}"
            raise Exhausted(what, where="created_by", hint="delete a task that the agent no longer needs")


def _begins_again(task: Task, definition: Definition) -> bool:
    """Return whether an edit reactivates an ended task. An ended self-paced task is reactivated by a reschedule."""
    ended = task.state in {TaskState.DONE, TaskState.EXPIRED}
    return ended and not (task.definition.is_self_paced and definition.is_self_paced)


def _waits_for(definition: Definition) -> tuple[object, ...]:
    """Return the values that determine when a task fires."""
    return definition.schedule, definition.timezone, definition.on and definition.on.event


def _created(task: Task) -> LogRecord:
    fields_ = {"task_id": task.id, "name": task.definition.name, "category": task.definition.category}
    return LogRecord("task.created", fields_)


def _named(spec: wire.TaskSpec, change: Callable[[], T]) -> T:
    """Apply a change to a task. If the change fails, name the task in the error."""
    try:
        return change()
    except InvalidInput as error:
        error.where = f"{spec.name}: {error.where}"
        raise


def _draw_ids(session: Session, entropy: Entropy, count: int, kind: str) -> list[model.TaskId]:
    ids: set[str] = set()
    for _ in range(_MOST_DRAWS):
        drawn = {f"{kind}-{entropy.hex(8)}" for _ in range(count - len(ids))}
        ids |= drawn - session.tasks.ids_taken(drawn)
        if len(ids) == count:
            return [model.TaskId(drawn_id) for drawn_id in sorted(ids)]
    raise Conflict("no free task id was found", hint="try again")


def reschedule(session: Session, name: str, seconds: int, now: datetime) -> Changed:
    """Set the next wake of a self-paced task to `seconds` from now. Replace the armed wake and any unsent one.

    Raises:
        NotFound: the task does not exist.
        Conflict: the task has its own schedule, cannot fire now, or has reached `max_fires`.
        InvalidInput: the number of seconds is out of range.
    """
    task = find_living(session, name)
    called, definition = task.definition.name, task.definition
    if not definition.is_self_paced:
        what = f"{called!r} is not self-paced: its schedule determines its next fire"
        raise Conflict(what, hint="change the schedule with: turnkeeper task edit")
    if task.state in {TaskState.DISABLED, TaskState.QUARANTINED}:
        raise Conflict(f"{called!r} is {task.state}", hint=f"first run: turnkeeper task resume {called}")
    if definition.max_fires is not None and task.accepted >= definition.max_fires:
        raise Conflict(f"{called!r} has fired {task.accepted} times, and max_fires is {definition.max_fires}")
    delay = timedelta(seconds=max(-1, min(seconds, self_paced.LONGEST_DELAY // timedelta(seconds=1) + 1)))
    snapshot = _snapshot(session, task.id)
    armed = self_paced.rescheduled(snapshot.task, now, delay)
    unsent = [fire for fire in snapshot.open if fire.kind is FireKind.WAKE and fire.outcome is model.Outcome.PENDING]
    plan = self_paced.without_wakes(snapshot, armed, unsent, "rescheduled", now)
    done = planning.write_plans(session, [(snapshot, plan)])
    done += planning.plan_tasks(session, [task.id], now)
    return Changed(task=_snapshot(session, task.id).task, events=done.events)


def end_ephemeral(session: Session, now: datetime) -> list[LogRecord]:
    """Delete the ephemeral tasks. Return the log records."""
    events: list[LogRecord] = []
    for task in session.tasks.ephemeral():
        events += stop(session, task.id, TaskState.DELETED, OVER_WITH_DAEMON, now).events
    return events
