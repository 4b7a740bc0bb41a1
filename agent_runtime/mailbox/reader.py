"""The one reader of an inbox, for an agent that lives in a terminal: it adopts, claims, delivers, and archives."""

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
    """The one reader of an agent's inbox, whose lock the caller holds. See :func:`reading`.

    Attributes:
        passing: errors after which it may read again later.
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
        """Return why nothing can be read now; empty where it can. Raises Conflict as :meth:`ReaderLock.keep`."""
        self._lock.keep()
        return ""

    def adopt(self) -> list[Claimed]:
        """Return what an earlier reader claimed and never archived, in order; it may have delivered the first."""
        return self._inbox.adopt()

    def claim(self, limit: int = 1) -> list[Claimed]:
        """Take what waits, in order. What is malformed goes to quarantine."""
        return self._inbox.claim(limit)

    def waiting(self) -> int:
        """Return how many envelopes nobody has claimed."""
        return len(names_in(self._inbox.folder / "inbox"))

    def quarantined(self) -> int:
        """Return how many envelopes were set aside."""
        return len(self._inbox.quarantined())

    def finish(self, claimed: Claimed, deliver: Callable[[Envelope], None]) -> None:
        """Deliver one envelope, then acknowledge and archive it. An error leaves it claimed, for the next reader."""
        self._failpoints.reach("inbox.claimed")
        self._prove()
        deliver(claimed.envelope)
        self._failpoints.reach("inbox.delivered")
        acknowledge(claimed, ledger=self._ledger, clock=self._clock, put_to=self._put_to)
        self._archive(claimed)

    def _prove(self) -> None:
        """Raise Conflict where another process reads the inbox meanwhile."""

    def _archive(self, claimed: Claimed) -> None:
        self._inbox.archive(claimed)

    def _put_to(self, agent: str) -> Callable[[Envelope], Put] | None:
        if agent in NOT_AGENTS or not AGENT.fullmatch(agent):
            return None
        if agent in hosted_on(self._home):  # only the runtime puts there: like any message, it goes by the outbox
            return self._send if self._home.inbox(agent).is_dir() else None
        return self._put_elsewhere(agent)

    def _put_elsewhere(self, agent: str) -> Callable[[Envelope], Put] | None:
        """Return how to put into the inbox of an agent in a terminal, if it has one."""
        has_inbox = self._home.inbox(agent).is_dir()
        return open_inbox(self._home, agent, self._clock, self._entropy).put if has_inbox else None

    def _send(self, ack: Envelope) -> Put:
        return Put(name=send(self._home, ack, clock=self._clock, entropy=self._entropy), fresh=True)


def envelope_row(name: str, envelope: Envelope) -> Row:
    """Return an envelope as a row, with every field that it has."""
    names = ("id", "sender", "to", "kind", "thread", "swarm", "idempotency_key", "requires_ack", "at", "text", "meta")
    row = {"from" if field == "sender" else field: getattr(envelope, field) for field in names}
    return {"name": name, **row, "at": rfc3339(envelope.at)}


def names_in(folder: Path) -> list[str]:
    """Return the names of the envelopes in a folder of an inbox, in order."""
    return sorted(name for name in os.listdir(folder) if not name.startswith(".")) if folder.is_dir() else []


def open_inbox(home: Home, agent: str, clock: Clock, entropy: Entropy) -> Inbox:
    """Return an agent's inbox, for putting into any, and for claiming from one that lives in a terminal.

    Such an agent has no rows for keys, so its files decide which envelope owns one.
    """
    hosted = check_agent(agent) == FIRST_AGENT or agent in hosted_on(home)
    return open_folders(home, agent, hosted=hosted, files=GroupingFiles(), clock=clock, entropy=entropy)
