"""A task's definition as JSON in the store, and back. Times are integer microseconds, durations too."""

import json
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any

from task_runner.model.task import CatchUp, CreatedBy, Definition, EventTrigger, Overlap, Schedule, ScheduleKind
from turnkeeper.times import from_us, to_us

_INSTANTS = ("start_at", "end_at", "expires_at")
_DURATIONS = ("grace", "catch_up_window", "jitter", "first")
_SAME = (
    "name",
    "timezone",
    "category",
    "channel",
    "prompt",
    "payload_json",
    "max_catch_up",
    "max_fires",
    "thread_id",
    "agent",
    "read_only",
)
# What the first schema did not have yet: absent there, and where it says nothing.
_LATER = ("retries", "pause_after_failures", "if_silent", "ephemeral")


def encode_definition(definition: Definition) -> str:
    """Return the definition as one line of JSON, the same line for equal definitions."""
    schedule = definition.schedule
    fields: dict[str, Any] = {name: getattr(definition, name) for name in _SAME + _LATER}
    for name in _INSTANTS:
        at = getattr(definition, name)
        fields[name] = None if at is None else to_us(at)
    for name in _DURATIONS:
        span = getattr(definition, name)
        fields[name] = None if span is None else span // timedelta(microseconds=1)
    fields["schedule"] = {
        "kind": schedule.kind.value,
        "text": schedule.text,
        "anchor_at": None if schedule.anchor_at is None else to_us(schedule.anchor_at),
        "declared_in": schedule.declared_in,
    }
    fields["catch_up"], fields["overlap"] = definition.catch_up.value, definition.overlap.value
    fields["tags"], fields["budget"] = dict(definition.tags), dict(definition.budget)
    fields["exclude"] = list(definition.exclude)
    if (by := definition.created_by) is not None:
        fields["created_by"] = [by.turn_id, by.category, by.agent]
    if (on := definition.on) is not None:
        debounce_us = on.debounce // timedelta(microseconds=1)
        fields["on"] = [on.event, list(on.filters), debounce_us, to_us(on.since)]
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":"), sort_keys=True)


@lru_cache(maxsize=8192)
def decode_definition(text: str) -> Definition:
    """Return the definition that :func:`encode_definition` wrote. Raises KeyError or ValueError for anything else."""
    fields: dict[str, Any] = json.loads(text)
    schedule = fields["schedule"]
    return Definition(
        schedule=Schedule(
            kind=ScheduleKind(schedule["kind"]),
            text=schedule["text"],
            anchor_at=_at(schedule["anchor_at"]),
            declared_in=schedule["declared_in"],
        ),
        catch_up=CatchUp(fields["catch_up"]),
        overlap=Overlap(fields["overlap"]),
        tags=tuple(sorted(fields["tags"].items())),
        budget=tuple(sorted(fields.get("budget", {}).items())),
        exclude=tuple(fields.get("exclude", ())),
        jitter=timedelta(microseconds=fields.get("jitter") or 0),
        grace=timedelta(microseconds=fields["grace"]),
        catch_up_window=_span(fields["catch_up_window"]),
        first=_span(fields.get("first")),
        created_by=_maker(fields.get("created_by")),
        on=_trigger(fields.get("on")),
        start_at=_at(fields["start_at"]),
        end_at=_at(fields["end_at"]),
        expires_at=_at(fields["expires_at"]),
        **{name: fields[name] for name in _SAME},
        **{name: fields[name] for name in _LATER if name in fields},
    )


def _maker(said: list[str] | None) -> CreatedBy | None:
    return None if said is None else CreatedBy(turn_id=said[0], category=said[1], agent=said[2])


def _trigger(said: list[Any] | None) -> EventTrigger | None:
    if said is None:
        return None
    event, filters, debounce_us, since_us = said
    debounce = timedelta(microseconds=debounce_us)
    return EventTrigger(event=event, filters=tuple(filters), debounce=debounce, since=from_us(since_us))


def _at(us: int | None) -> datetime | None:
    return None if us is None else from_us(us)


def _span(us: int | None) -> timedelta | None:
    return None if us is None else timedelta(microseconds=us)
