"""The `AgentRuntime` service: one method for each of the contract's.

Methods that read come from `READS` (`reads.py`), those of the workspace from `WorkspaceService`; the others call the
acceptor, the worker and the store. The server's interceptor turns errors into statuses; in a stream of fires each is a
receipt.
"""

from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

from agent_runtime.model.approval import read_decision
from agent_runtime.model.mapping import to_message
from agent_runtime.model.turn import Category
from agent_runtime.permissions.categories import CategoryEntry
from agent_runtime.service.fire_intake import FireIntake
from agent_runtime.service.runtime import Runtime
from agent_runtime.service.streams import BridgedStream, watch_conversation, watch_turns
from agent_runtime.service.turns import MessageIntake, TurnLookup
from agent_runtime.service.workspace import WorkspaceService, reads
from agent_runtime.store.turn_reads import get_interrupt
from protos.turnkeeper.v1 import agent_runtime_pb2 as wire
from turnkeeper.errors import NotFound
from turnkeeper.rpc.channel import Greeting


@reads
class Servicer(WorkspaceService):
    """The service over a running runtime."""

    def __init__(self, runtime: Runtime) -> None:
        lookup, messages = TurnLookup(runtime), MessageIntake(runtime)
        self._runtime = runtime
        self._store = runtime.store
        self._fires = FireIntake(runtime.acceptor, runtime.categories)
        self._closing = False
        self.workspace = runtime.workspace
        self.GetTurn = lookup.get_turn
        self.CancelTurn = lookup.cancel_turn
        self.SendMessage = messages.send_message
        self.Fire = self._fires.fire

    def refuse_fires(self) -> None:
        """Refuse fires from now on and end the streams of fires; accepted fires are still reported on."""
        self._fires.refuse()

    def close(self) -> None:
        """End the streams that would go on for ever, so that the server can stop at once."""
        self._closing = True
        self._store.events.notify()
        self._store.conversations.notify()
        self._store.event_source.news.notify()

    async def FireStream(  # noqa: N802
        self, requests: AsyncIterator[wire.FireRequest], context: Any
    ) -> AsyncIterator[wire.FireReceipt]:
        """Accept many fires; one receipt each, in order. The initial metadata say that they are taken."""
        self._fires.check()
        await context.send_initial_metadata(())
        async with aclosing(self._fires.each(requests)) as receipts:
            async for receipt in receipts:
                yield receipt

    async def FireBatches(  # noqa: N802
        self, batches: AsyncIterator[wire.FireBatch], context: Any
    ) -> AsyncIterator[wire.ReceiptBatch]:
        """Accept many fires, many to a message; otherwise as FireStream."""
        self._fires.check()
        await context.send_initial_metadata(())
        async with aclosing(self._fires.batches(batches)) as receipts:
            async for receipt in receipts:
                yield receipt

    async def WatchTurns(  # noqa: N802
        self, request: wire.WatchTurnsRequest, context: Any
    ) -> AsyncIterator[wire.TurnEvent]:
        """Send turn events in commit order, from a sequence on, then live."""
        async for event in watch_turns(self._store, request, context, lambda: self._closing):
            yield event

    async def WatchEvents(  # noqa: N802
        self, request: wire.WatchEventsRequest, context: Any
    ) -> AsyncIterator[wire.BridgedEvent]:
        """Send what happens inside turns, of the names asked for; see the contract for what a call declares."""
        stream = await BridgedStream.open(self._store, request)
        greeting = Greeting(incarnation=self._store.incarnation, after=stream.after)
        await context.send_initial_metadata(greeting.to_metadata())
        async for event in stream.events(lambda: self._closing):
            yield event

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

    async def ResolveInterrupt(  # noqa: N802
        self, request: wire.ResolveInterruptRequest, _context: Any
    ) -> wire.Interrupt:
        """Store an author's decision, then answer; the turn goes on with it."""
        asked = await self._store.read(lambda connection: get_interrupt(connection, request.interrupt_id))
        if asked is None or asked.kind == "pause":
            raise NotFound("no such approval", where="interrupt_id", hint="see: agent-runtime approvals list")
        decided = read_decision(request, asked)
        record = await self._store.decide(request.interrupt_id, decided, request.args_hash)
        self._runtime.log.emit(
            "interrupt.resolved", interrupt_id=record.interrupt_id, turn_id=record.turn_id, decision=record.decision
        )
        self._runtime.worker.answered(record.thread_id)
        return to_message(wire.Interrupt, record)

    async def ListCategories(  # noqa: N802
        self, _request: wire.ListCategoriesRequest, _context: Any
    ) -> wire.ListCategoriesResponse:
        """Return the categories, also those that cannot be used."""
        return wire.ListCategoriesResponse(categories=[_category(entry) for entry in self._runtime.categories.all()])


def _category(entry: CategoryEntry) -> wire.Category:
    category = entry.category or Category(name=entry.name)
    sets = {name: sorted(getattr(category, name)) for name in ("tools", "writes", "memory")}
    found = {"source": entry.source, "overrides_shipped": entry.overrides_shipped, "problem": entry.problem}
    return to_message(wire.Category, category, **sets, **found)
