"""Calling the daemons: channels over their sockets, deadlines, our errors.

The stream of turn events greets its reader in its initial metadata. A store that was replaced, or restored from an
older copy, may have no event to send: from the greeting its follower knows at once, and asks about each open fire.
"""

from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import grpc

from turnkeeper.bus.envelope import LARGEST_BYTES
from turnkeeper.rpc.callers import Identity, Metadata
from turnkeeper.rpc.errors import from_rpc

DEADLINE_S = 10.0
OPTIONS = (
    ("grpc.max_receive_message_length", 16 * LARGEST_BYTES),
    ("grpc.max_send_message_length", LARGEST_BYTES),
    ("grpc.enable_retries", 0),
    # How long one attempt to connect may take, whatever the name says: a busy daemon takes a while to greet.
    ("grpc.min_reconnect_backoff_ms", 5000),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 500),
    ("grpc.use_local_subchannel_pool", 1),
    # A Unix socket has no proxy; without this a proxy in the environment would be asked.
    ("grpc.enable_http_proxy", 0),
)


def connect(socket: Path) -> grpc.aio.Channel:
    """Return an asynchronous channel to the daemon behind `socket`; it connects, and reconnects, by itself."""
    return grpc.aio.insecure_channel(f"unix:{socket}", options=OPTIONS)


_INCARNATION, _AFTER = "turnkeeper-incarnation", "turnkeeper-after-sequence"


@dataclass(frozen=True, kw_only=True)
class Greeting:
    """Which store a stream reads, and the sequence after which it starts: 0 where the reader's means nothing there."""

    incarnation: str
    after: int

    def to_metadata(self) -> Metadata:
        """Return it as metadata of a call."""
        return ((_INCARNATION, self.incarnation), (_AFTER, str(self.after)))


def read_greeting(metadata: Iterable[tuple[str, str | bytes]]) -> Greeting | None:
    """Return the greeting among a call's metadata; None where the server sent none.

    >>> read_greeting(Greeting(incarnation="a", after=3).to_metadata())
    Greeting(incarnation='a', after=3)
    >>> read_greeting((("turnkeeper-incarnation", "a"), ("turnkeeper-after-sequence", "x")))
    """
    told = {key: value for key, value in metadata if isinstance(value, str)}
    incarnation, after = told.get(_INCARNATION, ""), told.get(_AFTER, "")
    if not incarnation or not (after.isascii() and after.isdecimal()):
        return None
    return Greeting(incarnation=incarnation, after=int(after))


Greeted = Callable[[Greeting], None]


class Caller:
    """Blocking calls to one daemon, for command-line programs.

    `Caller(socket, Stub, "task-runner").GetTask(request)` calls with a deadline and raises our errors. Streams are
    iterated without a deadline.
    """

    def __init__(
        self, socket: Path, stub: Any, peer: str, *, via: Identity | str = "", deadline_s: float = DEADLINE_S
    ) -> None:
        """Call as the program and surface that `via` names, such as `agent-runtime/cli`."""
        self._channel = grpc.insecure_channel(f"unix:{socket}", options=OPTIONS)
        self._stub = stub(self._channel)
        self._peer = peer
        self._identity = Identity(via) if isinstance(via, str) else via
        self._deadline_s = deadline_s

    def __getattr__(self, method: str) -> Any:
        """Return the named method of the service, as a function of its request."""
        call = getattr(self._stub, method)
        streams = isinstance(call, grpc.UnaryStreamMultiCallable)

        def invoke(request: Any, *, deadline_s: float | None = None, greeted: Greeted | None = None) -> Any:
            said = self._identity.metadata(method, request)
            try:
                if streams:
                    return self._iterate(call(request, metadata=said), greeted)
                return call(request, timeout=self._deadline_s if deadline_s is None else deadline_s, metadata=said)
            except grpc.RpcError as error:
                raise from_rpc(error, self._peer) from error

        return invoke

    def _iterate(self, stream: Any, greeted: Greeted | None) -> Any:
        try:
            if greeted is not None and (greeting := read_greeting(stream.initial_metadata() or ())) is not None:
                greeted(greeting)
            yield from stream
        except grpc.RpcError as error:
            raise from_rpc(error, self._peer) from error
        finally:
            stream.cancel()

    def close(self) -> None:
        self._channel.close()


class AsyncCaller:
    """As :class:`Caller`, for programs with an event loop: a call is awaited, a stream is iterated with `async for`.

    One channel serves all who call in the program's name: `by` gives each a caller of its own.
    """

    def __init__(
        self, channel: grpc.aio.Channel, stub: Any, peer: str, *, via: str = "", deadline_s: float = DEADLINE_S
    ) -> None:
        """Call over a channel of :func:`connect`, which the caller closes."""
        self._channel, self._make, self._peer, self._deadline_s = channel, stub, peer, deadline_s
        self._stub, self._identity = stub(channel), Identity(via)

    def by(self, via: str) -> "AsyncCaller":
        """Return a caller over the same channel that says of itself what `via` says."""
        return AsyncCaller(self._channel, self._make, self._peer, via=via, deadline_s=self._deadline_s)

    def __getattr__(self, method: str) -> Any:
        """Return the named method of the service, as a function of its request."""
        call = getattr(self._stub, method)
        said = self._identity.metadata(method)

        async def answered(request: Any, *, deadline_s: float | None = None) -> Any:
            try:
                return await call(request, timeout=deadline_s or self._deadline_s, metadata=said)
            except grpc.RpcError as error:
                raise from_rpc(error, self._peer) from error

        async def streamed(request: Any, *, greeted: Greeted | None = None) -> AsyncIterator[Any]:
            stream = call(request, metadata=said)
            try:
                told = None if greeted is None else read_greeting(await stream.initial_metadata() or ())
                if greeted is not None and told is not None:
                    greeted(told)
                async for item in stream:
                    yield item
            except grpc.RpcError as error:
                raise from_rpc(error, self._peer) from error
            finally:
                stream.cancel()

        return streamed if isinstance(call, grpc.aio.UnaryStreamMultiCallable) else answered

    async def close(self) -> None:
        """Close the channel, for all who call over it."""
        await self._channel.close()


def is_serving(socket: Path, *, deadline_s: float = 1.0) -> bool:
    """Ask the daemon's standard health service; False when it does not answer SERVING in time."""
    # Imported only now: of all callers only the watchers ask this.
    health_pb2, health = (import_module(f"grpc_health.v1.health_{part}") for part in ("pb2", "pb2_grpc"))
    channel = grpc.insecure_channel(f"unix:{socket}", options=OPTIONS)
    try:
        answer = health.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=deadline_s)
    except grpc.RpcError:
        return False
    finally:
        channel.close()
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)
