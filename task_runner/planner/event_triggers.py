"""What events do to the tasks that they trigger: a fire, or a record of none; and how those fires line up. Pure.

A fire of an event is named by the event that opened its debounce window. Whatever else comes within the window, or
while that fire has not been sent, goes into it. Whatever does not fire is counted in an entry that says why, so that
fires, coalesced and skipped triggers come to as many as there were.
"""

from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from types import MappingProxyType

from task_runner.model.events import LIFECYCLE, Event
from task_runner.model.task import (
    COUNTED,
    HALTED,
    OPEN,
    UNDER_WAY,
    Definition,
    EventTrigger,
    Fire,
    FireKind,
    Outcome,
    Overlap,
    Snapshot,
    Task,
    TaskState,
    Window,
    fire_id,
    replace,
)
from task_runner.planner import entries, self_paced
from task_runner.planner.entries import Plan
from task_runner.planner.overlap import CANCELS, OVERLAP, QUEUE_FULL, asks_no_more
from task_runner.timetable import LEAST, Timetable

# Fires of events that led to one another, at most; and fires of one task within an hour, at most.
LONGEST_CHAIN = 8
MOST_AN_HOUR = 60
HOURLY = timedelta(hours=1)
OUTSIDE = "outside_bounds"
QUEUED = "queued"
LIMIT = "max_fires"
DEBOUNCED = "debounced: "
OWN_CHAIN, TOO_LONG, TOO_MANY = "storm: own chain", f"storm: chain of {LONGEST_CHAIN}", f"storm: {MOST_AN_HOUR} in 1h"
TAKEN = "same id"
_STOPPED = frozenset({TaskState.PAUSED, TaskState.DISABLED, TaskState.QUARANTINED})


@dataclass(frozen=True, kw_only=True, slots=True)
class Trigger:
    """An event on which all filters of a task agree.

    Attributes:
        event: which.
        chain: the tasks whose fires led to it, oldest first.
    """

    event: Event
    chain: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Standing:
    """All that triggers of a task depend on.

    Attributes:
        task: the task.
        open: its open entries, of every kind.
        newest: its newest fire of an event, settled or not.
        opened_at: when the event happened that opened that fire's window.
        records: what was recorded of triggers since.
        clock: of a hybrid, its newest fire of a scheduled time; events that come close to it go into it.
        hourly: when the event happened of its last fire but `MOST_AN_HOUR` - 1; None if there were not as many.
    """

    task: Task
    open: tuple[Fire, ...] = ()
    newest: Fire | None = None
    opened_at: datetime | None = None
    records: tuple[Fire, ...] = ()
    clock: Fire | None = None
    hourly: tuple[datetime, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Decided:
    """What to write.

    Attributes:
        fires: new fires, oldest first, each with what triggered it.
        records: new and grown records, each with the newest trigger in it.
        withdrawn: fires in line that gave way to newer ones.
        counts: by outcome and reason, how many triggers were recorded now.
    """

    fires: tuple[tuple[Fire, Trigger], ...] = ()
    records: tuple[tuple[Fire, Trigger], ...] = ()
    withdrawn: tuple[Fire, ...] = ()
    counts: Mapping[tuple[Outcome, str], int] = field(default_factory=dict)


def decide(
    standing: Standing, triggers: Iterable[Trigger], now: datetime, *, refused: Mapping[str, str] = MappingProxyType({})
) -> Decided:
    """Return what becomes of triggers of a task, taken one after the other.

    Args:
        standing: the task.
        triggers: in the order in which they are taken.
        now: the time.
        refused: by event id, why a trigger is not to fire whatever the rules say.
    """
    decision = _Decision(standing=standing, now=now, refused=refused)
    for trigger in triggers:
        decision.take(trigger)
    return decision.decided()


def next_step(task: Task, opened: Sequence[Fire], now: datetime, *, resumed: bool) -> tuple[Task, tuple[Fire, ...]]:
    """Return an active task that fires for events alone as it is from now on, and those of its fires that change.

    The first in line goes where nothing is ahead of it. Where the turn ahead waits for its author, or goes on with the
    answer (`resumed`), or an edit took the policy back, nothing asks for its end any more.
    """
    limit, end = task.definition.max_fires, task.definition.ends_at
    task = replace(task, wake_at=ends_after(task.definition, now))
    if rows := [row for row in opened if row.kind in COUNTED]:
        if released_ := releasing(task, rows, now):
            return task, (released_,)
        halted = any(row.outcome in HALTED for row in rows)
        asks = task.definition.overlap is Overlap.CANCEL_RUNNING and not halted and not resumed
        return task, () if asks else asks_no_more(rows)
    if limit is not None and task.accepted >= limit:
        reason = f"max_fires is {limit}, and {task.accepted} were accepted"
        return replace(task, state=TaskState.DONE, reason=reason, wake_at=None), ()
    if end is not None and now > end:
        return replace(task, state=TaskState.EXPIRED, wake_at=None), ()
    return task, ()


def ends_after(definition: Definition, now: datetime) -> datetime | None:
    """Return the first moment at which a task is over, if that is still to come."""
    end = definition.ends_at
    return None if end is None or now > end else end + LEAST


def releasing_after(snapshot: Snapshot, made: Plan, now: datetime) -> Plan:
    """Return a plan that also lets the fire of an event go that stood behind what the plan finds ended."""
    newest = {row.entry_id: row for row in made.changed}
    rows = [*(newest.get(row.entry_id, row) for row in snapshot.open), *made.new]
    fire = releasing(made.task, [row for row in rows if row.outcome in OPEN], now)
    if fire is None:
        return made
    return replace(made, changed=(*(row for row in made.changed if row.entry_id != fire.entry_id), fire))


def giving_way(opened: Iterable[Fire], unsent: Iterable[Fire], now: datetime) -> tuple[Fire, ...]:
    """Return what waited to be sent as skipped, if the fire of an event is going to be."""
    if not is_awaited(opened):
        return ()
    waits = (row for row in unsent if row.outcome is Outcome.WAITING or row.is_queued)
    return tuple(entries.settled_skipped(row, QUEUED, now) for row in waits)


def releasing(task: Task, rows: Sequence[Fire], now: datetime) -> Fire | None:
    """Return the fire of an event that stood behind others and may go now, ready to be sent; None if there is none."""
    if any(_is_ahead(row) for row in rows):
        return None
    line = [row for row in rows if row.kind is FireKind.EVENT and row.is_queued]
    return entries.released(min(line, key=lambda row: row.entry_id), task, now) if line else None


def debounced(snapshot: Snapshot, timetable: Timetable, now: datetime) -> Fire | None:
    """Return the record of the scheduled times that go into a hybrid's fire of an event; None if none has come due."""
    window, task = snapshot.window, snapshot.task
    if window is None:
        return None
    first = timetable.next_after(task.cursor_at)
    if first is None or first > now or not window.has(first):
        return None
    run = entries.run_between(timetable, task.cursor_at, min(now, window.at + window.debounce - LEAST))
    return entries.skipped_run(task, run, f"{DEBOUNCED}{window.fire_id}") if run else None


def is_awaited(rows: Iterable[Fire]) -> bool:
    """Tell whether a fire of an event has yet to be sent: what falls due meanwhile is not wanted beside it."""
    return any(row.kind is FireKind.EVENT and row.outcome is Outcome.PENDING for row in rows)


def _is_ahead(row: Fire) -> bool:
    """Tell whether a later fire of the task has to wait for this one."""
    if row.kind not in COUNTED:
        return False
    return row.outcome in UNDER_WAY | HALTED or (row.outcome is Outcome.PENDING and row.ready_at is not None)


@dataclass(kw_only=True)
class _Decision:
    standing: Standing
    now: datetime
    refused: Mapping[str, str]
    counts: Counter[tuple[Outcome, str]] = field(default_factory=Counter)
    fires: list[tuple[Fire, Trigger]] = field(default_factory=list)
    records: dict[tuple[Outcome, str], tuple[Fire, Trigger | None]] = field(default_factory=dict)
    finished: list[tuple[Fire, Trigger | None]] = field(default_factory=list)
    withdrawn: list[Fire] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._task = self.standing.task
        assert self._task.definition.on is not None
        self._on: EventTrigger = self._task.definition.on
        self._newest, self._opened_at = self.standing.newest, self.standing.opened_at
        self._hourly = list(self.standing.hourly)
        # Kept up as fires are added: a line of a thousand is not gone through for each one more.
        rows = [row for row in self.standing.open if row.outcome in OPEN and row.kind in COUNTED]
        self._waits = any(map(_is_ahead, rows))
        self._halted = any(row.outcome in HALTED for row in rows)
        self._reserved = sum(row.accepted_at is None for row in rows)
        self._line = deque(row for row in rows if row.kind is FireKind.EVENT and row.is_queued)
        self.records = {(each.outcome, each.reason): (each, None) for each in self.standing.records}

    def take(self, trigger: Trigger) -> None:
        """Decide over one trigger."""
        if why := self.refused.get(trigger.event.id) or self._refusal(trigger):
            self._record(Outcome.SKIPPED, why, trigger)
        elif (into := self._goes_into(trigger.event.at)) is not None:
            self._record(Outcome.COALESCED, into.fire_id, trigger)
        elif why := self._no_place(trigger.event):
            self._record(Outcome.SKIPPED, why, trigger)
        else:
            self._fire(trigger)

    def decided(self) -> Decided:
        """Return what came of them all."""
        records = (*self.finished, *self.records.values())
        touched = [(record, trigger) for record, trigger in records if trigger is not None]
        return Decided(
            fires=tuple(self.fires), records=tuple(touched), withdrawn=tuple(self.withdrawn), counts=self.counts
        )

    def _refusal(self, trigger: Trigger) -> str:
        """Return why a trigger may not fire whatever the task is doing; empty if it may."""
        if self._task.state in _STOPPED:
            return self._task.state.value
        definition, at = self._task.definition, trigger.event.at
        end = definition.ends_at
        if (definition.start_at is not None and at < definition.start_at) or (end is not None and at > end):
            return OUTSIDE
        if self._task.id in trigger.chain:
            return OWN_CHAIN
        return TOO_LONG if len(trigger.chain) >= LONGEST_CHAIN else ""

    def _goes_into(self, at: datetime) -> Fire | None:
        """Return the fire that a trigger at that time goes into, None if it needs one of its own."""
        newest, debounce, clock = self._newest, self._on.debounce, self.standing.clock
        if clock is not None and Window(fire_id=clock.fire_id, at=clock.due_at, debounce=debounce).has(at):
            return clock
        if newest is None or newest.outcome is Outcome.SKIPPED:
            return None
        # Not long before it either: else a clock that was set back would leave every window open for long.
        if self._opened_at is not None and Window(fire_id="", at=self._opened_at, debounce=debounce).has(at):
            return newest
        lines_up = self._task.definition.overlap is Overlap.QUEUE
        unsent = newest.outcome in {Outcome.PENDING, Outcome.HELD}
        return newest if unsent and not lines_up else None

    def _no_place(self, event: Event) -> str:
        """Return why there is no place for one more fire; empty if there is."""
        definition = self._task.definition
        if definition.max_fires is not None and self._task.accepted + self._reserved >= definition.max_fires:
            return LIMIT
        if definition.overlap is Overlap.SKIP and self._waits:
            return OVERLAP
        # A line of work that somebody hands in may be as long as it is; what our own turns tell may not.
        counts = definition.overlap is not Overlap.QUEUE or event.name in LIFECYCLE
        recent = [at for at in self._hourly if event.at - HOURLY < at]
        return TOO_MANY if counts and len(recent) >= MOST_AN_HOUR else ""

    def _fire(self, trigger: Trigger) -> None:
        event, definition = trigger.event, self._task.definition
        nominal_at = event.at.replace(microsecond=0)
        # A hybrid fires when its window opens.
        due_at = event.at if definition.is_hybrid else event.at + self._on.debounce
        asks = self._waits and not self._halted and definition.overlap is Overlap.CANCEL_RUNNING
        fire = entries.entry(
            self._task,
            entries.single(nominal_at),
            Outcome.PENDING,
            fire_id=fire_id(self._task.id, nominal_at, f"~e{event.id}"),
            kind=FireKind.EVENT,
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
        # What is recorded from now on lies behind this fire, in entries of its own.
        self.finished += self.records.values()
        self.records = {}

    def _cut_line(self) -> None:
        """Let the oldest of a full line give way."""
        if len(self._line) < self._task.definition.max_catch_up:
            return
        oldest = self._line.popleft()
        self._reserved -= 1
        gone = entries.settled_skipped(oldest, QUEUE_FULL, self.now)
        if oldest.entry_id:
            self.withdrawn.append(gone)
        else:
            self.fires = [(gone if fire is oldest else fire, trigger) for fire, trigger in self.fires]

    def _record(self, outcome: Outcome, reason: str, trigger: Trigger) -> None:
        at = trigger.event.at.replace(microsecond=0)
        record, _ = self.records.get((outcome, reason), (None, None))
        if record is None:
            record = entries.entry(self._task, entries.single(at), outcome, kind=FireKind.EVENT, reason=reason)
        else:
            first, last = min(record.first_at, at), max(record.last_at, at)
            record = replace(record, count=record.count + 1, first_at=first, last_at=last, nominal_at=last, due_at=last)
        self.records[outcome, reason] = record, trigger
        self.counts[outcome, reason] += 1


def supersede(snapshot: Snapshot, timetable: Timetable, now: datetime, on: EventTrigger | None = None) -> Plan:
    """Settle the unsent fires whose scheduled time a new schedule no longer names, or whose event it does not wait for.

    Args:
        snapshot: the task with its new definition.
        timetable: its new scheduled times.
        now: the time.
        on: the events it fired for before.
    """
    kept = snapshot.task.definition.on
    same_event = kept is not None and on is not None and kept.event == on.event
    paced = self_paced.is_self_paced(snapshot.task.definition)
    unsent = {Outcome.PENDING, Outcome.WAITING} if paced else {Outcome.PENDING}
    gone = [
        fire
        for fire in snapshot.open
        if fire.kind in COUNTED and fire.outcome in unsent
        if not (same_event if fire.kind is FireKind.EVENT else _names(timetable, fire))
    ]
    task = replace(snapshot.task, accepted=snapshot.task.accepted - entries.returned_places(gone))
    superseded = tuple(entries.settled_skipped(fire, "superseded", now) for fire in gone)
    return Plan(task=task, changed=superseded, skipped=superseded, tail=snapshot.tail)


def _names(timetable: Timetable, fire: Fire) -> bool:
    # A wake is no time of a schedule, even where one names the same second.
    return fire.kind is not FireKind.WAKE and timetable.last_at_or_before(fire.nominal_at) == fire.nominal_at
