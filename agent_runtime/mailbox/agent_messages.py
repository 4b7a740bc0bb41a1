"""Messages between agents: agent0 sends to its workers and to agents in terminals, and each answers agent0.

All messages are envelopes. After a crash, either the envelope exists or a row records that the answer is still owed. A
worker's turn runs on the worker's own thread in the sender's channel. It has the sender's grant without the right to
send, because workers answer, and start no other agents. Only agent0 talks to the author.

Messages of agents in terminals come from their outboxes (`agent_runtime/mailbox/outboxes.py`).
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Connection

from agent_runtime.mailbox.acceptor import Acceptor
from agent_runtime.mailbox.mailboxes import Mailboxes
from agent_runtime.model.trigger import AGENT_KINDS, FIRST_AGENT, NOT_AGENTS, Trigger, sendable
from agent_runtime.model.turn import TurnRecord
from agent_runtime.permissions.judge import RESTART, require
from agent_runtime.store import mail
from agent_runtime.store.idempotency import Call, once, refuse_ended
from agent_runtime.store.turn_events import Signal
from agent_runtime.store.turn_reads import get_turn
from agent_runtime.store.turn_store import Store
from agent_runtime.store.turn_writes import last_words
from turnkeeper.bus.envelope import check_text, turn_id_of
from turnkeeper.bus.event_log import EventLog
from turnkeeper.bus.letters import ANSWER, LONGEST_MESSAGE, MOST_HOPS
from turnkeeper.clock import Clock
from turnkeeper.config.home import Home
from turnkeeper.errors import Denied, Exhausted, InvalidInput, NotFound, TurnkeeperError

SCOPE = "agent.send"
AGAIN_S = 30.0  # pause between tries of an answer: the inbox is full, or the machine that owes it may have stopped
IDLE_S = 3600.0


@dataclass(frozen=True, kw_only=True)
class _Ended:
    """A worker's finished turn, with the turn that waits for its answer."""

    delegation: mail.Delegation
    turn: TurnRecord | None
    words: str
    parent: TurnRecord | None


class AgentMessages:
    """Sender of messages and answers, each sent once.

    Attributes:
        owing: notified when a turn ends and its sender waits for an answer.
    """

    def __init__(
        self, store: Store, acceptor: Acceptor, mailboxes: Mailboxes, *, home: Home, clock: Clock, log: EventLog
    ) -> None:
        self._store = store
        self._acceptor = acceptor
        self._mailboxes = mailboxes
        self._home = home
        self._clock = clock
        self._log = log
        self.owing = Signal()

    async def send(self, call: Call, worker: str, text: str) -> Mapping[str, Any]:
        """Send a message to a worker, or into the inbox of an agent in a terminal, once per call.

        Raises:
            Denied: not in scope, not agent0, or the turn has ended.
            NotFound: there is no such agent.
            InvalidInput: a message cannot carry the text.
            Exhausted: the agent's inbox is full, or the exchange has reached its limit.
        """
        require(SCOPE, "write", {"worker": worker, "text": text}, call.context)
        if call.context.agent != FIRST_AGENT:
            raise Denied(f"only {FIRST_AGENT} can send to other agents; your last text is your answer to it")
        await self._check(worker, text)
        trigger = await self._message(call, worker, text)
        told = {"worker": worker, "turn_id": trigger.turn_id, "thread_id": trigger.thread_id}
        outcome = await self._store.write(once, call, SCOPE, self._clock.now(), refuse_ended, lambda: told)
        if worker not in self._mailboxes.agents:  # the agent's answer refers to this message
            await self._store.write(lambda connection: mail.add_delegation(connection, trigger, over=False))
        await self._acceptor.accept(trigger)
        return {**outcome.result, "sent": True}

    async def keep_answering(self) -> None:
        """Send each answer when it is due, until cancelled. Start with the answers that an earlier process owed."""
        while True:
            news, again_s = self.owing.next(), AGAIN_S if self._mailboxes.is_shared else IDLE_S
            try:
                await self.answer_owed()
            except (TurnkeeperError, OSError) as error:  # the inbox or the disk is full: the answer stays on record
                self._log.emit("answer.delayed", reason=f"{type(error).__name__}: {error}"[:500])
                again_s = AGAIN_S
            await self._clock.wait(news, again_s)

    async def answer_owed(self) -> None:
        """Send the answers of workers' finished turns; answers that were sent before are not sent again."""
        for ended in await self._store.read(_over):
            if (answer := _answer(ended)) is not None:
                await self._acceptor.accept(answer)
            await self._store.write(mail.answered, ended.delegation.turn_id)

    async def _check(self, worker: str, text: str) -> None:
        workers = [agent for agent in self._mailboxes.agents if agent != FIRST_AGENT]
        has_inbox = worker not in {FIRST_AGENT, *NOT_AGENTS} and await self._mailboxes.has_inbox(worker)
        if worker not in workers and not has_inbox:
            hint = f"use one of: {', '.join(workers)}" if workers else "start some with: turnkeeper up N"
            raise NotFound(f"no worker {worker[:40]!r}", where="worker", hint=hint)
        if not text.strip() or len(text.encode("utf-8", "replace")) > LONGEST_MESSAGE:
            raise InvalidInput(f"a message has 1 to {LONGEST_MESSAGE} bytes", where="text")
        check_text(text)

    async def _message(self, call: Call, worker: str, text: str) -> Trigger:
        context = call.context
        parent = await self._store.read(get_turn, context.turn_id)
        begun_by = await self._store.read(mail.get_delegation, context.turn_id)
        if parent is None:
            raise Denied("the turn is not on record", where=context.turn_id)
        hops = (begun_by.hops if begun_by is not None else 0) + 1
        if hops > MOST_HOPS:
            raise Exhausted(f"the limit of {MOST_HOPS} messages in one exchange is reached", hint="tell the author")
        key = f"agent:{hashlib.sha256(call.key.encode()).hexdigest()[:32]}"
        return _trigger(
            parent,
            key,
            thread_id=thread_of(worker, parent.channel),
            agent=worker,
            grant=replace(parent.grant, tools=parent.grant.tools - {SCOPE, RESTART}),
            prompt=text,
            kind=AGENT_KINDS[context.started_by],
            sender=FIRST_AGENT,
            parent=parent.turn_id,
            hops=hops,
        )


def thread_of(worker: str, channel: str) -> str:
    """Return the thread of a worker for a channel; it is always the same thread.

    >>> thread_of("agent1", "general")
    'agent1-0feae16d'
    """
    return f"{worker}-{hashlib.sha256(channel.encode()).hexdigest()[:8]}"


def _over(connection: Connection) -> list[_Ended]:
    return [
        _Ended(
            delegation=item,
            turn=get_turn(connection, item.turn_id),
            words=last_words(connection, item.turn_id),
            parent=get_turn(connection, item.parent),
        )
        for item in mail.owed(connection)
    ]


def _answer(ended: _Ended) -> Trigger | None:
    """Return the answer to the agent that waits for an ended turn.

    Use the thread and grant of the turn that sent the message. If an agent in a terminal sent the message unasked, no
    such turn exists, so use those of the ended turn.
    """
    item = ended.delegation
    of = ended.parent if ended.parent is not None or item.parent else ended.turn
    if of is None:
        return None
    kind = ended.turn.kind if ended.turn is not None else AGENT_KINDS["author"]
    said = sendable(_words(ended), LONGEST_MESSAGE)
    return reply(of, item, f"{ANSWER}{item.turn_id}", agent=item.sender, sender=item.agent, prompt=said, kind=kind)


def reply(of: TurnRecord, item: mail.Delegation, key: str, **message: str) -> Trigger:
    """Return the answer to a message, on the thread of a turn and with that turn's grant."""
    return _trigger(of, key, thread_id=of.thread_id, grant=of.grant, parent=item.turn_id, hops=item.hops + 1, **message)


def _trigger(of: TurnRecord, key: str, **message: Any) -> Trigger:
    """Return a message between agents in the channel of the turn that began the exchange."""
    own: dict[str, Any] = {"turn_id": turn_id_of("agent", key), "channel": of.channel, "read_only": of.read_only}
    return Trigger(source="agent", key=key, **own, **message).sealed()


def _words(ended: _Ended) -> str:
    turn = ended.turn
    if turn is None or turn.status in {"failed", "cancelled"}:
        how = turn.status if turn is not None else "failed"
        why = turn.error if turn is not None and turn.error else "no reason is recorded"
        return f"I could not do it: the turn {how}: {why}"
    return ended.words or "I am done, and have nothing to say."
