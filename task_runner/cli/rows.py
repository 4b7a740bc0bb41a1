"""The runner's answers as JSON rows with stable keys, and the columns of tables."""

import json
from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from typing import Any

from google.protobuf.timestamp_pb2 import Timestamp

from task_runner.model.fields import FIELDS, JSON, given, parse_instant
from turnkeeper import console
from turnkeeper.config.surfaces import offered
from turnkeeper.console.unseen import in_words
from turnkeeper.errors import InvalidInput
from turnkeeper.times import FORMS, format_rough, parse_rfc3339, rfc3339


def time(message: Any, field: str) -> str | None:
    """Return a timestamp field as RFC 3339; None if the field is absent."""
    return rfc3339(instant(getattr(message, field))) if message.HasField(field) else None


def time_of(text: str, flag: str, zone: str = "", *, past: bool = False) -> datetime:
    """Parse a time of the command line. Raises InvalidInput.

    A time without an offset is wall time in `zone`, or in the machine's zone if `zone` is empty. With `past`, a
    duration alone is subtracted from now.
    """
    written = console.time_given(text, past=past)
    if zone:
        return parse_instant(written, zone, field=flag)
    try:
        return datetime.fromisoformat(written).astimezone()
    except (ValueError, OverflowError) as error:
        hint = f"write 2026-11-21T09:00:00Z, {FORMS}"
        raise InvalidInput(f"{text[:60]!r} is not a time", where=flag, hint=hint) from error


def local(text: str | None, *, day: bool = False) -> str:
    """Return an RFC 3339 time for a table. With `day`, add the day of the week."""
    return console.when(parse_rfc3339(text), day=day) if text else ""


def short(text: str | None) -> str:
    """Return an RFC 3339 time for a narrow table; empty for None."""
    return console.when_short(parse_rfc3339(text)) if text else ""


def task_row(task: Any) -> dict[str, Any]:
    """Return a task with its declared fields and its current state."""
    spec = task.spec
    schedule, values = spec.WhichOneof("schedule"), given(spec)
    values |= {
        field.name: json.loads(values[field.name]) for field in FIELDS if field.kind is JSON and field.name in values
    }
    if "budget" in values:
        values["budget"] = offered("shown budget", values["budget"]) or values["budget"]
    declared = {
        field.written_as: values.get(field.name, field.absent)
        for field in FIELDS
        if field.attribute not in {"", "schedule"}
    }
    return {
        "id": task.id,
        "name": spec.name,
        "kind": task.kind,
        "schedule": task.schedule,
        **({schedule: values[schedule]} if schedule else {}),
        **declared,
        "created_by": row_of(spec.created_by) if spec.HasField("created_by") else None,
        **row_of(task, without={"id", "spec", "kind", "schedule", "anchor_at"}),
        "state": task.state,
        "iteration": task.iteration if task.kind == "dynamic" else None,
    }


def is_loop(task: Any) -> bool:
    """Return whether a task is a loop: created as a loop, or self-paced."""
    return bool(task.id.startswith("loop-") or task.kind == "dynamic")


def state_of(row: Mapping[str, Any]) -> str:
    """Return the state of a task's row in the words shown to users."""
    return in_words(row["state"], loop=row["id"].startswith("loop-") or row["kind"] == "dynamic")


def note_if_idle(task: Any) -> None:
    """Note that a task does not fire at the times just printed, or that its next fire waits for a decision."""
    if task.HasField("paused_until"):
        console.note(f"{task.spec.name} is paused until {local(time(task, 'paused_until'))}, and fires at later times")
    elif task.state in {"interrupted", "held"}:
        console.note(f"{task.spec.name} waits for your decision, and its next fire waits too: turnkeeper triage")
    elif task.state not in {"", "active", "running", "waiting"}:
        again = f"does not fire at these times; first: turnkeeper task resume {task.spec.name}"
        told = "does not fire again" if task.state in {"done", "expired", "deleted"} else again
        console.note(f"{task.spec.name} is {in_words(task.state, loop=is_loop(task))} and {told}")


def outcome_column(header: str, key: str, **looks: Any) -> console.Column:
    """Return the column of an outcome in the words shown to users."""
    return console.Column(header, lambda row: in_words(row[key] or "-"), **looks)


def events_lines(spec: Any, schedule: str) -> list[tuple[str, str]]:
    """Return the lines about the events that a task fires for."""
    if not spec.HasField("on"):
        return []
    if schedule.startswith("after "):
        return [("next", f"on the success of {schedule.removeprefix('after ')}")]
    held = f" with {', '.join(spec.filters)}" if spec.filters else ""
    window = f", at most once in {spec.debounce}" if spec.debounce not in {"", "0s"} else ""
    return [("next", f"when {spec.on} arrives{held}{window}")]


def fire_row(fire: Any) -> dict[str, Any]:
    """Convert a ledger entry to a row."""
    late_s = fire.late_s if fire.HasField("fired_at") else None
    return row_of(fire, without={"task_name", "entry_id"}) | {"late_s": late_s}


def row_of(message: Any, *, without: Collection[str] = ()) -> dict[str, Any]:
    """Return a message's fields by name, with times as RFC 3339, and None for an absent time or an empty text."""
    row: dict[str, Any] = {}
    for name, field in message.DESCRIPTOR.fields_by_name.items():
        if name not in without:
            value = time(message, name) if field.message_type else getattr(message, name)
            row[name] = None if value == "" else value
    return row


def instant(stamp: Timestamp) -> datetime:
    """Return a timestamp as an aware datetime in UTC."""
    return stamp.ToDatetime(tzinfo=UTC)


def column(header: str, key: str, missing: str = "", **looks: Any) -> console.Column:
    """Return the column of a value that shows `missing` if there is none."""
    return console.Column(header, lambda row: text_of(row[key]) or missing, **looks)


def time_column(header: str, key: str, missing: str = "-", *, day: bool = False, **looks: Any) -> console.Column:
    return console.Column(header, lambda row: local(row[key], day=day) or missing, **looks)


def left_column(now: datetime, rank: int = 0) -> console.Column:
    """Return the column of the time until a task is due."""

    def left(row: Mapping[str, Any]) -> str:
        return format_rough(max(0.0, (parse_rfc3339(row["due_at"]) - now).total_seconds())) if row["due_at"] else "-"

    return console.Column("LEFT", left, rank=rank)


def text_of(value: object) -> str:
    """Return a value for a table; empty for None."""
    if value is None or value in ({}, []):
        return ""
    if isinstance(value, list):
        return ", ".join(map(str, value))
    if isinstance(value, dict):
        return " ".join(f"{key}={item}" for key, item in value.items())
    return str(value)
