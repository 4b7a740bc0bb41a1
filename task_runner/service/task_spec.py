"""Conversion of a task as its author wrote it (`TaskSpec`) to a validated definition, and back. Pure.

:data:`task_runner.model.fields.FIELDS` describes how most fields are read and written. This module handles fields that
depend on more than their own value. A loop is a task with its own defaults. A task that an agent's turn creates is
limited: it expires, has a small random delay so that many tasks do not fire at once, and counts towards a maximum.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from task_runner.model import task as model
from task_runner.model.events import check_event_name, check_filters
from task_runner.model.fields import BY_NAME, DIRECT, EACH, SCHEDULES, Field, check_label, parse_instant, put
from task_runner.model.task import Definition, Overlap, Schedule, ScheduleKind
from task_runner.planner import budgets, self_paced
from task_runner.planner.entries import RULES, timetable_of
from task_runner.timetable import parse_cron, parse_every, zone
from turnkeeper.bus.envelope import check_text as check_envelope_text
from turnkeeper.config.home import check_agent
from turnkeeper.config.json_text import check_configurable, read_object
from turnkeeper.config.surfaces import offered, required
from turnkeeper.errors import InvalidInput
from turnkeeper.times import format_duration, parse_duration, rfc3339
from turnkeeper.v1 import schedules_pb2 as wire

HYBRID_DEBOUNCE = timedelta(seconds=30)
LONGEST_DEBOUNCE = timedelta(days=7)
LONGEST_PROMPT = 1 << 20
CHANNEL, CATEGORY = "general", "loop"
MOST_PER_AGENT = 25
LONGEST_LIFE = timedelta(days=7)
_LONGEST_JITTER = timedelta(seconds=30)
_PART_OF_GAP = 10
_LONGEST_TEXT = 128
_TOGETHER = frozenset({ScheduleKind.ON, ScheduleKind.CRON, ScheduleKind.EVERY, ScheduleKind.RRULE})
_ONLY_SELF_PACED = ("first", "if_silent")


@dataclass(frozen=True, kw_only=True)
class Defaults:
    """The defaults for fields that the author of a task omits.

    Attributes:
        timezone: IANA name.
        grace: the longest delay that still counts as on time.
    """

    timezone: str
    grace: timedelta = timedelta(seconds=60)


class _Given(NamedTuple):
    """A spec as its author wrote it, and the context in which to parse it."""

    spec: wire.TaskSpec
    timezone: str
    defaults: Defaults
    now: datetime
    previous: Definition | None
    own_id: str


def parse_spec(
    spec: wire.TaskSpec, defaults: Defaults, now: datetime, *, previous: Definition | None = None, own_id: str = ""
) -> Definition:
    """Parse a spec into a definition, with every default filled in.

    Args:
        now: the start of `in`, and of an interval without a start.
        previous: the definition to replace; keep its zone and anchor unless the spec gives others.
        own_id: the task's id; the only id that the task may use as its name.

    Raises:
        InvalidInput: a field is not valid; `where` names the field.
    """
    timezone = spec.timezone if spec.HasField("timezone") else (previous.timezone if previous else defaults.timezone)
    zone(timezone)
    if previous is not None and spec.HasField("created_by") and _maker(spec) != previous.created_by:
        raise InvalidInput("cannot be changed", where="created_by", hint="leave it out")
    given = _Given(spec, timezone, defaults, now, previous, own_id)
    read = _ALWAYS_READ | {descriptor.name for descriptor, _ in spec.ListFields()}
    if "catch_up" in read:
        read |= {"overlap"}
    values = {field.name: _parsed(field, given) for field in _READ if field.name in read}
    definition = Definition(
        schedule=_schedule(spec, timezone, values.get("start_at"), now, previous),
        created_by=previous.created_by if previous is not None else _maker(spec),
        **values,
    )
    definition = _with_event(_with_pace(definition, spec), spec, now, previous)
    if definition.created_by is not None:
        definition = _bounded(definition, spec, now, previous)
    if definition.start_at and definition.end_at and definition.end_at <= definition.start_at:
        raise InvalidInput("must be later than start_at", where="end_at")
    _check_approvals(definition)
    offered("variables of a prompt", definition)
    timetable_of(definition)
    return definition


def write_spec(definition: Definition, *, paused: bool = False) -> wire.TaskSpec:
    """Return a spec that :func:`parse_spec` converts back to the same definition."""
    spec, schedule = wire.TaskSpec(paused=paused), definition.schedule
    for field in DIRECT:
        if (value := getattr(definition, field.name)) is not None:
            written = field.kind.write(value)
            if not (field.is_sparse and written in {"", field.default}):
                put(spec, field.name, written)
    if schedule.kind is not ScheduleKind.ON:
        setattr(spec, schedule.kind.value, schedule.text or True)
    if (on := definition.on) is not None:
        spec.on, spec.debounce = on.event, format_duration(on.debounce)
        spec.filters.extend(on.filters)
    if (by := definition.created_by) is not None:
        spec.created_by.CopyFrom(wire.CreatedBy(turn_id=by.turn_id, category=by.category, agent=by.agent))
    return spec


def as_loop(spec: wire.TaskSpec, own_id: str) -> wire.TaskSpec:
    """Return a spec with a loop's defaults if its author omits the name, channel, category or pace."""
    loop = wire.TaskSpec()
    loop.CopyFrom(spec)
    loop.name = loop.name or own_id
    loop.channel, loop.category = loop.channel or CHANNEL, loop.category or CATEGORY
    if loop.dynamic:
        loop.first = loop.first if loop.HasField("first") else "0s"
        loop.if_silent = loop.if_silent if loop.HasField("if_silent") else self_paced.END
    return loop


def _parsed(field: Field, given: _Given) -> Any:
    if field.name in _PARSERS:
        return _PARSERS[field.name](given)
    return field.kind.parse(getattr(given.spec, field.name), field.name, given.timezone)


def _schedule(
    spec: wire.TaskSpec, timezone: str, start_at: datetime | None, now: datetime, previous: Definition | None
) -> Schedule:
    kept = previous.schedule if previous else None
    match spec.WhichOneof("schedule"):
        case "cron":
            text = " ".join(spec.cron.split())
            parse_cron(spec.cron, name=spec.name, zone=zone(timezone))
            return Schedule(kind=ScheduleKind.CRON, text=text)
        case "every":
            anchor = start_at or (kept.anchor_at if kept else None) or now
            table = parse_every(spec.every, anchor=anchor)
            return Schedule(kind=ScheduleKind.EVERY, text=format_duration(table.interval), anchor_at=table.anchor)
        case "rrule":
            kept_at = kept.anchor_at if kept and kept.kind is ScheduleKind.RRULE else None
            whole_minute = (now + timedelta(minutes=1) - timedelta(microseconds=1)).replace(second=0, microsecond=0)
            anchor = start_at or kept_at or whole_minute
            rule = required(RULES, spec.rrule, zone(timezone), anchor)
            starts = None if rule.has_start else anchor
            return Schedule(kind=ScheduleKind.RRULE, text=rule.text, anchor_at=starts)
        case "at" | "in":
            return _once(spec, timezone, kept, now)
        case "dynamic" if spec.dynamic:
            return Schedule(kind=ScheduleKind.DYNAMIC, text="")
        case _ if spec.on:
            return Schedule(kind=ScheduleKind.ON, text="")
        case _:
            raise InvalidInput(f"one of {', '.join(SCHEDULES)}, on is required", where="schedule")


def _once(spec: wire.TaskSpec, timezone: str, kept: Schedule | None, now: datetime) -> Schedule:
    if spec.HasField("at"):
        return _at(parse_instant(spec.at, timezone, field="at"), kept, now, declared_in="")
    text = getattr(spec, "in")
    if kept is not None and kept.declared_in == text:
        return kept
    return _at(now + parse_duration(text, field="in"), None, now, declared_in=text)


def _at(at: datetime, kept: Schedule | None, now: datetime, *, declared_in: str) -> Schedule:
    """Return a one-shot schedule at the next whole second, so that it never fires early."""
    if at.microsecond:
        at = at.replace(microsecond=0) + timedelta(seconds=1)
    text = rfc3339(at)
    if kept is not None and kept.text == text:
        return kept
    if at <= now:
        raise InvalidInput(f"{text} has passed", where="at", hint="give a future time, or run the task manually")
    return Schedule(kind=ScheduleKind.AT, text=text, declared_in=declared_in)


def _grace(given: _Given) -> timedelta:
    spec = given.spec
    return parse_duration(spec.grace, field="grace") if spec.HasField("grace") else given.defaults.grace


def _overlap(given: _Given) -> Overlap:
    spec, parse = given.spec, BY_NAME["catch_up"].kind.parse
    asked = Overlap(BY_NAME["overlap"].kind.parse(spec.overlap, "overlap", "")) if spec.overlap else None
    if spec.HasField("catch_up") and parse(spec.catch_up, "catch_up", "") is model.CatchUp.RUN_ALL:
        if asked not in {None, Overlap.QUEUE}:
            raise InvalidInput("catch-up run-all implies overlap queue", where="overlap", hint="leave overlap out")
        return Overlap.QUEUE
    return asked or Overlap.COALESCE


def _expiry(given: _Given) -> datetime | None:
    """Return when a task expires. A duration counts from the task's first declaration."""
    text, previous = given.spec.expires_at, given.previous
    if not given.spec.HasField("expires_at"):
        return None
    if "-" in text:
        return parse_instant(text, given.timezone, field="expires_at")
    if previous is not None and previous.expires_at is not None:
        return previous.expires_at
    return given.now.replace(microsecond=0) + parse_duration(text, field="expires_at")


def _prompt(given: _Given) -> str:
    text = given.spec.prompt
    if not text.strip():
        if given.spec.input_json or given.spec.payload_json:
            return ""  # a graph without a conversation may take no prompt
        raise InvalidInput("is required", where="prompt", hint="say what the agent must do")
    if len(text.encode("utf-8", errors="replace")) > LONGEST_PROMPT:
        raise InvalidInput(f"is longer than {LONGEST_PROMPT} bytes", where="prompt")
    refuse_nul(text, "prompt")
    check_envelope_text(text, where="prompt")
    return text


def minutes_of_rule(definition: Definition) -> list[str]:
    """Return a warning if a recurrence rule names an hour, and takes the minute from the creation of its task."""
    text = definition.schedule.text if definition.schedule.kind is ScheduleKind.RRULE else ""
    if "BYHOUR=" not in text or re.search("BYMINUTE=|DTSTART|MINUTELY", text) or definition.start_at:
        return []
    return [f"the rule names no minute, so it fires at the minute of the task's creation; write {text};BYMINUTE=0"]


def refuse_nul(text: str, field: str) -> None:
    """Raise InvalidInput if the text contains a NUL, because some databases cannot store one."""
    if "\0" in text:
        raise InvalidInput("contains a NUL character", where=field)


def _object(name: str) -> Callable[[_Given], str]:
    """Return a parser for a JSON object field. The parser returns one line, or empty if the field is not given."""
    where = BY_NAME[name].written_as

    def parse(given: _Given) -> str:
        text = getattr(given.spec, name)
        if not text:
            return ""
        found = read_object(text, where=where, longest=LONGEST_PROMPT)
        if where in {"context", "config"}:
            check_configurable(found, where)
        compact = json.dumps(found, ensure_ascii=False, separators=(",", ":"))
        if len(compact.encode("utf-8", errors="replace")) > LONGEST_PROMPT:
            raise InvalidInput(f"is longer than {LONGEST_PROMPT} bytes", where=where)
        return compact

    return parse


def _thread(given: _Given) -> str:
    """Return the thread that a task names. Empty if it is the task's own, with its new or its previous graph."""
    thread_id = given.spec.thread_id
    if thread_id == EACH:
        return model.EACH_FIRE
    graphs = {"", given.spec.graph, given.previous.graph if given.previous else ""}
    own = {model.own_thread(given.own_id, graph) for graph in graphs}
    return "" if thread_id in {"", *own} else check_label(thread_id, "thread_id")


# The fields whose value depends on more than their own value in the spec.
_PARSERS: Mapping[str, Callable[[_Given], Any]] = {
    "name": lambda given: model.check_name(given.spec.name, own_id=given.own_id),
    "timezone": lambda given: given.timezone,
    "prompt": _prompt,
    **{name: _object(name) for name in ("payload_json", *model.OF_GRAPH[1:])},
    "grace": _grace,
    "overlap": _overlap,
    "expires_at": _expiry,
    "budget": lambda given: offered("check of prices", given.spec.budget) or budgets.check_budget(given.spec.budget),
    "thread_id": _thread,
    "agent": lambda given: check_agent(given.spec.agent) if given.spec.HasField("agent") else "agent0",
}


# The fields to parse even if a spec omits them. Other omitted fields get the model's default.
_ALWAYS_READ = frozenset({"name", "timezone", "category", "channel", "prompt", "grace"})
_READ = tuple(field for field in DIRECT if field.name not in _ONLY_SELF_PACED)


def _with_pace(definition: Definition, spec: wire.TaskSpec) -> Definition:
    """Add the fields of a self-paced task to a definition, if it is self-paced. Raises InvalidInput."""
    if not definition.is_self_paced:
        if given := next((name for name in _ONLY_SELF_PACED if spec.HasField(name)), ""):  # type: ignore[arg-type]
            raise InvalidInput("is only for a self-paced task", where=given, hint="omit it, or use dynamic")
        if hourly := [key for key, _ in definition.budget if key in budgets.HOURLY]:
            hint = "limit the turns of other tasks by their schedule, or by a daily limit"
            raise InvalidInput(f"{hourly[0]} is only for a self-paced task", where="budget", hint=hint)
        return definition
    if definition.thread_id == model.EACH_FIRE:
        raise InvalidInput("a self-paced task continues its thread", where="thread_id", hint="leave each out")
    if definition.catch_up is not model.CatchUp.RUN_ONCE or definition.catch_up_window is not None:
        where = "catch_up_window" if definition.catch_up_window is not None else "catch_up"
        raise InvalidInput("a missed wake of a self-paced task always runs, once", where=where, hint="leave it out")
    if definition.overlap is not Overlap.COALESCE:
        what = "a self-paced task never has two wakes at once"
        raise InvalidInput(what, where="overlap", hint="leave it out")
    if definition.exclude:
        raise InvalidInput("a self-paced task has no scheduled times to exclude", where="exclude", hint="leave it out")
    first = parse_duration(spec.first, field="first") if spec.HasField("first") else self_paced.DEFAULT_DELAY
    if first > self_paced.LONGEST_DELAY:
        raise InvalidInput(f"must be at most {format_duration(self_paced.LONGEST_DELAY)}", where="first")
    silent = self_paced.WAIT if definition.created_by is None else self_paced.END
    if spec.HasField("if_silent"):
        silent = spec.if_silent
    return replace(definition, first=first, if_silent=self_paced.check_if_silent(silent))


def _check_approvals(definition: Definition) -> None:
    """Raise InvalidInput if an approval would expire before its author is reminded."""
    ends = definition.approval_timeout
    for name in ("approval_reminder", "approval_escalation"):
        after = getattr(definition, name)
        if ends is not None and after is not None and after >= ends:
            what = f"{format_duration(after)} is not before approval_timeout ({format_duration(ends)})"
            raise InvalidInput(what, where=name, hint="give a shorter duration, or a longer approval_timeout")


def _bounded(definition: Definition, spec: wire.TaskSpec, now: datetime, previous: Definition | None) -> Definition:
    """Apply the limits of an agent's task to a definition: an expiry and a jitter."""
    if previous is None:
        last = now.replace(microsecond=0) + LONGEST_LIFE
        expires_at = definition.expires_at or last
        if expires_at > last:
            what = f"a task that an agent made lasts {format_duration(LONGEST_LIFE)}, until {rfc3339(last)}"
            raise InvalidInput(what, where="expires_at", hint="give an earlier time, or omit the time")
        definition = replace(definition, expires_at=expires_at)
    elif definition.expires_at is None:
        definition = replace(definition, expires_at=previous.expires_at)
    return definition if spec.HasField("jitter") else replace(definition, jitter=_jitter(definition, now))


def _jitter(definition: Definition, now: datetime) -> timedelta:
    """Return a tenth of the gap between two scheduled times, at most 30 s, in whole seconds."""
    if definition.schedule.kind is ScheduleKind.DYNAMIC:
        return timedelta(0)
    nominals = timetable_of(replace(definition, expires_at=None)).upcoming(now, 2)
    if len(nominals) < 2:
        return timedelta(0)
    seconds = int((nominals[1] - nominals[0]).total_seconds()) // _PART_OF_GAP
    return min(_LONGEST_JITTER, timedelta(seconds=seconds))


def _maker(spec: wire.TaskSpec) -> model.CreatedBy | None:
    if not spec.HasField("created_by"):
        return None
    by = spec.created_by
    for said in (by.turn_id, by.category, by.agent):
        if not said or len(said) > _LONGEST_TEXT or not said.isprintable():
            raise InvalidInput("must name a turn, its category and its agent", where="created_by")
    return model.CreatedBy(turn_id=by.turn_id, category=by.category, agent=by.agent)


def _with_event(definition: Definition, spec: wire.TaskSpec, now: datetime, previous: Definition | None) -> Definition:
    """Add the events that trigger a task to its definition.

    Raises:
        InvalidInput: an unknown event, a filter that cannot be parsed, filters without an event, or a schedule
            that fires once or paces itself in addition.
    """
    if not spec.on:
        given = next((name for name in ("filters", "debounce") if getattr(spec, name)), "")
        if given:
            raise InvalidInput("is only for a task that fires for events", where=given, hint="give the event: on")
        return definition
    kind = definition.schedule.kind
    if kind not in _TOGETHER:
        hint = "omit one; on can be combined with cron, every and rrule"
        raise InvalidInput(f"cannot be combined with {kind}", where="on", hint=hint)
    event = check_event_name(spec.on)
    before = previous.on if previous is not None else None
    on = model.EventTrigger(
        event=event,
        filters=check_filters(spec.filters),
        debounce=_debounce(spec, kind),
        since=before.since if before is not None and before.event == event else now,
    )
    return replace(definition, on=on)


def _debounce(spec: wire.TaskSpec, kind: ScheduleKind) -> timedelta:
    if not spec.HasField("debounce"):
        return timedelta(0) if kind is ScheduleKind.ON else HYBRID_DEBOUNCE
    span = parse_duration(spec.debounce, field="debounce")
    if span > LONGEST_DEBOUNCE:
        raise InvalidInput(f"must be {format_duration(LONGEST_DEBOUNCE)} at most", where="debounce")
    return span
