"""The follower of the runtime's events: outcomes of turns settle fires, and events inside turns trigger tasks.

The runner stores its position in both streams. It writes an event and the position after it in one transaction, so no
event is lost or counted twice. If the runtime's store was replaced, the new store has another incarnation. Then its
events are read from the beginning, and the runtime is asked about every open fire.
"""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

from google.protobuf.timestamp_pb2 import Timestamp

from task_runner.dispatcher.runtime_client import Reconnector, Runtime, in_batches
from task_runner.model import events
from task_runner.model.task import COUNTED, HALTED, OPEN, Fire, Outcome
from task_runner.planner import budgets, ledger, log_records, self_paced
from task_runner.scheduler.events import Moved, TakenIn, emit_outcomes, take_in
from task_runner.scheduler.planning import Planned, plan_tasks, take_over
from task_runner.store.rows import Cause
from task_runner.store.store import Session, Store
from turnkeeper.bus.event_log import EventLog, told_if_late
from turnkeeper.clock import Clock
from turnkeeper.config.surfaces import offered
from turnkeeper.entropy import Entropy
from turnkeeper.errors import TurnkeeperError
from turnkeeper.v1 import agent_runtime_pb2 as wire

LONGEST_WAIT_S = 30.0
_ASKED_AT_ONCE = 100
KNOWN_STATES = {wire.TurnEvent.State.Value(state.name): state for state in ledger.TurnState}


@dataclass(frozen=True, kw_only=True)
class Wakes:
    """The events that wake other parts of the runner after outcomes.

    Attributes:
        planning: set when the next planning time of a task may have changed.
        dispatch: set when there may be a fire to send.
        lost: set before `dispatch` when sent fires must be sent again.
        asking: set when a fire asks to cancel the turn ahead of it.
    """

    planning: asyncio.Event
    dispatch: asyncio.Event
    lost: asyncio.Event
    asking: asyncio.Event


class News(NamedTuple):
    """One turn event, as a report about a fire."""

    fire_id: str
    attempt: int
    state: ledger.TurnState
    at: datetime
    turn_id: str
    error: str
    tokens: int = 0
    money: int = 0
    unpriced: str = ""
    wake_after_s: int | None = None
    said: Mapping[str, Any] = MappingProxyType({})  # the answers, for the tasks that follow the fire's task


class Follower:
    """A reader of the runtime's turn events, which records each event exactly once, in order."""

    def __init__(
        self, store: Store, runtime: Runtime, *, clock: Clock, entropy: Entropy, log: EventLog, wakes: Wakes
    ) -> None:
        self._store, self._runtime = store, runtime
        self._clock, self._log, self._wakes = clock, log, wakes
        self._reconnector = Reconnector(clock, entropy)

    async def run(self) -> None:
        """Follow until cancelled; connect again whenever the stream ends."""
        await self._reconnector.run(self.follow_once)

    async def follow_once(self) -> None:
        """Follow one stream until it ends. Raises TurnkeeperError when the stream breaks."""
        incarnation, after = await self._store.read(lambda session: session.outcomes_read.get())

        async def take(batch: Sequence[wire.TurnEvent]) -> None:
            nonlocal incarnation, after
            # This is another store or an older copy, so the position does not apply to it.
            if incarnation and (batch[0].incarnation != incarnation or batch[0].sequence < after):
                self._log.emit("runtime.replaced", incarnation=batch[0].incarnation)
                await self.ask_about_open(again=True)  # about fires that are unknown to the new store
            incarnation, after = batch[-1].incarnation, batch[-1].sequence
            await self.take_in(batch)

        await in_batches(self._runtime.watch(incarnation, after), take)

    async def take_in(self, batch: Sequence[wire.TurnEvent]) -> None:
        """Record events and the position after the last of them in one transaction."""
        now = self._clock.now()
        said = await self._said(batch)
        about = [event for event in batch if event.fire_id and event.state in KNOWN_STATES]
        news = [news_of(event, now)._replace(said=said.get(event.fire_id, {})) for event in about]
        written_to = {event.thread_id for event in batch if _is_by_author(event)}
        last = batch[-1]

        def record(session: Session) -> tuple[Planned, list[Fire]]:
            done = record_news(session, news, now)
            over, needless = take_over(session, written_to, now) if written_to else (Planned(), [])
            session.outcomes_read.move(last.incarnation, last.sequence)
            return done + over, needless

        with told_if_late(self._log, lambda: [_heard(item) for item in news]):
            done, needless = await self._store.run(record)
        self._finish(done)
        for fire in needless:
            # If the runtime does not answer, the turn continues, and no other turn of the task starts.
            with suppress(TurnkeeperError):
                await self._runtime.cancel(fire.fire_id, fire.attempt, self_paced.TAKEN_OVER)

    async def _said(self, turns: Sequence[wire.TurnEvent | wire.Turn]) -> Mapping[str, Mapping[str, Any]]:
        """Return, by fire id, the answers for the followers. Raises TurnkeeperError."""
        asked = offered("answers", self._store, self._runtime, turns)
        return {} if asked is None else await asked

    def _finish(self, done: Planned) -> None:
        self._reconnector.succeeded()
        self._log.emit_all(done.events)
        self._wakes.planning.set()
        self._wakes.dispatch.set()
        if done.asking:
            self._wakes.asking.set()

    async def ask_about_open(self, *, again: bool) -> None:
        """Ask the runtime for the state of every open fire. If `again`, resend the fires unknown to the runtime."""
        after = 0
        while fires := await self._store.read(partial(_open, after=after)):
            turns = [await self._runtime.turn_of(fire.fire_id, fire.attempt) for fire in fires]
            now = self._clock.now()
            lost = [fire for fire, turn in zip(fires, turns, strict=True) if turn is None and again]
            known = [turn for turn in turns if turn is not None and turn.state in KNOWN_STATES]
            said = await self._said(known)
            news = [of_turn(turn, now)._replace(said=said.get(turn.fire_id, {})) for turn in known]
            done = await self._store.run(partial(_recover, lost=lost, news=news, now=now))
            if lost:
                self._wakes.lost.set()
            self._finish(done)
            after = fires[-1].entry_id


def record_news(session: Session, news: Sequence[News], now: datetime) -> Planned:
    """Apply turn events to fires, then plan the affected tasks; return the result."""
    ids = {item.fire_id for item in news}
    fires = {fire.fire_id: fire for fire in session.locked(lambda: list(session.fires.by_ids(ids).values()))}
    before, recorded, moves = dict(fires), list[log_records.LogRecord](), list[Moved]()
    asked = set[str]()  # the fires with a turn that waits or waited for its author
    ended: dict[str, list[budgets.Ended]] = {}
    for item in news:
        fire = fires.get(item.fire_id)
        if fire is None:
            continue
        if fire.outcome is Outcome.PENDING and fire.attempt == item.attempt and not fire.refusals:
            recorded += offered("turn of an unsent fire", session, fire, item, now) or ()
        moved = ledger.turned(
            fire, item.state, item.at, attempt=item.attempt or fire.attempt, turn_id=item.turn_id, error=item.error
        )
        if moved is not fire and item.state in ledger.FINAL:
            spent = max(timedelta(0), item.at - (fire.started_at or item.at))
            moved = ledger.spending(moved, spent, item.tokens)
            turn = budgets.Ended(
                fire=moved, at=item.at, spent=spent, tokens=item.tokens, money=item.money,
                unpriced=item.unpriced,
                wake_after_s=item.wake_after_s,
            )  # fmt: skip
            ended.setdefault(fire.task_id, []).append(turn)
        if moved is not fire:
            recorded.append(_log_record(fire, moved, item))
            _note_wait(session, fire, moved, item.at)
            if Outcome.INTERRUPTED in {fire.outcome, moved.outcome}:
                asked.add(fire.fire_id)
            moves.append(Moved(moved, item.state, item.at, item.said))
        fires[item.fire_id] = moved
    changed = [fire for id_, fire in fires.items() if fire is not before[id_]]
    session.fires.update(changed)
    session.tasks.record_accepted(
        fire for fire in changed if fire.accepted_at is not None and before[fire.fire_id].accepted_at is None
    )
    answered = [fire for fire in changed if fire.outcome not in HALTED and fire.fire_id in asked]
    resumed = {fire.task_id for fire in answered if fire.kind in COUNTED}
    concerned = sorted({fire.task_id for fire in changed if fire.outcome is not Outcome.RUNNING} | resumed)
    offered("places in queues", session, concerned, now)
    done = Planned(events=recorded) + plan_tasks(session, concerned, now, ended=ended, resumed=resumed)
    return done + emit_outcomes(session, moves, now)


def _note_wait(session: Session, before: Fire, after: Fire, at: datetime) -> None:
    """Record when a task's thread began to wait for its author, or that the wait ended."""
    if after.outcome in HALTED:
        session.stoppages.begin(Cause.AUTHOR, after.task_id, at, f"{after.fire_id} {after.reason or 'asks'}")
    elif before.outcome in HALTED:
        session.stoppages.end(Cause.AUTHOR, after.task_id, at)


def _recover(session: Session, lost: list[Fire], news: list[News], now: datetime) -> Planned:
    session.tasks.lock({fire.task_id for fire in lost})
    session.fires.update([ledger.forgotten(fire) for fire in lost])
    return record_news(session, news, now)


def _open(session: Session, after: int) -> list[Fire]:
    return session.fires.open_fires(after, _ASKED_AT_ONCE)


def _heard(news: News) -> log_records.LogRecord:
    """Return the log record of the runtime's report about a fire's turn; the report is not yet on disk."""
    said = {"fire_id": news.fire_id, "attempt": news.attempt, "turn_id": news.turn_id, "state": news.state.value}
    return log_records.LogRecord("fire.heard", said)


def _happened(event: events.Event) -> log_records.LogRecord:
    return log_records.LogRecord("event.heard", {"name": event.name, "turn_id": event.turn_id})


def _log_record(before: Fire, after: Fire, news: News) -> log_records.LogRecord:
    state = news.state
    if after.outcome not in OPEN:
        return log_records.settled(after)
    if state is ledger.TurnState.RELEASED:
        why = {"reason": news.error} if news.error else {}
        return log_records.of_fire("fire.released", before, next_attempt=after.attempt, **why)
    if state is ledger.TurnState.FAILED:
        return log_records.of_fire("fire.retried", before, next_attempt=after.attempt, reason=after.reason)
    return log_records.of_fire(f"fire.{after.outcome}", after)


def news_of(event: wire.TurnEvent, now: datetime) -> News:
    """Convert a turn event to a report. An event without a time gets the time `now`."""
    return _news(event, _instant(event.at, now), event.error or _held_by(event))


def _held_by(event: wire.TurnEvent) -> str:
    """Return a sentence that says which approvals a held fire waits for; empty for any other event."""
    if event.state != wire.TurnEvent.HELD or not event.held_by:
        return ""
    return f"waits for approval {', '.join(event.held_by)}"


def _is_by_author(event: wire.TurnEvent) -> bool:
    """Return whether an author's message began a turn. An answer to an agent's question continues a turn instead."""
    return event.trigger == wire.TurnEvent.AUTHOR and event.state == wire.TurnEvent.STARTED and not event.fire_id


def of_turn(turn: wire.Turn, now: datetime) -> News:
    """Convert a turn to a report about its fire. A turn without an end gets the time `now`."""
    return _news(turn, _instant(turn.ended_at, now), turn.error)


def _news(turn: wire.Turn | wire.TurnEvent, at: datetime, error: str) -> News:
    return News(
        fire_id=turn.fire_id,
        attempt=turn.attempt,
        state=KNOWN_STATES[turn.state],
        at=at,
        turn_id=turn.turn_id,
        error=error,
        tokens=turn.tokens_in + turn.tokens_out,
        money=offered("money of tokens", turn.models_json, turn.tokens_in, turn.tokens_out) or 0,
        unpriced=offered("unpriced tokens", turn.models_json, turn.tokens_in, turn.tokens_out) or "",
        wake_after_s=turn.wake_after_s if turn.HasField("wake_after_s") else None,
    )


def _instant(stamp: Timestamp, now: datetime) -> datetime:
    """Return the time of an event, but not later than `now`. Return `now` if the event has no time."""
    return min(stamp.ToDatetime(tzinfo=UTC), now) if stamp.seconds > 0 else now


class RuntimeEvents:
    """A reader of the events inside turns that tasks wait for. The reader records each event exactly once, in order.

    The runtime is asked only for the names that a task waits for, and again when these names change. While no task
    waits for an event, the runtime stores none.
    """

    def __init__(
        self, store: Store, runtime: Runtime, *, clock: Clock, entropy: Entropy, log: EventLog, wakes: Wakes
    ) -> None:
        """Create `changed`, to be set whenever the events that tasks wait for may have changed."""
        self._store, self._runtime = store, runtime
        self._clock, self._log, self._wakes = clock, log, wakes
        self._reconnector = Reconnector(clock, entropy)
        self.changed = asyncio.Event()

    async def run(self) -> None:
        """Follow until cancelled; connect again whenever the stream ends or the wanted names change."""
        await self._reconnector.run(self._follow_until_broken)

    async def _follow_until_broken(self) -> None:
        while True:
            await self.follow_once()
            self._reconnector.succeeded()

    async def follow_once(self) -> None:
        """Follow one stream until it ends or the wanted names change. Raises TurnkeeperError when the stream breaks."""
        self.changed.clear()
        names, (incarnation, after) = await self._store.read(
            lambda session: (names_wanted(session), session.events_read.get())
        )
        if not names and not incarnation:  # no task has ever waited for an event
            await self._clock.wait(self.changed, LONGEST_WAIT_S)
            return
        stream = self._runtime.watch_events(incarnation, after, sorted(names))
        following = asyncio.ensure_future(in_batches(stream, self.take_in))
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

    async def take_in(self, batch: Sequence[wire.BridgedEvent]) -> TakenIn:
        """Record events and the position after the last event in one transaction."""
        now = self._clock.now()
        happened, last = [event_of(each, now) for each in batch if each.name], batch[-1]

        def record(session: Session) -> TakenIn:
            taken = take_in(session, happened, now)
            session.events_read.move(last.incarnation, last.sequence)
            return taken

        with told_if_late(self._log, lambda: [_happened(one) for one in happened]):
            taken = await self._store.run(record)
        self._reconnector.succeeded()
        follow_up(taken, self._log, self._wakes)
        return taken

    async def _until_others_are_wanted(self, names: frozenset[str]) -> None:
        while await self._store.read(names_wanted) == names:
            self.changed.clear()
            await self._clock.wait(self.changed, LONGEST_WAIT_S)


def follow_up(taken: TakenIn, log: EventLog, wakes: Wakes) -> None:
    """Log the results of events, and wake the parts of the runner that they concern."""
    log.emit_all(taken.planned.events)
    if taken.planned.committed:
        wakes.planning.set()
        wakes.dispatch.set()
    if taken.planned.asking:
        wakes.asking.set()


def event_of(event: wire.BridgedEvent, now: datetime) -> events.Event:
    """Convert the runtime's message to an event; its time is limited to now.

    The id stays the same even if the runtime's store is read from the beginning again.
    """
    names = ("name", "turn_id", "thread_id", "fire_id", "task_id", "task_name", "channel", "category", "agent", "tool")
    return events.Event(
        id=events.id_of(event.name, event.turn_id, event.sequence, event.at.ToNanoseconds(), event.tool),
        at=_instant(event.at, now),
        data_json=event.data_json,
        **{name: getattr(event, name) for name in names},
    )


def names_wanted(session: Session) -> frozenset[str]:
    """Return the names of events inside turns that at least one task waits for."""
    return session.events.wanted() & frozenset(events.LIFECYCLE)
