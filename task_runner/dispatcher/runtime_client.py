"""The port to the agent runtime, and its gRPC adapter.

The runner sends it fires and follows its turns; it knows nothing of what a turn is.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

import grpc

from protos.turnkeeper.v1 import agent_runtime_pb2 as wire
from protos.turnkeeper.v1.agent_runtime_pb2_grpc import AgentRuntimeStub
from turnkeeper.errors import NotFound, Unreachable
from turnkeeper.rpc.channel import connect, read_greeting
from turnkeeper.rpc.errors import from_rpc

T = TypeVar("T")
PEER = "agent-runtime"
LARGEST_MESSAGE = 1 << 20  # bytes, of several fires together
MOST_IN_MESSAGE = 128  # fires: enough that a message costs little, few enough that both sides work at once
_DEADLINE_S = 10.0


class FireStream(Protocol):
    """A connected stream: one receipt answers each request, in the order of the requests."""

    async def write(self, requests: Sequence[wire.FireRequest]) -> None:
        """Send fires. Raises Unreachable; which of them arrived is then unknown."""

    async def read(self) -> Sequence[wire.FireReceipt]:
        """Return the next receipts. Raises Unreachable when there will be none."""

    def close(self) -> None:
        """Give the stream up."""


class Runtime(Protocol):
    """The agent runtime as the runner sees it. Every method raises Unreachable when it does not answer."""

    async def open_stream(self, deadline_s: float) -> FireStream:
        """Connect, and open a stream of fires."""

    def watch(self, incarnation: str, after: int) -> AsyncGenerator[wire.TurnEvent, None]:
        """Yield turn events in commit order after a sequence, then live.

        The first is about no turn where the runtime's store is another than the one asked after, or an older copy of
        it: it names the store, and the sequence behind which the events to come begin.
        """

    def watch_events(
        self, incarnation: str, after: int, names: Sequence[str]
    ) -> AsyncGenerator[wire.BridgedEvent, None]:
        """Yield what happens inside turns, of some names, in commit order after a sequence, then live.

        The first has no name where the stream begins elsewhere than it was asked to: it says where.
        """

    async def turn_of(self, fire_id: str, attempt: int) -> wire.Turn | None:
        """Return what the runtime knows of an attempt; None if it never heard of it."""

    async def cancel(self, fire_id: str, attempt: int, reason: str, *, unless_waiting: bool = False) -> None:
        """Cancel the turn of an attempt; no error where there is none, or it is over.

        With `unless_waiting` a turn that waits for its author, or for the end of a pause, is left alone.
        """

    async def categories(self, deadline_s: float) -> frozenset[str]:
        """Return the names of the categories that can be used."""

    async def decisions_waiting(self, deadline_s: float) -> int:
        """Return how many interrupts wait for the author."""


class GrpcRuntime:
    """The runtime behind a Unix socket."""

    def __init__(self, socket: Path) -> None:
        self._socket = socket
        self._channel = connect(socket)
        self._stub: Any = AgentRuntimeStub(self._channel)

    async def open_stream(self, deadline_s: float) -> FireStream:
        """Connect, and open a stream of fires; when this returns the runtime has said that it takes them."""
        await self._connected(deadline_s)
        call = self._stub.FireBatches()
        try:
            async with asyncio.timeout(deadline_s):
                await call.wait_for_connection()
        except TimeoutError as error:
            call.cancel()
            raise Unreachable(f"{PEER} does not answer in time") from error
        except grpc.RpcError as error:
            raise from_rpc(error, PEER) from error
        return GrpcFireStream(call)

    async def watch(self, incarnation: str, after: int) -> AsyncGenerator[wire.TurnEvent, None]:
        """Yield turn events."""
        call = self._stub.WatchTurns(wire.WatchTurnsRequest(incarnation=incarnation, after_sequence=after))
        try:
            greeting = read_greeting(await call.initial_metadata())
            if greeting is not None and (greeting.incarnation, greeting.after) != (incarnation, after):
                yield wire.TurnEvent(incarnation=greeting.incarnation, sequence=greeting.after)
            async for event in call:
                yield event
        except grpc.RpcError as error:
            raise from_rpc(error, PEER) from error
        finally:
            call.cancel()

    async def watch_events(
        self, incarnation: str, after: int, names: Sequence[str]
    ) -> AsyncGenerator[wire.BridgedEvent, None]:
        """Yield what happens inside turns."""
        request = wire.WatchEventsRequest(incarnation=incarnation, after_sequence=after, names=names)
        call = self._stub.WatchEvents(request)
        try:
            greeting = read_greeting(await call.initial_metadata())
            if greeting is not None and (greeting.incarnation, greeting.after) != (incarnation, after):
                yield wire.BridgedEvent(incarnation=greeting.incarnation, sequence=greeting.after)
            async for event in call:
                yield event
        except grpc.RpcError as error:
            raise from_rpc(error, PEER) from error
        finally:
            call.cancel()

    async def turn_of(self, fire_id: str, attempt: int) -> wire.Turn | None:
        """Return what the runtime knows of an attempt."""
        try:
            turn: wire.Turn = await _answered(self._stub.GetTurn, wire.GetTurnRequest(fire_id=fire_id, attempt=attempt))
        except NotFound:
            return None
        return turn

    async def cancel(self, fire_id: str, attempt: int, reason: str, *, unless_waiting: bool = False) -> None:
        """Cancel the turn of an attempt."""
        request = wire.CancelTurnRequest(fire_id=fire_id, attempt=attempt, reason=reason, unless_waiting=unless_waiting)
        try:
            await _answered(self._stub.CancelTurn, request)
        except NotFound:
            return

    async def categories(self, deadline_s: float) -> frozenset[str]:
        """Return the names of the categories that can be used."""
        if not self._socket.exists():
            raise Unreachable(f"{PEER} is not running")
        # A runtime that has just come up is there before this channel tries again: wait for it, up to the deadline.
        ask = partial(self._stub.ListCategories, wait_for_ready=True)
        found = await _answered(ask, wire.ListCategoriesRequest(), deadline_s)
        return frozenset(category.name for category in found.categories if not category.problem)

    async def decisions_waiting(self, deadline_s: float) -> int:
        """Return how many interrupts wait for the author."""
        found = await _answered(self._stub.ListInterrupts, wire.ListInterruptsRequest(), deadline_s)
        return len(found.interrupts)

    async def close(self) -> None:
        """Close the channel."""
        await self._channel.close()

    async def _connected(self, deadline_s: float) -> None:
        """Wait until the channel is connected: what is written to one that is not would only look sent."""
        try:
            async with asyncio.timeout(deadline_s):
                while (state := self._channel.get_state(try_to_connect=True)) is not grpc.ChannelConnectivity.READY:
                    if state is grpc.ChannelConnectivity.TRANSIENT_FAILURE:
                        raise Unreachable(f"{PEER} cannot be reached")
                    await self._channel.wait_for_state_change(state)
        except TimeoutError as error:
            raise Unreachable(f"{PEER} does not answer in time") from error


class GrpcFireStream:
    """One call of FireBatches."""

    def __init__(self, call: Any) -> None:
        self._call = call

    async def write(self, requests: Sequence[wire.FireRequest]) -> None:
        """Send fires, as many to a message as it holds."""
        for batch in batches(requests):
            await _guarded(lambda batch=batch: self._call.write(batch))  # type: ignore[misc]

    async def read(self) -> Sequence[wire.FireReceipt]:
        """Return the next receipts."""
        batch = await _guarded(self._call.read)
        if batch is grpc.aio.EOF:
            raise Unreachable(f"{PEER} ended the stream of fires")
        return batch.receipts  # type: ignore[no-any-return]

    def close(self) -> None:
        """Give the stream up."""
        self._call.cancel()


def batches(requests: Sequence[wire.FireRequest]) -> Iterator[wire.FireBatch]:
    """Yield fires as messages, in order: a long prompt fills one alone, so that none is larger than is taken."""
    batch, size = wire.FireBatch(), 0
    for request in requests:
        size += request.ByteSize()
        if batch.fires and (size > LARGEST_MESSAGE or len(batch.fires) == MOST_IN_MESSAGE):
            yield batch
            batch, size = wire.FireBatch(), request.ByteSize()
        batch.fires.append(request)
    if batch.fires:
        yield batch


async def _answered(method: Any, request: Any, deadline_s: float = _DEADLINE_S) -> Any:
    try:
        return await method(request, timeout=deadline_s)
    except grpc.RpcError as error:
        raise from_rpc(error, PEER) from error


async def _guarded(operation: Callable[[], Awaitable[T]]) -> T:
    try:
        return await operation()
    except grpc.RpcError as error:
        raise from_rpc(error, PEER) from error
    except grpc.aio.UsageError as error:  # the call ended under us
        raise Unreachable(f"{PEER} ended the stream of fires") from error
