"""Live updates of open pages: one follower of each daemon for the whole gateway, and one stream for each tab.

A stream says which kinds of objects changed, at most once a second, and less often if many tabs are open. The tab then
requests its page again. Nothing is replayed, so a missed hint does no harm. A tab with an open conversation also
receives its turns when they change, and the text of running turns.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from typing import Any

from google.protobuf.message import Message
from starlette.requests import Request

from turnkeeper.console.unseen import plain
from turnkeeper.errors import TurnkeeperError
from turnkeeper.gateway.calls import Who, who_of
from turnkeeper.gateway.page.shell import READ_S, Shell
from turnkeeper.gateway.streams import EventStream, event
from turnkeeper.v1 import agent_runtime_pb2 as agents
from turnkeeper.v1 import schedules_pb2 as schedules

CHANGED, TURN, SPEECH = "changed", "turn", "speech"
BEAT, BEAT_S = event("", name="beat"), 1.0  # sent if there is nothing else, so that a tab notices a gateway that hangs
SETTLE_S = 0.5  # from a change to its hint, so that later changes join it and due fires are sent first
REST_S = 1.0  # between two hints to all tabs
TABS_A_SECOND = 5  # tabs that reload at a time
AGAIN_S = 2.0  # before the next attempt to reach a daemon that is unavailable
PROBE_S = 1.0  # between two probes of a daemon, because the streams of a daemon that hangs do not end
_PROBES = (agents.ListTurnsRequest(limit=1), schedules.GetStatusRequest())  # cheap reads of the store of each daemon
_EVERYTHING = ("tasks", "turns", "machines")
LOOK_S = 5.0  # between two checks of the machines that share the store
SHOWN_TURNS = 10
_MOST_WAITING = 32
_FOLLOWER = Who(surface="web")


class Reader:
    """The changes since one tab was last notified.

    Attributes:
        news: set while there are changes.
    """

    def __init__(self) -> None:
        self._topics: set[str] = set()
        self.news = asyncio.Event()

    def tell(self, topics: Iterable[str]) -> None:
        """Record that objects of these kinds changed."""
        self._topics |= {*topics}
        self.news.set()

    async def next(self) -> str:
        await self.news.wait()
        self.news.clear()
        found, self._topics = " ".join(sorted(self._topics)), set()
        return found


class Changes:
    """Follower of both daemons while any tab is open. All tabs are notified at once, so their requests are equal."""

    def __init__(self, shell: Shell) -> None:
        self._gateway, self._answers = shell.gateway, shell.answers
        self._all = Reader()
        self._readers: set[Reader] = set()
        self._tasks: list[asyncio.Task[None]] = []

    @asynccontextmanager
    async def reader(self) -> AsyncIterator[Reader]:
        """Notify one tab of changes during the block."""
        reader = Reader()
        self._readers.add(reader)
        if not self._tasks:
            parts = [("turns", self._turns), ("tasks", self._changes)]
            parts += [("machines", self._machines)] if self._gateway.settings.store.is_shared else []
            self._tasks = [asyncio.create_task(self._follow(topic, part)) for topic, part in parts]
            self._answers.moved = lambda: self._all.tell(_EVERYTHING)
            self._tasks += [asyncio.create_task(self._probe(request)) for request in _PROBES]
            self._tasks.append(asyncio.create_task(self._spread()))
        try:
            yield reader
        finally:
            self._readers.remove(reader)
            if not self._readers:
                ending, self._tasks = self._tasks, []
                for task in ending:
                    task.cancel()
                await asyncio.gather(*ending, return_exceptions=True)

    async def _follow(self, topic: str, part: Callable[[], AsyncIterator[None]]) -> None:
        """Follow one daemon until cancelled. When its stream ends, report its topic as changed."""
        while True:
            with suppress(TurnkeeperError):
                async for _ in part():
                    self._all.tell([topic])
            self._all.tell([topic])
            await self._gateway.clock.sleep(AGAIN_S)

    async def _probe(self, request: Message) -> None:
        """Probe a daemon repeatedly, so that tabs learn when it stops answering, and when it answers again."""
        while True:
            with suppress(TurnkeeperError):
                await self._answers.ask_within(request, READ_S)
            await self._gateway.clock.sleep(PROBE_S)

    async def _turns(self) -> AsyncIterator[None]:
        asked = agents.WatchTurnsRequest(details=True, from_now=True)
        async for _ in self._gateway.daemons(_FOLLOWER).WatchTurns(asked):
            yield

    async def _changes(self) -> AsyncIterator[None]:
        async for _ in self._gateway.daemons(_FOLLOWER).WatchTasks(schedules.WatchTasksRequest(names_only=True)):
            yield

    async def _machines(self) -> AsyncIterator[None]:
        before = None
        while shared := await self._answers.cluster():
            found = [(one["node_id"], one["state"]) for one in shared.processes]
            if found != before is not None:
                yield
            before = found
            await self._gateway.clock.sleep(LOOK_S)

    async def _spread(self) -> None:
        """Notify all tabs of settled changes, at most once a second, and less often if many tabs are open."""
        while True:
            await self._all.news.wait()
            await self._gateway.clock.sleep(SETTLE_S)
            topics = (await self._all.next()).split()
            self._answers.forget()
            for reader in self._readers:
                reader.tell(topics)
            await self._gateway.clock.sleep(max(REST_S, len(self._readers) / TABS_A_SECOND))


class Live:
    def __init__(self, shell: Shell) -> None:
        self._shell, self._changes = shell, Changes(shell)

    async def stream(self, request: Request) -> Any:
        return EventStream(self._events(request), self._shell.gateway.streams)

    async def _events(self, request: Request) -> AsyncIterator[bytes]:
        queue: asyncio.Queue[bytes] = asyncio.Queue(_MOST_WAITING)  # the sources wait while the tab does not read
        async with self._changes.reader() as reader:
            parts = [asyncio.create_task(self._hints(reader, queue))]
            if channel := request.query_params.get("channel", ""):
                parts.append(asyncio.create_task(self._conversation(request, channel, queue)))
            try:
                while True:
                    try:
                        async with asyncio.timeout(BEAT_S):
                            piece = await queue.get()
                    except TimeoutError:
                        piece = BEAT
                    yield piece
            finally:
                for part in parts:
                    part.cancel()
                await asyncio.gather(*parts, return_exceptions=True)

    async def _hints(self, reader: Reader, queue: "asyncio.Queue[bytes]") -> None:
        while True:
            await queue.put(event(await reader.next(), name=CHANGED))

    async def _conversation(self, request: Request, channel: str, queue: "asyncio.Queue[bytes]") -> None:
        runtime = self._shell.gateway.daemons(who_of(request))
        asked = agents.WatchConversationRequest(channel=channel, limit=SHOWN_TURNS, live=True)
        while True:
            with suppress(TurnkeeperError):
                async for turn in runtime.WatchConversation(asked):
                    await queue.put(self._said(request, turn))
            await self._shell.gateway.clock.sleep(AGAIN_S)

    def _said(self, request: Request, turn: agents.ConversationTurn) -> bytes:
        if not turn.HasField("speech"):
            html = self._shell.turn(request, turn)
            return event(json.dumps({"id": turn.turn_id, "html": html}), name=TURN)
        speech = turn.speech
        calls = [{"name": plain(call.name), "state": call.state} for call in speech.calls]
        said = {"id": turn.turn_id, "name": speech.message, "offset": speech.offset, "text": speech.text}
        return event(json.dumps({**said, "calls": calls}), name=SPEECH)
