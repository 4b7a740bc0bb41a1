"""Conversion between a task's fields in Python's types and its `TaskSpec` message. Pure.

The names are the names of `TaskSpec` in `schedules.proto`, except `in_` and the fields of JSON, which take objects.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Literal, TypedDict

from turnkeeper.errors import InvalidInput
from turnkeeper.times import format_duration, parse_duration, parse_rfc3339, rfc3339
from turnkeeper.v1 import schedules_pb2 as wire

Duration = timedelta | str
Instant = datetime | str


class TaskFields(TypedDict, total=False):
    """Fields of a task besides its name. `docs/tasks.md` explains each field. In an update, None removes a field.

    One of `cron`, `every`, `at`, `in_`, `rrule`, `dynamic` and `on` defines when the task fires. A `datetime` without a
    zone is wall time in `timezone`.
    """

    cron: str | None
    every: Duration | None
    at: Instant | None
    in_: Duration | None
    rrule: str | None
    dynamic: bool | None
    on: str | None
    filters: Sequence[str] | None
    debounce: Duration | None
    first: Duration | None
    if_silent: Duration | None
    timezone: str | None
    category: str
    channel: str
    prompt: str
    payload: Mapping[str, Any] | None
    catch_up: Literal["skip", "run-once", "run-all"] | None
    grace: Duration | None
    catch_up_window: Duration | None
    max_catch_up: int | None
    overlap: Literal["coalesce", "queue", "skip", "cancel-running"] | None
    jitter: Duration | None
    exclude: Sequence[str] | None
    ignore_calendar: bool | None
    start_at: Instant | None
    end_at: Instant | None
    expires_at: Instant | None
    max_fires: int | None
    retries: int | None
    pause_after_failures: int | None
    budget: Mapping[str, int] | None
    thread_id: str | None
    graph: str | None
    context: Mapping[str, Any] | None
    config: Mapping[str, Any] | None
    input: Mapping[str, Any] | None
    agent: str | None
    queue: str | None
    needs: str | None
    read_only: bool | None
    ephemeral: bool | None
    approval_reminder: Duration | None
    approval_escalation: Duration | None
    approval_timeout: Duration | None
    paused: bool
    tags: Mapping[str, str] | None


ON_WIRE = {"in_": "in", **{name: f"{name}_json" for name in ("payload", "context", "config", "input")}}
_BY_WIRE = {name: key for key, name in ON_WIRE.items()}
_DURATIONS = frozenset(
    {"every", "debounce", "first", "grace", "catch_up_window", "jitter"}
    | {"approval_reminder", "approval_escalation", "approval_timeout"}
)
_INSTANTS = frozenset({"at", "start_at", "end_at", "expires_at"})


def spec_of(name: str, given: Mapping[str, Any], *, now: datetime, base: wire.TaskSpec | None = None) -> wire.TaskSpec:
    """Return a task's message, with the given fields set over `base` if there is one.

    `in_` is converted to an instant, so that a repeated request means the same time.

    Raises:
        InvalidInput: a field does not exist, or its value has the wrong type.
    """
    spec = wire.TaskSpec()
    if base is not None:
        spec.CopyFrom(base)
    spec.name = name
    for key, said in given.items():
        if key not in TaskFields.__annotations__:
            raise InvalidInput("is not a field of a task", where=key, hint="see turnkeeper.client.TaskFields")
        on_wire, value = ON_WIRE.get(key, key), said
        if on_wire == "in" and value is not None:
            on_wire, value = "at", now + span(value, key)
        spec.ClearField(on_wire)  # type: ignore[arg-type]
        if value is not None:
            _put(spec, key, on_wire, _written(on_wire, value))
    return spec


def span(given: Duration, name: str) -> timedelta:
    """Return a duration, which may be given as a string.

    >>> span("20s", "timeout"), span(timedelta(seconds=0.5), "timeout")
    (datetime.timedelta(seconds=20), datetime.timedelta(microseconds=500000))

    Raises:
        InvalidInput: the value is neither a timedelta nor the text of a duration.
    """
    if isinstance(given, timedelta):
        return given
    if not isinstance(given, str):
        hint = f'write {name}=timedelta(seconds=20) or {name}="20s"'
        raise InvalidInput(f"{given!r:.60} is not a duration", where=name, hint=hint)
    return parse_duration(given, field=name)


def fields_of(spec: wire.TaskSpec) -> dict[str, Any]:
    """Return the fields of a spec, with the names of :class:`TaskFields` and in Python's types.

    >>> fields_of(spec_of("a", {"every": timedelta(minutes=7), "payload": {"n": 1}}, now=datetime.max))
    {'every': datetime.timedelta(seconds=420), 'payload': {'n': 1}}
    """
    given = {of.name: value for of, value in spec.ListFields() if _BY_WIRE.get(of.name, of.name) in _KNOWN}
    return {_BY_WIRE.get(name, name): _parsed(name, value) for name, value in given.items()}


def _put(spec: wire.TaskSpec, key: str, name: str, value: Any) -> None:
    try:
        if isinstance(value, Mapping):
            getattr(spec, name).update(value)
        elif isinstance(value, list | tuple):
            getattr(spec, name).extend(value)
        else:
            setattr(spec, name, value)
    except (TypeError, ValueError, AttributeError) as error:
        raise InvalidInput(f"cannot be {value!r:.60}", where=key, hint="see turnkeeper.client.TaskFields") from error


def _written(name: str, value: Any) -> Any:
    if isinstance(value, timedelta):
        if value < timedelta(0) or value.microseconds:
            raise InvalidInput(f"{value} is not a duration of whole seconds", where=name)
        return format_duration(value)
    if isinstance(value, datetime):
        return rfc3339(value) if value.tzinfo is not None else value.isoformat()
    return json.dumps(value) if name.endswith("_json") else value


def _parsed(name: str, value: Any) -> Any:
    if name in _DURATIONS:
        return parse_duration(value, field=name)
    if name in _INSTANTS and value.endswith("Z"):
        return parse_rfc3339(value)
    if name.endswith("_json"):
        return json.loads(value)
    return value if isinstance(value, str | int | bool | float) else _plain(value)


def _plain(value: Any) -> Any:
    return dict(value) if hasattr(value, "items") else tuple(value)


_KNOWN = frozenset(TaskFields.__annotations__)
