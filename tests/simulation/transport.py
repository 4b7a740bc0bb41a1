"""Calls between two nodes without sockets: bytes of the contract, in order, late, and lost when a call breaks.

A channel has the methods of gRPC's that the client uses. Requests and answers are serialized, as on a wire. Errors
become statuses by the server's own conversion.
"""

import asyncio
import contextvars
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import grpc

from tests.simulation.loop import NODE, Delays, Loop, Node, context_of
from turnkeeper.errors import TurnkeeperError, machine_trouble
from turnkeeper.rpc.errors import to_status
from turnkeeper.v1 import agent_runtime_pb2 as wire

_METADATA = grpc.aio.Metadata()
_STATES = grpc.ChannelConnectivity
_LOOKS_S = 0.05


def failed(code: grpc.StatusCode, why: str, trailing: Any = ()) -> grpc.aio.AioRpcError:
    """Return the error that a client gets."""
    return grpc.aio.AioRpcError(code, _METADATA, grpc.aio.Metadata(*trailing), why)


def broken() -> grpc.aio.AioRpcError:
    return failed(grpc.StatusCode.UNAVAILABLE, "the connection broke")


@dataclass
class Server:
    """The service of a node, from its start to its end."""

    node: Node
    servicer: Any


class Network:
    """The connections to one service.

    Attributes:
        server: the service; None while no process serves.
        is_cut: True while no connection can be made.
        is_hung: True while connections take in everything and deliver nothing.
        loses: by method: how many of the next answers are lost, each with its connection; or, by `to METHOD`, requests
            of a stream.
        lost: how many of each were lost.
    """

    def __init__(self, loop: Loop, seed: int | str) -> None:
        self.loop = loop
        self.delays = Delays(f"network {seed}", shortest_s=0.0001, usual_s=0.003, longest_s=3.0, rare=0.03)
        self.server: Server | None = None
        self.is_cut = self.is_hung = False
        self.loses: dict[str, int] = {}
        self.lost: Counter[str] = Counter()
        self.calls: dict[Call, None] = {}

    @property
    def is_reachable(self) -> bool:
        return self.server is not None and not self.server.node.is_dead and not self.is_cut

    def connect(self, _socket: Any) -> "Channel":
        return Channel(self)

    def break_all(self, *, only_hung: bool = False, of: Node | None = None) -> None:
        """Break the connections, or those of one client, each with what is under way on it."""
        for call in [call for call in self.calls if (call.is_hung or not only_hung) and of in {None, call.client}]:
            call.cancel()

    def is_lost(self, what: str) -> bool:
        """Return whether the next message of a kind is lost, and count it."""
        left = self.loses.get(what, 0)
        self.loses[what] = max(0, left - 1)
        if left:
            self.lost[f"lost {what}"] += 1
            self.loop.note("lost", what)
        return left > 0


class Pipe:
    """One direction of a call: items arrive in their order, later than they were sent."""

    def __init__(self, call: "Call") -> None:
        self._call = call
        self._items: deque[Any] = deque()
        self._arrived = asyncio.Event()
        self._last = 0.0

    def send(self, item: Any) -> None:
        network = self._call.network
        network.loop.detail("sends", self._call.method, "the end" if item is grpc.aio.EOF else item)
        self._last = max(self._last + 2e-6, network.loop.time() + network.delays.draw())
        network.loop.call_at(self._last, self._arrive, item, context=contextvars.Context())

    def end(self, item: Any) -> None:
        """Deliver an item at once, and again at each later read."""
        self._items.append(item)
        self._arrived.set()

    async def read(self) -> Any:
        while not self._items:
            self._arrived.clear()
            await self._arrived.wait()
        item = self._items[0]
        return item if isinstance(item, Exception) or item is grpc.aio.EOF else self._items.popleft()

    def _arrive(self, item: Any) -> None:
        if self._call.network.is_hung:
            self._call.is_hung = True
        if not self._call.is_broken and not self._call.is_hung:
            self.end(item)


class _Aborted(Exception):
    def __init__(self, status: Any) -> None:
        self.status = status


class Context:
    """What a service's method may do with its call."""

    def __init__(self, answers: Pipe) -> None:
        self._answers = answers

    async def send_initial_metadata(self, metadata: Any) -> None:
        self._answers.send(("metadata", tuple(metadata)))

    async def abort_with_status(self, status: Any) -> None:
        raise _Aborted(status)


class Call:
    """One call, seen from the client, and its task at the server."""

    def __init__(
        self, network: Network, method: str, read: Callable[[bytes], Any], request: Any, *, streams: bool
    ) -> None:
        self.network, self.method, self.client = network, method, NODE.get()
        self.is_broken = self.is_hung = False
        self._read, self._request, self._streams = read, request, streams
        self._asked, self._answers = Pipe(self), Pipe(self)
        self._metadata: Any = None
        self._task: asyncio.Task[None] | None = None
        if not network.is_reachable:
            self.is_broken = True
            self._answers.end(broken())
            return
        network.calls[self] = None
        serving = network.server
        assert serving is not None
        network.loop.call_later(network.delays.draw(), self._begin, serving, context=context_of(serving.node))

    def cancel(self) -> None:
        """Break the call."""
        if self.is_broken:
            return
        self.is_broken = True
        self.network.calls.pop(self, None)
        if self._task is not None:
            self._task.cancel()
        self._answers.end(broken())

    async def wait_for_connection(self) -> None:
        await self.initial_metadata()

    async def initial_metadata(self) -> Any:
        if self._metadata is None:
            item = await self._answers.read()
            if isinstance(item, Exception):
                raise item
            assert isinstance(item, tuple), "the service sends its metadata first"
            self._metadata = item[1]
        return self._metadata

    async def write(self, data: bytes) -> None:
        if self.is_broken:
            raise broken()
        if self.network.is_lost(f"to {self.method}"):
            self.cancel()  # the client does not learn it yet: a write only seems to succeed
        else:
            self._asked.send(bytes(data))

    async def read(self) -> Any:
        item = await self._answers.read()
        if isinstance(item, tuple):
            self._metadata = item[1]
            return await self.read()
        if isinstance(item, Exception):
            raise item
        return item if item is grpc.aio.EOF else self._read(item)

    async def __aiter__(self) -> AsyncIterator[Any]:
        while (item := await self.read()) is not grpc.aio.EOF:
            yield item

    async def answer(self, timeout_s: float | None) -> Any:
        try:
            async with asyncio.timeout(timeout_s):
                return await self.read()
        except TimeoutError:
            raise failed(grpc.StatusCode.DEADLINE_EXCEEDED, "late") from None
        finally:
            self.cancel()

    def _begin(self, serving: Server) -> None:
        if not self.is_broken:
            self._task = self.network.loop.create_task(self._serve(serving))

    async def _serve(self, serving: Server) -> None:
        try:
            asked = self._requests() if self._request is None else self._request
            answered = getattr(serving.servicer, self.method)(asked, Context(self._answers))
            if self._streams:
                async for each in answered:
                    self._send(each)
                self._answers.send(grpc.aio.EOF)
            else:
                self._send(await answered)
        except Exception as error:  # noqa: BLE001  a status, as the server's interceptor makes one
            self._answers.send(self._status(error))

    def _send(self, answer: Any) -> None:
        if self.network.is_lost(self.method):
            self.cancel()
        else:
            self._answers.send(answer.SerializeToString())

    def _status(self, error: Exception) -> Exception:
        ours = error if isinstance(error, TurnkeeperError) else machine_trouble(error)
        status = error.status if isinstance(error, _Aborted) else None if ours is None else to_status(ours)
        self.network.loop.note("refused", self.method, type(error).__name__)
        if status is None:
            return failed(grpc.StatusCode.UNKNOWN, f"{type(error).__name__}: {error}")
        return failed(status.code, status.details, status.trailing_metadata)

    async def _requests(self) -> AsyncIterator[Any]:
        while True:
            yield wire.FireBatch.FromString(await self._asked.read())


class Channel:
    """A client's channel."""

    def __init__(self, network: Network) -> None:
        self._network = network

    def stream_stream(self, path: str, _writes: Any = None, response_deserializer: Any = None, **_how: Any) -> Any:
        method = path.rpartition("/")[2]
        return lambda **_said: Call(self._network, method, response_deserializer, None, streams=True)

    def unary_stream(self, path: str, response_deserializer: Any, **_how: Any) -> Any:
        method = path.rpartition("/")[2]
        return lambda asked, **_said: Call(self._network, method, response_deserializer, _copy(asked), streams=True)

    def unary_unary(self, path: str, response_deserializer: Any, **_how: Any) -> Any:
        method = path.rpartition("/")[2]

        def call(asked: Any, *, timeout: float | None = None, **_said: Any) -> Any:
            return Call(self._network, method, response_deserializer, _copy(asked), streams=False).answer(timeout)

        return call

    def get_state(self, **_how: Any) -> grpc.ChannelConnectivity:
        return _STATES.READY if self._network.is_reachable else _STATES.TRANSIENT_FAILURE

    async def wait_for_state_change(self, _last: grpc.ChannelConnectivity) -> None:
        await asyncio.sleep(_LOOKS_S)  # noqa: TID251  in virtual time

    async def close(self) -> None:
        pass


def _copy(request: Any) -> Any:
    return type(request).FromString(request.SerializeToString())
