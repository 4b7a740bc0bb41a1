"""The `AgentRuntime` service: requests in, answers out; what they mean is decided elsewhere.

Reads are functions of a connection (`reads.py`); changes go through the acceptor, the worker, the store and the
workspace. Errors leave as statuses by the server's interceptor, and within a stream of fires as one receipt each.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from typing import Any, TypeVar

from sqlalchemy import Connection

from agent_runtime.model.approval import read_decision
from agent_runtime.model.conversation import interrupt_message
from agent_runtime.service import reads
from agent_runtime.service.corpus_rpc import Corpus
from agent_runtime.service.fire_intake import Firing
from agent_runtime.service.memory_rpc import Memories
from agent_runtime.service.messages import candidate_message, category_message
from agent_runtime.service.runtime import Runtime
from agent_runtime.service.send_message import Messages
from agent_runtime.service.streams import BridgedStream, event_message, watch_conversation
from agent_runtime.service.turn_lookup import Lookups
from agent_runtime.store.turn_reads import events_after, get_interrupt, newest_sequence
from protos.turnkeeper.v1 import agent_runtime_pb2 as wire
from turnkeeper.errors import NotFound
from turnkeeper.rpc.channel import Greeting

T = TypeVar("T")


class Servicer(Memories, Corpus):
    """One method for each of the service's."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._store = runtime.store
        self._lookups = Lookups(runtime)
        self._messages = Messages(runtime)
        self._remembering = runtime.workspace.memory
        self._authors = runtime.workspace.authors
        self._firing = Firing(runtime.acceptor, runtime.categories)
        self._closing = False

    def refuse_fires(self) -> None:
        """Accept no fire from now on and end the streams of fires; what was accepted is still reported on."""
        self._firing.refuse()

    def close(self) -> None:
        """End the streams that would go on for ever, so that the server can stop at once."""
        self._closing = True
        self._store.events.notify()
        self._store.talk.notify()
        self._store.bridge.news.notify()

    async def Fire(self, request: wire.FireRequest, _context: Any) -> wire.FireReceipt:  # noqa: N802
        """Accept one fire; its envelope is on disk when this answers."""
        return await self._firing.one(request)

    async def FireStream(  # noqa: N802
        self, requests: AsyncIterator[wire.FireRequest], context: Any
    ) -> AsyncIterator[wire.FireReceipt]:
        """Accept many fires; one receipt each, in order. The initial metadata say that they are taken."""
        self._firing.check()
        await context.send_initial_metadata(())
        async with aclosing(self._firing.each(requests)) as receipts:
            async for receipt in receipts:
                yield receipt

    async def FireBatches(  # noqa: N802
        self, batches: AsyncIterator[wire.FireBatch], context: Any
    ) -> AsyncIterator[wire.ReceiptBatch]:
        """Accept many fires, many to a message; otherwise as FireStream."""
        self._firing.check()
        await context.send_initial_metadata(())
        async with aclosing(self._firing.batches(batches)) as receipts:
            async for receipt in receipts:
                yield receipt

    async def WatchTurns(  # noqa: N802
        self, request: wire.WatchTurnsRequest, context: Any
    ) -> AsyncIterator[wire.TurnEvent]:
        """Send turn events in commit order, from a sequence on, then live; from 0 for another store's sequence.

        A sequence that this store has not come to is another store's: an older copy was put back.
        """
        same = request.incarnation == self._store.incarnation
        newest = await self._store.read(newest_sequence)
        after = request.after_sequence if same and 0 <= request.after_sequence <= newest else 0
        greeting = Greeting(incarnation=self._store.incarnation, after=after)
        await context.send_initial_metadata(greeting.to_metadata())
        while True:
            closing, news, since = self._closing, self._store.events.next(), after
            for event in await self._store.read(lambda connection, since=since: events_after(connection, since)):  # type: ignore[misc]
                after = event.sequence
                yield event_message(event, self._store.incarnation)
            if closing:
                return
            if after == since:
                await news.wait()

    async def WatchEvents(  # noqa: N802
        self, request: wire.WatchEventsRequest, context: Any
    ) -> AsyncIterator[wire.BridgedEvent]:
        """Send what happens inside turns, of the names asked for; see the contract for what a call declares."""
        stream = await BridgedStream.open(self._store, request)
        greeting = Greeting(incarnation=self._store.incarnation, after=stream.after)
        await context.send_initial_metadata(greeting.to_metadata())
        async for event in stream.events(lambda: self._closing):
            yield event

    async def GetTurn(self, request: wire.GetTurnRequest, _context: Any) -> wire.Turn:  # noqa: N802
        """Answer one turn, or what became of a fire or message that has none."""
        return await self._lookups.turn(request.turn_id, request.fire_id, request.attempt)

    async def ListTurns(self, request: wire.ListTurnsRequest, _context: Any) -> wire.ListTurnsResponse:  # noqa: N802
        """Answer turns, newest first."""
        return await self._read(lambda connection: reads.list_turns(connection, request))

    async def CancelTurn(self, request: wire.CancelTurnRequest, _context: Any) -> wire.Turn:  # noqa: N802
        """Store a cancel, then answer."""
        return await self._lookups.cancel(request)

    async def SendMessage(  # noqa: N802
        self, request: wire.SendMessageRequest, _context: Any
    ) -> wire.SendMessageResponse:
        """Accept an author's message."""
        return await self._messages.send(request)

    async def ListChannels(  # noqa: N802
        self, request: wire.ListChannelsRequest, _context: Any
    ) -> wire.ListChannelsResponse:
        """Answer which channels there are."""
        return await self._read(lambda connection: reads.list_channels(connection, request))

    async def GetConversation(  # noqa: N802
        self, request: wire.GetConversationRequest, _context: Any
    ) -> wire.Conversation:
        """Answer the newest turns of a channel."""
        return await self._read(lambda connection: reads.get_conversation(connection, request))

    async def WatchConversation(  # noqa: N802
        self, request: wire.WatchConversationRequest, context: Any
    ) -> AsyncIterator[wire.ConversationTurn]:
        """Send the turns of a channel, then each as it changes, whole; with `live`, what they say meanwhile."""
        await context.send_initial_metadata(())  # tells that the stream has begun, also where there is nothing yet
        runtime = self._runtime
        turns = watch_conversation(request, self._store, runtime.live, runtime.clock, lambda: self._closing)
        async with aclosing(turns):
            async for turn in turns:
                yield turn

    async def ListThreads(  # noqa: N802
        self, request: wire.ListThreadsRequest, _context: Any
    ) -> wire.ListThreadsResponse:
        """Answer threads, the newest first."""
        return await self._read(lambda connection: reads.list_threads(connection, request))

    async def ListInterrupts(  # noqa: N802
        self, request: wire.ListInterruptsRequest, _context: Any
    ) -> wire.ListInterruptsResponse:
        """Answer what authors are asked."""
        return await self._read(lambda connection: reads.list_interrupts(connection, request))

    async def ResolveInterrupt(  # noqa: N802
        self, request: wire.ResolveInterruptRequest, _context: Any
    ) -> wire.Interrupt:
        """Store an author's decision, then answer; the turn goes on with it."""
        asked = await self._read(lambda connection: get_interrupt(connection, request.interrupt_id))
        if asked is None or asked.kind == "pause":
            raise NotFound("no such approval", where="interrupt_id", hint="see: agent-runtime approvals list")
        decided = read_decision(request, asked)
        record = await self._store.decide(request.interrupt_id, decided, request.args_hash)
        self._runtime.log.emit(
            "interrupt.resolved", interrupt_id=record.interrupt_id, turn_id=record.turn_id, decision=record.decision
        )
        self._runtime.worker.answered(record.thread_id)
        return interrupt_message(record)

    async def ListCandidates(  # noqa: N802
        self, request: wire.ListCandidatesRequest, _context: Any
    ) -> wire.ListCandidatesResponse:
        """Answer what agents proposed."""
        return await self._read(lambda connection: reads.list_candidates(connection, request))

    async def DecideCandidate(  # noqa: N802
        self, request: wire.DecideCandidateRequest, _context: Any
    ) -> wire.Candidate:
        """Take an author's decision about a proposal."""
        decided = await self._runtime.workspace.decide_candidate(
            request.candidate_id, accept=request.accept, note=request.note
        )
        return candidate_message(decided)

    async def ListCategories(  # noqa: N802
        self, _request: wire.ListCategoriesRequest, _context: Any
    ) -> wire.ListCategoriesResponse:
        """Answer which categories there are, also those that cannot be used."""
        return wire.ListCategoriesResponse(
            categories=[category_message(entry) for entry in self._runtime.categories.all()]
        )

    async def _read(self, work: Callable[[Connection], T]) -> T:
        return await self._store.read(work)
