"""The methods of the runtime that LangGraph's clients need: states of threads, descriptions of graphs, withdrawal."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from sqlalchemy import Connection, select, update

from agent_runtime.graph.engine.protocol import Engine
from agent_runtime.graph.engine.states import no_state, state_of, to_json
from agent_runtime.model.decide import UNFINISHED
from agent_runtime.model.mapping import to_message
from agent_runtime.model.trigger import TriggerHeader, header_of
from agent_runtime.service.assistants import drop_assistant, list_assistants, put_assistant
from agent_runtime.service.servicer import Runtime
from agent_runtime.service.thread_records import LARGEST_METADATA, get_thread
from agent_runtime.service.threads import ThreadImport
from agent_runtime.store.schema import envelopes, thread_records
from agent_runtime.store.turn_reads import bearing_on_thread, get_turn, newest_on_thread
from agent_runtime.store.turn_writes import kept
from turnkeeper.config.json_text import is_within, read_object
from turnkeeper.errors import Conflict, NotFound
from turnkeeper.rpc.callers import current
from turnkeeper.storage.statements import upsert
from turnkeeper.times import to_us
from turnkeeper.v1 import agent_runtime_pb2 as wire

MOST_STATES = 1000
PATIENCE_S = 2.0  # time to wait for the next event of a turn that ended on another machine


class LangGraph:
    """The methods of the service, over the parts of a running runtime."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime, self._store, self.closing = runtime, runtime.store, False
        parts = runtime.store, runtime.checkpoints, runtime.categories.get, runtime.catalog, runtime.worker.answered
        self.ImportThreads = ThreadImport(*parts).import_threads

    async def DescribeGraph(self, request: wire.DescribeGraphRequest, _context: Any) -> wire.GraphDescription:
        """Return a graph's nodes, schemas and subgraphs. Raises Conflict if the graph cannot run."""
        engine, xray = self._runtime.engines.of(request.graph), True if request.xray < 0 else request.xray
        given = await engine.describe(xray, request.namespace or None, request.recurse)
        return wire.GraphDescription(**{f"{name}_json": to_json(value) for name, value in given.items()})

    async def PutAssistant(self, request: wire.PutAssistantRequest, _context: Any) -> wire.Assistant:
        """Make or change an assistant. Raises AlreadyExists, Exhausted, InvalidInput, NotFound."""
        return await self._store.write(put_assistant, request, self._runtime.clock.now(), str(current()))

    async def ListAssistants(self, request: wire.ListAssistantsRequest, _context: Any) -> wire.ListAssistantsResponse:
        """Return the assistants that clients made, or one with all its versions."""
        return await self._store.read(list_assistants, request)

    async def DropAssistant(self, request: wire.DropAssistantRequest, _context: Any) -> wire.Assistant:
        """Delete an assistant. Raises NotFound."""
        return await self._store.write(drop_assistant, request)

    async def _engine(self, thread_id: str) -> Engine | None:
        """Return the engine of a thread's graph; None before the first turn. Raises NotFound, Conflict."""

        def look(connection: Connection) -> Any:
            get_thread(connection, wire.GetThreadRequest(thread_id=thread_id))
            return newest_on_thread(connection, thread_id)

        newest = await self._store.read(look)
        return None if newest is None else self._runtime.engines.of(newest.graph)

    async def GetState(self, request: wire.GetStateRequest, _context: Any) -> wire.State:
        """Return a state of a thread: the newest state unless the request names another state. Raises NotFound."""
        engine = await self._engine(request.thread_id)
        config = _config(request.thread_id, request.checkpoint_ns, request.checkpoint_id)
        if engine is None:
            snapshot = no_state(config)
        else:
            snapshot = await engine.state(config, subgraphs=request.subgraphs)
        if request.checkpoint_id and snapshot.created_at is None:
            raise NotFound(f"no checkpoint {request.checkpoint_id[:80]!r}", where="checkpoint_id")
        return wire.State(state_json=to_json(state_of(snapshot)))

    async def ListStates(self, request: wire.ListStatesRequest, _context: Any) -> wire.ListStatesResponse:
        """Return the states of a thread that are kept, newest first. Raises NotFound."""
        engine, wanted = (
            await self._engine(request.thread_id),
            read_object(request.metadata_json or "{}", where="metadata_json", longest=LARGEST_METADATA),
        )
        config = _config(request.thread_id, request.checkpoint_ns, "")
        before = _config(request.thread_id, request.checkpoint_ns, request.before) if request.before else None
        limit, found = min(request.limit or 10, MOST_STATES), []
        if engine is not None:
            async for snapshot in engine.history(config, before):
                state = state_of(snapshot)
                if is_within(wanted, state["metadata"]):
                    found.append(to_json(state))
                if len(found) >= limit:
                    break
        return wire.ListStatesResponse(states_json=found)

    async def ListWaitingRuns(self, request: wire.ListWaitingRunsRequest, _context: Any) -> wire.ListTurnsResponse:
        """Return the messages that wait on a thread, for its queue or for a decision, as turns; the newest first."""
        queued = await self._queued(request.thread_id)

        def look(connection: Connection) -> list[wire.Turn]:
            told = [to_message(wire.Turn, header_of(one), status="kept") for one in kept(connection, request.thread_id)]
            waiting = (one for one in queued if get_turn(connection, one.turn_id) is None)
            return [*told, *(to_message(wire.Turn, one, status="accepted") for one in waiting)]

        found = {turn.turn_id: turn for turn in await self._store.read(look)}
        return wire.ListTurnsResponse(turns=[*found.values()][::-1], total=len(found))

    async def _queued(self, thread_id: str) -> list[TriggerHeader]:
        """Return the triggers in the inboxes for a thread; if machines share the store, those of all machines."""
        mailboxes = self._runtime.mailboxes
        if not mailboxes.is_shared:
            return [one for one in mailboxes.queued() if one.thread_id == thread_id]
        keys = select(envelopes.c.key).where(envelopes.c.thread_id == thread_id).order_by(envelopes.c.number)
        waiting = await self._store.read(lambda connection: connection.execute(keys).scalars().all())
        return [*(await mailboxes.find(waiting)).values()]

    async def WatchRun(self, request: wire.WatchRunRequest, context: Any) -> AsyncIterator[wire.RunEvent]:
        """Send a thread's recorded run events, then new events live; for a turn without events here, send its state.

        Raises NotFound.
        """
        engine = await self._engine(request.thread_id)
        await context.send_initial_metadata(())
        events, turn = self._runtime.engines.events, await self._store.read(self._bearing, request)
        runs = turn is None or turn.status == "running" or request.resumed  # a resumed run may be over by now
        known = request.turn_id if turn is None else turn.turn_id
        with events.reading(request.thread_id, known, "" if runs else turn.status) as ring:
            async for event in self._watched(request, engine, ring, ("", "") if runs else (turn.turn_id, turn.status)):
                yield event

    async def _watched(
        self, request: wire.WatchRunRequest, engine: Engine | None, ring: Any, over: tuple[str, str]
    ) -> AsyncIterator[wire.RunEvent]:
        """Yield the events of a ring. `over` is a turn whose events are no longer awaited, and its state."""
        told, relayed = ("", ""), self._runtime.engines.events.relayed
        after = request.after or ring.start_of(request.turn_id, resumed=request.resumed)
        while not self.closing:
            news, stored = ring.changed.next(), self._store.conversations.next()
            for event in ring.after(after):
                after = event.number
                if request.turn_id in {"", event.turn_id}:
                    yield to_message(wire.RunEvent, event)
            turn = await self._store.read(self._bearing, request)
            here = turn is None or turn.status == "running" or ring.running == turn.turn_id
            if turn is not None and not here and (turn.turn_id, turn.status) not in {told, ring.stopped}:
                if relayed and (turn.turn_id, turn.status) not in {over, ring.incomplete}:
                    if not await self._runtime.clock.wait(news, PATIENCE_S):
                        over = turn.turn_id, turn.status
                    continue
                engine = engine or await self._engine(request.thread_id)
                config = _config(request.thread_id, "", "")
                values = {} if engine is None else (await engine.state(config)).values
                shown = [("values", values), ("status", {"status": turn.status})]
                begun = [("status", {"status": "running"})] if told[0] != turn.turn_id else []
                told = turn.turn_id, turn.status
                for mode, data in (*begun, *shown):
                    yield wire.RunEvent(turn_id=turn.turn_id, mode=mode, data_json=to_json(data))
                continue
            waits = [asyncio.ensure_future(one.wait()) for one in (news, stored)]
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            for one in waits:
                one.cancel()

    @staticmethod
    def _bearing(connection: Connection, request: wire.WatchRunRequest) -> Any:
        if request.turn_id:
            return get_turn(connection, request.turn_id)
        return bearing_on_thread(connection, request.thread_id)

    async def WithdrawThread(self, request: wire.WithdrawThreadRequest, _context: Any) -> wire.Thread:
        """Hide a thread from every list. Raises NotFound, or Conflict while one of its turns is not over."""
        at, via = to_us(self._runtime.clock.now()), str(current())

        def work(connection: Connection) -> wire.Thread:
            thread = get_thread(connection, wire.GetThreadRequest(thread_id=request.thread_id))
            bearing = bearing_on_thread(connection, request.thread_id)
            if bearing is not None and bearing.status in UNFINISHED:
                raise Conflict("a turn of the thread has not ended", where="thread_id", hint="cancel it first")
            row = {"thread_id": thread.thread_id, "channel": thread.channel, "metadata_json": "{}", "via": via}
            put = upsert(thread_records, [thread_records.c.thread_id], ["metadata_json", "via", "updated_at_us"])
            connection.execute(put.values(row | {"created_at_us": at, "updated_at_us": at}))
            is_it = thread_records.c.thread_id == thread.thread_id
            connection.execute(update(thread_records).where(is_it).values(withdrawn_at_us=at))
            return thread

        return await self._store.write(work)


def _config(thread_id: str, namespace: str, checkpoint_id: str) -> Any:
    named = {"checkpoint_id": checkpoint_id} if checkpoint_id else {}
    return {"configurable": {"thread_id": thread_id, "checkpoint_ns": namespace, **named}}
