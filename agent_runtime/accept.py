"""Accepting triggers: an envelope on disk, or the word that it is there already. Nothing is decided here.

What arrives while a group is being written makes up the next group, so that many fires share one sync of the inbox.
The authority on what has been taken is the key row, written when an envelope is claimed; until then the envelope
itself lies in the inbox. The look at the inbox comes first: an envelope leaves it only after its key row is on disk.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from agent_runtime.bell import Bell
from agent_runtime.mailboxes import Mailboxes
from agent_runtime.store import Store
from agent_runtime.stores.queries import get_keys
from agent_runtime.triggers import Trigger, to_envelope
from turnkeeper.bus.envelope import Envelope, encode
from turnkeeper.clock import Clock
from turnkeeper.entropy import Entropy
from turnkeeper.errors import Conflict, Exhausted, InvalidInput, TurnkeeperError
from turnkeeper.eventlog import EventLog
from turnkeeper.failpoints import Failpoints

LARGEST_GROUP = 512


@dataclass(frozen=True, kw_only=True)
class Receipt:
    """What accepting came to.

    Attributes:
        trigger: as it was accepted.
        fresh: False where this key was there before, and nothing was written.
    """

    trigger: Trigger
    fresh: bool


@dataclass(frozen=True, kw_only=True)
class _Waiting:
    trigger: Trigger
    envelope: Envelope
    answer: "asyncio.Future[Receipt]"
    refusal: TurnkeeperError | None


class Acceptor:
    """Puts triggers into inboxes durably, in the order in which they arrive."""

    def __init__(
        self,
        *,
        store: Store,
        mailboxes: Mailboxes,
        arrived: Bell,
        clock: Clock,
        entropy: Entropy,
        log: EventLog,
        failpoints: Failpoints,
    ) -> None:
        """Take the places that triggers go to; `arrived` rings when something was put."""
        self._store = store
        self._mailboxes = mailboxes
        self._arrived = arrived
        self._clock = clock
        self._entropy = entropy
        self._log = log
        self._failpoints = failpoints
        self._waiting: list[_Waiting] = []
        self._writer: asyncio.Task[None] | None = None

    async def accept(self, trigger: Trigger) -> Receipt:
        """Return once the trigger's envelope is on disk.

        Raises:
            InvalidInput: it does not fit an envelope.
            Conflict: its key is known, and stands for something else.
            Exhausted: no room; nothing is promised.
        """
        return await self.queue(trigger)

    def queue(self, trigger: Trigger, *, refusal: TurnkeeperError | None = None) -> "asyncio.Future[Receipt]":
        """Queue a trigger behind those before it, now; the future ends as :meth:`accept` does.

        With a `refusal` nothing new is accepted: that is the answer, unless the trigger's key is known.
        """
        answer: asyncio.Future[Receipt] = asyncio.get_running_loop().create_future()
        envelope = to_envelope(trigger, envelope_id=self._entropy.hex(32), at=self._clock.now())
        try:
            encode(envelope)
        except InvalidInput as error:
            answer.set_exception(error if error.where != "envelope" else Exhausted(error.what, where="prompt"))
            return answer
        self._waiting.append(_Waiting(trigger=trigger, envelope=envelope, answer=answer, refusal=refusal))
        if self._writer is None or self._writer.done():
            self._writer = asyncio.create_task(self._write(), name="accept")
        return answer

    async def _write(self) -> None:
        while self._waiting:
            group, self._waiting = self._waiting[:LARGEST_GROUP], self._waiting[LARGEST_GROUP:]
            try:
                await self._write_group(group)
            except Exception as error:  # noqa: BLE001  each of the group's callers gets it as its answer
                for item in group:
                    _fail(item, error)

    async def _write_group(self, group: Sequence[_Waiting]) -> None:
        lying = {item.trigger.key: self._mailboxes.known(item.trigger.key) for item in group}
        keys = list(lying)
        taken = await self._store.read(lambda connection: get_keys(connection, keys))
        digests = {key: record.digest for key, record in taken.items()}
        digests |= {key: known.digest for key, known in lying.items() if known is not None}
        fresh: list[_Waiting] = []
        for item in group:
            known = digests.setdefault(item.trigger.key, "")
            if not known and item.refusal is not None:
                _fail(item, item.refusal)
            elif not known:
                digests[item.trigger.key] = item.trigger.digest
                fresh.append(item)
            elif known != item.trigger.digest:
                what = "was accepted before, with other content"
                _fail(item, Conflict(f"{item.trigger.key} {what}", where="fire_id", hint="send it under a new id"))
        failures = await self._mailboxes.put([(item.trigger, item.envelope) for item in fresh])
        self._failpoints.reach("runtime.accepted")
        self._arrived.ring()
        put = {item.trigger.key: failure for item, failure in zip(fresh, failures, strict=True)}
        first = {id(item) for item in fresh}
        for item in group:
            failure = put.get(item.trigger.key)
            if failure is not None:
                _fail(item, failure)
            else:
                self._answer(item, fresh=id(item) in first)

    def _answer(self, item: _Waiting, *, fresh: bool) -> None:
        if item.answer.done():
            return
        trigger = item.trigger
        if trigger.source == "fire":
            disposition = "ACCEPTED" if fresh else "DUPLICATE"
            self._log.emit(
                "fire.received",
                fire_id=trigger.fire_id,
                attempt=trigger.attempt,
                turn_id=trigger.turn_id,
                disposition=disposition,
            )
        elif fresh:
            self._log.emit("message.accepted", turn_id=trigger.turn_id, thread_id=trigger.thread_id)
        item.answer.set_result(Receipt(trigger=trigger, fresh=fresh))


def _fail(item: _Waiting, error: Exception) -> None:
    if not item.answer.done():
        item.answer.set_exception(error)
