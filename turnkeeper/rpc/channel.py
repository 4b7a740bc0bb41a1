"""Calls to the daemons: channels over their sockets, deadlines, and our errors.

The stream of turn events sends a greeting in its initial metadata. A store that was replaced or restored may have no
event to send. The greeting tells its follower at once, so that it asks about each open fire.
"""

from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import grpc

from turnkeeper.bus.envelope import LARGEST_BYTES
from turnkeeper.config.home import Home
from turnkeeper.rpc.callers import Identity, Metadata
from turnkeeper.rpc.errors import from_rpc

DEADLINE_S = 10.0
OPTIONS = (
    ("grpc.max_receive_message_length", 16 * LARGEST_BYTES),
    ("grpc.max_send_message_length", LARGEST_BYTES),
    ("grpc.enable_retries", 0),
    # Timeout of one attempt to connect, although the option's name says backoff: a busy daemon greets slowly.
    ("grpc.min_reconnect_backoff_ms", 5000),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 500),
    ("grpc.use_local_subchannel_pool", 1),
    # A Unix socket has no proxy; without this option gRPC would use a proxy from the environment.
    ("grpc.enable_http_proxy", 0),
)


def connect(socket: Path) -> grpc.aio.Channel:
    """Return an asynchronous channel to the daemon behind `socket`; it connects and reconnects by itself."""
    return grpc.aio.insecure_channel(f"unix:{socket}", options=OPTIONS)


_INCARNATION, _AFTER = "turnkeeper-incarnation", "turnkeeper-after-sequence"


@dataclass(frozen=True, kw_only=True)
class Greeting:
    """The store that a stream reads, and the sequence at which it starts; 0 if the reader's cursor is invalid."""

    incarnation: str
    after: int

    def to_metadata(self) -> Metadata:
        return ((_INCARNATION, self.incarnation), (_AFTER, str(self.after)))


def read_greeting(metadata: Iterable[tuple[str, str | bytes]]) -> Greeting | None:
    """Return the greeting in a call's metadata; None if the server sent none.

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
        """Identify the caller by `via`, a program and surface such as `agent-runtime/cli`."""
        self._channel = grpc.insecure_channel(f"unix:{socket}", options=OPTIONS)
        self._stub = stub(self._channel)
        self._peer, self._home = peer, Home(root=socket.parents[2])
        self._identity = Identity(via) if isinstance(via, str) else via
        self._deadline_s = deadline_s

    def __getattr__(self, method: str) -> Any:
        """Return a function that sends a request to the named method of the service."""
        call = getattr(self._stub, method)
        streams = isinstance(call, grpc.UnaryStreamMultiCallable)

        def invoke(request: Any, *, deadline_s: float | None = None, greeted: Greeted | None = None) -> Any:
            said = self._identity.metadata(method, request)
            try:
                if streams:
                    return self._iterate(call(request, metadata=said), greeted)
                return call(request, timeout=self._deadline_s if deadline_s is None else deadline_s, metadata=said)
            except grpc.RpcError as error:
                raise from_rpc(error, self._peer, self._home) from error

        return invoke

    def _iterate(self, stream: Any, greeted: Greeted | None) -> Any:
        try:
            if greeted is not None and (greeting := read_greeting(stream.initial_metadata() or ())) is not None:
                greeted(greeting)
            yield from stream
        except grpc.RpcError as error:
            raise from_rpc(error, self._peer, self._home) from error
        finally:
            stream.cancel()

    def close(self) -> None:
        self._channel.close()


class AsyncCaller:
    """The asynchronous form of :class:`Caller`: await a call, and iterate a stream with `async for`.

    Several callers can share one channel: `by` makes a caller with its own identity.
    """

    def __init__(
        self, channel: grpc.aio.Channel, stub: Any, peer: str, *, via: str = "", deadline_s: float = DEADLINE_S
    ) -> None:
        """Call over a channel of :func:`connect`, which the caller closes."""
        self._channel, self._make, self._peer, self._deadline_s = channel, stub, peer, deadline_s
        self._stub, self._identity = stub(channel), Identity(via)

    def by(self, via: str) -> "AsyncCaller":
        """Return a caller over the same channel that identifies itself as `via`."""
        return AsyncCaller(self._channel, self._make, self._peer, via=via, deadline_s=self._deadline_s)

    def __getattr__(self, method: str) -> Any:
        """Return a function that sends a request to the named method of the service."""
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
        """Close the channel for all callers that share it."""
        await self._channel.close()


def is_serving(socket: Path, *, deadline_s: float = 1.0) -> bool:
    """Return True if the daemon's standard health service answers SERVING within the deadline."""
    # Imported here because only the watchers ask the health service.
    health_pb2, health = (import_module(f"grpc_health.v1.health_{part}") for part in ("pb2", "pb2_grpc"))
    channel = grpc.insecure_channel(f"unix:{socket}", options=OPTIONS)
    try:
        answer = health.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=deadline_s)
    except grpc.RpcError:
        return False
    finally:
        channel.close()
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)
