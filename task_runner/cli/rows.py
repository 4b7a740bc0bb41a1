"""The runner's answers as JSON rows with stable keys."""

import json
from datetime import UTC, datetime
from typing import Any

from google.protobuf.timestamp_pb2 import Timestamp

from task_runner.model.fields import FIELDS, given
from turnkeeper import console
from turnkeeper.times import parse_rfc3339, rfc3339


def time(message: Any, field: str) -> str | None:
    """Return a timestamp field as RFC 3339, None where it is absent."""
    return rfc3339(instant(getattr(message, field))) if message.HasField(field) else None


def local(text: str | None) -> str:
    """Return an RFC 3339 time for a table."""
    return console.when(parse_rfc3339(text)) if text else ""


def task_row(task: Any) -> dict[str, Any]:
    """Return a task with every field it was declared with, and what has become of it."""
    spec = task.spec
    schedule, values = spec.WhichOneof("schedule"), given(spec)
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
        "payload": json.loads(spec.payload_json) if spec.payload_json else None,
        "created_by": _maker(spec.created_by) if spec.HasField("created_by") else None,
        "state": task.state,
        "next_fire_at": time(task, "next_fire_at"),
        "due_at": time(task, "due_at"),
        "last_fire_at": time(task, "last_fire_at"),
        "last_outcome": task.last_outcome or None,
        "fires": task.fires,
        "missed": task.missed,
        "paused_note": task.paused_note or None,
        "paused_until": time(task, "paused_until"),
        "reason": task.reason or None,
        "iteration": task.iteration if task.kind == "dynamic" else None,
        "armed_at": time(task, "armed_at"),
        "late_p95_s": task.late_p95_s,
        "revision": task.revision,
        "created_at": time(task, "created_at"),
    }


def _maker(by: Any) -> dict[str, str]:
    return {"turn_id": by.turn_id, "category": by.category, "agent": by.agent}


def events_lines(spec: Any) -> list[tuple[str, str]]:
    """Return what there is to say of the events that a task fires for."""
    if not spec.HasField("on"):
        return []
    held = f" with {', '.join(spec.filters)}" if spec.filters else ""
    window = f", at most once in {spec.debounce}" if spec.debounce not in {"", "0s"} else ""
    return [("next", f"when {spec.on} comes{held}{window}")]


def fire_row(fire: Any) -> dict[str, Any]:
    """Return a ledger entry."""
    return {
        "fire_id": fire.fire_id or None,
        "task_id": fire.task_id,
        "kind": fire.kind,
        "nominal_at": time(fire, "nominal_at"),
        "due_at": time(fire, "due_at"),
        "fired_at": time(fire, "fired_at"),
        "accepted_at": time(fire, "accepted_at"),
        "started_at": time(fire, "started_at"),
        "ended_at": time(fire, "ended_at"),
        "outcome": fire.outcome,
        "reason": fire.reason or None,
        "count": fire.count,
        "first_nominal_at": time(fire, "first_nominal_at"),
        "last_nominal_at": time(fire, "last_nominal_at"),
        "late_s": fire.late_s if fire.HasField("fired_at") else None,
        "attempt": fire.attempt,
        "turn_id": fire.turn_id or None,
    }


def nominal_row(nominal: Any) -> dict[str, Any]:
    """Return one time that a schedule names."""
    return {"nominal_at": time(nominal, "nominal_at"), "local": nominal.local, "due_at": time(nominal, "due_at")}


def instant(stamp: Timestamp) -> datetime:
    """Return a timestamp as an aware datetime in UTC."""
    return stamp.ToDatetime(tzinfo=UTC)
