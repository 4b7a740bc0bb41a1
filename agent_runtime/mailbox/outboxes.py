"""The messages of agents in terminals. Each message is taken from its agent's outbox and delivered to agent0 once.

An agent in a terminal answers through its outbox, once for each message of agent0. The answer becomes a turn on the
thread where agent0 asked. Any other message becomes a turn on a separate thread in a separate channel, which writes
nothing without the author. The agent gets the turn's last text as the answer in its inbox.

The first agent of a peer, `agent0@NAME`, is treated the same way. All its messages, including answers, run under the
category `peer` and write nothing without the author, because they come from another author's system.
"""

import asyncio
import re
from collections.abc import Awaitable
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, select

from agent_runtime.mailbox.acceptor import Acceptor
from agent_runtime.mailbox.agent_messages import reply, thread_of
from agent_runtime.mailbox.mailboxes import Mailboxes
from agent_runtime.mailbox.outbox import Outbox, read_letter
from agent_runtime.model.trigger import AGENT_KINDS, FIRST_AGENT, RESERVED, Trigger
from agent_runtime.model.turn import TurnRecord
from agent_runtime.permissions.categories import Categories
from agent_runtime.store import mail
from agent_runtime.store.schema import delegations
from agent_runtime.store.turn_reads import get_keys, get_turn
from agent_runtime.store.turn_store import Store
from turnkeeper.bus import acks, folders
from turnkeeper.bus.envelope import Envelope, turn_id_of
from turnkeeper.bus.event_log import EventLog
from turnkeeper.clock import Clock
from turnkeeper.config.home import Home
from turnkeeper.entropy import Entropy
from turnkeeper.errors import InvalidInput, TurnkeeperError
from turnkeeper.rpc.process import Failpoints

POLL_S = 1.0  # agents write their files without a notification
MOST_A_MINUTE = 60  # messages of one agent, in a burst or over time; further messages wait in its outbox
CATEGORY = "conversation"
PEER = "peer"


def open_requests(connection: Connection, agent: str, by: str) -> list[tuple[mail.Delegation, TurnRecord]]:
    """Return agent0's unanswered messages to an agent in a terminal, with agent0's turns, oldest first.

    If the turn `by` already answers one of them, return only that one.
    """
    mine = select(delegations.c.parent).where(delegations.c.turn_id == by, delegations.c.sender == agent)
    is_open = (delegations.c.state == "open") | delegations.c.turn_id.in_(mine)
    own = (delegations.c.agent == agent) & (delegations.c.sender == FIRST_AGENT) & is_open
    found = [mail.Delegation(**row) for row in connection.execute(select(delegations).where(own)).mappings()]
    found = [item for item in found if item.state != "open"] or found
    asked = [(item, parent) for item in found if (parent := get_turn(connection, item.parent)) is not None]
    return sorted(asked, key=lambda pair: pair[1].number)


class _Allowance:
    """The number of messages that may be taken from one agent now."""

    def __init__(self, now: float) -> None:
        self._left, self._at = float(MOST_A_MINUTE), now

    def left(self, now: float) -> int:
        self._left = min(float(MOST_A_MINUTE), self._left + (now - self._at) * MOST_A_MINUTE / 60.0)
        self._at = now
        return int(self._left)

    def spend(self) -> None:
        self._left -= 1.0


@dataclass(eq=False)
class Outboxes:
    """Carrier of messages from the outboxes of agents in terminals to agent0."""

    store: Store
    acceptor: Acceptor
    mailboxes: Mailboxes
    categories: Categories
    failpoints: Failpoints
    home: Home
    clock: Clock
    entropy: Entropy
    log: EventLog
    _outboxes: dict[str, Outbox] = field(default_factory=dict, init=False)
    _allowances: dict[str, _Allowance] = field(default_factory=dict, init=False)
    _trouble: dict[str, str] = field(default_factory=dict, init=False)

    async def run(self) -> None:
        """Check the outboxes once a second until cancelled. Messages that cannot be delivered now stay in place."""
        while True:
            await self._guarded("", self._look())
            await self.clock.sleep(POLL_S)

    async def _look(self) -> None:
        for agent in await asyncio.to_thread(folders.agents_with_inboxes, self.home):
            if agent not in self.mailboxes.agents and agent not in RESERVED:
                await self._guarded(agent, self._take(agent))

    async def _guarded(self, agent: str, work: Awaitable[None]) -> None:
        """Await `work`. Log a repeated error only once."""
        reason = ""
        try:
            await work
        except (TurnkeeperError, OSError) as error:
            reason = f"{type(error).__name__}: {error}"[:500]
            if self._trouble.get(agent) != reason:
                self.log.emit("outbox.unreadable", agent=agent, reason=reason)
        self._trouble[agent] = reason

    async def _take(self, agent: str) -> None:
        outbox = self._outboxes.get(agent)
        if outbox is None:
            outbox = self._outboxes[agent] = Outbox(self.home.inbox(agent), self.clock, self.entropy)
            self._allowances[agent] = _Allowance(self.clock.monotonic())
        allowance = self._allowances[agent]
        for name in await asyncio.to_thread(outbox.take, allowance.left(self.clock.monotonic())):
            self.failpoints.reach("outbox.taken")
            try:
                data = await asyncio.to_thread(outbox.read, name)
                await self._deliver(read_letter(data, agent, name=name, at=self.clock.now()))
            except InvalidInput as error:
                allowance.spend()
                await asyncio.to_thread(outbox.refuse, name, str(error))
                self.log.emit("outbox.refused", agent=agent, name=name, reason=str(error))
                continue
            allowance.spend()
            self.failpoints.reach("outbox.delivered")
            await asyncio.to_thread(outbox.finish, name)

    async def _deliver(self, letter: Envelope) -> None:
        """Deliver a message once, even if it is found again, then acknowledge it."""
        where: dict[str, Any] = {"agent": letter.sender, "id": letter.id, "kind": letter.kind}
        if letter.kind == "ack":
            await self.mailboxes.post(letter)
        else:
            key = letter.idempotency_key
            fresh = not await self.mailboxes.find([key]) and not await self.store.read(get_keys, [key])
            if fresh:
                trigger = await self._trigger(letter)
                while trigger.parent and not await self.store.write(mail.answer, trigger):
                    trigger = await self._trigger(letter)
                await self.acceptor.accept(trigger)
                where["turn_id"] = trigger.turn_id
            self.log.emit("outbox.accepted", **where, fresh=fresh)
        if letter.requires_ack:
            await self.mailboxes.post(acks.ack_of(letter, at=self.clock.now(), by_key=True))

    async def _trigger(self, letter: Envelope) -> Trigger:
        """Return the trigger for a letter. Raises InvalidInput for an answer without a question."""
        agent, answers = letter.sender, str(letter.meta.get("answers", ""))
        left = await self.store.read(open_requests, agent, _turn_of(letter))
        if answers:
            asked = [(item, parent) for item, parent in left if item.turn_id == answers]
        else:
            asked = [pair for pair in left if letter.thread in {"", thread_of(agent, pair[1].channel)}]
            asked = asked if letter.thread or len(asked) == 1 else []
        if asked and is_peer(agent):
            item, parent = asked[-1]
            where = {"thread_id": parent.thread_id, "channel": parent.channel, "parent": item.turn_id}
            return self._narrow(letter, hops=item.hops, **where)
        if asked:
            return _answer_of(letter, *asked[-1])
        return await self._answer_to_fire(letter, answers) if answers else self._unasked(letter)

    async def _answer_to_fire(self, letter: Envelope, turn_id: str) -> Trigger:
        """Return the trigger for an answer to a fire. The answer runs on the fire's thread and channel."""
        fire = await self.store.read(mail.terminal_delivery_of_turn, turn_id)
        answered_by = await self.store.read(mail.answer_to, turn_id, letter.sender)
        if fire is None or fire.agent != letter.sender or answered_by not in {None, _turn_of(letter)}:
            raise InvalidInput(f"no fire {turn_id[:40]!r} awaits an answer from {letter.sender}", where="meta.answers")
        return self._narrow(letter, hops=1, thread_id=fire.thread_id, channel=fire.channel, parent=turn_id)

    def _unasked(self, letter: Envelope) -> Trigger:
        # A stranger's message must not write, and no turn may read it together with another channel's memory.
        agent, thread = letter.sender, letter.thread
        is_own = re.fullmatch(rf"{re.escape(agent)}-[0-9a-f]{{8}}", thread, re.ASCII)
        given = thread if is_own else thread_of(agent, thread or agent)
        return self._narrow(letter, hops=letter.meta.get("hops", 0), thread_id=given, channel=agent)

    def _narrow(self, letter: Envelope, *, hops: int, **where: str) -> Trigger:
        """Return the trigger for a letter's turn, which writes nothing without the author."""
        category = PEER if is_peer(letter.sender) else CATEGORY
        own: dict[str, Any] = {"agent": FIRST_AGENT, "prompt": letter.text, "sender": letter.sender, **where}
        return Trigger(
            source="agent",
            key=letter.idempotency_key,
            turn_id=_turn_of(letter),
            grant=self.categories.get(category),
            read_only=category == CATEGORY,
            kind=AGENT_KINDS["fire"],
            hops=hops + 1,
            **own,
        ).sealed()


def _turn_of(letter: Envelope) -> str:
    return turn_id_of("agent", letter.idempotency_key)


def _answer_of(letter: Envelope, item: mail.Delegation, parent: TurnRecord) -> Trigger:
    by_fire = parent.trigger == "fire" or parent.kind == AGENT_KINDS["fire"]
    said = {"agent": FIRST_AGENT, "sender": letter.sender, "prompt": letter.text}
    return reply(parent, item, letter.idempotency_key, kind=AGENT_KINDS["fire" if by_fire else "author"], **said)


def is_peer(agent: str) -> bool:
    """Return whether an agent belongs to a peer.

    >>> is_peer("agent0@ada"), is_peer("codex")
    (True, False)
    """
    return "@" in agent
