"""Callers of the daemons: their identification, the proof of a daemon's identity, and the record of their acts.

Each call names in its metadata the calling program, its surface and its credential: `turnkeeper-via:
agent-runtime/cli`. These names are not verified, and older clients send none. Some methods and request fields are
reserved for the other daemon. It proves its identity with a MAC made with the home's key for calls.

    turnkeeper-proof: KEY:AT:NONCE:MAC

The MAC covers the program, the method, the bytes of the request, the identity of the bound socket, the machine's
monotonic clock and a nonce. So a proof is valid for one minute, and only for one call of one method with one request to
one start of one daemon. A stream is proved once, when it is opened. Its messages do not need a proof.
"""

import hashlib
import hmac
import re
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import grpc
from google.protobuf.message import Message

from turnkeeper.bus.event_log import EventLog, told_if_late
from turnkeeper.clock import SystemClock
from turnkeeper.config.home import Home
from turnkeeper.entropy import SystemEntropy
from turnkeeper.errors import Denied, InvalidInput, TurnkeeperError, Unreachable
from turnkeeper.rpc.errors import to_status
from turnkeeper.storage.keys import CALLS, GRACE_S, KeyFile
from turnkeeper.times import parse_rfc3339

VIA, PROOF = "turnkeeper-via", "turnkeeper-proof"
SURFACES = ("cli", "conversation", "web", "mcp", "api", "daemon")
AUTHORS = frozenset({"cli", "conversation", "web"})  # surfaces on which a person acts, not a program
DAEMON = "daemon"  # surface of a daemon that acts on its own; it must prove its identity
LONGEST_AGE_S = 60.0
LONGEST_SUBJECT = 1000
_VIA = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]{0,63})/([a-z]{1,16})(?:/([A-Za-z0-9][A-Za-z0-9._-]{0,63}))?")
_PROOF = re.compile(r"([0-9a-f]{1,32}):([0-9]{1,18}):([0-9a-f]{32}):([0-9a-f]{64})")
_CONTEXT = b"turnkeeper call 1"  # separates MACs of calls from any other use of the same key
_OURS = "/turnkeeper.v1."
_KEYS_HINT = "both daemons read keys/calls.json of one home; start them again: turnkeeper down && turnkeeper up"
Metadata = tuple[tuple[str, str], ...]


@dataclass(frozen=True, kw_only=True)
class Via:
    """The origin of a request: a program, one of `SURFACES`, and, if there is one, the id of a credential.

    >>> str(Via(program="agent-runtime", surface="cli"))
    'agent-runtime/cli'
    """

    program: str
    surface: str
    key: str = ""

    def __str__(self) -> str:
        """Return the text that is sent, logged and stored."""
        return "/".join(filter(None, (self.program, self.surface, self.key)))


UNKNOWN = Via(program="unknown", surface="")
_current: ContextVar[Via] = ContextVar("via", default=UNKNOWN)
_received: ContextVar[bytes] = ContextVar("received", default=b"")  # serialized request of the current call


def current() -> Via:
    """Return the origin of the current request, or `UNKNOWN` outside a request."""
    return _current.get()


def answer_for(via: Via) -> None:
    """Attribute all later acts of the current asyncio task to `via`."""
    _current.set(via)


def read_via(text: str) -> Via:
    """Parse a caller's `turnkeeper-via` text. Return `UNKNOWN` for an empty text.

    >>> read_via("my-bot/api/k1").key
    'k1'

    Raises:
        InvalidInput: the text is malformed.
    """
    if not text:
        return UNKNOWN
    found = _VIA.fullmatch(text)
    if found is None or found[2] not in SURFACES:
        hint = f"write PROGRAM/SURFACE or PROGRAM/SURFACE/KEY; surfaces are {', '.join(SURFACES)}"
        raise InvalidInput(f"{text[:60]!r} does not name the origin of a call", where=VIA, hint=hint)
    return Via(program=found[1], surface=found[2], key=found[3] or "")


def make_key(home: Home) -> None:
    """Create the home's key for calls if it has none. Drop retired keys. Raises Corrupt if the key was lost."""
    keys, now = KeyFile(home, CALLS), SystemClock().now()
    keys.create(now, SystemEntropy(), before=lambda _key: None)
    keys.drop_retired(now)


class Identity:
    """The identity that a program presents to one daemon.

    If the program has the home's keys, it also proves its identity. If `via` is empty, no identity is sent.
    """

    def __init__(self, via: str, socket: Path | None = None, keys: KeyFile | None = None) -> None:
        self._via = read_via(via)
        self._socket, self._keys = socket, keys

    @classmethod
    def of_daemon(cls, name: str, peer: str, home: Home) -> "Identity":
        """Return the identity that one daemon uses to call another."""
        return cls(f"{name}/{DAEMON}", home.socket(peer), KeyFile(home, CALLS))

    def metadata(self, method: str, request: Message | None = None) -> Metadata:
        """Return the metadata of one call. The proof does not cover the requests of a stream.

        Raises:
            Corrupt: the key cannot be read.
            Unreachable: the called daemon has no socket.
        """
        said = ((VIA, str(self._via)),) if self._via != UNKNOWN else ()
        if self._keys is None or self._socket is None or not (keys := self._keys.read()):
            return said
        at, nonce = int(SystemClock().monotonic() * 1000), SystemEntropy().hex(32)
        data = b"" if request is None else request.SerializeToString()
        try:
            socket = socket_id(self._socket)
        except OSError as error:
            raise Unreachable(f"{self._socket.name} is not there", hint="start it with: turnkeeper up") from error
        mac = _mac(keys[0].secret, self._via.program, method, data, socket, f"{at}:{nonce}")
        return (*said, (PROOF, f"{keys[0].id}:{at}:{nonce}:{mac}"))


def socket_id(path: Path) -> str:
    """Return an identifier of this binding of a socket. Raises OSError."""
    found = path.stat()
    return f"{found.st_ino}:{found.st_mtime_ns}"


def _mac(secret: str, program: str, method: str, data: bytes, socket: str, drawn: str) -> str:
    said = (program.encode(), method.encode(), socket.encode(), drawn.encode(), hashlib.sha256(data).digest())
    return hmac.digest(bytes.fromhex(secret), b"\0".join((_CONTEXT, *said)), "sha256").hex()


class Proofs:
    """The verifier of the proofs of calls to one daemon. Each proof is accepted once."""

    def __init__(self, keys: KeyFile) -> None:
        self._keys = keys
        self._sockets: set[str] = set()
        self._taken: dict[str, float] = {}

    def bound(self, socket: str) -> None:
        """Also accept proofs made for this binding of the daemon's socket."""
        self._sockets.add(socket)

    def check(self, text: str, via: Via, method: str, data: bytes) -> Via:
        """Return the proven identity. Raises Denied; Corrupt if the key cannot be read."""
        now, found = SystemClock().monotonic(), _PROOF.fullmatch(text)
        secret = self._secret(found[1]) if found else ""
        if found is None or not secret:
            raise Denied("the proof was made with a key that this home does not use", where=PROOF, hint=_KEYS_HINT)
        drawn = f"{found[2]}:{found[3]}"
        macs = (_mac(secret, via.program, method, data, socket, drawn) for socket in self._sockets)
        if not any(hmac.compare_digest(mac, found[4]) for mac in macs):
            what = "the proof does not belong to this call: it was changed, or made for another call or daemon"
            raise Denied(what, where=PROOF, hint=_KEYS_HINT)
        if abs(now - int(found[2]) / 1000) > LONGEST_AGE_S:
            raise Denied("the proof is more than a minute old", where=PROOF, hint="make a new proof for each call")
        while self._taken and now - next(iter(self._taken.values())) > 2 * LONGEST_AGE_S:
            del self._taken[next(iter(self._taken))]  # the first nonces are the oldest
        if found[3] in self._taken:
            raise Denied("the proof was used before", where=PROOF, hint="make a new proof for each call")
        self._taken[found[3]] = now
        return replace(via, key=found[1])

    def _secret(self, key_id: str) -> str:
        """Return the secret of a key. Empty if the key is unknown or was retired more than a minute ago."""
        key = self._keys.get(key_id)
        if key is None:
            return ""
        latest = SystemClock().now() - timedelta(seconds=GRACE_S)
        return "" if key.retired_at and parse_rfc3339(key.retired_at) < latest else key.secret


@dataclass(frozen=True, kw_only=True)
class Rules:
    """The access rules of a service. Each of its methods is in `reads`, `acts` or `reserved_methods`.

    Attributes:
        peer: the daemon that must prove its identity to this service.
        reads: methods that change nothing and are not recorded.
        acts: methods that change something, each with the field of the request or answer that names the subject.
        reserved_methods: methods that only the peer may call.
        reserved_fields: by method, request fields that only the peer may set.
        daemon_fields: by method, the reserved fields that any daemon of the home may set.
        author_fields: by method, request fields that only a caller on a surface of `AUTHORS` may set.
    """

    peer: str
    reads: Collection[str]
    acts: Mapping[str, str]
    reserved_methods: Collection[str] = frozenset()
    reserved_fields: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    daemon_fields: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    author_fields: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def record(log: EventLog, rules: Rules, method: str, request: Message, answer: Message, via: Via) -> None:
    """Log the method, its subject and its caller. Log nothing for reads, reserved methods and dry runs."""
    if method in rules.reads or method in rules.reserved_methods or getattr(request, "dry_run", False):
        return
    source, _, path = rules.acts.get(method, "").partition(".")
    found = sorted({str(one) for one in _values(request if source == "request" else answer, path)}) if path else []
    log.emit("act.done", method=method, subject=", ".join(found)[:LONGEST_SUBJECT], via=str(via))


def _asked(rules: Rules, method: str, request: Message, via: Via) -> list[tuple[str, dict[str, Any]]]:
    """Return the event that records a request before it is carried out. Empty for a read."""
    if method not in rules.acts:
        return []
    source, _, path = rules.acts[method].partition(".")
    subject = sorted({str(one) for one in _values(request, path)}) if source == "request" and path else []
    return [("act.asked", {"method": method, "subject": ", ".join(subject)[:LONGEST_SUBJECT], "via": str(via)})]


def _values(message: Any, path: str) -> Iterable[Any]:
    """Yield the values at a dotted path in a message: only of set fields, and each item of a repeated field."""
    name, _, rest = path.partition(".")
    value, of = getattr(message, name), message.DESCRIPTOR.fields_by_name[name]
    if not of.is_repeated:
        value = [value] if (message.HasField(name) if of.has_presence else value) else []
    for one in value:
        yield from _values(one, rest) if rest else (one,)


class Door(grpc.aio.ServerInterceptor):
    """The interceptor that identifies the caller of each call, and logs the act with its caller.

    It also logs refused calls, which change nothing.
    """

    def __init__(self, home: Home, rules: Rules, log: EventLog) -> None:
        """Create the home's key for calls if there is none. Raises Corrupt if the key was lost."""
        make_key(home)
        self.proofs = Proofs(KeyFile(home, CALLS))
        self._rules, self._log = rules, log

    async def intercept_service(self, continuation: Any, handler_call_details: Any) -> Any:
        handler = await continuation(handler_call_details)
        if handler is None or not handler_call_details.method.startswith(_OURS):
            return handler
        method, said = handler_call_details.method.rpartition("/")[2], dict(handler_call_details.invocation_metadata)
        if handler.request_streaming:
            try:
                self._admit(method, said, b"", None)
            except TurnkeeperError as error:
                return _refusing(handler, error)
            return handler

        def admit(request: Message) -> None:
            answer_for(self._admit(method, said, _received.get(), request))

        def read(data: bytes) -> Message:
            # Keep the received bytes: to serialize a message of a newer version again could reorder its fields.
            _received.set(data)
            return cast("Message", handler.request_deserializer(data))

        if handler.response_streaming:
            watched = _watched(handler.unary_stream, admit)
            return grpc.unary_stream_rpc_method_handler(watched, read, handler.response_serializer)
        recorded = self._recorded(method, handler.unary_unary, admit)
        return grpc.unary_unary_rpc_method_handler(recorded, read, handler.response_serializer)

    def _recorded(self, method: str, behaviour: Any, admit: Callable[[Message], None]) -> Callable[..., Awaitable[Any]]:
        async def call(request: Message, context: Any) -> Any:
            admit(request)
            with told_if_late(self._log, lambda: _asked(self._rules, method, request, current())):
                answer = await behaviour(request, context)
            record(self._log, self._rules, method, request, answer, current())
            return answer

        return call

    def _admit(self, method: str, said: Mapping[str, Any], data: bytes, request: Message | None) -> Via:
        """Return the caller's identity. Raises InvalidInput, and Denied if the call is reserved for other callers."""
        via = read_via(str(said.get(VIA, "")))
        try:
            proven = self.proofs.check(str(said[PROOF]), via, method, data) if PROOF in said else None
            if proven is None and via.surface == DAEMON:
                what = f"the caller says that it is the daemon {via.program} but sends no proof"
                raise Denied(what, where=VIA, hint="name another surface, such as api")
            self._check_author(method, request, via)
            self._check_reserved(method, request, proven)
        except TurnkeeperError as error:
            self._log.emit("act.refused", method=method, via=str(via), reason=error.what)
            raise
        return proven or via

    def _check_author(self, method: str, request: Message | None, via: Via) -> None:
        for path in self._rules.author_fields.get(method, ()) if via.surface not in AUTHORS else ():
            if any(True for _ in _values(request, path)):
                what = f"may only be set by an author himself, and this call comes from {via}"
                raise Denied(what, where=path, hint=f"an author's surfaces are {', '.join(sorted(AUTHORS))}")

    def _check_reserved(self, method: str, request: Message | None, proven: Via | None) -> None:
        peer = self._rules.peer
        if proven is not None and proven.program == peer:
            return
        if method in self._rules.reserved_methods:
            what = f"only {peer} may call {method}, and this caller did not prove that identity"
            raise Denied(what, where=PROOF, hint=_KEYS_HINT)
        allowed = self._rules.daemon_fields.get(method, ()) if proven is not None else ()
        for path in self._rules.reserved_fields.get(method, ()):
            if path not in allowed and any(True for _ in _values(request, path)):
                what = f"may only be set by {peer}, and this caller did not prove that identity"
                raise Denied(what, where=path, hint="leave it out")


def _watched(behaviour: Any, admit: Callable[[Message], None]) -> Callable[..., Any]:
    def call(request: Message, context: Any) -> Any:
        admit(request)
        return behaviour(request, context)

    return call


def _refusing(handler: Any, error: TurnkeeperError) -> Any:
    async def refuse(_requests: Any, context: Any) -> None:
        await context.abort_with_status(to_status(error))

    return grpc.stream_stream_rpc_method_handler(refuse, handler.request_deserializer, handler.response_serializer)
