"""A scripted agent runtime: a real gRPC server on a Unix socket that does as it is told."""

import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import grpc

from turnkeeper.rpc.channel import Greeting
from turnkeeper.v1 import agent_runtime_pb2 as wire
from turnkeeper.v1.agent_runtime_pb2_grpc import AgentRuntimeServicer, add_AgentRuntimeServicer_to_server

State = wire.TurnEvent.State
Answer = Callable[[wire.FireRequest], wire.FireReceipt | None]


def accept(request: wire.FireRequest) -> wire.FireReceipt:
    return wire.FireReceipt(
        fire_id=request.fire_id, attempt=request.attempt, disposition=wire.FireReceipt.ACCEPTED, turn_id="turn-1"
    )


def refuse(code: int, field: str = "", message: str = "no") -> Answer:
    def answer(request: wire.FireRequest) -> wire.FireReceipt:
        error = wire.FireError(code=code, message=message, field=field)
        return wire.FireReceipt(fire_id=request.fire_id, attempt=request.attempt, error=error)

    return answer


def break_stream(_request: wire.FireRequest) -> None:
    return None


class Peer(AgentRuntimeServicer):
    """Answers each (fire id, attempt) as `answer` says, the second time with DUPLICATE; plays `events` to watchers."""

    def __init__(self, folder: Path) -> None:
        self.socket = folder / "agent-runtime.sock"
        self.answer: Answer = accept
        self.received: list[wire.FireRequest] = []
        self.taken: set[tuple[str, int]] = set()
        self.events: list[wire.TurnEvent] = []
        self.bridged: list[wire.BridgedEvent] = []
        self.asked_for: list[list[str]] = []
        self.incarnation = "one"
        self.known = ["loop", "research"]
        self.graphs = {"agent": "", "research": "", "broken": "its file is gone"}
        self.checked: list[wire.FireRequest] = []  # the inputs that ListGraphs was asked about
        self.refuses_inputs, self.unread = False, list[str]()
        self.cancelled: list[str] = []
        self.spared: set[str] = set()
        self.answers_cancels = True
        self.turns: dict[str, wire.Turn] = {}
        self.finishes = False
        self.said: dict[str, str] = {}  # by thread, what its turn said last
        self.is_mute = False  # whether it breaks off when it is asked for a conversation
        self.answers = asyncio.Event()  # while it is not set, a fire that was received gets no answer
        self.answers.set()
        self.now = lambda: datetime(2026, 1, 1, tzinfo=UTC)
        self.changed = asyncio.Condition()
        self._server: Any = None

    async def start(self) -> None:
        self._server = grpc.aio.server()
        add_AgentRuntimeServicer_to_server(self, self._server)
        self.socket.unlink(missing_ok=True)
        self._server.add_insecure_port(f"unix:{self.socket}")
        await self._server.start()

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop(None)
            self._server = None

    async def FireStream(self, requests: AsyncIterator[wire.FireRequest], context: Any) -> Any:
        await context.send_initial_metadata(())
        async for request in requests:
            async with self.changed:
                self.received.append(request)
                self.changed.notify_all()
            await self.answers.wait()
            receipt = self.answer(request)
            if receipt is None:
                await context.abort(grpc.StatusCode.UNAVAILABLE, "broken by the script")
            key = (request.fire_id, request.attempt)
            if receipt.disposition == wire.FireReceipt.ACCEPTED and key in self.taken:
                receipt.disposition = wire.FireReceipt.DUPLICATE
            elif receipt.disposition == wire.FireReceipt.ACCEPTED:
                self.taken.add(key)
            yield receipt
            if self.finishes and receipt.disposition == wire.FireReceipt.ACCEPTED:
                await self.play(request.fire_id, State.STARTED, attempt=request.attempt)
                await self.play(request.fire_id, State.SUCCEEDED, attempt=request.attempt)

    async def FireBatches(self, batches: AsyncIterator[wire.FireBatch], context: Any) -> Any:
        async def fires() -> AsyncIterator[wire.FireRequest]:
            async for batch in batches:  # begun by who reads: gRPC complains of what was begun and never read
                for fire in batch.fires:
                    yield fire

        async for receipt in self.FireStream(fires(), context):
            yield wire.ReceiptBatch(receipts=[receipt])

    async def WatchTurns(self, request: wire.WatchTurnsRequest, context: Any) -> Any:
        same = request.incarnation == self.incarnation and request.after_sequence <= len(self.events)
        after = request.after_sequence if same else 0
        await context.send_initial_metadata(Greeting(incarnation=self.incarnation, after=after).to_metadata())
        while True:
            async with self.changed:
                while len(self.events) <= after:
                    await self.changed.wait()
                fresh = self.events[after:]
            for event in fresh:
                yield event
            after += len(fresh)

    async def WatchEvents(self, request: wire.WatchEventsRequest, context: Any) -> Any:
        same = request.incarnation == self.incarnation and request.after_sequence <= len(self.bridged)
        after = request.after_sequence if same else 0
        await context.send_initial_metadata(Greeting(incarnation=self.incarnation, after=after).to_metadata())
        async with self.changed:
            self.asked_for.append(list(request.names))
            self.changed.notify_all()
        while True:
            async with self.changed:
                while len(self.bridged) <= after:
                    await self.changed.wait()
                fresh = self.bridged[after:]
            for event in fresh:
                if event.name in request.names:
                    yield event
            after += len(fresh)

    async def tell(self, *events: wire.BridgedEvent) -> None:
        async with self.changed:
            for event in events:
                event.incarnation, event.sequence = self.incarnation, len(self.bridged) + 1
                if not event.HasField("at"):
                    event.at.FromDatetime(self.now())
                self.bridged.append(event)
            self.changed.notify_all()

    async def was_asked(self, count: int) -> list[list[str]]:
        async with self.changed:
            await self.changed.wait_for(lambda: len(self.asked_for) >= count)
        return self.asked_for

    async def play(self, fire_id: str, state: Any, *, attempt: int = 1, **fields: Any) -> None:
        async with self.changed:
            event = wire.TurnEvent(
                incarnation=self.incarnation,
                sequence=len(self.events) + 1,
                turn_id="turn-1",
                fire_id=fire_id,
                attempt=attempt,
                state=state,
                **fields,
            )
            event.at.FromDatetime(self.now())
            self.events.append(event)
            self.changed.notify_all()

    async def saw(self, count: int) -> list[wire.FireRequest]:
        async with self.changed:
            await self.changed.wait_for(lambda: len(self.received) >= count)
        return self.received

    async def GetTurn(self, request: wire.GetTurnRequest, context: Any) -> wire.Turn:
        if request.fire_id not in self.turns:
            await context.abort(grpc.StatusCode.NOT_FOUND, "no such turn")
        return self.turns[request.fire_id]

    async def GetConversation(self, request: wire.GetConversationRequest, context: Any) -> wire.Conversation:
        if self.is_mute:
            async with self.changed:
                self.is_mute = False
                self.changed.notify_all()
            await context.abort(grpc.StatusCode.UNAVAILABLE, "broken by the script")
        text = self.said.get(request.thread_id, "")
        turn = wire.ConversationTurn(turn_id="turn-1", messages=[wire.Message(role="agent", text=text)])
        return wire.Conversation(turns=[turn])

    async def CancelTurn(self, request: wire.CancelTurnRequest, context: Any) -> wire.Turn:
        async with self.changed:
            self.cancelled.append(request.fire_id)
            self.spared |= {request.fire_id} if request.unless_waiting else set()
            self.changed.notify_all()
        if not self.answers_cancels:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "broken by the script")
        return wire.Turn(fire_id=request.fire_id)

    async def ListCategories(self, request: Any, context: Any) -> wire.ListCategoriesResponse:
        return wire.ListCategoriesResponse(categories=[wire.Category(name=name) for name in self.known])

    async def ListGraphs(self, request: Any, context: Any) -> wire.ListGraphsResponse:
        self.checked += request.inputs
        if self.refuses_inputs and request.inputs:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "no such field")
        graphs = [wire.Graph(name=name, problem=why) for name, why in self.graphs.items()]
        return wire.ListGraphsResponse(graphs=graphs, warnings=self.unread if request.inputs else ())

    async def ListInterrupts(self, request: Any, context: Any) -> wire.ListInterruptsResponse:
        return wire.ListInterruptsResponse(interrupts=[wire.Interrupt(interrupt_id="int-1")])
