"""Following the runtime's turn events, and letting them settle fires.

The position is durable: an event and the sequence it advances are one transaction, so none is lost and none counts
twice. A runtime whose store was replaced starts a new incarnation: it is read from its beginning, and asked about
every fire that is open.
"""

import asyncio
from collections.abc import Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import NamedTuple

from google.protobuf.timestamp_pb2 import Timestamp

from protos.turnkeeper.v1 import agent_runtime_pb2 as wire
from task_runner.dispatcher.runtime_client import Runtime
from task_runner.model.task import OPEN, Fire, Outcome
from task_runner.planner import ledger, log_records
from task_runner.planner.budgets import Ended
from task_runner.planner.ledger import TurnState
from task_runner.planner.log_records import LogRecord
from task_runner.planner.self_paced import TAKEN_OVER
from task_runner.scheduler.events import Moved, emit_outcomes
from task_runner.scheduler.planning import Planned, plan_tasks, take_over
from task_runner.store.port import Session, Store
from turnkeeper.clock import Clock
from turnkeeper.entropy import Entropy
from turnkeeper.errors import TurnkeeperError
from turnkeeper.event_log import EventLog

LARGEST_BATCH = 256
_ASKED_AT_ONCE = 100
_SHORTEST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 2.0
_STATES = {wire.TurnEvent.State.Value(state.name): state for state in TurnState}


@dataclass(frozen=True, kw_only=True)
class Wakes:
    """Whom outcomes concern.

    Attributes:
        planning: set when a task may need planning at another time than before.
        dispatch: set when there may be something to send.
        lost: set before that when what was sent has to be sent again.
        asking: set when a fire asks for the end of the turn that it waits for.
    """

    planning: asyncio.Event
    dispatch: asyncio.Event
    lost: asyncio.Event
    asking: asyncio.Event


class News(NamedTuple):
    """What one turn event says of a fire."""

    fire_id: str
    attempt: int
    state: TurnState
    at: datetime
    turn_id: str
    error: str
    tokens: int = 0
    wake_after_s: int | None = None


class Follower:
    """Takes in the runtime's turn events, in order, each exactly once."""

    def __init__(
        self, store: Store, runtime: Runtime, *, clock: Clock, entropy: Entropy, trail: EventLog, wakes: Wakes
    ) -> None:
        """Take what it works on."""
        self._store, self._runtime = store, runtime
        self._clock, self._entropy, self._trail, self._wakes = clock, entropy, trail, wakes
        self._failures = 0

    async def run(self) -> None:
        """Follow for ever, connecting again whenever the stream breaks."""
        while True:
            with suppress(TurnkeeperError):
                await self.follow_once()
            self._failures += 1
            longest = min(_LONGEST_PAUSE_S, _SHORTEST_PAUSE_S * 2.0 ** min(self._failures, 10))
            await self._clock.sleep(self._entropy.uniform(_SHORTEST_PAUSE_S, longest))

    async def follow_once(self) -> None:
        """Follow one stream until it ends. Raises TurnkeeperError when it breaks."""
        incarnation, after = await self._store.run(lambda session: session.follow.position())
        events: asyncio.Queue[wire.TurnEvent | None] = asyncio.Queue(maxsize=4 * LARGEST_BATCH)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._read(incarnation, after, events))
                group.create_task(self._take(incarnation, after, events))
        except* TurnkeeperError as broken:
            raise broken.exceptions[0] from None

    async def _read(self, incarnation: str, after: int, events: asyncio.Queue[wire.TurnEvent | None]) -> None:
        stream = self._runtime.watch(incarnation, after)
        async with aclosing(stream):
            async for event in stream:
                await events.put(event)
        await events.put(None)

    async def _take(self, incarnation: str, after: int, events: asyncio.Queue[wire.TurnEvent | None]) -> None:
        while True:
            batch = [await events.get()]
            while not events.empty() and len(batch) < LARGEST_BATCH:
                batch.append(events.get_nowait())
            heard = [event for event in batch if event is not None]
            # What it stood behind is no longer there: another store, or an older copy of the same.
            if heard and incarnation and (heard[0].incarnation != incarnation or heard[0].sequence < after):
                await self._ask_about_open(heard[0].incarnation)
            if heard:
                incarnation, after = heard[-1].incarnation, heard[-1].sequence
                await self.take_in(heard)
            if len(heard) < len(batch):
                return

    async def take_in(self, events: Sequence[wire.TurnEvent]) -> None:
        """Record events and the position behind the last of them in one transaction."""
        now = self._clock.now()
        news = [news_of(event, now) for event in events if event.fire_id and event.state in _STATES]
        written_to = {event.thread_id for event in events if _is_by_author(event)}
        last = events[-1]

        def record(session: Session) -> tuple[Planned, list[Fire]]:
            done = record_news(session, news, now)
            over, needless = take_over(session, written_to, now) if written_to else (Planned(), [])
            session.follow.move(last.incarnation, last.sequence)
            return done + over, needless

        done, needless = await self._store.run(record)
        await self._finish(done)
        for fire in needless:
            # Where the runtime cannot be asked its turn runs, and asks for no other.
            with suppress(TurnkeeperError):
                await self._runtime.cancel(fire.fire_id, fire.attempt, TAKEN_OVER)

    async def _finish(self, done: Planned) -> None:
        self._failures = 0
        self._trail.emit_all(done.events)
        self._wakes.planning.set()
        self._wakes.dispatch.set()
        if done.asking:
            self._wakes.asking.set()

    async def _ask_about_open(self, incarnation: str) -> None:
        """Take in what a replaced store knows of every open fire; what it does not know is sent again."""
        self._trail.emit("runtime.replaced", incarnation=incarnation)
        after = 0
        while fires := await self._store.run(partial(_open, after=after)):
            turns = [await self._runtime.turn_of(fire.fire_id, fire.attempt) for fire in fires]
            now = self._clock.now()
            lost = [fire for fire, turn in zip(fires, turns, strict=True) if turn is None]
            news = [_of_turn(turn, now) for turn in turns if turn is not None and turn.state in _STATES]
            done = await self._store.run(partial(_recover, lost=lost, news=news, now=now))
            if lost:
                self._wakes.lost.set()
            await self._finish(done)
            after = fires[-1].entry_id


def record_news(session: Session, news: Sequence[News], now: datetime) -> Planned:
    """Move fires on by turn events, then plan the tasks that this frees or stops; return the log_records."""
    fires = session.fires.by_ids({item.fire_id for item in news})
    before, events, told = dict(fires), list[LogRecord](), list[Moved]()
    asked = set[str]()  # the fires whose turn waited for its author, also where the answer came since
    ended: dict[str, list[Ended]] = {}
    for item in news:
        fire = fires.get(item.fire_id)
        if fire is None:
            continue
        moved = ledger.turned(
            fire, item.state, item.at, attempt=item.attempt or fire.attempt, turn_id=item.turn_id, error=item.error
        )
        if moved is not fire and item.state in ledger.FINAL:
            spent = max(timedelta(0), item.at - (fire.started_at or item.at))
            moved = ledger.spending(moved, spent, item.tokens)
            turn = Ended(fire=moved, at=item.at, spent=spent, tokens=item.tokens, wake_after_s=item.wake_after_s)
            ended.setdefault(fire.task_id, []).append(turn)
        if moved is not fire:
            events.append(_fact(fire, moved, item.state))
            if Outcome.INTERRUPTED in {fire.outcome, moved.outcome}:
                asked.add(fire.fire_id)
            told.append(Moved(moved, item.state, item.at))
        fires[item.fire_id] = moved
    changed = [fire for id_, fire in fires.items() if fire is not before[id_]]
    session.fires.update(changed)
    session.tasks.record_accepted(
        fire for fire in changed if fire.accepted_at is not None and before[fire.fire_id].accepted_at is None
    )
    resumed = {fire.task_id for fire in changed if fire.outcome is Outcome.RUNNING and fire.fire_id in asked}
    concerned = sorted({fire.task_id for fire in changed if fire.outcome is not Outcome.RUNNING} | resumed)
    done = Planned(events=events) + plan_tasks(session, concerned, now, ended=ended, resumed=resumed)
    return done + emit_outcomes(session, told, now)


def _recover(session: Session, lost: list[Fire], news: list[News], now: datetime) -> Planned:
    session.fires.update([ledger.forgotten(fire) for fire in lost])
    return record_news(session, news, now)


def _open(session: Session, after: int) -> list[Fire]:
    return session.fires.open_fires(after, _ASKED_AT_ONCE)


def _fact(before: Fire, after: Fire, state: TurnState) -> LogRecord:
    if after.outcome not in OPEN:
        return log_records.settled(after)
    if state is TurnState.RELEASED:
        return log_records.of_fire("fire.released", before, next_attempt=after.attempt)
    if state is TurnState.FAILED:
        return log_records.of_fire("fire.retried", before, next_attempt=after.attempt, reason=after.reason)
    return log_records.of_fire(f"fire.{after.outcome}", after)


def news_of(event: wire.TurnEvent, now: datetime) -> News:
    """Return what an event says; one without a time happened now."""
    return News(
        fire_id=event.fire_id,
        attempt=event.attempt,
        state=_STATES[event.state],
        at=_instant(event.at, now),
        turn_id=event.turn_id,
        error=event.error,
        tokens=event.tokens_in + event.tokens_out,
        wake_after_s=event.wake_after_s if event.HasField("wake_after_s") else None,
    )


def _is_by_author(event: wire.TurnEvent) -> bool:
    """Tell whether an author's message began a turn; an answer to a question of the agent's goes on with one."""
    return event.trigger == wire.TurnEvent.AUTHOR and event.state == wire.TurnEvent.STARTED and not event.fire_id


def _of_turn(turn: wire.Turn, now: datetime) -> News:
    return News(
        fire_id=turn.fire_id,
        attempt=turn.attempt,
        state=_STATES[turn.state],
        at=_instant(turn.ended_at, now),
        turn_id=turn.turn_id,
        error=turn.error,
        wake_after_s=turn.wake_after_s if turn.HasField("wake_after_s") else None,
    )


def _instant(stamp: Timestamp, now: datetime) -> datetime:
    """Return the peer's time of an event, never later than ours; now where it gives none."""
    return min(stamp.ToDatetime(tzinfo=UTC), now) if stamp.seconds > 0 else now
