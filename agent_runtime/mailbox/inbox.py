"""One agent's inbox, outside the runtime: its only reader, its envelopes as rows, and the right to put envelopes back.

Reading rows creates no folder, claims nothing and needs no lock. If several machines share the store, an inbox is rows
of the store (`agent_runtime/mailbox/shared_inbox/`).
"""

import contextlib
import os
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from agent_runtime.mailbox.outbox import send
from agent_runtime.model.trigger import FIRST_AGENT, NOT_AGENTS, hosted
from turnkeeper.bus.acks import AckLedger, acknowledge
from turnkeeper.bus.durable_writes import GroupingFiles, ns_of
from turnkeeper.bus.envelope import Envelope, decode
from turnkeeper.bus.folders import REASON, agents_with_inboxes, natural
from turnkeeper.bus.inbox import Claimed, Inbox, Put, Quarantine
from turnkeeper.bus.inbox import open_inbox as open_folders
from turnkeeper.bus.seals import LARGEST_FILE, unsealed
from turnkeeper.clock import Clock, SystemClock
from turnkeeper.config.home import AGENT, Home, check_agent
from turnkeeper.config.surfaces import required
from turnkeeper.config.toml_file import shared_url_in
from turnkeeper.entropy import Entropy, SystemEntropy
from turnkeeper.errors import Conflict, Corrupt, InvalidInput, NotFound, meant
from turnkeeper.rpc.process import Failpoints
from turnkeeper.storage.files import SystemFiles
from turnkeeper.storage.locking import ReaderLock, reader_of
from turnkeeper.times import from_us, rfc3339

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
        """Return why the inbox cannot be read now, or "". Raises Conflict as :meth:`ReaderLock.keep`."""
        self._lock.keep()
        return ""

    def adopt(self) -> list[Claimed]:
        """Return the unarchived envelopes of an earlier reader, in order; the first may have been delivered already."""
        return self._inbox.adopt()

    def claim(self, limit: int = 1) -> list[Claimed]:
        """Claim waiting envelopes, in order. Quarantine malformed envelopes."""
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
        if agent in _hosted_on(self._home):  # only the runtime writes there, so the message goes through the outbox
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
    hosted = check_agent(agent) == FIRST_AGENT or agent in _hosted_on(home)
    return open_folders(home, agent, hosted=hosted, files=GroupingFiles(), clock=clock, entropy=entropy)


MOST_AT_ONCE = 100


def existing(home: Home, agent: str) -> Path:
    """Return an agent's folder. Raises NotFound if the agent has no inbox, InvalidInput for an invalid name."""
    folder, shared = home.inbox(agent), shared_inboxes(home)
    if shared is not None and (agent in _hosted_on(home) or shared.has_inbox(agent)):
        return folder
    known = agents_with_inboxes(home) if shared is None else [row["agent"] for row in inbox_rows(home)]
    if agent not in known:
        hint = meant(agent, known)
        see = hint if hint.startswith("did you mean") else "see: turnkeeper inbox list"
        raise NotFound(f"{agent} has no inbox", where=str(folder), hint=see)
    return folder


def inbox_rows(home: Home) -> list[Row]:
    """Return a row for each inbox: the number of envelopes in each state, the oldest one, and the reader."""
    of_runtime = _hosted_on(home)
    if (shared := shared_inboxes(home)) is not None:
        return sorted(shared.inbox_rows(of_runtime), key=lambda row: natural(row["agent"]))
    return [_inbox_row(home.inbox(agent), of_runtime=agent in of_runtime) for agent in agents_with_inboxes(home)]


def envelope_rows(home: Home, agent: str, limit: int) -> list[Row]:
    """Return the waiting and claimed envelopes, in order, at most `limit`."""
    folder = existing(home, agent)
    if (shared := shared_inboxes(home)) is not None:
        return list(shared.envelope_rows(agent, limit))
    rows: list[Row] = []
    for place in ("claimed", "inbox"):
        for name in names_in(folder / place):
            if len(rows) >= limit:
                return rows
            # An invalid envelope is quarantined when it is claimed; a missing envelope was claimed.
            with contextlib.suppress(InvalidInput, Corrupt, FileNotFoundError):
                envelope = decode(unsealed(SystemFiles().read(folder / place / name, LARGEST_FILE)))
                rows.append({"place": place, **envelope_row(name, envelope)})
    return rows


def quarantine_rows(home: Home, agent: str = "", *, refused: bool = False) -> list[Row]:
    """Return the quarantined envelopes of one agent or of all; with `refused` also refused messages of agents."""
    shared, rows = shared_inboxes(home), list[Row]()
    if shared is not None:
        rows += shared.quarantine_rows(agent)
    for one in [existing(home, agent).name] if agent else agents_with_inboxes(home):
        # If machines share the store, only this machine's own messages to hosted agents are in folders.
        places = ("quarantine",) if shared is None or one in _hosted_on(home) else ()
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


def _inbox_row(folder: Path, *, of_runtime: bool) -> Row:
    names = {place: names_in(folder / place) for place in ("inbox", "claimed", "delivered", "quarantine")}
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


def shared_inboxes(home: Home) -> Any:
    """Return the inboxes of a store that several machines share; None for a home of one machine."""
    if not shared_url_in(home.config):
        return None
    url = import_module("turnkeeper.config.settings").load_settings(home).store.shared_url
    return required("inboxes of several machines", home, url) if url else None


@contextlib.contextmanager
def reading(
    home: Home, agent: str, reader: str, *, clock: Clock, entropy: Entropy, stand_by: bool = False
) -> Iterator[Reader]:
    """Become the reader of an agent's inbox, under the name `reader`, which other readers and the receipts show.

    If machines share the store and `stand_by` is set, :meth:`Reader.ready` starts the reading after any earlier reader.

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
    """Return the folder of an agent in a terminal. Raises Conflict for an agent that the runtime hosts."""
    if agent in NOT_AGENTS:
        raise InvalidInput(f"{agent} has no inbox", where="agent", hint="see: turnkeeper inbox list")
    folder = home.inbox(agent)
    if agent in _hosted_on(home):
        holder = reader_of(folder) or "agent-runtime, which is not running"
        what = f"the inbox of {agent} is read by {holder}"
        raise Conflict(what, where=str(folder), hint="its envelopes become turns: turnkeeper turns list")
    return folder


def put_back(home: Home, agent: str, name: str, *, vouched: bool) -> Put:
    """Put a quarantined envelope back into its inbox. Raises as `Inbox.requeue`."""
    shared, inbox = shared_inboxes(home), open_inbox(home, agent, SystemClock(), SystemEntropy())
    requeue = inbox.requeue if shared is None else partial(shared.requeue, inbox)
    found: Put = requeue(name, vouched=vouched)
    return found


def _hosted_on(home: Home) -> list[str]:
    """Return the names of the agents in a home's settings. Raises InvalidInput."""
    # Settings need pydantic, whose import takes longer than most commands: import them only on use.
    settings = import_module("turnkeeper.config.settings")
    return hosted(settings.staffed(settings.load_settings(home), home))
