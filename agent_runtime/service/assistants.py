"""Assistants that LangGraph's clients make: graphs with config, context and metadata, in numbered versions.

An assistant contains inputs of runs and no permissions. A run copies these inputs when it begins, so a later change or
deletion of the assistant does not affect the run.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, delete, func, insert, select, update

from agent_runtime.model.mapping import canonical, stamp
from agent_runtime.store.schema import assistants
from turnkeeper.config.json_text import check_configurable, read_object
from turnkeeper.errors import Exhausted, InvalidInput, NotFound
from turnkeeper.rpc.errors import AlreadyExists
from turnkeeper.storage.statements import storable
from turnkeeper.times import from_us, rfc3339, to_us
from turnkeeper.v1 import agent_runtime_pb2 as wire

LARGEST_FIELDS = 16 << 10  # bytes
MOST_ASSISTANTS = 1000
MOST_VERSIONS = 50  # older versions are dropped
_OBJECTS = ("config", "context", "metadata")


def put_assistant(connection: Connection, request: wire.PutAssistantRequest, at: datetime, via: str) -> wire.Assistant:
    """Make an assistant, add a version with changed fields, or make an earlier version the current one.

    Raises:
        AlreadyExists: the assistant exists, but must be new.
        Exhausted: there are too many assistants.
        InvalidInput: a field is not valid.
        NotFound: no such assistant or version exists.
    """
    known = connection.execute(_of(request.assistant_id).with_for_update()).mappings().first()
    if known is None and not request.must_be_new:
        raise _unknown(request.assistant_id)
    if known is not None and request.must_be_new:
        raise AlreadyExists(f"assistant {request.assistant_id} already exists", where="assistant_id")
    count = select(func.count()).select_from(assistants)
    if known is None and connection.execute(count).scalar_one() >= MOST_ASSISTANTS:
        raise Exhausted(f"there are {MOST_ASSISTANTS} assistants", hint="delete one: assistants.delete(ID)")
    versions = json.loads(known["versions_json"]) if known is not None else []
    if known is not None and request.version:
        current = request.version
        _version(versions, current, request.assistant_id)
    else:
        before = _version(versions, known["version"], request.assistant_id) if known is not None else {}
        fields = _fields(before, read_object(request.fields_json, where="body", longest=LARGEST_FIELDS))
        current = max((one["version"] for one in versions), default=0) + 1
        versions.append({**fields, "version": current, "created_at": rfc3339(at)})
        versions = versions[-MOST_VERSIONS:]
    row = {"versions_json": storable(canonical(versions)), "version": current, "via": via, "updated_at_us": to_us(at)}
    if known is None:
        connection.execute(insert(assistants).values(assistant_id=request.assistant_id, created_at_us=to_us(at), **row))
    else:
        connection.execute(update(assistants).where(assistants.c.assistant_id == request.assistant_id).values(**row))
    return _message(connection.execute(_of(request.assistant_id)).mappings().one())


def list_assistants(connection: Connection, request: wire.ListAssistantsRequest) -> wire.ListAssistantsResponse:
    """Return all assistants, or one with its versions. An unknown assistant is left out."""
    query = select(assistants).order_by(assistants.c.created_at_us)
    query = query.where(assistants.c.assistant_id == request.assistant_id) if request.assistant_id else query
    found = connection.execute(query).mappings().all()
    return wire.ListAssistantsResponse(assistants=[_message(one, whole=bool(request.assistant_id)) for one in found])


def drop_assistant(connection: Connection, request: wire.DropAssistantRequest) -> wire.Assistant:
    """Delete an assistant. Runs that began with it continue. Raises NotFound."""
    known = connection.execute(_of(request.assistant_id)).mappings().first()
    if known is None:
        raise _unknown(request.assistant_id)
    connection.execute(delete(assistants).where(assistants.c.assistant_id == request.assistant_id))
    return _message(known)


def _of(assistant_id: str) -> Any:
    return select(assistants).where(assistants.c.assistant_id == assistant_id)


def _unknown(assistant_id: str) -> NotFound:
    return NotFound(f"no assistant {assistant_id[:80]!r}", hint="see: assistants.search()")


def _version(versions: Sequence[Mapping[str, Any]], number: int, assistant_id: str) -> Mapping[str, Any]:
    found = next((one for one in versions if one["version"] == number), None)
    if found is None:
        raise NotFound(f"assistant {assistant_id} has no version {number}", where="version", hint="see: get_versions()")
    return found


def _fields(before: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of the version that follows `before`; metadata changes key by key. Raises InvalidInput."""
    for name in _OBJECTS:
        if not isinstance(given.get(name, {}), dict):
            raise InvalidInput("is not an object", where=name)
    found = {"name": "Untitled", "description": None, **{key: {} for key in _OBJECTS}, **before, **given}
    found["metadata"] = {**before.get("metadata", {}), **given.get("metadata", {})}
    check_configurable(found["context"], "context")
    check_configurable(found["config"].get("configurable") or {}, "config.configurable")
    if len(canonical(found).encode("utf-8", "replace")) > LARGEST_FIELDS:
        raise InvalidInput(f"has more than {LARGEST_FIELDS} bytes", where="body")
    return found


def _message(row: Any, *, whole: bool = True) -> wire.Assistant:
    versions = json.loads(row["versions_json"])
    return wire.Assistant(
        assistant_id=row["assistant_id"],
        fields_json=canonical(_version(versions, row["version"], row["assistant_id"])),
        versions_json=[canonical(one) for one in versions] if whole else [],
        via=row["via"],
        **{name: stamp(from_us(row[f"{name}_us"])) for name in ("created_at", "updated_at")},
    )
