"""Hand-over of fires and intake of outcomes through a database that several runners and runtimes share.

A hand-over is one transaction: the fire's request becomes an envelope, and the fire becomes accepted. If a runner is
killed before the commit, nothing is handed over, and the next runner finds the fire. The outcome of a turn is a row
that one runner records under the lock of its task. Neither step needs an answer from a runtime or another runner.
"""

import asyncio
import json
import os
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any, NamedTuple

from task_runner.dispatcher import outcomes
from task_runner.dispatcher.dispatcher import (
    Pace,
    first_late_s,
    key_of,
    plan_what_was_left,
    stop_hopeless,
)
from task_runner.dispatcher.runtime_client import LARGEST_BATCH, Runtime
from task_runner.model.events import Event, id_of
from task_runner.model.task import CatchUp, Fire, Outcome, Task, TaskState, thread_of
from task_runner.planner import ledger, log_records, self_paced
from task_runner.scheduler import planning
from task_runner.scheduler.events import TakenIn, take_in
from task_runner.store.rows import Key, Outgoing
from task_runner.store.shared import SOON_US, Happened, WrittenTurnEvent
from task_runner.store.store import Session, Store
from turnkeeper.bus.event_log import EventLog
from turnkeeper.clock import Clock, SharedClock
from turnkeeper.config.home import Home
from turnkeeper.config.settings import Settings, StoreSettings
from turnkeeper.config.surfaces import offered
from turnkeeper.entropy import Entropy
from turnkeeper.rpc.process import Failpoints, together
from turnkeeper.storage import chain, database, nodes
from turnkeeper.storage.server.following import Holes, listen
from turnkeeper.storage.server.handover import OUTCOMES, SCHEMA, STARTED, TASKS
from turnkeeper.storage.server.url import in_schema
from turnkeeper.times import from_us, to_us

POLL_S = 30.0  # longest time between two checks of a part that nothing wakes
LOCKED_S = 0.2  # before another try to record events of tasks that another transaction has locked
_LIMIT = 500  # most turn events in a transaction


class Parts(NamedTuple):
    """The classes of the runner's parts that use a shared store."""

    opened: Callable[..., Awaitable[tuple[Clock, Store, Runtime, nodes.Beat | None]]]
    handover: type["SharedHandover"]
    follower: type["SharedFollower"]
    events: type["SharedRuntimeEvents"]
    listener: type["Listener"]


def parts() -> Parts:
    return Parts(opened, SharedHandover, SharedFollower, SharedRuntimeEvents, Listener)


async def opened(
    home: Home, settings: Settings, at_home: str, entropy: Entropy, process: str, *reached: Any, daemon: bool
) -> tuple[Clock, Store, Runtime, nodes.Beat | None]:
    """Open the shared store. Return its clock, the store, its runtimes, and the part that reports that `process` runs.

    `reached` are the arguments of :class:`Runtime` for the runtime of this machine.
    """
    clock = SharedClock()
    os.environ.setdefault("PGAPPNAME", f"turnkeeper {process} {nodes.name_of(settings.node)}")  # in pg_stat_activity
    database.make_schemas(settings.store.url, upgrade=daemon)
    recorder = chain.Recorder.of(home, clock.now(), entropy, nodes.name_of(settings.node))
    store = Store(in_schema(settings.store.url, nodes.SCHEMA), at_home, clock, entropy, recorder)
    node_id = f"{process}-{entropy.hex(12)}"
    role = process if "runner" in settings.node.roles else nodes.WEB
    beat = nodes.Beat(store.transact, clock, node_id=node_id, name=settings.node.name, role=role)
    facts = {name: nodes.digest(said) for name, said in settings.common.items()}
    beat.facts = lambda: facts
    await beat.once() if daemon else await beat.set_clock()
    return clock, store, SharedRuntime.of(store, clock, beat, *reached), beat if daemon else None


class SharedRuntime(Runtime):
    """The runtimes of a shared database; the runtime on this machine answers calls.

    A cancel request is a row, and the runtime that owns the thread carries it out.
    """

    beat: nodes.Beat
    _store: Store
    _clock: Clock

    @classmethod
    def of(cls, store: Store, clock: Clock, beat: nodes.Beat, *reached: Any) -> "SharedRuntime":
        """Return the runtimes that share a store. `reached` are the arguments of :class:`Runtime` for this machine."""
        made = cls(*reached)
        made._store, made._clock, made.beat = store, clock, beat
        return made

    async def cancel(self, fire_id: str, attempt: int, reason: str, *, unless_waiting: bool = False) -> None:
        """Request the cancellation of an attempt's turn; do nothing if there is no such turn or the turn has ended."""
        now = self._clock.now()
        await self._store.run(lambda session: cancel(session, fire_id, attempt, reason, now, asleep=not unless_waiting))


def cancel(session: Session, fire_id: str, attempt: int, reason: str, now: datetime, *, asleep: bool = True) -> None:
    """Request the cancellation of an attempt's turn; if `asleep`, even while it waits for its author or a pause."""
    fire = session.fires.by_ids([fire_id]).get(fire_id)
    task = None if fire is None else session.tasks.find(fire.task_id)
    if task is not None:
        session.shared.cancel(fire_id, attempt, thread_of(task, fire_id), reason, now, asleep=asleep)


class Listener:
    """A look for work: one statement each second, and whenever this process or another one reports a change.

    The look wakes only the parts that have work. They need no looks of their own.
    """

    def __init__(
        self, store: Store, settings: StoreSettings, runtime: SharedRuntime, sender: "SharedHandover",
        follower: "SharedFollower", events: "SharedRuntimeEvents", *, clock: Clock, log: EventLog,
    ) -> None:  # fmt: skip
        """Leave the events of a turn to one runner, by the beats of `runtime`."""
        self._store, self._settings, self._clock, self._log = store, settings, clock, log
        self._sender, self._follower, self._events, self._beat = sender, follower, events, runtime.beat
        self._wake_us, self._looked_at = None, clock.now()  # type: int | None, datetime

    async def run(self) -> None:
        """Look until cancelled."""
        heard = listen(
            in_schema(self._settings.shared_url, SCHEMA),
            self._heard,
            lambda why: self._log.emit("store.unreachable", reason=why),
            self._clock,
            self._settings.heard(TASKS, OUTCOMES),
        )
        await together(heard, self._look_on())

    def _heard(self, channel: str, said: str) -> None:
        if said != STARTED and (not said or self._beat.is_first_for(said)):
            self._sender.looking.set()
        if channel == TASKS:
            self._sender.asking.set()

    async def _look_on(self) -> None:
        while True:
            self._sender.looking.clear()
            await self.look()
            await self._sender.looking.wait()

    async def look(self) -> None:
        """Wake the parts that have work."""
        now = self._clock.now()
        found = await self._store.read(lambda session: session.shared.waiting(now))
        soon = found.wake_us is not None and found.wake_us <= to_us(now) + 2 * SOON_US
        if soon or found.wake_us != self._wake_us or now < self._looked_at:
            self._sender.changed.set()
        self._wake_us, self._looked_at = found.wake_us, now
        if found.overdue:
            self._sender.late.set()
        if found.ready or found.overdue or not found.has_runtime or not self._sender.connected:
            self._sender.work.set()
        if found.news:
            self._follower.news.set()
        if found.listens:
            self._events.changed.set()


class SharedHandover:
    """A hand-over of committed fires to the runtimes that own their threads.

    Attributes:
        connected: True if a runtime was running at the last check.
        looking: set to look for work of any part.
        late: set if a fire that no runtime began is past its grace.
        changed: set when tasks need planning.
        trouble: always empty, because a runtime refuses a fire only when it begins the fire.
    """

    def __init__(
        self,
        store: Store,
        *,
        clock: Clock,
        log: EventLog,
        failpoints: Failpoints,
        pace: Pace,
        changed: asyncio.Event,
        planned: asyncio.Event,
    ) -> None:
        """Set `changed` when tasks need planning; hand over no fire before `planned` is set."""
        self._store, self._clock, self._log, self._failpoints = store, clock, log, failpoints
        self._pace, self.changed, self._planned = pace, changed, planned
        self.looking, self.late = asyncio.Event(), asyncio.Event()
        self.work, self.lost, self.asking = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.connected, self.trouble = False, ""
        self.on_sent: Callable[[Sequence[tuple[float, bool]]], object] = len
        self.traceparent: Callable[[str], str] | None = None

    def wake(self) -> None:
        """Check for fires to hand over, because a fire was committed."""
        self.work.set()

    def reachable(self) -> bool:
        """Return True if a runtime is running."""
        return self.connected

    def room(self) -> int:
        """Return 0, because each fire must be claimed first, so that only one runner hands it over."""
        return 0

    def take(self, sent: Sequence[tuple[Key, bytes, float]]) -> None:
        """Raise an error, because no fire is written as sent before its hand-over."""
        raise NotImplementedError

    async def run(self) -> None:
        """Hand over until cancelled. The parts of this process then serve authors' changes, so no other is told."""
        self._store.tells = False
        try:
            await self._planned.wait()
            while True:
                self.work.clear()
                began = self._clock.now()
                await self.send_all()
                if self.late.is_set():
                    await self.withdraw()
                await self._clock.wait(self.work, await self._pause_s(began))
        finally:
            self._store.tells = True

    async def send_all(self) -> int:
        """Hand over the fires that may be sent now; return their number."""
        count = 0
        while batch := await self.hand_over():
            count += len(batch)
        return count

    async def hand_over(self) -> list[Fire]:
        """Hand over one batch of fires; return them once it is on disk."""
        now = self._clock.now()
        if self.connected and not await self._store.read(lambda session: session.shared.may_hand_over(now)):
            return []
        work = partial(hand_over, now=now, pace=self._pace, traceparent=self.traceparent, reach=self._failpoints.reach)
        handed = await self._store.run(work)
        await self._note_whether(handed is not None, now)
        if not handed:
            return []
        self._failpoints.reach("runner.handed")
        names = ("fire.sent", "fire.accepted")
        self._log.emit_all([log_records.of_fire(name, key_of(fire)) for fire in handed for name in names])
        self.on_sent([(late_s, fire.caught_up) for fire in handed if (late_s := first_late_s(fire)) is not None])
        return handed

    async def withdraw(self) -> None:
        """Withdraw fires that no runtime has begun in time."""
        self.late.clear()
        done = await self._store.run(partial(withdraw, now=self._clock.now(), reach=self._failpoints.reach))
        self._log.emit_all(done.events)
        if done.events:
            self._failpoints.reach("runner.planned_again")
            self.changed.set()

    async def _note_whether(self, lives: bool, now: datetime) -> None:
        """Record whether a runtime is running. When the first runtime starts, plan the tasks with a running fire."""
        if not lives:
            await self._store.run(lambda session: session.outages.seen(now))
        elif not self.connected:
            done = await self._store.run(partial(plan_what_was_left, now=now))
            self._log.emit_all(done.events)
            self.changed.set()
            self.asking.set()
        self.connected = lives

    async def _pause_s(self, began: datetime) -> float:
        """Return the seconds to wait before the next check; `began` is the time when the last check began.

        Fires that were due at `began` but were not claimed are left to another process.
        """
        soon = await self._store.read(lambda session: session.fires.next_ready(caught_up=False))
        if soon is None or soon <= began:
            return POLL_S
        return min(POLL_S, max(0.0, (soon - self._clock.now()).total_seconds()))


def hand_over(
    session: Session,
    *,
    now: datetime,
    pace: Pace,
    traceparent: Callable[[str], str] | None = None,
    reach: Callable[[str], object] = len,
) -> list[Fire] | None:
    """Hand over the next ready fires; return them as sent. Return None if no runtime is running.

    While no runtime is running, or the runtimes have many fires to begin, fires stay in the ledger, so that catch-up
    decides about late fires.
    """
    if not session.shared.has_runtime():
        return None
    found = claim_ready(session, now, min(LARGEST_BATCH, session.shared.room()), pace)
    found = pace.admit(session, found, now)
    sent = [Outgoing(fire=ledger.sent(each.fire, now), request=each.request) for each in found]
    requests = [(each.fire, planning.complete_request(each)) for each in sent]
    traced = {fire.fire_id: planning.traced(traceparent(fire.fire_id)) for fire, _ in requests if traceparent}
    reach("runner.claimed")
    session.shared.put([(each, each.SerializeToString() + traced.get(each.fire_id, b"")) for _, each in requests], now)
    session.fires.hand_over([each.fire.entry_id for each in sent], now)
    session.tasks.record_accepted(each.fire for each in sent if each.fire.accepted_at is None)
    reach("runner.sent")
    return [each.fire for each in sent]


def withdraw(session: Session, now: datetime, *, reach: Callable[[str], object] = len) -> planning.Planned:
    """Withdraw scheduled fires that no runtime has begun within their grace, and plan them again as missed.

    While a runtime is running, withdraw only fires with catch-up `skip`. Leave the others queued.
    """
    if not session.alone("withdrawing envelopes") or not (ids := session.shared.overdue(now, LARGEST_BATCH)):
        return planning.Planned()
    lives = session.shared.has_runtime()
    found = session.locked(lambda: list(session.fires.by_ids(ids).values()))
    of = {each.task.id: each.task for each in session.tasks.snapshots(sorted({fire.task_id for fire in found}))}
    missed = [fire for fire in found if _is_missed(fire, of[fire.task_id], now, lives=lives)]
    gone = [fire for fire in missed if session.shared.withdraw(fire.fire_id, fire.attempt)]
    reach("runner.withdrawn")
    session.fires.update([ledger.withdrawn(fire, now) for fire in gone])
    done = planning.Planned(events=[log_records.of_fire("fire.withdrawn", fire) for fire in gone])
    return done + planning.plan_tasks(session, sorted({fire.task_id for fire in gone}), now, reachable=lives)


def _is_missed(fire: Fire, task: Task, now: datetime, *, lives: bool) -> bool:
    over = fire.outcome is Outcome.ACCEPTED and fire.send_by is not None and fire.send_by < now
    return over and (not lives or (task.definition.catch_up is CatchUp.SKIP and not fire.caught_up))


def claim_ready(session: Session, now: datetime, limit: int, pace: Pace) -> list[Outgoing]:
    """Lock and return at most `limit` ready fires, with caught-up fires limited by the pace of all runners."""
    found = session.fires.claim(now, limit, caught_up=False) if limit > 0 else []
    waits = session.fires.next_ready(caught_up=True) if len(found) < limit else None
    slot = session.shared.catch_up() if waits is not None and waits <= now else None
    if slot is not None and pace.goes_on(slot, now):
        free = max(0, pace.concurrency - session.fires.catching_up())
        most = min(free, 1 if pace.stagger_s > 0 else limit - len(found))
        late = session.fires.claim(now, most, caught_up=True) if most else []
        if late:
            session.shared.catch_up_after(now + timedelta(seconds=pace.stagger_s))
        found += late
    return found


class SharedFollower:
    """A reader of the turn events in a shared database. One of the runners records each event, exactly once."""

    def __init__(self, store: Store, *, clock: Clock, log: EventLog, wakes: outcomes.Wakes) -> None:
        self._store, self._clock, self._log, self._wakes = store, clock, log, wakes
        self.news = asyncio.Event()

    async def run(self) -> None:
        """Record events until cancelled."""
        while True:
            await self.news.wait()
            self.news.clear()
            count = await self.take_in()
            while await self._store.read(lambda session: session.shared.has_news()):
                if not count:
                    await self._clock.sleep(LOCKED_S)
                count = await self.take_in()

    async def take_in(self) -> int:
        """Record one batch in one transaction; return the number of events."""
        count, done = await self._store.run(partial(take, now=self._clock.now()))
        self._log.emit_all(done.events)
        if count:
            self._wakes.dispatch.set()
        if done.asking:
            self._wakes.asking.set()
        return count

    async def ask_about_open(self, *, again: bool) -> None:  # noqa: ARG002  required by the interface
        """Record all events in the database, which include all changes of open fires."""
        while await self.take_in():
            pass


class SharedRuntimeEvents:
    """A reader of events inside turns on all runtimes. Only one runner reads at a time."""

    def __init__(self, store: Store, *, clock: Clock, log: EventLog, wakes: outcomes.Wakes) -> None:
        """Create `changed`, to be set when new events happened or tasks may wait for other events."""
        self._store, self._clock, self._log, self._wakes = store, clock, log, wakes
        self.changed, self._holes = asyncio.Event(), Holes()

    async def run(self) -> None:
        """Record events until cancelled."""
        while True:
            self.changed.clear()
            if await self.take_in() < _LIMIT:
                await self._clock.wait(self.changed, POLL_S)

    async def take_in(self) -> int:
        """Record one batch in one transaction; return the number of events."""
        count, taken = await self._store.run(partial(take_happened, now=self._clock.now(), holes=self._holes))
        outcomes.follow_up(taken, self._log, self._wakes)
        return count


def take_happened(session: Session, now: datetime, holes: Holes) -> tuple[int, TakenIn]:
    """Record events inside turns, and publish the names that tasks wait for. Return the number of settled events.

    If another runner is recording events at this moment, record none. Record events behind a missing one at once, and
    again with it, which changes nothing. Also return the results.
    """
    if not session.alone("taking in what happens inside turns"):
        return 0, TakenIn()
    names, (known, position) = outcomes.names_wanted(session), session.events_read.get()
    if not names and not known:  # no task has ever waited for an event
        return 0, TakenIn()
    session.shared.want(names)
    incarnation = session.shared.incarnation()
    found, reached = session.shared.happened(names, position if known == incarnation else 0, _LIMIT, holes)
    if not found:
        return 0, TakenIn()
    taken = take_in(session, [_event_of(each, now) for each in found], now)
    session.events_read.move(incarnation, reached)
    session.shared.forget_happened(reached)
    return sum(each.sequence <= reached for each in found), taken


def _event_of(happened: Happened, now: datetime) -> Event:
    """Convert a row to an event with the same id as in a runtime's stream."""
    named = happened._asdict()
    number, at_us = named.pop("sequence"), named.pop("at_us")
    id_ = id_of(happened.name, happened.turn_id, number, at_us * 1000, happened.tool)
    return Event(id=id_, at=min(from_us(at_us), now), **named)


def take(session: Session, now: datetime) -> tuple[int, planning.Planned]:
    """Record turn events, and cancel fires that need not begin. Return the number of events and the planning result."""
    told = session.shared.take(_LIMIT)
    news = [_news_of(each, now) for each in told if each.fire_id and each.state in ledger.TurnState.__members__]
    done = outcomes.record_news(session, news, now) if news else planning.Planned()
    for each in told:
        if each.refused:
            done += _stop_refused(session, each, now)
    written_to = {each.thread_id for each in told if _is_by_author(each)}
    over, needless = planning.take_over(session, written_to, now) if written_to else (planning.Planned(), [])
    for fire in needless:
        cancel(session, fire.fire_id, fire.attempt, self_paced.TAKEN_OVER, now)
    return len(told), done + over


def _stop_refused(session: Session, told: WrittenTurnEvent, now: datetime) -> planning.Planned:
    """Stop the task of a refused fire. No runtime can begin it unless the task, its graph or its category changes."""
    fire = session.fires.by_ids([told.fire_id]).get(told.fire_id)
    task = None if fire is None else session.tasks.find(fire.task_id)
    active = task is not None and task.state is TaskState.ACTIVE
    return stop_hopeless(session, task.id, told.error, now) if task and active else planning.Planned()


def _news_of(told: WrittenTurnEvent, now: datetime) -> outcomes.News:
    held_by = json.loads(told.held_by_json or "[]") if told.state == "HELD" else []
    return outcomes.News(
        fire_id=told.fire_id,
        attempt=told.attempt,
        state=ledger.TurnState[told.state],
        at=min(from_us(told.at_us), now),
        turn_id=told.turn_id,
        error=told.error or (f"waits for approval {', '.join(held_by)}" if held_by else ""),
        tokens=told.tokens_in + told.tokens_out,
        money=offered("money of tokens", told.models_json, told.tokens_in, told.tokens_out) or 0,
        unpriced=offered("unpriced tokens", told.models_json, told.tokens_in, told.tokens_out) or "",
        wake_after_s=told.wake_after_s,
    )


def _is_by_author(told: WrittenTurnEvent) -> bool:
    """Return whether an author's message began a turn. An answer to an agent's question continues a turn instead."""
    return told.trigger == "author" and told.state == ledger.TurnState.STARTED.name and not told.fire_id
