"""One lane a thread: its triggers in order, one turn at a time; and a bound on turns at once over all lanes."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime

from agent_runtime.mailbox.mailboxes import Delivery, Mailboxes
from agent_runtime.model.decide import Incoming
from agent_runtime.model.trigger import Trigger
from turnkeeper.clock import Clock
from turnkeeper.errors import TurnkeeperError

NEXT_S = 0.2  # until a thread for which something waits still is let go, or that is taken up
LONGEST_WAIT_S = 3600.0  # a lane looks again after this long in any case


@dataclass(frozen=True, kw_only=True)
class Item:
    """Something to be dealt with on a thread.

    Attributes:
        asked: as the decision sees it.
        trigger: the fire or message itself; None for a decision, a cancel or a look after a crash.
        delivery: its envelope, to be archived; None where it has none or had one.
    """

    asked: Incoming
    trigger: Trigger | None = None
    delivery: Delivery | None = None


@dataclass(frozen=True, kw_only=True)
class Handled:
    """What dealing with an item came to.

    Attributes:
        done: it is over; otherwise it stays in the lane.
        until: when to look again, if nothing comes before.
        rest_s: it failed, and is tried again after so many seconds. What came after it in the lane waits too, except
            decisions and cancels.
    """

    done: bool
    until: datetime | None = None
    rest_s: float = 0.0


@dataclass
class _Lane:
    items: list[Item] = field(default_factory=list)
    resting: dict[int, float] = field(default_factory=dict)  # until when, by the steady clock; by the item's identity
    news: asyncio.Event = field(default_factory=asyncio.Event)
    task: "asyncio.Task[None] | None" = None


Handle = Callable[[str, Item], Awaitable[Handled]]


class Lanes:
    """The lanes of a process. A lane lives as long as it has items."""

    def __init__(
        self,
        handle: Handle,
        clock: Clock,
        *,
        most_at_once: int,
        on_done: Callable[[], None],
        shared: Mailboxes | None = None,
        settle: Callable[[str], Awaitable[None]] | None = None,
    ) -> None:
        """Take what deals with an item; it must not raise. `on_done` is called whenever an item is over.

        With `shared`, a lane lives while this process owns its thread, which is let go when the lane is empty, after
        `settle` has waited for what is still written for it.
        """
        self._shared = shared
        self._settle = settle
        self._handle = handle
        self._clock = clock
        self._slots = asyncio.Semaphore(most_at_once)
        self._on_done = on_done
        self._lanes: dict[str, _Lane] = {}
        self._pauses: dict[str, asyncio.Task[None]] = {}  # by thread: each waits for its pause's end
        self._dropped: set[asyncio.Task[None]] = set()
        self._stopping = False
        self._depth = 0

    @property
    def depth(self) -> int:
        """How many items wait or are being dealt with."""
        return self._depth

    def has(self, thread_id: str) -> bool:
        """Return whether something goes on or waits on a thread."""
        return thread_id in self._lanes

    def serves(self, thread_id: str) -> bool:
        """Return whether a live task deals with what waits on a thread."""
        lane = self._lanes.get(thread_id)
        return lane is not None and lane.task is not None and not lane.task.done()

    def put(self, thread_id: str, item: Item) -> None:
        """Queue an item behind those of its thread; nothing for one of another process, to which a row says it."""
        if self._shared is not None and not self._shared.owns(thread_id):
            return
        lane = self._lanes.setdefault(thread_id, _Lane())
        lane.items.append(item)
        self._depth += 1
        lane.news.set()
        if lane.task is None or lane.task.done():  # done, and still here: it died
            lane.task = asyncio.create_task(self._serve(thread_id, lane), name=f"lane-{thread_id}")

    def put_decision(self, thread_id: str) -> None:
        """Queue a look at a thread whose interrupt was decided."""
        self.put(thread_id, Item(asked=Incoming(source="decision")))

    def put_all(self, kept: Iterable[Trigger]) -> None:
        """Queue messages that were kept back until their threads were released."""
        for trigger in kept:
            asked = Incoming(source=trigger.source, turn_id=trigger.turn_id, kept=True)
            self.put(trigger.thread_id, Item(asked=asked, trigger=trigger))

    def put_at(self, thread_id: str, until: datetime) -> None:
        """Look at a paused thread when its pause ends, whatever comes for it before; only the last call counts."""
        if self._shared is not None:
            return  # a row that waits for that time says it
        if (earlier := self._pauses.get(thread_id)) is not None:
            earlier.cancel()
        self._pauses[thread_id] = asyncio.create_task(self._end_pause(thread_id, until), name=f"pause-{thread_id}")

    async def stop(self, grace_s: float) -> None:
        """Begin nothing new; let what runs come to a stop for `grace_s` seconds, then cancel it."""
        self._stopping = True
        for pause in self._pauses.values():
            pause.cancel()
        await asyncio.gather(*self._pauses.values(), return_exceptions=True)
        tasks = []
        for lane in self._lanes.values():
            lane.news.set()
            tasks += [lane.task] if lane.task is not None else []
        if not tasks:
            return
        _, late = await asyncio.wait(tasks, timeout=grace_s)
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)

    async def _end_pause(self, thread_id: str, until: datetime) -> None:
        while (left_s := (until - self._clock.now()).total_seconds()) > 0.0:
            await self._clock.sleep(min(left_s, LONGEST_WAIT_S))
        del self._pauses[thread_id]
        self.put(thread_id, Item(asked=Incoming(source="recovery")))

    def drop(self, thread_id: str) -> None:
        """Stop what goes on on a thread, and forget what waits for it: another process owns it."""
        if (lane := self._lanes.pop(thread_id, None)) is None:
            return
        self._depth -= len(lane.items)
        lane.items.clear()
        if lane.task is not None and lane.task is not asyncio.current_task():
            lane.task.cancel()
            self._dropped.add(lane.task)
            lane.task.add_done_callback(self._dropped.discard)

    async def _serve(self, thread_id: str, lane: _Lane) -> None:
        while await self._goes_on(thread_id, lane):
            lane.news.clear()
            wait_s = await self._pass(thread_id, lane) if lane.items else NEXT_S
            if wait_s is not None:
                await self._clock.wait(lane.news, min(max(wait_s, 0.0), LONGEST_WAIT_S))
        if self._stopping and self._shared is not None and self._lanes.get(thread_id) is lane:
            await self._settled(thread_id)
            await self._shared.hand_over(thread_id)
        if not lane.items and self._lanes.get(thread_id) is lane:
            del self._lanes[thread_id]

    async def _goes_on(self, thread_id: str, lane: _Lane) -> bool:
        """Return whether there is more to do; the thread is let go where there is not."""
        if lane.items or self._stopping or self._shared is None:
            return bool(lane.items) and not self._stopping
        await self._settled(thread_id)
        try:
            let_go = await self._shared.let_go(thread_id)
        except TurnkeeperError:  # the server is away
            let_go = False
        self._on_done()
        return bool(lane.items) or not let_go  # it may have been taken again meanwhile

    async def _settled(self, thread_id: str) -> None:
        if self._settle is not None:
            await self._settle(thread_id)

    async def _pass(self, thread_id: str, lane: _Lane) -> float | None:
        """Deal with the first item that can be dealt with; return how many seconds to wait if none can."""
        soonest, held_up = LONGEST_WAIT_S, False
        for item in list(lane.items):
            if held_up and item.trigger is not None:
                continue
            rest_s = lane.resting.get(id(item), 0.0) - self._clock.monotonic()
            if rest_s <= 0.0:
                async with self._slots:
                    if self._stopping:
                        return soonest
                    handled = await self._handle(thread_id, item)
                if item not in lane.items:
                    return None  # the thread was lost meanwhile
                if handled.done:
                    lane.items.remove(item)
                    lane.resting.pop(id(item), None)
                    self._depth -= 1
                    self._on_done()
                    return None
                rest_s = handled.rest_s
                lane.resting[id(item)] = self._clock.monotonic() + rest_s
                if handled.until is not None:
                    soonest = min(soonest, (handled.until - self._clock.now()).total_seconds())
            if rest_s > 0.0:
                soonest, held_up = min(soonest, rest_s), held_up or item.trigger is not None
        return soonest
