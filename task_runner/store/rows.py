"""The conversion between rows and values, in both directions.

A definition is one line of JSON. Instants and durations are integer microseconds.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, dataclass, fields
from datetime import date, datetime, timedelta
from enum import StrEnum
from functools import lru_cache
from operator import attrgetter
from typing import Any, NamedTuple

import orjson

from task_runner.model import task as model
from task_runner.model.fields import DIRECT, TEXT
from task_runner.model.task import Definition, EventTrigger, Fire, Pacing, Schedule, Task, TaskState, Usage
from turnkeeper.times import from_us, rfc3339, to_us

_MICROSECOND = timedelta(microseconds=1)
_NO_TIME = timedelta(0)
COLUMNS_OF_A_FIRE = 28
# A dictionary, because the enum's own constructor is too slow for so many lookups.
_KINDS = {kind.value: kind for kind in model.FireKind}
_OUTCOMES = {outcome.value: outcome for outcome in model.Outcome}
_POLICIES = {policy.value: policy for policy in model.CatchUp}


@dataclass(frozen=True, kw_only=True, slots=True)
class Note:
    """The trigger of a ledger entry.

    Attributes:
        entry_id: the entry; if it counts several events, the event is the newest.
        cause: the fire that led to it; empty if none is known.
        chain: the tasks whose fires led to it, oldest first.
    """

    entry_id: int
    event: str
    event_id: str
    at: datetime
    cause: str = ""
    chain: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Outgoing:
    """A fire to send.

    Attributes:
        request: the request that was frozen at the commit, as bytes.
    """

    fire: Fire
    request: bytes


class Key(NamedTuple):
    """An attempt of a fire. A sent fire also has its entry, its task, and whether limits count the fire."""

    fire_id: str
    attempt: int
    entry_id: int = 0
    task_id: str = ""
    counts: bool = False


class DueTask(NamedTuple):
    """A task to plan.

    Attributes:
        alone: True if it is active, has no open entry, and the clock did not step back behind it.
    """

    task_id: str
    revision: int
    cursor_us: int
    alone: bool


class Cause(StrEnum):
    """The cause of a span without sent fires, in words for the reader."""

    RUNTIME = "agent runtime away"
    SILENT = "no answer from the agent runtime"
    RUNNER = "task runner not running"
    ASLEEP = "machine asleep, or its clock set ahead,"
    SUSPENDED = "task runner suspended"
    STORE = "store of the task runner not usable"
    LOST = "last commits of the task runner's store lost"
    HELD = "fires held by the agent runtime"
    AUTHOR = "thread waiting for its author"
    PAUSED = "paused"
    DISABLED = "disabled"
    QUARANTINED = "quarantined"


STOPPED = {state: Cause[state.name] for state in (TaskState.PAUSED, TaskState.DISABLED, TaskState.QUARANTINED)}


@dataclass(frozen=True, slots=True)
class Outage:
    """A span in which nothing could be sent.

    Attributes:
        to: the end of the span; if the span has not ended, the last time when it was observed.
        lasts: True while the span has not ended.
        task_id: the only task that it concerned; empty for every task.
        why: details, such as the error of the store.
    """

    since: datetime
    to: datetime
    lasts: bool
    cause: Cause = Cause.RUNTIME
    task_id: str = ""
    why: str = ""

    def __str__(self) -> str:
        began = rfc3339(self.since.replace(microsecond=0))
        span = f"since {began}" if self.lasts else f"from {began} to {rfc3339(self.to.replace(microsecond=0))}"
        return f"{self.cause} {span}" + (f" ({self.why})" if self.why else "")


@dataclass(frozen=True, kw_only=True, slots=True)
class Glance:
    """A task's fires as a list shows them.

    Attributes:
        open: the outcomes of its open entries.
        last: its newest entry that was sent, if any.
        held_by: the interrupts that a held fire waits for; empty if none is held.
        refused: why the runtime postpones one of them; empty if it postponed none.
    """

    open: frozenset[model.Outcome] = frozenset()
    last: Fire | None = None
    held_by: str = ""
    refused: str = ""


def glances_of(ids: Iterable[str], opened: Iterable[Any], last: Iterable[Fire]) -> dict[str, Glance]:
    """Return a glance at each task.

    Args:
        opened: task, outcome and reason of the open entries.
        last: each task's newest sent entry.
    """
    outcomes, held, refused = defaultdict[str, set[model.Outcome]](set), dict[str, str](), dict[str, str]()
    for task_id, outcome, reason in opened:
        outcomes[task_id].add(_OUTCOMES[outcome])
        if outcome == model.Outcome.HELD:
            held[task_id] = reason
        if outcome == model.Outcome.PENDING and reason:
            refused[task_id] = reason
    sent: dict[str, Fire] = {fire.task_id: fire for fire in last}
    return {
        id_: Glance(
            open=frozenset(outcomes.get(id_, ())),
            last=sent.get(id_),
            held_by=held.get(id_, ""),
            refused=refused.get(id_, ""),
        )
        for id_ in ids
    }


@dataclass(frozen=True, kw_only=True, slots=True)
class Totals:
    """Counts for a status line."""

    tasks: int
    paused: int
    open_fires: int
    unsent: int
    next_wake_at: datetime | None


@dataclass(frozen=True, kw_only=True)
class Counts:
    """Counts for metrics, each read from an index alone."""

    tasks: int
    scheduled: int
    open_fires: Mapping[str, int]
    next_ready_at: datetime | None


def task_of(row: Any) -> Task:
    return Task(
        id=model.TaskId(row.id),
        definition=decode_definition(row.definition),
        state=model.TaskState(row.state),
        reason=row.reason,
        revision=row.revision,
        created_at=from_us(row.created_us),
        cursor_at=from_us(row.cursor_us),
        wake_at=_at(row.wake_us),
        accepted=row.accepted,
        fires=row.fires,
        missed=row.missed,
        rewound_until=_at(row.rewound_us),
        failures=row.failures,
        usage=None if row.usage is None else _usage_of(row.usage, row.unpriced or ""),
        pacing=None if row.pacing is None else _pacing_of(row.pacing),
    )


def row_of_task(task: Task) -> dict[str, Any]:
    """Return a whole row of `tasks`, without its tail."""
    definition = task.definition
    return progress_of(task) | {
        "id": task.id,
        "name": definition.name,
        "category": definition.category,
        "channel": definition.channel,
        "definition": encode_definition(definition),
        "revision": task.revision,
        "created_us": to_us(task.created_at),
        "fires": task.fires,
        "paced_thread": _paced_thread(task),
        "made_by": definition.created_by.agent if definition.created_by else None,
        "ephemeral": definition.ephemeral,
        "queue": definition.queue or None,
        "listens": definition.on.event if definition.on else None,
    }


def progress_of(task: Task) -> dict[str, Any]:
    """Return the columns of `tasks` that planning changes."""
    return {
        "state": task.state.value,
        "reason": task.reason,
        "cursor_us": to_us(task.cursor_at),
        "wake_us": _us(task.wake_at),
        "rewound_us": _us(task.rewound_until),
        "accepted": task.accepted,
        "missed": task.missed,
        "failures": task.failures,
        "usage": None if task.usage is None else _text_of_usage(task.usage),
        "unpriced": None if task.usage is None else task.usage.unpriced or None,
        "pacing": None if task.pacing is None else _text_of_pacing(task.pacing),
    }


def fire_of(row: Any) -> Fire:
    """Return the ledger entry of a row that begins with all columns of `fires`, in their order."""
    (
        entry_id, task_id, fire_id, request_id, kind, outcome, _, reason, nominal_us, due_us, covers, first_us, last_us,
        attempt, policy, caught_up, released, send_by_us, ready_us, refusals, fired_us, accepted_us, started_us,
        ended_us, turn_id, retries, spent_us, tokens,
    ) = row[:COLUMNS_OF_A_FIRE]  # fmt: skip
    nominal_at = from_us(nominal_us)

    def usual(us: int) -> datetime:
        # Most entries are due, begin and end at their nominal time.
        return nominal_at if us == nominal_us else from_us(us)

    return Fire(
        entry_id=entry_id,
        task_id=model.TaskId(task_id),
        fire_id=fire_id or "",
        request_id=request_id or "",
        kind=_KINDS[kind],
        outcome=_OUTCOMES[outcome],
        reason=reason,
        nominal_at=nominal_at,
        due_at=usual(due_us),
        count=covers,
        first_at=usual(first_us),
        last_at=usual(last_us),
        attempt=attempt,
        policy=_POLICIES[policy],
        caught_up=bool(caught_up),
        released=bool(released),
        send_by=_at(send_by_us),
        ready_at=_at(ready_us),
        refusals=refusals,
        fired_at=_at(fired_us),
        accepted_at=_at(accepted_us),
        started_at=_at(started_us),
        ended_at=_at(ended_us),
        turn_id=turn_id,
        retries=retries,
        spent=spent_us * _MICROSECOND if spent_us else _NO_TIME,
        tokens=tokens,
    )


def row_of_new_fire(fire: Fire) -> dict[str, Any]:
    """Return a row of `fires` without its number."""
    return {
        "task_id": fire.task_id,
        "fire_id": fire.fire_id or None,
        "request_id": fire.request_id or None,
        "kind": fire.kind.value,
        "outcome": fire.outcome.value,
        "is_open": fire.outcome in model.OPEN,
        "reason": fire.reason,
        "nominal_us": to_us(fire.nominal_at),
        "due_us": to_us(fire.due_at),
        "covers": fire.count,
        "first_us": to_us(fire.first_at),
        "last_us": to_us(fire.last_at),
        "attempt": fire.attempt,
        "policy": fire.policy.value,
        "caught_up": fire.caught_up,
        "released": fire.released,
        "send_by_us": _us(fire.send_by),
        "ready_us": _us(fire.ready_at),
        "refusals": fire.refusals,
        "fired_us": _us(fire.fired_at),
        "accepted_us": _us(fire.accepted_at),
        "started_us": _us(fire.started_at),
        "ended_us": _us(fire.ended_at),
        "turn_id": fire.turn_id,
        "retries": fire.retries,
        "spent_us": fire.spent // _MICROSECOND,
        "tokens": fire.tokens,
    }


def changes_of_fire(fire: Fire) -> dict[str, Any]:
    """Return the columns of `fires` that can change, and the entry's number as `number`.

    The columns that identify an entry never change, and leaving them out saves index updates.
    """
    row = row_of_new_fire(fire)
    row["number"] = fire.entry_id
    del row["task_id"], row["request_id"], row["kind"]
    return row


def sending_of(fire: Fire) -> dict[str, Any]:
    """Return the columns of `fires` that sending changes, and the entry's number as `number`."""
    return {
        "number": fire.entry_id,
        "outcome": fire.outcome.value,
        "reason": fire.reason,
        "ready_us": _us(fire.ready_at),
        "fired_us": _us(fire.fired_at),
    }


def acceptance_of(fire: Fire) -> dict[str, Any]:
    """Return the columns of `fires` that an accepting receipt changes, and the entry's number as `number`."""
    return {
        "number": fire.entry_id,
        "outcome": fire.outcome.value,
        "ready_us": _us(fire.ready_at),
        "refusals": fire.refusals,
        "fired_us": _us(fire.fired_at),
        "accepted_us": _us(fire.accepted_at),
        "turn_id": fire.turn_id,
    }


def _usage_of(text: str, unpriced: str) -> Usage:
    day, turns, us, tokens, *money = json.loads(text)
    used = Usage(day=date.fromisoformat(day), turns=turns, spent=us * _MICROSECOND, tokens=tokens, money=sum(money))
    return model.replace(used, unpriced=unpriced)


def _text_of_usage(usage: Usage) -> str:
    money = [usage.money] if usage.money else []  # earlier versions know no money
    return json.dumps([usage.day.isoformat(), usage.turns, usage.spent // _MICROSECOND, usage.tokens, *money])


def _paced_thread(task: Task) -> str | None:
    paced = task.definition.schedule.kind is model.ScheduleKind.DYNAMIC
    return (task.definition.thread_id or task.own_thread) if paced else None


def _pacing_of(text: str) -> Pacing:
    # The fourth value was the number of wakes requested at once; older rows end with the fifth.
    iteration, armed_us, why, _, setbacks, *rest = json.loads(text)
    hour_us, turns, tokens, put_off = rest or (None, 0, 0, "")
    hour: dict[str, Any] = {"hour_at": _at(hour_us), "hour_turns": turns, "hour_tokens": tokens}
    return Pacing(iteration=iteration, armed_at=_at(armed_us), why=why, setbacks=setbacks, put_off=put_off, **hour)


def _text_of_pacing(pacing: Pacing) -> str:
    hour = [_us(pacing.hour_at), pacing.hour_turns, pacing.hour_tokens]
    said = [pacing.iteration, _us(pacing.armed_at), pacing.why, 0, pacing.setbacks, *hour, pacing.put_off]
    return json.dumps(said, ensure_ascii=False)


def _at(us: int | None) -> datetime | None:
    return None if us is None else from_us(us)


def _us(at: datetime | None) -> int | None:
    return None if at is None else to_us(at)


_VALUES = attrgetter(*(field.name for field in DIRECT))
_DEFAULTS = {each.name: each.default for each in fields(Definition)}
# How each value is stored and, computed once, how the model's default is stored.
_STORED = tuple(
    (each.name, None if each.kind.store is TEXT.store else each.kind.store, default, stored)
    for each in DIRECT
    for default in [_DEFAULTS[each.name]]
    for stored in [default if default is None or default is MISSING else each.kind.store(default)]
)


def encode_definition(definition: Definition) -> str:
    """Return the definition as one line of JSON, the same line for equal definitions."""
    stored: dict[str, Any] = {
        name: usual if value is default else value if value is None or store is None else store(value)
        for (name, store, default, usual), value in zip(_STORED, _VALUES(definition), strict=True)
    }
    schedule = definition.schedule
    stored["schedule"] = {
        "kind": schedule.kind.value,
        "text": schedule.text,
        "anchor_at": _us(schedule.anchor_at),
        "declared_in": schedule.declared_in,
    }
    if (by := definition.created_by) is not None:
        stored["created_by"] = [by.turn_id, by.category, by.agent]
    if (on := definition.on) is not None:
        stored["on"] = [on.event, list(on.filters), on.debounce // _MICROSECOND, to_us(on.since)]
    try:
        return orjson.dumps(stored, option=orjson.OPT_SORT_KEYS).decode()
    except TypeError:  # only the slower encoder accepts these: long integers, lone surrogates
        return json.dumps(stored, ensure_ascii=False, separators=(",", ":"), sort_keys=True)


def signed(definition: str, by: str) -> str:
    """Return a definition, as :func:`encode_definition` wrote it, with the origin `by` of its edit."""
    return f'{definition[:-1]},"edited_by":{json.dumps(by)}}}' if by else definition


def signature_of(text: str) -> str:
    """Return the origin of a definition's edit. Empty if unknown."""
    return str(json.loads(text).get("edited_by", ""))


@lru_cache(maxsize=8192)
def decode_definition(text: str) -> Definition:
    """Parse a definition that :func:`encode_definition` wrote. Missing fields have their defaults."""
    stored: dict[str, Any] = json.loads(text)
    schedule, maker = stored["schedule"], stored.get("created_by")
    return Definition(
        schedule=Schedule(
            kind=model.ScheduleKind(schedule["kind"]),
            text=schedule["text"],
            anchor_at=_at(schedule["anchor_at"]),
            declared_in=schedule["declared_in"],
        ),
        created_by=None if maker is None else model.CreatedBy(turn_id=maker[0], category=maker[1], agent=maker[2]),
        on=_trigger(stored.get("on")),
        **{field.name: field.kind.load(stored[field.name]) for field in DIRECT if stored.get(field.name) is not None},
    )


def _trigger(said: list[Any] | None) -> EventTrigger | None:
    if said is None:
        return None
    event, filters, debounce_us, since_us = said
    debounce = debounce_us * _MICROSECOND
    return EventTrigger(event=event, filters=tuple(filters), debounce=debounce, since=from_us(since_us))
