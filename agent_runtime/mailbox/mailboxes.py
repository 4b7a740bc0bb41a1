"""The agents' inboxes, and the one thread that reads and writes them.

The runtime claims from the inboxes of its hosted agents. It only puts envelopes into the inboxes of agents in
terminals; :class:`agent_runtime.mailbox.acceptor.TerminalDeliveries` settles such fires.
"""

import asyncio
import contextlib
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from agent_runtime.model.decide import Incoming
from agent_runtime.model.trigger import NOT_AGENTS, EncodedTrigger, Trigger, TriggerHeader, from_envelope, header_of
from agent_runtime.store.leases import Lease
from turnkeeper.bus.acks import AckLedger, ack_of, read_acks
from turnkeeper.bus.durable_writes import GroupingFiles
from turnkeeper.bus.envelope import Encoded, Envelope, encoded
from turnkeeper.bus.folders import EnvelopeState, agents_with_inboxes, envelope_states
from turnkeeper.bus.inbox import Claimed, Inbox, Put, open_inbox
from turnkeeper.bus.seals import make_first_key
from turnkeeper.clock import Clock
from turnkeeper.config.home import Home
from turnkeeper.entropy import Entropy
from turnkeeper.errors import Corrupt, Exhausted, InvalidInput, TurnkeeperError
from turnkeeper.storage.files import machine_errors
from turnkeeper.storage.keys import KeyFile

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Delivery:
    """A claimed envelope and its agent.

    Attributes:
        lease: the lease under which a row of a shared store was claimed; None for a file.
        number: the number of that row.
        wish: the reason to check the thread, if the envelope carries no trigger.
        elsewhere: True if the envelope is for the inbox of an agent in a terminal.
        field: the invalid field of a fire that no process can begin; empty if the fire can begin or the field is
            unknown.
    """

    agent: str
    claimed: Claimed
    lease: Lease | None = None
    number: int = 0
    wish: Incoming | None = None
    elsewhere: bool = False
    field: str = ""


class Mailboxes:
    """One inbox for each agent. File operations run one after the other in a separate thread.

    The header of each envelope is cached by key, from the write to disk until the archiving.
    """

    is_shared = False

    def __init__(
        self, home: Home, agents: Sequence[str], *, process: str, clock: Clock, entropy: Entropy, files: Any = None
    ) -> None:
        """Open the inboxes of the agents that this runtime hosts; receipts name `process`."""
        self._home, self._cordon = home, home.cordon
        self._clock = clock
        self._entropy = entropy
        self._files = files or GroupingFiles()
        self._ledger = AckLedger(home.logs, process, clock)
        self._keys = KeyFile(home)
        self._inboxes = {agent: self._open(agent, hosted=True) for agent in agents}
        self._others: dict[str, Inbox] = {}
        self._unwritten: list[Claimed] = []
        self._queued: dict[str, TriggerHeader] = {}
        self._archiving: list[tuple[Delivery, asyncio.Future[None]]] = []
        self._archiver: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="inbox")

    async def open(self) -> list[tuple[Trigger, str]]:
        """Read the envelopes in the inboxes, and sync them to disk; make a key if the home has none.

        Return the fires in the inboxes of agents that the runtime does not host, each with its envelope's name. Raises
        Corrupt if the key was lost.
        """
        await self._run(lambda: make_first_key(self._home, at=self._clock.now(), entropy=self._entropy))
        self._queued = await self._run(self._read_all)
        return await self._run(self._read_others)

    @property
    def agents(self) -> Collection[str]:
        return self._inboxes.keys()

    def known(self, key: str) -> TriggerHeader | None:
        """Return the header of the trigger with this key, if its envelope is in an inbox, claimed or not."""
        return self._queued.get(key)

    async def find(self, keys: Collection[str]) -> Mapping[str, TriggerHeader]:
        """Return the headers of the triggers with these keys whose envelopes are in an inbox, claimed or not."""
        return {key: self._queued[key] for key in keys if key in self._queued}

    async def of_turn(self, turn_id: str) -> TriggerHeader | None:
        """Return the header of the trigger of this future turn, if its envelope is in an inbox, claimed or not."""
        return next((known for known in self._queued.values() if known.turn_id == turn_id), None)

    def cordoned(self) -> str:
        """Return since when this machine has taken no new turns; empty if it takes new turns."""
        with contextlib.suppress(OSError):
            return self._cordon.read_text(encoding="utf-8") if os.path.exists(self._cordon) else ""  # noqa: PTH110  fast
        return ""

    def lease_of(self, _thread_id: str) -> Lease | None:
        """Return the lease of a thread; None in a home of one machine."""
        return None

    def owns(self, _thread_id: str) -> bool:
        return True

    async def begin(self, _on_lost: Callable[[str], None]) -> list[tuple[Trigger, str]]:
        """Open the inboxes. `_on_lost` is called for each thread that another process now owns."""
        return await self.open()

    async def leave(self) -> None:
        """Release all threads."""

    async def hand_over(self, _thread_id: str) -> None:
        """Release a thread at once, for other machines to continue."""

    def lost(self, _lease: Lease) -> None:
        """Give up a thread, because another process owns it."""

    async def let_go(self, _thread_id: str) -> bool:
        """Release a thread; return False if an item waits for it."""
        return True

    def queued(self) -> Iterator[TriggerHeader]:
        """Yield the headers of all triggers whose envelopes are in the inboxes."""
        return iter(self._queued.values())

    async def put(self, items: Sequence[EncodedTrigger]) -> list[Put | TurnkeeperError]:
        """Put triggers' envelopes; return the result or error of each, after it is on disk."""
        answers = await self._run(lambda: self._put([item.encoded for item in items]))
        for (header, _), answer in zip(items, answers, strict=True):
            if isinstance(answer, Put) and header.agent in self._inboxes:
                self._queued[header.key] = header
        return answers

    async def post(self, envelope: Envelope) -> None:
        """Put an envelope that carries no trigger. Raises the error that refuses the envelope."""
        (answer,) = await self._run(lambda: self._put([encoded(envelope)]))
        if isinstance(answer, TurnkeeperError):
            raise answer

    def remember(self, header: TriggerHeader) -> None:
        """Cache the header of a fire in the inbox of an agent that the runtime does not host."""
        self._queued[header.key] = header_of(header)

    def forget(self, key: str) -> None:
        """Remove the header of a settled fire from the cache."""
        self._queued.pop(key, None)

    async def has_inbox(self, agent: str) -> bool:
        """Return whether anything was ever put for an agent, or read there."""
        try:
            return self._home.inbox(agent).is_dir()
        except InvalidInput:
            return False

    async def lay_out(self, delivery: Delivery) -> None:
        """Do nothing, because without a shared store, acceptance puts a fire directly into the inbox of its agent."""

    async def envelope_states(self, agent: str, wanted: Mapping[str, str]) -> dict[str, EnvelopeState]:
        """Return the states of envelopes for an agent in a terminal, by key; `wanted` contains their names."""
        return await self._run(lambda: envelope_states(self._other(agent).folder, wanted, self._files))

    async def was_received(self, name: str) -> bool:
        """Return whether a reader wrote a receipt for the envelope with this name."""
        return await self._run(lambda: any(record.get("name") == name for record in read_acks(self._home.logs)))

    async def withdraw(self, agent: str, name: str, *, claimed: bool = False) -> bool:
        """Remove an unclaimed envelope, or with `claimed` any envelope; return False if it is claimed."""
        return await self._run(lambda: self._other(agent).withdraw(name, claimed=claimed))

    async def claim(self, limit: int) -> list[Delivery]:
        """Claim up to `limit` waiting envelopes, in order for each agent. Raises Exhausted, OSError."""
        return await self._run(lambda: self._claim(limit))

    def set_aside(self) -> list[tuple[str, str, str]]:
        """Return the envelopes quarantined by claims since the last call: agent, name, reason."""
        found = [(agent, *item) for agent, inbox in self._inboxes.items() for item in inbox.set_aside]
        for inbox in self._inboxes.values() if found else ():
            inbox.set_aside = []
        return found

    async def adopt(self) -> list[Delivery]:
        """Return the envelopes that an earlier process claimed but did not archive."""
        return await self._run(self._adopt)

    async def archive(self, delivery: Delivery) -> None:
        """Archive a handled envelope; concurrent calls share one sync. Raises Exhausted; the caller may retry."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._archiving.append((delivery, done))
        if self._archiver is None or self._archiver.done():
            self._archiver = asyncio.create_task(self._archive_all(), name="archive")
        await done
        self._queued.pop(delivery.claimed.envelope.idempotency_key, None)

    async def quarantine(self, delivery: Delivery, reason: str) -> None:
        await self._run(lambda: self._inboxes[delivery.agent].quarantine(delivery.claimed.name, reason))
        self._queued.pop(delivery.claimed.envelope.idempotency_key, None)

    def close(self) -> None:
        """Finish running work."""
        self._thread.shutdown()

    async def _run(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    async def _archive_all(self) -> None:
        while self._archiving:
            group, self._archiving = self._archiving, []
            failure: Exception | None = None
            try:
                await self._run(lambda group=group: self._archive([delivery for delivery, _ in group]))  # type: ignore[misc]
            except Exception as error:  # noqa: BLE001  each of the group's callers gets it as its answer
                failure = error
            for _, done in group:
                if not done.done():
                    done.set_result(None) if failure is None else done.set_exception(failure)

    def _archive(self, deliveries: Sequence[Delivery]) -> None:
        for delivery in deliveries:
            self._acknowledge(delivery.claimed)
        for agent, inbox in self._inboxes.items():
            inbox.archive_all([delivery.claimed for delivery in deliveries if delivery.agent == agent])

    def _received(self, deliveries: list[Delivery]) -> list[Delivery]:
        """Write receipts; if the disk is full, write them with the next receipts, without delaying the envelopes."""
        self._unwritten += [delivery.claimed for delivery in deliveries]
        with contextlib.suppress(Exhausted):
            self._ledger.received(self._unwritten, durable=False)
            self._unwritten.clear()
        return deliveries

    def _acknowledge(self, claimed: Claimed) -> None:
        """Put an ack into the inbox of the sender, if the sender asked for one and has an inbox."""
        sender = claimed.envelope.sender
        if not claimed.envelope.requires_ack or sender in NOT_AGENTS:
            return
        if sender in self._inboxes or self._home.inbox(sender).is_dir():
            inbox = self._inboxes.get(sender) or self._other(sender)
            inbox.put(ack_of(claimed.envelope, at=self._clock.now()))

    def _put(self, items: Sequence[Encoded]) -> list[Put | TurnkeeperError]:
        answers = {}
        for agent in {item.to for item in items}:
            answers[agent] = iter(self._put_into(agent, [item for item in items if item.to == agent]))
        return [next(answers[item.to]) for item in items]

    def _put_into(self, agent: str, own: Sequence[Encoded]) -> Sequence[Put | TurnkeeperError]:
        """Put envelopes into one agent's inbox; an inbox that cannot be opened refuses only its own envelopes."""
        try:
            with machine_errors(self._home.inbox(agent)):
                inbox = self._inboxes.get(agent) or self._other(agent)
        except TurnkeeperError as error:
            return [error] * len(own)
        return inbox.put_encoded(own)

    def _other(self, agent: str) -> Inbox:
        if agent not in self._others:
            self._others[agent] = self._open(agent, hosted=False)
        return self._others[agent]

    def _open(self, agent: str, *, hosted: bool) -> Inbox:
        own: dict[str, Any] = {"files": self._files, "clock": self._clock, "entropy": self._entropy, "keys": self._keys}
        return open_inbox(self._home, agent, hosted=hosted, **own)

    def _adopt(self) -> list[Delivery]:
        own = self._inboxes.items()
        return self._received([Delivery(agent=agent, claimed=item) for agent, inbox in own for item in inbox.adopt()])

    def _claim(self, limit: int) -> list[Delivery]:
        taken: list[Delivery] = []
        for agent, inbox in self._inboxes.items():
            if left := limit - len(taken):
                taken += [Delivery(agent=agent, claimed=item) for item in inbox.claim(left)]
        if not taken and any(key.retired_at for key in self._keys.read()):
            folders = (inbox.folder / place for inbox in self._inboxes.values() for place in ("inbox", "claimed"))
            if not any(self._files.names(folder) for folder in folders):  # else retired keys may have sealed envelopes
                self._keys.drop_retired(self._clock.now())
        return self._received(taken)

    def _read_all(self) -> dict[str, TriggerHeader]:
        found: dict[str, TriggerHeader] = {}
        for inbox in self._inboxes.values():
            found |= {trigger.key: header_of(trigger) for trigger, _ in _read(inbox)}
            # A crash may have prevented the sync after a link. Answer "duplicate" only for envelopes on disk.
            self._files.sync_folder(inbox.folder / "inbox")
        return found

    def _read_others(self) -> list[tuple[Trigger, str]]:
        found: list[tuple[Trigger, str]] = []
        for agent in agents_with_inboxes(self._home):
            if agent in self._inboxes:
                continue
            with contextlib.suppress(InvalidInput):  # others can write to the folder: its fires are refused one by one
                found += _read(self._other(agent))
                self._files.sync_folder(self._other(agent).folder / "inbox")
        return [(trigger, name) for trigger, name in found if trigger.source == "fire"]


def _read(inbox: Inbox) -> list[tuple[Trigger, str]]:
    found = []
    for place in ("claimed", "inbox"):
        for name in sorted(os.listdir(inbox.folder / place)):
            if name.startswith("."):
                continue  # a writer's temporary file, which is not an envelope yet
            # An unreadable envelope is quarantined, with its reason, when it is claimed.
            with contextlib.suppress(InvalidInput, Corrupt, FileNotFoundError):
                found.append((from_envelope(inbox.read(place, name)), name))
    return found
