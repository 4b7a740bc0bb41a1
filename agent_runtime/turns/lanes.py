"""One lane per thread: triggers run in order, one turn at a time, with a limit on concurrent turns over all lanes."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime

from agent_runtime.mailbox.mailboxes import Delivery, Mailboxes
from agent_runtime.model.decide import Incoming
from agent_runtime.model.trigger import Trigger
from turnkeeper.clock import Clock
from turnkeeper.errors import TurnkeeperError

NEXT_S = 0.2  # retry interval for releasing a thread of a shared store
LONGEST_WAIT_S = 3600.0  # a lane checks again after this time in any case


@dataclass(frozen=True, kw_only=True)
class Item:
    """An item to handle on a thread.

    Attributes:
        asked: the item as the decision sees it.
        trigger: the fire or message; None for a decision, a cancellation or a recovery after a crash.
        delivery: the envelope to archive; None if the item has no envelope, or its envelope was archived.
    """

    asked: Incoming
    trigger: Trigger | None = None
    delivery: Delivery | None = None


@dataclass(frozen=True, kw_only=True)
class Handled:
    """The result of handling an item.

    Attributes:
        done: True if the item is finished; otherwise it stays in the lane.
        until: when to check again at the latest, or None.
        rest_s: seconds until the retry of a failed item. Later triggers in the lane wait too; decisions and cancels do
            not wait.
    """

    done: bool
    until: datetime | None = None
    rest_s: float = 0.0


@dataclass
class _Lane:
    items: list[Item] = field(default_factory=list)
    resting: dict[int, float] = field(default_factory=dict)  # the monotonic time of each item's retry, by item identity
    news: asyncio.Event = field(default_factory=asyncio.Event)
    task: "asyncio.Task[None] | None" = None


Handle = Callable[[str, Item], Awaitable[Handled]]


class Lanes:
    """The lanes of a process. A lane exists while it has items."""

    def __init__(
        self,
        handle: Handle,
        clock: Clock,
        *,
        most_at_once: int,
        on_done: Callable[[], None],
        shared: Mailboxes | None = None,
        settle: Callable[[str], Awaitable[None]] | None = None,
        cordoned: Callable[[], str] = str,
    ) -> None:
        """Take the handler of items, which must not raise, and `on_done`, which is called after each finished item.

        While `cordoned` returns a text, no turn begins and no decision continues one. What runs is finished.

        With `shared`, a lane exists while this process owns its thread. When the lane is empty, `settle` waits for
        pending writes of the thread, and then the thread is released.
        """
        self._shared = shared
        self._settle = settle
        self._cordoned = cordoned
        self._handle = handle
        self._clock = clock
        self._slots = asyncio.Semaphore(most_at_once)
        self._on_done = on_done
        self._lanes: dict[str, _Lane] = {}
        self._pauses: dict[str, asyncio.Task[None]] = {}  # by thread: the task that waits until the pause ends
        self._dropped: set[asyncio.Task[None]] = set()
        self._stopping = False
        self._depth = self._running = 0

    @property
    def depth(self) -> int:
        """Number of items that wait or are being handled."""
        return self._depth

    def has(self, thread_id: str) -> bool:
        """Return whether a thread has running or waiting items."""
        return thread_id in self._lanes

    def serves(self, thread_id: str) -> bool:
        """Return whether a live task handles the items of a thread."""
        lane = self._lanes.get(thread_id)
        return lane is not None and lane.task is not None and not lane.task.done()

    def put(self, thread_id: str, item: Item) -> None:
        """Queue an item behind the other items of its thread. Ignore a thread of another process: a row notifies it."""
        if self._shared is not None and not self._shared.owns(thread_id):
            return
        lane = self._lanes.setdefault(thread_id, _Lane())
        lane.items.append(item)
        self._depth += 1
        lane.news.set()
        if lane.task is None or lane.task.done():  # the lane's task has died
            lane.task = asyncio.create_task(self._serve(thread_id, lane), name=f"lane-{thread_id}")

    def put_decision(self, thread_id: str) -> None:
        """Queue a check of a thread whose interrupt was decided."""
        self.put(thread_id, Item(asked=Incoming(source="decision")))

    def put_all(self, kept: Iterable[Trigger]) -> None:
        """Queue messages that were held until their threads were released."""
        for trigger in kept:
            asked = Incoming(source=trigger.source, turn_id=trigger.turn_id, kept=True)
            self.put(trigger.thread_id, Item(asked=asked, trigger=trigger))

    def put_at(self, thread_id: str, until: datetime) -> None:
        """Check a paused thread when its pause ends, even if a trigger arrives earlier; only the last call counts."""
        if self._shared is not None:
            return  # a stored row wakes the thread at that time
        if (earlier := self._pauses.get(thread_id)) is not None:
            earlier.cancel()
        self._pauses[thread_id] = asyncio.create_task(self._end_pause(thread_id, until), name=f"pause-{thread_id}")

    async def stop(self, grace_s: float) -> None:
        """Start no new items, wait `grace_s` seconds for running items to stop, then cancel them."""
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
        while (left_s := (until - self._clock.now()).total_seconds()) > 0.0 or self._cordoned():
            await self._clock.sleep(min(left_s if left_s > 0.0 else NEXT_S, LONGEST_WAIT_S))
        del self._pauses[thread_id]
        self.put(thread_id, Item(asked=Incoming(source="recovery")))

    def is_at_rest(self) -> bool:
        """Return whether the machine is cordoned, no item runs, and all others wait for the end of the cordon."""
        waiting = ((lane, item) for lane in self._lanes.values() for item in lane.items)
        return bool(self._cordoned()) and not self._running and all(self._is_held(*each) for each in waiting)

    def look(self) -> None:
        """Look at all lanes again, because a cordon began or ended."""
        for lane in self._lanes.values():
            lane.news.set()

    def _is_held(self, lane: _Lane, item: Item) -> bool:
        """Return whether an item waits for the end of a cordon: it begins or continues a turn, and was not tried."""
        goes_on = item.asked.source in {"cancel", "recovery"} or id(item) in lane.resting
        return not goes_on and bool(self._cordoned())

    def drop(self, thread_id: str) -> None:
        """Cancel the running item of a thread and drop the waiting ones, because another process owns the thread."""
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
        is_cordoned = bool(self._cordoned())
        if (self._stopping or is_cordoned) and self._shared is not None and self._lanes.get(thread_id) is lane:
            await self._settled(thread_id)
            await self._shared.hand_over(thread_id)
            if is_cordoned:
                self.drop(thread_id)  # the thread's next owner gets the envelopes
        if not lane.items and self._lanes.get(thread_id) is lane:
            del self._lanes[thread_id]

    async def _goes_on(self, thread_id: str, lane: _Lane) -> bool:
        """Return whether the lane has more items; if not, release its thread."""
        if self._shared is not None and self._cordoned() and all(self._is_held(lane, item) for item in lane.items):
            return False
        if lane.items or self._stopping or self._shared is None:
            return bool(lane.items) and not self._stopping
        await self._settled(thread_id)
        try:
            let_go = await self._shared.let_go(thread_id)
        except TurnkeeperError:  # the server does not answer
            let_go = False
        self._on_done()
        return bool(lane.items) or not let_go  # a new item may have arrived meanwhile

    async def _settled(self, thread_id: str) -> None:
        if self._settle is not None:
            await self._settle(thread_id)

    async def _pass(self, thread_id: str, lane: _Lane) -> float | None:
        """Handle the first item that is ready; return how many seconds to wait if none is ready."""
        soonest, held_up = LONGEST_WAIT_S, False
        for item in list(lane.items):
            if (held_up and item.trigger is not None) or self._is_held(lane, item):
                continue
            rest_s = lane.resting.get(id(item), 0.0) - self._clock.monotonic()
            if rest_s <= 0.0:
                async with self._slots:
                    if self._stopping or self._is_held(lane, item):
                        return soonest
                    self._running += 1
                    try:
                        handled = await self._handle(thread_id, item)
                    finally:
                        self._running -= 1
                if item not in lane.items:
                    return None  # this process lost the thread meanwhile
                if handled.done:
                    lane.items.remove(item)
                    lane.resting.pop(id(item), None)
                    self._depth -= 1
                    self._on_done()
                    return None
                rest_s = handled.rest_s
                lane.resting.pop(id(item), None)
                if rest_s > 0.0:
                    lane.resting[id(item)] = self._clock.monotonic() + rest_s
                if handled.until is not None:
                    soonest = min(soonest, (handled.until - self._clock.now()).total_seconds())
            if rest_s > 0.0:
                soonest, held_up = min(soonest, rest_s), held_up or item.trigger is not None
        return soonest
