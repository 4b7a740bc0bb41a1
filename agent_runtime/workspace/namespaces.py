"""Memory as a graph's store names it: a tuple of labels and a key, mapped onto a shelf and an entry's key. Pure.

    ("workspace",)  ("account",)           the one workspace or account
    ("channel", CHANNEL)                   a channel; ("channel",) alone is the turn's own
    ("conversation", THREAD)               a thread; ("conversation",) alone is the turn's own

Labels after these are written before the entry's key, with `/` between: a graph's entry `b` under
`("workspace", "a")` is what tools and commands call `a/b`.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agent_runtime.model.turn import TurnContext
from agent_runtime.permissions.judge import TIERS
from agent_runtime.workspace.memory import OWNED, Shelf, check_shelf
from agent_runtime.workspace.model import MemoryEntry
from turnkeeper.errors import InvalidInput

Labels = tuple[str, ...]
_MISREAD = re.compile(r"%(?=25|2F)")
_ESCAPED = re.compile(r"%25(?=25|2F)")


@dataclass(frozen=True, kw_only=True)
class Spot:
    """A namespace: its shelf, and the labels below it."""

    shelf: Shelf
    below: Labels = ()


def spot_of(namespace: Sequence[str], turn: TurnContext) -> Spot:
    """Return what a namespace means to a turn. Raises InvalidInput for one that begins with no tier."""
    tier, *rest = namespace or ("",)
    if tier not in TIERS:
        what = f"the namespace {tuple(namespace)!r:.80} begins with no memory tier"
        raise InvalidInput(what, where="namespace", hint=f"begin it with one of {', '.join(TIERS)}")
    if tier not in OWNED:
        return Spot(shelf=Shelf(tier=tier), below=tuple(rest))
    own = turn.channel if tier == "channel" else turn.thread_id
    return Spot(shelf=check_shelf(tier, rest[0] if rest else own), below=tuple(rest[1:]))


def reached(prefix: Sequence[str], turn: TurnContext) -> list[Spot]:
    """Return where a search under a prefix looks: in all that the turn reaches there, without asking for more."""
    if len(prefix) > 1 or (prefix and prefix[0] not in OWNED):
        return [spot_of(prefix, turn)]
    owners = {
        "conversation": [turn.thread_id],
        "channel": [turn.channel, *sorted(turn.category.channels - {turn.channel})],
    }
    tiers = (
        [tier for tier in TIERS if tier in turn.category.memory] if not prefix else [spot_of(prefix, turn).shelf.tier]
    )
    return [Spot(shelf=Shelf(tier=tier, owner=owner)) for tier in tiers for owner in owners.get(tier, [""])]


def args_of(shelf: Shelf) -> dict[str, str]:
    """Return a shelf as the arguments that scopes are judged by."""
    named = {"channel": "channel", "conversation": "thread"}.get(shelf.tier)
    return {"tier": shelf.tier} | ({named: shelf.owner} if named else {})


def namespace_of(shelf: Shelf, key: str) -> tuple[Labels, str]:
    """Return the namespace and key by which a graph knows an entry."""
    *below, last = key.split("/")
    root = (shelf.tier, shelf.owner) if shelf.owner else (shelf.tier,)
    return (*root, *map(_plain, below)), _plain(last)


def key_of(below: Sequence[str], key: str) -> str:
    """Return the key by which tools and commands know a graph's entry.

    >>> key_of(("a",), "b/c"), namespace_of(Shelf(tier="account"), "a/b%2Fc")
    ('a/b%2Fc', (('account', 'a'), 'b/c'))
    """
    return "/".join(_MISREAD.sub("%25", part).replace("/", "%2F") for part in (*below, key))


def text_of(value: Mapping[str, Any]) -> tuple[str, str]:
    """Return a graph's value as an entry's text and form. Raises InvalidInput for what JSON cannot hold.

    >>> text_of({"text": "blue"}), text_of({"colour": "blue"})
    (('blue', 'text'), ('{"colour": "blue"}', 'json'))
    """
    said = value.get("text")
    if len(value) == 1 and isinstance(said, str) and said.strip():
        return said, "text"
    try:
        return json.dumps(dict(value), ensure_ascii=False, allow_nan=False), "json"
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"the value cannot be stored as JSON: {error}", where="value") from error


def value_of(entry: MemoryEntry) -> dict[str, Any]:
    """Return an entry as a graph reads it."""
    return dict(json.loads(entry.text)) if entry.form == "json" else {"text": entry.text}


def _plain(part: str) -> str:
    return _ESCAPED.sub("%", part.replace("%2F", "/"))
