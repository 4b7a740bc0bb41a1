"""Handlers of LangGraph's store. The store is the memory, and an item is an entry in a namespace."""

import json
from collections.abc import Callable, Mapping
from typing import Any

from starlette.responses import Response

from turnkeeper.errors import InvalidInput, NotFound
from turnkeeper.gateway.keys import Scope
from turnkeeper.gateway.lg.api import Call, Routes, number, page_of
from turnkeeper.gateway.lg.conversation import time_of
from turnkeeper.gateway.lg.requests import refuse
from turnkeeper.v1 import agent_runtime_pb2 as wire

_MOST = 1000
_COMPARE: Mapping[str, Callable[[Any, Any], bool]] = {
    "$eq": lambda held, wanted: bool(held == wanted),
    "$ne": lambda held, wanted: bool(held != wanted),
    "$gt": lambda held, wanted: held is not None and float(held) > float(wanted),
    "$gte": lambda held, wanted: held is not None and float(held) >= float(wanted),
    "$lt": lambda held, wanted: held is not None and float(held) < float(wanted),
    "$lte": lambda held, wanted: held is not None and float(held) <= float(wanted),
}


async def put(call: Call) -> Response:
    body = call.body
    if not isinstance(body.get("value"), dict):
        raise InvalidInput("is not an object", where="value")
    if body.get("ttl") is not None:
        refuse("ttl", "memory is kept until it is forgotten", "leave it out")
    if body.get("index") is not None:
        refuse("index", "semantic search is configured per graph", "set store.index in langgraph.json")
    text = json.dumps(body["value"], ensure_ascii=False)
    namespace = _labels(body.get("namespace"), "namespace")
    await call.ask(wire.PutMemoryRequest(key=_key(body), namespace=namespace, text=text, form="json"))
    return Response(status_code=204)


async def get(call: Call) -> dict[str, Any] | None:
    given = call.query.getlist("namespace")
    labels = _labels(given[0].split(".") if len(given) == 1 else given, "namespace")
    try:
        return item_of(await call.ask(wire.GetMemoryRequest(key=call.query.get("key", ""), namespace=labels)))
    except NotFound:
        return None  # the same answer as LangGraph's own server


async def delete(call: Call) -> Response:
    body: Any = call.body or dict(call.query)
    request = wire.GetMemoryRequest(key=_key(body), namespace=_labels(body.get("namespace"), "namespace"))
    await call.daemons.ForgetMemory(request)
    return Response(status_code=204)


async def search(call: Call) -> dict[str, Any]:
    """Answer with items of a namespace and its descendants. With a query, search by words."""
    prefix = _labels(call.body.get("namespace_prefix") or [], "namespace_prefix", least=0)
    asked: Any = wire.ListMemoryRequest(namespace=prefix, limit=_MOST)
    if query := call.body.get("query"):
        asked = wire.SearchMemoryRequest(query=query, namespace=prefix, limit=_MOST)
    items, wanted = map(item_of, (await call.ask(asked)).entries), call.body.get("filter") or {}
    shown, _ = page_of([one for one in items if fits(one["value"], wanted)], call.body)
    return {"items": [one | {"score": None} for one in shown]}


async def namespaces(call: Call) -> dict[str, Any]:
    asked = wire.ListMemoryNamespacesRequest(
        prefix=_labels(call.body.get("prefix") or [], "prefix", least=0),
        suffix=_labels(call.body.get("suffix") or [], "suffix", least=0),
        max_depth=number(call.body.get("max_depth"), "max_depth", 0),
        limit=_MOST,
    )
    found = [list(one.labels) for one in (await call.ask(asked)).namespaces]
    return {"namespaces": page_of(found, call.body, 100)[0]}


ROUTES: Routes = (
    ("PUT", "/store/items", put, Scope.WORK, ""),
    ("GET", "/store/items", get, Scope.READ, ""),
    ("DELETE", "/store/items", delete, Scope.WORK, ""),
    ("POST", "/store/items/search", search, Scope.READ, ""),
    ("POST", "/store/namespaces", namespaces, Scope.READ, ""),
)


def _key(body: Mapping[str, Any]) -> str:
    if not isinstance(body.get("key"), str) or not body["key"]:
        raise InvalidInput("is missing", where="key")
    return str(body["key"])


def _labels(given: object, name: str, least: int = 1) -> list[str]:
    if not isinstance(given, list) or len(given) < least or not all(isinstance(one, str) and one for one in given):
        raise InvalidInput("is not a list of labels", where=name, hint="such as ['workspace', 'people']")
    return given


def item_of(entry: wire.MemoryEntry) -> dict[str, Any]:
    """Return an entry as an item. Its text becomes the `text` of the value."""
    value = json.loads(entry.text) if entry.form == "json" else {"text": entry.text}
    return {
        "namespace": list(entry.namespace),
        "key": entry.item_key or entry.key,
        "value": value if isinstance(value, dict) else {"value": value},
        "created_at": time_of(entry, "created_at"),
        "updated_at": time_of(entry, "updated_at"),
    }


def fits(value: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Return True if a value passes a filter, which maps each field to a value or to operators such as `$gte`.

    Raises:
        InvalidInput: an operator does not exist, or compares a value that is not a number.
    """
    for field, want in wanted.items():
        operators = want if isinstance(want, dict) and any(str(one).startswith("$") for one in want) else {"$eq": want}
        for operator, other in operators.items():
            if operator not in _COMPARE:
                raise InvalidInput(f"no operator {str(operator)[:20]!r}", where="filter", hint=", ".join(_COMPARE))
            try:
                if not _COMPARE[operator](value.get(field), other):
                    return False
            except (TypeError, ValueError, OverflowError) as error:
                raise InvalidInput(f"{operator} compares numbers only", where=f"filter.{field[:40]}") from error
    return True
