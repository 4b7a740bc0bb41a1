"""Reading the inbox of an agent that lives in a terminal: adopt, claim, deliver, acknowledge, archive."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from agent_runtime.model.agents import FIRST_AGENT, NOT_AGENTS, hosted_on
from turnkeeper.bus.acks import AckLedger, acknowledge
from turnkeeper.bus.durable_writes import GroupingFiles
from turnkeeper.bus.envelope import Envelope
from turnkeeper.bus.inbox import Claimed, Inbox, Put
from turnkeeper.clock import Clock
from turnkeeper.config.home import Home, check_agent
from turnkeeper.entropy import Entropy
from turnkeeper.errors import Conflict, InvalidInput
from turnkeeper.process import Failpoints
from turnkeeper.storage.locking import ReaderLock, reader_of

MOST_AT_ONCE = 100


class Reader:
    """The one reader of an agent's inbox."""

    def __init__(self, home: Home, inbox: Inbox, ledger: AckLedger, clock: Clock, entropy: Entropy) -> None:
        """Take the open inbox, whose lock the caller holds."""
        self._home = home
        self._inbox = inbox
        self._ledger = ledger
        self._clock = clock
        self._entropy = entropy
        self._failpoints = Failpoints(os.environ)

    def adopt(self) -> list[Claimed]:
        """Return what an earlier reader claimed and never archived, in order; it may have delivered the first."""
        return self._inbox.adopt()

    def claim(self, limit: int = 1) -> list[Claimed]:
        """Take what waits, in order. What is malformed goes to quarantine."""
        return self._inbox.claim(limit)

    def quarantined(self) -> int:
        """Return how many envelopes were set aside."""
        return len(self._inbox.quarantined())

    def finish(self, claimed: Claimed, deliver: Callable[[Envelope], None]) -> None:
        """Deliver one envelope, then acknowledge and archive it. An error leaves it claimed, for the next reader."""
        self._failpoints.reach("inbox.claimed")
        deliver(claimed.envelope)
        self._failpoints.reach("inbox.delivered")
        acknowledge(claimed, ledger=self._ledger, clock=self._clock, put_to=self._put_to)
        self._inbox.archive(claimed)

    def _put_to(self, agent: str) -> Callable[[Envelope], Put] | None:
        try:
            folder = self._home.inbox(agent)
        except InvalidInput:
            return None
        if agent in NOT_AGENTS or not folder.is_dir():
            return None
        return open_inbox(self._home, agent, self._clock, self._entropy).put


@contextmanager
def reading(home: Home, agent: str, reader: str, *, clock: Clock, entropy: Entropy) -> Iterator[Reader]:
    """Become the reader of an agent's inbox.

    Args:
        home: the state directory.
        agent: whose inbox.
        reader: what reads, for whoever comes second, and for the ledger of receipts.
        clock: the machine's.
        entropy: the machine's.

    Raises:
        InvalidInput: not an agent's name.
        Conflict: the runtime hosts this agent, or another process reads its inbox.
    """
    folder = refuse_hosted(home, agent)
    with ReaderLock(folder, reader):
        inbox = open_inbox(home, agent, clock, entropy)
        yield Reader(home, inbox, AckLedger(home.logs, reader.replace(" ", "-"), clock), clock, entropy)


def refuse_hosted(home: Home, agent: str) -> Path:
    """Return the folder of an agent that lives in a terminal. Raises Conflict for one that the runtime hosts."""
    if agent in NOT_AGENTS:
        raise InvalidInput(f"{agent} has no inbox", where="agent", hint="see: agent-runtime inbox list")
    folder = home.inbox(agent)
    if agent in hosted_on(home):
        holder = reader_of(folder) or "agent-runtime, which does not run now"
        what = f"the inbox of {agent} is read by {holder}"
        raise Conflict(what, where=str(folder), hint="what it holds becomes turns: agent-runtime turns list")
    return folder


def open_inbox(home: Home, agent: str, clock: Clock, entropy: Entropy) -> Inbox:
    """Return an agent's inbox, for putting into any, and for claiming from one that lives in a terminal.

    Such an agent has no rows for keys, so its files decide which envelope owns one.
    """
    settles = check_agent(agent) != FIRST_AGENT and agent not in hosted_on(home)
    return Inbox(home.inbox(agent), files=GroupingFiles(), clock=clock, entropy=entropy, settles_keys=settles)
