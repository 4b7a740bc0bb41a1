"""An author's access to memory: by tier and owner, or by LangGraph's namespaces.

A namespace without a tier belongs to a graph's own part of the memory; see :mod:`agent_runtime.workspace.memory`. The
owner of that part depends on the graph, and only the running daemon knows the author's graphs.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import Connection, select

from agent_runtime.model.mapping import to_message
from agent_runtime.permissions.judge import TIERS
from agent_runtime.store.schema import memory as table
from agent_runtime.workspace import memory
from agent_runtime.workspace.model import MemoryEntry
from turnkeeper.config.json_text import read_value
from turnkeeper.errors import InvalidInput
from turnkeeper.rpc.pages import page_of
from turnkeeper.v1 import agent_runtime_pb2 as wire

MOST_LISTED = 1_000
MOST_ROWS = 1_000_000  # rows that are read before the requested page is selected from them
_ANY = "*"


def own_part(names: memory.Namespaces) -> memory.Spot | None:
    """Return a graph's own part of the memory; None if each thread or channel has a separate part."""
    if names.tier in memory.OWNED:
        return None
    return memory.Spot(shelf=memory.Shelf(tier=names.tier), below=(names.label,))


def list_memory(
    connection: Connection, request: wire.ListMemoryRequest, own: memory.Spot | None = None
) -> wire.ListMemoryResponse:
    """Return memory entries, newest first. Raises InvalidInput for an unknown tier."""
    tier, owner = _within(request, own)
    if tier:
        memory.check_shelf(tier, owner or ("any" if tier in memory.OWNED else ""))
    found = memory.list_entries(connection, tier=tier, owner=owner, limit=MOST_ROWS)
    entries = [one for one in (item(entry, own) for entry in found) if _begins(one.namespace, request.namespace)]
    limit = min(request.limit or MOST_LISTED, MOST_LISTED)
    shown, told = page_of(entries, "entry_id", limit=limit, cursor=request.cursor)
    return wire.ListMemoryResponse(entries=shown, left_out=told["total"] - len(shown), **told)


def get_memory(
    connection: Connection, request: wire.GetMemoryRequest, own: memory.Spot | None = None
) -> wire.MemoryEntry:
    """Return one memory entry. Raises NotFound, InvalidInput."""
    return item(memory.get(connection, *place(request, own)), own)


def search_memory(
    connection: Connection, request: wire.SearchMemoryRequest, own: memory.Spot | None = None
) -> wire.ListMemoryResponse:
    """Return the memory entries that match a query best. Raises InvalidInput if the query is empty."""
    if not request.query.strip():
        raise InvalidInput("give words to search for", where="query")
    tier, owner = _within(request, own)
    shelf = memory.check_shelf(tier, owner) if tier and not request.namespace else None
    ranked = [item(entry, own) for _, entry in memory.ranked(connection, shelf, request.query)]
    best = [one for one in ranked if _begins(one.namespace, request.namespace)] if request.namespace else ranked
    most = min(max(0, request.limit) or memory.MOST_READ, memory.MOST_READ)
    entries, told = page_of(best, "entry_id", limit=most, cursor=request.cursor)
    return wire.ListMemoryResponse(entries=entries, left_out=told["total"] - len(entries), **told)


def list_namespaces(
    connection: Connection, request: wire.ListMemoryNamespacesRequest, own: memory.Spot | None = None
) -> wire.ListMemoryNamespacesResponse:
    """Return the namespaces of the entries, sorted. Raises InvalidInput, Conflict."""
    if request.max_depth < 0:
        raise InvalidInput("is negative", where="max_depth")
    held, counted = select(table.c.tier, table.c.owner, table.c.key), Counter[tuple[str, ...]]()
    for row in connection.execute(held):
        labels, _ = memory.namespace_of(memory.Shelf(tier=row.tier, owner=row.owner), row.key, own)
        ends = not request.suffix or _begins(labels[::-1], request.suffix[::-1], any_label=True)
        if ends and _begins(labels, request.prefix, any_label=True):
            counted[labels[: request.max_depth] if request.max_depth else labels] += 1
    found = [wire.MemoryNamespace(labels=labels, entries=counted[labels]) for labels in sorted(counted)]
    limit = min(request.limit or MOST_LISTED, MOST_LISTED)
    shown, told = page_of(found, "labels", limit=limit, cursor=request.cursor)
    return wire.ListMemoryNamespacesResponse(namespaces=shown, **told)


def item(entry: MemoryEntry, own: memory.Spot | None) -> wire.MemoryEntry:
    namespace, key = memory.namespace_of(memory.Shelf(tier=entry.tier, owner=entry.owner), entry.key, own)
    return to_message(wire.MemoryEntry, entry, namespace=namespace, item_key=key)


def place(request: wire.GetMemoryRequest | wire.PutMemoryRequest, own: memory.Spot | None) -> tuple[memory.Shelf, str]:
    """Return the shelf and the key of the requested entry. Raises InvalidInput."""
    if not request.namespace:
        return memory.check_shelf(request.tier, request.owner), request.key
    _refuse_both(request)
    spot = _spot(request.namespace, own)
    return spot.shelf, memory.key_of(spot.below, memory.check_key(request.key))


def written(request: wire.PutMemoryRequest) -> tuple[str, str]:
    """Return the text and the form to store. Raises InvalidInput if the form is unknown or the JSON is not valid."""
    if request.form == "json":
        value = read_value(request.text, where="text", longest=memory.LARGEST_ENTRY)
        return memory.text_of(value)
    if request.form not in {"", "text"}:
        raise InvalidInput(f"no entry has the form {request.form[:40]!r}", where="form", hint="use one of: text, json")
    return request.text, "text"


def _within(request: Any, own: memory.Spot | None) -> tuple[str, str]:
    """Return the tier and the owner that restrict a list; empty if they are not restricted."""
    if not request.namespace:
        return request.tier, request.owner
    _refuse_both(request)
    if len(request.namespace) == 1 and request.namespace[0] in memory.OWNED:
        return request.namespace[0], ""
    shelf = _spot(request.namespace, own).shelf
    return shelf.tier, shelf.owner


def _refuse_both(request: Any) -> None:
    if request.tier or request.owner:
        raise InvalidInput("is given together with a tier or an owner", where="namespace", hint="give only one of them")


def _spot(namespace: Sequence[str], own: memory.Spot | None) -> memory.Spot:
    if not all(namespace):
        raise InvalidInput("has an empty label", where="namespace")
    tier, *rest = namespace
    if tier in memory.OWNED:
        shelf = memory.check_shelf(tier, rest[0] if rest else "")
        return memory.Spot(shelf=shelf, below=tuple(rest[1:]))
    if tier in TIERS:
        return memory.Spot(shelf=memory.Shelf(tier=tier), below=tuple(rest))
    if own is None:
        hint = f"begin it with a tier ({', '.join(TIERS)}), and ask while agent-runtime runs"
        raise InvalidInput(
            "does not begin with a tier, and no graph with this part is known", where="namespace", hint=hint
        )
    return replace(own, below=(*own.below, *namespace))


def _begins(labels: Sequence[str], prefix: Sequence[str], *, any_label: bool = False) -> bool:
    pairs = zip(labels, prefix, strict=False)
    return len(labels) >= len(prefix) and all(want == held or (any_label and want == _ANY) for held, want in pairs)
