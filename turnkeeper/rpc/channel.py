"""Calls to the daemons: channels over their sockets, deadlines, and the conversion of errors.

The stream of turn events sends a greeting in its initial metadata. A store that was replaced or restored may have no
event to send. If the greeting names a different store, the follower immediately asks about each open fire.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.message import Message

from turnkeeper.bus import LARGEST_BYTES
from turnkeeper.config.home import Home
from turnkeeper.errors import Unreachable
from turnkeeper.rpc.callers import Identity, Metadata
from turnkeeper.rpc.errors import does_not_answer, from_rpc, raising_ours
from turnkeeper.storage.locking import is_held

DEADLINE_S = 10.0
LISTENS_WITHIN_S = 2.0  # seconds to wait for a process that does not listen: it was just started, or is suspended
OPTIONS = (
    ("grpc.max_receive_message_length", 16 * LARGEST_BYTES),
    ("grpc.max_send_message_length", LARGEST_BYTES),
    ("grpc.enable_retries", 0),
    # The option sets the timeout of one attempt to connect, in spite of its name. A busy daemon answers slowly.
    ("grpc.min_reconnect_backoff_ms", 5000),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 500),
    ("grpc.use_local_subchannel_pool", 1),
    # A Unix socket needs no proxy. Without this option, gRPC would use a proxy from the environment.
    ("grpc.enable_http_proxy", 0),
)

Connect = Callable[[Path], Any]  # returns an asynchronous channel to the daemon behind a socket


def connect(socket: Path) -> grpc.aio.Channel:
    """Return an asynchronous channel to the daemon behind `socket`. The channel connects and reconnects by itself."""
    return grpc.aio.insecure_channel(f"unix:{socket}", options=OPTIONS)


async def connected(channel: grpc.aio.Channel, daemon: str, within_s: float, *, is_running: bool = False) -> None:
    """Wait until a channel is connected. A failed attempt ends the wait unless the daemon's process runs.

    Raises:
        Unreachable: the daemon cannot be reached, or did not answer in time.
    """
    try:
        async with asyncio.timeout(within_s):
            while (state := channel.get_state(try_to_connect=True)) is not grpc.ChannelConnectivity.READY:
                if state is grpc.ChannelConnectivity.TRANSIENT_FAILURE and not is_running:
                    raise Unreachable(f"{daemon} cannot be reached")
                await channel.wait_for_state_change(state)
    except TimeoutError as error:
        raise does_not_answer(daemon) from error


_INCARNATION, _AFTER = "turnkeeper-incarnation", "turnkeeper-after-sequence"


@dataclass(frozen=True, kw_only=True)
class Greeting:
    """The store that a stream reads, and the sequence at which it starts; 0 if the reader's cursor is invalid."""

    incarnation: str
    after: int

    def to_metadata(self) -> Metadata:
        return ((_INCARNATION, self.incarnation), (_AFTER, str(self.after)))


def read_greeting(metadata: Iterable[tuple[str, str | bytes]]) -> Greeting | None:
    """Return the greeting in a call's metadata, or None if there is none.

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


_DAEMONS = {"AgentRuntime": "agent-runtime", "Schedules": "task-runner"}  # by the name of the service


def daemon_of(request: Message) -> str:
    """Return the daemon that serves a request. Each daemon serves the only service in its requests' contract."""
    (service,) = request.DESCRIPTOR.file.services_by_name
    return _DAEMONS[service]


def method_of(request: Message) -> Any:
    """Return the name of the method that takes a request of this type."""
    (service,) = request.DESCRIPTOR.file.services_by_name.values()
    return service.methods_by_name[request.DESCRIPTOR.name.removesuffix("Request")]


class _Calls:
    """Calls to the daemons of a home. The type of a request determines the daemon. The first call connects to it."""

    _connect: Callable[..., Any]
    _send: Callable[..., Any]

    def __init__(self, home: Home, *, via: Identity | str = "", deadline_s: float = DEADLINE_S) -> None:
        """Identify the caller by `via`, a program and a surface such as `agent-runtime/cli`."""
        self._home, self._deadline_s = home, deadline_s
        self._identity = Identity(via) if isinstance(via, str) else via
        self._open: dict[str, tuple[Any, Any]] = {}  # by daemon, the channel and its stub

    def __getattr__(self, method: str) -> Any:
        return partial(self._send, method)

    def ask(self, request: Message, **how: Any) -> Any:
        """Send a request to the method for its type."""
        return self._send(method_of(request).name, request, **how)

    def _method(self, method: str, request: Message) -> tuple[Any, str]:
        contract = request.DESCRIPTOR.file
        (service,), daemon = contract.services_by_name, daemon_of(request)
        if daemon not in self._open:
            channel = self._connect(f"unix:{self._home.socket(daemon)}", options=OPTIONS)
            # Import it at the first call, because most commands call only one daemon.
            module = import_module(f"{contract.name.removesuffix('.proto').replace('/', '.')}_pb2_grpc")
            self._open[daemon] = (channel, getattr(module, f"{service}Stub")(channel))
        return getattr(self._open[daemon][1], method), daemon


class Caller(_Calls):
    """Blocking calls, for command-line programs.

    `Caller(home).GetTask(request)` makes a call with a deadline, and raises our errors. Streams have no deadline.
    """

    _connect = staticmethod(grpc.insecure_channel)

    def _send(
        self, method: str, request: Message, *, deadline_s: float | None = None, greeted: Greeted | None = None
    ) -> Any:
        call, daemon = self._method(method, request)
        said = self._identity.metadata(method, request)
        with raising_ours(daemon, self._home):
            if isinstance(call, grpc.UnaryStreamMultiCallable):
                return self._iterate(call(request, metadata=said), daemon, greeted)
            return call(request, timeout=self._deadline_s if deadline_s is None else deadline_s, metadata=said)

    def _iterate(self, stream: Any, daemon: str, greeted: Greeted | None) -> Any:
        try:
            if greeted is not None and (greeting := read_greeting(stream.initial_metadata() or ())) is not None:
                greeted(greeting)
            yield from stream
        except grpc.RpcError as error:
            raise from_rpc(error, daemon, self._home) from error
        finally:
            stream.cancel()

    def close(self) -> None:
        for channel, _ in self._open.values():
            channel.close()


class AsyncCaller(_Calls):
    """The asynchronous form of :class:`Caller`: await a call, and iterate a stream with `async for`.

    It works across restarts of the daemons. A call waits for a daemon that was just restarted.
    """

    _connect = staticmethod(grpc.aio.insecure_channel)

    def by(self, via: Identity | str) -> "AsyncCaller":
        """Return a caller over the same channels that identifies itself as `via`."""
        made = AsyncCaller(self._home, via=via, deadline_s=self._deadline_s)
        made._open = self._open
        return made

    def _send(self, method: str, request: Message, **how: Any) -> Any:
        call, daemon = self._method(method, request)
        send = self._iterate if isinstance(call, grpc.aio.UnaryStreamMultiCallable) else self._answer
        return send(call, daemon, request, self._identity.metadata(method, request), **how)

    async def _answer(
        self, call: Any, daemon: str, request: Message, said: Metadata, *, deadline_s: float | None = None
    ) -> Any:
        await self._connected(daemon)
        with raising_ours(daemon, self._home):
            return await call(request, timeout=deadline_s or self._deadline_s, metadata=said)

    async def _iterate(
        self, call: Any, daemon: str, request: Message, said: Metadata, *, greeted: Greeted | None = None
    ) -> AsyncIterator[Any]:
        await self._connected(daemon)
        stream = call(request, metadata=said)
        try:
            told = None if greeted is None else read_greeting(await stream.initial_metadata() or ())
            if greeted is not None and told is not None:
                greeted(told)
            async for item in stream:
                yield item
        except grpc.RpcError as error:
            raise from_rpc(error, daemon, self._home) from error
        finally:
            stream.cancel()

    async def _connected(self, daemon: str) -> None:
        """Wait for the connection to a daemon if its process runs. Without a process, the call itself fails at once."""
        channel, _ = self._open[daemon]
        if channel.get_state() is not grpc.ChannelConnectivity.READY and is_held(self._home, daemon):
            await connected(channel, daemon, LISTENS_WITHIN_S, is_running=True)

    async def close(self) -> None:
        """Close the channels for all callers that share them."""
        for channel, _ in self._open.values():
            await channel.close()


def is_serving(socket: Path, *, deadline_s: float = 1.0) -> bool:
    """Return True if the daemon's standard health service answers SERVING within the deadline."""
    # Import it here, because only the watchers ask the health service.
    health_pb2, health = (import_module(f"grpc_health.v1.health_{part}") for part in ("pb2", "pb2_grpc"))
    with grpc.insecure_channel(f"unix:{socket}", options=OPTIONS) as channel:
        try:
            answer = health.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=deadline_s)
        except grpc.RpcError:
            return False
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)
