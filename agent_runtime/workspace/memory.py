"""Memory in four tiers: entries that turns leave for later turns, and limits on how much a later turn reads.

The tier `conversation` belongs to one thread, and turns on that thread see it. The tier `channel` belongs to one
channel, and turns in that channel see it. The tier `workspace` belongs to the workspace, and `account` to the author;
every turn whose category reaches such a tier sees it.

No entry is dropped to make room: a full shelf refuses new entries until someone deletes old entries. One reading has a
fixed budget, so that the five-hundredth fire reads as little as the fifth.

A graph's store names memory by a tuple of labels and a key, mapped onto a shelf and an entry's key. `("workspace",)`
and `("account",)` mean the only workspace and account. `("channel", CHANNEL)` is a channel, and `("conversation",
THREAD)` a thread; `("channel",)` and `("conversation",)` are the turn's own.

Any further labels are written before the entry's key, with `/` between: a graph's entry `b` under `("workspace", "a")`
is `a/b` for tools and commands.

Any other namespace is private to the graph. It is in the default tier, below a label with the graph's name: `b` under
`("notes", "ada")` is `graph:garden.agent/notes/ada/b` for tools and commands.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, TypeVar

import sqlalchemy as sa

from agent_runtime.model.mapping import from_row
from agent_runtime.model.turn import TurnContext
from agent_runtime.model.words import score, terms
from agent_runtime.permissions.judge import OWN_PART, TIERS, judge, require
from agent_runtime.store.idempotency import Call, Outcome, Transactions, once, refuse_ended
from agent_runtime.store.schema import memory
from agent_runtime.workspace.model import Author, Caller, ChannelMessage, MemoryEntry, check_text
from turnkeeper.clock import Clock
from turnkeeper.entropy import Entropy
from turnkeeper.errors import Denied, Exhausted, InvalidInput, NotFound
from turnkeeper.storage.statements import hold_any, size_of, total
from turnkeeper.times import to_us

LARGEST_ENTRY = 4_000  # bytes
_Said = TypeVar("_Said", ChannelMessage, MemoryEntry)
READING_BUDGET = 8_000  # bytes of text in one reading
MOST_READ = 60  # entries in one reading
BRIEFING_BUDGET = 2_000  # bytes of text in the briefing of a turn
MOST_BRIEFED = 20
MOST_ENTRIES = 1_000  # most entries on one shelf
MOST_BYTES = 256 * 1024  # bytes of text on one shelf
LONGEST_KEY = 200
OWNED = ("conversation", "channel")  # tiers with several owners
GRAPH = "graph:"  # prefix of a graph's own first label


@dataclass(frozen=True, kw_only=True)
class Shelf:
    """The entries of one owner: a thread, a channel, the workspace or the account."""

    tier: str
    owner: str = ""

    def subjects(self, key: str) -> set[str]:
        """Return the subject of writes to an entry, which are made one after the other. A new entry has none."""
        return {f"memory {self.tier} {self.owner} {key}"} if key else set()


@dataclass(frozen=True, kw_only=True)
class Recollection:
    """The result of one reading: entries in the requested order, and the number of entries that did not fit."""

    entries: tuple[MemoryEntry, ...]
    left_out: int


def shelf_of(tier: str, context: TurnContext, channel: str = "") -> Shelf:
    """Return the shelf of a tier in a turn: its thread's, a channel's, the workspace's or the account's.

    Raises:
        InvalidInput: there is no such tier.
    """
    owners = {"conversation": context.thread_id, "channel": channel or context.channel}
    return check_shelf(tier, owners.get(tier, ""))


def check_shelf(tier: str, owner: str) -> Shelf:
    """Return a shelf. Raises InvalidInput for an unknown tier, a missing owner or an owner that the tier lacks."""
    if tier not in TIERS:
        raise InvalidInput(f"no memory tier {tier[:40]!r}", where="tier", hint=f"use one of: {', '.join(TIERS)}")
    if (tier in OWNED) != bool(owner):
        what = {"conversation": "needs a thread", "channel": "needs a channel"}.get(
            tier, "cannot have a thread or channel"
        )
        raise InvalidInput(f"the {tier} tier {what}", where="tier")
    return Shelf(tier=tier, owner=check_text(owner, "owner", 256))


def read(connection: sa.Connection, shelf: Shelf, *, skip: int = 0, oldest: bool = False) -> Recollection:
    """Return entries whose texts fit the budget together, newest first."""
    age = memory.c.updated_at_us if oldest else sa.desc(memory.c.updated_at_us)
    total = connection.execute(sa.select(sa.func.count()).select_from(memory).where(_on(shelf))).scalar_one()
    query = sa.select(memory).where(_on(shelf)).order_by(age, memory.c.key).offset(max(0, skip)).limit(MOST_READ)
    kept = fitting(_entries(connection, query), READING_BUDGET)
    return Recollection(entries=tuple(kept), left_out=max(0, total - max(0, skip) - len(kept)))


def brief(connection: sa.Connection, shelves: Sequence[Shelf]) -> list[MemoryEntry]:
    """Return the newest entries of these shelves that fit a turn's briefing together, newest first.

    An entry that does not fit is skipped, so that older entries may fit.
    """
    query = (
        sa.select(memory)
        .where(sa.or_(*map(_on, shelves)))
        .order_by(sa.desc(memory.c.updated_at_us), memory.c.key, memory.c.entry_id)
    )
    newest = _entries(connection, query.limit(MOST_BRIEFED))
    kept, room = list[MemoryEntry](), BRIEFING_BUDGET
    for entry in newest:
        if (size := len(entry.text.encode())) <= room:
            kept.append(entry)
            room -= size
    return kept


def search(connection: sa.Connection, shelf: Shelf | None, query: str, *, limit: int = MOST_READ) -> Recollection:
    """Return the entries with the most words of a query, best first, within the reading budget.

    Args:
        shelf: the shelf to search; None for all shelves, for the author only.
    """
    best = [entry for _, entry in ranked(connection, shelf, query)]
    kept = fitting(best[: max(0, min(limit, MOST_READ))], READING_BUDGET)
    return Recollection(entries=tuple(kept), left_out=len(best) - len(kept))


def ranked(connection: sa.Connection, shelf: Shelf | None, query: str) -> list[tuple[float, MemoryEntry]]:
    """Return all entries with any of a query's words and their scores, best first; see `search`."""
    wanted = terms(query) or terms(query, common=True)
    if not wanted:
        return []
    in_words = hold_any((memory.c.key, memory.c.text), wanted)
    held = sa.select(memory).where(in_words, _on(shelf) if shelf else memory.c.key != "")
    held = held.order_by(sa.desc(memory.c.updated_at_us), memory.c.entry_id)
    found = [(score(wanted, entry.key, entry.text, ""), entry) for entry in _entries(connection, held)]
    return sorted((pair for pair in found if pair[0] > 0), key=lambda pair: -pair[0])


def whole(connection: sa.Connection, shelf: Shelf) -> list[MemoryEntry]:
    """Return every entry of a shelf, newest first. Programs with their own paging use this function, never a model."""
    query = sa.select(memory).where(_on(shelf)).order_by(sa.desc(memory.c.updated_at_us), memory.c.key)
    return _entries(connection, query)


def get(connection: sa.Connection, shelf: Shelf, key: str) -> MemoryEntry:
    """Return one entry. Raises NotFound."""
    found = find(connection, shelf, key)
    if found is None:
        raise NotFound(f"no entry {key[:80]!r} in the {shelf.tier} memory", hint="see: turnkeeper memory list")
    return found


def find(connection: sa.Connection, shelf: Shelf, key: str) -> MemoryEntry | None:
    return next(iter(_entries(connection, sa.select(memory).where(_on(shelf), memory.c.key == key))), None)


def list_entries(
    connection: sa.Connection, *, tier: str = "", owner: str = "", limit: int = 1_000
) -> list[MemoryEntry]:
    """Return entries for the author, newest first: of one tier or owner, or all."""
    query = sa.select(memory).order_by(sa.desc(memory.c.updated_at_us), memory.c.entry_id).limit(limit)
    return _entries(connection, query.where(*_named(tier, owner)))


def count(connection: sa.Connection, *, tier: str = "", owner: str = "") -> int:
    """Return the number of entries of one tier or owner, or of all."""
    return connection.execute(sa.select(sa.func.count()).select_from(memory).where(*_named(tier, owner))).scalar_one()


def put(
    connection: sa.Connection,
    caller: Caller,
    shelf: Shelf,
    *,
    key: str,
    text: str,
    at: datetime,
    new_id: str,
    form: str = "text",
) -> MemoryEntry:
    """Write one entry; an entry of the same key is replaced and keeps its id. An empty key makes a new entry.

    Raises:
        InvalidInput: the text or the key is too long or cannot be stored.
        Exhausted: the shelf is full.
        Denied: an agent would replace an entry of the author.
    """
    text, key = check_entry(text), check_key(key) if key else new_id
    before = find(connection, shelf, key)
    _check_owner(caller, before)
    _check_room(connection, shelf, before, text, key)
    news: dict[str, Any] = {"text": text, "form": form, "updated_at_us": to_us(at)} | _provenance(caller)
    if before is None:
        place = {"entry_id": new_id, "tier": shelf.tier, "owner": shelf.owner, "key": key}
        connection.execute(sa.insert(memory).values(place | {"created_at_us": to_us(at)} | news))
    else:
        connection.execute(sa.update(memory).where(memory.c.entry_id == before.entry_id).values(news))
    return get(connection, shelf, key)


def replace_text(
    connection: sa.Connection, caller: Caller, shelf: Shelf, *, key: str, text: str, at: datetime, form: str = "text"
) -> MemoryEntry:
    """Change the text of an existing entry. Raises NotFound, InvalidInput, Exhausted, Denied."""
    before = get(connection, shelf, key)
    return put(connection, caller, shelf, key=before.key, text=text, at=at, new_id=before.entry_id, form=form)


def forget(connection: sa.Connection, caller: Caller, shelf: Shelf, key: str) -> MemoryEntry:
    """Delete an entry and return it. Raises NotFound, or Denied if an agent would delete the author's entry."""
    before = get(connection, shelf, key)
    _check_owner(caller, before)
    connection.execute(sa.delete(memory).where(memory.c.entry_id == before.entry_id))
    return before


def check_entry(text: str) -> str:
    """Return the text if an entry can contain it. Raises InvalidInput."""
    if not check_text(text, "text", LARGEST_ENTRY).strip():
        raise InvalidInput("is empty", where="text")
    return text


def check_key(key: str) -> str:
    """Return an entry's key: one line of at most 200 characters without blanks at its ends. Raises InvalidInput."""
    if len(check_text(key, "key")) > LONGEST_KEY:
        raise InvalidInput(f"is longer than {LONGEST_KEY} characters", where="key")
    if not key or key != key.strip() or len(key.splitlines()) != 1:
        raise InvalidInput("must be one line without blanks at its ends", where="key")
    return key


def _provenance(caller: Caller) -> dict[str, str]:
    if isinstance(caller, Author):
        return {"origin": "authored", "written_by": caller.name, "turn_id": "", "via": caller.via}
    return {"origin": "agent-produced", "written_by": caller.agent, "turn_id": caller.turn_id, "via": ""}


def _check_owner(caller: Caller, before: MemoryEntry | None) -> None:
    if before is not None and before.origin == "authored" and not isinstance(caller, Author):
        raise Denied(f"the author wrote {before.key[:80]!r}, and only the author may change it", where="key")


def _check_room(connection: sa.Connection, shelf: Shelf, before: MemoryEntry | None, text: str, key: str) -> None:
    """Refuse text that exceeds the limits of a shelf, or of a graph's own part, which is counted separately."""
    graph = key.partition("/")[0] if key.startswith(GRAPH) and "/" in key else ""
    part = f"{graph}/" if graph else GRAPH
    after = part[:-1] + chr(ord(part[-1]) + 1)  # the first text after all texts with this prefix, in byte order
    inside = sa.and_(memory.c.key >= part, memory.c.key < after)
    size = sa.func.coalesce(total(size_of(memory.c.text)), 0)
    counted = sa.select(sa.func.count(), size).where(_on(shelf), inside if graph else sa.not_(inside))
    count, used = connection.execute(counted).one()
    hint = "forget entries, or replace one by putting its key again"
    held = f"the {shelf.tier} memory" + (f" of {graph}" if graph else "")
    if before is None and count >= MOST_ENTRIES:
        raise Exhausted(f"{held} contains {count} entries, which is the limit", where="tier", hint=hint)
    more = len(text.encode()) - (len(before.text.encode()) if before else 0)
    if more > 0 and used + more > MOST_BYTES:
        raise Exhausted(f"{held} contains {used} bytes; the limit is {MOST_BYTES}", where="tier", hint=hint)


def fitting(found: Sequence[_Said], room: int) -> list[_Said]:
    """Return the first texts that fit `room` bytes together, without gaps, so that a later reading finds the rest."""
    kept = []
    for one in found:
        room -= len(one.text.encode())
        if room < 0:
            break
        kept.append(one)
    return kept


def _named(tier: str, owner: str) -> list[sa.ColumnElement[bool]]:
    given = ((memory.c.tier, tier), (memory.c.owner, owner))
    return [column == value for column, value in given if value]


def _on(shelf: Shelf) -> sa.ColumnElement[bool]:
    return sa.and_(memory.c.tier == shelf.tier, memory.c.owner == shelf.owner)


def _entries(connection: sa.Connection, query: sa.Select[Any]) -> list[MemoryEntry]:
    return [from_row(MemoryEntry, row) for row in connection.execute(query).mappings()]


class Memory:
    """The memory operations of turns and authors.

    Methods for a turn always check the turn's scopes. A turn's write takes effect once, even if the call is repeated.
    An author's methods take no turn as an argument. Events name entries and never contain their texts.
    """

    def __init__(self, transactions: Transactions, clock: Clock, entropy: Entropy) -> None:
        self._transactions = transactions
        self._clock = clock
        self._entropy = entropy

    async def read(
        self, call: Call, tier: str, channel: str = "", *, skip: int = 0, oldest: bool = False
    ) -> Recollection:
        """Return entries of a tier within the reading budget, newest first. Raises Denied, InvalidInput."""
        shelf = _permitted("memory.read", "read", tier, channel, call.context)
        return await self._transactions.read(lambda connection: read(connection, shelf, skip=skip, oldest=oldest))

    async def brief(self, context: TurnContext) -> list[MemoryEntry]:
        """Return the memory of a turn's thread and channel for its briefing, limited to its scopes."""
        tiers = [tier for tier in OWNED if judge("memory.read", "read", {"tier": tier}, context).allowed]
        shelves = [shelf_of(tier, context) for tier in tiers]
        return await self._transactions.read(lambda connection: brief(connection, shelves)) if shelves else []

    async def search(self, call: Call, tier: str, query: str, channel: str = "", *, limit: int = 10) -> Recollection:
        """Return the entries of a tier that match a query best. Raises Denied, InvalidInput."""
        shelf = _permitted("memory.search", "read", tier, channel, call.context)
        return await self._transactions.read(lambda connection: search(connection, shelf, query, limit=limit))

    async def put(self, call: Call, *, tier: str, text: str, key: str = "", channel: str = "") -> Outcome:
        """Write or replace an entry; a repeated call changes nothing. Raises Denied, InvalidInput, Exhausted."""
        now, new_id, context = self._clock.now(), self._new_id(), call.context
        shelf = _permitted("memory.put", "write", tier, channel, context)

        def write(connection: sa.Connection) -> Mapping[str, Any]:
            return _result(put(connection, context, shelf, key=key, text=text, at=now, new_id=new_id))

        return await self._transactions.once(call, "memory.put", now, write, shelf.subjects(key))

    async def update(self, call: Call, *, tier: str, key: str, text: str, channel: str = "") -> Outcome:
        """Change the text of an existing entry, once. Raises Denied, NotFound, InvalidInput, Exhausted."""
        now, context = self._clock.now(), call.context
        shelf = _permitted("memory.update", "write", tier, channel, context)

        def write(connection: sa.Connection) -> Mapping[str, Any]:
            return _result(replace_text(connection, context, shelf, key=key, text=text, at=now))

        return await self._transactions.once(call, "memory.update", now, write, shelf.subjects(key))

    async def forget(self, call: Call, *, tier: str, key: str, channel: str = "") -> Outcome:
        """Delete an entry once; the answer contains its text, for the record. Raises Denied, NotFound."""
        now, context = self._clock.now(), call.context
        shelf = _permitted("memory.forget", "write", tier, channel, context)

        def write(connection: sa.Connection) -> Mapping[str, Any]:
            gone = forget(connection, context, shelf, key)
            return {**_result(gone), "forgotten": gone.text}

        return await self._transactions.once(call, "memory.forget", now, write, shelf.subjects(key))

    def graph_writes(
        self, call: Call, shelf: Shelf, *, key: str, text: str | None, form: str
    ) -> Callable[[sa.Connection], Outcome]:
        """Return a function that makes a turn's allowed write through a graph's store, once even if it is called again.

        Args:
            text: the new text; None deletes the entry if it exists.
            form: text or json.
        """
        now, new_id, context = self._clock.now(), self._new_id(), call.context

        def write(connection: sa.Connection) -> Mapping[str, Any]:
            if text is not None:
                entry = put(connection, context, shelf, key=key, text=text, at=now, new_id=new_id, form=form)
                return _result(entry)
            there = find(connection, shelf, key)
            return {} if there is None else _result(forget(connection, context, shelf, key))

        scope = "memory.forget" if text is None else "memory.put"
        return lambda connection: once(connection, call, scope, now, refuse_ended, lambda: write(connection))

    async def author_puts(
        self,
        shelf: Shelf,
        *,
        key: str,
        text: str,
        form: str = "text",
        must_be_there: bool = False,
        author: Author | None = None,
    ) -> MemoryEntry:
        """Write an entry as its author. Raises InvalidInput, Exhausted; NotFound if the entry must exist."""
        by, now, new_id = author or Author(), self._clock.now(), self._new_id()

        def write(connection: sa.Connection) -> MemoryEntry:
            if must_be_there:
                return replace_text(connection, by, shelf, key=key, text=text, at=now, form=form)
            return put(connection, by, shelf, key=key, text=text, at=now, new_id=new_id, form=form)

        entry = await self._transactions.write(write, shelf.subjects(key))
        self._transactions.emit("memory.put", _event_fields(entry))
        return entry

    async def author_forgets(self, shelf: Shelf, key: str) -> MemoryEntry:
        """Delete an entry of any writer and return it. Raises NotFound."""
        entry = await self._transactions.write(lambda c: forget(c, Author(), shelf, key), shelf.subjects(key))
        self._transactions.emit("memory.forgotten", _event_fields(entry))
        return entry

    def _new_id(self) -> str:
        return f"m-{self._entropy.hex(12)}"


def _permitted(scope: str, effect: str, tier: str, channel: str, context: TurnContext) -> Shelf:
    """Return the shelf that a turn names, after a check of its scopes. Raises Denied, InvalidInput."""
    require(scope, effect, {"tier": tier, "channel": channel}, context)
    return shelf_of(tier, context, channel)


def _result(entry: MemoryEntry) -> dict[str, Any]:
    return {"entry_id": entry.entry_id, "tier": entry.tier, "key": entry.key}


def _event_fields(entry: MemoryEntry) -> dict[str, Any]:
    return {"entry_id": entry.entry_id, "tier": entry.tier, "owner": entry.owner, "origin": entry.origin}


Labels = tuple[str, ...]
_MISREAD = re.compile(r"%(?=25|2F)")
_ESCAPED = re.compile(r"%25(?=25|2F)")


@dataclass(frozen=True, kw_only=True)
class Spot:
    """A namespace: its shelf, and the labels below the shelf.

    Attributes:
        own: the label of the graph's own part if a search includes that part; otherwise empty.
    """

    shelf: Shelf
    below: Labels = ()
    own: str = ""

    def holds(self, key: str) -> bool:
        """Return whether an entry of the shelf is in this namespace. A graph's own part must be named explicitly."""
        labels = tuple(map(_plain, key.split("/")[:-1]))
        if not self.below and labels[:1] != (self.own,) and key.startswith(GRAPH) and labels:
            return False
        return labels[: len(self.below)] == self.below


@dataclass(frozen=True, kw_only=True)
class Namespaces:
    """The rules for a graph's namespaces.

    Attributes:
        graph: the graph's name, which separates the entries of graphs outside the tiers.
    """

    graph: str = "default"
    tier: str = "workspace"

    @property
    def label(self) -> str:
        """The label of the graph's own part of a tier."""
        return f"{GRAPH}{self.graph}"

    def own(self, turn: TurnContext) -> Spot:
        """Return the graph's own part of the default tier, for namespaces that do not begin with a tier."""
        return Spot(shelf=shelf_of(self.tier, turn), below=(self.label,))


def spot_of(namespace: Sequence[str], turn: TurnContext, names: Namespaces) -> Spot:
    """Return the spot that a namespace names in a turn. Raises InvalidInput."""
    tier, *rest = namespace or ("",)
    if tier not in TIERS:
        part = names.own(turn)
        return replace(part, below=(*part.below, *namespace))
    if tier not in OWNED:
        return Spot(shelf=Shelf(tier=tier), below=tuple(rest))
    own = turn.channel if tier == "channel" else turn.thread_id
    return Spot(shelf=check_shelf(tier, rest[0] if rest else own), below=tuple(rest[1:]))


def reached(prefix: Sequence[str], turn: TurnContext, names: Namespaces) -> list[Spot]:
    """Return the spots for a search under a prefix: all spots that the turn may read there."""
    if len(prefix) > 1 or (prefix and prefix[0] not in OWNED):
        return [spot_of(prefix, turn, names)]
    owners = {
        "conversation": [turn.thread_id],
        "channel": [turn.channel, *sorted(turn.category.channels - {turn.channel})],
    }
    tiers = (
        [tier for tier in TIERS if tier in turn.category.memory]
        if not prefix
        else [spot_of(prefix, turn, names).shelf.tier]
    )
    shelves = [Shelf(tier=tier, owner=owner) for tier in tiers for owner in owners.get(tier, [""])]
    part = names.own(turn) if not prefix else None
    own = part.shelf if part is not None else None
    found = [Spot(shelf=shelf, own=names.label if shelf == own else "") for shelf in shelves]
    return [*found, part] if part and OWN_PART in turn.category.memory and own not in shelves else found


def namespace_of(shelf: Shelf, key: str, own: Spot | None = None) -> tuple[Labels, str]:
    """Return the namespace and key by which a graph names an entry. In the graph's own part, leave out the tier."""
    *below, last = map(_plain, key.split("/"))
    if own is not None and shelf == own.shelf and tuple(below[:1]) == own.below:
        return tuple(below[1:]), last
    root = (shelf.tier, shelf.owner) if shelf.owner else (shelf.tier,)
    return (*root, *below), last


def key_of(below: Sequence[str], key: str) -> str:
    """Return the key of a graph's entry for tools and commands.

    >>> key_of(("a",), "b/c"), namespace_of(Shelf(tier="account"), "a/b%2Fc")
    ('a/b%2Fc', (('account', 'a'), 'b/c'))
    """
    return "/".join(_MISREAD.sub("%25", part).replace("/", "%2F") for part in (*below, key))


def text_of(value: Any) -> tuple[str, str]:
    """Return a graph's value as an entry's text and form. Raises InvalidInput if JSON cannot hold the value.

    >>> text_of({"text": "blue"}), text_of({"colour": "blue"}), text_of("blue")
    (('blue', 'text'), ('{"colour": "blue"}', 'json'), ('"blue"', 'json'))
    """
    plain = dict(value) if isinstance(value, Mapping) else value
    said = plain.get("text") if isinstance(plain, dict) and len(plain) == 1 else None
    if isinstance(said, str) and said.strip():
        return said, "text"
    try:
        return json.dumps(plain, ensure_ascii=False, allow_nan=False), "json"
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"the value cannot be stored as JSON: {error}", where="value") from error


def value_of(entry: MemoryEntry) -> Any:
    """Return an entry's value for a graph: an object, unless a graph stored another value."""
    return json.loads(entry.text) if entry.form == "json" else {"text": entry.text}


def _plain(part: str) -> str:
    return _ESCAPED.sub("%", part.replace("%2F", "/"))
