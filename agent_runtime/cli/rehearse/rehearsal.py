"""Rehearsal: the effect of another category on past turns, and the smallest category that suffices. Pure.

`judge`, which the guard uses too, checks each past tool call. To find the needs of a call, `judge` checks it under a
category without grants, so rehearsal and guard never disagree.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Literal

from agent_runtime.model.turn import GRANTS, LIMITS, Category, Effect, TurnContext
from agent_runtime.permissions.judge import REQUEST, approve_once, judge, needs_proposal

Would = Literal["pass", "ask", "propose", "refuse"]
Limit = Literal["tokens", "seconds"]
LONGEST_NAME = 256  # the longest name in a category file
MOST_CALLS, MOST_TOKENS, MOST_SECONDS = 10_000, 1_000_000_000, 86_400
_REQUEST = "permission_request"  # the tool that asks permission for another call


@dataclass(frozen=True, kw_only=True)
class ToolFacts:
    """The facts about a tool that `judge` needs: the scope that a category must grant, and the effect."""

    scope: str
    effect: Effect


@dataclass(frozen=True, kw_only=True)
class PastCall:
    """A tool call as the model made it; `at` is the time when it was recorded."""

    at: datetime
    tool: str
    args: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class PastTurn:
    """A past turn.

    Attributes:
        task_name: the task whose fire began the turn; empty for an author's turn.
        seconds: how long the turn ran; None if it waited for its author or has not finished.
    """

    turn_id: str
    task_name: str
    channel: str
    by_fire: bool
    read_only: bool
    calls: tuple[PastCall, ...]
    tokens: int
    seconds: float | None


@dataclass(frozen=True, kw_only=True)
class Judged:
    """The verdict on a call.

    Attributes:
        call: the call that was judged; a request for permission is replaced by the requested call.
        would: pass, ask for permission, propose to the author, or be refused because of the limit on calls.
        missing: the missing grant; empty if no grant is missing.
        reason: one sentence; empty if the call would run.
        hopeless: True if no category could allow the call.
    """

    turn: PastTurn
    call: PastCall
    scope: str
    would: Would
    missing: str = ""
    reason: str = ""
    hopeless: bool = False


@dataclass(frozen=True, kw_only=True)
class Overrun:
    """A turn that would exceed a limit: the amount used and the amount allowed."""

    turn: PastTurn
    limit: Limit
    seen: int
    allowed: int


@dataclass(frozen=True, kw_only=True)
class Rehearsal:
    """The result of a rehearsal.

    Attributes:
        overruns: turns that would end early.
        least: the category that grants exactly the needs of the calls.
    """

    judged: tuple[Judged, ...]
    overruns: tuple[Overrun, ...]
    least: Category


@dataclass(frozen=True, kw_only=True)
class Offer:
    """A tool as a fire could use it; `would` is pass, propose (its first write asks), ask (each call) or hidden."""

    tool: str
    scope: str
    would: str


def offers(category: Category, tools: Mapping[str, ToolFacts]) -> list[Offer]:
    """Return, for each tool, how far a fire may use it, judged by the tool's scope alone. Granted tools come first.

    A tool of the author's graph is listed if the category grants it.
    """
    own = {scope.partition(":")[2]: ToolFacts(scope=scope, effect="write") for scope in category.tools if ":" in scope}
    turn = PastTurn(
        turn_id="", task_name="", channel="", by_fire=True, read_only=False, calls=(), tokens=0, seconds=None
    )
    context, found = _context(category, turn), []
    for name, facts in (own | {name: facts for name, facts in tools.items() if facts.scope != REQUEST}).items():
        if facts.scope not in category.tools:
            would = "hidden" if category.outside == "hide" else "ask"
        else:
            would = "propose" if needs_proposal(facts.scope, facts.effect, context) else "pass"
        found.append(Offer(tool=name, scope=facts.scope, would=would))
    order = ("pass", "propose", "ask", "hidden")
    return sorted(found, key=lambda one: (order.index(one.would), one.tool))


def rehearse(category: Category, turns: Sequence[PastTurn], tools: Mapping[str, ToolFacts]) -> Rehearsal:
    """Return the effect of a category on past turns.

    Args:
        category: the proposed category; `autonomous` only if the workspace allows it too.
        tools: the tools by name; any other tool belongs to an author: scope `tool:<name>`, effect `write`.
    """
    judged = tuple(one for turn in turns for one in _judge_turn(category, turn, tools))
    return Rehearsal(
        judged=judged,
        overruns=tuple(one for turn in turns for one in _overruns(category, turn)),
        least=_least(category, turns, tools),
    )


def to_toml(category: Category, *, comment: str = "") -> str:
    """Return a category as the text of its file, with a comment above it.

    >>> print(to_toml(Category(name="x", tools=frozenset({"memory.read"}), memory=frozenset({"channel"}))))
    name = "x"
    description = ""
    autonomous = false
    silent = false
    outside = "ask"
    <BLANKLINE>
    [scopes]
    tools = ["memory.read"]
    writes = []
    memory = ["channel"]
    channels = []
    subagents = []
    network = []
    <BLANKLINE>
    [limits]
    seconds = 300
    tool_calls = 50
    tokens = 200_000
    """
    head = [f"# {line}" for line in comment.splitlines()]
    names = ("name", "description", "autonomous", "silent", "outside", *["model"] * bool(category.model))
    own = [f"{key} = {_toml(getattr(category, key))}" for key in names]
    scopes = [f"{key} = [{', '.join(map(_toml, sorted(getattr(category, key))))}]" for key in GRANTS]
    scopes += ["recurring = true"] if category.recurring else []
    limits = [f"{key} = {_toml(getattr(category, key))}" for key in LIMITS]
    return "\n".join([*head, *own, "", "[scopes]", *scopes, "", "[limits]", *limits])


def _judge_turn(category: Category, turn: PastTurn, tools: Mapping[str, ToolFacts]) -> Iterator[Judged]:
    context, proposed = _context(category, turn), False
    for number, made in enumerate(turn.calls, 1):
        call, facts = _meant(made, tools)
        one = Judged(turn=turn, call=call, scope=facts.scope, would="pass")
        verdict = judge(facts.scope, facts.effect, call.args, context)
        if number > category.tool_calls:
            reason = f"the category allows {category.tool_calls} tool calls a turn, and this is call {number}"
            yield replace(one, would="refuse", missing="tool_calls", reason=reason)
        elif not verdict.allowed:
            hopeless = _needs(call, facts, turn) is None
            asks = replace(one, would="ask", missing=verdict.missing_scope, reason=verdict.reason)
            yield replace(asks, hopeless=hopeless)
        elif not proposed and needs_proposal(facts.scope, facts.effect, context):
            proposed = True  # one approval covers the turn's other writes
            yield replace(one, would="propose", missing="autonomous", reason=f"{category.name} is not autonomous")
        else:
            yield one


def _overruns(category: Category, turn: PastTurn) -> Iterator[Overrun]:
    if turn.tokens > category.tokens:
        yield Overrun(turn=turn, limit="tokens", seen=turn.tokens, allowed=category.tokens)
    if turn.seconds is not None and turn.seconds > category.seconds:
        yield Overrun(turn=turn, limit="seconds", seen=_whole(turn.seconds), allowed=category.seconds)


def _least(category: Category, turns: Sequence[PastTurn], tools: Mapping[str, ToolFacts]) -> Category:
    granted = {field: set[str]() for field in GRANTS}
    autonomous = recurring = False
    for turn in turns:
        for call, facts in (_meant(call, tools) for call in turn.calls):
            needs = _needs(call, facts, turn)
            if needs is not None:
                for field in GRANTS:
                    granted[field] |= getattr(needs, field)
                recurring |= needs.recurring
                autonomous |= needs_proposal(facts.scope, facts.effect, _context(needs, turn))
    grants: dict[str, Any] = {field: frozenset(values) for field, values in granted.items()}
    return Category(
        name=category.name,
        description=category.description,
        autonomous=autonomous,
        recurring=recurring,
        silent=category.silent and autonomous,  # otherwise each fire would wait for the author before it writes
        outside=category.outside,
        model=category.model,
        seconds=_most((_whole(turn.seconds or 0) for turn in turns), MOST_SECONDS),
        tool_calls=_most((len(turn.calls) for turn in turns), MOST_CALLS),
        tokens=_most((turn.tokens for turn in turns), MOST_TOKENS),
        **grants,
    )


def _needs(call: PastCall, facts: ToolFacts, turn: PastTurn) -> Category | None:
    """Return the category that grants this call and nothing else; None if no category can grant it."""
    bare = _context(Category(name="least"), turn)
    granted = approve_once(facts.scope, facts.effect, call.args, bare).category
    if not judge(facts.scope, facts.effect, call.args, replace(bare, category=granted)).allowed:
        return None  # the task is read-only, or the call names an unknown resource
    names = [name for field in GRANTS for name in getattr(granted, field)]
    return granted if all(_writable(name) for name in names) else None


def _meant(call: PastCall, tools: Mapping[str, ToolFacts]) -> tuple[PastCall, ToolFacts]:
    args = call.args.get("args")
    if call.tool == _REQUEST and isinstance(args, dict):
        call = replace(call, tool=str(call.args.get("tool", "")), args=args)
    return call, tools.get(call.tool) or ToolFacts(scope=f"tool:{call.tool}", effect="write")


def _context(category: Category, turn: PastTurn) -> TurnContext:
    return TurnContext(
        turn_id=turn.turn_id,
        thread_id="",
        channel=turn.channel,
        agent="",
        category=category,
        read_only=turn.read_only,
        started_by="fire" if turn.by_fire else "author",
    )


def _writable(name: str) -> bool:
    """Return whether a category file can contain a name, because a model may write any text."""
    return 0 < len(name) <= LONGEST_NAME and not any("\ud800" <= character <= "\udfff" for character in name)


def _most(values: Iterator[int], most: int) -> int:
    return min(max([1, *values]), most)


def _whole(seconds: float) -> int:
    return int(-(-seconds // 1))


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return f"{value:_}"
    return f'"{"".join(map(_escaped, str(value)))}"'


def _escaped(character: str) -> str:
    """Return a character for a TOML string, escaped if a terminal would interpret or hide it."""
    if character in {'"', "\\"}:
        return f"\\{character}"
    return character if character.isprintable() else f"\\U{ord(character):08x}"
