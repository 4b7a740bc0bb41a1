"""Fires for agents that the runtime does not host: laid out in their inboxes, and settled when they have been read.

The row of a fire is written once its envelope is on disk, before anybody is told that it was accepted. From then on
its inbox is looked at: the archive of the envelope is the reader's word that it was delivered, and each fire ends once.
Nothing is kept in memory that the rows and the folders do not tell, so a restart goes on where the last process was.
"""

import asyncio
from collections.abc import Sequence
from itertools import groupby

from sqlalchemy import Connection

from agent_runtime.mailbox.mailboxes import Lying, Mailboxes
from agent_runtime.model.signal import Signal
from agent_runtime.model.trigger import Trigger
from agent_runtime.store.mail import deliveries
from agent_runtime.store.mail.deliveries import TerminalDelivery
from agent_runtime.store.turn_reads import get_keys
from agent_runtime.store.turn_store import Store
from turnkeeper.bus.key_index import EnvelopeState
from turnkeeper.clock import Clock
from turnkeeper.errors import TurnkeeperError
from turnkeeper.event_log import EventLog

POLL_S = 1.0  # readers archive without ringing
IDLE_S = 3600.0


class TerminalDeliveries:
    """Follows what was laid out until it is settled."""

    def __init__(self, store: Store, mailboxes: Mailboxes, *, clock: Clock, log: EventLog) -> None:
        self._store = store
        self._mailboxes = mailboxes
        self._clock = clock
        self._log = log
        self._added = Signal()
        self._missing: set[str] = set()  # keys whose envelopes the last look did not find
        self._looking: asyncio.Task[None] | None = None

    async def start(self, elsewhere: Sequence[tuple[Trigger, str]]) -> None:
        """Go on with what an earlier process laid out, and follow it.

        Args:
            elsewhere: the fires that lie in inboxes of agents that the runtime does not host, with their names.
        """
        agents = self._mailboxes.agents
        await self._store.write(lambda connection: deliveries.forget_hosted(connection, agents))
        keys = [trigger.key for trigger, _ in elsewhere]
        taken = await self._store.read(lambda connection: get_keys(connection, keys))
        for trigger, name in elsewhere:
            if trigger.key in taken:  # it became a turn while the runtime hosted this agent
                await self._mailboxes.withdraw(trigger.agent, name, claimed=True)
        await self.add([(trigger, name) for trigger, name in elsewhere if trigger.key not in taken])
        for laid in await self._store.read(deliveries.waiting):
            self._remember(laid)
        self._looking = asyncio.create_task(self._follow(), name="laid-out")

    async def stop(self) -> None:
        """Look no more; what is not settled stays as it is."""
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)

    async def add(self, fires: Sequence[tuple[Trigger, str]]) -> None:
        """Write that fires lie in their agents' inboxes, each with its envelope's name; again changes nothing."""
        if not fires:
            return
        at = self._clock.now()

        def work(connection: Connection) -> list[TerminalDelivery]:
            for trigger, name in fires:
                deliveries.add_terminal_delivery(connection, trigger, name, at)
            return list(
                deliveries.terminal_deliveries_by_key(connection, [trigger.key for trigger, _ in fires]).values()
            )

        for laid in await self._store.write(work):
            if laid.state == "waiting":
                self._remember(laid)
        self._added.notify()

    async def look(self) -> int:
        """Settle what has been read, withdrawn or lost; return how many are still laid out."""
        left = await self._store.read(deliveries.waiting)
        turns = [laid.turn_id for laid in left]
        cancels = await self._store.read(lambda connection: deliveries.cancelled_among(connection, turns))
        for agent, group in groupby(sorted(left, key=lambda laid: laid.agent), key=lambda laid: laid.agent):
            mine = list(group)
            found = await self._mailboxes.envelope_states(agent, {laid.key: laid.name for laid in mine})
            for laid in mine:
                await self._deal_with(laid, found[laid.key], cancels.get(laid.turn_id))
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

    async def _deal_with(self, laid: TerminalDelivery, where: EnvelopeState, cancelled: str | None) -> None:
        if where is EnvelopeState.GONE:
            await self._is_gone(laid)
            return
        self._missing.discard(laid.key)
        if where is EnvelopeState.DELIVERED:
            await self._settle(laid, "delivered")
        elif where is EnvelopeState.QUARANTINED:
            await self._settle(laid, "failed", f"{laid.agent} could not read it: agent-runtime inbox quarantine")
        elif (
            where is EnvelopeState.WAITING
            and cancelled is not None
            and await self._mailboxes.withdraw(laid.agent, laid.name)
        ):
            await self._settle(laid, "cancelled", cancelled)

    async def _is_gone(self, laid: TerminalDelivery) -> None:
        """Decide about an envelope that is nowhere, at the second look: it may have been on its way at the first."""
        if laid.key not in self._missing:
            self._missing.add(laid.key)
        elif await self._mailboxes.was_received(laid.name):
            await self._settle(laid, "delivered")  # and pruned since
        else:
            await self._settle(laid, "failed", f"its envelope was removed from the inbox of {laid.agent}")

    async def _settle(self, laid: TerminalDelivery, state: str, reason: str = "") -> None:
        at = self._clock.now()
        first = await self._store.write(lambda connection: deliveries.settle(connection, laid, state, reason, at))
        self._mailboxes.forget(laid.key)
        self._missing.discard(laid.key)
        if first:
            self._log.emit(
                f"fire.{state}", turn_id=laid.turn_id, fire_id=laid.fire_id, attempt=laid.attempt, agent=laid.agent
            )

    def _remember(self, laid: TerminalDelivery) -> None:
        lying = Lying(
            digest=laid.digest,
            turn_id=laid.turn_id,
            thread_id=laid.thread_id,
            channel=laid.channel,
            agent=laid.agent,
            fire_id=laid.fire_id,
            attempt=laid.attempt,
            task_name=laid.task_name,
        )
        self._mailboxes.lay_out(laid.key, lying)
