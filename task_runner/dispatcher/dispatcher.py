"""The dispatcher, which sends each committed fire until the runtime answers.

A fire is recorded as `sent` on disk after the stream connects and before its request leaves. If the stream breaks, the
fire may have arrived or not. It stays `sent` and is sent again with the same id and attempt until the runtime answers,
however late that is. Only a definite refusal makes a fire unsent again.

With overlap `cancel-running`, a waiting fire also asks to cancel the turn ahead. The request is on disk with the fire
and survives a restart. It is repeated until the turn ends, and less often once the runtime has answered. A turn that
waits for its author is not cancelled.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial

from google.rpc import code_pb2

from task_runner.dispatcher.runtime_client import LARGEST_BATCH, FireStream, Reconnector, Runtime
from task_runner.model.task import COUNTED, HOSTED, LONGEST_REASON, Fire, Outcome
from task_runner.planner import ledger, log_records, overlap, planner
from task_runner.planner.entries import timetable_of
from task_runner.scheduler import planning
from task_runner.store.rows import Cause, Key, Outgoing
from task_runner.store.store import Session, Store
from turnkeeper.bus.event_log import EventLog, told_if_late
from turnkeeper.clock import Clock
from turnkeeper.config.surfaces import offered
from turnkeeper.entropy import Entropy
from turnkeeper.errors import Corrupt, Denied, TurnkeeperError
from turnkeeper.rpc.process import Failpoints, together
from turnkeeper.v1 import agent_runtime_pb2 as wire

MOST_UNANSWERED = 4096
LONGEST_WAIT_S = 30.0
_RECEIPTS_WAIT_S = 0.25
_CONNECT_S = 5.0
STOPPED_REASON = "its task was stopped before the agent read the fire"
CANCEL_REASON = f"the next fire of its task is due (overlap {overlap.CANCELS})"
_CANCEL_PAUSE_S = 2.0
_MOST_CANCELLED = 100
# Sending the same bytes again cannot succeed, because only a change to the task can.
_HOPELESS = frozenset({code_pb2.INVALID_ARGUMENT, code_pb2.FAILED_PRECONDITION})
_HELD_S = 2 * ledger.LONGEST_BACKOFF_S  # a held fire is sent again within this time
_SILENT_AFTER = timedelta(seconds=5)  # the log records a longer silence of the runtime
_DISPOSITIONS: Mapping[int, str] = {value: name for name, value in wire.FireReceipt.Disposition.items()}
Admit = Callable[[Session, list[Outgoing], datetime], list[Outgoing]]


def every(_session: Session, found: list[Outgoing], _now: datetime) -> list[Outgoing]:
    """Return all fires, because no queue limits them."""
    return found


@dataclass(frozen=True, kw_only=True)
class Pace:
    """The limits on the sending of fires.

    Attributes:
        concurrency: the most caught-up fires that run at once.
        stagger_s: the shortest time between two caught-up fires, in seconds.
        admit: returns the fires that may be sent now, and postpones the others.
    """

    concurrency: int = 4
    stagger_s: float = 0.2
    admit: Admit = every

    def goes_on(self, until: datetime, now: datetime) -> bool:
        """Return True if another fire may be sent: `until` has passed, or is far ahead after a clock step."""
        return not now < until <= now + timedelta(seconds=self.stagger_s)


def key_of(fire: Fire) -> Key:
    """Return the key that a sent fire is kept under until the runtime answers."""
    return Key(fire.fire_id, fire.attempt, fire.entry_id, fire.task_id, fire.kind in COUNTED)


class Dispatcher:
    """The sender of fires, which keeps a stream to the runtime open and empties the outbox.

    Attributes:
        refusal: why the runtime refuses fires from this runner; empty if it accepts them or is unreachable.
        on_sent: called when fires are first sent, with the lateness of each in seconds and whether it is caught up.
        traceparent: returns the W3C trace context of a fire id; None without traces.
    """

    def __init__(
        self,
        store: Store,
        runtime: Runtime,
        *,
        clock: Clock,
        entropy: Entropy,
        log: EventLog,
        failpoints: Failpoints,
        pace: Pace,
        changed: asyncio.Event,
        planned: asyncio.Event,
    ) -> None:
        """Set `changed` whenever a task needs planning, and send no new fire before `planned` is set.

        The planning loop sets `planned` once all tasks that were due at the start are planned.
        """
        self._store, self._runtime = store, runtime
        self._clock, self._log = clock, log
        self._reconnector = Reconnector(clock, entropy)
        self._failpoints, self._pace, self._changed = failpoints, pace, changed
        self._planned = planned
        self.work, self.lost, self.asking = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._unanswered: deque[Key] = deque()
        self._calm = asyncio.Event()
        self._calm.set()
        self._stagger_until: datetime | None = None
        self._handed: asyncio.Queue[list[tuple[Key, bytes]]] = asyncio.Queue()
        self._on_hand = 0  # number of fires in `_handed`
        self._asked_at: datetime | None = None  # the time from which the runtime has owed an answer
        self._kept_back = set[str]()  # the tasks that are recorded as held
        self._takes = False
        self._writing = asyncio.Lock()  # a stream accepts only one message at a time
        self.connected = False
        self.refusal = ""
        self._held: dict[str, tuple[float, str]] = {}  # by task: the end of the hold on its fires, and the reason
        self.on_sent: Callable[[Sequence[tuple[float, bool]]], object] = len
        self.traceparent: Callable[[str], str] | None = None

    @property
    def trouble(self) -> str:
        """Why the runtime refuses or holds fires, such as a mistake in a category file; empty if it does not."""
        now = self._clock.monotonic()
        self._held = {task: known for task, known in self._held.items() if known[0] > now}
        _, why = next(iter(self._held.values()), (0.0, ""))
        return self.refusal or (why and f"fires are held until this is repaired: {why}")

    def wake(self) -> None:
        """Check the outbox now, because a fire was committed or a catch-up slot became free."""
        self.work.set()

    def reachable(self) -> bool:
        """Return True if the runtime is connected."""
        return self.connected

    def room(self) -> int:
        """Return how many fires :meth:`take` accepts now."""
        return max(0, MOST_UNANSWERED - len(self._unanswered) - self._on_hand) if self._takes else 0

    def take(self, sent: Sequence[tuple[Key, bytes, float]]) -> None:
        """Hand fires that the store marks as sent to the open stream. If there is none, the next stream reads them."""
        self._failpoints.reach("runner.handed")
        self.on_sent([(late_s, False) for _, _, late_s in sent])
        if self.connected:
            self._on_hand += len(sent)
            self._handed.put_nowait([(key, request) for key, request, _ in sent])

    async def run(self) -> None:
        """Dispatch until cancelled; connect again whenever the stream breaks."""
        await self._store.run(lambda session: session.outages.left())
        known = await self._store.read(lambda session: session.stoppages.listed())
        self._kept_back = {each.task_id for each in known if each.lasts and each.cause is Cause.HELD}
        await self._reconnector.run(self.serve_once)

    async def serve_once(self) -> None:
        """Open one stream and use the stream until it breaks. Raises TurnkeeperError when the stream breaks.

        If the runtime refuses our fires, log the refusal once and report it until the runtime accepts them. If the
        runtime was silent for a long time before the stream broke, record the silence.
        """
        try:
            await self._serve(await self._runtime.open_stream(_CONNECT_S))
        except (Denied, Corrupt) as error:
            if not self.refusal:
                self._log.emit("runtime.refused", reason=str(error))
            self.refusal = f"no fire can be sent: {error}"
            raise
        except TurnkeeperError:
            now, since = self._clock.now(), self._asked_at

            def seen(session: Session) -> None:
                _note_silence(session, since, now)
                session.outages.seen(now)

            self._asked_at = None
            await self._store.run(seen)
            raise

    async def _serve(self, stream: FireStream) -> None:
        receipts: asyncio.Queue[wire.FireReceipt] = asyncio.Queue()
        self.connected = True
        try:
            await self._plan_what_was_left()
            self._unanswered.clear()
            self._handed, self._on_hand = asyncio.Queue(), 0
            await together(
                self._send(stream), self._pass_on(stream), self._receive(stream, receipts), self._record(receipts)
            )
        finally:
            self.connected = self._takes = False
            stream.close()

    async def send_all(self) -> int:
        """Send the fires that may be sent now; return how many were answered. Raises TurnkeeperError."""
        stream = await self._runtime.open_stream(_CONNECT_S)
        self.connected = True
        try:
            await self._plan_what_was_left()
            await self._resend(stream)
            while batch := await self._claim():
                await self._write_all(stream, batch)
            count = len(self._unanswered)
            while self._unanswered:
                await self.take_in(list(await stream.read()))
        finally:
            self.connected = False
            stream.close()
        return count

    async def _plan_what_was_left(self) -> None:
        """Plan the tasks with a running fire, because times may have come due while the runtime was unreachable."""
        done = await self._store.run(partial(plan_what_was_left, now=self._clock.now()))
        self._log.emit_all(done.events)
        self._changed.set()
        self.asking.set()

    async def _send(self, stream: FireStream) -> None:
        self.lost.clear()
        await self._resend(stream)
        await self._planned.wait()
        self._takes = True
        while True:
            self.work.clear()
            if self.lost.is_set():
                self.lost.clear()
                await self._resend(stream)
            while batch := await self._claim():
                self._calm.clear()
                await self._write_all(stream, batch)
            if self._planned.is_set():
                self._calm.set()
            if not await self._clock.wait(self.work, await self._pause_s()):
                self.refusal = ""  # a stream that stays open this long is accepted

    async def _pass_on(self, stream: FireStream) -> None:
        """Write fires to the stream while the next ones are planned."""
        while True:
            batch = await self._handed.get()
            self._calm.clear()
            self._on_hand -= len(batch)
            await self._write(stream, batch)
            if self._handed.empty() and self._planned.is_set():
                self._calm.set()

    async def _resend(self, stream: FireStream) -> None:
        """Resend, unchanged, all fires that may not have arrived."""
        after = 0
        while batch := await self._store.read(partial(_unanswered, after=after)):
            await self._write_all(stream, batch)
            after = batch[-1].fire.entry_id

    async def _claim(self) -> list[Outgoing]:
        """Record the next fires as sent; return them once that is on disk."""
        room = min(LARGEST_BATCH, MOST_UNANSWERED - len(self._unanswered) - self._on_hand)
        if room <= 0:
            return []
        now = self._clock.now()
        slots = self._pace.concurrency if self._pace.goes_on(self._stagger_until or now, now) else 0
        single = self._pace.stagger_s > 0
        with told_if_late(self._log, lambda: [log_records.waiting("to send the committed fires")]):
            batch = await self._store.run(
                lambda session: claim(session, now, room, slots, single=single, admit=self._pace.admit)
            )
        self.on_sent(
            [(late_s, each.fire.caught_up) for each in batch if (late_s := first_late_s(each.fire)) is not None]
        )
        if any(outgoing.fire.caught_up for outgoing in batch):
            self._stagger_until = now + timedelta(seconds=self._pace.stagger_s)
        return batch

    async def _write_all(self, stream: FireStream, batch: list[Outgoing]) -> None:
        await self._write(
            stream, [(key_of(each.fire), planning.complete_request(each).SerializeToString()) for each in batch]
        )

    async def _write(self, stream: FireStream, batch: list[tuple[Key, bytes]]) -> None:
        self._failpoints.reach("runner.sent")
        self._log.emit_all([log_records.of_fire("fire.sent", key) for key, _ in batch])
        if (traceparent := self.traceparent) is not None:
            batch = [(key, request + planning.traced(traceparent(key.fire_id))) for key, request in batch]
        async with self._writing:
            self._asked_at = self._asked_at or self._clock.now()
            self._unanswered.extend(key for key, _ in batch)
            await stream.write([request for _, request in batch])

    async def _pause_s(self) -> float:
        """Return the seconds to wait before the next check for fires to send."""
        now = self._clock.now()
        soon, slow = await self._store.read(
            lambda session: (session.fires.next_ready(caught_up=False), session.fires.next_ready(caught_up=True))
        )
        if slow is not None and slow <= now:
            # The fire waits until the stagger ends or the end of a turn frees a catch-up slot.
            slow = self._stagger_until if self._stagger_until and self._stagger_until > now else None
        if len(self._unanswered) >= MOST_UNANSWERED:
            soon = None
        waits = [(at - now).total_seconds() for at in (soon, slow) if at is not None]
        return max(0.0, min([LONGEST_WAIT_S, *waits]))

    async def _receive(self, stream: FireStream, receipts: asyncio.Queue[wire.FireReceipt]) -> None:
        while True:
            for receipt in await stream.read():
                receipts.put_nowait(receipt)

    async def _record(self, receipts: asyncio.Queue[wire.FireReceipt]) -> None:
        while True:
            batch = [await receipts.get()]
            # Due fires come first: receipts can wait while there is more to send.
            await self._clock.wait(self._calm, _RECEIPTS_WAIT_S)
            while not receipts.empty() and len(batch) < LARGEST_BATCH:
                batch.append(receipts.get_nowait())
            await self.take_in(batch)

    async def take_in(self, receipts: list[wire.FireReceipt]) -> None:
        """Record receipts in one transaction."""
        self._failpoints.reach("runner.receipt")
        self._reconnector.succeeded()
        self.refusal = ""
        now = self._clock.now()
        held, freed = self._note_held(receipts)
        keys = [self._unanswered.popleft() if self._unanswered else None for _ in receipts]
        since, refused = self._asked_at, any(receipt.HasField("error") for receipt in receipts)
        given = self._store, self._runtime, self._log.emit_all, receipts, keys
        if refused and (taking := offered("fires of lost commits", *given)):
            receipts = await taking

        def record(session: Session) -> planning.Planned:
            _note_silence(session, since, now)
            for task, why in held.items():
                session.stoppages.begin(Cause.HELD, task, now, why)
            for task in freed:
                session.stoppages.end(Cause.HELD, task, now)
            return record_receipts(session, receipts, keys, now)

        with told_if_late(self._log, partial(_answers, receipts)):
            done = await self._store.run(record)
        self._kept_back = (self._kept_back | held.keys()) - freed
        self._log.emit_all(done.events)
        self._asked_at = now if self._unanswered else None
        if refused:
            self._changed.set()
        self.work.set()

    def _note_held(self, receipts: Sequence[wire.FireReceipt]) -> tuple[dict[str, str], set[str]]:
        """Return the tasks whose fires the runtime now holds, with the reasons, and the tasks whose fires it freed."""
        until, held, freed = self._clock.monotonic() + _HELD_S, dict[str, str](), set[str]()
        for receipt in receipts:
            task = receipt.fire_id.partition("@")[0]
            if receipt.error.code == code_pb2.UNAVAILABLE and receipt.error.field:
                self._held[task] = until, receipt.error.message
                held[task] = receipt.error.message[:LONGEST_REASON]
            else:
                self._held.pop(task, None)
                freed |= {task} & self._kept_back
        return held, freed


def _note_silence(session: Session, since: datetime | None, now: datetime) -> None:
    """Record a long silence of the runtime, once the runtime answers or is known to be unreachable."""
    if since is not None and now - since > _SILENT_AFTER:
        session.stoppages.happened(Cause.SILENT, since, now)


def _answers(receipts: Sequence[wire.FireReceipt]) -> list[log_records.LogRecord]:
    """Return log records of the runtime's answers, which are not yet on disk."""
    return [
        log_records.LogRecord("fire.answered", {"fire_id": receipt.fire_id, "turn_id": receipt.turn_id})
        for receipt in receipts
    ]


def plan_what_was_left(session: Session, now: datetime) -> planning.Planned:
    """Plan the tasks with a running fire once a runtime is reached, before all reports of their turns arrive."""
    session.outages.ended(now)
    return planning.plan_tasks(session, session.fires.tasks_under_way(), now, complete=False)


def _unanswered(session: Session, after: int) -> list[Outgoing]:
    return session.fires.unanswered(after, LARGEST_BATCH)


def first_late_s(fire: Fire) -> float | None:
    """Return how late a fire was first sent, in seconds; None if it had been sent before."""
    first = fire.attempt == 1 and not fire.refusals and fire.fired_at is not None
    return (fire.fired_at - fire.due_at).total_seconds() if first and fire.fired_at else None


def claim(
    session: Session, now: datetime, limit: int, slots: int, *, single: bool, admit: Admit = every
) -> list[Outgoing]:
    """Record at most `limit` ready fires as sent; return them. At most `slots` caught-up fires run at once."""
    found = session.fires.ready(now, limit, caught_up=False)
    if slots and len(found) < limit:
        free = max(0, slots - session.fires.catching_up())
        found += session.fires.ready(now, min(free, 1) if single else free, caught_up=True) if free else []
    admitted = admit(session, found, now)
    sent = [Outgoing(fire=ledger.sent(outgoing.fire, now), request=outgoing.request) for outgoing in admitted]
    session.fires.record_sent([outgoing.fire for outgoing in sent])
    return sent


def record_receipts(
    session: Session, receipts: list[wire.FireReceipt], keys: list[Key | None], now: datetime
) -> planning.Planned:
    """Record accepted fires; make refused fires unsent again and plan their tasks. Return the result."""
    answered = list(zip(receipts, keys, strict=True))
    plain = {key.entry_id: (receipt, key) for receipt, key in answered if key is not None and _is_plain(receipt, key)}
    attempts = session.fires.unanswered_attempts(plain) if plain else {}
    first = [each for number, each in plain.items() if attempts.get(number) == each[1].attempt]
    done = _record_first(session, first, now)
    # Any receipt other than the first acceptance of a sent attempt is compared with the stored fire.
    recorded = {id(receipt) for receipt, _ in first}
    others = [each for each in answered if id(each[0]) not in recorded]
    return done + _record_others(session, others, now) if others else done


def _is_plain(receipt: wire.FireReceipt, key: Key) -> bool:
    """Return whether a receipt accepts the attempt that was sent."""
    same = key.fire_id == receipt.fire_id and receipt.attempt in {0, key.attempt}
    return same and key.entry_id > 0 and not receipt.HasField("error")


def _record_first(
    session: Session, receipts: Sequence[tuple[wire.FireReceipt, Key]], now: datetime
) -> planning.Planned:
    """Record the first acceptance of sent attempts, with the same result as `ledger.accepted`."""
    session.fires.accept([(key.entry_id, receipt.turn_id) for receipt, key in receipts], now)
    session.tasks.count_accepted((key.task_id, key.counts) for _, key in receipts)
    return planning.Planned(
        events=[
            log_records.of_fire("fire.accepted", key, disposition=_DISPOSITIONS[receipt.disposition])
            for receipt, key in receipts
        ]
    )


def _record_others(
    session: Session, receipts: Sequence[tuple[wire.FireReceipt, Key | None]], now: datetime
) -> planning.Planned:
    fires = session.fires.by_ids({receipt.fire_id for receipt, _ in receipts})
    before, events = dict(fires), list[log_records.LogRecord]()
    refused: list[tuple[Fire, wire.FireError]] = []
    for receipt, key in receipts:
        fire = fires.get(receipt.fire_id)
        if fire is None:
            continue
        attempt = receipt.attempt or (key.attempt if key and key.fire_id == receipt.fire_id else fire.attempt)
        if receipt.HasField("error"):
            now_fire = ledger.refused(fire, now, attempt=attempt, why=receipt.error.message)
            if now_fire is not fire:
                refused.append((now_fire, receipt.error))
        else:
            now_fire = ledger.accepted(fire, now, attempt=attempt, turn_id=receipt.turn_id)
            disposition = _DISPOSITIONS[receipt.disposition]
            events.append(log_records.of_fire("fire.accepted", fire, disposition=disposition))
        fires[receipt.fire_id] = now_fire
    changed = [fire for id_, fire in fires.items() if fire is not before[id_]]
    were_refused = {fire.fire_id for fire, _ in refused}
    session.fires.update([fire for fire in changed if fire.fire_id in were_refused])
    session.fires.record_accepted([fire for fire in changed if fire.fire_id not in were_refused])
    session.tasks.record_accepted(
        fire for fire in changed if fire.accepted_at is not None and before[fire.fire_id].accepted_at is None
    )
    return planning.Planned(events=events) + _replan_refused(session, refused, now)


def _replan_refused(session: Session, refused: list[tuple[Fire, wire.FireError]], now: datetime) -> planning.Planned:
    done = planning.Planned(
        events=[
            log_records.of_fire("fire.refused", fire, code=error.code, field=error.field) for fire, error in refused
        ]
    )
    hopeless = {fire.task_id: error for fire, error in refused if error.code in _HOPELESS and error.field}
    for task_id, error in hopeless.items():
        done += stop_hopeless(session, task_id, f"{error.field}: {error.message}", now)
    again = sorted({fire.task_id for fire, _ in refused if fire.outcome is Outcome.PENDING} - set(hopeless))
    return done + planning.plan_tasks(session, again, now)


def stop_hopeless(session: Session, task_id: str, why: str, now: datetime) -> planning.Planned:
    """Quarantine a task whose fires the runtime can never accept, and withdraw its unsent fires."""
    (snapshot,) = session.tasks.snapshots([task_id])
    withdrawn = planner.withdraw(snapshot, timetable_of(snapshot.task.definition), "quarantined", now, manual=True)
    done = planning.write_plans(session, [(snapshot, withdrawn)])
    done.events.append(planning.quarantine(session, task_id, why))
    return done


class Canceller:
    """A sender of cancel requests for turns that waiting fires replace, and for stopped tasks' fires in terminals."""

    def __init__(self, store: Store, runtime: Runtime, *, clock: Clock, log: EventLog, work: asyncio.Event) -> None:
        """Check for turns to cancel whenever `work` is set."""
        self._store, self._runtime, self._clock, self._log = store, runtime, clock, log
        self._work = work
        self._answered: set[Key] = set()

    async def run(self) -> None:
        """Send cancel requests until cancelled. Repeat an answered request only after a long pause."""
        while True:
            self._work.clear()
            answered = await self.ask()
            woken = await self._clock.wait(self._work, LONGEST_WAIT_S if answered else _CANCEL_PAUSE_S)
            if answered and not woken:
                self._answered.clear()

    async def ask(self) -> bool:
        """Send the requests that are not yet answered; return True if the runtime answered all of them."""
        wanted, after = list[Fire](), 0
        while batch := await self._store.read(partial(_asked_to_end, after=after)):
            wanted, after = wanted + batch, batch[-1].entry_id
        keys = {Key(fire.fire_id, fire.attempt): (fire, CANCEL_REASON) for fire in wanted}
        for fire in await self._store.read(_left_in_terminals):
            keys[Key(fire.fire_id, fire.attempt)] = fire, STOPPED_REASON
        self._answered &= keys.keys()
        for key, (fire, reason) in keys.items():
            if key in self._answered:
                continue
            try:
                await self._runtime.cancel(key.fire_id, key.attempt, reason, unless_waiting=True)
            except TurnkeeperError:
                return False
            self._answered.add(key)
            self._log.emit_all([log_records.of_fire("fire.asked_to_end", fire, reason=reason)])
        return True


def _asked_to_end(session: Session, after: int) -> list[Fire]:
    return session.fires.asked_to_end(after, _MOST_CANCELLED)


def _left_in_terminals(session: Session) -> list[Fire]:
    """Return the fires of stopped tasks in the inboxes of terminals, except fires whose turn has begun."""
    found = session.fires.of_stopped_tasks(_MOST_CANCELLED)
    stopped = session.tasks.snapshots(list({fire.task_id for fire in found}))
    elsewhere = {each.task.id for each in stopped if not HOSTED.fullmatch(each.task.definition.agent)}
    return [fire for fire in found if fire.task_id in elsewhere]
