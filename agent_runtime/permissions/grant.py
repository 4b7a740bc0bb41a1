"""Changes to a category's file and to `config.toml` that let tools run without a question. This module writes no file.

Both files keep their comments and the order of their lines.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from agent_runtime.permissions.categories import Categories
from agent_runtime.permissions.judge import FOREIGN, SCOPES, known_scope
from agent_runtime.permissions.lint import read_draft_text
from turnkeeper.config.home import Home
from turnkeeper.config.settings import Settings
from turnkeeper.config.toml_file import TomlFile, read_text, with_items, with_key
from turnkeeper.errors import InvalidInput, meant

KINDS = (
    "writes",
    "memory",
    "channels",
    "subagents",
    "network",
    "graphs",
)  # grants that a call may lack in addition to the scope of its tool


@dataclass(frozen=True, kw_only=True)
class Grant:
    """Changes to two files.

    Attributes:
        path: the category's file; for a shipped category, a new file in the home.
        is_new: True if the file does not exist yet.
        added: the new entries of each list in `[scopes]`.
        autonomous: True if the change declares the category autonomous.
        config: the new text of `config.toml`; empty if it does not change.
    """

    path: Path
    is_new: bool
    text: str
    added: Mapping[str, Sequence[str]]
    autonomous: bool
    config: str

    @property
    def changes(self) -> bool:
        """True if the file of the category changes."""
        return self.autonomous or bool(self.added)


def plan_grant(home: Home, settings: Settings, name: str, wanted: Sequence[str], *, autonomous: bool) -> Grant:
    """Plan the changes that let a category use tools and, if `autonomous`, finish its fires unattended.

    Raises:
        NotFound: there is no such category.
        InvalidInput: the name of a tool is not a scope, or a file cannot be changed by this command.
    """
    categories = Categories(home, settings)
    category = categories.get(name)
    entry = next(one for one in categories.all() if one.name == name)
    text, path = read_text(Path(entry.path)), home.categories / f"{name}.toml"
    added: dict[str, list[str]] = {}
    for key, values in _lists(wanted, has_tier=bool(category.memory), tier=settings.memory.default_tier).items():
        present = sorted(value or settings.default_graph for value in getattr(category, key))
        if fresh := [value for value in dict.fromkeys(values) if value not in present]:
            text, added[key] = with_items(text, "scopes", key, fresh, present), fresh
    declares = autonomous and not entry.declared_autonomous
    text = with_key(text, "", "autonomous", True) if declares else text
    found = read_draft_text(path, text, settings)
    if any(not set(fresh) - {settings.default_graph} <= getattr(found, key) for key, fresh in added.items()):
        hint = f"add to [scopes] manually: {'; '.join(f'{key} {fresh}' for key, fresh in added.items())}"
        raise InvalidInput("this command cannot change the lists in this file", where=str(path), hint=hint)
    config, allowed = "", settings.categories.autonomous_allowed
    if autonomous and name not in allowed:
        before = read_text(home.config) if home.config.exists() else ""
        config = with_items(before, "categories", "autonomous_allowed", [name], allowed)
        if name not in TomlFile(home.config, config).validate(Settings).categories.autonomous_allowed:
            raise InvalidInput(f"add {name!r} to [categories] autonomous_allowed manually", where=str(home.config))
    return Grant(path=path, is_new=not path.exists(), text=text, added=added, autonomous=declares, config=config)


def _lists(wanted: Sequence[str], *, has_tier: bool, tier: str) -> Mapping[str, list[str]]:
    """Return the new values of each list of `[scopes]`: scopes of tools, their kinds of writes, and memory tiers."""
    lists: dict[str, list[str]] = {"tools": [], **{kind: [] for kind in KINDS}}
    for name in wanted:
        kind, colon, value = name.partition(":")
        kind = "channels" if kind == "channel" else kind  # questions use the singular
        if colon and value and kind in KINDS:
            lists[kind].append(value)
            continue
        scope = name if known_scope(name) else f"{FOREIGN}{name}"
        if not known_scope(name) and not name.replace("-", "_").isidentifier():
            raise InvalidInput(f"no scope {name[:80]!r}", where="TOOL", hint=meant(name, SCOPES))
        lists["tools"].append(scope)
        if (rule := SCOPES.get(scope)) is not None:
            lists["writes"] += [rule.writes] * bool(rule.writes)
            lists["memory"] += [tier] * (rule.tier and not has_tier)
    return lists
