"""The `AgentRuntime` service: one method per method of the contract, over the parts of a running runtime.

Reading methods come from `READS` (`reads.py`), those of the workspace from `WorkspaceService`. `TurnLookup` finds and
cancels turns, `MessageIntake` accepts authors' messages, and `FireIntake` accepts fires. The server's interceptor
converts errors to statuses.
"""

import hashlib
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection

from agent_runtime.graph.checkpointer.saver import GroupedSaver
from agent_runtime.graph.engine.model_output import LiveOutput
from agent_runtime.graph.engine.protocol import Engines
from agent_runtime.mailbox.acceptor import Acceptor
from agent_runtime.mailbox.mailboxes import Mailboxes
from agent_runtime.model.approval import AuthorDecision, read_decision
from agent_runtime.model.decide import FINISHED
from agent_runtime.model.graphs import Catalog
from agent_runtime.model.mapping import to_message
from agent_runtime.model.trigger import OF_GRAPH, WAKES, Trigger, header_of, message_key
from agent_runtime.model.turn import Category, KeyRecord, TurnRecord
from agent_runtime.permissions.categories import Categories, CategoryEntry
from agent_runtime.permissions.exceptions import ForTask
from agent_runtime.service import reads
from agent_runtime.service.requests import FireIntake, input_of, read_label, read_message, read_request_id
from agent_runtime.service.streams import BridgedStream, watch_conversation, watch_turns
from agent_runtime.service.thread_records import channel_of, described_in, put_thread, refuse_withdrawn
from agent_runtime.service.workspace import WorkspaceService, with_reads
from agent_runtime.store import turn_reads
from agent_runtime.store.mail import terminal_delivery_of_turn
from agent_runtime.store.turn_store import Store
from agent_runtime.store.turn_writes import kept
from agent_runtime.turns.exceptions import StandingExceptions
from agent_runtime.turns.worker import Worker
from agent_runtime.workspace.memory import Namespaces
from agent_runtime.workspace.workspace import Workspace
from turnkeeper.bus.envelope import turn_id_of
from turnkeeper.bus.event_log import EventLog
from turnkeeper.clock import Clock
from turnkeeper.config.surfaces import offered
from turnkeeper.entropy import Entropy
from turnkeeper.errors import Conflict, InvalidInput, NotFound
from turnkeeper.rpc.callers import Rules, current
from turnkeeper.rpc.channel import Greeting
from turnkeeper.rpc.forms import question_of
from turnkeeper.storage.nodes import Beat
from turnkeeper.times import rfc3339
from turnkeeper.v1 import agent_runtime_pb2 as wire
from turnkeeper.v1.agent_runtime_pb2_grpc import AgentRuntimeServicer


@dataclass(frozen=True, kw_only=True)
class Runtime:
    """The parts of the service; nothing runs until `worker` is started.

    `namespaces` holds, by graph, the rules for the namespaces of its store; the default graph comes first. `trouble`
    returns the machine trouble that blocks a part; empty if there is none.
    """

    store: Store
    checkpoints: GroupedSaver
    acceptor: Acceptor
    worker: Worker
    mailboxes: Mailboxes
    categories: Categories
    exceptions: StandingExceptions
    catalog: Catalog
    engines: Engines
    workspace: Workspace
    namespaces: Mapping[str, Namespaces]
    live: LiveOutput
    log: EventLog
    clock: Clock
    entropy: Entropy
    trouble: Callable[[], str]
    beat: Beat | None = None  # with a shared store: reports to other machines that this one is running


# The access rules for callers of the service.
RULES = Rules(
    peer="task-runner",
    reads=frozenset(
        {
            *("GetTurn", "ListTurns", "WatchTurns", "ListThreads", "GetThread", "ListChannels", "GetConversation"),
            *("WatchConversation", "ListInterrupts", "ListExceptions", "ListCandidates", "ListCategories"),
            *("ListGraphs", "DescribeGraph", "ListAssistants", "GetState", "ListStates", "WatchRun"),
            *("GetPage", "GetAttachment", "ListAttachments", "ListDeviations", "GetDeviation", "ListRevalidation"),
            *("ListPages", "ListWaitingRuns", "ListMemory", "GetMemory", "SearchMemory", "ListMemoryNamespaces"),
        }
    ),
    acts={
        "CancelTurn": "answer.turn_id",
        "SendMessage": "answer.turn_id",
        "ImportThreads": "answer.threads.thread_id",
        "PutThread": "answer.thread_id",
        "WithdrawThread": "answer.thread_id",
        "PutAssistant": "answer.assistant_id",
        "DropAssistant": "answer.assistant_id",
        "ResolveInterrupt": "answer.interrupt_id",
        "ResolveInterrupts": "answer.interrupts.interrupt_id",
        "RevokeException": "answer.number",
        "DecideCandidate": "answer.candidate_id",
        "PutPage": "answer.page_id",
        "ImportPages": "answer.pages.page_id",
        "PutAttachment": "answer.page_id",
        "ResolveDeviation": "answer.deviation_id",
        "PutMemory": "answer.entry_id",
        "UpdateMemory": "answer.entry_id",
        "ForgetMemory": "answer.entry_id",
    },
    author_fields={
        "ResolveInterrupt": ("for_task", "any_value"),
        "ResolveInterrupts": ("decisions.for_task", "decisions.any_value"),
    },
    # A reader of bridged events sets which events are kept or deleted, and ends the previous reader's call.
    reserved_methods=frozenset({"Fire", "FireStream", "FireBatches", "WatchEvents"}),
)
LONGEST_REASON = 1000
MOST_DECISIONS = 1000
_UNFINISHED = ("running", "accepted")
_WITHOUT_TURN = {"held": "held", "kept": "kept", "refused": "failed", "turn": "accepted"}


class TurnLookup:
    """Look-up of turns by id, or by fire and attempt."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    async def get_turn(self, request: wire.GetTurnRequest | wire.CancelTurnRequest, _context: Any = None) -> wire.Turn:
        """Return a turn, or a placeholder if a fire or message has no turn yet. Raises NotFound, InvalidInput."""
        if bool(request.turn_id) == bool(request.fire_id):
            raise InvalidInput("give either a turn id or a fire id", where="turn_id")
        wanted = request.turn_id or turn_id_of(request.fire_id, request.attempt)
        waiting = await self._waiting(wanted)  # read first: an envelope leaves only after its key row is on disk
        found = await self._runtime.store.read(lambda connection: _find(connection, wanted))
        if found is None:
            if waiting is None:
                raise NotFound(f"no turn {wanted[:80]!r}", where="turn_id", hint="see: turnkeeper turns list")
            found = waiting
            found.cancel_requested = await self._runtime.store.read(turn_reads.is_cancelled, wanted)
        if found.status in _UNFINISHED and (waits := self._runtime.worker.waits.get(found.thread_id)):
            found.error = f"waits: {waits}"
        return found

    async def cancel_turn(self, request: wire.CancelTurnRequest, _context: Any = None) -> wire.Turn:
        """Store a cancellation and have it carried out; a turn that has ended does not change.

        If the fire has not arrived yet, its start obeys the stored cancellation. Raises NotFound, InvalidInput.
        """
        reason = request.reason[:LONGEST_REASON] or "cancelled"
        try:
            turn = await self.get_turn(request)
        except NotFound:
            if not request.fire_id:
                raise
            turn_id = turn_id_of(request.fire_id, request.attempt)
            await self._runtime.store.cancel(turn_id, reason)
            return wire.Turn(turn_id=turn_id, fire_id=request.fire_id, attempt=request.attempt, cancel_requested=True)
        if turn.status in FINISHED | {"held", "delivered"}:
            return turn
        spares = request.unless_waiting
        if await self._runtime.worker.cancel(turn.turn_id, turn.thread_id, reason, unless_waiting=spares):
            turn.cancel_requested = True
        return turn

    async def _waiting(self, turn_id: str) -> wire.Turn | None:
        """Return a placeholder for a trigger whose envelope is in an inbox, or is claimed but not begun."""
        known = await self._runtime.mailboxes.of_turn(turn_id)
        if known is None:
            return None
        return to_message(wire.Turn, known, status="accepted", trigger="fire" if known.fire_id else "author")


def _delivered(connection: Connection, turn_id: str) -> wire.Turn | None:
    """Return a placeholder for a fire that was put into the inbox of an agent that the runtime does not host."""
    laid = terminal_delivery_of_turn(connection, turn_id)
    if laid is None:
        return None
    status = "accepted" if laid.state == "waiting" else laid.state
    progress = reads.progress_fields(connection, turn_id)
    return to_message(wire.Turn, laid, status=status, trigger="fire", error=laid.reason, **progress)


def _find(connection: Connection, turn_id: str) -> wire.Turn | None:
    turn = turn_reads.get_turn(connection, turn_id)
    if turn is not None:
        return reads.turn_message(connection, turn)
    key = turn_reads.key_of_turn(connection, turn_id)
    if key is None:
        return _delivered(connection, turn_id)
    if key.became == "answer":
        return _find(connection, key.into)
    if key.became == "turn":  # the turn was pruned
        return None
    event = turn_reads.newest_event(connection, turn_id)
    return to_message(
        wire.Turn,
        next((header_of(one) for one in kept(connection, key.thread_id) if one.key == key.key), key),
        status=_WITHOUT_TURN[key.became],
        trigger="fire" if key.fire_id else "author",
        summary=_why_kept(connection, key) if key.became == "kept" else "",
        error=event.error if event else "",
        fired_at=key.at if key.fire_id else None,
        **reads.progress_fields(connection, turn_id),
    )


def _why_kept(connection: Connection, key: KeyRecord) -> str:
    before = turn_reads.bearing_on_thread(connection, key.thread_id, besides=key.turn_id)
    if before is None or before.status != "paused" or before.paused_until is None:
        return "the message waits for your decision"
    until = rfc3339(before.paused_until.replace(microsecond=0))
    return f"the message waits for the next fire of {before.task_name}, at most until {until}"


class MessageIntake:
    """The intake of authors' messages."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._newest: dict[str, tuple[str, str]] = {}  # turn and thread of the newest message, by channel

    async def send_message(self, request: wire.SendMessageRequest, _context: Any = None) -> wire.SendMessageResponse:
        """Accept a message; its envelope is on disk before the answer. Raises InvalidInput, Conflict, Exhausted."""
        request_id = read_request_id(request.request_id or self._runtime.entropy.hex(32))
        channel = read_label(request.channel or await self._channel_of(request), "channel")
        self._check_agent(request.agent)
        thread_id, beside = await self._thread_of(request, channel, request_id)
        turn_id = turn_id_of("message", request_id)
        look = await self._runtime.store.read(_look, thread_id, turn_id)
        if request.look:
            return wire.SendMessageResponse(thread_id=thread_id, beside=beside, **look)
        to = {"channel": channel, "thread_id": thread_id}
        trigger = read_message(request, self._runtime.categories.get, **to, request_id=request_id)
        look["answers"] = None if trigger.asks_for("no_answer") else look["answers"]
        if look["answers"] is not None:
            question_of(look["answers"]).check(request.text)
        await self._check_graph(trigger, answers=look["answers"] is not None)
        receipt = await self._runtime.acceptor.accept(trigger)
        self._newest[channel] = (trigger.turn_id, thread_id)
        look["takes_over"] = "" if request.keep_loop else look["takes_over"]
        look |= {"turn_id": receipt.header.turn_id, "thread_id": thread_id, "duplicate": not receipt.fresh}
        return wire.SendMessageResponse(beside=beside, **look)

    async def _channel_of(self, request: wire.SendMessageRequest) -> str:
        """Return the message's channel, or else the channel of its thread; empty if the message names neither."""
        if not request.thread_id:
            return ""
        return await self._runtime.store.read(channel_of, request.thread_id)

    def _check_agent(self, name: str) -> None:
        known = self._runtime.mailboxes.agents
        if name and name not in known:
            hint = f"hosted agents: {', '.join(sorted(known))}"
            raise InvalidInput(f"{name[:40]!r} is not an agent that is hosted here", where="agent", hint=hint)

    async def _check_graph(self, trigger: Trigger, *, answers: bool) -> None:
        """Raise Conflict if the graph cannot run on this thread, or InvalidInput if it would refuse the input."""
        if not any(getattr(trigger, name) for name in OF_GRAPH):
            return
        if trigger.graph:
            self._runtime.catalog.require(trigger.graph)
        newest = await self._runtime.store.read(turn_reads.newest_on_thread, trigger.thread_id)
        if newest is not None and (why := self._runtime.catalog.belongs_elsewhere(trigger, newest.graph)):
            raise Conflict(why, where="graph", hint="or omit the graph")
        if not answers:
            self._runtime.engines.unread(trigger, newest)

    async def _thread_of(self, request: wire.SendMessageRequest, channel: str, request_id: str) -> tuple[str, str]:
        """Return a message's thread, and the loop of the channel's newest turn if the message bypasses that loop."""
        lying = (await self._runtime.mailboxes.find([message_key(request_id)])).get(message_key(request_id))
        if lying is not None:
            return lying.thread_id, ""
        if request.new_thread and request.thread_id:
            raise InvalidInput(
                "cannot be given together with new_thread", where="thread_id", hint="give thread_id or new_thread"
            )
        named = read_label(request.thread_id, "thread_id") if request.thread_id else ""
        drawn = f"thread-{hashlib.sha256(request_id.encode()).hexdigest()[:8]}"

        def work(connection: Connection) -> tuple[str, str]:
            taken = turn_reads.get_keys(connection, [message_key(request_id)])
            if taken:
                return next(iter(taken.values())).thread_id, ""
            if named:
                _refuse_foreign(connection, named, channel)
            if named or request.new_thread:
                return named or drawn, ""
            turn_id, of_newest = self._newest.get(channel, ("", ""))
            if turn_id and turn_reads.key_of_turn(connection, turn_id) is None:
                return of_newest, ""  # the newest message has no turn yet; the next message joins its thread
            newest, beside = turn_reads.newest_visible(connection, channel), ""
            loop = _loop_on(connection, newest.thread_id) if newest is not None else None
            if loop is not None and loop.thread_id == loop.task_id:
                # Only a message to the loop's own conversation takes the loop over.
                newest, beside = turn_reads.newest_visible(connection, channel, loops=False), _called(loop)
            return newest.thread_id if newest else drawn, beside

        return await self._runtime.store.read(work)


def _refuse_foreign(connection: Connection, thread_id: str, channel: str) -> None:
    refuse_withdrawn(connection, thread_id)
    newest = turn_reads.newest_on_thread(connection, thread_id)
    own = newest.channel if newest is not None else described_in(connection, thread_id)
    if own not in {"", channel}:
        what = f"thread {thread_id} belongs to channel {own}"
        raise Conflict(what, where="thread_id", hint="send the message into that channel")


def _look(connection: Connection, thread_id: str, turn_id: str) -> dict[str, Any]:
    """Return the state of the thread that a message meets. A repeated message does not answer a second question."""
    before = turn_reads.newest_on_thread(connection, thread_id, besides=turn_id)
    asked, loop = turn_reads.open_interrupts(connection, thread_id), _loop_on(connection, thread_id, turn_id)
    waiting = [one for one in asked if one.status == "pending" and one.kind != "pause"]
    texts = [one for one in waiting if one.allows_text and turn_reads.key_of_turn(connection, turn_id) is None]
    return {
        "continues": before is not None,
        "answers": to_message(wire.Interrupt, texts[0]) if texts else None,
        "pending_interrupts": [one.interrupt_id for one in waiting],
        "takes_over": _called(loop) if loop is not None else "",
    }


def _loop_on(connection: Connection, thread_id: str, besides: str = "") -> TurnRecord | None:
    """Return the newest turn of the self-paced loop that is active on a thread; None if there is none."""
    newest = turn_reads.newest_that_decides(connection, thread_id, besides=besides)
    return newest if newest is not None and _paces_itself(newest) else None


def _called(turn: TurnRecord) -> str:
    """Return the author's name for a turn's task; lists show a loop by its id."""
    return turn.task_id if turn.task_id.startswith("loop-") else turn.task_name


def _paces_itself(turn: TurnRecord) -> bool:
    """Return True if a turn belongs to a self-paced loop that would continue after it, as far as the runtime knows."""
    ended_well = turn.status in {"succeeded", "silent"}
    return turn.kind in WAKES and not (ended_well and turn.wake_after_s is None)


@with_reads
class Servicer(WorkspaceService):
    """The service over the parts of a running runtime."""

    def __init__(self, runtime: Runtime) -> None:
        lookup, messages = TurnLookup(runtime), MessageIntake(runtime)
        self._runtime = runtime
        self._store = runtime.store
        self._fires = FireIntake(runtime.acceptor, runtime.categories, runtime.catalog)
        self._closing = False
        self.workspace, self.namespaces = runtime.workspace, runtime.namespaces
        self.GetTurn = lookup.get_turn
        self.CancelTurn = lookup.cancel_turn
        self.SendMessage = messages.send_message
        self.Fire = self._fires.fire
        self._of_surfaces: Any = offered("rpc", runtime) or AgentRuntimeServicer()  # type: ignore[abstract]

    def __getattr__(self, method: str) -> Any:
        """Return a method that a surface implements; without the surface, the method is not implemented."""
        return getattr(self._of_surfaces, method)

    def refuse_fires(self) -> None:
        """Refuse fires from now on, and end the streams of fires; accepted fires are still reported."""
        self._fires.refuse()

    def close(self) -> None:
        """End the streams that never end on their own, so that the server can stop at once."""
        self._of_surfaces.closing = True
        self._closing = True
        self._store.events.notify()
        self._store.conversations.notify()
        self._store.event_source.news.notify()

    async def FireStream(
        self, requests: AsyncIterator[wire.FireRequest], context: Any
    ) -> AsyncIterator[wire.FireReceipt]:
        """Accept a stream of fires; send one receipt each, in order. Initial metadata signals readiness."""
        self._fires.check()
        await context.send_initial_metadata(())
        async with aclosing(self._fires.each(requests)) as receipts:
            async for receipt in receipts:
                yield receipt

    async def FireBatches(
        self, batches: AsyncIterator[wire.FireBatch], context: Any
    ) -> AsyncIterator[wire.ReceiptBatch]:
        """Accept a stream of batches of fires; see FireStream for the other rules."""
        self._fires.check()
        await context.send_initial_metadata(())
        async with aclosing(self._fires.batches(batches)) as receipts:
            async for receipt in receipts:
                yield receipt

    async def WatchTurns(self, request: wire.WatchTurnsRequest, context: Any) -> AsyncIterator[wire.TurnEvent]:
        """Send turn events in order from a sequence on, then live."""
        async for event in watch_turns(self._store, request, context, lambda: self._closing):
            yield event

    async def WatchEvents(self, request: wire.WatchEventsRequest, context: Any) -> AsyncIterator[wire.BridgedEvent]:
        """Send events from inside turns with the requested names; see the contract for the fields of the call."""
        stream = await BridgedStream.open(self._store, request)
        greeting = Greeting(incarnation=self._store.incarnation, after=stream.after)
        await context.send_initial_metadata(greeting.to_metadata())
        async for event in stream.events(lambda: self._closing):
            yield event

    async def WatchConversation(
        self, request: wire.WatchConversationRequest, context: Any
    ) -> AsyncIterator[wire.ConversationTurn]:
        """Send the turns of a channel, then each turn again when it changes; with `live`, also running text."""
        await context.send_initial_metadata(())  # signals that the stream has begun, even if there are no turns yet
        runtime = self._runtime
        turns = watch_conversation(request, self._store, runtime.live, runtime.clock, lambda: self._closing)
        async with aclosing(turns):
            async for turn in turns:
                yield turn

    async def PutThread(self, request: wire.PutThreadRequest, _context: Any) -> wire.Thread:
        """Write an author's description of a thread, which may have no turn yet."""
        for field in ("thread_id", "channel"):
            read_label(getattr(request, field) or field, field)
        at, via = self._runtime.clock.now(), str(current())
        new_id = f"thread-{self._runtime.entropy.hex(8)}"
        return await self._store.write(put_thread, request, at, new_id=new_id, via=via)

    async def ResolveInterrupt(self, request: wire.ResolveInterruptRequest, _context: Any) -> wire.Interrupt:
        """Store an author's decision, then answer; the turn resumes with the decision."""
        (record,) = await self._decide(wire.ResolveInterruptsRequest(decisions=[request]))
        return record

    async def ResolveInterrupts(
        self, request: wire.ResolveInterruptsRequest, _context: Any
    ) -> wire.ResolveInterruptsResponse:
        """Store several decisions in one transaction, all or none, then answer; each thread resumes once."""
        ids = [one.interrupt_id for one in request.decisions]
        if not 1 <= len(ids) <= MOST_DECISIONS:
            raise InvalidInput(f"must be 1 to {MOST_DECISIONS} decisions, not {len(ids)}", where="decisions")
        if twice := next((one for one in ids if ids.count(one) > 1), ""):
            raise InvalidInput(f"approval {twice[:64]} is decided twice", where="decisions")
        if any(one.for_task for one in request.decisions):
            what = "a standing exception is given with one approval, never with several decisions"
            raise InvalidInput(what, where="for_task", hint="run: turnkeeper approvals approve ID --for-task")
        return wire.ResolveInterruptsResponse(interrupts=await self._decide(request))

    async def ListExceptions(self, request: wire.ListExceptionsRequest, _context: Any) -> wire.ListExceptionsResponse:
        """Return the standing exceptions, newest first, after ending those that are no longer valid."""
        await self._runtime.exceptions.review(request.task_id)
        return await self._store.read(reads.list_exceptions, request)

    async def RevokeException(self, request: wire.RevokeExceptionRequest, _context: Any) -> wire.StandingException:
        """End a standing exception; later calls need approval again."""
        return reads.exception_message(await self._runtime.exceptions.revoke(request.number, str(current())))

    async def _decide(self, request: wire.ResolveInterruptsRequest) -> list[wire.Interrupt]:
        decisions = [(one.interrupt_id, await self._read_decision(one), one.args_hash) for one in request.decisions]
        for_task = await self._for_task(request.decisions[0])
        run = {"stream_modes": [*request.stream_modes], "stream_subgraphs": request.stream_subgraphs}
        records = await self._store.decide(decisions, str(current()), for_task, run if request.stream_modes else None)
        for record in records:
            given: dict[str, Any] = {"exception": record.exception} if record.exception else {}
            self._runtime.log.emit(
                "interrupt.resolved", interrupt_id=record.interrupt_id, turn_id=record.turn_id,
                decision=record.decision, via=record.decided_by, waited_s=record.waited_s, **given,
            )  # fmt: skip
        for thread_id in {record.thread_id for record in records}:
            self._runtime.worker.answered(thread_id)
        return [to_message(wire.Interrupt, record) for record in records]

    async def _for_task(self, request: wire.ResolveInterruptRequest) -> ForTask | None:
        """Return the standing exception requested with an approval, or None. Raises InvalidInput, Denied."""
        if not request.for_task:
            if request.any_value:
                raise InvalidInput("is valid only with for_task", where="any_value")
            return None
        if request.decision != "approve":
            raise InvalidInput("only an approval can be extended to the task", where="for_task")
        asked = await self._store.read(turn_reads.get_interrupt, request.interrupt_id)
        category = self._runtime.categories.get(asked.category if asked is not None else "")
        return ForTask(any_value=tuple(dict.fromkeys(request.any_value)), category=category)

    async def _read_decision(self, request: wire.ResolveInterruptRequest) -> AuthorDecision:
        asked = await self._store.read(lambda connection: turn_reads.get_interrupt(connection, request.interrupt_id))
        if asked is None or asked.kind == "pause":
            what = f"no such approval: {request.interrupt_id[:64]}" if request.interrupt_id else "no such approval"
            raise NotFound(what, where="interrupt_id", hint="see: turnkeeper approvals list")
        return read_decision(request, asked)

    async def ListCategories(self, _request: wire.ListCategoriesRequest, _context: Any) -> wire.ListCategoriesResponse:
        """Return the categories, including those that are not usable."""
        return wire.ListCategoriesResponse(categories=[_category(entry) for entry in self._runtime.categories.all()])

    async def ListGraphs(self, request: wire.ListGraphsRequest, _context: Any) -> wire.ListGraphsResponse:
        """Return the graphs and assistants that a fire or a message may name, including those that cannot run.

        Raises InvalidInput if a graph would refuse one of the request's inputs.
        """
        graphs = [to_message(wire.Graph, one) for one in self._runtime.catalog.entries()]
        inputs = [input_of(one, self._runtime.categories.get) for one in request.inputs]
        threads = {one.thread_id: await self._store.look(turn_reads.newest_on_thread, one.thread_id) for one in inputs}
        warnings = filter(None, (self._runtime.engines.unread(one, threads[one.thread_id]) for one in inputs))
        return wire.ListGraphsResponse(graphs=graphs, warnings=warnings)


def _category(entry: CategoryEntry) -> wire.Category:
    category = entry.category or Category(name=entry.name)
    sets = {name: sorted(getattr(category, name)) for name in ("tools", "writes", "memory")}
    found = {"source": entry.source, "overrides_shipped": entry.overrides_shipped, "problem": entry.problem}
    return to_message(wire.Category, category, **sets, **found)
