"""The door for peers: TLS, limits, and then the peer's own socket. Bytes from strangers are not read.

A connection must complete a handshake within a time limit, and is identified by the key behind its certificate. Only
then are its bytes forwarded, at a limited rate, to the gRPC server for that peer.
"""

import asyncio
import ipaddress
import socket
import ssl
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from cryptography import x509

from turnkeeper.bus.event_log import EventLog
from turnkeeper.clock import Clock
from turnkeeper.constellation.peers.pairing import holder_of
from turnkeeper.errors import Conflict

HANDSHAKE_S = 5.0
MOST_HANDSHAKES = 16  # the most connections at the same time
MOST_HANDSHAKES_OF_AN_ADDRESS = 4
MOST_CONNECTIONS = 128
MOST_OF_A_PEER = 4
CONNECTIONS_A_SECOND = 20.0  # the most unfinished handshakes in all; a quarter of that from one address
BYTES_A_SECOND = 1 << 20
BURST_BYTES = 4 << 20
IDLE_S = 900.0
_PIECE = 1 << 16
_TOLD_EVERY_S = 60.0
_MOST_ADDRESSES = 4096
_TROUBLE_S = 1.0
_REFUSED_AT_ONCE, _PAUSE_S = 16, 0.05  # a limit that keeps a flood cheap: further connections wait in the kernel


class Bucket:
    """A token bucket with `rate` tokens a second, and at most `burst` tokens."""

    def __init__(self, rate: float, burst: float, now: float) -> None:
        self._rate, self._burst, self._left, self._at = rate, burst, burst, now

    def take(self, amount: float, now: float) -> bool:
        """Take this number of tokens. Return False if there are fewer tokens.

        >>> bucket = Bucket(1.0, 2.0, now=0.0)
        >>> [bucket.take(1.0, now) for now in (0.0, 0.0, 0.0, 1.0)]
        [True, True, False, True]
        """
        if self.wait_s(amount, now) > 0.0:
            return False
        self._left -= amount
        return True

    def wait_s(self, amount: float, now: float) -> float:
        """Return the seconds until this number of tokens, at most the burst, is available."""
        self._left = min(self._burst, self._left + (now - self._at) * self._rate)
        self._at = now
        return max(0.0, (min(amount, self._burst) - self._left) / self._rate)


@dataclass
class Known:
    """The homes that may connect now. The whole object is replaced at each change.

    Attributes:
        context: the TLS context that trusts exactly these homes.
        roots: their root certificates by fingerprint.
        sockets: the socket of the server for each home, by fingerprint.
    """

    context: ssl.SSLContext
    roots: Mapping[str, x509.Certificate]
    sockets: Mapping[str, Path]


@dataclass
class _Refusals:
    count: int = 0
    told_at: float = -_TOLD_EVERY_S
    last: str = ""


@dataclass
class Door:
    """The listener that forwards the bytes of peers.

    Attributes:
        handshake_s: the longest handshake, in seconds.
        refused: the number of refused connections.
    """

    known: Known
    clock: Clock
    log: EventLog
    handshake_s: float = HANDSHAKE_S
    refused: int = 0
    _shaking: Counter[str] = field(default_factory=Counter[str])  # counts by address
    _connected: dict[str, int] = field(default_factory=dict)
    _serving: set[asyncio.Task[None]] = field(default_factory=set)
    _refusals: _Refusals = field(default_factory=_Refusals)

    async def run(self, listener: socket.socket) -> None:
        loop, now = asyncio.get_running_loop(), self.clock.monotonic()
        everybody, each = Bucket(CONNECTIONS_A_SECOND, CONNECTIONS_A_SECOND * 2, now), dict[str, Bucket]()
        try:
            while True:
                try:
                    taken, address = await loop.sock_accept(listener)
                except OSError as error:  # there is no free descriptor
                    self._refuse(str(error))
                    await self.clock.sleep(_TROUBLE_S)
                    continue
                if len(each) > _MOST_ADDRESSES:
                    each.clear()
                now = self.clock.monotonic()
                own = each.setdefault(address[0], Bucket(CONNECTIONS_A_SECOND / 4, CONNECTIONS_A_SECOND, now))
                if self._is_busy(address[0]) or not (own.take(1, now) and everybody.take(1, now)):
                    taken.close()
                    self._refuse("too many connections")
                    if self.refused % _REFUSED_AT_ONCE == 0:
                        await self.clock.sleep(_PAUSE_S)
                    continue
                self._shaking[address[0]] += 1
                serving = asyncio.create_task(self._serve(taken, address[0]))
                self._serving.add(serving)
                serving.add_done_callback(self._serving.discard)
        finally:
            for task in list(self._serving):
                task.cancel()
            await asyncio.gather(*self._serving, return_exceptions=True)

    def _is_busy(self, address: str) -> bool:
        all_, own = self._shaking.total(), self._shaking[address]
        most = all_ >= MOST_HANDSHAKES or len(self._serving) >= MOST_CONNECTIONS
        return most or own >= MOST_HANDSHAKES_OF_AN_ADDRESS

    async def _serve(self, taken: socket.socket, address: str) -> None:
        loop, known = asyncio.get_running_loop(), self.known
        reader = asyncio.StreamReader(_PIECE)
        protocol = asyncio.StreamReaderProtocol(reader)
        try:
            transport, _ = await loop.connect_accepted_socket(
                lambda: protocol, taken, ssl=known.context, ssl_handshake_timeout=self.handshake_s
            )
        except (OSError, TimeoutError) as error:
            taken.close()
            self._refuse(f"{type(error).__name__}: {error}"[:200])
            return
        finally:
            self._shaking[address] -= 1
            self._shaking += Counter()  # this removes addresses without connections
        writer = asyncio.StreamWriter(transport, protocol, reader, loop)
        certificate = transport.get_extra_info("ssl_object").getpeercert(binary_form=True)
        holder = holder_of(certificate or b"", known.roots) or ""
        try:
            if holder not in known.sockets or self._connected.get(holder, 0) >= MOST_OF_A_PEER:
                self._refuse("too many connections of one peer" if holder else "a certificate in another's name")
                return
            self._connected[holder] = self._connected.get(holder, 0) + 1
            try:
                await self._pass_on(reader, writer, known.sockets[holder])
            finally:
                self._connected[holder] -= 1
        finally:
            transport.abort()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, path: Path) -> None:
        with suppress(OSError, TimeoutError):
            inside, answers = await asyncio.open_unix_connection(path, limit=_PIECE)
            bucket = Bucket(BYTES_A_SECOND, BURST_BYTES, self.clock.monotonic())
            ways = [asyncio.create_task(self._copy(reader, answers, bucket))]
            ways.append(asyncio.create_task(self._copy(inside, writer, None)))
            try:
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for way in ways:
                    way.cancel()
                await asyncio.gather(*ways, return_exceptions=True)
                answers.transport.abort()

    async def _copy(self, source: asyncio.StreamReader, target: asyncio.StreamWriter, bucket: Bucket | None) -> None:
        while piece := await asyncio.wait_for(source.read(_PIECE), IDLE_S):
            if bucket is not None and (wait_s := bucket.wait_s(len(piece), self.clock.monotonic())) > 0.0:
                await self.clock.sleep(wait_s)
            if bucket is not None:
                bucket.take(len(piece), self.clock.monotonic())
            target.write(piece)
            await target.drain()

    def _refuse(self, why: str) -> None:
        """Count a refused connection. Log refusals at most once a minute."""
        self.refused += 1
        refusals, now = self._refusals, self.clock.monotonic()
        refusals.count, refusals.last = refusals.count + 1, why
        if now - refusals.told_at >= _TOLD_EVERY_S:
            self.log.emit("peers.refused", count=refusals.count, reason=why)
            refusals.count, refusals.told_at = 0, now


def listen(address: str) -> socket.socket:
    """Return a listening socket. Raises Conflict if the address cannot be used."""
    host, _, port = address.rpartition(":")
    name = host.strip("[]")
    try:
        found = socket.getaddrinfo(name or "127.0.0.1", int(port), type=socket.SOCK_STREAM)[0]
        bound = socket.socket(found[0], socket.SOCK_STREAM)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(found[4])
        bound.listen(MOST_CONNECTIONS)
        bound.setblocking(False)
    except OSError as error:
        what = f"cannot listen on {address}: {error.strerror or error}"
        raise Conflict(
            what, where="[peers] listen", hint="stop the program that listens there, or set another address"
        ) from error
    return bound


def is_local(address: str) -> bool:
    """Return True if only this machine can reach an address.

    >>> is_local("127.0.0.1:7474"), is_local("[::1]:7474"), is_local("0.0.0.0:7474"), is_local("home.example:1")
    (True, True, False, False)
    """
    host = address.rpartition(":")[0].strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
