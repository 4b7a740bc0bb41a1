"""The worker: claims envelopes, recovers unfinished turns after a crash, and feeds the lanes.

It also stores the input for an agent's next turn: handoffs from the bus and notes from files.
"""

import asyncio
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, func, select

from agent_runtime.mailbox.acceptor import TerminalDeliveries
from agent_runtime.mailbox.mailboxes import Delivery
from agent_runtime.model.decide import Incoming
from agent_runtime.model.trigger import FIRST_AGENT, Trigger, from_envelope, identify, sendable
from agent_runtime.store.leases import Fenced, under
from agent_runtime.store.mail import FOR_AUTHOR, Handoff, add_handoff, put_notes
from agent_runtime.store.schema import keys
from agent_runtime.store.turn_events import Signal
from agent_runtime.store.turn_reads import list_interrupts, unfinished_turns
from agent_runtime.store.turn_store import Store
from agent_runtime.store.turn_writes import kept
from agent_runtime.turns.deadlines import Deadlines
from agent_runtime.turns.lanes import Handled, Item, Lanes
from agent_runtime.turns.turns import Parts, Turns
from turnkeeper.bus.event_log import EventLog
from turnkeeper.clock import Clock
from turnkeeper.config.home import Home
from turnkeeper.errors import InvalidInput, TurnkeeperError, machine_trouble
from turnkeeper.storage.files import Files, replace_whole

SENDER = "watchdog"
LARGEST_NOTES = 1 << 20  # bytes of a notes file; the part for the turn has its own limit
_MARKERS = ("escalate-failed-*", "*-crashloop-suspected")  # see docs/lifecycle.md


class HandoffIntake:
    """The store of handoffs until a turn has received them."""

    def __init__(self, store: Store, *, home: Home, clock: Clock, log: EventLog, files: Files) -> None:
        self._store, self._files = store, files
        self._home = home
        self._clock = clock
        self._log = log

    async def receive(self, delivery: Delivery) -> None:
        """Store a handoff on disk before returning; repeated envelopes are stored once."""
        envelope, at = delivery.claimed.envelope, self._clock.now()
        key = envelope.idempotency_key or envelope.id
        # A handoff of a planned restart concerns work with the author, so a loop that runs first does not receive it.
        kept_as = f"{FOR_AUTHOR}{key}" if envelope.meta.get("reason") == "planned" else key
        item = Handoff(key=kept_as, agent=delivery.agent, kind="handoff", sender=envelope.sender, text=envelope.text)
        fresh = await self._store.write(add_handoff, item, at)
        self._log.emit("handoff.received", agent=delivery.agent, id=envelope.id, key=key, fresh=fresh)

    async def take_up_notes(self, agent: str) -> None:
        """Store the text of `state/notes/<agent>.md` for the agent's next turn; do not change the file."""
        path, at = self._home.run.parent / "notes" / f"{agent}.md", self._clock.now()
        try:
            text = self._files.read(path, LARGEST_NOTES).decode("utf-8", "replace").strip()
        except FileNotFoundError:
            return
        except (TurnkeeperError, OSError) as error:
            self._log.emit("notes.unreadable", agent=agent, reason=f"{type(error).__name__}: {error}"[:500])
            return
        if text:
            key = f"notes:{agent}:{self._store.epoch}"
            item = Handoff(key=key, agent=agent, kind="notes", sender=agent, text=sendable(text, LARGEST_NOTES))
            await self._store.write(put_notes, item, at)

    async def waiting_at_start(self) -> dict[str, Any]:
        """Return how many questions and fires wait for the author at the start of the runtime.

        `waiting`: undecided approvals; `held`: fires that wait for them; `alarms`: marker files of the watchdog that
        report a problem.
        """

        def count(connection: Connection) -> tuple[int, int]:
            waits = (keys.c.became == "held") & ~keys.c.released
            held = connection.execute(select(func.count()).select_from(keys).where(waits)).scalar() or 0
            return len(list_interrupts(connection)), held

        waiting, held = await self._store.read(count)
        alarms = sum(1 for pattern in _MARKERS for _ in self._home.run.parent.glob(pattern))
        return {"waiting": waiting, "held": held, "alarms": alarms}


MOST_TAKEN = 4096  # envelopes that are claimed and not yet archived
LARGEST_CLAIM = 256
POLL_S = 1.0  # other processes add envelopes without a notification
MOST_TROUBLE = 5  # tries of a fire or message; items of a stored turn are retried without a limit
TROUBLE_S = 0.2  # doubled after each failed try
LONGEST_TROUBLE_S = 30.0
OWNERLESS_S = 30.0  # time after which a trigger without a lane is reported
LONGEST_WAIT_S = 5.0  # limit while the machine fails, because the machine may recover at any moment
MAY_END = frozenset({"watchdog", "author"})  # senders whose shutdown envelopes count


@dataclass
class _Stuck:
    """An envelope that could neither be routed nor quarantined, and the monotonic time of its next try."""

    delivery: Delivery
    tries: int
    at: float


class Worker:
    """Worker that takes each envelope from its inbox to its archive."""

    def __init__(
        self,
        parts: Parts,
        *,
        terminal_deliveries: TerminalDeliveries,
        outboxes: Any,
        handoffs: HandoffIntake,
        home: Home,
        arrived: Signal,
        clock: Clock,
        most_at_once: int,
    ) -> None:
        """Run at most `most_at_once` turns at a time. `arrived` signals new envelopes in an inbox.

        `outboxes` takes messages of agents in terminals; it is None if that part was removed.
        """
        self._terminal_deliveries = terminal_deliveries
        self._outboxes = outboxes
        self._agent_messages = parts.agent_messages
        self._handoffs = handoffs
        self._store = parts.store
        self._mailboxes = parts.mailboxes
        self._engines = parts.engines
        self._intervals = parts.intervals
        self._log = parts.log
        self._failpoints = parts.failpoints
        self._notifier = parts.notifier
        self._arrived = arrived
        self._clock = clock
        shared = parts.mailboxes if parts.mailboxes.is_shared else None
        handle = self._handle if shared is None else self._handle_owned
        self._lanes = Lanes(
            handle,
            clock,
            most_at_once=most_at_once,
            on_done=self._on_done,
            shared=shared,
            settle=lambda thread_id: self._turns.pruned(thread_id),  # noqa: PLW0108  the turns are made below
            cordoned=parts.mailboxes.cordoned,
        )
        self._turns = Turns(parts, self._lanes, clock)
        self._deadlines = Deadlines(parts, self._lanes, self._turns.notify, home=home, clock=clock)
        self._trouble: dict[int, int] = {}  # by item: consecutive failed tries
        self._failed: dict[int, int] = {}  # by item: failed tries that the machine did not cause
        self.waits: dict[str, str] = {}
        """By thread: the machine fault that its turn waits for. The turn is retried until the fault is repaired."""
        self._ownerless: dict[str, float] = {}  # by key: the time from which a trigger has had no lane
        self._stuck: list[_Stuck] = []
        self.unreadable = ""
        """The machine fault that keeps the inboxes from being read; empty if there is none."""
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._home, self._cordoned = home, ""
        self._began = clock.now()
        self._on_shutdown: Callable[[], None] | None = None

    @property
    def waiting(self) -> int:
        """Number of items that wait or run."""
        return self._lanes.depth

    async def start(self, on_shutdown: Callable[[], None] | None = None) -> None:
        """Continue the work of an earlier process in its original order, then start to claim envelopes.

        `on_shutdown` is called when an envelope asks the runtime to end.
        """
        self._began, self._on_shutdown = self._clock.now(), on_shutdown
        await self._handoffs.take_up_notes(FIRST_AGENT)
        elsewhere = await self._mailboxes.begin(self._lanes.drop)
        await self._terminal_deliveries.start(elsewhere)
        # If machines share the store, rows tell the owners of the threads about unfinished turns.
        going_on = 0 if self._mailboxes.is_shared else await self._go_on()
        found = await self._handoffs.waiting_at_start()
        self._log.emit("runtime.up", continued=going_on, **found)
        await self._route_all(await self._mailboxes.adopt())
        answers = self._agent_messages.keep_answering()
        work = {"claim": self._claim(), "answers": answers, "deadlines": self._deadlines.run()}
        work |= {"outboxes": self._outboxes.run()} if self._outboxes is not None else {}
        self._tasks = {name: asyncio.create_task(one, name=name) for name, one in work.items()}

    async def _go_on(self) -> int:
        """Queue the unfinished work of an earlier process; return how many turns were running."""
        unfinished = await self._store.read(unfinished_turns)
        for turn in unfinished:
            if turn.paused_until is not None and turn.status == "paused":
                self._lanes.put_at(turn.thread_id, turn.paused_until)
            else:
                self._lanes.put(turn.thread_id, Item(asked=Incoming(source="recovery")))
        self._lanes.put_all(await self._store.read(kept))
        return sum(turn.status == "running" for turn in unfinished)

    async def stop(self, grace_s: float) -> None:
        """Stop claiming, wait for the end of each running superstep, then cancel. Leave the rows unfinished."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        await self._terminal_deliveries.stop()
        self._engines.drain()
        await self._lanes.stop(grace_s)
        await self._turns.pruned()
        await self._notifier.close()
        await self._mailboxes.leave()

    async def cancel(self, turn_id: str, thread_id: str, reason: str, *, unless_waiting: bool = False) -> bool:
        """Store a cancellation and carry it out; return whether it was stored."""
        if not await self._store.cancel(turn_id, reason, thread_id=thread_id, unless_waiting=unless_waiting):
            return False
        self._intervals.cancel(turn_id)
        self._lanes.put(thread_id, Item(asked=Incoming(source="cancel", turn_id=turn_id)))
        return True

    @property
    def trouble(self) -> str:
        """The trouble that blocks the inboxes or a turn, or a trigger that no lane handles; empty if there is none."""
        return self.unreadable or next(iter(self.waits.values()), "") or self.ownerless()

    def ownerless(self) -> str:
        """Return the triggers that no lane has handled for longer than `OWNERLESS_S`; empty if there are none.

        These triggers were accepted and are in the inboxes, claimed or not. While the lanes are full, triggers may
        wait. If machines share the store, the leases show such triggers instead.
        """
        if self._mailboxes.is_shared or self._lanes.depth > MOST_TAKEN - LARGEST_CLAIM:
            return ""
        now = self._clock.monotonic()
        stuck = {item.delivery.claimed.envelope.idempotency_key for item in self._stuck}
        found = {
            header.key: header.fire_id or header.turn_id
            for header in self._mailboxes.queued()
            if header.agent in self._mailboxes.agents
            and header.key not in stuck
            and not self._lanes.serves(header.thread_id)
        }
        self._ownerless = {key: self._ownerless.get(key, now) for key in found}
        late = [found[key] for key, since in self._ownerless.items() if now - since > OWNERLESS_S]
        named = f"{', '.join(late[:3])}{f' and {len(late) - 3} more' if late[3:] else ''}"
        return f"accepted, but no turn handles it: {named}; to start it, run: turnkeeper restart" if late else ""

    def answered(self, thread_id: str) -> None:
        """Continue a thread whose interrupt was decided."""
        self._store.asked.notify()
        self._lanes.put_decision(thread_id)

    async def _claim(self) -> None:
        behind = False
        while True:
            news = self._arrived.next()
            room = min(MOST_TAKEN - self._lanes.depth, LARGEST_CLAIM)
            taken = await self._claim_some(room) if room > 0 else []
            if aside := self._mailboxes.set_aside():
                self._log.emit_all(_quarantined(aside))
            await self._try_stuck()
            await self._route_all(taken)
            if taken:
                self._failpoints.reach("runtime.claimed")
            # An inbox caches its listing, so after a full claim only an empty claim proves that it is empty.
            behind = bool(taken) and (behind or len(taken) + len(aside) >= room)
            self._note_cordon()
            if not behind:
                await self._clock.wait(news, POLL_S)

    def _note_cordon(self) -> None:
        """Look at the lanes after a change of the cordon. On one machine, confirm in a file that no turn runs."""
        since = self._mailboxes.cordoned()
        if since != self._cordoned.partition(" ")[0]:
            self._cordoned = since
            self._lanes.look()
        if self._cordoned == since and not self._mailboxes.is_shared and self._lanes.is_at_rest():
            self._cordoned = f"{since} {os.getpid()}"
            replace_whole(self._home.cordoned, self._cordoned.encode())

    async def _claim_some(self, room: int) -> list[Delivery]:
        try:
            taken = await self._mailboxes.claim(room)
        except Exception as error:  # noqa: BLE001  recorded; retried at the next poll, as long as the process runs
            self._log.emit("inbox.unreadable", reason=_sentence(error))
            self.unreadable = str(machine_trouble(error, "the inboxes") or "")
            return []
        self.unreadable = ""
        return taken

    async def _route_all(self, deliveries: list[Delivery]) -> None:
        """Route each envelope. Retry a failed envelope later, at growing intervals, without blocking the next ones."""
        for delivery in deliveries:
            await self._try_route(delivery, tries=0)

    async def _try_stuck(self) -> None:
        now = self._clock.monotonic()
        due = [item for item in self._stuck if item.at <= now]
        self._stuck = [item for item in self._stuck if item.at > now]
        for item in due:
            await self._try_route(item.delivery, tries=item.tries)

    async def _try_route(self, delivery: Delivery, *, tries: int) -> None:
        try:
            with under(delivery.lease):
                await (self._terminal_deliveries.lay_out if delivery.elsewhere else self._route)(delivery)
            if delivery.lease is not None and not self._lanes.has(delivery.lease.thread_id):
                await self._mailboxes.let_go(delivery.lease.thread_id)  # the envelope was quarantined
        except Fenced:
            return  # the thread's next owner gets the envelope again
        except Exception as error:  # noqa: BLE001  recorded; an error must not end the claim loop
            again_s = rest_after(tries + 1)
            self._stuck.append(_Stuck(delivery=delivery, tries=tries + 1, at=self._clock.monotonic() + again_s))
            where: dict[str, Any] = {"agent": delivery.agent, "name": delivery.claimed.name, "tries": tries + 1}
            self._log.emit("envelope.stuck", **where, reason=_sentence(error))

    async def _route(self, delivery: Delivery) -> None:
        envelope = delivery.claimed.envelope
        if delivery.wish is not None:
            await self._look(delivery, delivery.wish)
            return
        if delivery.claimed.fault:
            await self._set_aside(delivery, delivery.claimed.fault)
            return
        if envelope.kind == "ack":
            self._log.emit("ack.received", agent=delivery.agent, sender=envelope.sender, id=envelope.id)
            await self._mailboxes.archive(delivery)
            return
        if envelope.kind == "handoff" and envelope.sender == SENDER:  # starts no turn; the next turn gets it
            await self._handoffs.receive(delivery)
            self._failpoints.reach("runtime.handoff_kept")
            await self._mailboxes.archive(delivery)
            return
        if envelope.kind == "shutdown" and envelope.sender in MAY_END:
            await self._shut_down(delivery)
            return
        try:
            trigger = from_envelope(envelope)
        except InvalidInput as error:
            await self._set_aside(delivery, str(error))
            return
        asked = Incoming(source=trigger.source, turn_id=trigger.turn_id, task_id=trigger.task_id)
        self._lanes.put(trigger.thread_id, Item(asked=asked, trigger=trigger, delivery=delivery))

    async def _look(self, delivery: Delivery, wish: Incoming) -> None:
        """Check a thread after a turn was cancelled, a question was decided or a turn finished."""
        thread_id = delivery.claimed.envelope.thread
        if wish.source == "cancel":
            self._intervals.cancel(wish.turn_id)
        self._lanes.put(thread_id, Item(asked=wish, delivery=delivery))
        self._lanes.put_all(await self._store.read(kept, thread_id))

    async def _shut_down(self, delivery: Delivery) -> None:
        """Begin to drain, as after SIGTERM. Ignore an envelope from before this process began."""
        envelope = delivery.claimed.envelope
        stale = envelope.at < self._began
        await self._mailboxes.archive(delivery)
        self._log.emit("shutdown.received", sender=envelope.sender, id=envelope.id, stale=stale)
        if not stale and self._on_shutdown is not None:
            self._on_shutdown()

    async def _set_aside(self, delivery: Delivery, reason: str) -> None:
        """Quarantine an envelope that cannot be read; if it was accepted, record that its turn failed."""
        unread = identify(delivery.claimed.envelope)
        why = reason if delivery.field else f"its envelope cannot be read: {reason}"
        if unread is not None and await self._store.refuse_unread(unread, why, delivery.field):
            self._turns.notify("failure", unread)
        await self._mailboxes.quarantine(delivery, reason)
        where: dict[str, Any] = {"agent": delivery.agent, "name": delivery.claimed.name}
        self._log.emit("envelope.quarantined", **where, reason=reason)

    def _on_done(self) -> None:
        if self._mailboxes.is_shared or self._lanes.depth >= MOST_TAKEN - LARGEST_CLAIM:
            self._arrived.notify()

    async def _handle_owned(self, thread_id: str, item: Item) -> Handled:
        """Handle an item under the lease of its thread; an item of an earlier lease counts as done."""
        lease = self._mailboxes.lease_of(thread_id)
        if lease is None or (item.delivery is not None and item.delivery.lease != lease):
            return Handled(done=True)
        with under(lease):
            return await self._handle(thread_id, item)

    async def _handle(self, thread_id: str, item: Item) -> Handled:
        try:
            handled = await self._turns.handle(thread_id, item)
        except Fenced as fenced:
            self._mailboxes.lost(fenced.lease)
            return Handled(done=True)
        except Exception as error:  # noqa: BLE001  counted, recorded, limited; one trigger must not stop a lane
            return await self._in_trouble(thread_id, item, error)
        self._forget_trouble(thread_id, item)
        return handled

    def _forget_trouble(self, thread_id: str, item: Item) -> None:
        self._trouble.pop(id(item), None)
        self._failed.pop(id(item), None)
        self.waits.pop(thread_id, None)

    async def _in_trouble(self, thread_id: str, item: Item, error: Exception) -> Handled:
        tries = self._trouble[id(item)] = self._trouble.get(id(item), 0) + 1
        trouble = machine_trouble(error)
        reason = str(trouble) if trouble is not None else _sentence(error)
        self._log.emit("turn.trouble", thread_id=thread_id, turn_id=item.asked.turn_id, tries=tries, reason=reason)
        if trouble is not None:
            self.waits[thread_id] = reason
            return Handled(done=False, rest_s=min(rest_after(tries), LONGEST_WAIT_S))
        failed = self._failed[id(item)] = self._failed.get(id(item), 0) + 1
        if item.trigger is None or failed < MOST_TROUBLE:
            return Handled(done=False, rest_s=rest_after(failed))
        given_up = await self._give_up(item.trigger, item.delivery, reason)
        if not given_up:
            return Handled(done=False, rest_s=min(rest_after(tries), LONGEST_WAIT_S))
        self._forget_trouble(thread_id, item)
        return Handled(done=True)

    async def _give_up(self, trigger: Trigger, delivery: Delivery | None, reason: str) -> bool:
        """Record that a trigger failed for good; return False if that cannot be recorded and needs a retry.

        If machines share the store, release the thread instead, so that its next owner tries the trigger.
        """
        try:
            finished = await self._store.refuse(trigger, reason)
            self._turns.released(finished)
            if finished.state == "failed":
                self._turns.notify("failure", trigger)
            if delivery is not None:
                await self._mailboxes.quarantine(delivery, reason)
        except Exception as error:  # noqa: BLE001  recorded, and tried again
            what = f"the failure cannot be recorded: {_sentence(error)}"
            self._log.emit("turn.trouble", thread_id=trigger.thread_id, turn_id=trigger.turn_id, reason=what)
            self.waits[trigger.thread_id] = what
            if delivery is None or delivery.lease is None:
                return False
            self._mailboxes.lost(delivery.lease)
        return True


def _quarantined(found: list[tuple[str, str, str]]) -> list[tuple[str, dict[str, object]]]:
    return [
        ("envelope.quarantined", {"agent": agent, "name": name.encode("utf-8", "replace").decode(), "reason": reason})
        for agent, name, reason in found
    ]


def _sentence(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:500]


def rest_after(tries: int) -> float:
    """Return how many seconds to wait after a number of failed tries.

    >>> [rest_after(tries) for tries in (1, 2, 8, 9, 100_000)]
    [0.2, 0.4, 25.6, 30.0, 30.0]
    """
    return min(TROUBLE_S * 2.0 ** min(tries - 1, 16), LONGEST_TROUBLE_S)
