"""Accepting triggers: each becomes an envelope on disk, unless it is there already. Nothing is decided here.

What arrives while a group is being written makes up the next group, so that many fires share one sync of the inbox.
A key row says what has been taken. It is written when an envelope is claimed; until then the envelope itself is in the
inbox. The inbox is read first, since an envelope leaves it only after its key row is on disk.
"""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection

from agent_runtime.mailbox.mailboxes import Mailboxes
from agent_runtime.mailbox.terminal_deliveries import TerminalDeliveries
from agent_runtime.model.signal import Signal
from agent_runtime.model.trigger import Trigger, to_envelope
from agent_runtime.store.mail import terminal_deliveries_by_key
from agent_runtime.store.turn_reads import get_keys
from agent_runtime.store.turn_store import Store
from turnkeeper.bus.envelope import encode
from turnkeeper.bus.inbox import Encoded, Put
from turnkeeper.clock import Clock
from turnkeeper.entropy import Entropy
from turnkeeper.errors import Conflict, Exhausted, InvalidInput, TurnkeeperError
from turnkeeper.event_log import EventLog
from turnkeeper.process import Failpoints

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
    encoded: Encoded
    answer: "asyncio.Future[Receipt]"
    refusal: TurnkeeperError | None


class Acceptor:
    """Puts triggers into inboxes durably, in the order in which they arrive."""

    def __init__(
        self,
        store: Store,
        mailboxes: Mailboxes,
        terminal_deliveries: TerminalDeliveries,
        arrived: Signal,
        *,
        clock: Clock,
        entropy: Entropy,
        log: EventLog,
        failpoints: Failpoints,
    ) -> None:
        """Notify `arrived` whenever an envelope is put."""
        self._store = store
        self._mailboxes = mailboxes
        self._terminal_deliveries = terminal_deliveries
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
            Exhausted: the inbox or the disk is full; nothing was accepted.
        """
        return await self.queue(trigger)

    def queue(self, trigger: Trigger, *, refusal: TurnkeeperError | None = None) -> "asyncio.Future[Receipt]":
        """Queue a trigger behind those before it, now; the future ends as :meth:`accept` does.

        With a `refusal` nothing new is accepted: that is the answer, unless the trigger's key is known.
        """
        answer: asyncio.Future[Receipt] = asyncio.get_running_loop().create_future()
        envelope = to_envelope(trigger, envelope_id=self._entropy.hex(32), at=self._clock.now())
        try:
            encoded = (envelope, encode(envelope))
        except InvalidInput as error:
            answer.set_exception(error if error.where != "envelope" else Exhausted(error.what, where="prompt"))
            return answer
        self._waiting.append(_Waiting(trigger=trigger, encoded=encoded, answer=answer, refusal=refusal))
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
        digests = await self._known({item.trigger.key for item in group})
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
        put = await self._put(fresh)
        first = {id(item) for item in fresh}
        accepted: list[tuple[_Waiting, bool]] = []
        for item in group:
            answer = put.get(item.trigger.key)
            if isinstance(answer, TurnkeeperError):
                _fail(item, answer)
            elif not item.answer.done():
                accepted.append((item, id(item) in first and (answer is None or answer.fresh)))
        self._answer(accepted)

    async def _known(self, keys: Iterable[str]) -> dict[str, str]:
        """Return the digests of the keys that were taken, or whose envelopes are in an inbox."""
        wanted = list(keys)
        queued = {key: known.digest for key in wanted if (known := self._mailboxes.known(key)) is not None}

        def look(connection: Connection) -> dict[str, str]:
            taken = {key: record.digest for key, record in get_keys(connection, wanted).items()}
            return taken | {key: item.digest for key, item in terminal_deliveries_by_key(connection, wanted).items()}

        return await self._store.read(look) | queued

    async def _put(self, fresh: Sequence[_Waiting]) -> dict[str, Put | TurnkeeperError]:
        """Put envelopes; what goes to an agent that the runtime does not host is on record when this returns."""
        answers = await self._mailboxes.put([(item.trigger, item.encoded) for item in fresh])
        self._failpoints.reach("runtime.accepted")
        put = {item.trigger.key: answer for item, answer in zip(fresh, answers, strict=True)}
        hosted = self._mailboxes.agents
        elsewhere = [
            (item.trigger, answer.name)
            for item, answer in zip(fresh, answers, strict=True)
            if isinstance(answer, Put) and item.trigger.agent not in hosted and item.trigger.source == "fire"
        ]
        if elsewhere:
            await self._terminal_deliveries.add(elsewhere)
        self._arrived.notify()
        return put

    def _answer(self, accepted: Sequence[tuple[_Waiting, bool]]) -> None:
        """Log what was accepted, in one write, then answer the callers; each comes with whether it is fresh."""
        self._log.emit_all([line for item, fresh in accepted if (line := _log_line(item.trigger, fresh=fresh))])
        for item, fresh in accepted:
            item.answer.set_result(Receipt(trigger=item.trigger, fresh=fresh))


def _log_line(trigger: Trigger, *, fresh: bool) -> tuple[str, dict[str, object]] | None:
    if trigger.source == "fire":
        return "fire.received", {
            "fire_id": trigger.fire_id,
            "attempt": trigger.attempt,
            "turn_id": trigger.turn_id,
            "disposition": "ACCEPTED" if fresh else "DUPLICATE",
        }
    return ("message.accepted", {"turn_id": trigger.turn_id, "thread_id": trigger.thread_id}) if fresh else None


def _fail(item: _Waiting, error: Exception) -> None:
    if not item.answer.done():
        item.answer.set_exception(error)
