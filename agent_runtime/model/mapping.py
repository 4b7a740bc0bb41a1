"""Conversion between values, wire messages, JSON and rows of the store, by the names of their fields.

A field has the same name everywhere. These are the only exceptions:

An instant is a datetime in a value, a Timestamp on the wire, RFC 3339 in JSON, and `NAME_us` (microseconds) in the
store. A JSON text is `NAME_json` on the wire, and the parsed value NAME in JSON. JSON has the keys of `JSON_KEYS`, in
that order; `RENAMED` lists the keys that differ from the name of the field.

If a value lacks a field of the message, the caller of `to_message` supplies the field.
"""

import json
from collections.abc import Collection, Mapping
from dataclasses import fields
from datetime import UTC, datetime
from functools import cache
from typing import Any, TypeVar

from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from turnkeeper.times import from_us, rfc3339, to_us

T = TypeVar("T")
M = TypeVar("M", bound=Message)
Row = dict[str, Any]

# Stable keys, because scripts read them. One line per message, in the order in which they are printed.
JSON_KEYS = {
    message: tuple(keys.split())
    for message, keys in {
        "Attachment": "page_id name content_type size sha256 origin lifecycle added_at",
        "Candidate": "candidate_id kind channel title body origin lifecycle turn_id task_name created_at decided_at "
        "note sources page_id base_version decided_by",
        "Channel": "channel turns waiting proposed deviations last_at",
        "ConversationTurn": "turn_id thread_id started_at ended_at status trigger messages interrupts candidates "
        "deviations error category agent tokens_in tokens_out paused_until via graph",
        "Deviation": "deviation_id kind channel page_id page_version says found source candidate_id why origin "
        "lifecycle turn_id task_name created_at decided_at note decided_by",
        "Graph": "name graph is_assistant is_default reference description context config input problem",
        "ImportedThread": "thread_id channel state turns checkpoints waits",
        "Interrupt": "interrupt_id turn_id thread_id channel kind tool args args_hash missing_scope question "
        "allows_text task_name category status decision message created_at resolved_at expires_at reminded_at "
        "escalated_at decided_by exception once_only graph",
        "MemoryEntry": "entry_id tier owner key text form origin written_by turn_id created_at updated_at via "
        "namespace item_key",
        "MemoryNamespace": "namespace entries",
        "Message": "role text tool_calls tool_call_id at",
        "Page": "page_id title tags origin lifecycle version updated_at sources attachments body",
        "RevalidationItem": "item_id page_id cause cause_version via state result turn_id note queued_at settled_at",
        "StandingException": "number task_name task_id kind tool missing_scope args any_value category "
        "category_revision interrupt_id given_by given_at uses last_used_at ended_at ended_by ended_why",
        "Thread": "thread_id channel agent task_name category status turns waiting tokens_in tokens_out first_at "
        "last_at last_turn_id graph metadata created_at updated_at",
        "ToolCall": "id name args",
        "TriggerMark": "kind task fire_id nominal_at fired_at stands_for",
        "Turn": "turn_id thread_id channel agent category status trigger fire_id task_name attempt started_at ended_at "
        "summary error cancel_requested tokens_in tokens_out models graph via task_id",
    }.items()
}
RENAMED = {
    ("Channel", "channel"): "name",
    ("Interrupt", "args"): "args_json",
    ("StandingException", "args"): "args_json",
    ("MemoryNamespace", "namespace"): "labels",
    ("Thread", "metadata"): "metadata_json",
    ("Turn", "models"): "models_json",
    ("ToolCall", "args"): "args_json",
    **{("Graph", key): f"{key}_json" for key in ("context", "config", "input")},
}
_ONLY_IF_SET = {("Message", "tool_calls"), ("Message", "tool_call_id")}


def to_message(kind: type[M], value: object, **given: Any) -> M:
    """Return a dataclass value as a wire message, with all fields that they share; `given` overrides them."""
    kinds: Any = (kind, type(value))
    shared = shared_fields(*kinds)
    named = {name: getattr(value, name) for name in shared if name not in given}
    return kind(**{name: stamp(one) if isinstance(one, datetime) else one for name, one in (named | given).items()})


@cache
def shared_fields(kind: type[Message], value: Any) -> tuple[str, ...]:
    """Return the names of the fields that a message and a dataclass share."""
    known = {field.name for field in fields(value)}
    return tuple(name for name in kind.DESCRIPTOR.fields_by_name if name in known)


def from_row(kind: type[T], row: Mapping[Any, Any], **given: Any) -> T:
    """Return a row of the store as a dataclass value, each field from its column; `given` overrides them."""
    values, known = given, kind.__dataclass_fields__  # type: ignore[attr-defined]
    for name in known:
        if name in given:
            continue
        at = f"{name}_us"
        values[name] = row[name] if at not in row else None if row[at] is None else from_us(row[at])
    return kind(**values)


def to_json(message: Message, *, without: Collection[str] = ()) -> Row:
    """Return a wire message and its inner messages as JSON, without the keys in `without`."""
    kind = message.DESCRIPTOR.name
    row = {
        key: _json_value(message, key, RENAMED.get((kind, key), key)) for key in JSON_KEYS[kind] if key not in without
    }
    return {key: value for key, value in row.items() if value or (kind, key) not in _ONLY_IF_SET}


def _json_value(message: Message, key: str, name: str) -> Any:
    field, value = message.DESCRIPTOR.fields_by_name[name], getattr(message, name)
    if field.is_repeated:
        return [to_json(one) if field.message_type else one for one in value]
    if field.message_type is None:
        return parsed(value) if name == f"{key}_json" else value
    if not message.HasField(name):
        return None
    return rfc3339(value.ToDatetime(tzinfo=UTC)) if isinstance(value, Timestamp) else to_json(value)


def parsed(text: str) -> Any:
    """Return the value of a JSON text; an empty object if the text is empty."""
    try:
        return json.loads(text or "{}")
    except (ValueError, RecursionError):
        return {}


def stamp(at: datetime | None) -> Timestamp | None:
    """Return an instant as a Timestamp; None for None."""
    if at is None:
        return None
    carried = Timestamp()
    carried.FromMicroseconds(to_us(at))
    return carried


def canonical(value: object) -> str:
    """Return the canonical JSON text of a value: sorted keys, no spaces."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, default=str)
