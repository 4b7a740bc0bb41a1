"""Values of the daemons' answers: frozen dataclasses, with instants as `datetime`s and JSON parsed. Pure.

:func:`read` converts a wire message to a value by the names of its fields. `_ON_WIRE` lists fields with other names.
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
    """A task and its current state.

    Attributes:
        fields: the declaration, with all defaults filled in: see :class:`turnkeeper.client.TaskFields`.
        kind: cron, every, at, rrule, dynamic, on or hybrid.
        state: active, running, waiting, interrupted, held, paused, disabled, done, expired or quarantined.
        schedule: the schedule in the form for people.
        next_fire_at: the next scheduled time; None if none is known.
        reason: why the task is quarantined or done.
        waits_for: why its open fire waits; empty if it does not wait.
        revision: the number of its versions, counted from 1.
        updated_at: the time when the current revision took effect.
        edited_by: the origin of the last edit, PROGRAM/SURFACE/KEY.
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
        outcome, reason: the fire's outcome or current state, and why.
        count: the number of scheduled times that the fire covers.
        late_s: how many seconds late the fire was.
        cause: why the fire was not sent in time.
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
    """The reason why a task did or did not run at a time: a word, sentences, and the ledger entry if there is one."""

    at: datetime | None
    verdict: str
    lines: tuple[str, ...]
    fire: Fire | None


@dataclass(frozen=True, kw_only=True)
class Sent:
    """The result of sending a message.

    Attributes:
        duplicate: a message with the same request id was accepted before.
        continues: True if the thread already had turns.
        takes_over: the self-paced task that this message ends.
        answers: the text of the question that this message answers; None if it answers none.
    """

    turn_id: str
    thread_id: str
    duplicate: bool
    continues: bool
    takes_over: str
    answers: "Approval | None"


@dataclass(frozen=True, kw_only=True)
class ToolCall:
    """A tool call in an agent's message."""

    id: str
    name: str
    args: Any


@dataclass(frozen=True, kw_only=True)
class Message:
    """A message of a turn, from an author, an agent, a tool or a trigger."""

    role: str
    text: str
    at: datetime | None
    tool_calls: tuple[ToolCall, ...]
    tool_call_id: str


@dataclass(frozen=True, kw_only=True)
class Approval:
    """A question that a turn asks the author.

    Attributes:
        kind: permission, proposal or question.
        tool, args: the tool call in question; `args["value"]` is the value that a graph gave `interrupt`.
        args_hash: the hash of `args`; a decision is valid only for these arguments.
        status: pending, resolved or void.
        decision, message, decided_by: the decision, its text, and the origin of the request that made it.
        expires_at: when the approval expires if it is not answered.
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
    """The fire that triggered a turn: its task, its scheduled time, and the number of scheduled times it covers."""

    kind: str
    task: str
    fire_id: str
    nominal_at: datetime | None
    fired_at: datetime | None
    stands_for: int


@dataclass(frozen=True, kw_only=True)
class Turn:
    """A turn with its messages and its approvals.

    Attributes:
        status: running, interrupted, paused, succeeded, silent, failed or cancelled; for a message whose turn has not
            begun: accepted, or kept while the thread waits for the author.
        trigger: the fire that triggered it; None for an author's message and for later turns of the same fire.
        error: why the turn failed.
        via: the origin of the request, for an author's turn.
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
        """True if the turn has ended, with any outcome."""
        return self.status in OVER

    @property
    def waits(self) -> bool:
        """True if the turn waits for a decision of its author or for the next fire of its task."""
        return self.status in WAITING

    @property
    def is_decided(self) -> bool:
        """True if the author has decided all questions of a stopped turn, so that the turn is about to resume."""
        asked = {one.status for one in self.approvals}
        return self.status == "interrupted" and bool(asked) and "pending" not in asked

    @property
    def text(self) -> str:
        """The text of the agent's last message; empty if there is none."""
        said = (one.text for one in reversed(self.messages) if one.role == "agent" and one.text.strip())
        return next(said, "")

    @property
    def state(self) -> dict[str, Any] | None:
        """The final state of a graph without messages. None if the agent answered with text."""
        if not self.text.lstrip().startswith("{"):
            return None
        try:
            found = json.loads(self.text)
        except ValueError:
            return None
        return found if isinstance(found, dict) else None


@dataclass(frozen=True, kw_only=True)
class Result:
    """The result of a turn: its last message or the state that its graph returned, and the turn itself."""

    text: str
    state: dict[str, Any] | None
    turn: Turn


@dataclass(frozen=True, kw_only=True)
class RunningCall(ToolCall):
    """A tool call of the turn's current step: running, done or failed."""

    state: str


@dataclass(frozen=True, kw_only=True)
class Speech:
    """A piece of a running turn's text. It is not on disk yet and may be discarded.

    Attributes:
        message: the id of the message; a new id means that the message began again.
        offset: the number of characters of the message before this piece.
    """

    turn_id: str = ""
    thread_id: str = ""
    message: str
    offset: int
    text: str
    calls: tuple[RunningCall, ...]


@dataclass(frozen=True, kw_only=True)
class TurnEvent:
    """A change of a turn, or of a fire without a turn, with its sequence number.

    Attributes:
        state: started, resumed, interrupted, paused, held, released, succeeded, silent, delivered, failed, cancelled;
            for candidates and deviations, whose ids are in `about`: proposed, contradicted, reviewed.
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
    """Convert a wire message to a value: copy each field by its name, except the fields in `given`."""
    kinds: Any = (kind, type(message))
    plan = _plan(*kinds)
    return kind(**{name: get(message) for name, get in plan.items() if name not in given}, **given)


def task_of(message: Any) -> Task:
    """Return a task from the runner's message."""
    return read(Task, message, name=message.spec.name, fields=fields_of(message.spec))


def turn_of(message: Any) -> Turn:
    """Return a turn. A turn from a list has no messages."""
    return read(Turn, message, **({"trigger": None} if isinstance(message.trigger, str) else {}))


@cache
def _plan(kind: Any, message: Any) -> Mapping[str, _Read]:
    """Return how to read each field of a value. A field that is missing in the message keeps its default."""
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
