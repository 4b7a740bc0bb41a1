"""Event triggers: decide whether an event fires a task, and queue the fires of events. Pure.

The event that opens a debounce window names the fire. Further events within the window, or before the fire is sent, are
coalesced into that fire. Each trigger that does not fire is counted in an entry with the reason. So the fires, the
coalesced triggers and the skipped triggers add up to all triggers.
"""

from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from types import MappingProxyType

from task_runner.model import task as model
from task_runner.model.events import LIFECYCLE, Event
from task_runner.planner import entries
from task_runner.planner.overlap import CANCELS, OVERLAP, QUEUE_FULL, asks_no_more
from task_runner.timetable import LEAST, Timetable

# The longest chain of fires that trigger each other, and the maximum number of fires of one task within an hour.
LONGEST_CHAIN = 8
MOST_AN_HOUR = 60
HOURLY = timedelta(hours=1)
OUTSIDE = "outside_bounds"
QUEUED = "queued"
LIMIT = "max_fires"
DEBOUNCED = "debounced: "
OWN_CHAIN, TOO_LONG, TOO_MANY = "storm: own chain", f"storm: chain of {LONGEST_CHAIN}", f"storm: {MOST_AN_HOUR} in 1h"
TAKEN = "same id"
_STOPPED = frozenset({model.TaskState.PAUSED, model.TaskState.DISABLED, model.TaskState.QUARANTINED})


@dataclass(frozen=True, kw_only=True, slots=True)
class Trigger:
    """An event that passes all filters of a task.

    Attributes:
        chain: the tasks whose fires led to the event, oldest first.
    """

    event: Event
    chain: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Standing:
    """The state of a task that :func:`decide` needs to decide about its triggers.

    Attributes:
        open: the task's open entries, of every kind.
        newest: its newest fire of an event, settled or not.
        opened_at: the time of the event that opened the debounce window of `newest`.
        records: the records of triggers since `opened_at`.
        clock: for a hybrid task, its newest scheduled fire; events close to that fire are coalesced into it.
        hourly: the times of the events that caused its newest fires, oldest first; at most `MOST_AN_HOUR`.
    """

    task: model.Task
    open: tuple[model.Fire, ...] = ()
    newest: model.Fire | None = None
    opened_at: datetime | None = None
    records: tuple[model.Fire, ...] = ()
    clock: model.Fire | None = None
    hourly: tuple[datetime, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Decided:
    """The changes to write.

    Attributes:
        fires: new fires, oldest first, each with its trigger.
        records: new and extended records, each with its newest trigger.
        withdrawn: queued fires that newer fires replace.
        counts: number of triggers recorded now, by outcome and reason.
    """

    fires: tuple[tuple[model.Fire, Trigger], ...] = ()
    records: tuple[tuple[model.Fire, Trigger], ...] = ()
    withdrawn: tuple[model.Fire, ...] = ()
    counts: Mapping[tuple[model.Outcome, str], int] = field(default_factory=dict)


def decide(
    standing: Standing, triggers: Iterable[Trigger], now: datetime, *, refused: Mapping[str, str] = MappingProxyType({})
) -> Decided:
    """Decide about the triggers of a task, one after the other.

    Args:
        refused: by event id, a reason why the trigger must not fire; it overrides the rules.
    """
    decision = _Decision(standing=standing, now=now, refused=refused)
    for trigger in triggers:
        decision.take(trigger)
    return decision.decided()


def next_step(
    task: model.Task, opened: Sequence[model.Fire], now: datetime, *, resumed: bool
) -> tuple[model.Task, tuple[model.Fire, ...]]:
    """Return the next state of an active task that only events trigger, and its changed fires.

    Release the first queued fire if no fire is ahead of it. Drop all requests to cancel the turn ahead if it waits for
    its author, if it continues after an answer (`resumed`), or if the policy is no longer `cancel-running`.
    """
    limit, end = task.definition.max_fires, task.definition.ends_at
    task = model.replace(task, wake_at=ends_after(task.definition, now))
    if rows := [row for row in opened if row.kind in model.COUNTED]:
        if released_ := releasing(task, rows, now):
            return task, (released_,)
        halted = any(row.outcome in model.HALTED for row in rows)
        asks = task.definition.overlap is model.Overlap.CANCEL_RUNNING and not halted and not resumed
        return task, () if asks else asks_no_more(rows)
    if limit is not None and task.accepted >= limit:
        reason = f"max_fires is {limit}, and {task.accepted} were accepted"
        return model.replace(task, state=model.TaskState.DONE, reason=reason, wake_at=None), ()
    if end is not None and now > end:
        return model.replace(task, state=model.TaskState.EXPIRED, wake_at=None), ()
    return task, ()


def ends_after(definition: model.Definition, now: datetime) -> datetime | None:
    """Return the first instant after a task's end; None if the task has no end or the end has passed."""
    end = definition.ends_at
    return None if end is None or now > end else end + LEAST


def releasing_after(snapshot: model.Snapshot, made: entries.Plan, now: datetime) -> entries.Plan:
    """Extend a plan: if the plan ends the fire ahead of a queued fire of an event, release the queued fire."""
    newest = {row.entry_id: row for row in made.changed}
    rows = [*(newest.get(row.entry_id, row) for row in snapshot.open), *made.new]
    fire = releasing(made.task, [row for row in rows if row.outcome in model.OPEN], now)
    if fire is None:
        return made
    return model.replace(made, changed=(*(row for row in made.changed if row.entry_id != fire.entry_id), fire))


def giving_way(opened: Iterable[model.Fire], unsent: Iterable[model.Fire], now: datetime) -> tuple[model.Fire, ...]:
    """Return the waiting and queued fires as skipped if a fire of an event is unsent; else return no fires."""
    if not is_awaited(opened):
        return ()
    waits = (row for row in unsent if row.outcome is model.Outcome.WAITING or row.is_queued)
    return tuple(entries.settled_skipped(row, QUEUED, now) for row in waits)


def releasing(task: model.Task, rows: Sequence[model.Fire], now: datetime) -> model.Fire | None:
    """Return the first queued fire of an event as ready; None if no such fire is queued or another fire is ahead."""
    if any(_is_ahead(row) for row in rows):
        return None
    line = [row for row in rows if row.kind is model.FireKind.EVENT and row.is_queued]
    return entries.released(min(line, key=lambda row: row.entry_id), task, now) if line else None


def debounced(snapshot: model.Snapshot, timetable: Timetable, now: datetime) -> model.Fire | None:
    """Return a record of the due times in the debounce window of a hybrid task; None if there are none."""
    window, task = snapshot.window, snapshot.task
    if window is None:
        return None
    first = timetable.next_after(task.cursor_at)
    if first is None or first > now or not window.has(first):
        return None
    run = entries.run_between(timetable, task.cursor_at, min(now, window.at + window.debounce - LEAST))
    return entries.skipped_run(task, run, f"{DEBOUNCED}{window.fire_id}") if run else None


def is_awaited(rows: Iterable[model.Fire]) -> bool:
    """Return True if a fire of an event is unsent. Scheduled times that come due before it is sent get no fire."""
    return any(row.kind is model.FireKind.EVENT and row.outcome is model.Outcome.PENDING for row in rows)


def _is_ahead(row: model.Fire) -> bool:
    """Return whether a later fire of the task must wait for this fire."""
    if row.kind not in model.COUNTED:
        return False
    return row.outcome in model.UNDER_WAY | model.HALTED or (
        row.outcome is model.Outcome.PENDING and row.ready_at is not None
    )


@dataclass(kw_only=True)
class _Decision:
    standing: Standing
    now: datetime
    refused: Mapping[str, str]
    counts: Counter[tuple[model.Outcome, str]] = field(default_factory=Counter)
    fires: list[tuple[model.Fire, Trigger]] = field(default_factory=list)
    records: dict[tuple[model.Outcome, str], tuple[model.Fire, Trigger | None]] = field(default_factory=dict)
    finished: list[tuple[model.Fire, Trigger | None]] = field(default_factory=list)
    withdrawn: list[model.Fire] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._task = self.standing.task
        assert self._task.definition.on is not None
        self._on: model.EventTrigger = self._task.definition.on
        self._newest, self._opened_at = self.standing.newest, self.standing.opened_at
        self._hourly = list(self.standing.hourly)
        # Each new fire updates these values, so that no trigger has to search a queue of a thousand fires.
        rows = [row for row in self.standing.open if row.outcome in model.OPEN and row.kind in model.COUNTED]
        self._waits = any(map(_is_ahead, rows))
        self._halted = any(row.outcome in model.HALTED for row in rows)
        self._reserved = sum(row.accepted_at is None for row in rows)
        self._line = deque(row for row in rows if row.kind is model.FireKind.EVENT and row.is_queued)
        self.records = {(each.outcome, each.reason): (each, None) for each in self.standing.records}

    def take(self, trigger: Trigger) -> None:
        """Decide about one trigger."""
        if why := self.refused.get(trigger.event.id) or self._refusal(trigger):
            self._record(model.Outcome.SKIPPED, why, trigger)
        elif (into := self._goes_into(trigger.event.at)) is not None:
            self._record(model.Outcome.COALESCED, into.fire_id, trigger)
        elif why := self._no_place(trigger.event):
            self._record(model.Outcome.SKIPPED, why, trigger)
        else:
            self._fire(trigger)

    def decided(self) -> Decided:
        """Return the changes for all triggers taken so far."""
        records = (*self.finished, *self.records.values())
        touched = [(record, trigger) for record, trigger in records if trigger is not None]
        return Decided(
            fires=tuple(self.fires), records=tuple(touched), withdrawn=tuple(self.withdrawn), counts=self.counts
        )

    def _refusal(self, trigger: Trigger) -> str:
        """Return why a trigger must not fire, regardless of the task's other fires; empty if it may fire."""
        if self._task.state in _STOPPED:
            return self._task.state.value
        definition, at = self._task.definition, trigger.event.at
        end = definition.ends_at
        if (definition.start_at is not None and at < definition.start_at) or (end is not None and at > end):
            return OUTSIDE
        if self._task.id in trigger.chain:
            return OWN_CHAIN
        return TOO_LONG if len(trigger.chain) >= LONGEST_CHAIN else ""

    def _goes_into(self, at: datetime) -> model.Fire | None:
        """Return the fire that a trigger at this time is coalesced into; None if it needs a separate fire."""
        newest, debounce, clock = self._newest, self._on.debounce, self.standing.clock
        if clock is not None and model.Window(fire_id=clock.fire_id, at=clock.due_at, debounce=debounce).has(at):
            return clock
        if newest is None or newest.outcome is model.Outcome.SKIPPED:
            return None
        # The window also bounds earlier times, or it would stay open too long after the clock was set back.
        if self._opened_at is not None and model.Window(fire_id="", at=self._opened_at, debounce=debounce).has(at):
            return newest
        lines_up = self._task.definition.overlap is model.Overlap.QUEUE
        unsent = newest.outcome in {model.Outcome.PENDING, model.Outcome.HELD}
        return newest if unsent and not lines_up else None

    def _no_place(self, event: Event) -> str:
        """Return why no further fire is allowed; empty if one is allowed."""
        definition = self._task.definition
        if definition.max_fires is not None and self._task.accepted + self._reserved >= definition.max_fires:
            return LIMIT
        if definition.overlap is model.Overlap.SKIP and self._waits:
            return OVERLAP
        # With overlap `queue`, the hourly limit applies only to events from inside turns.
        counts = definition.overlap is not model.Overlap.QUEUE or event.name in LIFECYCLE
        recent = [at for at in self._hourly if event.at - HOURLY < at]
        return TOO_MANY if counts and len(recent) >= MOST_AN_HOUR else ""

    def _fire(self, trigger: Trigger) -> None:
        event, definition = trigger.event, self._task.definition
        nominal_at = event.at.replace(microsecond=0)
        # A hybrid task fires when its window opens.
        due_at = event.at if definition.is_hybrid else event.at + self._on.debounce
        asks = self._waits and not self._halted and definition.overlap is model.Overlap.CANCEL_RUNNING
        fire = entries.entry(
            self._task,
            entries.single(nominal_at),
            model.Outcome.PENDING,
            fire_id=model.fire_id(self._task.id, nominal_at, f"~e{event.id}"),
            kind=model.FireKind.EVENT,
            due_at=due_at,
            reason=CANCELS if asks else "",
            ready_at=None if self._waits else max(self.now, due_at),
            retries=definition.retries,
        )
        self._cut_line()
        self.fires.append((fire, trigger))
        self._reserved += 1
        if self._waits:
            self._line.append(fire)
        self._waits = True
        self._newest, self._opened_at = fire, event.at
        self._hourly.append(event.at)
        # Later records follow this fire, so they get separate entries.
        self.finished += self.records.values()
        self.records = {}

    def _cut_line(self) -> None:
        """Skip the oldest queued fire if the queue is full."""
        if len(self._line) < self._task.definition.max_catch_up:
            return
        oldest = self._line.popleft()
        self._reserved -= 1
        gone = entries.settled_skipped(oldest, QUEUE_FULL, self.now)
        if oldest.entry_id:
            self.withdrawn.append(gone)
        else:
            self.fires = [(gone if fire is oldest else fire, trigger) for fire, trigger in self.fires]

    def _record(self, outcome: model.Outcome, reason: str, trigger: Trigger) -> None:
        at = trigger.event.at.replace(microsecond=0)
        record, _ = self.records.get((outcome, reason), (None, None))
        if record is None:
            record = entries.entry(self._task, entries.single(at), outcome, kind=model.FireKind.EVENT, reason=reason)
        else:
            first, last = min(record.first_at, at), max(record.last_at, at)
            record = model.replace(
                record, count=record.count + 1, first_at=first, last_at=last, nominal_at=last, due_at=last
            )
        self.records[outcome, reason] = record, trigger
        self.counts[outcome, reason] += 1


def supersede(
    snapshot: model.Snapshot, timetable: Timetable, now: datetime, on: model.EventTrigger | None = None
) -> entries.Plan:
    """Skip the unsent fires whose scheduled time or event is not part of the task's new definition.

    Args:
        on: the event trigger of the old definition; None if it had none.
    """
    kept = snapshot.task.definition.on
    same_event = kept is not None and on is not None and kept.event == on.event
    paced = snapshot.task.definition.is_self_paced
    unsent = {model.Outcome.PENDING, model.Outcome.WAITING} if paced else {model.Outcome.PENDING}
    gone = [
        fire
        for fire in snapshot.open
        if fire.kind in model.COUNTED and fire.outcome in unsent
        if not (same_event if fire.kind is model.FireKind.EVENT else _names(timetable, fire))
    ]
    task = model.replace(snapshot.task, accepted=snapshot.task.accepted - entries.returned_places(gone))
    superseded = tuple(entries.settled_skipped(fire, "superseded", now) for fire in gone)
    return entries.Plan(task=task, changed=superseded, skipped=superseded, tail=snapshot.tail)


def _names(timetable: Timetable, fire: model.Fire) -> bool:
    # A wake is not a scheduled time, even if a schedule names the same second.
    return fire.kind is not model.FireKind.WAKE and timetable.last_at_or_before(fire.nominal_at) == fire.nominal_at
