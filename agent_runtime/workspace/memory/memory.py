"""Memory behind the scopes of the turn that asks; and the author's own acts on it.

A turn's methods check its scopes themselves, whatever was checked before, and each of its writes happens once however
often its call is run. An author's methods take no turn. Events name entries and never tell what they say.
"""

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Protocol, TypeVar

from sqlalchemy import Connection

from agent_runtime.model.turn import TurnContext
from agent_runtime.permissions.judge import judge, require
from agent_runtime.store.idempotency import Call, Outcome, once, refuse_ended
from agent_runtime.workspace.memory import entries
from agent_runtime.workspace.memory.entries import Recollection, Shelf
from agent_runtime.workspace.model import Author, MemoryEntry
from turnkeeper.clock import Clock
from turnkeeper.entropy import Entropy

T = TypeVar("T")
Write = Callable[[Connection], Mapping[str, Any]]


class Books(Protocol):
    """How the workspace reads and writes its store."""

    async def read(self, work: Callable[[Connection], T]) -> T:
        """Run a reading function in a transaction."""

    async def write(self, work: Callable[[Connection], T]) -> T:
        """Run a writing function in a transaction, under the lease."""

    async def once(self, call: Call, scope: str, at: datetime, write: Write) -> Outcome:
        """Run a turn's write once, however often its call is run; tell of it."""

    def tell(self, event: str, fields: Mapping[str, Any]) -> None:
        """Tell of a write that is on disk."""


class Remembering:
    """What turns and authors do with memory."""

    def __init__(self, books: Books, clock: Clock, entropy: Entropy) -> None:
        self._books = books
        self._clock = clock
        self._entropy = entropy

    async def read(
        self, call: Call, tier: str, channel: str = "", *, skip: int = 0, oldest: bool = False
    ) -> Recollection:
        """Return entries of a tier within the reading budget, newest first. Raises Denied, InvalidInput."""
        shelf = _shelf("memory.read", "read", tier, channel, call.context)
        return await self._books.read(lambda connection: entries.read(connection, shelf, skip=skip, oldest=oldest))

    async def brief(self, context: TurnContext) -> list[MemoryEntry]:
        """Return what a turn is told of its thread's and channel's memory without asking: nothing out of its scopes."""
        tiers = [tier for tier in entries.OWNED if judge("memory.read", "read", {"tier": tier}, context).allowed]
        shelves = [entries.shelf_of(tier, context) for tier in tiers]
        return await self._books.read(lambda connection: entries.brief(connection, shelves)) if shelves else []

    async def search(self, call: Call, tier: str, query: str, channel: str = "", *, limit: int = 10) -> Recollection:
        """Return the entries of a tier that fit a query best. Raises Denied, InvalidInput."""
        shelf = _shelf("memory.search", "read", tier, channel, call.context)
        return await self._books.read(lambda connection: entries.search(connection, shelf, query, limit=limit))

    async def put(self, call: Call, *, tier: str, text: str, key: str = "", channel: str = "") -> Outcome:
        """Write an entry once. Raises Denied, InvalidInput, Exhausted."""
        now, new_id, context = self._clock.now(), self._new_id(), call.context
        shelf = _shelf("memory.put", "write", tier, channel, context)

        def write(connection: Connection) -> Mapping[str, Any]:
            return _told(entries.put(connection, context, shelf, key=key, text=text, at=now, new_id=new_id))

        return await self._books.once(call, "memory.put", now, write)

    async def update(self, call: Call, *, tier: str, key: str, text: str, channel: str = "") -> Outcome:
        """Change the text of an entry that is there, once. Raises Denied, NotFound, InvalidInput, Exhausted."""
        now, context = self._clock.now(), call.context
        shelf = _shelf("memory.update", "write", tier, channel, context)

        def write(connection: Connection) -> Mapping[str, Any]:
            return _told(entries.replace_text(connection, context, shelf, key=key, text=text, at=now))

        return await self._books.once(call, "memory.update", now, write)

    async def forget(self, call: Call, *, tier: str, key: str, channel: str = "") -> Outcome:
        """Delete an entry once; what it said is in the answer, for the record. Raises Denied, NotFound."""
        now, context = self._clock.now(), call.context
        shelf = _shelf("memory.forget", "write", tier, channel, context)

        def write(connection: Connection) -> Mapping[str, Any]:
            gone = entries.forget(connection, context, shelf, key)
            return {**_told(gone), "forgotten": gone.text}

        return await self._books.once(call, "memory.forget", now, write)

    def graph_writes(
        self, call: Call, shelf: Shelf, *, key: str, text: str | None, form: str
    ) -> Callable[[Connection], Outcome]:
        """Return a turn's write through a graph's store, which was admitted: done once, however often it is run.

        Args:
            call: names the write.
            shelf: whose entry.
            key: the entry's.
            text: what it is to say; None: the entry is to go, if it is there.
            form: text or json.
        """
        now, new_id, context = self._clock.now(), self._new_id(), call.context

        def write(connection: Connection) -> Mapping[str, Any]:
            if text is not None:
                entry = entries.put(connection, context, shelf, key=key, text=text, at=now, new_id=new_id, form=form)
                return _told(entry)
            there = entries.find(connection, shelf, key)
            return {} if there is None else _told(entries.forget(connection, context, shelf, key))

        scope = "memory.forget" if text is None else "memory.put"
        return lambda connection: once(connection, call, scope, now, refuse_ended, lambda: write(connection))

    async def author_puts(
        self, shelf: Shelf, *, key: str, text: str, must_be_there: bool = False, author: Author | None = None
    ) -> MemoryEntry:
        """Write an entry as its author. Raises InvalidInput, Exhausted; NotFound for one that must be there."""
        by, now, new_id = author or Author(), self._clock.now(), self._new_id()

        def write(connection: Connection) -> MemoryEntry:
            if must_be_there:
                return entries.replace_text(connection, by, shelf, key=key, text=text, at=now)
            return entries.put(connection, by, shelf, key=key, text=text, at=now, new_id=new_id)

        entry = await self._books.write(write)
        self._books.tell("memory.put", _named(entry))
        return entry

    async def author_forgets(self, shelf: Shelf, key: str) -> MemoryEntry:
        """Delete an entry, whoever wrote it; return what it was. Raises NotFound."""
        entry = await self._books.write(lambda connection: entries.forget(connection, Author(), shelf, key))
        self._books.tell("memory.forgotten", _named(entry))
        return entry

    def _new_id(self) -> str:
        return f"m-{self._entropy.hex(12)}"


def _shelf(scope: str, effect: str, tier: str, channel: str, context: TurnContext) -> Shelf:
    """Return the shelf that a turn means, if it may reach it. Raises Denied, InvalidInput."""
    require(scope, effect, {"tier": tier, "channel": channel}, context)
    return entries.shelf_of(tier, context, channel)


def _told(entry: MemoryEntry) -> dict[str, Any]:
    return {"entry_id": entry.entry_id, "tier": entry.tier, "key": entry.key}


def _named(entry: MemoryEntry) -> dict[str, Any]:
    return {"entry_id": entry.entry_id, "tier": entry.tier, "owner": entry.owner, "origin": entry.origin}
