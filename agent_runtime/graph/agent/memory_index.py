"""Search by meaning: entries ranked for a query, by the embeddings that a project configures.

LangGraph's own in-memory store holds the vectors. An entry is embedded when a search first reads it, and again after a
change; a new process starts with an empty index.
"""

from collections.abc import Sequence
from typing import Any

from langgraph.store import base
from langgraph.store.memory import InMemoryStore

from agent_runtime.workspace.memory import value_of
from agent_runtime.workspace.model import MemoryEntry

Ranked = list[tuple[float | None, MemoryEntry]]
_ALL = ("entries",)


class MeaningIndex:
    """The vectors of entries. The caller chooses the entries that a search may find."""

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

    def _note(self, entries: Sequence[MemoryEntry]) -> None:
        self._embedded |= {entry.entry_id: entry.text for entry in entries}


def _removals(entries: Sequence[MemoryEntry]) -> list[base.Op]:
    return [base.PutOp(_ALL, entry.entry_id, None) for entry in entries]


def _puts(entries: Sequence[MemoryEntry]) -> list[base.Op]:
    return [base.PutOp(_ALL, entry.entry_id, value_of(entry)) for entry in entries]


def _ordered(ranked: Sequence[base.SearchItem], found: Sequence[MemoryEntry]) -> Ranked:
    left: dict[str, Any] = {entry.entry_id: entry for entry in found}
    return [(item.score, left[item.key]) for item in ranked if item.key in left]
