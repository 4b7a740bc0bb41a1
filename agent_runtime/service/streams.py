"""Streams of turn events, of a growing conversation, and of bridged events.

The stream of bridged events serves one call at a time. The names that it asks to keep survive restarts.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext
from functools import partial
from typing import Any

from sqlalchemy import Connection

from agent_runtime.graph.engine.model_output import Listener, LiveOutput, OutputPiece
from agent_runtime.model.mapping import to_message
from agent_runtime.model.turn import EventRecord
from agent_runtime.service.reads import Changed, changed_turns, conversation_turns, newest_turns
from agent_runtime.service.thread_records import channel_of
from agent_runtime.store import turn_events, turn_reads
from agent_runtime.store.turn_events import MOST_SENT, NAMES, REVIEWS
from agent_runtime.store.turn_store import Store
from turnkeeper.clock import Clock
from turnkeeper.config.surfaces import required
from turnkeeper.errors import InvalidInput
from turnkeeper.rpc.callers import DAEMON, current
from turnkeeper.rpc.channel import Greeting
from turnkeeper.storage.statements import number_of
from turnkeeper.v1 import agent_runtime_pb2 as wire

REST_S = 0.05  # seconds between polls: too short for a person to notice, and long enough not to slow down turns
MOST_UNDECIDED = 200  # finished turns that are sent again after a decision on their proposals


async def watch_turns(
    store: Store, request: wire.WatchTurnsRequest, context: Any, is_closing: Callable[[], bool]
) -> AsyncIterator[wire.TurnEvent]:
    """Yield turn events in order from a sequence on, then live; all events if the sequence is foreign.

    A sequence above the newest sequence of this store is foreign, because an older copy of the store was restored.
    """
    same = request.incarnation == store.incarnation
    newest = await store.read(turn_reads.newest_sequence)
    after = request.after_sequence if same and 0 <= request.after_sequence <= newest else 0
    after, known, look = newest if request.from_now else after, set[int](), _EVENTS[request.details]
    if store.right.shared:
        first, look = max(0, newest - turn_reads.LARGEST_PAGE), partial(look, read=required("missing numbers").settled)
        if request.from_now:  # open transactions may commit events with lower numbers
            known = {one.sequence for one in await store.read(turn_reads.events_after, first) if one.sequence <= newest}
    await context.send_initial_metadata(Greeting(incarnation=store.incarnation, after=after).to_metadata())
    after = first if known else after
    via = current()
    by_runner = (via.program, via.surface) == ("task-runner", DAEMON)  # the caller has proved the right to cancel
    while True:
        closing, news, since = is_closing(), store.events.next(), after
        if by_runner:
            store.read_up_to = since
        found = await store.look(look, since)
        for event in found:
            after = event.sequence
            if (request.details or event.state not in REVIEWS) and after not in known:
                yield event_message(event, store.incarnation)
        if closing:
            return
        if len(found) < turn_reads.LARGEST_PAGE:
            await news.wait()


def event_message(event: EventRecord, incarnation: str) -> wire.TurnEvent:
    trigger = wire.TurnEvent.Trigger.Value(event.trigger.upper())
    state = wire.TurnEvent.State.Value(event.state)
    given: dict[str, Any] = {"incarnation": incarnation, "trigger": trigger, "state": state}
    if event.state in REVIEWS:
        given |= {"about": event.held_by, "held_by": ()}
    return to_message(wire.TurnEvent, event, **given)


_EVENTS: Mapping[bool, Callable[..., Sequence[EventRecord]]] = {
    False: turn_reads.events_after,
    True: turn_reads.detailed_events_after,
}


async def watch_conversation(
    request: wire.WatchConversationRequest, store: Store, live: LiveOutput, clock: Clock, is_over: Callable[[], bool]
) -> AsyncGenerator[wire.ConversationTurn]:
    """Yield the newest turns of a conversation, then each turn again when it changes; with `live`, also running text.

    A piece of text follows all earlier text of its turn, and precedes the recorded turn that contains it. A slow reader
    gets fewer and longer pieces. A request that names only a thread follows the thread's channel.

    Raises:
        NotFound: the request names only a thread, and the thread does not exist.
        InvalidInput: the cursor is not valid.
    """
    channel = request.channel or await store.read(channel_of, request.thread_id)
    seen = _Seen(request, channel, store)
    async with _listening(channel, store, live if request.live else None, seen) as listener:
        while not is_over():
            news = listener.changed.next()
            for turn in await seen.changed():
                yield turn
            for piece in listener.news(lambda turn_id, after: seen.lines.get(turn_id) == after):
                yield speech_message(piece)
            await news.wait()
            await clock.sleep(REST_S)


def speech_message(heard: OutputPiece) -> wire.ConversationTurn:
    calls = [to_message(wire.RunningCall, call) for call in heard.calls]
    told = [to_message(wire.GraphReport, one, text=_sendable(one.text)) for one in heard.reports]
    speech = to_message(wire.Speech, heard, text=_sendable(heard.text), calls=calls, reports=told)
    return wire.ConversationTurn(turn_id=heard.turn_id, thread_id=heard.thread_id, speech=speech)


class _Seen:
    """The turns of a channel that were sent, and those that may still change."""

    def __init__(self, request: wire.WatchConversationRequest, channel: str, store: Store) -> None:
        self._of = (channel, request.thread_id)
        self._limit, self._begin = request.limit, number_of(request.cursor)
        self._store = store
        self._newest: int | None = None
        self._settled: Any = lambda _connection, changed: changed.newest
        if store.right.shared:
            self._settled = required("settled numbers", min(self._limit or 50, turn_reads.LARGEST_PAGE), self._begin)
        self._open: frozenset[str] = frozenset()
        self._sent: dict[str, bytes] = {}  # the numbers of turns that may still change
        self.lines: dict[str, int] = {}
        self.stale = True

    async def changed(self) -> list[wire.ConversationTurn]:
        """Return the turns that are new or have changed since the last call."""
        if not self.stale:
            return []
        self.stale = False
        changed, turns, self._newest = await self._store.read(self._look)
        fresh, again = [], {turn.turn_id for turn in turns}
        undecided = [turn.turn_id for turn in turns if _may_be_decided(turn)][-MOST_UNDECIDED:]
        self._open = changed.open | frozenset(undecided)
        for turn in turns:
            now = turn.SerializeToString(deterministic=True)
            if self._sent.get(turn.turn_id) != now:
                fresh.append(turn)
            self._sent[turn.turn_id] = now
        self.lines = {turn.turn_id: _lines(turn) for turn in turns if turn.turn_id in changed.open}
        self._sent = {turn_id: sent for turn_id, sent in self._sent.items() if turn_id in self._open | again}
        return fresh

    def _look(self, connection: Connection) -> tuple[Changed, list[wire.ConversationTurn], int]:
        if self._newest is None:
            changed = newest_turns(connection, self._of, limit=self._limit, begin=self._begin)
        else:
            changed = changed_turns(connection, self._of, after=self._newest, open_=self._open)
        return changed, conversation_turns(connection, changed.shown), self._settled(connection, changed)


@asynccontextmanager
async def _listening(channel: str, store: Store, live: LiveOutput | None, seen: _Seen) -> AsyncIterator[Listener]:
    """Follow a channel during the block: the listener is also notified of changes in the store."""

    async def relay() -> None:
        while True:
            news = store.conversations.next()
            await news.wait()
            seen.stale = True
            listener.changed.notify()

    # For a reader of whole turns only, models need not stream their output.
    with live.listen(channel) if live is not None else nullcontext(Listener({}, channel)) as listener:
        relaying = asyncio.create_task(relay(), name=f"follow-{channel}")
        try:
            yield listener
        finally:
            relaying.cancel()


def _may_be_decided(turn: wire.ConversationTurn) -> bool:
    open_ = any(deviation.lifecycle == "open" for deviation in turn.deviations)
    return open_ or any(candidate.lifecycle == "candidate" for candidate in turn.candidates)


def _lines(turn: wire.ConversationTurn) -> int:
    return sum(message.role in {"agent", "tool"} for message in turn.messages)


def _sendable(text: str) -> str:
    return text.encode("utf-8", "replace").decode()  # a model may write text without a UTF-8 form


def read_names(names: Collection[str]) -> frozenset[str]:
    """Return the requested event names. Raises InvalidInput if no event has such a name."""
    unknown = next((name for name in names if name not in NAMES), None)
    if unknown is not None:
        raise InvalidInput(f"no event {unknown[:40]!r}", where="names", hint=f"use one of: {', '.join(NAMES)}")
    return frozenset(names)


class BridgedStream:
    """One call of `WatchEvents`; a newer call ends it."""

    def __init__(self, store: Store, names: frozenset[str], after: int, call: int) -> None:
        self._store = store
        self._names = names
        self._call = call
        self.after = after

    @classmethod
    async def open(cls, store: Store, request: wire.WatchEventsRequest) -> "BridgedStream":
        """Store the names of the wanted events, delete the acknowledged events, and end the previous call.

        Raises:
            InvalidInput: the call names an unknown event.
        """
        names = read_names(request.names)
        same = request.incarnation == store.incarnation

        def work(connection: Connection) -> int:
            # A sequence above the newest one is foreign, because an older copy of the store was restored.
            fits = same and 0 <= request.after_sequence <= turn_events.newest(connection)
            after = request.after_sequence if fits else 0
            store.event_source.want(connection, names, after)
            return after

        after = await store.write(work)
        store.event_source.serving += 1
        store.event_source.news.notify()
        return cls(store, names, after, store.event_source.serving)

    async def events(self, is_closing: Callable[[], bool]) -> AsyncIterator[wire.BridgedEvent]:
        """Yield events in order of number, then live, until a limit is reached or a newer call begins."""
        bridge, sent = self._store.event_source, 0
        while sent < MOST_SENT and bridge.serving == self._call:
            closing, news, since = is_closing(), bridge.news.next(), self.after
            for event in await self._store.read(turn_events.after, since, self._names):
                self.after = event.sequence
                sent += 1
                yield to_message(wire.BridgedEvent, event, incarnation=self._store.incarnation)
            if closing:
                return
            if self.after == since:
                await news.wait()
