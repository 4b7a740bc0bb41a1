"""The messages from a peer and to a peer. Each is delivered once.

Each peer has its own server here, so the servicer knows its caller. A message becomes a letter in the outbox of the
peer's agent. So the runtime treats that agent as the sender, even if the message names another one. Waiting messages in
that agent's inbox are sent to the peer in order. Each is sent again until the other home has it on disk.
"""

import asyncio
import os
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import grpc
from cryptography.hazmat.primitives.serialization import Encoding

from turnkeeper.bus import acks, letters
from turnkeeper.bus import inbox as bus
from turnkeeper.bus.durable_writes import GroupingFiles
from turnkeeper.bus.envelope import Envelope, check_label, check_text
from turnkeeper.bus.event_log import EventLog
from turnkeeper.bus.folders import KeyLinks
from turnkeeper.clock import Clock
from turnkeeper.config.home import Home, make_private
from turnkeeper.constellation.peers import pairing
from turnkeeper.constellation.peers.door import Bucket
from turnkeeper.entropy import Entropy
from turnkeeper.errors import Conflict, Denied, Exhausted, InvalidInput, NotFound, TurnkeeperError, Unreachable
from turnkeeper.rpc.errors import from_rpc
from turnkeeper.storage.files import SystemFiles, create, machine_errors
from turnkeeper.storage.locking import ReaderLock
from turnkeeper.times import parse_rfc3339, rfc3339
from turnkeeper.v1 import peers_pb2 as wire
from turnkeeper.v1 import peers_pb2_grpc

FIRST_AGENT = "agent0"
MESSAGES_A_MINUTE = 60.0
MOST_WAITING = 1000  # most letters that the runtime has not read yet
MOST_OPEN = 10_000  # most messages of one peer that agent0 has not answered yet


@dataclass(frozen=True)
class Place:
    """The settings of a home, and the tools that its parts need."""

    home: Home
    clock: Clock
    entropy: Entropy
    log: EventLog


class _Refusing(peers_pb2_grpc.PeersServicer):
    """A servicer that refuses every call. Subclasses allow some calls."""

    async def Pair(self, _request: wire.PairRequest, _context: Any) -> wire.PairResponse:
        raise Denied("a peer pairs once")

    async def Deliver(self, _request: wire.PeerMessage, _context: Any) -> wire.PeerReceipt:
        raise Denied("an invitation is for pairing")


class ToPair(_Refusing):
    """The servicer for a home with an invitation."""

    def __init__(self, place: Place, invitation: pairing.OpenInvitation) -> None:
        self._place, self._invitation = place, invitation

    async def Pair(self, request: wire.PairRequest, _context: Any) -> wire.PairResponse:
        await asyncio.to_thread(self._pair, request)
        return wire.PairResponse()

    def _pair(self, request: wire.PairRequest) -> None:
        place, root = self._place, pairing.read_root(request.certificate)
        fresh = pairing.Peer(
            name=self._invitation.name,
            address=pairing.check_address(request.address),
            certificate=pairing.der_text(root),
            added_at=rfc3339(place.clock.now()),
        )
        pairing.add_peer(place.home, fresh, place.clock.now(), self._invitation)
        place.log.emit("peers.paired", peer=fresh.name, fingerprint=pairing.fingerprint_of(root), address=fresh.address)


class ToDeliver(_Refusing):
    """The servicer for one peer."""

    def __init__(self, place: Place, peer: pairing.Peer) -> None:
        self._place, self._peer = place, peer
        self._allowance = Bucket(MESSAGES_A_MINUTE / 60, MESSAGES_A_MINUTE, place.clock.monotonic())
        self._one = asyncio.Lock()

    async def Deliver(self, request: wire.PeerMessage, _context: Any) -> wire.PeerReceipt:
        if not self._allowance.take(1, self._place.clock.monotonic()):
            raise Exhausted(f"more than {MESSAGES_A_MINUTE:.0f} messages a minute", hint="try again later")
        letter = self._letter(request)
        async with self._one:
            await asyncio.to_thread(self._put, letter)
        self._place.log.emit("peers.received", peer=self._peer.name, key=letter.id, answers=request.answers)
        return wire.PeerReceipt()

    def _letter(self, request: wire.PeerMessage) -> Envelope:
        if not request.text.strip() or len(request.text.encode()) > letters.LONGEST_MESSAGE:
            raise InvalidInput(f"a message has 1 to {letters.LONGEST_MESSAGE} bytes", where="text")
        check_text(request.text)
        check_label(request.thread, where="thread")
        check_label(request.answers, where="answers")
        if not request.answers and request.hops not in range(letters.MOST_HOPS):
            raise InvalidInput(f"the limit of {letters.MOST_HOPS} messages in one exchange is reached", where="hops")
        return Envelope(
            id=request.key,
            sender=self._peer.agent,
            to=FIRST_AGENT,
            kind="message",
            text=request.text,
            at=self._place.clock.now(),
            thread=request.thread,
            idempotency_key=request.key,
            meta={"answers": request.answers} if request.answers else {"hops": request.hops},
        ).checked()

    def _put(self, letter: Envelope) -> None:
        place, agent = self._place, self._peer.agent
        outbox = place.home.inbox(agent) / "outbox"
        if outbox.is_dir() and len(os.listdir(outbox)) >= MOST_WAITING:
            raise Exhausted(f"{MOST_WAITING} messages wait to be read", hint="try again later")
        with pairing.kept(place.home, self._peer):
            turn_id = letters.turn_of_letter(agent, letter.id)
            if "answers" not in letter.meta and not _is_answered(place.home.inbox(agent), turn_id):
                _remember(pairing.asked_of(place.home, self._peer.name), turn_id, letter.id)
            letters.put_letter(place.home, letter, clock=place.clock, entropy=place.entropy)


def _remember(folder: Path, turn_id: str, key: str) -> None:
    """Store the message that a turn answers, so that the answer can be returned."""
    with machine_errors(folder):
        make_private(folder.parent)
        make_private(folder)
        if len(os.listdir(folder)) >= MOST_OPEN:
            raise Exhausted(f"{MOST_OPEN} messages are not answered yet", hint="try again later")
        try:
            create(folder / turn_id, key.encode(), sync=True)
        except FileExistsError:
            return
        SystemFiles().sync_folder(folder)


def _is_answered(folder: Path, turn_id: str) -> bool:
    """Return True if the inbox of a peer's agent holds a turn's answer as delivered."""
    name = KeyLinks(folder, SystemFiles()).name_of(f"{letters.ANSWER}{turn_id}")
    return bool(name) and (folder / "delivered" / name).exists()


CALL_S = 20.0
ACCEPT_S = 10.0  # the other home checks for new invitations once a second
POLL_S = 0.5
REACH_S = 3.0
LONGEST_WAIT_S = 30.0
_CROSS = frozenset({"message", "fire", "loop-tick"})
_OPTIONS = (
    ("grpc.ssl_target_name_override", pairing.SERVER_NAME),
    ("grpc.default_authority", pairing.SERVER_NAME),
    ("grpc.max_reconnect_backoff_ms", 5000),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
)


@dataclass
class Contact:
    """The state of the connection to a peer.

    Attributes:
        state: `unknown` until something was sent, then `reachable` or `unreachable`.
        since: RFC 3339.
        delivered_at: the time when the peer last accepted a message; empty if it never did.
    """

    state: str = "unknown"
    since: str = ""
    reason: str = ""
    delivered_at: str = ""


def channel_to(address: str, root_pem: bytes, own: tuple[bytes, bytes]) -> grpc.aio.Channel:
    """Return a channel to the home with this root certificate. `own` is the caller's certificate and key, in PEM."""
    certificate, key = own
    return grpc.aio.secure_channel(
        address, grpc.ssl_channel_credentials(root_pem, key, certificate), options=list(_OPTIONS)
    )


class Courier:
    """The reader of a peer's inbox, which delivers the messages to the peer."""

    def __init__(self, place: Place, peer: pairing.Peer, identity: pairing.Identity, wake: asyncio.Event) -> None:
        """Deliver to `peer`. Set `wake` each time `contact` changes."""
        self.contact = Contact()
        self._place, self.peer, self._identity, self._wake = place, peer, identity, wake
        self._ledger = acks.AckLedger(place.home.logs, "peers", place.clock)
        self._channel: grpc.aio.Channel | None = None
        self._made_at: datetime | None = None

    async def run(self) -> None:
        """Deliver until the peer is removed."""
        lock = ReaderLock(self._place.home.inbox(self.peer.agent), "peers")
        try:
            with pairing.kept(self._place.home, self.peer):
                lock.__enter__()
            inbox, waiting = await asyncio.to_thread(self._open)
            while True:
                for item in waiting or await asyncio.to_thread(self._claim, lock, inbox):
                    await self._deliver(inbox, item)
                if not waiting:
                    await self._place.clock.sleep(POLL_S)
                waiting = []
        finally:
            lock.__exit__()
            if self._channel is not None:
                await self._channel.close()

    def _open(self) -> tuple[bus.Inbox, list[bus.Claimed]]:
        place = self._place
        files: dict[str, Any] = {"files": GroupingFiles(), "clock": place.clock, "entropy": place.entropy}
        with pairing.kept(place.home, self.peer):
            inbox = bus.open_inbox(place.home, self.peer.agent, hosted=False, **files)
            waiting = inbox.adopt()
            for asked in pairing.asked_of(place.home, self.peer.name).glob("*"):
                if _is_answered(inbox.folder, asked.name):  # an earlier process was killed before it removed the file
                    asked.unlink()
            return inbox, waiting

    def _claim(self, lock: ReaderLock, inbox: bus.Inbox) -> list[bus.Claimed]:
        """Claim the waiting messages. Raises Unreachable if the peer was removed: its folder must not return."""
        with pairing.kept(self._place.home, self.peer):
            lock.keep()
            return inbox.claim(16)

    async def _deliver(self, inbox: bus.Inbox, item: bus.Claimed) -> None:
        """Deliver one envelope, without a time limit. Quarantine one that cannot be delivered, and notify agent0."""
        envelope = item.envelope
        try:
            if envelope.kind in _CROSS:
                await self._send(await asyncio.to_thread(self._message, envelope))
        except TurnkeeperError as error:
            await asyncio.to_thread(self._fail, inbox, item, error)
            return
        await asyncio.to_thread(self._finish, inbox, item)

    def _message(self, envelope: Envelope) -> wire.PeerMessage:
        older = envelope.at < parse_rfc3339(self.peer.added_at)
        if older or pairing.answers_removed(self._place.home, self.peer.name, self._asked(envelope).name):
            raise Conflict(f"it was for the peer that was called {self.peer.name} before")
        if len(envelope.text.encode()) > letters.LONGEST_MESSAGE:
            raise InvalidInput(f"a message to a peer has at most {letters.LONGEST_MESSAGE} bytes", where="text")
        answers = ""
        with suppress(OSError):
            answers = self._asked(envelope).read_text()
        return wire.PeerMessage(
            key=str(envelope.meta.get("turn_id") or envelope.id),
            text=envelope.text,
            thread=self._identity.pseudonym(str(envelope.meta.get("channel", ""))),
            answers=answers,
            hops=int(envelope.meta.get("hops") or 0),
        )

    def _asked(self, envelope: Envelope) -> Any:
        parent = str(envelope.meta.get("parent") or "-")
        return pairing.asked_of(self._place.home, self.peer.name) / parent.replace("/", "-")

    async def _send(self, message: wire.PeerMessage) -> None:
        wait_s = 1.0
        while True:
            try:
                await peers_pb2_grpc.PeersStub(await self._connected()).Deliver(message, timeout=CALL_S)
            except grpc.aio.AioRpcError as error:
                found = from_rpc(error, self.peer.agent)
                if not isinstance(found, (Unreachable, Exhausted)) and error.code() != grpc.StatusCode.CANCELLED:
                    raise found from error
                self._note("unreachable", (error.details() or found.what)[:300])
                await self._place.clock.sleep(wait_s)
                wait_s = min(LONGEST_WAIT_S, wait_s * 2)
            else:
                self._note("reachable")
                return

    async def _connected(self) -> grpc.aio.Channel:
        now = self._place.clock.now()
        if self._channel is None or self._made_at is None or now - self._made_at > pairing.LASTS / 2:
            if self._channel is not None:
                await self._channel.close()
            root = self.peer.root.public_bytes(Encoding.PEM)
            self._channel = channel_to(self.peer.address, root, self._identity.certificate(now))
            self._made_at = now
        return self._channel

    def _note(self, state: str, reason: str = "") -> None:
        at, before = rfc3339(self._place.clock.now()), asdict(self.contact)
        if state != self.contact.state:
            self.contact.state, self.contact.since = state, at
            self._place.log.emit(f"peers.{state}", peer=self.peer.name, reason=reason)
        self.contact.reason = reason
        if state == "reachable":
            self.contact.delivered_at = at
        if before != asdict(self.contact):
            self._wake.set()

    def _finish(self, inbox: bus.Inbox, item: bus.Claimed) -> None:
        with pairing.kept(self._place.home, self.peer):
            self._ledger.received([item])
            inbox.archive(item)
            self._asked(item.envelope).unlink(missing_ok=True)

    def _fail(self, inbox: bus.Inbox, item: bus.Claimed, error: TurnkeeperError) -> None:
        place, envelope = self._place, item.envelope
        turn_id = str(envelope.meta.get("turn_id") or "")
        if turn_id and not self._asked(envelope).exists():
            said = f"Turnkeeper writes this, not {self.peer.agent}. Your message was not delivered: {error}"
            letter = Envelope(
                id=f"undelivered:{turn_id}",
                sender=self.peer.agent,
                to=FIRST_AGENT,
                kind="message",
                text=said,
                at=place.clock.now(),
                meta={"answers": turn_id},
            )
            with suppress(InvalidInput, NotFound), pairing.kept(place.home, self.peer):
                letters.put_letter(place.home, letter, clock=place.clock, entropy=place.entropy)
        with pairing.kept(place.home, self.peer):
            inbox.quarantine(item.name, str(error))
        place.log.emit("peers.undeliverable", peer=self.peer.name, name=item.name, reason=str(error))


async def accept(given: pairing.Invitation, own: pairing.Identity, address: str, clock: Clock) -> None:
    """Pair with the home that made an invitation. Retry until that home knows this home. Raises Unreachable, Conflict.

    Args:
        clock: provides the time, also for the time limit.
    """
    until = clock.monotonic() + ACCEPT_S
    while True:
        try:
            await _accept_now(given, own, address, clock.now())
        except Unreachable:
            if clock.monotonic() >= until:
                raise
            await _reach(given.address)
            await clock.sleep(POLL_S)
        else:
            return


async def _reach(address: str) -> None:
    """Raise Unreachable if no process listens at an address, because a further attempt would be useless."""
    host, _, port = address.rpartition(":")
    try:
        async with asyncio.timeout(REACH_S):
            _, writer = await asyncio.open_connection(host.strip("[]"), int(port))
            writer.transport.abort()
    except OSError as error:  # a timeout is an OSError, too
        why = error.strerror or "no answer"
        what = f"{address} cannot be reached: {why[:1].lower()}{why[1:]}"
        hint = "see whether `turnkeeper status` shows peers running there, and whether its [peers] address is right"
        raise Unreachable(what, where="INVITATION", hint=hint) from error


async def _accept_now(given: pairing.Invitation, own: pairing.Identity, address: str, now: datetime) -> None:
    proof = pairing.identity_from(given.secret, now).certificate(now)
    request = wire.PairRequest(certificate=own.root.public_bytes(Encoding.DER), address=address)
    async with channel_to(given.address, given.root.public_bytes(Encoding.PEM), proof) as channel:
        try:
            await peers_pb2_grpc.PeersStub(channel).Pair(request, timeout=CALL_S)
        except grpc.aio.AioRpcError as error:
            found = from_rpc(error, given.address)
            if not isinstance(found, Unreachable):
                raise found from error
            what = f"{given.address} does not answer, or does not know the invitation (any more)"
            hint = "see whether `turnkeeper status` shows peers running there; else ask for another invitation"
            raise Unreachable(what, where="INVITATION", hint=hint) from error
