"""The values of a turn: its category (permissions), its context (facts for tools), its messages, and its records.

The values are frozen; this module has no I/O and no LangGraph. Queries of `agent.db` return the records; the
conversation and the wire's messages are made from them.
"""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import datetime
from types import MappingProxyType
from typing import Any, Literal, Self, get_origin

Outside = Literal["ask", "hide"]
GRANTS = ("tools", "writes", "memory", "channels", "subagents", "network")  # the lists of a category that are sets
LIMITS = ("seconds", "tool_calls", "tokens")
Effect = Literal["read", "external-read", "write"]
LONGEST_SUMMARY = 200  # length limit of a turn's stored last words, in characters
VALUES = "turnkeeper:values"  # instead of the call: fields that a graph returned besides its answer
READ, WRITTEN = "tokens_in", "tokens_out"
MODEL = "turnkeeper_model"  # key in the metadata of our own agent's answers for the model's name in the settings
Used = Counter[tuple[str, str]]  # tokens by model and READ or WRITTEN; the name of an unknown model is empty


def used_by(model: str, tokens_in: int, tokens_out: int) -> Used:
    """Return the tokens that one model read and wrote."""
    return Counter({(model, READ): tokens_in, (model, WRITTEN): tokens_out})


def totals(used: Used) -> tuple[int, int]:
    """Return the tokens that all models read and wrote.

    >>> totals(used_by("openai:gpt-5", 5, 2) + used_by("", 1, 1))
    (6, 3)
    """
    return sum(used[one] for one in used if one[1] == READ), sum(used[one] for one in used if one[1] == WRITTEN)


def by_model(used: Used) -> dict[str, dict[str, int]]:
    """Return the tokens of each model. Reversed by :func:`used_from`."""
    models = sorted({model for model, _ in +used})
    return {model: {READ: used[model, READ], WRITTEN: used[model, WRITTEN]} for model in models}


def columns(used: Used) -> dict[str, Any]:
    """Return the columns of a turn's row that contain its tokens."""
    read, written = totals(used)
    return {READ: read, WRITTEN: written, "models_json": json.dumps(by_model(used), sort_keys=True)}


def used_from(models: Mapping[str, Mapping[str, int]], tokens_in: int, tokens_out: int) -> Used:
    """Return a turn's tokens. Those that no model has are an unknown model's: an earlier version recorded only sums."""
    if not (models or tokens_in or tokens_out):
        return Counter()  # most turns' rows when they begin; sums of counters are slow
    named = Counter({(model, key): int(count) for model, one in models.items() for key, count in one.items()})
    read, written = totals(named)
    return named + used_by("", tokens_in - read, tokens_out - written)


@dataclass(frozen=True, kw_only=True)
class Category:
    """The permissions of a turn. It is pinned in the turn's row and in its checkpoints, so that no resume widens it.

    Attributes:
        description: one sentence for the author.
        autonomous: True if a turn may finish without an author, provided that the workspace's settings allow this.
        silent: True if the conversation leaves out a turn without text.
        outside: other tools are offered and ask the author (`ask`), or are not offered (`hide`).
        tools: scopes of the tools that the turn may call.
        writes: kinds of agent writes: candidate-page, candidate-summary, deviation, derivation.
        memory: memory tiers: conversation, channel, workspace, account.
        channels: channels besides the turn's own.
        network: hosts for fetching; `*` is any public host.
        recurring: True if a turn that a task started may itself create tasks.
        graphs: the graphs whose own tools `tools` grants; the empty name is the default graph.
        model: the model of a turn whose task and assistant name none; empty, and not in `to_dict`, for the home's.
    """

    name: str
    description: str = ""
    autonomous: bool = False
    silent: bool = False
    outside: Outside = "ask"
    tools: frozenset[str] = frozenset()
    writes: frozenset[str] = frozenset()
    memory: frozenset[str] = frozenset()
    channels: frozenset[str] = frozenset()
    subagents: frozenset[str] = frozenset()
    network: frozenset[str] = frozenset()
    recurring: bool = False
    seconds: int = 300
    tool_calls: int = 50
    tokens: int = 200_000
    graphs: frozenset[str] = frozenset({""})
    model: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the category as a JSON object with sorted arrays, so that equal categories give equal objects."""
        values = {item.name: getattr(self, item.name) for item in fields(self) if item.name != "model" or self.model}
        return {name: sorted(value) if isinstance(value, frozenset) else value for name, value in values.items()}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Return the category from its `to_dict`. Raises TypeError for an unknown or missing field.

        >>> one = Category(name="x", tools=frozenset({"b", "a"}))
        >>> Category.from_dict(one.to_dict()) == one
        True
        """
        sets = {item.name for item in fields(cls) if get_origin(item.type) is frozenset}
        values: dict[str, Any] = {name: frozenset(value) if name in sets else value for name, value in data.items()}
        return cls(**values)


@dataclass(frozen=True, kw_only=True)
class TurnContext:
    """The facts about a running turn for its tools and the guard. It is LangGraph's runtime context.

    Attributes:
        category: the accepted grant, limited to the current category.
        read_only: True if no tool with effect `write` may run without the author.
        fire_id: the fire that started the turn; empty for a turn that an author started.
        task_name: the task of that fire; empty without a fire.
        started_by: a fire or an author; for a message between agents, the origin of the exchange.
        by_agent: True if the turn answers another agent's message, which the prompt shows.
        stands_for: the number of nominal instants of the fire, including its own.
        asked: keys (:func:`agent_runtime.model.approval.call_key`) of the tool calls that the author was asked about
            before this interval. The author decides these calls, even if they are granted now.
        writes_approved: True if the author approved a proposal of this turn, and thus its other writes within scope.
        handoff: the messages of the previous session, each in its wrapper; empty for most turns.
        paced: True for an iteration of a self-paced loop.
        asks: True if a call beyond the category asks the author; False in a read-only loop, which refuses the call.
        unanswered: True if an approval of this turn expired; the turn then asks no more questions.
        graph: the graph's name as categories use it; empty for the default graph.
        context_json, config_json, run_json: JSON objects for the graph, or empty.
    """

    turn_id: str
    thread_id: str
    channel: str
    agent: str
    category: Category
    read_only: bool = False
    fire_id: str = ""
    task_name: str = ""
    prompt: str = ""
    started_by: Literal["fire", "author"] = "fire"
    by_agent: bool = False
    nominal_at: datetime | None = None
    stands_for: int = 1
    asked: frozenset[str] = frozenset()
    writes_approved: bool = False
    handoff: str = ""
    paced: bool = False
    asks: bool = True
    unanswered: bool = False
    graph: str = ""
    context_json: str = ""
    config_json: str = ""
    run_json: str = ""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The verdict on one tool call: allowed, or the missing scope and the reason.

    Attributes:
        missing_scope: the first missing grant; empty if the call is allowed.
        reason: one sentence for the author; empty if the call is allowed.
        lacking: all missing grants, in the form of `missing_scope`.
    """

    allowed: bool
    missing_scope: str = ""
    reason: str = ""
    lacking: tuple[str, ...] = ()


ALLOWED = Verdict(allowed=True)


@dataclass(frozen=True, kw_only=True)
class ToolUse:
    """A tool call, as the conversation shows it."""

    id: str
    name: str
    args: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Said:
    """One message of a turn.

    Attributes:
        tool_call_id: the call that a tool's message answers, or `VALUES`.
    """

    role: Literal["author", "agent", "tool", "trigger"]
    text: str
    tool_calls: tuple[ToolUse, ...] = ()
    tool_call_id: str = ""


@dataclass(frozen=True, kw_only=True)
class Assignment:
    """The fields of a turn that are known before it begins, which its trigger and its record share.

    Attributes:
        turn_id: derived from the trigger's key.
        grant: the category at acceptance.
        payload_json: a JSON object for the graph, or empty.
        fire_id: the runner's id of the fire; empty for a message.
        attempt: the number of the attempt at that fire, from 1; 0 for a message.
        kind: the cause of the fire, in the runner's terms.
        read_only: True if no tool with an effect may run without the author.
        nominal_at: the nominal instant of the fire.
        timezone: for showing the nominal time.
        stands_for: the number of nominal instants of the fire, including its own.
        traceparent: W3C trace context; not part of the fire's identity.
        approval_reminder_s, approval_escalation_s, approval_timeout_s: seconds until an unanswered approval causes a
            reminder and an alert, and expires; 0 for never.
        graph: the name of a graph or an assistant; empty for the thread's graph, or the default one.
        context_json, config_json, input_json: JSON objects for that graph, or empty.
        run_json: the options of a client's run as a JSON object; then `input_json` is the graph's whole input, and the
            prompt only shows it. Empty for any other turn.
        via: the surface through which an author's message came; not part of its identity.
    """

    turn_id: str
    thread_id: str
    channel: str
    agent: str
    grant: Category
    prompt: str
    payload_json: str = ""
    fire_id: str = ""
    attempt: int = 0
    task_id: str = ""
    task_name: str = ""
    kind: str = ""
    read_only: bool = False
    nominal_at: datetime | None = None
    due_at: datetime | None = None
    fired_at: datetime | None = None
    timezone: str = ""
    catch_up: str = ""
    stands_for: int = 1
    first_nominal_at: datetime | None = None
    last_nominal_at: datetime | None = None
    traceparent: str = ""
    approval_reminder_s: int = 0
    approval_escalation_s: int = 0
    approval_timeout_s: int = 0
    graph: str = ""
    context_json: str = ""
    config_json: str = ""
    input_json: str = ""
    run_json: str = ""
    via: str = ""


@dataclass(frozen=True, kw_only=True)
class TurnRecord(Assignment):
    """A turn: one row of the table. The attributes are named after the columns."""

    number: int
    category: str
    trigger: str
    status: str
    visible: bool
    started_at: datetime
    ended_at: datetime | None
    summary: str
    error: str
    answers: Mapping[str, Any]
    resumes: str
    after_message: str
    paused_until: datetime | None
    tries: int
    tokens_in: int
    tokens_out: int
    wake_after_s: int | None
    models_json: str = ""  # the tokens of each model, as :func:`by_model` returns them; empty if none are known
    grant_json: str = ""  # as stored, because an earlier version may have spelled the same grant differently

    @property
    def used(self) -> Used:
        """The tokens of each model."""
        return used_from(json.loads(self.models_json or "{}"), self.tokens_in, self.tokens_out)


@dataclass(frozen=True, kw_only=True)
class MessageRecord:
    """One message of a conversation; `position` orders the messages of a turn."""

    turn_id: str
    position: int
    said: Said
    at: datetime


@dataclass(frozen=True, kw_only=True)
class InterruptRecord:
    """A question to an author and its decision. Attributes are columns; task, category and graph are its turn's."""

    interrupt_id: str
    turn_id: str
    thread_id: str
    channel: str
    kind: str
    tool: str
    args_json: str
    args_hash: str
    call_id: str
    missing_scope: str
    question: str
    allows_text: bool
    status: str
    decision: str
    message: str
    edited_json: str
    applied: bool
    created_at: datetime
    resolved_at: datetime | None
    task_name: str
    category: str
    tool_hash: str = ""
    arg_hashes_json: str = ""
    once_only: str = ""
    graph: str = ""
    exception: int = 0
    decided_by: str = ""
    remind_at: datetime | None = None
    reminded_at: datetime | None = None
    escalate_at: datetime | None = None
    escalated_at: datetime | None = None
    expires_at: datetime | None = None

    @property
    def waited_s(self) -> float:
        """Seconds until the question was decided or expired; 0 while it is pending."""
        return ((self.resolved_at or self.expires_at or self.created_at) - self.created_at).total_seconds()


@dataclass(frozen=True, kw_only=True)
class EventRecord:
    """One turn event. The attributes are named after the columns."""

    sequence: int
    turn_id: str
    fire_id: str
    attempt: int
    thread_id: str
    trigger: str
    state: str
    at: datetime
    summary: str
    error: str
    held_by: tuple[str, ...]
    models_json: str
    tokens_in: int
    tokens_out: int
    wake_after_s: int | None


@dataclass(frozen=True, kw_only=True)
class DetailedEvent(EventRecord):
    """A turn event with facts of its turn. Without a turn, the channel is its thread's and other facts are empty."""

    channel: str
    task_id: str
    task_name: str
    category: str
    via: str


@dataclass(frozen=True, kw_only=True)
class KeyRecord:
    """The state of a used key. The attributes are named after the columns."""

    key: str
    digest: str
    turn_id: str
    thread_id: str
    fire_id: str
    attempt: int
    became: str
    into: str
    at: datetime


@dataclass(frozen=True, kw_only=True)
class ChannelRecord:
    """A channel: its visible turns, and its pending decisions."""

    name: str
    turns: int
    waiting: int
    last_at: datetime


# The subagents that a turn may start: the purpose and maximum permissions of each. The turn narrows them further.
_READS = frozenset({"web.fetch", "attachment.read", "workspace.read", "workspace.search"})

SUBAGENTS: Mapping[str, Category] = MappingProxyType(
    {
        "researcher": Category(
            name="researcher",
            description="Finds and reads what its brief asks for, and reports what the sources say, each by its name.",
            autonomous=True,
            tools=_READS | {"memory.read", "memory.search"},
            memory=frozenset({"channel", "workspace"}),
            network=frozenset({"*"}),
            seconds=180,
            tool_calls=20,
            tokens=100_000,
        ),
        "reviewer": Category(
            name="reviewer",
            description="Checks each claim in text against the sources that its brief names; says what is borne out.",
            autonomous=True,
            tools=_READS,
            network=frozenset({"*"}),
            seconds=180,
            tool_calls=20,
            tokens=100_000,
        ),
    }
)
