"""Fires for agents that the runtime does not host: put into their inboxes, and settled once they have been read.

The row of a fire is written once its envelope is on disk, before its sender is told that it was accepted. From then on
its inbox is looked at: an archived envelope means that the reader delivered it, and each fire ends once. All that is
kept in memory can be read from the rows and the folders, so a restart goes on where the last process was.
"""

import asyncio
from collections.abc import Sequence
from itertools import groupby
from typing import Any

from sqlalchemy import Connection

from agent_runtime.mailbox.mailboxes import Mailboxes
from agent_runtime.model.signal import Signal
from agent_runtime.model.trigger import Trigger
from agent_runtime.store import mail
from agent_runtime.store.mail import TerminalDelivery
from agent_runtime.store.turn_reads import get_keys
from agent_runtime.store.turn_store import Store
from turnkeeper.bus.folders import EnvelopeState
from turnkeeper.clock import Clock
from turnkeeper.errors import TurnkeeperError
from turnkeeper.event_log import EventLog

POLL_S = 1.0  # readers archive without a notification
IDLE_S = 3600.0


class TerminalDeliveries:
    """Follows each such fire until it is settled."""

    def __init__(self, store: Store, mailboxes: Mailboxes, *, clock: Clock, log: EventLog) -> None:
        self._store = store
        self._mailboxes = mailboxes
        self._clock = clock
        self._log = log
        self._added = Signal()
        self._missing: set[str] = set()  # keys whose envelopes the last look did not find
        self._looking: asyncio.Task[None] | None = None

    async def start(self, elsewhere: Sequence[tuple[Trigger, str]]) -> None:
        """Go on with what an earlier process put, and follow it.

        Args:
            elsewhere: the fires in inboxes of agents that the runtime does not host, with their envelopes' names.
        """
        await self._store.write(mail.drop_hosted_deliveries, self._mailboxes.agents)
        taken = await self._store.read(get_keys, [trigger.key for trigger, _ in elsewhere])
        for trigger, name in elsewhere:
            if trigger.key in taken:  # it became a turn while the runtime hosted this agent
                await self._mailboxes.withdraw(trigger.agent, name, claimed=True)
        await self.add([(trigger, name) for trigger, name in elsewhere if trigger.key not in taken])
        for item in await self._store.read(mail.waiting_deliveries):
            self._mailboxes.remember(item)
        self._looking = asyncio.create_task(self._follow(), name="terminal-deliveries")

    async def stop(self) -> None:
        """Look no more; what is not settled stays as it is."""
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)

    async def add(self, fires: Sequence[tuple[Trigger, str]]) -> None:
        """Write that fires wait in their agents' inboxes, each with its envelope's name; again changes nothing."""
        if not fires:
            return
        at = self._clock.now()

        def work(connection: Connection) -> list[TerminalDelivery]:
            for trigger, name in fires:
                mail.add_terminal_delivery(connection, trigger, name, at)
            return list(mail.terminal_deliveries_by_key(connection, [trigger.key for trigger, _ in fires]).values())

        for item in await self._store.write(work):
            if item.state == "waiting":
                self._mailboxes.remember(item)
        self._added.notify()

    async def look(self) -> int:
        """Settle what has been read, withdrawn or lost; return how many were waiting."""
        left = await self._store.read(mail.waiting_deliveries)
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
            except (TurnkeeperError, OSError) as error:  # the disk is full, or no descriptor is left: look again
                self._log.emit("inbox.unreadable", reason=f"{type(error).__name__}: {error}"[:500])
                left = 1
            await self._clock.wait(news, POLL_S if left else IDLE_S)

    async def _deal_with(self, item: TerminalDelivery, where: EnvelopeState, cancelled: str | None) -> None:
        if where is EnvelopeState.GONE:
            await self._is_gone(item)
            return
        self._missing.discard(item.key)
        if where is EnvelopeState.DELIVERED:
            await self._settle(item, "delivered")
        elif where is EnvelopeState.QUARANTINED:
            await self._settle(item, "failed", f"{item.agent} could not read it: agent-runtime inbox quarantine")
        elif (
            where is EnvelopeState.WAITING
            and cancelled is not None
            and await self._mailboxes.withdraw(item.agent, item.name)
        ):
            await self._settle(item, "cancelled", cancelled)

    async def _is_gone(self, item: TerminalDelivery) -> None:
        """Decide about an envelope that is nowhere, at the second look: it may have been on its way at the first."""
        if item.key not in self._missing:
            self._missing.add(item.key)
        elif await self._mailboxes.was_received(item.name):
            await self._settle(item, "delivered")  # and pruned since
        else:
            await self._settle(item, "failed", f"its envelope was removed from the inbox of {item.agent}")

    async def _settle(self, item: TerminalDelivery, state: str, reason: str = "") -> None:
        first = await self._store.write(mail.settle_delivery, item, state, reason, self._clock.now())
        self._mailboxes.forget(item.key)
        self._missing.discard(item.key)
        if first:
            where: dict[str, Any] = {name: getattr(item, name) for name in ("turn_id", "fire_id", "attempt", "agent")}
            self._log.emit(f"fire.{state}", **where)
