"""Loops: tasks with defaults of their own, self-paced tasks as written, and what bounds an agent. Pure.

A loop is a task like any other. What an agent's turn made is bounded besides: it expires, is put off a little so that
many of them do not come at once, and an agent has at most so many.
"""

from dataclasses import replace
from datetime import datetime, timedelta

from protos.turnkeeper.v1 import schedules_pb2 as wire
from task_runner.model.task import CatchUp, CreatedBy, Definition, Overlap, ScheduleKind
from task_runner.planner.schedule import timetable_of
from task_runner.planner.self_paced import DEFAULT_DELAY, END, LONGEST_DELAY, WAIT, check_if_silent, is_self_paced
from turnkeeper.errors import InvalidInput
from turnkeeper.times import format_duration, parse_duration, rfc3339

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
