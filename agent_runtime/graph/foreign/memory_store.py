"""Memory as LangGraph's store: `runtime.store` in a graph, or `InjectedStore` in a tool.

The entries are those of our own tools, in the same table, under the same scopes. The gate decides about each operation
as it does about a tool call, and the operation checks the scope again. If a node is run again, its writes still happen
once. A write counts as a tool call of its turn. Outside a turn there is no memory to read or write.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from langgraph.pregel import Pregel
from langgraph.store import base
from langgraph.store.memory import InMemoryStore
from sqlalchemy import Connection

from agent_runtime.graph.foreign.load import Opened
from agent_runtime.graph.guard import over_limit
from agent_runtime.graph.guard.gate import CallRequest, Gate, Refused, RepeatedCalls, made_id, place
from agent_runtime.model.turn import TurnContext
from agent_runtime.permissions.judge import OWN_PART, judge, require
from agent_runtime.store.idempotency import Call, Outcome
from agent_runtime.workspace import memory as entries
from agent_runtime.workspace.memory import Namespaces, Shelf, Spot
from agent_runtime.workspace.model import MemoryEntry
from agent_runtime.workspace.workspace import Workspace
from turnkeeper.errors import Denied, InvalidInput

Graph = TypeVar("Graph", bound=Pregel[Any, Any, Any, Any])
READ, SEARCH, PUT, FORGET = "memory.read", "memory.search", "memory.put", "memory.forget"
Ranked = list[tuple[float | None, MemoryEntry]]
_ALL = ("entries",)
_COMPARE: Mapping[str, Callable[[Any, Any], bool]] = {
    "$eq": lambda held, wanted: bool(held == wanted),
    "$ne": lambda held, wanted: bool(held != wanted),
    "$gt": lambda held, wanted: float(held) > float(wanted),
    "$gte": lambda held, wanted: float(held) >= float(wanted),
    "$lt": lambda held, wanted: float(held) < float(wanted),
    "$lte": lambda held, wanted: float(held) <= float(wanted),
}


def holds(value: Any, wanted: Mapping[str, Any] | None) -> bool:
    """Return whether a value passes a filter, which contains a value or operators such as `$gte` for each field.

    Only an object has fields.

    Raises:
        InvalidInput: the operator is unknown, or the operator compares numbers but its operand is not a number.
    """
    fields = value if isinstance(value, Mapping) else {}
    return all(_fits(fields.get(field), want) for field, want in (wanted or {}).items())


def listed(op: base.ListNamespacesOp, namespaces: Iterable[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Return the matching namespaces: cut to `max_depth`, without duplicates, sorted, then offset and limited."""
    fitting = {one for one in namespaces if all(_matches(condition, one) for condition in op.match_conditions or ())}
    cut = {one[: op.max_depth] for one in fitting} if op.max_depth is not None else fitting
    return sorted(cut)[op.offset : op.offset + op.limit]


def _fits(held: Any, wanted: Any) -> bool:
    if isinstance(wanted, list | tuple):
        same = isinstance(held, list | tuple) and len(held) == len(wanted)
        return same and all(_fits(*pair) for pair in zip(held, wanted, strict=True))
    if not isinstance(wanted, Mapping):
        return bool(held == wanted)
    if any(str(key).startswith("$") for key in wanted):
        return all(_compare(held, str(operator), other) for operator, other in wanted.items())
    return isinstance(held, Mapping) and all(_fits(held.get(key), want) for key, want in wanted.items())


def _compare(held: Any, operator: str, wanted: Any) -> bool:
    if operator not in _COMPARE:
        raise InvalidInput(f"no operator {operator[:20]!r}", where="filter", hint=f"use one of: {', '.join(_COMPARE)}")
    if held is None and operator not in {"$eq", "$ne"}:
        return False
    try:
        return _COMPARE[operator](held, wanted)
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"{operator} can compare only numbers: {error}", where="filter") from error


def _matches(condition: base.MatchCondition, namespace: tuple[str, ...]) -> bool:
    path = condition.path
    if len(namespace) < len(path):
        return False
    part = namespace[: len(path)] if condition.match_type == "prefix" else namespace[len(namespace) - len(path) :]
    return all(want in {"*", held} for held, want in zip(part, path, strict=True))


@dataclass(frozen=True, kw_only=True)
class _Reading:
    """An admitted operation that reads entries."""

    run: Callable[[Connection], Any]


@dataclass(frozen=True, kw_only=True)
class _Writing:
    """An admitted operation that writes entries."""

    run: Callable[[Connection], Outcome]
    call: Call
    scope: str
    entry: tuple[Shelf, str]


@dataclass(frozen=True, kw_only=True)
class _Search:
    """A search by meaning over entries that were read. Embeddings are made outside transactions.

    Attributes:
        by_words: the result of a search by words, which is used if embeddings fail.
    """

    query: str
    found: Sequence[MemoryEntry]
    by_words: list[base.SearchItem]
    finish: Callable[[Ranked], list[base.SearchItem]]


_Admitted = _Reading | _Writing
_Written = list[tuple[_Writing, Outcome]]


class MeaningIndex:
    """Search by meaning: entries ranked for a query, by the embeddings that a project configures.

    LangGraph's own in-memory store holds the vectors. An entry is embedded when a search first reads it, and after each
    change; a new process starts with an empty index. The caller chooses the entries that a search may find.
    """

    def __init__(self, config: base.IndexConfig) -> None:
        self._store = InMemoryStore(index=config)
        self._embedded: dict[str, str] = {}

    def rank(self, query: str, found: Sequence[MemoryEntry]) -> Ranked:
        """Return entries, best match first; an entry without embedded text has no score."""
        if not found:
            return []
        new = self._changed(found)
        self._store.batch(_removals(new))
        self._store.batch(_puts(new))
        self._note(new)
        return _ordered(self._store.search(_ALL, query=query, limit=len(self._embedded)), found)

    async def arank(self, query: str, found: Sequence[MemoryEntry]) -> Ranked:
        """Rank as `rank` does, without blocking the loop."""
        if not found:
            return []
        new = self._changed(found)
        self._store.batch(_removals(new))
        await self._store.abatch(_puts(new))
        self._note(new)
        return _ordered(await self._store.asearch(_ALL, query=query, limit=len(self._embedded)), found)

    def _changed(self, found: Sequence[MemoryEntry]) -> list[MemoryEntry]:
        return [entry for entry in found if self._embedded.get(entry.entry_id) != entry.text]

    def _note(self, found: Sequence[MemoryEntry]) -> None:
        self._embedded |= {entry.entry_id: entry.text for entry in found}


class MemoryStore(base.BaseStore):
    """Memory behind the guard, by namespaces with or without a tier (:mod:`agent_runtime.workspace.memory`)."""

    supports_ttl = False

    def __init__(
        self, workspace: Workspace, gate: Gate, names: Namespaces | None = None, index: base.IndexConfig | None = None
    ) -> None:
        """Make a store. `index` sets the search by meaning for the graph's own part; None means search by words."""
        self._index = MeaningIndex(index) if index is not None else None
        self._workspace = workspace
        self._gate = gate
        self._names = names or Namespaces()
        self._repeated = RepeatedCalls()

    def batch(self, ops: Iterable[base.Op]) -> list[base.Result]:
        """Carry out operations in one transaction: first the reads, then the last write to each entry.

        Raises:
            GraphInterrupt: the author must decide about an operation.
            Denied: the author refused, or there is no turn.
            InvalidInput: memory does not allow a namespace, key or value.
        """
        admitted = self._admit(ops)
        results, written = self._workspace.submit(*_unit(admitted)).result()
        self._record(written)
        return [self._ranked(one) if isinstance(one, _Search) else one for one in results]

    async def abatch(self, ops: Iterable[base.Op]) -> list[base.Result]:
        """Do what `batch` does, without blocking the loop."""
        admitted = self._admit(ops)
        results, written = await self._workspace.write(*_unit(admitted))
        self._record(written)
        return [await self._aranked(one) if isinstance(one, _Search) else one for one in results]

    def _ranked(self, one: _Search) -> list[base.SearchItem]:
        assert self._index is not None, "only a store with an index searches by meaning"
        try:
            return one.finish(self._index.rank(one.query, one.found))
        except Exception as error:  # noqa: BLE001  whatever a provider raises
            return self._without_embeddings(one, error)

    async def _aranked(self, one: _Search) -> list[base.SearchItem]:
        assert self._index is not None, "only a store with an index searches by meaning"
        try:
            return one.finish(await self._index.arank(one.query, one.found))
        except Exception as error:  # noqa: BLE001  whatever a provider raises
            return self._without_embeddings(one, error)

    def _without_embeddings(self, one: _Search, error: Exception) -> list[base.SearchItem]:
        """Return the result of a search by words, and log the error: a failing provider must not fail the task."""
        self._workspace.emit("memory.embedding_failed", {"error": type(error).__name__, "entries": len(one.found)})
        return one.by_words

    def _record(self, written: _Written) -> None:
        for one, outcome in written:
            self._workspace.wrote(one.call, one.scope, outcome)

    def _admit(self, ops: Iterable[base.Op]) -> list[_Admitted]:
        turn = self._gate.turn()
        if turn is None:
            raise Denied("memory can be used only inside a turn", where="memory")
        return [self._one(op, turn) for op in ops]

    def _one(self, op: base.Op, turn: TurnContext) -> _Admitted:
        if isinstance(op, base.GetOp):
            spot, own = entries.spot_of(op.namespace, turn, self._names), self._names.own(turn)
            asked = _args_of(spot.shelf) | {"key": entries.key_of(spot.below, op.key)}
            _, _, args = self._ask(READ, "read", asked, self._reaching(spot, turn))
            shelf, key = _shelf(args), str(args.get("key", ""))
            return _Reading(run=lambda connection: _item(entries.find(connection, shelf, key), own))
        if isinstance(op, base.PutOp):
            return self._write(op, turn)
        if isinstance(op, base.SearchOp):
            return self._search(op, turn)
        if isinstance(op, base.ListNamespacesOp):
            spots, own = [spot for spot, _ in self._reached((), READ, {}, turn)], self._names.own(turn)
            return _Reading(run=lambda connection: listed(op, _namespaces(connection, spots, own)))
        raise InvalidInput(f"a memory store does not support the operation {type(op).__name__}", where="memory")

    def _search(self, op: base.SearchOp, turn: TurnContext) -> _Admitted:
        scope = SEARCH if op.query else READ
        asked = self._reached(op.namespace_prefix, scope, {"query": op.query} if op.query else {}, turn)
        own = self._names.own(turn)

        def finish(found: Ranked) -> list[base.SearchItem]:
            items = [base.SearchItem(**_fields(one, own), score=points) for points, one in found]
            return [item for item in items if holds(item.value, op.filter)][op.offset : op.offset + op.limit]

        def run(connection: Connection) -> list[base.SearchItem] | _Search:
            found: Ranked = [pair for spot, query in asked for pair in _under(connection, spot, query)]
            if op.query:
                found += [
                    pair
                    for spot, _ in asked
                    if _may_fill(spot, own, self._reaching(spot, turn))
                    for pair in _rest(connection, spot, found)
                ]
                found.sort(key=lambda pair: -(pair[0] or 0))
            if self._index and op.query and asked and all(_inside(spot, own) for spot, _ in asked):
                held = [one for spot, _ in asked for _, one in _under(connection, spot, None)]
                return _Search(query=asked[0][1] or op.query, found=held, by_words=finish(found), finish=finish)
            return finish(found)

        return _Reading(run=run)

    def _reached(
        self, prefix: Sequence[str], scope: str, more: Mapping[str, Any], turn: TurnContext
    ) -> list[tuple[Spot, str | None]]:
        """Return the namespaces and the words to search, as admitted; the author may have edited both."""
        found = list[tuple[Spot, str | None]]()
        for spot in entries.reached(tuple(prefix), turn, self._names):
            wanted = {**_args_of(spot.shelf), **more}
            _, _, args = self._ask(scope, "read", wanted, self._reaching(spot, turn))
            query = None if scope == READ else str(args.get("query") or "")
            if query == "":  # a search without words would list everything, which needs another scope
                raise InvalidInput("a search needs words", where="query")
            found.append((replace(spot, shelf=_shelf(args)), query))
        return found

    def _write(self, op: base.PutOp, turn: TurnContext) -> _Writing:
        spot = entries.spot_of(op.namespace, turn, self._names)
        key, scope = entries.check_key(entries.key_of(spot.below, op.key)), FORGET if op.value is None else PUT
        said = None if op.value is None else entries.text_of(op.value)
        wanted = {"key": key} | (
            {} if op.value is None else {"value": dict(op.value) if isinstance(op.value, Mapping) else op.value}
        )
        asked = _args_of(spot.shelf) | wanted
        name, context, args = self._ask(scope, "write", asked, self._reaching(spot, turn))
        shelf = _shelf(args)
        if {**args} != asked:  # the author edited the arguments
            key, value = entries.check_key(str(args.get("key", ""))), args.get("value")
            if said is not None:
                said = entries.text_of(_edited(value, op.value))
        text, form = said or (None, "text")
        call = Call(context=context, key=name)
        run = self._workspace.memory.graph_writes(call, shelf, key=key, text=text, form=form)
        return _Writing(run=run, call=call, scope=scope, entry=(shelf, key))

    def _reaching(self, spot: Spot, turn: TurnContext) -> TurnContext:
        """Return the turn for one operation: a category may grant the graph's own part without the whole tier."""
        category, own = turn.category, self._names.own(turn)
        if OWN_PART not in category.memory or not _inside(spot, own):
            return turn
        return replace(turn, category=replace(category, memory=category.memory | {own.shelf.tier}))

    def _ask(
        self, scope: str, effect: str, args: Mapping[str, Any], turn: TurnContext
    ) -> tuple[str, TurnContext, Mapping[str, Any]]:
        """Return the operation's name, which stays the same if its node is run again, and the admitted call."""
        name, at = scope.replace(".", "_"), place()
        known_as = made_id(at, name, args)
        call = self._repeated.name(f"{turn.thread_id}|{at}|{known_as}")
        if over := over_limit(turn, call) if effect == "write" else "":
            raise Denied(over, where=scope)
        wanted = CallRequest(tool=None, name=name, call_id=known_as, args=args, known=(scope, effect))
        decided = self._gate.admit(wanted, turn)
        if isinstance(decided, Refused):
            raise Denied(decided.text, where=scope)
        require(scope, effect, decided.args, decided.context)
        return call, decided.context, decided.args


def lend(
    graph: Graph, workspace: Workspace, gate: Gate, names: Namespaces | None = None, opened: Opened | None = None
) -> Graph:
    """Return the graph with memory as its store; a graph that already has a store keeps its store."""
    memory = MemoryStore(workspace, gate, names, opened.loaded.store.index if opened else None)
    if graph.store is None:
        graph.store = memory
    if opened is not None:
        opened.loaded.lent.store = memory
    return graph


def _unit(admitted: Sequence[_Admitted]) -> tuple[Callable[[Connection], Any], set[str]]:
    """Return the work of one transaction, and its subjects."""
    subjects = [one.entry[0].subjects(one.entry[1]) for one in admitted if isinstance(one, _Writing)]
    return lambda connection: _carry_out(connection, admitted), set[str]().union(*subjects)


def _carry_out(connection: Connection, admitted: Sequence[_Admitted]) -> tuple[list[base.Result | _Search], _Written]:
    results: list[base.Result | _Search] = [
        one.run(connection) if isinstance(one, _Reading) else None for one in admitted
    ]
    last = {one.entry: one for one in admitted if isinstance(one, _Writing)}
    return results, [(one, one.run(connection)) for one in last.values()]


def _edited(value: Any, own: Any) -> Any:
    """Return an edited value. Raises InvalidInput if the value is missing or its kind differs from the graph's."""
    if value is None or isinstance(value, Mapping) != isinstance(own, Mapping):
        kind = "an object" if isinstance(own, Mapping) else "no object"
        raise InvalidInput(f"this entry's value is {kind}", where="value", hint="put the new value into the edit")
    return value


def _args_of(shelf: Shelf) -> dict[str, str]:
    """Return a shelf as arguments for a scope check."""
    named = {"channel": "channel", "conversation": "thread"}.get(shelf.tier)
    return {"tier": shelf.tier} | ({named: shelf.owner} if named else {})


def _shelf(args: Mapping[str, Any]) -> Shelf:
    owner = {"channel": args.get("channel"), "conversation": args.get("thread")}.get(str(args.get("tier")))
    return entries.check_shelf(str(args.get("tier")), str(owner or ""))


def _under(connection: Connection, spot: Spot, query: str | None) -> list[tuple[float | None, MemoryEntry]]:
    """Return the entries below a namespace: for a query, the matching entries with scores; otherwise all."""
    found: Sequence[tuple[float | None, MemoryEntry]]
    if query:
        found = entries.ranked(connection, spot.shelf, query)
    else:
        found = [(None, entry) for entry in entries.whole(connection, spot.shelf)]
    return [(points, entry) for points, entry in found if spot.holds(entry.key)]


def _inside(spot: Spot, own: Spot) -> bool:
    return spot.shelf == own.shelf and spot.below[:1] == own.below


def _may_fill(spot: Spot, own: Spot, turn: TurnContext) -> bool:
    """Return whether a search may return entries that do not match: in a graph's own part, if the turn may read all.

    A search by meaning, which LangGraph's graphs expect, returns every entry.
    """
    return _inside(spot, own) and judge(READ, "read", _args_of(spot.shelf), turn).allowed


def _rest(
    connection: Connection, spot: Spot, found: Sequence[tuple[float | None, MemoryEntry]]
) -> list[tuple[None, MemoryEntry]]:
    known = {entry.entry_id for _, entry in found}
    return [(None, entry) for _, entry in _under(connection, spot, None) if entry.entry_id not in known]


def _namespaces(connection: Connection, spots: Sequence[Spot], own: Spot) -> set[tuple[str, ...]]:
    held = [(spot, entry.key) for spot in spots for entry in entries.whole(connection, spot.shelf)]
    return {entries.namespace_of(spot.shelf, key, own)[0] for spot, key in held if spot.holds(key)}


def _item(entry: MemoryEntry | None, own: Spot) -> base.Item | None:
    return base.Item(**_fields(entry, own)) if entry is not None else None


def _fields(entry: MemoryEntry, own: Spot) -> dict[str, Any]:
    namespace, key = entries.namespace_of(Shelf(tier=entry.tier, owner=entry.owner), entry.key, own)
    times = {"created_at": entry.created_at, "updated_at": entry.updated_at}
    return {"namespace": namespace, "key": key, "value": entries.value_of(entry), **times}


def _removals(found: Sequence[MemoryEntry]) -> list[base.Op]:
    return [base.PutOp(_ALL, entry.entry_id, None) for entry in found]


def _puts(found: Sequence[MemoryEntry]) -> list[base.Op]:
    return [base.PutOp(_ALL, entry.entry_id, entries.value_of(entry)) for entry in found]


def _ordered(ranked: Sequence[base.SearchItem], found: Sequence[MemoryEntry]) -> Ranked:
    left: dict[str, Any] = {entry.entry_id: entry for entry in found}
    return [(item.score, left[item.key]) for item in ranked if item.key in left]
