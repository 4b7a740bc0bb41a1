"""What a task says of the events it fires for, as its author writes it, and written out again. Pure."""

from dataclasses import replace
from datetime import datetime, timedelta

from protos.turnkeeper.v1 import schedules_pb2 as wire
from task_runner.model.declaration import EventTrigger
from task_runner.model.events import check_event_name, check_filters
from task_runner.model.task import Definition, ScheduleKind
from turnkeeper.config.durations import format_duration, parse_duration
from turnkeeper.errors import InvalidInput

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
