"""Following what happens inside the runtime's turns, for the tasks that listen for it.

The runtime is asked only for the names that some task wants, and anew when those change: while nobody listens, it
keeps nothing. The position moves in the transaction of what the events lead to.
"""

import asyncio
from collections.abc import Sequence
from contextlib import aclosing, suppress
from datetime import UTC, datetime

from protos.turnkeeper.v1 import agent_runtime_pb2 as wire
from task_runner.dispatcher.outcomes import Wakes
from task_runner.dispatcher.runtime_client import Runtime
from task_runner.model.events import LIFECYCLE, Event, id_of
from task_runner.scheduler.events import TakenIn, take_in
from task_runner.store.port import Session, Store
from turnkeeper.clock import Clock
from turnkeeper.entropy import Entropy
from turnkeeper.errors import TurnkeeperError
from turnkeeper.event_log import EventLog

LARGEST_BATCH = 256
LONGEST_WAIT_S = 30.0
_SHORTEST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 2.0


class Bridge:
    """Takes in the runtime's events, in order, each exactly once."""

    def __init__(
        self, store: Store, runtime: Runtime, *, clock: Clock, entropy: Entropy, trail: EventLog, wakes: Wakes
    ) -> None:
        """Take what it works on."""
        self._store, self._runtime = store, runtime
        self._clock, self._entropy, self._trail, self._wakes = clock, entropy, trail, wakes
        self.changed = asyncio.Event()
        self._failures = 0

    async def run(self) -> None:
        """Follow for ever, asking again whenever the stream ends, or other names are wanted."""
        while True:
            try:
                await self.follow_once()
                self._failures = 0
            except TurnkeeperError:
                self._failures += 1
                longest = min(_LONGEST_PAUSE_S, _SHORTEST_PAUSE_S * 2.0 ** min(self._failures, 10))
                await self._clock.sleep(self._entropy.uniform(_SHORTEST_PAUSE_S, longest))

    async def follow_once(self) -> None:
        """Follow one stream until it ends or other names are wanted. Raises TurnkeeperError when it breaks."""
        self.changed.clear()
        names, (incarnation, after) = await self._store.run(
            lambda session: (_names(session), session.events.position())
        )
        if not names and not incarnation:  # nothing was ever asked for
            await self._clock.wait(self.changed, LONGEST_WAIT_S)
            return
        following = asyncio.ensure_future(self._follow(incarnation, after, names))
        others = asyncio.ensure_future(self._until_others_are_wanted(names))
        try:
            await asyncio.wait({following, others}, return_when=asyncio.FIRST_COMPLETED)
            if following.done():
                following.result()
        finally:
            for part in (following, others):
                part.cancel()
            with suppress(TurnkeeperError):
                await asyncio.gather(following, others, return_exceptions=True)

    async def take_in(self, told: Sequence[wire.BridgedEvent]) -> TakenIn:
        """Take events in, and record the position behind the last of them, in one transaction."""
        now = self._clock.now()
        events, last = [event_of(each, now) for each in told if each.name], told[-1]

        def record(session: Session) -> TakenIn:
            heard = take_in(session, events, now)
            session.events.move(last.incarnation, last.sequence)
            return heard

        heard = await self._store.run(record)
        self._trail.emit_all(heard.planned.events)
        if heard.planned.committed:
            self._wakes.planning.set()
            self._wakes.dispatch.set()
        if heard.planned.asking:
            self._wakes.asking.set()
        return heard

    async def _follow(self, incarnation: str, after: int, names: frozenset[str]) -> None:
        queue: asyncio.Queue[wire.BridgedEvent | None] = asyncio.Queue(maxsize=4 * LARGEST_BATCH)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._read(incarnation, after, names, queue))
                group.create_task(self._take(queue))
        except* TurnkeeperError as broken:
            raise broken.exceptions[0] from None

    async def _read(
        self, incarnation: str, after: int, names: frozenset[str], queue: asyncio.Queue[wire.BridgedEvent | None]
    ) -> None:
        async with aclosing(self._runtime.watch_events(incarnation, after, sorted(names))) as stream:
            async for event in stream:
                await queue.put(event)
        await queue.put(None)

    async def _take(self, queue: asyncio.Queue[wire.BridgedEvent | None]) -> None:
        ended = False
        while not ended:
            batch = [await queue.get()]
            while not queue.empty() and len(batch) < LARGEST_BATCH:
                batch.append(queue.get_nowait())
            told = [event for event in batch if event is not None]
            ended = len(told) < len(batch)
            if told:
                self._failures = 0
                await self.take_in(told)

    async def _until_others_are_wanted(self, names: frozenset[str]) -> None:
        while await self._store.run(_names) == names:
            self.changed.clear()
            await self._clock.wait(self.changed, LONGEST_WAIT_S)


def event_of(told: wire.BridgedEvent, now: datetime) -> Event:
    """Return an event as the runtime tells it; never later than now.

    Its id is the same however often its store is read from the beginning.
    """
    at = min(told.at.ToDatetime(tzinfo=UTC), now) if told.at.seconds > 0 else now
    names = ("name", "turn_id", "thread_id", "fire_id", "task_id", "task_name", "channel", "category", "agent", "tool")
    return Event(
        id=id_of(told.name, told.turn_id, told.sequence, told.at.ToNanoseconds(), told.tool),
        at=at,
        data_json=told.data_json,
        **{name: getattr(told, name) for name in names},
    )


def _names(session: Session) -> frozenset[str]:
    return session.events.wanted() & frozenset(LIFECYCLE)
