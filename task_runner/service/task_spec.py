"""A task as its author wrote it (`TaskSpec`) as a checked definition, and a definition written as a spec. Pure."""

import json
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, NoReturn

from protos.turnkeeper.v1 import schedules_pb2 as wire
from task_runner.model.events import check_event_name, check_filters
from task_runner.model.task import (
    CatchUp,
    CreatedBy,
    Definition,
    EventTrigger,
    Overlap,
    Schedule,
    ScheduleKind,
    check_name,
)
from task_runner.planner.budgets import check_budget
from task_runner.planner.schedule import timetable_of
from task_runner.planner.self_paced import DEFAULT_DELAY, END, LONGEST_DELAY, WAIT, check_if_silent, is_self_paced
from task_runner.timetable import check_excluded, parse_cron, parse_every, parse_rrule, zone
from turnkeeper.bus.envelope import check_text as check_envelope_text
from turnkeeper.config.home import check_agent
from turnkeeper.errors import InvalidInput
from turnkeeper.times import format_duration, parse_duration, parse_rfc3339, rfc3339

HYBRID_DEBOUNCE = timedelta(seconds=30)
LONGEST_DEBOUNCE = timedelta(days=7)
_TOGETHER = frozenset({ScheduleKind.ON, ScheduleKind.CRON, ScheduleKind.EVERY, ScheduleKind.RRULE})
_NO_TIME = timedelta(0)


def listening(definition: Definition, spec: wire.TaskSpec, now: datetime, previous: Definition | None) -> Definition:
    """Return a definition with the events it fires for.

    Raises:
        InvalidInput: no event has that name, a filter that cannot be read, filters without an event, or a schedule
            that fires once or paces itself beside it.
    """
    if not spec.on:
        given = next((name for name in ("filters", "debounce") if getattr(spec, name)), "")
        if given:
            raise InvalidInput("is only for a task that fires for events", where=given, hint="give the event: on")
        return definition
    kind = definition.schedule.kind
    if kind not in _TOGETHER:
        hint = "leave one of them out; cron, every and rrule go together with on"
        raise InvalidInput(f"does not go together with {kind}", where="on", hint=hint)
    event = check_event_name(spec.on)
    before = previous.on if previous is not None else None
    on = EventTrigger(
        event=event,
        filters=check_filters(spec.filters),
        debounce=_debounce(spec, kind),
        since=before.since if before is not None and before.event == event else now,
    )
    return replace(definition, on=on)


def write_listening(spec: wire.TaskSpec, definition: Definition) -> None:
    """Write into a spec what :func:`listening` reads."""
    if (on := definition.on) is not None:
        spec.on, spec.debounce = on.event, format_duration(on.debounce)
        spec.filters.extend(on.filters)


def _debounce(spec: wire.TaskSpec, kind: ScheduleKind) -> timedelta:
    if not spec.HasField("debounce"):
        return _NO_TIME if kind is ScheduleKind.ON else HYBRID_DEBOUNCE
    span = parse_duration(spec.debounce, field="debounce")
    if span > LONGEST_DEBOUNCE:
        raise InvalidInput(f"must be {format_duration(LONGEST_DEBOUNCE)} at most", where="debounce")
    return span


LONGEST_PROMPT = 1 << 20
_LONGEST_LABEL = 63
_LARGEST_COUNT = 1_000_000
MOST_RETRIES = 5
_CATCH_UP_ALIASES = {"run-once-on-restart": CatchUp.RUN_ONCE, "run-all-missed": CatchUp.RUN_ALL}


@dataclass(frozen=True, kw_only=True)
class Defaults:
    """What a task gets where its author says nothing.

    Attributes:
        timezone: IANA name.
        grace: how late is still on time.
    """

    timezone: str
    grace: timedelta = timedelta(seconds=60)


def parse_spec(
    spec: wire.TaskSpec, defaults: Defaults, now: datetime, *, previous: Definition | None = None, own_id: str = ""
) -> Definition:
    """Return the definition that a spec asks for, every default filled in.

    Args:
        spec: what the author wrote.
        defaults: for what the author left out.
        now: where `in` counts from, and an interval without a start.
        previous: the definition it replaces; its zone and its anchor stay unless the spec gives others.
        own_id: the task's id, which alone it may be named like.

    Raises:
        InvalidInput: anything that cannot be taken; `where` names the field.
    """
    timezone = spec.timezone if spec.HasField("timezone") else (previous.timezone if previous else defaults.timezone)
    zone(timezone)
    start_at = _instant(spec, "start_at", timezone)
    catch_up = _catch_up(spec)
    definition = Definition(
        name=check_name(spec.name, own_id=own_id),
        schedule=_schedule(spec, timezone, start_at, now, previous),
        timezone=timezone,
        category=_label(spec.category, "category"),
        channel=_label(spec.channel, "channel"),
        prompt=_prompt(spec.prompt),
        payload_json=_payload(spec.payload_json),
        catch_up=catch_up,
        grace=parse_duration(spec.grace, field="grace") if spec.HasField("grace") else defaults.grace,
        catch_up_window=_optional_duration(spec, "catch_up_window"),
        max_catch_up=_count(spec, "max_catch_up") or 1000,
        overlap=_overlap(spec, catch_up),
        start_at=start_at,
        end_at=_instant(spec, "end_at", timezone),
        expires_at=_expiry(spec, timezone, now, previous),
        max_fires=_count(spec, "max_fires"),
        thread_id=_label(spec.thread_id, "thread_id") if spec.thread_id not in {"", own_id} else "",
        agent=check_agent(spec.agent) if spec.HasField("agent") else "agent0",
        read_only=spec.read_only,
        tags=tuple(sorted((_label(key, "tags"), _label(value, "tags")) for key, value in spec.tags.items())),
        jitter=parse_duration(spec.jitter, field="jitter") if spec.HasField("jitter") else timedelta(0),
        exclude=check_excluded(spec.exclude, zone(timezone)),
        retries=_retries(spec),
        pause_after_failures=_count(spec, "pause_after_failures"),
        budget=check_budget(spec.budget),
    )
    definition = listening(completed(definition, spec, now, previous), spec, now, previous)
    _check_bounds(definition)
    return definition


def write_spec(definition: Definition, *, paused: bool = False) -> wire.TaskSpec:
    """Return a spec that :func:`parse_spec` reads back as the same definition."""
    schedule = definition.schedule
    spec = wire.TaskSpec(
        name=definition.name,
        timezone=definition.timezone,
        category=definition.category,
        channel=definition.channel,
        prompt=definition.prompt,
        payload_json=definition.payload_json,
        catch_up=definition.catch_up.value,
        grace=format_duration(definition.grace),
        max_catch_up=definition.max_catch_up,
        overlap=definition.overlap.value,
        agent=definition.agent,
        read_only=definition.read_only,
        tags=dict(definition.tags),
        paused=paused,
        exclude=definition.exclude,
        budget=dict(definition.budget),
    )
    if schedule.kind is ScheduleKind.DYNAMIC:
        spec.dynamic = True
    elif schedule.kind is not ScheduleKind.ON:
        setattr(spec, schedule.kind.value, schedule.text)
    _write_what_is_given(spec, definition)
    return spec


def _write_what_is_given(spec: wire.TaskSpec, definition: Definition) -> None:
    """Write the fields that a spec leaves out where there is nothing to say."""
    write_loop(spec, definition)
    write_listening(spec, definition)
    for field in ("start_at", "end_at", "expires_at"):
        if (at := getattr(definition, field)) is not None:
            setattr(spec, field, rfc3339(at))
    if definition.catch_up_window is not None:
        spec.catch_up_window = format_duration(definition.catch_up_window)
    if definition.max_fires is not None:
        spec.max_fires = definition.max_fires
    if definition.jitter:
        spec.jitter = format_duration(definition.jitter)
    if definition.retries:
        spec.retries = definition.retries
    if definition.pause_after_failures is not None:
        spec.pause_after_failures = definition.pause_after_failures
    if definition.thread_id:
        spec.thread_id = definition.thread_id


def parse_instant(text: str, timezone: str, *, field: str) -> datetime:
    """Return the instant of an ISO time; one without an offset is wall time in `timezone`, in an overlap the first.

    Raises:
        InvalidInput: not an ISO time, or a wall time that the zone skips.
    """
    try:
        at = datetime.fromisoformat(text.strip())
        if at.tzinfo is not None:
            return parse_rfc3339(text.strip())
        local = at.replace(tzinfo=zone(timezone))
        instant = parse_rfc3339(local.isoformat())
        skipped = instant.astimezone(zone(timezone)).replace(tzinfo=None) != at
    except (ValueError, OverflowError) as error:
        hint = "write for example 2026-11-21T09:00:00Z, or 2026-11-21T09:00 for local time"
        raise InvalidInput(f"{text[:60]!r} is not a time", where=field, hint=hint) from error
    if skipped:
        raise InvalidInput(f"{text!r} does not exist in {timezone}: the clocks skip it", where=field)
    return instant


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
            anchor = (start_at or (kept.anchor_at if kept else None) or now).replace(microsecond=0)
            rule = parse_rrule(spec.rrule, zone=zone(timezone), anchor=anchor)
            starts = None if rule.has_start else anchor
            return Schedule(kind=ScheduleKind.RRULE, text=rule.text, anchor_at=starts)
        case "at" | "in":
            return _once(spec, timezone, kept, now)
        case "dynamic" if spec.dynamic:
            return Schedule(kind=ScheduleKind.DYNAMIC, text="")
        case _ if spec.on:
            return Schedule(kind=ScheduleKind.ON, text="")
        case _:
            raise InvalidInput("one of cron, every, at, in, rrule, dynamic, on is required", where="schedule")


def _once(spec: wire.TaskSpec, timezone: str, kept: Schedule | None, now: datetime) -> Schedule:
    if spec.HasField("at"):
        return _at(parse_instant(spec.at, timezone, field="at"), kept, now, declared_in="")
    text = getattr(spec, "in")
    if kept is not None and kept.declared_in == text:
        return kept
    return _at(now + parse_duration(text, field="in"), None, now, declared_in=text)


def _at(at: datetime, kept: Schedule | None, now: datetime, *, declared_in: str) -> Schedule:
    """Return a one-shot on the next whole second, so that it is never early."""
    if at.microsecond:
        at = at.replace(microsecond=0) + timedelta(seconds=1)
    text = rfc3339(at)
    if kept is not None and kept.text == text:
        return kept
    if at <= now:
        raise InvalidInput(f"{text} has passed", where="at", hint="give a time to come, or run the task by hand")
    return Schedule(kind=ScheduleKind.AT, text=text, declared_in=declared_in)


def _catch_up(spec: wire.TaskSpec) -> CatchUp:
    if not spec.HasField("catch_up"):
        return CatchUp.RUN_ONCE
    if spec.catch_up in _CATCH_UP_ALIASES:
        return _CATCH_UP_ALIASES[spec.catch_up]
    if spec.catch_up not in set(CatchUp):
        raise InvalidInput(
            f"unknown policy {spec.catch_up[:40]!r}", where="catch_up", hint=f"one of {', '.join(CatchUp)}"
        )
    return CatchUp(spec.catch_up)


def _overlap(spec: wire.TaskSpec, catch_up: CatchUp) -> Overlap:
    text = spec.overlap if spec.HasField("overlap") else ""
    if text and text not in set(Overlap):
        raise InvalidInput(f"unknown policy {text[:40]!r}", where="overlap", hint=f"one of {', '.join(Overlap)}")
    if catch_up is CatchUp.RUN_ALL:
        if text and text != Overlap.QUEUE:
            raise InvalidInput("catch-up run-all implies overlap queue", where="overlap", hint="leave overlap out")
        return Overlap.QUEUE
    return Overlap(text) if text else Overlap.COALESCE


def _prompt(text: str) -> str:
    if not text.strip():
        raise InvalidInput("is required", where="prompt", hint="say what the agent is to do")
    if len(text.encode("utf-8", errors="replace")) > LONGEST_PROMPT:
        raise InvalidInput(f"is longer than {LONGEST_PROMPT} bytes", where="prompt")
    if "\0" in text:
        raise InvalidInput("contains a NUL character", where="prompt")
    check_envelope_text(text, where="prompt")
    return text


def _payload(text: str) -> str:
    if not text:
        return ""
    try:
        payload: Any = json.loads(text, parse_constant=_not_json)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"is not JSON: {error}", where="payload") from error
    if not isinstance(payload, dict):
        raise InvalidInput("must be a JSON object", where="payload")
    compact = json.dumps(payload, ensure_ascii=False, separators=(",", ":"))
    if len(compact.encode("utf-8", errors="replace")) > LONGEST_PROMPT:
        raise InvalidInput(f"is longer than {LONGEST_PROMPT} bytes", where="payload")
    return compact


def _not_json(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a JSON number")


def _label(text: str, field: str) -> str:
    if not text:
        raise InvalidInput("is required", where=field)
    if len(text) > _LONGEST_LABEL or not text.isascii() or not text.isprintable() or text != text.strip():
        raise InvalidInput(f"{text[:70]!r} must be 1 to {_LONGEST_LABEL} printable ASCII characters", where=field)
    if "/" in text or ".." in text:
        raise InvalidInput(f"{text!r} must not look like a path", where=field)
    return text


def _count(spec: Any, field: str) -> int | None:
    if not spec.HasField(field):
        return None
    value = int(getattr(spec, field))
    if not 1 <= value <= _LARGEST_COUNT:
        raise InvalidInput(f"must be from 1 to {_LARGEST_COUNT}, not {value}", where=field)
    return value


def _retries(spec: wire.TaskSpec) -> int:
    if not 0 <= spec.retries <= MOST_RETRIES:
        raise InvalidInput(f"must be from 0 to {MOST_RETRIES}, not {spec.retries}", where="retries")
    return int(spec.retries)


def _optional_duration(spec: Any, field: str) -> timedelta | None:
    if not spec.HasField(field):
        return None
    span = parse_duration(getattr(spec, field), field=field)
    if not span:
        raise InvalidInput("must be longer than 0 s", where=field)
    return span


def _instant(spec: Any, field: str, timezone: str) -> datetime | None:
    return parse_instant(getattr(spec, field), timezone, field=field) if spec.HasField(field) else None


def _expiry(spec: wire.TaskSpec, timezone: str, now: datetime, previous: Definition | None) -> datetime | None:
    """Return when a task expires: a time, or a duration that counts from when it was first declared."""
    if not spec.HasField("expires_at"):
        return None
    if "-" in spec.expires_at:
        return parse_instant(spec.expires_at, timezone, field="expires_at")
    if previous is not None and previous.expires_at is not None:
        return previous.expires_at
    return now.replace(microsecond=0) + parse_duration(spec.expires_at, field="expires_at")


def _check_bounds(definition: Definition) -> None:
    if definition.start_at and definition.end_at and definition.end_at <= definition.start_at:
        raise InvalidInput("must be later than start_at", where="end_at")
    timetable_of(definition)


CHANNEL, CATEGORY = "general", "loop"
MOST_PER_AGENT = 25
LONGEST_LIFE = timedelta(days=7)
_LONGEST_JITTER = timedelta(seconds=30)
_PART_OF_GAP = 10
_LONGEST_TEXT = 128


def as_loop(spec: wire.TaskSpec, own_id: str) -> wire.TaskSpec:
    """Return a spec with a loop's defaults where its author says nothing: name, channel, category, pace."""
    loop = wire.TaskSpec()
    loop.CopyFrom(spec)
    loop.name = loop.name or own_id
    loop.channel, loop.category = loop.channel or CHANNEL, loop.category or CATEGORY
    if loop.dynamic:
        loop.first = loop.first if loop.HasField("first") else "0s"
        loop.if_silent = loop.if_silent if loop.HasField("if_silent") else END
    return loop


def completed(definition: Definition, spec: wire.TaskSpec, now: datetime, previous: Definition | None) -> Definition:
    """Return a definition with what makes it self-paced, and with what bounds an agent's. Raises InvalidInput."""
    made_by = previous.created_by if previous is not None else _maker(spec)
    definition = replace(definition, created_by=made_by, ephemeral=spec.ephemeral)
    if is_self_paced(definition):
        definition = _paced(definition, spec, made_by)
    elif spec.HasField("first") or spec.HasField("if_silent"):
        where = "first" if spec.HasField("first") else "if_silent"
        raise InvalidInput("is only for a self-paced task", where=where, hint="leave it out, or use dynamic")
    return definition if made_by is None else _bounded(definition, spec, now, previous)


def write_loop(spec: wire.TaskSpec, definition: Definition) -> None:
    """Write into a spec what :func:`completed` reads."""
    if is_self_paced(definition):
        spec.first, spec.if_silent = format_duration(definition.first or timedelta(0)), definition.if_silent
    if definition.ephemeral:
        spec.ephemeral = True
    if (by := definition.created_by) is not None:
        spec.created_by.CopyFrom(wire.CreatedBy(turn_id=by.turn_id, category=by.category, agent=by.agent))


def _paced(definition: Definition, spec: wire.TaskSpec, made_by: CreatedBy | None) -> Definition:
    if definition.catch_up is not CatchUp.RUN_ONCE or definition.catch_up_window is not None:
        where = "catch_up_window" if definition.catch_up_window is not None else "catch_up"
        raise InvalidInput("a missed wake of a self-paced task always runs, once", where=where, hint="leave it out")
    if definition.overlap is not Overlap.COALESCE:
        what = "a self-paced task never has two wakes at once"
        raise InvalidInput(what, where="overlap", hint="leave it out")
    if definition.exclude:
        raise InvalidInput("a self-paced task names no times to exclude", where="exclude", hint="leave it out")
    first = parse_duration(spec.first, field="first") if spec.HasField("first") else DEFAULT_DELAY
    if first > LONGEST_DELAY:
        raise InvalidInput(f"must be at most {format_duration(LONGEST_DELAY)}", where="first")
    silent = spec.if_silent if spec.HasField("if_silent") else (WAIT if made_by is None else END)
    return replace(definition, first=first, if_silent=check_if_silent(silent))


def _bounded(definition: Definition, spec: wire.TaskSpec, now: datetime, previous: Definition | None) -> Definition:
    """Return what an agent made within its limits: an expiry, and a jitter."""
    if previous is None:
        last = now.replace(microsecond=0) + LONGEST_LIFE
        expires_at = definition.expires_at or last
        if expires_at > last:
            what = f"what an agent made lasts {format_duration(LONGEST_LIFE)}, until {rfc3339(last)}"
            raise InvalidInput(what, where="expires_at", hint="give an earlier time, or leave it out")
        definition = replace(definition, expires_at=expires_at)
    elif definition.expires_at is None:
        definition = replace(definition, expires_at=previous.expires_at)
    return definition if spec.HasField("jitter") else replace(definition, jitter=_jitter(definition, now))


def _jitter(definition: Definition, now: datetime) -> timedelta:
    """Return a tenth of the gap between two nominal times, at most 30 s, in whole seconds."""
    if definition.schedule.kind is ScheduleKind.DYNAMIC:
        return timedelta(0)
    nominals = timetable_of(replace(definition, expires_at=None)).upcoming(now, 2)
    if len(nominals) < 2:
        return timedelta(0)
    seconds = int((nominals[1] - nominals[0]).total_seconds()) // _PART_OF_GAP
    return min(_LONGEST_JITTER, timedelta(seconds=seconds))


def _maker(spec: wire.TaskSpec) -> CreatedBy | None:
    if not spec.HasField("created_by"):
        return None
    by = spec.created_by
    for said in (by.turn_id, by.category, by.agent):
        if not said or len(said) > _LONGEST_TEXT or not said.isprintable():
            raise InvalidInput("must name a turn, its category and its agent", where="created_by")
    return CreatedBy(turn_id=by.turn_id, category=by.category, agent=by.agent)
