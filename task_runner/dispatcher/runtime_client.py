"""A client of the agent runtime over gRPC: sends fires and follows events. Knows nothing about the content of turns."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import grpc

from turnkeeper.clock import Clock
from turnkeeper.entropy import Entropy
from turnkeeper.errors import NotFound, TurnkeeperError, Unreachable
from turnkeeper.rpc.callers import Identity
from turnkeeper.rpc.channel import Connect, connect, connected, read_greeting
from turnkeeper.rpc.errors import from_rpc, raising_ours
from turnkeeper.rpc.process import together
from turnkeeper.v1 import agent_runtime_pb2 as wire
from turnkeeper.v1.agent_runtime_pb2_grpc import AgentRuntimeStub

T = TypeVar("T")
PEER = "agent-runtime"
LARGEST_MESSAGE = 1 << 20  # bytes of one message with several fires
MOST_IN_MESSAGE = (
    128  # fires in a message: enough to make messages cheap, and few enough for both sides to work in parallel
)
LARGEST_BATCH = 256  # the most events that one transaction records
_MOST_PARTS = 2 * MOST_IN_MESSAGE  # a head precedes each fire
_DEADLINE_S = 10.0
_SHORTEST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 2.0


class Reconnector:
    """A loop that reconnects to the runtime after a random pause, which grows with each failure."""

    def __init__(self, clock: Clock, entropy: Entropy) -> None:
        self._clock, self._entropy = clock, entropy
        self._failures = 0

    def succeeded(self) -> None:
        """Record that the runtime answered, so that the next pause is short again."""
        self._failures = 0

    async def run(self, connect: Callable[[], Awaitable[None]]) -> None:
        """Call `connect` repeatedly; `connect` returns or raises TurnkeeperError when its connection ends."""
        while True:
            with suppress(TurnkeeperError):
                await connect()
            self._failures += 1
            longest = min(_LONGEST_PAUSE_S, _SHORTEST_PAUSE_S * 2.0 ** min(self._failures, 10))
            await self._clock.sleep(self._entropy.uniform(_SHORTEST_PAUSE_S, longest))


class Runtime:
    """The agent runtime, reached over its Unix socket. Methods raise Unreachable if the runtime does not answer."""

    def __init__(self, socket: Path, identity: Identity, connect: Connect = connect) -> None:
        self._socket = socket
        self._channel = connect(socket)
        self._stub: Any = AgentRuntimeStub(self._channel)
        # This is the stub's method without a serializer, because the messages are already bytes.
        self._fire_batches: Any = self._channel.stream_stream(
            "/turnkeeper.v1.AgentRuntime/FireBatches", response_deserializer=wire.ReceiptBatch.FromString
        )
        self._identity = identity

    async def open_stream(self, deadline_s: float) -> "FireStream":
        """Connect and open a stream of fires; return the stream after the runtime has accepted it.

        Raises:
            Denied: the runtime refuses fires from this runner.
            Corrupt: our key cannot be read.
        """
        # A write to a channel without a connection only seems to succeed.
        await connected(self._channel, PEER, deadline_s)
        call = self._fire_batches(metadata=self._identity.metadata("FireBatches"))
        try:
            async with asyncio.timeout(deadline_s):
                await call.wait_for_connection()
        except TimeoutError as error:
            call.cancel()
            raise Unreachable(f"{PEER} does not answer in time") from error
        except grpc.RpcError as error:
            raise from_rpc(error, PEER) from error
        return FireStream(call)

    def watch(self, incarnation: str, after: int) -> AsyncGenerator[wire.TurnEvent, None]:
        """Yield turn events after a sequence number, in order of number, then new events as they happen.

        If the runtime's store is not `incarnation` or is an older copy, the first event has no turn. It gives the
        incarnation of the store, and the sequence number after which the next events begin.
        """
        request = wire.WatchTurnsRequest(incarnation=incarnation, after_sequence=after)
        return self._watch("WatchTurns", request, wire.TurnEvent)

    def watch_events(
        self, incarnation: str, after: int, names: Sequence[str]
    ) -> AsyncGenerator[wire.BridgedEvent, None]:
        """Yield the events with these names from inside turns, after a sequence number, then new ones.

        If the stream begins at a position other than the requested one, the first event is unnamed and gives it.
        """
        request = wire.WatchEventsRequest(incarnation=incarnation, after_sequence=after, names=names)
        return self._watch("WatchEvents", request, wire.BridgedEvent)

    async def turn_of(self, fire_id: str, attempt: int) -> wire.Turn | None:
        """Return the turn of an attempt; None if the runtime knows no such attempt."""
        try:
            turn: wire.Turn = await self.ask("GetTurn", wire.GetTurnRequest(fire_id=fire_id, attempt=attempt))
        except NotFound:
            return None
        return turn

    async def cancel(self, fire_id: str, attempt: int, reason: str, *, unless_waiting: bool = False) -> None:
        """Cancel the turn of an attempt; do nothing if there is no such turn or the turn has ended.

        With `unless_waiting`, do not cancel a turn that waits for its author or for the end of a pause.
        """
        request = wire.CancelTurnRequest(fire_id=fire_id, attempt=attempt, reason=reason, unless_waiting=unless_waiting)
        try:
            await self.ask("CancelTurn", request)
        except NotFound:
            return

    async def categories(self, deadline_s: float) -> frozenset[str]:
        if not self._socket.exists():
            raise Unreachable(f"{PEER} is not running")
        # A runtime that has just started may be ready before this channel reconnects, so wait until the deadline.
        found = await self.ask("ListCategories", wire.ListCategoriesRequest(), deadline_s, wait_for_ready=True)
        return frozenset(category.name for category in found.categories if not category.problem)

    async def graphs(
        self, deadline_s: float, inputs: Iterable[wire.FireRequest] = ()
    ) -> tuple[Mapping[str, str], list[str]]:
        """Return the graphs and assistants that a fire may name, each with the reason why it cannot run ("" if it can).

        Also return warnings about inputs that a graph would ignore. Raises InvalidInput if a graph refuses an input.
        """
        if not self._socket.exists():
            raise Unreachable(f"{PEER} is not running")
        request = wire.ListGraphsRequest(inputs=inputs)
        found = await self.ask("ListGraphs", request, deadline_s, wait_for_ready=True)
        return {graph.name: graph.problem for graph in found.graphs}, list(found.warnings)

    async def review_exceptions(self, deadline_s: float) -> None:
        """Ask the runtime to check the authors' standing exceptions against the current tasks."""
        if not self._socket.exists():
            raise Unreachable(f"{PEER} is not running")
        await self.ask("ListExceptions", wire.ListExceptionsRequest(), deadline_s)

    async def decisions_waiting(self, deadline_s: float) -> int:
        """Return the number of interrupts that wait for the author."""
        found = await self.ask("ListInterrupts", wire.ListInterruptsRequest(), deadline_s)
        return len(found.interrupts)

    async def close(self) -> None:
        await self._channel.close()

    async def ask(self, method: str, request: Any, deadline_s: float = _DEADLINE_S, **how: Any) -> Any:
        """Return the runtime's answer to a request. Raises TurnkeeperError."""
        said = self._identity.metadata(method, request)
        with raising_ours(PEER):
            return await getattr(self._stub, method)(request, timeout=deadline_s, metadata=said, **how)

    async def _watch(
        self, method: str, request: wire.WatchTurnsRequest | wire.WatchEventsRequest, event_type: Callable[..., T]
    ) -> AsyncGenerator[T, None]:
        asked = (request.incarnation, request.after_sequence)
        call = getattr(self._stub, method)(request, metadata=self._identity.metadata(method, request))
        try:
            greeting = read_greeting(await call.initial_metadata())
            if greeting is not None and (greeting.incarnation, greeting.after) != asked:
                yield event_type(incarnation=greeting.incarnation, sequence=greeting.after)
            async for event in call:
                yield event
        except grpc.RpcError as error:
            raise from_rpc(error, PEER) from error
        finally:
            call.cancel()


class FireStream:
    """A connected stream of one FireBatches call. Receipts arrive in the order of the requests."""

    def __init__(self, call: Any) -> None:
        self._call = call

    async def write(self, requests: Sequence[bytes]) -> None:
        """Send FireRequests, several to a message. Raises Unreachable; any of the requests may still have arrived."""
        for batch in batches(requests):
            await _guarded(lambda batch=batch: self._call.write(batch))  # type: ignore[misc]

    async def read(self) -> Sequence[wire.FireReceipt]:
        """Return the next receipts. Raises Unreachable if the stream has ended."""
        batch = await _guarded(self._call.read)
        if batch is grpc.aio.EOF:
            raise Unreachable(f"{PEER} ended the stream of fires")
        return batch.receipts  # type: ignore[no-any-return]

    def close(self) -> None:
        self._call.cancel()


def batches(requests: Sequence[bytes]) -> Iterator[bytes]:
    """Pack FireRequests into FireBatches, in order. A long prompt gets its own batch."""
    batch, size = list[bytes](), 0
    for request in requests:
        size += len(request)
        if batch and (size > LARGEST_MESSAGE or len(batch) == _MOST_PARTS):
            yield b"".join(batch)
            batch, size = [], len(request)
        batch += (_head(len(request)), request)
    if batch:
        yield b"".join(batch)


@lru_cache(maxsize=1024)
def _head(size: int) -> bytes:
    """Return the bytes before a request of `size` bytes in a FireBatch: the tag of field 1, and the size as a varint.

    Source: https://protobuf.dev/programming-guides/encoding/
    """
    head = bytearray([1 << 3 | 2])
    while size > 0x7F:
        head.append(size & 0x7F | 0x80)
        size >>= 7
    head.append(size)
    return bytes(head)


async def in_batches(stream: AsyncGenerator[T, None], take: Callable[[list[T]], Awaitable[object]]) -> None:
    """Pass the items of a stream to `take` in batches until the stream ends; read ahead while `take` works.

    Raises:
        TurnkeeperError: the stream broke, or `take` failed.
    """
    queue: asyncio.Queue[T | None] = asyncio.Queue(maxsize=4 * LARGEST_BATCH)

    async def read() -> None:
        async with aclosing(stream):
            async for item in stream:
                await queue.put(item)
        await queue.put(None)

    async def pass_on() -> None:
        ended = False
        while not ended:
            batch = [await queue.get()]
            while not queue.empty() and len(batch) < LARGEST_BATCH:
                batch.append(queue.get_nowait())
            items = [item for item in batch if item is not None]
            ended = len(items) < len(batch)
            if items:
                await take(items)

    await together(read(), pass_on())


async def _guarded(operation: Callable[[], Awaitable[T]]) -> T:
    try:
        return await operation()
    except grpc.RpcError as error:
        raise from_rpc(error, PEER) from error
    except grpc.aio.UsageError as error:  # the call ended during the read
        raise Unreachable(f"{PEER} ended the stream of fires") from error
