"""One message between agents: its fields, their checks, its bytes, and the wrapper that a model sees around it.

An envelope is checked when it is written and when it is read, because any program may put a file into an inbox. No
message may contain a wrapper, because it could close its own wrapper and open one that names another sender.

Every parser must read the same content: no duplicate keys, no NaN, no infinity, limited depth and numbers, UTF-8 only.
Source: RFC 7493 (I-JSON) for the rules; the bounds are ours.
"""

import hashlib
import json
import math
import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime
from html import escape
from json.encoder import encode_basestring_ascii as quote
from typing import Any, NamedTuple, NoReturn

from turnkeeper.bus import LARGEST_BYTES
from turnkeeper.errors import InvalidInput
from turnkeeper.times import parse_rfc3339, rfc3339

# The slash may be a look-alike that NFKC keeps. A prefix may precede the name. The possessive `++` prevents
# backtracking, because the text is untrusted and must be read in one pass.
_TOKEN = re.compile(r"<\s*+(?:[/\\\u2044\u2215\u29f8]\s*+)?(?:[\w.-]++:)?channel\b", re.IGNORECASE)
# Characters that display as nothing: format and control characters, combining marks, unassigned ones (with reserved
# default-ignorables).
_UNSEEN_CATEGORIES = frozenset({"Cf", "Cc", "Cn", "Co", "Mn", "Me"})
_FILLERS = frozenset("\u115f\u1160\u3164\uffa0")  # Hangul fillers are letters that display as nothing
_LABEL_FORBIDDEN = frozenset('<>"')
LONGEST_LABEL = 255


def check_text(text: str, *, where: str = "text") -> None:
    """Raise InvalidInput for a wrapper token in any spelling, and for a character without a UTF-8 form.

    A token is found in spite of other widths, other case and invisible characters.
    """
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InvalidInput("contains a lone surrogate", where=where) from error
    folded = text if text.isascii() else unicodedata.normalize("NFKC", text)
    if "<" in folded and (_TOKEN.search(folded) or _TOKEN.search(_seen(folded))):
        hint = "write it without the bracket: what follows it would speak in somebody else's name"
        raise InvalidInput("contains a <channel …> wrapper token", where=where, hint=hint)


def check_label(value: str, *, where: str) -> None:
    """Raise InvalidInput unless `value` is valid in an attribute: short, visible and without markup. Empty is valid."""
    if len(value) > LONGEST_LABEL:
        raise InvalidInput(f"is longer than {LONGEST_LABEL} characters", where=where)
    for character in value:
        if character in _LABEL_FORBIDDEN or not (character.isprintable() or character == " "):
            raise InvalidInput(f"contains {character!a}", where=where)


def wrapped(*, sender: str, kind: str, thread: str, text: str) -> str:
    """Return the wrapper that a model sees around a message. The caller has checked the fields.

    >>> wrapped(sender="agent1", kind="message", thread="t1", text="done")
    '<channel source="agent" from="agent1" kind="message" thread="t1">done</channel>'
    """
    check_text(text)
    named = f'from="{escape(sender)}" kind="{escape(kind)}" thread="{escape(thread)}"'
    return f'<channel source="agent" {named}>{text}</channel>'


def _seen(text: str) -> str:
    return "".join(
        character
        for character in text
        if character.isspace() or not (unicodedata.category(character) in _UNSEEN_CATEGORIES or character in _FILLERS)
    )


__all__ = [
    "CATCH_UP_POLICIES",
    "DEEPEST",
    "FIRE_KINDS",
    "KINDS",
    "Encoded",
    "Envelope",
    "check_text",
    "decode",
    "encode",
    "encoded",
    "shown",
    "with_sender",
    "written",
]

VERSION = 1
KINDS = frozenset({"message", "fire", "loop-tick", "handoff", "shutdown", "ack", "escalation"})
# Fields of a fire in the contract: the cause of the fire, and the number of earlier times that were missed.
FIRE_KINDS = frozenset({"scheduled", "manual", "backfill", "wake", "event"})
CATCH_UP_POLICIES = frozenset({"skip", "run-once", "run-all"})
_PARTY = re.compile(r"[a-z0-9][a-z0-9-]{0,62}|agent0@[a-z][a-z0-9-]{0,31}", re.ASCII)
_KEY = re.compile(r"[\x21-\x7e]{1,255}", re.ASCII)
_RFC3339 = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?(Z|[+-]\d\d:\d\d)", re.ASCII)
# Create the encoder once, because `json.dumps` would create one for each call. A checked envelope contains no cycle.
_JSON = json.JSONEncoder(ensure_ascii=False, allow_nan=False, check_circular=False, separators=(",", ":"))
_REQUIRED = ("v", "id", "from", "to", "kind", "ts")
_TEXTS = ("id", "from", "to", "kind", "thread", "swarm", "idempotency_key", "text", "ts")
_FIELDS = frozenset({"v", "requires_ack", "meta", *_TEXTS})


@dataclass(frozen=True, kw_only=True)
class Envelope:
    """A message on the bus.

    Attributes:
        id: a unique id that the writer makes.
        sender: who wrote the envelope; a channel replaces it with the identity that the channel verified.
        to: the agent whose inbox receives the envelope.
        kind: one of `KINDS`.
        thread: the conversation thread; empty for none.
        swarm: a label for a group of agents that work together; empty for none.
        idempotency_key: of two envelopes with the same key, an inbox drops the second; empty for none.
        requires_ack: the reader writes an ack line and answers with an `ack` envelope.
        text: the text for a model or a person.
        meta: a JSON object for programs; for a fire, its whole trigger.
    """

    id: str
    sender: str
    to: str
    kind: str
    text: str
    at: datetime
    thread: str = ""
    swarm: str = ""
    idempotency_key: str = ""
    requires_ack: bool = False
    meta: dict[str, Any] = field(default_factory=dict)

    def checked(self) -> "Envelope":
        """Return the envelope if every field is valid. Raises InvalidInput, which names the first invalid field."""
        for name, value in (("from", self.sender), ("to", self.to)):
            if not _PARTY.fullmatch(value):
                raise InvalidInput(f"{value[:40]!r} is not an agent's or channel's name", where=name)
        if self.kind not in KINDS:
            raise InvalidInput(f"unknown kind {self.kind[:40]!r}", where="kind")
        for name, value in (("id", self.id), ("idempotency_key", self.idempotency_key or self.id)):
            if not _KEY.fullmatch(value):
                raise InvalidInput("must be 1 to 255 printable ASCII characters", where=name)
        for name, value in (("thread", self.thread), ("swarm", self.swarm)):
            check_label(value, where=name)
        if self.requires_ack and self.kind == "ack":
            raise InvalidInput("an ack is not acknowledged", where="requires_ack")
        if self.at.tzinfo is None:
            raise InvalidInput("has no offset", where="ts")
        check_text(self.text)
        return self


class Encoded(NamedTuple):
    """The bytes of a checked envelope, and the fields that the bus needs for a put."""

    to: str
    sender: str
    key: str
    data: bytes


def encoded(envelope: Envelope) -> Encoded:
    """Encode an envelope for a put. Raises the same InvalidInput as :func:`encode`."""
    return Encoded(envelope.to, envelope.sender, envelope.idempotency_key, encode(envelope))


def encode(envelope: Envelope) -> bytes:
    """Return the envelope as one JSON document in UTF-8. Raises InvalidInput if it is invalid or over 4 MiB."""
    envelope.checked()
    check_value([envelope.meta], where="meta")
    data = written(envelope).encode()
    if len(data) > LARGEST_BYTES:
        raise InvalidInput(f"is {len(data)} bytes, the bus takes {LARGEST_BYTES}", where="envelope")
    return data


def written(envelope: Envelope) -> str:
    """Return the JSON text of a checked envelope."""
    fields: dict[str, Any] = {
        "v": VERSION,
        "id": envelope.id,
        "from": envelope.sender,
        "to": envelope.to,
        "kind": envelope.kind,
        "thread": envelope.thread,
        "swarm": envelope.swarm,
        "idempotency_key": envelope.idempotency_key,
        "requires_ack": envelope.requires_ack,
        "text": envelope.text,
        "ts": rfc3339(envelope.at),
        "meta": envelope.meta,
    }
    return _JSON.encode(fields)


def decode(data: bytes) -> Envelope:
    """Decode one envelope. Raises InvalidInput for bytes that :func:`encode` would not have written."""
    if len(data) > LARGEST_BYTES:
        raise InvalidInput("is too large", where="envelope")
    fields = parse_object(data, where="envelope")
    unknown = fields.keys() - _FIELDS
    if unknown or type(fields.get("v")) is not int or fields["v"] != VERSION:
        raise InvalidInput("unknown schema", where=ascii(min(unknown, default="v"))[1:-1][:40])
    missing = next((name for name in _REQUIRED if name not in fields), None)
    if missing:
        raise InvalidInput("is missing", where=missing)
    texts = {name: fields.get(name, "") for name in _TEXTS}
    wrong = next((name for name, value in texts.items() if not isinstance(value, str)), None)
    meta, requires_ack = fields.get("meta", {}), fields.get("requires_ack", False)
    if wrong or not isinstance(meta, dict) or not isinstance(requires_ack, bool):
        raise InvalidInput("has the wrong type", where=wrong or "meta")
    at, sender = parse_instant(texts.pop("ts")), texts.pop("from")
    return Envelope(sender=sender, at=at, meta=meta, requires_ack=requires_ack, **texts).checked()


def shown(envelope: Envelope) -> str:
    """Return the text in the form for a model: in a wrapper that names the sender."""
    return wrapped(sender=envelope.sender, kind=envelope.kind, thread=envelope.thread, text=envelope.text)


def with_sender(envelope: Envelope, verified: str) -> Envelope:
    """Return the envelope with the identity that the channel verified as its sender."""
    return replace(envelope, sender=verified)


def parse_instant(text: str) -> datetime:
    """Parse the time of an envelope. Raises InvalidInput."""
    try:
        if _RFC3339.fullmatch(text):
            return parse_rfc3339(text)
    except (ValueError, OverflowError) as error:
        raise InvalidInput("is not an RFC 3339 time", where="ts") from error
    raise InvalidInput("is not an RFC 3339 time", where="ts")


DEEPEST = 32
LONGEST_NUMBER = 64  # digits including sign and exponent
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*+"', re.DOTALL)
_BRACKET = re.compile(rb"[\[\]{}]")
_LARGEST_PLAIN = 1 << 62
_TOO_LARGE = 10 ** (LONGEST_NUMBER - 1)
_SURROGATE = re.compile("[\ud800-\udfff]")


def parse_object(data: bytes, *, where: str) -> dict[str, Any]:
    """Parse one JSON object. Raises InvalidInput, which names `where`, for any other bytes."""
    # Text with few brackets cannot be nested too deep. To count the depth would mean to read the text twice.
    if data.count(b"[") + data.count(b"{") > DEEPEST and _nesting(data) > DEEPEST:
        raise InvalidInput(f"is nested deeper than {DEEPEST} levels", where=where)
    try:
        fields = _STRICT.decode(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"is not JSON as the bus writes it: {error}", where=where) from error
    if not isinstance(fields, dict):
        raise InvalidInput("is not a JSON object", where=where)
    if b"\\u" in data:  # only an escape can produce a lone surrogate here, because the decoder refused all others
        check_value(fields, where=where)
    return fields


def check_value(value: object, *, where: str) -> None:
    """Raise InvalidInput for a value that JSON would change, or that :func:`parse_object` refuses.

    A tuple is accepted, because it becomes a list.
    """
    if _is_plain(value, DEEPEST):
        return
    level: list[object] = [value]
    for _ in range(DEEPEST):
        level = _inside(level, where)
        if not level:
            return
    if any(isinstance(item, dict | list | tuple) for item in level):
        raise InvalidInput(f"is nested deeper than {DEEPEST} levels", where=where)
    _inside(level, where)


def _is_plain(value: object, deepest: int) -> bool:
    """Return True if the value has a common type that is always valid, or False if it needs a full check."""
    if type(value) is dict:
        if not all(type(key) is str and key.isascii() for key in value):
            return False
        inside: Iterable[object] = value.values()
    elif type(value) is list:
        inside = value
    else:
        return False
    for item in inside:
        kind = type(item)
        if kind is str:
            if not item.isascii():  # type: ignore[attr-defined]
                return False
        elif kind is int:
            if not -_LARGEST_PLAIN < item < _LARGEST_PLAIN:  # type: ignore[operator]
                return False
        elif not (kind is bool or item is None or (deepest > 1 and _is_plain(item, deepest - 1))):
            return False
    return True


def _inside(level: list[object], where: str) -> list[object]:
    """Check the values of one level. Return the values of the next level."""
    inside: list[object] = []
    for item in level:
        kind = type(item)
        if (kind is str and item.isascii()) or kind is bool or item is None:  # type: ignore[attr-defined]
            continue  # most values have these types, which are always valid
        _check_scalar(item, where)
        if isinstance(item, dict | list | tuple):
            inside += _children(item, where)
    return inside


def _children(item: object, where: str) -> list[object]:
    if isinstance(item, dict):
        if not all(isinstance(key, str) for key in item):
            raise InvalidInput("has a key that is not a string", where=where)
        return [*item.keys(), *item.values()]
    return list(item) if isinstance(item, list | tuple) else []


def _check_scalar(item: object, where: str) -> None:
    if isinstance(item, str):
        if _SURROGATE.search(item):
            raise InvalidInput("contains a lone surrogate", where=where)
    elif isinstance(item, float):
        if not math.isfinite(item):
            raise InvalidInput("contains a number that is not finite", where=where)
    elif isinstance(item, int):
        if abs(item) >= _TOO_LARGE:
            raise InvalidInput(f"contains a number of more than {LONGEST_NUMBER} digits", where=where)
    elif item is not None and not isinstance(item, dict | list | tuple):
        raise InvalidInput(f"contains a {type(item).__name__}, which JSON does not have", where=where)


def _nesting(data: bytes) -> int:
    deepest = depth = 0
    for bracket in _BRACKET.finditer(_STRING.sub(b"", data)):
        depth += 1 if bracket[0] in b"[{" else -1
        deepest = max(deepest, depth)
    return deepest


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError("a key occurs twice")
    return fields


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _bounded_int(digits: str) -> int:
    if len(digits) > LONGEST_NUMBER:
        raise ValueError(f"a number has {len(digits)} digits")
    value = int(digits)
    if abs(value) >= _TOO_LARGE:
        raise ValueError(f"a number has {len(digits)} digits")
    return value


def _finite_float(digits: str) -> float:
    value = float(digits) if len(digits) <= LONGEST_NUMBER else math.inf
    if not math.isfinite(value):
        raise ValueError("a number is too large or too long")
    return value


# Created once, like the encoder.
_STRICT = json.JSONDecoder(
    object_pairs_hook=_no_duplicates, parse_constant=_no_constant, parse_int=_bounded_int, parse_float=_finite_float
)


def turn_id_of(*parts: str | int) -> str:
    """Return the id of the turn for an attempt of a fire or for the request of a message.

    >>> turn_id_of("task-00000001@x", 1)
    'turn-8ddc61531901bed8'
    """
    written = ",".join([quote(part) if isinstance(part, str) else str(part) for part in parts])
    return f"turn-{hashlib.sha256(f'[{written}]'.encode()).hexdigest()[:16]}"
