"""What past turns would have met under another category, and the least category that would have been enough. Pure.

Each tool call of the past goes through the same `judge` that the guard asks. What a call needs is found by judging it
under a category that grants nothing, so that the two can never disagree.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Literal

from agent_runtime.model.turn import GRANTS, LIMITS, Category, Effect, TurnContext
from agent_runtime.permissions.judge import approve_once, judge, needs_proposal

Would = Literal["pass", "ask", "propose", "refuse"]
Limit = Literal["tokens", "seconds"]
LONGEST_NAME = 256  # that a category file may hold
MOST_CALLS, MOST_TOKENS, MOST_SECONDS = 10_000, 1_000_000_000, 86_400
_REQUEST = "permission_request"  # the tool whose call is the one that it names


@dataclass(frozen=True, kw_only=True)
class ToolFacts:
    """What judging a tool takes: the scope that a category must grant, and its effect."""

    scope: str
    effect: Effect


@dataclass(frozen=True, kw_only=True)
class PastCall:
    """A tool call as the model made it; `at` is when it was recorded."""

    at: datetime
    tool: str
    args: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class PastTurn:
    """A turn that was.

    Attributes:
        task_name: the task whose fire it was; empty for an author's.
        seconds: how long it ran; None where it waited for its author meanwhile, or is not over.
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
    """A call, and what it would meet.

    Attributes:
        call: the call, as it would be judged: a request for permission is the call that it asks for.
        would: run, ask the author for permission, put a proposal to the author, or be refused as one call too many.
        missing: what would have to be granted; empty where nothing is missing.
        reason: one sentence; empty for one that would run.
        hopeless: no category would let it pass.
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
    """A turn that would end at a limit: what it used, and what the category allows."""

    turn: PastTurn
    limit: Limit
    seen: int
    allowed: int


@dataclass(frozen=True, kw_only=True)
class Rehearsal:
    """What turns would have met.

    Attributes:
        overruns: turns that would end early.
        least: the category that grants what the calls needed, and nothing that none of them needed.
    """

    judged: tuple[Judged, ...]
    overruns: tuple[Overrun, ...]
    least: Category


def rehearse(category: Category, turns: Sequence[PastTurn], tools: Mapping[str, ToolFacts]) -> Rehearsal:
    """Return what past turns would meet under a category.

    Args:
        category: the proposed one; `autonomous` only where the workspace allows it too.
        turns: the past.
        tools: by name; one that is not in it is a foreign graph's: its scope is `tool:<name>`, its effect `write`.
    """
    judged = tuple(one for turn in turns for one in _judge_turn(category, turn, tools))
    return Rehearsal(
        judged=judged,
        overruns=tuple(one for turn in turns for one in _overruns(category, turn)),
        least=_least(category, turns, tools),
    )


def to_toml(category: Category, *, comment: str = "") -> str:
    """Return a category as the text of its file; a comment stands above it.

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
    names = ("name", "description", "autonomous", "silent", "outside")
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
            reason = f"the category allows {category.tool_calls} tool calls a turn, and this is number {number}"
            yield replace(one, would="refuse", missing="tool_calls", reason=reason)
        elif not verdict.allowed:
            hopeless = _needs(call, facts, turn) is None
            asks = replace(one, would="ask", missing=verdict.missing_scope, reason=verdict.reason)
            yield replace(asks, hopeless=hopeless)
        elif not proposed and needs_proposal(facts.scope, facts.effect, context):
            proposed = True  # approving it covers the turn's other writes
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
        silent=category.silent and autonomous,  # else each fire would halt for the author before it writes
        outside=category.outside,
        seconds=_most((_whole(turn.seconds or 0) for turn in turns), MOST_SECONDS),
        tool_calls=_most((len(turn.calls) for turn in turns), MOST_CALLS),
        tokens=_most((turn.tokens for turn in turns), MOST_TOKENS),
        **grants,
    )


def _needs(call: PastCall, facts: ToolFacts, turn: PastTurn) -> Category | None:
    """Return the category that grants this call and nothing else; None where none can."""
    bare = _context(Category(name="least"), turn)
    granted = approve_once(facts.scope, facts.effect, call.args, bare).category
    if not judge(facts.scope, facts.effect, call.args, replace(bare, category=granted)).allowed:
        return None  # the task is read-only, or the call names what does not exist
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
    """Return whether a category file can hold a name; a model may have written anything."""
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
    """Return a character of a TOML string; one that a terminal would obey, or not show, by its number."""
    if character in {'"', "\\"}:
        return f"\\{character}"
    return character if character.isprintable() else f"\\U{ord(character):08x}"
