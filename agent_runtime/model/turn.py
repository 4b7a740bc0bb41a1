"""A turn's values: what it may do (category), what its tools know (context), what it says, and its rows as records.

Frozen; no I/O and no LangGraph. The records are what queries of `agent.db` return; the conversation and the messages on
the wire are made from them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import datetime
from types import MappingProxyType
from typing import Any, Literal, Self, get_origin

Outside = Literal["ask", "hide"]
GRANTS = ("tools", "writes", "memory", "channels", "subagents", "network")  # a category's sets
LIMITS = ("seconds", "tool_calls", "tokens")
Effect = Literal["read", "external-read", "write"]
LONGEST_SUMMARY = 200  # characters that a turn keeps of its last words


@dataclass(frozen=True, kw_only=True)
class Category:
    """What a turn may do. Pinned in the turn's row and in its checkpoints, so that no resume widens it.

    Attributes:
        description: one sentence for the author.
        autonomous: may finish without an author in the loop; already intersected with what the workspace allows.
        silent: a turn that says nothing leaves no trace in the conversation.
        outside: tools out of scope are offered and ask the author (`ask`), or are not offered (`hide`).
        tools: scopes of the tools it may call.
        writes: kinds of agent writes: candidate-page, candidate-summary, deviation, derivation.
        memory: memory tiers: conversation, channel, workspace, account.
        channels: channels besides the turn's own.
        network: hosts for fetching; `*` is any public host.
        recurring: a turn that a task started may start tasks of its own.
        graphs: the graphs of whose tools `tools` speaks, where they are no tools of ours; the empty name is the default
            graph's.
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

    def to_dict(self) -> dict[str, Any]:
        """Return the category as a JSON object, sets as sorted arrays, equal for equal categories."""
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        return {name: sorted(value) if isinstance(value, frozenset) else value for name, value in values.items()}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Return the category that `to_dict` gave. Raises TypeError for an unknown or missing field.

        >>> one = Category(name="x", tools=frozenset({"b", "a"}))
        >>> Category.from_dict(one.to_dict()) == one
        True
        """
        sets = {item.name for item in fields(cls) if get_origin(item.type) is frozenset}
        values: dict[str, Any] = {name: frozenset(value) if name in sets else value for name, value in data.items()}
        return cls(**values)


@dataclass(frozen=True, kw_only=True)
class TurnContext:
    """What a running turn's tools and guard know about it. LangGraph's runtime context.

    Attributes:
        category: the grant as accepted, intersected with the category as it is now.
        read_only: no tool whose effect is `write` may run without the author.
        fire_id: the fire that started it; empty for a turn that an author started.
        task_name: the task of that fire; empty likewise.
        started_by: a fire or an author; for a message between agents, what began the exchange.
        by_agent: it is about a message of another agent, which the prompt shows.
        nominal_at: the instant the fire stands for.
        stands_for: how many nominal instants the fire stands for, itself included.
        asked: keys (:func:`agent_runtime.model.approval.call_key`) of the tool calls that were put to the author before
            this interval: he decides them, whatever is granted by now.
        writes_approved: the author approved a proposal of this turn, and with it the turn's other writes within scope.
        handoff: what the session before left to this turn, each piece in its wrapper; empty for most turns.
        paced: it is an iteration of a self-paced loop.
        asks: a call past what it may do is put to the author; not so in a loop that only reads: it is refused.
        unanswered: an approval of this turn ended because nobody answered it: the turn asks nothing more.
        graph: the name of its graph, as categories know it; empty for the default one.
        context_json, config_json: JSON objects that the graph is given, or empty.
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


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The answer to one tool call: allowed, or which scope is missing and why.

    Attributes:
        missing_scope: what would have to be granted first; empty when allowed.
        reason: one sentence for the author; empty when allowed.
        lacking: everything that would have to be granted, each named as `missing_scope` is.
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
        role: author, agent, tool or trigger.
        tool_calls: the calls that an agent's message makes.
        tool_call_id: the call that a tool's message answers.
    """

    role: Literal["author", "agent", "tool", "trigger"]
    text: str
    tool_calls: tuple[ToolUse, ...] = ()
    tool_call_id: str = ""


@dataclass(frozen=True, kw_only=True)
class TurnRecord:
    """A turn: one row of the table. Names are those of the columns."""

    number: int
    turn_id: str
    thread_id: str
    channel: str
    agent: str
    category: str
    grant: Category
    trigger: str
    status: str
    visible: bool
    fire_id: str
    attempt: int
    task_id: str
    task_name: str
    kind: str
    prompt: str
    payload_json: str
    read_only: bool
    nominal_at: datetime | None
    due_at: datetime | None
    fired_at: datetime | None
    timezone: str
    catch_up: str
    stands_for: int
    first_nominal_at: datetime | None
    last_nominal_at: datetime | None
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
    grant_json: str = ""  # as it is stored: an earlier version may have written the same grant otherwise
    approval_reminder_s: int = 0
    approval_escalation_s: int = 0
    approval_timeout_s: int = 0
    graph: str = ""
    context_json: str = ""
    config_json: str = ""
    input_json: str = ""
    traceparent: str = ""
    via: str = ""


@dataclass(frozen=True, kw_only=True)
class MessageRecord:
    """One message of a conversation; `position` orders those of a turn."""

    turn_id: str
    position: int
    said: Said
    at: datetime


@dataclass(frozen=True, kw_only=True)
class InterruptRecord:
    """What an author was asked, and decided. Names are those of the columns; `task_name` and `category` its turn's."""

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
    exception: int = 0
    decided_by: str = ""
    remind_at: datetime | None = None
    reminded_at: datetime | None = None
    escalate_at: datetime | None = None
    escalated_at: datetime | None = None
    expires_at: datetime | None = None

    @property
    def waited_s(self) -> float:
        """How long it waited until it was decided or ended; 0 while it waits."""
        return ((self.resolved_at or self.expires_at or self.created_at) - self.created_at).total_seconds()


@dataclass(frozen=True, kw_only=True)
class EventRecord:
    """One turn event, numbered in commit order. Names are those of the columns."""

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
    tokens_in: int
    tokens_out: int
    wake_after_s: int | None


@dataclass(frozen=True, kw_only=True)
class DetailedEvent(EventRecord):
    """A turn event with what its turn says. Of what has no turn, the channel is its thread's; the rest is empty."""

    channel: str
    task_id: str
    task_name: str
    category: str
    via: str


@dataclass(frozen=True, kw_only=True)
class KeyRecord:
    """What a taken key became. Names are those of the columns."""

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
class PastTurn:
    """A turn that ran before its thread was imported.

    Attributes:
        prompt: what a person wrote.
        mark: the id of that message.
        lines: what agents and tools said to it.
    """

    prompt: str
    mark: str
    lines: tuple[Said, ...]


@dataclass(frozen=True, kw_only=True)
class PastThread:
    """A thread of a LangGraph user's own, as a file has it.

    Attributes:
        digest: of all its rows.
        checkpoints: how many there are.
        waits: its graph asked something that nobody has answered.
        turns: its conversation, oldest first.
    """

    thread_id: str
    digest: str
    checkpoints: int
    waits: bool
    turns: tuple[PastTurn, ...]

    @property
    def key(self) -> str:
        """The key that an import of it takes, for ever."""
        return f"import:{self.thread_id}"


@dataclass(frozen=True, kw_only=True)
class ChannelRecord:
    """A channel: its turns that are shown, and the decisions that wait for the author."""

    name: str
    turns: int
    waiting: int
    last_at: datetime


# The subagents that a turn may start: what each is for, and the most that it may do. Its turn narrows it further.
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
            description="Checks each claim of a text against the sources that its brief names; says what is borne out.",
            autonomous=True,
            tools=_READS,
            network=frozenset({"*"}),
            seconds=180,
            tool_calls=20,
            tokens=100_000,
        ),
    }
)
