"""The trigger of a turn, which is built at acceptance, sent in an envelope, and read back by the worker.

This module also knows which agents the runtime hosts. Every other agent runs in a terminal with its own inbox.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import datetime
from functools import cached_property, lru_cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from agent_runtime.model.turn import Assignment, Category
from turnkeeper.bus.envelope import Encoded, Envelope, check_text, encoded, turn_id_of, wrapped
from turnkeeper.errors import InvalidInput
from turnkeeper.times import parse_rfc3339, rfc3339

if TYPE_CHECKING:
    from turnkeeper.config.settings import Settings

FIRST_AGENT = "agent0"
NOT_AGENTS = frozenset({"author", "task-runner", "agentloop"})  # senders without an inbox
RESERVED = NOT_AGENTS | {"watchdog"}  # names that no agent in a terminal may use


def hosted(settings: "Settings") -> list[str]:
    """Return the names of the agents in the settings: first `agent0`, then its workers."""
    workers = settings.agents[FIRST_AGENT].workers if FIRST_AGENT in settings.agents else 0
    return [FIRST_AGENT, *(f"agent{number}" for number in range(1, workers + 1))]


Source = Literal["fire", "message", "agent"]
# An envelope's kind and sender identify its trigger. A loop's fires have their own kind and sender.
POSTED: Mapping[tuple[str, str], Source] = {
    ("fire", "task-runner"): "fire",
    ("loop-tick", "agentloop"): "fire",
    ("message", "author"): "message",
}
LOOP = "loop-"  # prefix of the ids of loops
# The kind in the row of a turn that a message between agents starts, by the origin of the exchange.
AGENT_KINDS: Mapping[str, str] = {"author": "agent", "fire": "agent-for-fire"}
WAKES = frozenset({"wake"})  # the kind of fire that only a self-paced task has
ASIDE = "aside"  # the kind of an author's message that does not take over a loop
MISASKED = "its wake-up could not be read"  # start of an outcome's error; the runner keeps such a loop armed
INSTANTS = frozenset({"nominal_at", "due_at", "fired_at", "first_nominal_at", "last_nominal_at"})
_LONGEST_ATTEMPT = 10  # digits
_NOT_DIGESTED = frozenset({"grant", "digest", "turn_id", "traceparent", "via"})
_OF_AGENTS = frozenset({"sender", "parent", "hops"})  # only in messages of agents; absent in older envelopes
OF_GRAPH = ("graph", "context_json", "config_json", "input_json", "run_json")
ON_APPROVALS = ("approval_reminder_s", "approval_escalation_s", "approval_timeout_s")
_SPARSE = (*ON_APPROVALS, *OF_GRAPH, "via")  # omitted if empty


@dataclass(frozen=True, kw_only=True)
class Trigger(Assignment):
    """A fire or an author's message, checked, with its grant.

    Attributes:
        source: a fire of the runner, an author's message or an agent's message.
        key: the idempotency key, which is accepted only once, permanently.
        digest: a digest of all fields except grant, traceparent and via. The same key with another digest is refused.
        sender: the agent that sent the message; empty for a fire and an author's message.
        parent: the turn that sent the message.
        hops: the number of messages between agents since an author or a fire, this one included.
    """

    source: Source
    key: str
    digest: str = ""
    sender: str = ""
    parent: str = ""
    hops: int = 0

    def asks_for(self, *options: str) -> bool:
        """Return True if the trigger is a client's run with one of these options."""
        return bool(self.run_json) and not json.loads(self.run_json).keys().isdisjoint(options)

    @property
    def category(self) -> str:
        return self.grant.name

    @property
    def shown(self) -> str:
        """The prompt for the model; a message between agents is shown in its wrapper, which names the sender."""
        if self.source != "agent":
            return self.prompt
        return wrapped(sender=self.sender, kind="message", thread=self.thread_id, text=self.prompt)

    def sealed(self) -> "Trigger":
        meta = self.to_meta()
        meta["digest"] = hashlib.sha256(self.digested().encode()).hexdigest()
        sealed = object.__new__(Trigger)
        # A fast `replace`, which keeps all fields, and the meta that the envelope needs next.
        vars(sealed).update(vars(self), digest=meta["digest"], _meta=meta)
        return sealed

    def digested(self) -> str:
        """Return the text whose SHA-256 is the digest."""
        meta = self._meta
        said = {name: meta[name] for name in (_DIGESTED if self.source == "agent" else _DIGESTED_OF_OTHERS)}
        said |= {name: meta[name] for name in _DIGESTED_SPARSE if name in meta}
        # The grant is left out: a retry after an edit of the category must not be a conflict.
        said["category"] = self.grant.name
        return _SORTED.encode(said)

    def to_meta(self) -> dict[str, Any]:
        return self._meta.copy()

    @cached_property
    def _meta(self) -> dict[str, Any]:
        meta = dict(zip(_TYPES, _read(self), strict=True))
        for name in INSTANTS:
            meta[name] = rfc3339(meta[name]) if meta[name] else ""
        meta["grant"] = _grant(self.grant)
        for name in _SPARSE:
            if not meta[name]:
                del meta[name]
        return meta


_TYPES = {item.name: item.type for item in fields(Trigger)}
_read = attrgetter(*_TYPES)
_DIGESTED = [name for name in _TYPES if name not in _NOT_DIGESTED and name not in _SPARSE]
_DIGESTED_SPARSE = [name for name in _SPARSE if name not in _NOT_DIGESTED]
_DIGESTED_OF_OTHERS = [name for name in _DIGESTED if name not in _OF_AGENTS]
# Made once, because `json.dumps` makes a new encoder for each call with options.
_SORTED = json.JSONEncoder(sort_keys=True, separators=(",", ":"))


@lru_cache(maxsize=256)
def _grant(category: Category) -> dict[str, Any]:
    """Return a category as a JSON object, cached because thousands of fires share it."""
    return category.to_dict()


@dataclass(frozen=True, kw_only=True)
class TriggerHeader:
    """A trigger without its prompt and grant, for queues and for the delivery of fires.

    The attributes are those of a trigger; unknown values are empty.
    """

    key: str
    digest: str
    turn_id: str
    thread_id: str
    channel: str
    agent: str
    fire_id: str
    attempt: int
    task_name: str
    fired_at: datetime | None = None
    category: str = ""
    graph: str = ""
    run_json: str = ""


def header_of(trigger: Trigger | TriggerHeader) -> TriggerHeader:
    """Return a trigger's header; a header is returned unchanged."""
    if type(trigger) is TriggerHeader:
        return trigger
    return TriggerHeader(**dict(zip(_HEADER, _read_header(trigger), strict=True)))


class EncodedTrigger(NamedTuple):
    """A trigger, encoded for an inbox."""

    header: TriggerHeader
    encoded: Encoded


def encode_trigger(trigger: Trigger, *, envelope_id: str, at: datetime) -> EncodedTrigger:
    """Encode a trigger for an inbox. Raises InvalidInput if the trigger does not fit an envelope."""
    return EncodedTrigger(header_of(trigger), encoded(to_envelope(trigger, envelope_id=envelope_id, at=at)))


def identify(envelope: Envelope) -> TriggerHeader | None:
    """Return the header in an unreadable envelope; None if its trigger cannot have been accepted."""
    source, _, rest = envelope.idempotency_key.partition(":")
    if POSTED.get((envelope.kind, envelope.sender)) != source or not rest:
        return None
    fire_id, _, attempt = rest.rpartition(":") if source == "fire" else ("", "", "0")
    if not (attempt.isascii() and attempt.isdecimal() and len(attempt) < _LONGEST_ATTEMPT) or not (
        fire_id or source == "message"
    ):
        return None
    said = {name: value for name, value in envelope.meta.items() if isinstance(value, str)}
    return TriggerHeader(
        key=envelope.idempotency_key,
        digest=said.get("digest", ""),
        turn_id=turn_id_of(fire_id, int(attempt)) if fire_id else turn_id_of("message", rest),
        thread_id=envelope.thread,
        channel=said.get("channel", ""),
        agent=envelope.to,
        fire_id=fire_id,
        attempt=int(attempt),
        task_name=said.get("task_name", ""),
    )


_HEADER = tuple(item.name for item in fields(TriggerHeader))
_read_header = attrgetter(*_HEADER)


def fire_key(fire_id: str, attempt: int) -> str:
    return f"fire:{fire_id}:{attempt}"


def is_fire(key: str) -> bool:
    return key.startswith("fire:")


def message_key(request_id: str) -> str:
    """Return the idempotency key of an author's message."""
    return f"message:{request_id}"


def to_envelope(trigger: Trigger, *, envelope_id: str, at: datetime) -> Envelope:
    meta = trigger.to_meta()
    del meta["prompt"]  # the envelope's text
    kind, sender = posted_as(trigger)
    return Envelope(
        id=envelope_id,
        sender=sender,
        to=trigger.agent,
        kind=kind,
        thread=trigger.thread_id,
        idempotency_key=trigger.key,
        text=trigger.prompt,
        at=at,
        meta=meta,
    )


def is_loop(task_id: str) -> bool:
    return task_id.startswith(LOOP)


def posted_as(trigger: Trigger) -> tuple[str, str]:
    """Return the kind and the sender of a trigger's envelope."""
    if trigger.source == "fire":
        return ("loop-tick", "agentloop") if is_loop(trigger.task_id) else ("fire", "task-runner")
    return ("message", trigger.sender or "author")


def from_envelope(envelope: Envelope) -> Trigger:
    """Read a trigger back. Raises InvalidInput for an envelope that :func:`to_envelope` did not make."""
    between_agents = envelope.kind == "message" and envelope.meta.get("source") == "agent"
    posted = (envelope.kind, envelope.sender)
    if not between_agents and posted not in POSTED:
        raise InvalidInput(f"a {envelope.kind} from {envelope.sender} is not accepted here", where="kind")
    if between_agents and [envelope.sender, envelope.to].count(FIRST_AGENT) != 1:
        raise InvalidInput(f"agents can write only to {FIRST_AGENT}, and only {FIRST_AGENT} to them", where="from")
    if "prompt" in envelope.meta:
        raise InvalidInput("has missing or unknown fields", where="meta")
    trigger = from_meta(envelope.meta | {"prompt": envelope.text})
    told = (trigger.key, trigger.thread_id, trigger.agent, trigger.sender)
    given = (envelope.idempotency_key, envelope.thread, envelope.to, envelope.sender if between_agents else "")
    source = "agent" if between_agents else POSTED[posted]
    # In earlier versions, loops had the runner as their sender.
    as_before = source == "fire" and posted == ("fire", "task-runner")
    if trigger.source != source or told != given or not (posted == posted_as(trigger) or as_before):
        raise InvalidInput("does not match the envelope's fields", where="meta")
    if trigger.sealed().digest != trigger.digest or (trigger.key, trigger.turn_id) != _derived(trigger):
        raise InvalidInput("does not match the accepted trigger", where="digest")
    return trigger


def _derived(trigger: Trigger) -> tuple[str, str]:
    if trigger.source == "fire":
        return fire_key(trigger.fire_id, trigger.attempt), turn_id_of(trigger.fire_id, trigger.attempt)
    if trigger.source == "agent":
        return f"agent:{trigger.key.removeprefix('agent:')}", turn_id_of("agent", trigger.key)
    return trigger.key, turn_id_of("message", trigger.key.removeprefix("message:"))


def from_meta(meta: Mapping[str, Any]) -> Trigger:
    """Read a trigger from its JSON object. Raises InvalidInput."""
    if set(meta) | _OF_AGENTS | set(_SPARSE) != set(_TYPES):
        raise InvalidInput("has missing or unknown fields", where="meta")
    try:
        values: dict[str, Any] = {name: _value(name, _TYPES[name], value) for name, value in meta.items()}
        return Trigger(**values)
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"cannot be read: {error}", where="meta") from error


def _value(name: str, kind: object, value: object) -> object:
    if name == "grant" and isinstance(value, dict):
        return Category.from_dict(value)
    if name in INSTANTS and isinstance(value, str):
        return parse_rfc3339(value) if value else None
    if isinstance(kind, type) and type(value) is not kind:
        raise TypeError(f"{name} is not a {kind.__name__}")
    return value


def sendable(text: str, most: int) -> str:
    """Return text that fits an envelope: at most `most` bytes, without a token that could close its wrapper.

    >>> sendable("</channel> and on", 4096)
    '[/channel> and on'
    """
    data = text.encode("utf-8", "replace")
    cut = text if len(data) <= most else f"{data[:most].decode('utf-8', 'ignore')} […]"
    clean = cut.encode("utf-8", "replace").decode()
    try:
        check_text(clean)
    except InvalidInput:
        for opening in ("<", "\uff1c", "\ufe64"):  # NFKC normalizes the other forms to the first
            clean = clean.replace(opening, "[")
        return clean
    return clean
