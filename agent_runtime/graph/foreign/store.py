"""The store settings of a project's `langgraph.json`: search by meaning, and the lifetime of entries.

As in LangGraph's own server, embeddings come from a named provider (`openai:text-embedding-3-small`), or from a
function of the project (`./embed.py:embed`). If they cannot be made, search uses words.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from langgraph.store.base import BaseStore, IndexConfig, Op, Result, ensure_embeddings

from agent_runtime.model.turn import Category
from agent_runtime.permissions.judge import OWN_PART
from agent_runtime.workspace.memory import Namespaces
from turnkeeper.errors import InvalidInput

_BY_WORDS = "search is by words"
_KEPT = "entries are kept until they are deleted; a put with its own ttl fails"
_UNKNOWN = "unknown here; the store works without it"


@dataclass(frozen=True, kw_only=True)
class StoreSettings:
    """The part of `store` in a `langgraph.json` that Turnkeeper uses.

    Attributes:
        index: the configuration of search by meaning; None for search by words.
        embed: the project's name of the embedding function or provider.
        ignored: the unused keys, and the consequence.
    """

    index: IndexConfig | None = None
    embed: str = ""
    ignored: Mapping[str, str] = field(default_factory=dict)


class LentStore(BaseStore):
    """The store that a factory gets. It forwards to the store of turns after the first turn begins."""

    def __init__(self) -> None:
        self.store: BaseStore | None = None

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        return self._lent().batch(ops)

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        return await self._lent().abatch(ops)

    def _lent(self) -> BaseStore:
        if self.store is None:
            what = "a factory runs before any turn, and the store belongs to turns"
            raise InvalidInput(what, where="runtime.store", hint="use it in a node or a tool")
        return self.store


def read_store(stated: Any, attribute: Callable[[str], Any]) -> StoreSettings:
    """Return the part of a project's store settings that Turnkeeper uses. `attribute` imports a `./file.py:name`."""
    if stated is None:
        return StoreSettings()
    if not isinstance(stated, Mapping):
        return StoreSettings(ignored={"store": "is not an object"})
    ignored = {f"store.{key}": _KEPT if key == "ttl" else _UNKNOWN for key in stated if key != "index"}
    if stated.get("index") is None:
        return StoreSettings(ignored=ignored)
    made, problem = _index(stated["index"], attribute)
    if made is None:
        return StoreSettings(ignored={"store.index": f"{problem}; {_BY_WORDS}"} | ignored)
    return StoreSettings(index=made, embed=str(stated["index"]["embed"]), ignored=ignored)


def _index(index: Any, attribute: Callable[[str], Any]) -> tuple[IndexConfig | None, str]:
    """Return the configuration of search by meaning, or the reason why it is impossible."""
    embed = index.get("embed") if isinstance(index, Mapping) else None
    if not isinstance(embed, str) or ":" not in embed:
        return None, "names no embeddings"
    fields = index.get("fields")
    if not (fields is None or (isinstance(fields, list) and all(isinstance(one, str) for one in fields))):
        return None, "its fields must be a list of strings"
    if not isinstance(index.get("dims", 0), int):
        return None, "its dims is not a number"
    try:
        made = ensure_embeddings(attribute(embed) if embed.rpartition(":")[0].endswith(".py") else embed)
    except Exception as error:  # noqa: BLE001  whatever a provider's package or the project raises is the reason
        return None, f"{embed} cannot be made: " + " ".join(f"{type(error).__name__}: {error}".split())[:200]
    config = IndexConfig(dims=index.get("dims", 0), embed=made)
    return config if not fields else {**config, "fields": fields}, ""


def store_report(names: Namespaces, settings: StoreSettings, categories: Sequence[Category]) -> dict[str, Any]:
    """Return the tier of a graph's own namespaces, the scopes for them, and the ignored settings."""

    def granting(*scopes: str) -> list[str]:
        reach = {names.tier, OWN_PART}
        return [one.name for one in categories if one.memory & reach and one.tools.issuperset(scopes)]

    return {
        "default_tier": names.tier,
        "kept_as": f"{names.label}/",
        "read_by": granting("memory.read", "memory.search"),
        "written_by": granting("memory.put", "memory.forget"),
        "search": f"by meaning, with {settings.embed}" if settings.index else "by words",
        "ignored": dict(settings.ignored),
    }
