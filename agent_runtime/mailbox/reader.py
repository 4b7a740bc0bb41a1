"""The only reader of an inbox of an agent in a terminal: it adopts, claims, delivers and archives envelopes."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from agent_runtime.mailbox.outbox import send
from agent_runtime.model.trigger import FIRST_AGENT, NOT_AGENTS, hosted_on
from turnkeeper.bus.acks import AckLedger, acknowledge
from turnkeeper.bus.durable_writes import GroupingFiles
from turnkeeper.bus.envelope import Envelope
from turnkeeper.bus.inbox import Claimed, Inbox, Put
from turnkeeper.bus.inbox import open_inbox as open_folders
from turnkeeper.clock import Clock
from turnkeeper.config.home import AGENT, Home, check_agent
from turnkeeper.entropy import Entropy
from turnkeeper.rpc.process import Failpoints
from turnkeeper.storage.locking import ReaderLock
from turnkeeper.times import rfc3339

Row = dict[str, Any]


class Reader:
    """The only reader of an agent's inbox; the caller holds the inbox's lock. See :func:`reading`.

    Attributes:
        passing: errors after which a later retry may succeed.
    """

    passing: tuple[type[Exception], ...] = ()

    def __init__(
        self, home: Home, lock: ReaderLock, inbox: Inbox, ledger: AckLedger, clock: Clock, entropy: Entropy
    ) -> None:
        self._home = home
        self._inbox = inbox
        self._lock = lock
        self._ledger = ledger
        self._clock = clock
        self._entropy = entropy
        self._failpoints = Failpoints(os.environ)

    def ready(self) -> str:
        """Return why the inbox cannot be read now; empty if it can. Raises Conflict as :meth:`ReaderLock.keep`."""
        self._lock.keep()
        return ""

    def adopt(self) -> list[Claimed]:
        """Return the unarchived envelopes of an earlier reader, in order; the first may have been delivered already."""
        return self._inbox.adopt()

    def claim(self, limit: int = 1) -> list[Claimed]:
        """Claim waiting envelopes, in order. Quarantine malformed ones."""
        return self._inbox.claim(limit)

    def waiting(self) -> int:
        """Return the number of unclaimed envelopes."""
        return len(names_in(self._inbox.folder / "inbox"))

    def quarantined(self) -> int:
        return len(self._inbox.quarantined())

    def finish(self, claimed: Claimed, deliver: Callable[[Envelope], None]) -> None:
        """Deliver one envelope, then acknowledge and archive it. After an error it stays claimed."""
        self._failpoints.reach("inbox.claimed")
        self._prove()
        deliver(claimed.envelope)
        self._failpoints.reach("inbox.delivered")
        acknowledge(claimed, ledger=self._ledger, clock=self._clock, put_to=self._put_to)
        self._archive(claimed)

    def _prove(self) -> None:
        """Raise Conflict if another process now reads the inbox."""

    def _archive(self, claimed: Claimed) -> None:
        self._inbox.archive(claimed)

    def _put_to(self, agent: str) -> Callable[[Envelope], Put] | None:
        if agent in NOT_AGENTS or not AGENT.fullmatch(agent):
            return None
        if agent in hosted_on(self._home):  # only the runtime puts there, so the message goes through the outbox
            return self._send if self._home.inbox(agent).is_dir() else None
        return self._put_elsewhere(agent)

    def _put_elsewhere(self, agent: str) -> Callable[[Envelope], Put] | None:
        """Return a function that puts into the inbox of an agent in a terminal; None if the agent has no inbox."""
        has_inbox = self._home.inbox(agent).is_dir()
        return open_inbox(self._home, agent, self._clock, self._entropy).put if has_inbox else None

    def _send(self, ack: Envelope) -> Put:
        return Put(name=send(self._home, ack, clock=self._clock, entropy=self._entropy), fresh=True)


def envelope_row(name: str, envelope: Envelope) -> Row:
    names = ("id", "sender", "to", "kind", "thread", "swarm", "idempotency_key", "requires_ack", "at", "text", "meta")
    row = {"from" if field == "sender" else field: getattr(envelope, field) for field in names}
    return {"name": name, **row, "at": rfc3339(envelope.at)}


def names_in(folder: Path) -> list[str]:
    """Return the names of the envelopes in a folder of an inbox, in order."""
    return sorted(name for name in os.listdir(folder) if not name.startswith(".")) if folder.is_dir() else []


def open_inbox(home: Home, agent: str, clock: Clock, entropy: Entropy) -> Inbox:
    """Return an agent's inbox, for putting envelopes and, if the agent is in a terminal, also for claiming them.

    An agent in a terminal has no key rows, so its files decide which envelope owns a key.
    """
    hosted = check_agent(agent) == FIRST_AGENT or agent in hosted_on(home)
    return open_folders(home, agent, hosted=hosted, files=GroupingFiles(), clock=clock, entropy=entropy)
