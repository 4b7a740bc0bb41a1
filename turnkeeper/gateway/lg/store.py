"""Handlers of LangGraph's store. The store is the memory, and an item is an entry in a namespace."""

import json
from collections.abc import Callable, Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from turnkeeper.errors import InvalidInput, NotFound
from turnkeeper.gateway.keys import Scope
from turnkeeper.gateway.lg.api import Handlers, number, read_body, reply, routes_of
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


class Store(Handlers):
    def routes(self) -> list[Route]:
        return routes_of(
            ("PUT", "/store/items", self.put),
            ("GET", "/store/items", self.get),
            ("DELETE", "/store/items", self.delete),
            ("POST", "/store/items/search", self.search),
            ("POST", "/store/namespaces", self.namespaces),
        )

    async def put(self, request: Request) -> Response:
        _, runtime = self._api.asks(request, Scope.WORK)
        body = await read_body(request)
        if not isinstance(body.get("value"), dict):
            raise InvalidInput("is not an object", where="value")
        if body.get("ttl") is not None:
            refuse("ttl", "memory is kept until it is forgotten", "leave it out")
        if body.get("index") is not None:
            refuse("index", "semantic search is configured per graph", "set store.index in langgraph.json")
        text = json.dumps(body["value"], ensure_ascii=False)
        namespace = _labels(body.get("namespace"), "namespace")
        await runtime.PutMemory(wire.PutMemoryRequest(key=_key(body), namespace=namespace, text=text, form="json"))
        return Response(status_code=204)

    async def get(self, request: Request) -> Response:
        _, runtime = self._api.asks(request)
        query = request.query_params
        given = query.getlist("namespace")
        labels = given[0].split(".") if len(given) == 1 else given
        asked = wire.GetMemoryRequest(key=query.get("key", ""), namespace=_labels(labels, "namespace"))
        try:
            return reply(item_of(await runtime.GetMemory(asked)))
        except NotFound:
            return reply(None)  # the same answer as LangGraph's own server

    async def delete(self, request: Request) -> Response:
        _, runtime = self._api.asks(request, Scope.WORK)
        body = await read_body(request) or dict(request.query_params)
        asked = wire.GetMemoryRequest(key=_key(body), namespace=_labels(body.get("namespace"), "namespace"))
        await runtime.ForgetMemory(asked)
        return Response(status_code=204)

    async def search(self, request: Request) -> Response:
        """Answer with items of a namespace and its descendants. With a query, search by words."""
        _, runtime = self._api.asks(request)
        body = await read_body(request)
        prefix, query = _labels(body.get("namespace_prefix") or [], "namespace_prefix", least=0), body.get("query")
        if query:
            asked = wire.SearchMemoryRequest(query=str(query), namespace=prefix, limit=_MOST)
            entries = (await runtime.SearchMemory(asked)).entries
        else:
            entries = (await runtime.ListMemory(wire.ListMemoryRequest(namespace=prefix, limit=_MOST))).entries
        wanted = body.get("filter") or {}
        found = [one for entry in entries if fits((one := item_of(entry))["value"], wanted)]
        start, limit = number(body.get("offset"), "offset", 0), number(body.get("limit"), "limit", 10)
        return reply({"items": [one | {"score": None} for one in found[start : start + limit]]})

    async def namespaces(self, request: Request) -> Response:
        _, runtime = self._api.asks(request)
        body = await read_body(request)
        asked = wire.ListMemoryNamespacesRequest(
            prefix=_labels(body.get("prefix") or [], "prefix", least=0),
            suffix=_labels(body.get("suffix") or [], "suffix", least=0),
            max_depth=number(body.get("max_depth"), "max_depth", 0),
            limit=_MOST,
        )
        found = [list(one.labels) for one in (await runtime.ListMemoryNamespaces(asked)).namespaces]
        start, limit = number(body.get("offset"), "offset", 0), number(body.get("limit"), "limit", 100)
        return reply({"namespaces": found[start : start + limit]})


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
