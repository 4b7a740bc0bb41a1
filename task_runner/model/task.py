"""The runner's data: tasks, their scheduled times, and the ledger with the outcome of each time.

The values are plain and frozen; each time is an aware datetime in UTC. This module reads no clock and does no I/O.
"""

import dataclasses
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from enum import StrEnum
from functools import cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple, NewType, TypeVar

from turnkeeper.errors import InvalidInput

T = TypeVar("T")
TaskId = NewType("TaskId", str)
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,62}", re.ASCII)
# Agents with other names run in a terminal. If an agent with one of these names does too, its inbox keeps unread fires.
HOSTED = re.compile(r"agent[0-9]+", re.ASCII)
_ID = re.compile(r"(?:task|loop)-[0-9a-f]{8}", re.ASCII)
_REQUEST_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,63}", re.ASCII)
LONGEST_REASON = 300
EACH_FIRE = "/each"  # means a new thread for each fire; no thread id contains a slash


@dataclass(frozen=True, kw_only=True, slots=True)
class CreatedBy:
    """The turn that created a task. This record is stored with the new task and never changes."""

    turn_id: str
    category: str
    agent: str


@dataclass(frozen=True, kw_only=True, slots=True)
class EventTrigger:
    """The events that trigger a task, with or without a schedule.

    Attributes:
        filters: the filters that an event must match, as in :func:`task_runner.model.events.check_filters`.
        debounce: how long after an event later events join the same fire.
        since: the time from which the task waits for events; earlier events are ignored.
    """

    event: str
    filters: tuple[str, ...] = ()
    debounce: timedelta = timedelta(0)
    since: datetime


class ScheduleKind(StrEnum):
    """The kind of a schedule."""

    CRON = "cron"
    EVERY = "every"
    AT = "at"
    RRULE = "rrule"
    DYNAMIC = "dynamic"
    ON = "on"


class CatchUp(StrEnum):
    """The policy for missed scheduled times."""

    SKIP = "skip"
    RUN_ONCE = "run-once"
    RUN_ALL = "run-all"


class Overlap(StrEnum):
    """The policy for a fire that is due while the task's last fire is still open."""

    COALESCE = "coalesce"
    QUEUE = "queue"
    SKIP = "skip"
    CANCEL_RUNNING = "cancel-running"


class TaskState(StrEnum):
    """The stored state of a task. The current state of its fires is derived from the ledger."""

    ACTIVE = "active"
    PAUSED = "paused"
    DISABLED = "disabled"
    DONE = "done"
    EXPIRED = "expired"
    QUARANTINED = "quarantined"
    DELETED = "deleted"


class FireKind(StrEnum):
    """The origin of a fire. Only scheduled fires move the cursor and are subject to catch-up."""

    SCHEDULED = "scheduled"
    MANUAL = "manual"
    BACKFILL = "backfill"
    WAKE = "wake"
    EVENT = "event"


class Outcome(StrEnum):
    """The state of a ledger entry. The first seven are open; the others are final."""

    WAITING = "waiting"
    PENDING = "pending"
    SENT = "sent"
    ACCEPTED = "accepted"
    RUNNING = "running"
    INTERRUPTED = "interrupted"
    HELD = "held"
    SUCCEEDED = "succeeded"
    REJECTED = "rejected"
    FAILED = "failed"
    CANCELLED = "cancelled"
    SKIPPED = "skipped"
    COALESCED = "coalesced"
    PRUNED = "pruned"


UNDER_WAY = frozenset({Outcome.SENT, Outcome.ACCEPTED, Outcome.RUNNING})
IN_ORDER = frozenset({Outcome.SUCCEEDED, Outcome.REJECTED})  # the turn finished without an error
HALTED = frozenset({Outcome.INTERRUPTED, Outcome.HELD})
UNANSWERED = "its approval expired"  # the runtime writes this if a turn asked and got no answer
GAVE_UP = "the agent gave up: "  # the runtime writes this if the agent called turn_fail
REFUSED = "its approval was rejected"  # the runtime writes this if the author rejected a call
WAITS = "waits for "  # the beginning of the reason of a fire that is not sent yet
QUEUED = f"{WAITS}queue "  # the beginning of the reason of a fire that the limits of a queue stop
MISASKED = "its wake-up could not be read"  # the runtime writes this as the reason of a fire
OF_GRAPH = ("graph", "context_json", "config_json", "input_json", "run_json")  # fields that choose what a task runs
UNSENT = frozenset({Outcome.WAITING, Outcome.PENDING, Outcome.HELD})
OPEN = UNDER_WAY | HALTED | UNSENT
# The fires that `max_fires` limits: all fires that were not requested one by one.
COUNTED = frozenset({FireKind.SCHEDULED, FireKind.WAKE, FireKind.EVENT})


@dataclass(frozen=True, kw_only=True, slots=True)
class Schedule:
    """The schedule of a task.

    Attributes:
        text: the cron expression, the interval as a duration, the instant in RFC 3339, or the recurrence rule; empty
            for a self-paced task, in which each turn requests the next wake.
        anchor_at: the start of an interval, or of a rule that gives no start; else None.
        declared_in: the duration given as `in`; the schedule itself is stored as an instant, of the kind `at`.
    """

    kind: ScheduleKind
    text: str
    anchor_at: datetime | None = None
    declared_in: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Definition:
    """A task as its author declared it, with every default filled in.

    Attributes:
        name: unique among the tasks that are not deleted.
        schedule: the rule for its scheduled times, which the bounds below restrict.
        timezone: IANA name of the time zone of `schedule`.
        category, channel, agent, prompt, payload_json, read_only: passed to the runtime with each fire.
        catch_up, grace, catch_up_window, max_catch_up: the policy for missed scheduled times.
        overlap: the policy for a fire that is due while another is open.
        start_at, end_at, expires_at: bounds on scheduled times, all included; None for no bound.
        max_fires: the most fires of the kinds in `COUNTED` that may be accepted; None for no limit.
        thread_id: the runtime's thread; empty for the task's own, `EACH_FIRE` for a new thread for each fire.
        graph: the runtime's graph or assistant that the task runs; empty for the runtime's default.
        context_json, config_json, input_json, run_json: JSON objects for that graph, or empty; passed to the runtime.
        tags: labels, sorted by key.
        jitter: the longest delay of a fire; the scheduled time determines the actual delay.
        exclude: days and spans without scheduled times, as :func:`task_runner.timetable.check_excluded` writes them.
        ignore_calendar: True if the days off of the home's calendar have scheduled times too.
        retries: the number of further attempts if a fire's turn fails.
        pause_after_failures: the number of consecutive failed fires that pauses the task; None for never.
        budget: limits that pause the task when reached, sorted by key; see :mod:`task_runner.planner.budgets`.
        first, if_silent: for a self-paced task, the time from its creation to its first wake, and the action if a turn
            asks for no next wake: `end`, `wait` or a duration; see :mod:`task_runner.planner.self_paced`.
        queue: the queue of `[queues]` whose limits the task's turns share; empty for none.
        needs: the tag that a machine must offer to begin the task's turns; empty for none.
        ephemeral: True if the task is deleted when the daemon stops.
        approval_reminder, approval_escalation, approval_timeout: the time from a request for approval to a reminder, to
            an alert, and to the expiry of the request; None for never. Passed to the runtime with each fire.
        created_by: the agent's turn that created the task; None if an author created it.
        on: the events that trigger the task; None for none.
    """

    name: str
    schedule: Schedule
    timezone: str
    category: str
    channel: str
    prompt: str
    payload_json: str = ""
    catch_up: CatchUp = CatchUp.RUN_ONCE
    grace: timedelta = timedelta(seconds=60)
    catch_up_window: timedelta | None = None
    max_catch_up: int = 1000
    overlap: Overlap = Overlap.COALESCE
    start_at: datetime | None = None
    end_at: datetime | None = None
    expires_at: datetime | None = None
    max_fires: int | None = None
    thread_id: str = ""
    graph: str = ""
    context_json: str = ""
    config_json: str = ""
    input_json: str = ""
    run_json: str = ""
    agent: str = "agent0"
    read_only: bool = False
    tags: tuple[tuple[str, str], ...] = ()
    jitter: timedelta = timedelta(0)
    exclude: tuple[str, ...] = ()
    ignore_calendar: bool = False
    retries: int = 0
    pause_after_failures: int | None = None
    budget: tuple[tuple[str, int], ...] = ()
    first: timedelta | None = None
    if_silent: str = ""
    queue: str = ""
    needs: str = ""
    ephemeral: bool = False
    approval_reminder: timedelta | None = None
    approval_escalation: timedelta | None = None
    approval_timeout: timedelta | None = None
    created_by: CreatedBy | None = None
    on: EventTrigger | None = None

    @property
    def ends_at(self) -> datetime | None:
        """The last instant when the task may fire; None for no end."""
        return earliest(self.end_at, self.expires_at)

    @property
    def is_hybrid(self) -> bool:
        """True if the task fires for events as well as for scheduled times."""
        return self.on is not None and self.schedule.kind is not ScheduleKind.ON

    @property
    def is_self_paced(self) -> bool:
        """True if the turns of the task ask for the next wake."""
        return self.schedule.kind is ScheduleKind.DYNAMIC


@dataclass(frozen=True, kw_only=True, slots=True)
class Usage:
    """The usage of one task's turns on one day in its time zone.

    Attributes:
        tokens: the total input and output tokens.
        money: the cost of the tokens, in millionths of the owner's currency; 0 without a price.
        unpriced: the tokens that had no price when their turn ended, by model, as JSON; empty if there are none.
    """

    day: date
    turns: int = 0
    spent: timedelta = timedelta(0)
    tokens: int = 0
    money: int = 0
    unpriced: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Pacing:
    """The progress of a self-paced task.

    Attributes:
        iteration: the number of committed wakes; the newest wake has this number.
        armed_at: the time of the next wake; None if no wake was requested.
        why: a sentence that says why the wake is or is not armed.
        setbacks: the number of consecutive turns that failed or were cancelled.
        hour_at: when the current hour of its budget began: at the end of a turn; None before the first such end.
        hour_turns, hour_tokens: the number and the tokens of the turns that ended in that hour.
        put_off: why the armed wake is later than requested; empty if it is not.
    """

    iteration: int = 0
    armed_at: datetime | None = None
    why: str = ""
    setbacks: int = 0
    hour_at: datetime | None = None
    hour_turns: int = 0
    hour_tokens: int = 0
    put_off: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """A stored task.

    Attributes:
        id: never reused.
        reason: the note of a pause, or the cause of a quarantine; empty for none.
        cursor_at: every scheduled time up to here is covered by exactly one scheduled ledger entry.
        wake_at: when the task must be planned next, or when its pause ends; None if only an outcome or a command can
            change the task.
        accepted: the number of accepted fires that count towards `max_fires`.
        fires: the number of accepted fires of any kind.
        missed: the number of scheduled times that catch-up skipped or folded.
        rewound_until: the cursor before the clock stepped back, up to which fires may exist already; else None.
        usage: the usage of the task's turns on the newest day with an ended turn; None before the first.
        pacing: the progress of a task that is or was self-paced; else None.
    """

    id: TaskId
    definition: Definition
    state: TaskState = TaskState.ACTIVE
    reason: str = ""
    revision: int = 1
    created_at: datetime
    cursor_at: datetime
    wake_at: datetime | None = None
    accepted: int = 0
    fires: int = 0
    missed: int = 0
    rewound_until: datetime | None = None
    failures: int = 0
    usage: Usage | None = None
    pacing: Pacing | None = None

    @property
    def own_thread(self) -> str:
        """The thread that belongs only to the task."""
        return own_thread(self.id, self.definition.graph)


@dataclass(frozen=True, kw_only=True, slots=True)
class Fire:
    """A ledger entry: one fire, or one record of a run of scheduled times that did not fire.

    Attributes:
        entry_id: the ledger's own number, in the order of planning; 0 until it is written.
        fire_id: the fire's permanent identity; empty for a skipped run and for a waiting fire.
        nominal_at: the scheduled time of the fire; for a run, the last time.
        outcome, reason: the state of the entry, and the reason for the state.
        count, first_at, last_at: the run of scheduled times that the entry covers; none if the count is 0.
        attempt: 1 at first; increases only after a release, or after a failure that is retried.
        caught_up: True if the fire covers missed scheduled times, so that it takes a catch-up slot.
        released: True if the fire waited for an earlier one or is a retry; it is missed only after `send_by`.
        send_by: the latest time when sending is on time; None for no limit, or for an entry that is not yet a fire.
        ready_at: the earliest time to send the fire; None while an earlier fire is ahead of it, and once it is sent.
        fired_at: when the fire was first sent in this attempt.
        request_id: the client's id of a manual fire; empty for other fires.
        retries: the number of remaining attempts if the turn fails.
        spent, tokens: the total time and tokens of the turns of all attempts.
    """

    task_id: TaskId
    kind: FireKind = FireKind.SCHEDULED
    nominal_at: datetime
    due_at: datetime
    outcome: Outcome
    first_at: datetime
    last_at: datetime
    count: int = 1
    entry_id: int = 0
    fire_id: str = ""
    reason: str = ""
    attempt: int = 1
    policy: CatchUp = CatchUp.RUN_ONCE
    caught_up: bool = False
    released: bool = False
    send_by: datetime | None = None
    ready_at: datetime | None = None
    refusals: int = 0
    fired_at: datetime | None = None
    accepted_at: datetime | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    turn_id: str = ""
    request_id: str = ""
    retries: int = 0
    spent: timedelta = timedelta(0)
    tokens: int = 0

    @property
    def is_queued(self) -> bool:
        """True if the fire is queued behind an earlier fire of its task."""
        return self.outcome is Outcome.PENDING and self.ready_at is None


@dataclass(frozen=True, kw_only=True, slots=True)
class Revision:
    """A definition, and the time from which the definition is in force.

    Attributes:
        number: from 1.
        edited_by: the origin of the edit; empty if it is not known.
    """

    number: int
    valid_from: datetime
    definition: Definition
    edited_by: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Window:
    """The debounce window of a hybrid task's newest event fire. Scheduled times in it are coalesced into the fire.

    Attributes:
        debounce: how far the window extends before and after the event.
    """

    fire_id: str
    at: datetime
    debounce: timedelta

    def has(self, at: datetime) -> bool:
        """Return True if a time falls within the window."""
        return self.at - self.debounce <= at < self.at + self.debounce


@dataclass(frozen=True, kw_only=True, slots=True)
class Snapshot:
    """The complete input for planning one task.

    Attributes:
        open: the task's open ledger entries of every kind, oldest first.
        tail: the task's newest skipped entry, which an adjacent entry with the same reason extends. If the scheduled
            times or the clock changed since then, the number of the tail is negative and no entry extends it.
        taken: scheduled times after the cursor whose fires already exist, because the clock stepped back.
        window: for a hybrid task, the debounce window of its newest event fire; else None.
    """

    task: Task
    open: tuple[Fire, ...] = ()
    tail: Fire | None = None
    taken: frozenset[datetime] = field(default=frozenset())
    window: Window | None = None


def earliest(*instants: datetime | None) -> datetime | None:
    """Return the earliest of the instants that are not None; None if all are."""
    return min((at for at in instants if at is not None), default=None)


def own_thread(task_id: str, graph: str) -> str:
    """Return the id of the task's own thread. Each graph gets a separate thread, because a thread belongs to one graph.

    >>> own_thread("task-00000001", ""), own_thread("task-00000001", "research")
    ('task-00000001', 'task-00000001:research')
    """
    return f"{task_id}:{graph}" if graph else task_id


def check_name(name: str, *, own_id: str = "") -> str:
    """Return a task's name unchanged. Raises InvalidInput if the name is invalid or looks like another task's id."""
    if not _NAME.fullmatch(name):
        raise InvalidInput(
            f"{name[:70]!r} is not a task's name", where="name", hint="use 1 to 63 of a-z, 0-9 and -, not - first"
        )
    if _ID.fullmatch(name) and name != own_id:
        raise InvalidInput(f"{name!r} looks like a task's id", where="name", hint="choose another name")
    return name


def is_task_id(text: str) -> bool:
    """Return whether `text` has the form of a task's id, for example `task-0123abcd`."""
    return _ID.fullmatch(text) is not None


def check_request_id(request_id: str, where: str = "request_id") -> str:
    """Return a client's request id unchanged. Raises InvalidInput if the id is invalid."""
    if not _REQUEST_ID.fullmatch(request_id):
        raise InvalidInput("must be 1 to 64 letters, digits and -", where=where)
    return request_id


def fire_id(task_id: str, nominal_at: datetime, suffix: str = "") -> str:
    """Return the unique id of a fire.

    >>> from datetime import UTC
    >>> fire_id("task-0123abcd", datetime(2026, 11, 20, 9, tzinfo=UTC))
    'task-0123abcd@20261120T090000Z'
    """
    # Not strftime: on some systems it drops the leading zeros of years before 1000, and it is slower.
    at = nominal_at
    stamp = f"{at.year:04}{at.month:02}{at.day:02}T{at.hour:02}{at.minute:02}{at.second:02}Z"
    return f"{task_id}@{stamp}{suffix}"


def thread_of(task: "Task", fire_id: str) -> str:
    """Return the runtime's thread of a fire: the one that the task names, the task's own, or a new one for the fire."""
    named = task.definition.thread_id
    return fire_id if named == EACH_FIRE else named or task.own_thread


class _Slots(NamedTuple):
    read: Callable[[Any], tuple[Any, ...]]
    write: tuple[Callable[[Any, Any], None], ...]
    by_name: Mapping[str, Callable[[Any, Any], None]]


@cache
def _slots_of(kind: type) -> _Slots | None:
    names = [each.name for each in dataclasses.fields(kind)]
    if hasattr(kind, "__post_init__") or "__dict__" in dir(kind) or len(names) < 2:
        return None
    by_name = {name: getattr(kind, name).__set__ for name in names}
    return _Slots(attrgetter(*names), tuple(by_name.values()), by_name)


def _replace(value: T, /, **changes: Any) -> T:
    """Return a copy of a dataclass value with some fields changed. Raises TypeError for an unknown field."""
    kind: Any = type(value)
    slots = _slots_of(kind)
    if slots is None:
        return dataclasses.replace(value, **changes)  # type: ignore[type-var]
    copy: T = object.__new__(kind)
    for write, item in zip(slots.write, slots.read(value), strict=True):
        write(copy, item)
    for name, item in changes.items():
        if name not in slots.by_name:
            raise TypeError(f"{type(value).__name__} has no field {name!r}")
        slots.by_name[name](copy, item)
    return copy


if TYPE_CHECKING:
    from dataclasses import replace as replace  # noqa: PLC0414  the checker knows the fields of this one
else:
    replace = _replace
