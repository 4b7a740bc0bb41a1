"""Permission checks of a tool call against the turn's category, and the current categories of running turns.

Nothing is allowed by default. A call runs if its scope is known and granted. Each resource in its arguments (a kind of
write, a memory tier, a channel, a host) must be granted too. The guard calls these functions before a tool runs; the
workspace calls them again inside the tool's store call. After an author's approval, the second check gets a context
that `approve_once` widened for that one call, so the approval grants nothing else.
"""

import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit

from agent_runtime.model.turn import ALLOWED, GRANTS, LIMITS, Category, TurnContext, Verdict
from turnkeeper.errors import Denied, InvalidInput, NotFound

GetCategory = Callable[[str], Category]
EFFECTS = frozenset({"read", "external-read", "write"})
WRITES = frozenset({"candidate-page", "candidate-summary", "deviation", "derivation"})
TIERS = ("conversation", "channel", "workspace", "account")
OWN_PART = "graph"  # a graph's own store, under names without a tier
ANY_HOST = "*"
FOREIGN = "tool:"
SUPPLIED = ("mcp:", "tools:")  # an author's tools for our own agent, from MCP servers and from Python files
FAIL = "turn.fail"
LOOPS = "loop.create"
RESTART = "lifecycle.request_restart"
REQUEST = "permission.request"  # the scope of the tool that asks for another; it grants nothing and needs no grant


@dataclass(frozen=True, kw_only=True)
class ScopeRule:
    """The other grants that a tool with a scope needs.

    Attributes:
        writes: the kind of write that the tool makes; empty for none.
        tier: the tool uses the memory tier in argument `tier`, of the thread in argument `thread` if that is given.
        channel: the tool uses the channel in argument `channel`, by default the turn's own.
        host: the tool reaches the host in argument `url`.
        derives: the tool writes derivation links if argument `sources` is not empty.
        subagent: the tool starts the subagent in argument `name`.
    """

    writes: str = ""
    tier: bool = False
    channel: bool = False
    host: bool = False
    derives: bool = False
    subagent: bool = False


SCOPES: Mapping[str, ScopeRule] = MappingProxyType(
    {
        "workspace.read": ScopeRule(),
        "workspace.search": ScopeRule(),
        "conversation.read": ScopeRule(channel=True),
        "memory.read": ScopeRule(tier=True, channel=True),
        "memory.search": ScopeRule(tier=True, channel=True),
        "memory.put": ScopeRule(tier=True, channel=True),
        "memory.update": ScopeRule(tier=True, channel=True),
        "memory.forget": ScopeRule(tier=True, channel=True),
        "summary.propose": ScopeRule(writes="candidate-summary", channel=True),
        "page.propose": ScopeRule(writes="candidate-page", derives=True),
        "web.fetch": ScopeRule(host=True),
        "subagent.run": ScopeRule(subagent=True),
        "corpus.read": ScopeRule(),
        "attachment.read": ScopeRule(),
        "revalidation.next": ScopeRule(),
        "revalidation.settle": ScopeRule(writes="deviation"),
        "deviation.record": ScopeRule(writes="deviation"),
        "agent.send": ScopeRule(),
        FAIL: ScopeRule(),
        RESTART: ScopeRule(),
        "loop.wakeup": ScopeRule(),
        LOOPS: ScopeRule(channel=True),
        "loop.list": ScopeRule(),
        "loop.delete": ScopeRule(),
        "event.emit": ScopeRule(),
        "folder.changes": ScopeRule(),
        "folder.read": ScopeRule(),
    }
)


_NEVER_STANDING = {LOOPS: "makes tasks", RESTART: "stops the runtime"}
_NEVER_LACKING = {"effect": "its task is read-only", "subagents": "its category does not start this subagent"}


@dataclass(frozen=True, kw_only=True)
class _Lack:
    """One missing grant: its kind, its value, and a sentence for the author."""

    field: str
    value: str
    reason: str


def known_scope(scope: str) -> bool:
    """Return whether a scope exists: a built-in scope, or one of a tool of the author, such as `tool:<name>`."""
    kind, _, name = scope.partition(":")
    return scope in SCOPES or (bool(name) and f"{kind}:" in (FOREIGN, *SUPPLIED))


def judge(scope: str, effect: str, args: Mapping[str, Any], context: TurnContext) -> Verdict:
    """Decide one tool call; allow the call only if all of its needs are granted.

    Args:
        scope: the tool's scope, such as `memory.put`; an unknown scope is refused.
        effect: `read`, `external-read` or `write`; any other value counts as `write`.
        args: the call's arguments from the model, not yet validated.

    Returns:
        A verdict that names the first missing grant: a tool scope unchanged, any other grant as `<kind>:<value>`.
    """
    lacks = list(_lacks(scope, effect, args, context))
    if not lacks:
        return ALLOWED
    names = tuple(lack.value if lack.field == "tools" else f"{lack.field}:{lack.value}" for lack in lacks)
    return Verdict(allowed=False, missing_scope=_short(names[0]), reason=lacks[0].reason, lacking=names)


def require(scope: str, effect: str, args: Mapping[str, Any], context: TurnContext) -> None:
    """Raise Denied unless a turn may make a call. The workspace's store calls always check, even after the guard."""
    verdict = judge(scope, effect, args, context)
    if not verdict.allowed:
        raise Denied(verdict.reason, where=verdict.missing_scope)


def approve_once(scope: str, effect: str, args: Mapping[str, Any], context: TurnContext) -> TurnContext:
    """Return a context in which exactly this call, approved by the author, passes the workspace's own check.

    Use the context for this one tool call only, because the turn continues under its own category.
    """
    added: dict[str, set[str]] = {name: set() for name in (*GRANTS, "recurring", "effect")}
    for lack in _lacks(scope, effect, args, context):
        added["channels" if lack.field == "channel" else lack.field].add(lack.value)
    now = context.category
    grants: dict[str, Any] = {name: getattr(now, name) | added[name] for name in GRANTS}
    category = replace(now, recurring=now.recurring or bool(added["recurring"]), **grants)
    return replace(context, category=category, read_only=context.read_only and not added["effect"])


def once_only(scope: str, lacking: Collection[str]) -> str:
    """Return why an author must approve such a call each time; empty if a standing exception is possible.

    A call that starts tasks, stops the runtime, starts an agent with its own grant or writes in a read-only task may
    cause many more calls.
    """
    if scope in _NEVER_STANDING:
        return f"{scope} {_NEVER_STANDING[scope]}"
    kinds = {one.partition(":")[0] for one in lacking}
    return next((why for kind, why in _NEVER_LACKING.items() if kind in kinds), "")


def needs_proposal(scope: str, effect: str, context: TurnContext) -> bool:
    """Return whether a call within scope must wait for the author because the turn is not autonomous.

    The first write (except memory) of a fire's turn waits; its approval covers the turn's other writes within scope. A
    turn that an author started never waits for this reason.
    """
    writes = effect not in {"read", "external-read"} and not scope.startswith("memory.")
    return writes and context.started_by == "fire" and not context.category.autonomous


def intersect(grant: Category, now: Category | None) -> Category:
    """Return the common grants of the accepted category and its current version; no grants if `now` is None (deleted).

    A narrower category applies at once; a wider category needs a new grant. The result never holds more than `grant`.
    """
    if now == grant:
        return grant
    if now is None:
        now = Category(name=grant.name, outside=grant.outside, seconds=grant.seconds)
    common: dict[str, Any] = {name: getattr(grant, name) & getattr(now, name) for name in GRANTS if name != "network"}
    limits: dict[str, Any] = {name: min(getattr(grant, name), getattr(now, name)) for name in LIMITS}
    return replace(
        grant,
        autonomous=grant.autonomous and now.autonomous,
        silent=grant.silent and now.silent,
        outside="hide" if "hide" in {grant.outside, now.outside} else "ask",
        network=_common_hosts(grant.network, now.network),
        recurring=grant.recurring and now.recurring,
        graphs=grant.graphs & now.graphs,
        **common,
        **limits,
    )


def beyond(asked: Category, turn: TurnContext) -> str:
    """Return a sentence about a grant of `asked` that the turn lacks; empty if there is none.

    A turn gives others at most its own grants, because the others run without the turn. If an author started the turn,
    `asked` may also be autonomous or silent, and may ask about tools that the turn's category hides.

    >>> turn = TurnContext(turn_id="t", thread_id="t", channel="c", agent="agent0", category=Category(name="x"))
    >>> beyond(Category(name="y", tools=frozenset({"web.fetch"})), turn)
    'category y grants tools web.fetch, which the turn under category x does not have'
    """
    own = turn.category
    # `graphs` limits only the tools of authors.
    for name in (*GRANTS, *(("graphs",) if any(scope.startswith(FOREIGN) for scope in asked.tools) else ())):
        theirs, mine = getattr(asked, name), getattr(own, name)
        more = theirs - mine - ({turn.channel} if name == "channels" else set())
        if more and not (name == "network" and ANY_HOST in mine):
            named = _short(", ".join(one or "the default one" for one in sorted(more)))
            return (
                f"category {asked.name} grants {name} {named}, which the turn under category {own.name} does not have"
            )
    for name in LIMITS:
        if getattr(asked, name) > getattr(own, name):
            return f"category {asked.name} allows more {name} than the turn under category {own.name} has"
    free = turn.started_by == "author" or own.autonomous
    if (asked.autonomous and not free) or (asked.recurring and not own.recurring):
        what = "may act without the author" if asked.autonomous and not free else "may start its own tasks"
        return f"category {asked.name} {what}, which the turn under category {own.name} may not"
    if turn.started_by == "fire" and asked.silent and not own.silent:
        return f"category {asked.name} is silent, and the turn under category {own.name} is not"
    if turn.started_by == "fire" and asked.outside == "ask" and own.outside == "hide":
        return f"category {asked.name} asks the author for other tools, and category {own.name} hides them"
    return ""


def narrowed(context: TurnContext, category: Category) -> TurnContext:
    """Return the turn's context for a subagent, limited to the common grants of the turn and the subagent's category.

    Args:
        category: the subagent's category; the turn's category must name it among its `subagents`.

    Raises:
        Denied: the turn's category does not allow this subagent.
    """
    if category.name not in context.category.subagents:
        what = f"category {context.category.name} does not let the turn start the subagent {_short(category.name)}"
        raise Denied(what, where=f"subagents:{_short(category.name)}")
    return replace(context, category=intersect(context.category, category))


class Narrowing:
    """The current categories of running turns. Editing a category may narrow a running turn but never widens it.

    A category that was deleted or cannot be read grants nothing.
    """

    def __init__(self, get_category: GetCategory) -> None:
        self._get = get_category
        self._held: dict[str, Category] = {}
        self._lock = threading.Lock()  # synchronous tools call this object from their own threads

    def begin(self, turn_id: str, grant: Category) -> Category:
        """Return the category of a turn that starts or continues: the part of its grant that is still granted now."""
        category = intersect(grant, self._now(grant.name))
        with self._lock:
            self._held[turn_id] = category
        return category

    def end(self, turn_id: str) -> Category:
        """Return the remaining part of a turn's grant, and forget the turn. Call `begin` first."""
        with self._lock:
            return self._held.pop(turn_id)

    def __call__(self, context: TurnContext) -> TurnContext:
        """Return the turn under its current category; a turn that is not running has no grants.

        A task or thread that a tool left behind may still use the context after the turn has ended.
        """
        now = self._now(context.category.name)
        with self._lock:
            left = self._held.get(context.turn_id)
            if left is not None:
                left = self._held[context.turn_id] = intersect(left, now)
        category = intersect(context.category, left)
        return context if category == context.category else replace(context, category=category)

    def _now(self, name: str) -> Category | None:
        try:
            return self._get(name)
        except (NotFound, InvalidInput):
            return None


def _ungranted(scope: str, context: TurnContext) -> str:
    """Return why a turn lacks a tool scope; empty if it has it. Scopes of authors' tools are granted per graph."""
    category = context.category
    if scope not in category.tools or not known_scope(scope):
        return f"category {category.name} does not grant {scope}"
    if scope.startswith(FOREIGN) and context.graph not in category.graphs:
        where, how = context.graph or "the default graph", f"turnkeeper categories grant {category.name} --graph"
        return f"category {category.name} grants {scope} of other graphs, but not of {where}: {how} NAME adds a graph"
    return ""


def _lacks(scope: str, effect: str, args: Mapping[str, Any], context: TurnContext) -> Iterator[_Lack]:
    """Yield every missing grant of a call, the tool scope first."""
    category = context.category
    if reason := _ungranted(scope, context):
        yield _Lack(field="tools", value=scope, reason=reason)
    if scope == LOOPS and context.started_by == "fire" and not category.recurring:
        reason = f"a task started this turn, and category {category.name} does not let turns of tasks start tasks"
        yield _Lack(field="recurring", value="true", reason=reason)
    if context.read_only and effect != "read":
        yield _Lack(
            field="effect", value=effect if effect in EFFECTS else "write", reason="the task was declared read-only"
        )
    rule = SCOPES.get(scope, ScopeRule())
    derivation = "derivation" if rule.derives and args.get("sources") else ""
    for kind in (rule.writes, derivation):
        if kind and kind not in category.writes:
            reason = f"category {category.name} does not grant writes of kind {kind}"
            yield _Lack(field="writes", value=kind, reason=reason)
    if rule.tier:
        yield from _lacking_tier(args, context)
    if rule.channel:
        yield from _lacking_channel(rule, args, context)
    if rule.host:
        yield from _lacking_host(args, category)
    name = args.get("name") if rule.subagent else None
    if rule.subagent and (not isinstance(name, str) or name not in category.subagents):
        named = name if isinstance(name, str) and name else "none named"
        reason = f"category {category.name} does not start the subagent {_short(named)}"
        yield _Lack(field="subagents", value=named, reason=reason)


def _lacking_tier(args: Mapping[str, Any], context: TurnContext) -> Iterator[_Lack]:
    tier, category = args.get("tier"), context.category
    other = args.get("thread") or context.thread_id
    if tier == "conversation" and other != context.thread_id and f"conversation of {other}" not in category.memory:
        reason = f"the turn belongs to a thread other than {_short(str(other))}"
        yield _Lack(field="memory", value=f"conversation of {other}", reason=reason)
    if not isinstance(tier, str) or tier not in TIERS or tier not in category.memory:
        named = tier if isinstance(tier, str) and tier else "none named"
        reason = f"category {category.name} does not reach the memory tier {_short(named)}"
        yield _Lack(field="memory", value=named, reason=reason)


def _lacking_channel(rule: ScopeRule, args: Mapping[str, Any], context: TurnContext) -> Iterator[_Lack]:
    if rule.tier and args.get("tier") != "channel":
        return
    named = args.get("channel") or context.channel
    if named == context.channel:
        return
    if not isinstance(named, str) or named not in context.category.channels:
        value = named if isinstance(named, str) else repr(named)
        reason = f"the turn belongs to channel {context.channel}, and its category does not add {_short(value)}"
        yield _Lack(field="channel", value=value, reason=reason)


def _lacking_host(args: Mapping[str, Any], category: Category) -> Iterator[_Lack]:
    url = args.get("url")
    host = _host(url) if isinstance(url, str) else ""
    if not host or (host not in category.network and ANY_HOST not in category.network):
        reason = f"category {category.name} does not reach the host {_short(host) or 'of this address'}"
        yield _Lack(field="network", value=host, reason=reason)


def _host(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


def _common_hosts(one: frozenset[str], other: frozenset[str]) -> frozenset[str]:
    if ANY_HOST in one:
        return other
    return one if ANY_HOST in other else one & other


def _short(text: str) -> str:
    return text if len(text) <= 80 else f"{text[:79]}…"
