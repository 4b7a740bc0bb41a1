"""The `AgentRuntime` service: requests in, answers out; what they mean is decided elsewhere.

Reads are functions of a connection (`agent_runtime/reading.py`); changes go through the acceptor, the worker, the store
and the world. Errors leave as statuses by the server's interceptor, and within `FireStream` as one receipt each.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, TypeVar

from sqlalchemy import Connection

from agent_runtime import reading
from agent_runtime.accept import Receipt
from agent_runtime.answers import read_decision
from agent_runtime.assembly import Runtime
from agent_runtime.bridged_stream import BridgedStream
from agent_runtime.conversation import interrupt_message
from agent_runtime.lookups import Lookups
from agent_runtime.memories import Memories
from agent_runtime.messages import Messages
from agent_runtime.requests import read_again, read_fire
from agent_runtime.stores.queries import events_after, get_interrupt, newest_sequence
from agent_runtime.watching import event_message
from agent_runtime.world.model import PageDraft
from agent_runtime.world.wire import candidate_message, category_message, page_message
from protos.turnkeeper.v1 import agent_runtime_pb2 as wire
from turnkeeper.errors import Conflict, NotFound, TurnkeeperError, Unreachable
from turnkeeper.rpc.errors import code_of
from turnkeeper.rpc.greeting import Greeting

MOST_UNANSWERED = 2048  # requests of one stream whose receipts are still to come
T = TypeVar("T")
Accepting = tuple[wire.FireRequest, "asyncio.Future[Receipt] | TurnkeeperError"]


class Servicer(Memories):
    """One method for each of the service's."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._store = runtime.store
        self._lookups = Lookups(runtime)
        self._messages = Messages(runtime)
        self._remembering = runtime.world.memory
        self._closing = False
        self._refusing = asyncio.Event()

    def refuse_fires(self) -> None:
        """Accept no fire from now on and end the streams of fires; what was accepted is still reported on."""
        self._refusing.set()

    def close(self) -> None:
        """End the streams that would go on for ever, so that the server can stop at once."""
        self._closing = True
        self._store.events.ring()
        self._store.talk.ring()
        self._store.bridge.news.ring()

    async def Fire(self, request: wire.FireRequest, _context: Any) -> wire.FireReceipt:  # noqa: N802
        """Accept one fire; its envelope is on disk when this answers."""
        self._check_accepting()
        return _receipt(request, await self._queue(request))

    async def FireStream(  # noqa: N802
        self, requests: AsyncIterator[wire.FireRequest], context: Any
    ) -> AsyncIterator[wire.FireReceipt]:
        """Accept many fires; one receipt each, in order. The initial metadata say that they are taken."""
        self._check_accepting()
        await context.send_initial_metadata(())
        accepting: asyncio.Queue[Accepting | None] = asyncio.Queue(MOST_UNANSWERED)

        async def take() -> None:
            try:
                async for request in requests:
                    await accepting.put((request, self._begin(request)))
            except Exception:
                await accepting.put(None)
                raise
            await accepting.put(None)

        async def refuse() -> None:
            await self._refusing.wait()
            taking.cancel()
            await accepting.put(None)

        taking = asyncio.create_task(take(), name="fire-stream")
        refusing = asyncio.create_task(refuse(), name="fire-stream-end")
        try:
            while (item := await accepting.get()) is not None:
                yield await _answer(*item)
            if not taking.cancelling():
                await taking
        finally:
            taking.cancel()
            refusing.cancel()

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
        return await self._read(lambda connection: reading.list_turns(connection, request))

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
        return await self._read(lambda connection: reading.list_channels(connection, request))

    async def GetConversation(  # noqa: N802
        self, request: wire.GetConversationRequest, _context: Any
    ) -> wire.Conversation:
        """Answer the newest turns of a channel."""
        return await self._read(lambda connection: reading.get_conversation(connection, request))

    async def WatchConversation(  # noqa: N802
        self, request: wire.WatchConversationRequest, _context: Any
    ) -> AsyncIterator[wire.ConversationTurn]:
        """Send the turns of a channel, then each as it changes, whole."""
        asked = wire.GetConversationRequest(channel=request.channel, limit=request.limit)
        sent: dict[str, bytes] = {}
        while not self._closing:
            news = self._store.talk.next()
            found = await self._read(lambda connection: reading.get_conversation(connection, asked))
            now = {turn.turn_id: turn.SerializeToString(deterministic=True) for turn in found.turns}
            for turn in found.turns:
                if sent.get(turn.turn_id) != now[turn.turn_id]:
                    yield turn
            sent = now
            await news.wait()

    async def ListInterrupts(  # noqa: N802
        self, request: wire.ListInterruptsRequest, _context: Any
    ) -> wire.ListInterruptsResponse:
        """Answer what authors are asked."""
        return await self._read(lambda connection: reading.list_interrupts(connection, request))

    async def ResolveInterrupt(  # noqa: N802
        self, request: wire.ResolveInterruptRequest, _context: Any
    ) -> wire.Interrupt:
        """Store an author's decision, then answer; the turn goes on with it."""
        asked = await self._read(lambda connection: get_interrupt(connection, request.interrupt_id))
        if asked is None or asked.kind == "pause":
            raise NotFound("no such interrupt", where="interrupt_id", hint="see: agent-runtime interrupts list")
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
        return await self._read(lambda connection: reading.list_candidates(connection, request))

    async def DecideCandidate(  # noqa: N802
        self, request: wire.DecideCandidateRequest, _context: Any
    ) -> wire.Candidate:
        """Take an author's decision about a proposal."""
        decided = await self._runtime.world.decide_candidate(
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

    async def ListPages(self, request: wire.ListPagesRequest, _context: Any) -> wire.ListPagesResponse:  # noqa: N802
        """Answer the workspace's pages without their bodies."""
        return await self._read(lambda connection: reading.list_pages(connection, request))

    async def GetPage(self, request: wire.GetPageRequest, _context: Any) -> wire.Page:  # noqa: N802
        """Answer one page."""
        return await self._read(lambda connection: reading.get_page(connection, request))

    async def PutPage(self, request: wire.PutPageRequest, _context: Any) -> wire.Page:  # noqa: N802
        """Write an author's page."""
        draft = PageDraft(page_id=request.page_id, title=request.title, body=request.body, tags=tuple(request.tags))
        return page_message(await self._runtime.world.put_page(draft))

    async def _read(self, work: Callable[[Connection], T]) -> T:
        return await self._store.read(work)

    def _queue(self, request: wire.FireRequest) -> "asyncio.Future[Receipt]":
        acceptor, get_category = self._runtime.acceptor, self._runtime.categories.get
        try:
            return acceptor.queue(read_fire(request, get_category))
        except Conflict as refusal:  # what was accepted before its category went is still a duplicate
            return acceptor.queue(read_again(request), refusal=refusal)

    def _check_accepting(self) -> None:
        if self._refusing.is_set():
            raise Unreachable("agent-runtime is stopping")

    def _begin(self, request: wire.FireRequest) -> "asyncio.Future[Receipt] | TurnkeeperError":
        try:
            return self._queue(request)
        except TurnkeeperError as error:
            return error


async def _answer(
    request: wire.FireRequest, accepting: "asyncio.Future[Receipt] | TurnkeeperError"
) -> wire.FireReceipt:
    try:
        if isinstance(accepting, TurnkeeperError):
            raise accepting
        return _receipt(request, await accepting)
    except TurnkeeperError as error:
        refused = wire.FireError(code=code_of(error), message=error.what, field=error.where)
        return wire.FireReceipt(fire_id=request.fire_id, attempt=request.attempt, error=refused)


def _receipt(request: wire.FireRequest, receipt: Receipt) -> wire.FireReceipt:
    return wire.FireReceipt(
        fire_id=request.fire_id,
        attempt=request.attempt,
        turn_id=receipt.trigger.turn_id,
        disposition=wire.FireReceipt.ACCEPTED if receipt.fresh else wire.FireReceipt.DUPLICATE,
    )
