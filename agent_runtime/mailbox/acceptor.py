"""Acceptance of triggers: each new trigger becomes an envelope on disk. This module decides nothing about turns.

Triggers that arrive while a group is being written form the next group, so that many fires share one sync of the inbox.
A key row records an accepted key. The row is written when the envelope is claimed; until then the envelope itself is in
the inbox. The inbox is read first, because an envelope leaves the inbox only after its key row is on disk.

A fire for an agent that the runtime does not host gets its row after its envelope is on disk, and before its sender
gets the receipt. From then on `TerminalDeliveries` checks the inbox: an archived envelope was delivered by its reader,
and each fire ends once. A restart reads all of this from the rows and the folders.
"""

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from itertools import groupby
from typing import Any

from sqlalchemy import Connection

from agent_runtime.mailbox.mailboxes import Delivery, Mailboxes
from agent_runtime.model.fire_envelopes import Stamp
from agent_runtime.model.trigger import EncodedTrigger, Trigger, TriggerHeader, encode_trigger, identify, is_fire
from agent_runtime.store import mail
from agent_runtime.store.turn_events import Signal
from agent_runtime.store.turn_reads import get_keys
from agent_runtime.store.turn_store import Store
from turnkeeper.bus.event_log import EventLog, told_if_late
from turnkeeper.bus.folders import EnvelopeState
from turnkeeper.bus.inbox import Put
from turnkeeper.clock import Clock
from turnkeeper.entropy import Entropy
from turnkeeper.errors import Conflict, Exhausted, InvalidInput, TurnkeeperError
from turnkeeper.rpc.process import Failpoints
from turnkeeper.times import rfc3339

POLL_S = 1.0  # readers archive without a notification
IDLE_S = 3600.0  # on a shared store 5 s, because another machine may have left its deliveries


class TerminalDeliveries:
    """Follower of each fire for an agent in a terminal, until the fire is settled."""

    def __init__(self, store: Store, mailboxes: Mailboxes, *, clock: Clock, log: EventLog) -> None:
        self._store = store
        self._mailboxes = mailboxes
        self._clock = clock
        self._log = log
        self._added = Signal()
        self._missing: set[str] = set()  # keys whose envelopes the last check did not find
        self._looking: asyncio.Task[None] | None = None

    async def start(self, elsewhere: Sequence[tuple[Trigger, str]]) -> None:
        """Take over the fires of an earlier process, and follow them until they are settled.

        Args:
            elsewhere: the fires in inboxes of agents that the runtime does not host, with their envelopes' names.
        """
        await self._store.write(mail.drop_hosted_deliveries, self._mailboxes.agents)
        taken = await self._store.read(get_keys, [trigger.key for trigger, _ in elsewhere])
        for trigger, name in elsewhere:
            if trigger.key in taken:  # the fire became a turn while the runtime hosted this agent
                await self._mailboxes.withdraw(trigger.agent, name, claimed=True)
        await self.add([(trigger, name) for trigger, name in elsewhere if trigger.key not in taken])
        for item in await self._store.read(mail.waiting_deliveries):
            self._mailboxes.remember(item)
        self._looking = asyncio.create_task(self._follow(), name="terminal-deliveries")

    async def stop(self) -> None:
        """Stop checking; unsettled fires stay unchanged."""
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)

    async def add(self, fires: Sequence[tuple[Trigger | TriggerHeader, str]]) -> None:
        """Record that fires wait in their agents' inboxes, each with its envelope's name; idempotent."""
        if not fires:
            return
        at = self._clock.now()

        def work(connection: Connection) -> list[mail.TerminalDelivery]:
            for trigger, name in fires:
                mail.add_terminal_delivery(connection, trigger, name, at)
            return list(mail.terminal_deliveries_by_key(connection, [trigger.key for trigger, _ in fires]).values())

        for item in await self._store.write(work):
            if item.state == "waiting":
                self._mailboxes.remember(item)
        self._added.notify()

    async def lay_out(self, delivery: Delivery) -> None:
        """Move a fire from its thread into its agent's inbox. Raises Fenced."""
        await self._mailboxes.lay_out(delivery)
        header = identify(delivery.claimed.envelope)
        if header is not None and is_fire(header.key):
            self._log.emit_all([line for line in [_log_line(header, fresh=True, name=header.key)] if line])

    async def look(self) -> int:
        """Settle the fires that were read, withdrawn or lost; return the number of waiting fires."""
        left = await self._store.read(mail.waiting_deliveries)
        if not left:
            return 0
        cancels = await self._store.read(mail.cancelled_among, [item.turn_id for item in left])
        for agent, group in groupby(sorted(left, key=lambda item: item.agent), key=lambda item: item.agent):
            own = list(group)
            found = await self._mailboxes.envelope_states(agent, {item.key: item.name for item in own})
            for item in own:
                await self._deal_with(item, found[item.key], cancels.get(item.turn_id))
        return len(left)

    async def _follow(self) -> None:
        while True:
            news = self._added.next()
            try:
                left = await self.look()
            except (TurnkeeperError, OSError) as error:  # the disk is full, or no descriptor is free: check again
                self._log.emit("inbox.unreadable", reason=f"{type(error).__name__}: {error}"[:500])
                left = 1
            await self._clock.wait(news, POLL_S if left else 5 * POLL_S if self._mailboxes.is_shared else IDLE_S)

    async def _deal_with(self, item: mail.TerminalDelivery, where: EnvelopeState, cancelled: str | None) -> None:
        if where is EnvelopeState.GONE:
            await self._is_gone(item, cancelled)
            return
        self._missing.discard(item.key)
        if where is EnvelopeState.DELIVERED:
            await self._settle(item, "delivered")
        elif where is EnvelopeState.QUARANTINED:
            await self._settle(item, "failed", f"{item.agent} could not read it: turnkeeper inbox quarantine")
        elif (
            where is EnvelopeState.WAITING
            and cancelled is not None
            and await self._mailboxes.withdraw(item.agent, item.name)
        ):
            await self._settle(item, "cancelled", cancelled)

    async def _is_gone(self, item: mail.TerminalDelivery, cancelled: str | None) -> None:
        """Settle a fire whose envelope is missing in two checks in a row. In one check, the envelope may be moving."""
        if item.key not in self._missing:
            self._missing.add(item.key)
        elif await self._mailboxes.was_received(item.name):
            await self._settle(item, "delivered")  # the envelope was pruned after the delivery
        elif cancelled is not None and self._mailboxes.is_shared:
            await self._settle(item, "cancelled", cancelled)  # a process withdrew the envelope, then ended
        else:
            await self._settle(item, "failed", f"its envelope was removed from the inbox of {item.agent}")

    async def _settle(self, item: mail.TerminalDelivery, state: str, reason: str = "") -> None:
        first = await self._store.write(mail.settle_delivery, item, state, reason, self._clock.now())
        self._mailboxes.forget(item.key)
        self._missing.discard(item.key)
        if first:
            where: dict[str, Any] = {name: getattr(item, name) for name in ("turn_id", "fire_id", "attempt", "agent")}
            self._log.emit(f"fire.{state}", **where)


LARGEST_GROUP = 512
CALM_S = 0.1  # the pause before `opened` waits for the next group
_ID_DIGITS = 32


@dataclass(frozen=True, kw_only=True)
class Receipt:
    """The result of accepting a trigger.

    Attributes:
        fresh: False if the key was accepted before, so that nothing was written.
    """

    header: TriggerHeader
    fresh: bool


@dataclass(slots=True)
class _Waiting:
    item: EncodedTrigger
    answer: "asyncio.Future[Receipt]"
    refusal: TurnkeeperError | None
    is_told: bool = False

    @property
    def key(self) -> str:
        return self.item.header.key


@dataclass(eq=False)
class Acceptor:
    """Durable writer of triggers into inboxes, in the order of arrival, which notifies `arrived` after each group."""

    store: Store
    mailboxes: Mailboxes
    terminal_deliveries: TerminalDeliveries
    arrived: Signal
    _: KW_ONLY
    clock: Clock
    entropy: Entropy
    log: EventLog
    failpoints: Failpoints
    _waiting: list[_Waiting] = field(default_factory=list, init=False)
    _writer: asyncio.Task[None] | None = field(default=None, init=False)
    _ended_s: float = field(default=-CALM_S, init=False)  # when a group was last written
    _opened: asyncio.Event = field(default_factory=asyncio.Event, init=False)

    def __post_init__(self) -> None:
        self._opened.set()

    async def opened(self) -> None:
        """Wait while the first group after a pause is written, because reading more meanwhile would delay the write."""
        await self._opened.wait()

    async def accept(self, trigger: Trigger) -> Receipt:
        """Accept a trigger; return after its envelope is on disk.

        Raises:
            InvalidInput: the trigger does not fit an envelope.
            Conflict: its key is already used for another trigger.
            Exhausted: the inbox or the disk is full; nothing was accepted.
        """
        return await self.queue(trigger)

    def stamps(self, count: int) -> list[Stamp]:
        """Return an id and the current time for each of `count` new envelopes."""
        drawn, at = self.entropy.hex(_ID_DIGITS * count), rfc3339(self.clock.now())
        return [Stamp(drawn[place * _ID_DIGITS : (place + 1) * _ID_DIGITS], at) for place in range(count)]

    def queue(self, trigger: Trigger, *, refusal: TurnkeeperError | None = None) -> "asyncio.Future[Receipt]":
        """Queue a trigger without waiting. The future gets the result or the error of :meth:`accept`.

        If `refusal` is given and the trigger's key is unknown, the future gets the refusal.
        """
        try:
            item = encode_trigger(trigger, envelope_id=self.entropy.hex(_ID_DIGITS), at=self.clock.now())
        except InvalidInput as error:
            answer: asyncio.Future[Receipt] = asyncio.get_running_loop().create_future()
            answer.set_exception(error if error.where != "envelope" else Exhausted(error.what, where="prompt"))
            return answer
        return self.queue_encoded(item, refusal=refusal)

    def queue_encoded(
        self, item: EncodedTrigger, *, refusal: TurnkeeperError | None = None
    ) -> "asyncio.Future[Receipt]":
        """Queue an already encoded trigger as :meth:`queue` does."""
        answer: asyncio.Future[Receipt] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Waiting(item, answer, refusal))
        if self._writer is None or self._writer.done():
            if self.clock.monotonic() - self._ended_s >= CALM_S:
                self._opened.clear()
            self._writer = asyncio.create_task(self._write(), name="accept")
        return answer

    async def _write(self) -> None:
        while self._waiting:
            group, self._waiting = self._waiting[:LARGEST_GROUP], self._waiting[LARGEST_GROUP:]
            try:
                with told_if_late(self.log, partial(self._arrivals, group), again=True):
                    await self._write_group(group)
            except Exception as error:  # noqa: BLE001  each of the group's callers gets it as its answer
                for item in group:
                    _fail(item, error)
            finally:
                self._ended_s = self.clock.monotonic()
                self._opened.set()

    def _arrivals(self, group: Sequence[_Waiting]) -> list[tuple[str, dict[str, object]]]:
        """Return the arrivals of the group and of later triggers that are not logged yet."""
        untold = [item for item in (*group, *self._waiting) if not item.is_told]
        for item in untold:
            item.is_told = True
        return [_arrival(item.item.header) for item in untold]

    async def _write_group(self, group: Sequence[_Waiting]) -> None:
        digests = await self._known({item.key for item in group})
        fresh: list[_Waiting] = []
        for item in group:
            known = digests.setdefault(item.key, "")
            if not known and item.refusal is not None:
                _fail(item, item.refusal)
            elif not known:
                digests[item.key] = item.item.header.digest
                fresh.append(item)
            elif known != item.item.header.digest:
                what = "was already accepted with other content"
                _fail(item, Conflict(f"{item.key} {what}", where="fire_id", hint="send it under a new id"))
        put = await self._put(fresh)
        first = {id(item) for item in fresh}
        accepted: list[tuple[_Waiting, bool, str]] = []
        for item in group:
            answer = put.get(item.key)
            if isinstance(answer, TurnkeeperError):
                _fail(item, answer)
            elif not item.answer.done():
                fresh_one = id(item) in first and (answer is None or answer.fresh)
                accepted.append((item, fresh_one, answer.name if answer else ""))
        self._answer(accepted)

    async def _known(self, keys: Collection[str]) -> dict[str, str]:
        """Return the digests of the keys that were accepted, or whose envelopes are in an inbox."""
        queued = {key: known.digest for key, known in (await self.mailboxes.find(keys)).items()}

        def look(connection: Connection) -> dict[str, str]:
            taken: dict[str, Any] = {**get_keys(connection, keys)}
            taken |= mail.terminal_deliveries_by_key(connection, keys)
            return {key: one.digest for key, one in taken.items()}

        return await self.store.read(look) | queued

    async def _put(self, fresh: Sequence[_Waiting]) -> dict[str, Put | TurnkeeperError]:
        """Put envelopes; deliveries to agents that the runtime does not host are recorded before this returns."""
        answers = await self.mailboxes.put([item.item for item in fresh])
        self.failpoints.reach("runtime.accepted")
        put = {item.key: answer for item, answer in zip(fresh, answers, strict=True)}
        hosted = self.mailboxes.agents
        elsewhere = [
            (item.item.header, answer.name)
            for item, answer in zip(fresh, answers, strict=True)
            if isinstance(answer, Put) and item.item.header.agent not in hosted and is_fire(item.key)
        ]
        if elsewhere:
            await self.terminal_deliveries.add(elsewhere)
        self.arrived.notify()
        return put

    def _answer(self, accepted: Sequence[tuple[_Waiting, bool, str]]) -> None:
        """Log the accepted triggers in one write, then answer the callers.

        `accepted` holds each trigger, whether it is fresh, and its envelope's name if the envelope is in an inbox.
        """
        lines = (_log_line(item.item.header, fresh=fresh, name=name) for item, fresh, name in accepted)
        self.log.emit_all([line for line in lines if line])
        for item, fresh, _ in accepted:
            item.answer.set_result(Receipt(header=item.item.header, fresh=fresh))


def _arrival(header: TriggerHeader) -> tuple[str, dict[str, object]]:
    if is_fire(header.key):
        return "fire.arrived", {"fire_id": header.fire_id, "attempt": header.attempt, "turn_id": header.turn_id}
    return "message.arrived", {"turn_id": header.turn_id, "thread_id": header.thread_id}


def _log_line(header: TriggerHeader, *, fresh: bool, name: str) -> tuple[str, dict[str, object]] | None:
    named: dict[str, object] = {"name": name} if name else {}
    if is_fire(header.key):
        return "fire.received", {
            "fire_id": header.fire_id,
            "attempt": header.attempt,
            "turn_id": header.turn_id,
            "disposition": "ACCEPTED" if fresh else "DUPLICATE",
            **named,
        }
    return ("message.accepted", {"turn_id": header.turn_id, "thread_id": header.thread_id} | named) if fresh else None


def _fail(item: _Waiting, error: Exception) -> None:
    if not item.answer.done():
        item.answer.set_exception(error)
