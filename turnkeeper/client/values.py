"""What the daemons answer, as values: frozen, with instants as `datetime`s and JSON read. Pure.

A value is read from a message of the wire by the names of its fields (:func:`read`); what is named otherwise on the
wire stands in `_ON_WIRE`.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from functools import cache
from typing import Any, TypeVar, get_args

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message as WireMessage
from google.protobuf.timestamp_pb2 import Timestamp

from turnkeeper.client.specs import fields_of

T = TypeVar("T")
OVER = frozenset({"succeeded", "silent", "failed", "cancelled"})
WAITING = frozenset({"interrupted", "paused", "kept", "held"})


@dataclass(frozen=True, kw_only=True)
class Task:
    """A task as it stands.

    Attributes:
        fields: what was declared of it, every default filled in: see :class:`turnkeeper.client.TaskFields`.
        kind: cron, every, at, rrule, dynamic, on or hybrid.
        state: active, running, waiting, interrupted, held, paused, disabled, done, expired or quarantined.
        schedule: for people.
        next_fire_at: the next scheduled time; None where none is known.
        reason: why it is quarantined or done.
        waits_for: what its open fire waits for; empty for nothing.
        revision: counts its edits, from 1.
        updated_at: since when that revision is in force.
        edited_by: by what it came, PROGRAM/SURFACE/KEY.
    """

    id: str
    name: str = ""
    fields: Mapping[str, Any] = field(default_factory=dict)
    kind: str
    state: str
    schedule: str
    next_fire_at: datetime | None
    due_at: datetime | None
    last_fire_at: datetime | None
    last_outcome: str
    fires: int
    missed: int
    paused_note: str
    paused_until: datetime | None
    reason: str
    waits_for: str
    revision: int
    created_at: datetime | None
    updated_at: datetime | None
    edited_by: str


@dataclass(frozen=True, kw_only=True)
class Fire:
    """An entry of the ledger.

    Attributes:
        outcome, reason: how it ended, or stands, and why.
        count: for how many scheduled times it stands.
        late_s: how late it was sent.
        cause: what kept it from being sent in time.
    """

    fire_id: str
    task_id: str
    task_name: str
    kind: str
    nominal_at: datetime | None
    due_at: datetime | None
    fired_at: datetime | None
    started_at: datetime | None
    ended_at: datetime | None
    outcome: str
    reason: str
    count: int
    late_s: float
    attempt: int
    turn_id: str
    cause: str


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """Why something ran or did not, at a time: a word, sentences, and the ledger's entry if there is one."""

    at: datetime | None
    verdict: str
    lines: tuple[str, ...]
    fire: Fire | None


@dataclass(frozen=True, kw_only=True)
class Sent:
    """Where a message went.

    Attributes:
        duplicate: it was taken before, under the same request id.
        continues: the thread had turns before.
        takes_over: the self-paced task that ends by it.
    """

    turn_id: str
    thread_id: str
    duplicate: bool
    continues: bool
    takes_over: str


@dataclass(frozen=True, kw_only=True)
class ToolCall:
    """A call that an agent's message makes."""

    id: str
    name: str
    args: Any


@dataclass(frozen=True, kw_only=True)
class Message:
    """A message of a turn: of an author, an agent, a tool or a trigger."""

    role: str
    text: str
    at: datetime | None
    tool_calls: tuple[ToolCall, ...]
    tool_call_id: str


@dataclass(frozen=True, kw_only=True)
class Approval:
    """What a turn asks its author.

    Attributes:
        kind: permission, proposal or question.
        tool, args: the call that it is about; of a graph's own question, `args["value"]` is what it gave `interrupt`.
        args_hash: of those arguments; a decision holds for them alone.
        status: pending, resolved or void.
        decision, message, decided_by: what was decided, with which words, and by what it came.
        expires_at: when it ends unanswered.
    """

    interrupt_id: str
    turn_id: str
    thread_id: str
    channel: str
    kind: str
    tool: str
    args: Any
    args_hash: str
    missing_scope: str
    question: str
    allows_text: bool
    task_name: str
    category: str
    status: str
    decision: str
    message: str
    decided_by: str
    created_at: datetime | None
    resolved_at: datetime | None
    expires_at: datetime | None


@dataclass(frozen=True, kw_only=True)
class Trigger:
    """The fire that set a turn off: its task, for when, and for how many scheduled times it stands."""

    kind: str
    task: str
    fire_id: str
    nominal_at: datetime | None
    fired_at: datetime | None
    stands_for: int


@dataclass(frozen=True, kw_only=True)
class Turn:
    """A turn: what was said in it, and what it asks.

    Attributes:
        status: running, interrupted, paused, succeeded, silent, failed or cancelled; of a message whose turn has not
            begun: accepted, or kept while its thread waits for the author.
        trigger: the fire that set it off; None for an author's message, and for later turns of the same fire.
        error: why it failed.
        via: of an author's turn, by what it was asked for.
    """

    turn_id: str
    thread_id: str
    status: str
    trigger: Trigger | None = None
    started_at: datetime | None
    ended_at: datetime | None
    messages: tuple[Message, ...] = ()
    approvals: tuple[Approval, ...] = ()
    error: str
    category: str
    agent: str
    graph: str
    via: str
    tokens_in: int
    tokens_out: int

    @property
    def is_over(self) -> bool:
        """Whether it ended, however it did."""
        return self.status in OVER

    @property
    def waits(self) -> bool:
        """Whether it goes on only when its author decides, or its task fires again."""
        return self.status in WAITING

    @property
    def is_decided(self) -> bool:
        """Whether it stands still, and goes on in a moment: its author has decided all that it asked."""
        asked = {one.status for one in self.approvals}
        return self.status == "interrupted" and bool(asked) and "pending" not in asked

    @property
    def text(self) -> str:
        """What the agent said last; empty for nothing."""
        said = (one.text for one in reversed(self.messages) if one.role == "agent" and one.text.strip())
        return next(said, "")

    @property
    def state(self) -> dict[str, Any] | None:
        """What a graph without messages left as its state; None where the agent said something else."""
        if not self.text.lstrip().startswith("{"):
            return None
        try:
            found = json.loads(self.text)
        except ValueError:
            return None
        return found if isinstance(found, dict) else None


@dataclass(frozen=True, kw_only=True)
class Result:
    """What a turn came to: its last words, or the state that its graph returned, and the turn itself."""

    text: str
    state: dict[str, Any] | None
    turn: Turn


@dataclass(frozen=True, kw_only=True)
class RunningCall:
    """A tool call of the step that a turn takes: running, done or failed."""

    id: str
    name: str
    args: Any
    state: str


@dataclass(frozen=True, kw_only=True)
class Speech:
    """A piece of what a running turn says; it is on no disk yet, and may come to nothing.

    Attributes:
        message: names the message; another name says that it began anew.
        offset: characters of the message before this piece.
    """

    turn_id: str = ""
    thread_id: str = ""
    message: str
    offset: int
    text: str
    calls: tuple[RunningCall, ...]


@dataclass(frozen=True, kw_only=True)
class TurnEvent:
    """What happened to a turn, or to a fire without one, numbered in order.

    Attributes:
        state: started, resumed, interrupted, paused, held, released, succeeded, silent, delivered, failed, cancelled;
            proposed, contradicted, reviewed for candidates and deviations, whose ids are in `about`.
    """

    sequence: int
    state: str
    turn_id: str
    fire_id: str
    thread_id: str
    channel: str
    task_id: str
    task_name: str
    category: str
    via: str
    at: datetime | None
    summary: str
    error: str
    held_by: tuple[str, ...]
    about: tuple[str, ...]
    attempt: int


_ON_WIRE = {"approvals": "interrupts"}
_Read = Callable[[WireMessage], Any]


def read(kind: type[T], message: WireMessage, **given: Any) -> T:
    """Return a message as a value: each of its fields from the message's of that name, but for those given."""
    kinds: Any = (kind, type(message))
    plan = _plan(*kinds)
    return kind(**{name: get(message) for name, get in plan.items() if name not in given}, **given)


def task_of(message: Any) -> Task:
    """Return a task as the runner shows it."""
    return read(Task, message, name=message.spec.name, fields=fields_of(message.spec))


def turn_of(message: Any) -> Turn:
    """Return a turn: of a conversation whole, of a list without what was said."""
    return read(Turn, message, **({"trigger": None} if isinstance(message.trigger, str) else {}))


@cache
def _plan(kind: Any, message: Any) -> Mapping[str, _Read]:
    """Return how each field of a value is read; what a message does not have keeps its default."""
    known, plan = message.DESCRIPTOR.fields_by_name, dict[str, _Read]()
    for one in fields(kind):
        names = (_ON_WIRE.get(one.name, one.name), f"{one.name}_json")
        if found := next((known[name] for name in names if name in known), None):
            plan[one.name] = _reader(found, one.type)
    return plan


def _reader(of: FieldDescriptor, hint: Any) -> _Read:
    name, inner = of.name, next((one for one in get_args(hint) if one not in {type(None), ...}), hint)
    if of.is_repeated:
        return lambda message: tuple(_one(of, inner, item) for item in getattr(message, name))
    if of.message_type is not None:
        return lambda message: _one(of, inner, getattr(message, name)) if message.HasField(name) else None
    return lambda message: _one(of, inner, getattr(message, name))


def _one(of: FieldDescriptor, kind: Any, value: Any) -> Any:
    if isinstance(value, Timestamp):
        return value.ToDatetime(tzinfo=UTC)
    if of.message_type is not None:
        return read(kind, value)
    if of.enum_type is not None:
        known = of.enum_type.values_by_number.get(value)
        return known.name.lower() if known is not None else str(value)
    if of.name.endswith("_json"):
        return json.loads(value) if value else {}
    return value
