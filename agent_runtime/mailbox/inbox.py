"""One agent's inbox, outside the runtime: what it holds, as rows, and reading it for an agent that lives in a terminal.

Looking makes no folder, takes nothing and needs no lock. A reader holds the inbox's lock: it adopts, claims, delivers,
acknowledges and archives. Where several machines share the store, an inbox is rows of it
(`agent_runtime/mailbox/shared_inbox.py`).
"""

import contextlib
import os
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from agent_runtime.mailbox.outbox import send
from agent_runtime.model.trigger import FIRST_AGENT, NOT_AGENTS, hosted_on
from turnkeeper.bus.acks import AckLedger, acknowledge
from turnkeeper.bus.durable_writes import GroupingFiles, ns_of
from turnkeeper.bus.envelope import Envelope, decode
from turnkeeper.bus.folders import REASON
from turnkeeper.bus.inbox import Claimed, Inbox, Put, Quarantine
from turnkeeper.bus.inbox import open_inbox as open_folders
from turnkeeper.bus.seals import LARGEST_FILE, unsealed
from turnkeeper.clock import Clock, SystemClock
from turnkeeper.config.home import AGENT, Home, check_agent
from turnkeeper.config.toml_file import shared_url_in
from turnkeeper.entropy import Entropy, SystemEntropy
from turnkeeper.errors import Conflict, Corrupt, InvalidInput, NotFound, meant
from turnkeeper.process import Failpoints
from turnkeeper.storage.files import SystemFiles
from turnkeeper.storage.locking import ReaderLock, reader_of
from turnkeeper.times import from_us, rfc3339

MOST_AT_ONCE = 100
Row = dict[str, Any]


def agents_with_inboxes(home: Home) -> list[str]:
    """Return the agents that have an inbox, by name, numbers in order."""
    folder = home.inbox("agent0").parent
    found = [name for name in os.listdir(folder) if AGENT.fullmatch(name)] if folder.is_dir() else []
    return sorted((name for name in found if (folder / name).is_dir()), key=_natural)


def existing(home: Home, agent: str) -> Path:
    """Return an agent's folder. Raises NotFound where nothing was ever put for it, InvalidInput for no name."""
    folder, shared = home.inbox(agent), shared_inboxes(home)
    known = agents_with_inboxes(home) if shared is None else [row["agent"] for row in inbox_rows(home)]
    if agent not in known:
        hint = meant(agent, known)
        see = hint if hint.startswith("did you mean") else "see: turnkeeper inbox list"
        raise NotFound(f"{agent} has no inbox", where=str(folder), hint=see)
    return folder


def inbox_rows(home: Home) -> list[Row]:
    """Return a row for each inbox: how many envelopes are in which state, since when, and who reads it."""
    of_runtime = hosted_on(home)
    if (shared := shared_inboxes(home)) is not None:
        return sorted(shared.inbox_rows(of_runtime), key=lambda row: _natural(row["agent"]))
    return [_inbox_row(home.inbox(agent), of_runtime=agent in of_runtime) for agent in agents_with_inboxes(home)]


def envelope_rows(home: Home, agent: str, limit: int) -> list[Row]:
    """Return the envelopes that wait or are being worked on, in order, at most `limit`."""
    folder = existing(home, agent)
    if (shared := shared_inboxes(home)) is not None:
        return list(shared.envelope_rows(agent, limit))
    rows: list[Row] = []
    for place in ("claimed", "inbox"):
        for name in _names(folder / place):
            if len(rows) >= limit:
                return rows
            # What is no envelope is set aside, with its reason, when it is claimed; what is gone was.
            with contextlib.suppress(InvalidInput, Corrupt, FileNotFoundError):
                envelope = decode(unsealed(SystemFiles().read(folder / place / name, LARGEST_FILE)))
                rows.append({"place": place, **envelope_row(name, envelope)})
    return rows


def quarantine_rows(home: Home, agent: str = "", *, refused: bool = False) -> list[Row]:
    """Return what was set aside, of one agent or of all; with `refused` also what an agent in a terminal sent."""
    shared, rows = shared_inboxes(home), list[Row]()
    if shared is not None:
        rows += shared.quarantine_rows(agent)
    for one in [existing(home, agent).name] if agent else agents_with_inboxes(home):
        # Where machines share the store, only what hosted agents are sent by this machine itself lies in folders.
        places = ("quarantine",) if shared is None or one in hosted_on(home) else ()
        for place in (*places, "refused") if refused else places:
            if not (home.inbox(one) / place).is_dir():
                continue
            quarantine = Quarantine(home.inbox(one), files=SystemFiles(), clock=SystemClock(), place=place)
            rows += [
                {"agent": one, "name": item.name, "reason": item.reason, "at": rfc3339(item.at) if item.at else None}
                | {"place": place}
                for item in quarantine.items()
            ]
    return rows


def envelope_row(name: str, envelope: Envelope) -> Row:
    """Return an envelope as a row, with every field that it has."""
    names = ("id", "sender", "to", "kind", "thread", "swarm", "idempotency_key", "requires_ack", "at", "text", "meta")
    row = {"from" if field == "sender" else field: getattr(envelope, field) for field in names}
    return {"name": name, **row, "at": rfc3339(envelope.at)}


def _inbox_row(folder: Path, *, of_runtime: bool) -> Row:
    names = {place: _names(folder / place) for place in ("inbox", "claimed", "delivered", "quarantine")}
    put_ns = [ns for name in names["inbox"] if (ns := ns_of(name)) is not None]
    return {
        "agent": folder.name,
        "waiting": len(names["inbox"]),
        "claimed": len(names["claimed"]),
        "delivered": len(names["delivered"]),
        "quarantined": sum(not name.endswith(REASON) for name in names["quarantine"]),
        "oldest_at": rfc3339(from_us(min(put_ns) // 1000)) if put_ns else None,
        "hosted": of_runtime,
        "reader": reader_of(folder) or None,
    }


def _names(folder: Path) -> list[str]:
    return sorted(name for name in os.listdir(folder) if not name.startswith(".")) if folder.is_dir() else []


def _natural(name: str) -> tuple[str, int]:
    stem = name.rstrip("0123456789")
    return stem, int(name[len(stem) :] or -1)


def shared_inboxes(home: Home) -> Any:
    """Return the inboxes of a store that several machines share; None for a home of one machine."""
    if not shared_url_in(home.config):
        return None
    url = import_module("turnkeeper.config.settings").load_settings(home).store.shared_url
    return import_module("agent_runtime.mailbox.shared_inbox").SharedInboxes(home, url) if url else None


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
        return len(_names(self._inbox.folder / "inbox"))

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


@contextlib.contextmanager
def reading(
    home: Home, agent: str, reader: str, *, clock: Clock, entropy: Entropy, stand_by: bool = False
) -> Iterator[Reader]:
    """Become the reader of an agent's inbox, under the name `reader`, which another that tries and the receipts show.

    Where machines share the store, one that is to `stand_by` becomes it as soon as it can: :meth:`Reader.ready`.

    Raises:
        InvalidInput: not an agent's name.
        Conflict: the runtime hosts this agent, or another process reads its inbox.
    """
    folder, shared = refuse_hosted(home, agent), shared_inboxes(home)
    if shared is not None:
        with shared.reading(agent, reader, clock=clock, entropy=entropy) as found:
            if not stand_by:
                found.begin()
            yield found
        return
    with ReaderLock(folder, reader) as lock:
        inbox = open_inbox(home, agent, clock, entropy)
        ledger = AckLedger(home.logs, reader.replace(" ", "-"), clock)
        yield Reader(home, lock, inbox, ledger, clock, entropy)


def refuse_hosted(home: Home, agent: str) -> Path:
    """Return the folder of an agent that lives in a terminal. Raises Conflict for one that the runtime hosts."""
    if agent in NOT_AGENTS:
        raise InvalidInput(f"{agent} has no inbox", where="agent", hint="see: turnkeeper inbox list")
    folder = home.inbox(agent)
    if agent in hosted_on(home):
        holder = reader_of(folder) or "agent-runtime, which does not run now"
        what = f"the inbox of {agent} is read by {holder}"
        raise Conflict(what, where=str(folder), hint="what it holds becomes turns: turnkeeper turns list")
    return folder


def put_back(home: Home, agent: str, name: str, *, vouched: bool) -> Put:
    """Put an envelope from quarantine back into an inbox. Raises as `Inbox.requeue`."""
    shared, inbox = shared_inboxes(home), open_inbox(home, agent, SystemClock(), SystemEntropy())
    requeue = inbox.requeue if shared is None else partial(shared.requeue, inbox)
    found: Put = requeue(name, vouched=vouched)
    return found


def open_inbox(home: Home, agent: str, clock: Clock, entropy: Entropy) -> Inbox:
    """Return an agent's inbox, for putting into any, and for claiming from one that lives in a terminal.

    Such an agent has no rows for keys, so its files decide which envelope owns one.
    """
    hosted = check_agent(agent) == FIRST_AGENT or agent in hosted_on(home)
    return open_folders(home, agent, hosted=hosted, files=GroupingFiles(), clock=clock, entropy=entropy)
