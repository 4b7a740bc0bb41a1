"""The loop that plans due tasks: it never plans early, and sleeps while no task is due.

It runs beside a recorder of the spans in which the runner did not run: the process had ended or was stopped, or the
machine was off or asleep.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from itertools import islice

from sqlalchemy.exc import OperationalError

from task_runner.planner import log_records
from task_runner.scheduler import firing
from task_runner.scheduler.planning import LARGEST_BATCH, Planned, plan_tasks, quarantine
from task_runner.scheduler.rewind import LARGEST_LEAD, bring_back, rewind
from task_runner.store.rows import Cause
from task_runner.store.store import Session, Store
from turnkeeper.bus.event_log import EventLog, told_if_late
from turnkeeper.clock import Clock
from turnkeeper.errors import MachineTrouble
from turnkeeper.rpc.process import Failpoints
from turnkeeper.times import rfc3339, to_us

LONGEST_WAIT_S = 30.0
EVERY_S = 5.0
_LONGEST_LAG = timedelta(seconds=5)  # longer than the delay of a wake-up on a busy machine
LEAD_S = 1.0  # seconds before the next due time, to prepare its fires
MOST_PREPARED = 4096  # tasks in the caches of definitions and timetables
MOST_PREPARED_BYTES = 32 << 20  # bytes of requests
_TROUBLE = (MachineTrouble, OperationalError)
_TROUBLE_WAIT_S = 2.0
_HELD_S = 0.05


class Loop:
    """A loop that plans tasks when they are due and whenever `changed` is set."""

    def __init__(
        self,
        store: Store,
        *,
        clock: Clock,
        log: EventLog,
        failpoints: Failpoints,
        changed: asyncio.Event,
        planned: asyncio.Event,
        handover: firing.Handover,
        asking: asyncio.Event,
    ) -> None:
        """Plan tasks in `store`, and pass committed fires to `handover`.

        `asking` is set when a fire asks to cancel the turn that it waits for. `planned` is set once all tasks that were
        due at the start are planned.
        """
        self._store, self._clock, self._log = store, clock, log
        self._failpoints, self._changed, self._handover = failpoints, changed, handover
        self._planned, self._asking = planned, asking
        self._known: dict[str, firing.NextFire | None] = {}
        self._prepared_for: datetime | None = None
        self._planned_us = 0  # tasks that were due by this time are planned
        self._broken: tuple[datetime, str] | None = None  # the time of the first failure of the store, and the error
        self._last_wall = clock.now()
        self._last_steady = clock.monotonic()

    async def run(self) -> None:
        """Plan until cancelled; if the store cannot be read or written, retry after a pause."""
        await self._rewind()
        while True:
            self._changed.clear()
            began = self._clock.now()
            try:
                await self._check_clock()
                await self.tick()
                self._planned.set()
                pause_s = await self._pause_s()
                await self._note_repair()
            except _TROUBLE as error:
                self._broken = self._broken or (began, str(error))
                with suppress(OSError):
                    self._log.emit("store.trouble", reason=str(error))
                pause_s = _TROUBLE_WAIT_S
            await self._clock.wait(self._changed, pause_s)

    def plan_again(self) -> None:
        """Look for due tasks now, because the times of tasks changed."""
        self._changed.set()

    async def _note_repair(self) -> None:
        """Record the span in which the store failed, if it failed and works again."""
        if self._broken is not None:
            (since, why), now = self._broken, self._clock.now()
            await self._store.run(lambda session: session.stoppages.happened(Cause.STORE, since, now, why))
            self._broken = None

    async def tick(self) -> Planned:
        """Plan all tasks that are due by now; return the result once it is on disk.

        Raises MachineTrouble if the store cannot be read or written, which is not the fault of a task.
        """
        now = self._clock.now()
        total = Planned()
        through = self._planned.is_set()
        try:
            while True:
                limit = firing.chunk(total.tasks)
                done = await self._plan_batch(now, limit)
                if done.committed:
                    self._failpoints.reach("runner.committed")
                self._log.emit_all(done.events)  # before committed fires are sent
                if done.sent:
                    self._handover.take(done.sent)
                if done.committed > len(done.sent):
                    self._handover.wake()
                if done.asking:
                    self._asking.set()
                await self._clock.sleep(0)  # committed fires are sent before more tasks are planned
                total += replace(done, events=[], sent=[])
                if done.tasks < limit:
                    self._planned_us = to_us(now)
                    return total
                self._planned.clear()
        finally:
            if through and not self._planned.is_set():
                self._planned.set()
                self._handover.wake()

    async def _plan_batch(self, now: datetime, limit: int) -> Planned:
        fire = partial(
            firing.fire_due, now=now, limit=limit, known=self._known, sent_at=self._clock.now(),
            room=self._handover.room(), reachable=self._handover.reachable(),
        )  # fmt: skip
        try:
            with told_if_late(self._log, partial(self._waiting, now)):
                return await self._store.run(fire)
        except _TROUBLE:
            raise
        except Exception:  # noqa: BLE001  the failing task is then found and quarantined
            return await self._plan_one_by_one()

    def _waiting(self, now: datetime) -> list[log_records.LogRecord]:
        """Return the records to write while the store does not answer: one for the wait and one for each due fire."""
        fires = (fire for fire in self._known.values() if fire is not None)
        due = (fire for fire in fires if self._planned_us < fire.from_us <= to_us(now))
        waits = log_records.waiting("to plan the due tasks")
        return [waits, *(log_records.due(fire.fire_id, fire.from_us) for fire in islice(due, LARGEST_BATCH))]

    async def _plan_one_by_one(self) -> Planned:
        """Plan each due task in its own transaction, because one of them made the batch fail."""
        now = self._clock.now()
        total = Planned()
        for task_id in await self._store.read(lambda session: session.tasks.due(now, LARGEST_BATCH)):
            try:
                plan = partial(plan_tasks, ids=[task_id], now=now, reachable=self._handover.reachable())
                total += await self._store.run(plan)
            except _TROUBLE:
                raise
            except Exception as error:  # noqa: BLE001  recorded with the task, which stops firing
                stop = partial(quarantine, task_id=task_id, why=f"cannot be planned: {error}")
                total.events.append(await self._store.run(stop))
        return total

    async def _pause_s(self) -> float:
        with told_if_late(self._log, lambda: [log_records.waiting("to read the next due time")]):
            wake_at = await self._store.read(lambda session: session.tasks.next_wake())
        if wake_at is None:
            return LONGEST_WAIT_S
        left_s = (wake_at - self._clock.now()).total_seconds()
        if left_s <= LEAD_S and self._prepared_for != wake_at:
            self._prepared_for = wake_at
            await self._prepare(wake_at)
            left_s = (wake_at - self._clock.now()).total_seconds()
        # On a shared store, another runner may be planning the tasks that are still due.
        shortest_s = _HELD_S if self._store.is_shared else 0.0
        left_s = left_s if self._prepared_for == wake_at else left_s - LEAD_S
        return min(LONGEST_WAIT_S, max(shortest_s, left_s))

    async def _prepare(self, wake_at: datetime) -> None:
        """Prepare the fires that are due soon, at `wake_at`."""
        ids = await self._store.read(lambda session: session.tasks.due(wake_at, MOST_PREPARED))
        self._known, size = {}, 0
        for start in range(0, len(ids), LARGEST_BATCH):
            if self._changed.is_set() or self._clock.now() >= wake_at or size > MOST_PREPARED_BYTES:
                return
            found = await self._store.read(partial(firing.prepare, ids=ids[start : start + LARGEST_BATCH]))
            self._known |= found
            size += sum(len(fire.frozen) for fire in found.values() if fire is not None)

    async def _check_clock(self) -> None:
        """Detect a step of the wall clock and record it. After a step back, reset cursors that are in the future."""
        wall, steady = self._clock.now(), self._clock.monotonic()
        step = wall - self._last_wall - timedelta(seconds=steady - self._last_steady)
        self._last_wall, self._last_steady = wall, steady
        if step > LARGEST_LEAD:
            self._log.emit("clock.stepped_forward", by_s=step.total_seconds(), now=rfc3339(wall))
        elif step < timedelta(seconds=-1):
            await self._rewind()

    async def _rewind(self) -> None:
        now = self._clock.now()
        while events := await self._store.run(lambda session: rewind(session, now)):
            self._log.emit_all(events)
        after = 0
        while after := await self._store.run(partial(bring_back, now=now, after_entry=after)):
            self._handover.wake()


class Presence:
    """A recorder of the spans in which this process did not run, which explain missed times."""

    def __init__(
        self, store: Store, *, clock: Clock, last_seen: Callable[[], Awaitable[datetime | None]], booted_at: datetime
    ) -> None:
        """Call `last_seen` to learn when a runner was last seen before this process. `booted_at` is the boot time."""
        self._store, self._clock = store, clock
        self._last_seen, self._booted_at = last_seen, booted_at
        self._has_begun = False
        self._unwritten: list[tuple[Cause, datetime, datetime]] = []

    async def run(self) -> None:
        """Record the absence before this start, then each pause that is too long for a busy machine."""
        if not self._has_begun:
            await self._begin()
        while True:
            wall, steady = self._clock.now(), self._clock.monotonic()
            await self._clock.sleep(EVERY_S)
            now, passed = self._clock.now(), timedelta(seconds=self._clock.monotonic() - steady)
            self._look(wall, now, passed)
            while self._unwritten:
                await self._store.run(lambda session: session.stoppages.happened(*self._unwritten[0]))
                del self._unwritten[0]

    async def leave(self) -> None:
        """Record that no runner is running from now on."""
        now = self._clock.now()
        await self._store.run(lambda session: session.stoppages.begin(Cause.RUNNER, "", now))

    async def _begin(self) -> None:
        last_seen, now = await self._last_seen(), self._clock.now()
        await self._store.run(lambda session: _end_absence(session, last_seen, now, self._booted_at))
        self._has_begun = True

    def _look(self, since: datetime, now: datetime, passed: timedelta) -> None:
        """Record a pause that is too long, unless the database is shared: another runner may have worked meanwhile."""
        if not self._store.is_shared and now - since - timedelta(seconds=EVERY_S) > _LONGEST_LAG:
            # The monotonic clock stops while the machine sleeps.
            ran = passed > (now - since) / 2
            self._unwritten.append((Cause.SUSPENDED if ran else Cause.ASLEEP, since, now))


def _end_absence(session: Session, last_seen: datetime | None, now: datetime, booted_at: datetime) -> None:
    """Record the end of an absence, which began at an orderly stop, or when a runner was last seen."""
    left = next((each for each in session.stoppages.listed() if each.lasts and each.cause is Cause.RUNNER), None)
    since = last_seen if left is None else left.since
    if since is None or since >= now:
        return
    off = f"the machine was off or restarting until {rfc3339(booted_at.replace(microsecond=0))}"
    why = off if booted_at > since else ""
    if left is None:
        session.stoppages.happened(Cause.RUNNER, since, now, why)
    else:
        session.stoppages.end(Cause.RUNNER, "", now, why)
