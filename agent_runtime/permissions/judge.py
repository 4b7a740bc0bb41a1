"""What a turn may do: functions over a tool call and the turn's category, and the categories of running turns.

Everything starts refused. A call runs when its scope is known and granted, and when what its arguments reach (a kind of
write, a memory tier, a channel, a host) is granted too. The guard asks here before a tool runs; the workspace asks it
again inside the tool's store call. An author's approval reaches the second check as a context that was widened for that
one call (`approve_once`), so it grants nothing else.
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
OWN_PART = "graph"  # beside the tiers: what a graph keeps for itself, under names without a tier
ANY_HOST = "*"
FOREIGN = "tool:"
LOOPS = "loop.create"
RESTART = "lifecycle.request_restart"
REQUEST = "permission.request"  # the scope of the tool that asks for another; it grants nothing and needs no grant


@dataclass(frozen=True, kw_only=True)
class ScopeRule:
    """What else must be granted for a tool scope to be of use.

    Attributes:
        writes: the kind of agent write it produces; empty for none.
        tier: it reaches a memory tier, named by the argument `tier`; another thread's where `thread` names one.
        channel: it reaches a channel, named by the argument `channel`, by default the turn's own.
        host: it reaches a host, named by the argument `url`.
        derives: it writes derivation links where the argument `sources` names any.
        subagent: it starts a subagent, named by the argument `name`.
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
        RESTART: ScopeRule(),
        "loop.wakeup": ScopeRule(),
        LOOPS: ScopeRule(channel=True),
        "loop.list": ScopeRule(),
        "loop.delete": ScopeRule(),
        "event.emit": ScopeRule(),
    }
)


_NEVER_STANDING = {LOOPS: "makes tasks", RESTART: "stops the runtime"}
_NEVER_LACKING = {"effect": "its task only reads", "subagents": "its category does not start this subagent"}


@dataclass(frozen=True, kw_only=True)
class _Lack:
    """One thing that was not granted: of which kind, its value, and a sentence for the author."""

    field: str
    value: str
    reason: str


def known_scope(scope: str) -> bool:
    """Return whether a scope exists: one of ours, or `tool:<name>` for a tool that a foreign graph brought."""
    return scope in SCOPES or (scope.startswith(FOREIGN) and len(scope) > len(FOREIGN))


def judge(scope: str, effect: str, args: Mapping[str, Any], context: TurnContext) -> Verdict:
    """Decide one tool call. Allowed means: everything it needs is granted; nothing is allowed by default.

    Args:
        scope: the tool's scope, such as `memory.put`; an unknown one is refused.
        effect: `read`, `external-read` or `write`; anything else counts as `write`.
        args: the call's arguments, as the model wrote them; not yet validated.
        context: the running turn.

    Returns:
        A verdict that names the first thing missing: a tool scope as it is, anything else as `<kind>:<value>`.
    """
    lacks = list(_lacks(scope, effect, args, context))
    if not lacks:
        return ALLOWED
    names = tuple(lack.value if lack.field == "tools" else f"{lack.field}:{lack.value}" for lack in lacks)
    return Verdict(allowed=False, missing_scope=_short(names[0]), reason=lacks[0].reason, lacking=names)


def require(scope: str, effect: str, args: Mapping[str, Any], context: TurnContext) -> None:
    """Raise Denied unless a turn may make a call: what the workspace's own store calls ask, whoever asked before."""
    verdict = judge(scope, effect, args, context)
    if not verdict.allowed:
        raise Denied(verdict.reason, where=verdict.missing_scope)


def approve_once(scope: str, effect: str, args: Mapping[str, Any], context: TurnContext) -> TurnContext:
    """Return the context under which the author's approval of exactly this call passes the workspace's own check.

    For the one tool call only: the turn itself goes on under its own category.
    """
    added: dict[str, set[str]] = {name: set() for name in (*GRANTS, "recurring", "effect")}
    for lack in _lacks(scope, effect, args, context):
        added["channels" if lack.field == "channel" else lack.field].add(lack.value)
    now = context.category
    grants: dict[str, Any] = {name: getattr(now, name) | added[name] for name in GRANTS}
    category = replace(now, recurring=now.recurring or bool(added["recurring"]), **grants)
    return replace(context, category=category, read_only=context.read_only and not added["effect"])


def once_only(scope: str, lacking: Collection[str]) -> str:
    """Return why an author can approve such a call only each time; empty where he can for its task.

    What makes more work, stops the runtime, starts an agent with a grant of its own or acts in a task that only reads
    is more than one call again.
    """
    if scope in _NEVER_STANDING:
        return f"{scope} {_NEVER_STANDING[scope]}"
    kinds = {one.partition(":")[0] for one in lacking}
    return next((why for kind, why in _NEVER_LACKING.items() if kind in kinds), "")


def needs_proposal(scope: str, effect: str, context: TurnContext) -> bool:
    """Return whether a call that is within scope must still halt for the author because the turn is not autonomous.

    It must before the first write (memory aside) of a fire's turn; approving that covers the turn's other writes within
    scope. A turn that an author started never halts for want of autonomy.
    """
    writes = effect not in {"read", "external-read"} and not scope.startswith("memory.")
    return writes and context.started_by == "fire" and not context.category.autonomous


def intersect(grant: Category, now: Category | None) -> Category:
    """Return what both grant: the category as it was accepted and as it is now. None: it is gone, and grants nothing.

    Narrowing acts at once; widening waits for a new grant. The result never holds more than `grant`.
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
    """Return what a category grants and the turn's does not, in a sentence; nothing where it stays within.

    A turn hands on no more than it has: what it sets going runs without it. A turn that an author started is not bound
    to ask, and its author reads what it starts: that may be autonomous, silent, and ask where the turn itself hides.

    >>> turn = TurnContext(turn_id="t", thread_id="t", channel="c", agent="agent0", category=Category(name="x"))
    >>> beyond(Category(name="y", tools=frozenset({"web.fetch"})), turn)
    'category y grants tools web.fetch, which the turn under category x does not have'
    """
    own = turn.category
    # The graphs say something only of tools of authors.
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
        what = "may act without the author" if asked.autonomous and not free else "may start tasks of its own"
        return f"category {asked.name} {what}, which the turn under category {own.name} may not"
    if turn.started_by == "fire" and asked.silent and not own.silent:
        return f"category {asked.name} is silent, and the turn under category {own.name} is not"
    if turn.started_by == "fire" and asked.outside == "ask" and own.outside == "hide":
        return f"category {asked.name} asks the author for what is outside it, and category {own.name} hides that"
    return ""


def narrowed(context: TurnContext, category: Category) -> TurnContext:
    """Return the turn as a subagent runs it: under what both its category and the turn grant.

    Args:
        context: the turn that starts the subagent, as it is at that moment.
        category: the subagent's own; the turn's must name it among its `subagents`.

    Raises:
        Denied: the turn's category does not let it start this subagent.
    """
    if category.name not in context.category.subagents:
        what = f"category {context.category.name} does not let the turn start the subagent {_short(category.name)}"
        raise Denied(what, where=f"subagents:{_short(category.name)}")
    return replace(context, category=intersect(context.category, category))


class Narrowing:
    """The categories of running turns as they are now: editing a category narrows a running turn, and never widens it.

    A category that is gone or cannot be read grants nothing.
    """

    def __init__(self, get_category: GetCategory) -> None:
        self._get = get_category
        self._held: dict[str, Category] = {}
        self._lock = threading.Lock()  # sync tools look from threads of their own

    def begin(self, turn_id: str, grant: Category) -> Category:
        """Return what a turn may do as it begins or goes on: what was left of its grant, and is still granted now."""
        category = intersect(grant, self._now(grant.name))
        with self._lock:
            self._held[turn_id] = category
        return category

    def end(self, turn_id: str) -> Category:
        """Return what is left of a turn's grant, and forget the turn. It must have begun."""
        with self._lock:
            return self._held.pop(turn_id)

    def __call__(self, context: TurnContext) -> TurnContext:
        """Return the turn under its category as it is at this moment; one that does not run now is granted nothing.

        What a tool left running behind it, a task or a thread, still sees its turn when that is over.
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
    """Return why a turn was not granted a tool scope; a grant for an author's tool is for that of certain graphs."""
    category = context.category
    if scope not in category.tools or not known_scope(scope):
        return f"category {category.name} does not grant {scope}"
    if scope.startswith(FOREIGN) and context.graph not in category.graphs:
        where = context.graph or "the default graph"
        return f"category {category.name} grants {scope} of other graphs, and not of {where}"
    return ""


def _lacks(scope: str, effect: str, args: Mapping[str, Any], context: TurnContext) -> Iterator[_Lack]:
    """Yield everything that a call needs and the turn was not granted, the tool scope first."""
    category = context.category
    if reason := _ungranted(scope, context):
        yield _Lack(field="tools", value=scope, reason=reason)
    if scope == LOOPS and context.started_by == "fire" and not category.recurring:
        reason = f"a task started this turn, and category {category.name} lets no turn of a task start tasks"
        yield _Lack(field="recurring", value="true", reason=reason)
    if context.read_only and effect != "read":
        yield _Lack(field="effect", value=_effect(effect), reason="the task was declared read-only")
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
        reason = f"the turn belongs to another thread than {_short(str(other))}"
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


def _effect(effect: str) -> str:
    return effect if effect in EFFECTS else "write"


def _common_hosts(one: frozenset[str], other: frozenset[str]) -> frozenset[str]:
    if ANY_HOST in one:
        return other
    return one if ANY_HOST in other else one & other


def _short(text: str) -> str:
    return text if len(text) <= 80 else f"{text[:79]}…"
