"""The worker: claims envelopes, adopts what a crash left, and feeds the lanes."""

import asyncio
import contextlib
from datetime import timedelta
from typing import Any

from agent_runtime.bell import Bell
from agent_runtime.decide import Asked
from agent_runtime.lanes import Handled, Item, Lanes
from agent_runtime.mailboxes import Delivery, Mailboxes
from agent_runtime.notify import Notice, Notifier
from agent_runtime.store import Finished, Store
from agent_runtime.stores.queries import unfinished_turns
from agent_runtime.triggers import Trigger, from_envelope
from agent_runtime.turns import Parts, Turns
from turnkeeper.clock import Clock
from turnkeeper.errors import InvalidInput
from turnkeeper.eventlog import EventLog
from turnkeeper.failpoints import Failpoints

MOST_TAKEN = 4096  # envelopes claimed and not yet archived
LARGEST_CLAIM = 256
POLL_S = 1.0  # other processes put without ringing
MOST_TROUBLE = 5  # tries of a fire or message; what concerns a turn that exists is tried for ever
TROUBLE_S = 0.2  # doubled at each further try
LONGEST_TROUBLE_S = 30.0


class Worker:
    """Everything between an envelope in an inbox and its archive."""

    def __init__(self, parts: Parts, *, arrived: Bell, notifier: Notifier, clock: Clock, most_at_once: int) -> None:
        """Take the parts that turns are made with; `arrived` rings when something was put into an inbox."""
        self._store: Store = parts.store
        self._mailboxes: Mailboxes = parts.mailboxes
        self._engine = parts.engine
        self._intervals = parts.intervals
        self._log: EventLog = parts.log
        self._failpoints: Failpoints = parts.failpoints
        self._arrived = arrived
        self._notifier = notifier
        self._clock = clock
        self._turns = Turns(parts, self)
        self._lanes = Lanes(self._handle, clock, most_at_once=most_at_once, on_done=self._on_done)
        self._trouble: dict[int, int] = {}
        self._stuck: list[Delivery] = []  # claimed, and neither routed nor quarantined
        self._claiming: asyncio.Task[None] | None = None

    @property
    def waiting(self) -> int:
        """How many items wait or run."""
        return self._lanes.depth

    async def start(self) -> None:
        """Go on with what an earlier process left, in the order in which it came; then claim."""
        await self._mailboxes.open()
        for turn in await self._store.read(unfinished_turns):
            self._lanes.put(turn.thread_id, Item(asked=Asked(source="recovery")))
        self._put_kept(await self._store.kept())
        await self._route_all(await self._mailboxes.adopt())
        self._claiming = asyncio.create_task(self._claim(), name="claim")

    async def stop(self, grace_s: float) -> None:
        """Claim nothing more; let running turns come to a superstep's end, then cancel them. Rows stay unfinished."""
        if self._claiming is not None:
            self._claiming.cancel()
            await asyncio.gather(self._claiming, return_exceptions=True)
        self._engine.drain()
        await self._lanes.stop(grace_s)
        await self._notifier.close()

    async def cancel(self, turn_id: str, thread_id: str, reason: str) -> None:
        """Store a cancel, then see to it that it is carried out."""
        await self._store.cancel(turn_id, reason)
        self._intervals.cancel(turn_id)
        self._lanes.put(thread_id, Item(asked=Asked(source="cancel", turn_id=turn_id)))

    def answered(self, thread_id: str) -> None:
        """Go on with a thread whose interrupt was decided."""
        self._lanes.put(thread_id, Item(asked=Asked(source="decision")))

    def released(self, finished: Finished) -> None:
        """Go on with what was kept back until a thread was released."""
        self._put_kept(finished.kept)

    def notice(self, notice: Notice) -> None:
        """Tell the author."""
        self._notifier.tell(notice)

    def _put_kept(self, kept: tuple[Trigger, ...] | list[Trigger]) -> None:
        for trigger in kept:
            asked = Asked(source="message", turn_id=trigger.turn_id, kept=True)
            self._lanes.put(trigger.thread_id, Item(asked=asked, trigger=trigger))

    async def _claim(self) -> None:
        while True:
            news = self._arrived.next()
            room = min(MOST_TAKEN - self._lanes.depth, LARGEST_CLAIM)
            taken = await self._claim_some(room) if room > 0 else []
            stuck, self._stuck = self._stuck, []
            await self._route_all([*stuck, *taken])
            if taken:
                self._failpoints.reach("runtime.claimed")
            else:
                await self._clock.wait(news, POLL_S)

    async def _claim_some(self, room: int) -> list[Delivery]:
        try:
            return await self._mailboxes.claim(room)
        except Exception as error:  # noqa: BLE001  recorded; tried again at the next poll, as long as the process lives
            self._note("inbox.unreadable", reason=type(error).__name__)
            return []

    async def _route_all(self, deliveries: list[Delivery]) -> None:
        """Route each; one that cannot be is kept for the next poll, and holds up none behind it."""
        for delivery in deliveries:
            try:
                await self._route(delivery)
            except Exception as error:  # noqa: BLE001  recorded; without the claim loop nothing would run any more
                self._stuck.append(delivery)
                reason = f"{type(error).__name__}: {error}"[:500]
                self._note("envelope.stuck", agent=delivery.agent, name=delivery.claimed.name, reason=reason)

    async def _route(self, delivery: Delivery) -> None:
        try:
            trigger = from_envelope(delivery.claimed.envelope)
        except InvalidInput as error:
            await self._mailboxes.quarantine(delivery, str(error))
            self._note("envelope.quarantined", agent=delivery.agent, name=delivery.claimed.name, reason=str(error))
            return
        asked = Asked(source=trigger.source, turn_id=trigger.turn_id, task_id=trigger.task_id)
        self._lanes.put(trigger.thread_id, Item(asked=asked, trigger=trigger, delivery=delivery))

    def _on_done(self) -> None:
        if self._lanes.depth >= MOST_TAKEN - LARGEST_CLAIM:
            self._arrived.ring()

    async def _handle(self, thread_id: str, item: Item) -> Handled:
        try:
            handled = await self._turns.handle(thread_id, item)
        except Exception as error:  # noqa: BLE001  counted, recorded, bounded; one trigger must not stop a lane
            return await self._in_trouble(thread_id, item, error)
        self._trouble.pop(id(item), None)
        return handled

    async def _in_trouble(self, thread_id: str, item: Item, error: Exception) -> Handled:
        tries = self._trouble[id(item)] = self._trouble.get(id(item), 0) + 1
        reason = f"{type(error).__name__}: {error}"[:500]
        self._note("turn.trouble", thread_id=thread_id, turn_id=item.asked.turn_id, tries=tries, reason=reason)
        if item.trigger is None or tries < MOST_TROUBLE:
            return Handled(done=False, until=self._clock.now() + pause_after(tries))
        del self._trouble[id(item)]
        await self._give_up(item.trigger, item.delivery, reason)
        return Handled(done=True)

    async def _give_up(self, trigger: Trigger, delivery: Delivery | None, reason: str) -> None:
        """Record that a trigger comes to nothing; if even that fails, its envelope waits for the next process."""
        try:
            self.released(await self._store.refuse(trigger, reason))
            if delivery is not None:
                await self._mailboxes.quarantine(delivery, reason)
        except Exception as error:  # noqa: BLE001  recorded; the envelope lies in claimed/, which is adopted at start
            self._note("turn.trouble", turn_id=trigger.turn_id, reason=f"cannot be recorded: {error}"[:500])

    def _note(self, event: str, **fields: Any) -> None:
        """Record trouble. A disk that is full is often the trouble itself, and must not stop a lane or the claiming."""
        with contextlib.suppress(OSError):
            self._log.emit(event, **fields)


def pause_after(tries: int) -> timedelta:
    """Return how long to wait after so many tries that failed.

    >>> [pause_after(tries).total_seconds() for tries in (1, 2, 8, 9, 100_000)]
    [0.2, 0.4, 25.6, 30.0, 30.0]
    """
    return timedelta(seconds=min(TROUBLE_S * 2 ** min(tries - 1, 16), LONGEST_TROUBLE_S))
