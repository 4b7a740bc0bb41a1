"""The inbox of an agent in a terminal as rows of a shared store: its envelopes, and its only reader.

The reader holds a lease, which a thread renews. If a reader is stopped or cut off for longer than its lease lasts,
another reader may follow. So a reader proves its lease before each delivery and in each change. If it loses the lease
during a delivery, the next reader delivers that one envelope again, as after a kill.
"""

import os
import platform
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from sqlalchemy import Connection

from agent_runtime.mailbox.inbox import Reader, Row, envelope_row
from agent_runtime.store.database import MIGRATIONS
from turnkeeper.bus.acks import AckLedger
from turnkeeper.bus.envelope import Envelope, decode, encoded
from turnkeeper.bus.folders import EnvelopeState
from turnkeeper.bus.inbox import Claimed, Inbox, Put
from turnkeeper.clock import Clock
from turnkeeper.config.home import Home, make_private
from turnkeeper.entropy import Entropy
from turnkeeper.errors import InvalidInput, MachineTrouble, Unreachable
from turnkeeper.rpc.process import Failpoints
from turnkeeper.storage.database import Database
from turnkeeper.storage.locking import reader_of
from turnkeeper.storage.server import inboxes
from turnkeeper.storage.server.handover import LOOK_S, SCHEMA
from turnkeeper.storage.server.snapshot import SharedSnapshot
from turnkeeper.storage.server.url import in_schema
from turnkeeper.times import from_us, rfc3339

T = TypeVar("T")
RENEW_S = 2.0
FENCE_S = 10.0  # limit without a renewal, which is shorter than a lease
AWAY = (Unreachable, MachineTrouble)
_ALL = """(SELECT agent, key, state, reason, at_us FROM inbox_envelopes
    UNION ALL SELECT agent, key, state, reason, at_us FROM envelopes WHERE agent <> '') AS each"""
_COUNTS = f"SELECT agent, state, count(*) AS count, min(at_us) AS oldest_us FROM {_ALL} GROUP BY agent, state"  # noqa: S608
_READERS = "SELECT *, until_us > extract(epoch FROM clock_timestamp()) * 1000000 AS is_read FROM inboxes"
_ASIDE = f"SELECT * FROM {_ALL} WHERE state = 'quarantined' ORDER BY agent, at_us, key"  # noqa: S608
_OF_KEY = "SELECT envelope FROM inbox_envelopes WHERE agent = $1 AND key = $2 AND state = 'quarantined'"
_WAITING = """SELECT key, state, envelope FROM inbox_envelopes WHERE agent = $1 AND state IN ('waiting', 'claimed')
    ORDER BY state, number LIMIT $2"""


class SharedInboxes:
    """The inboxes of a store that several machines share, for use outside the runtime."""

    def __init__(self, home: Home, url: str) -> None:
        self._home, self._url = home, url

    def has_inbox(self, agent: str) -> bool:
        """Return whether an agent in a terminal has an inbox."""
        return any(True for _ in self._ask("SELECT 1 FROM inboxes WHERE agent = $1", agent))

    def inbox_rows(self, hosted: Collection[str]) -> list[Row]:
        """Return a row for each inbox; for an agent hosted here, the reader is a process of this machine."""
        counts = {(row["agent"], row["state"]): row for row in self._ask(_COUNTS)}
        readers = {row["agent"]: row["reader"] if row["is_read"] else None for row in self._ask(_READERS)}
        rows = []
        for agent in {*readers, *hosted, *(agent for agent, _ in counts)}:
            row = {str(state): counts.get((agent, state), {}).get("count", 0) for state in EnvelopeState}
            row.pop(EnvelopeState.GONE)
            oldest_us = counts.get((agent, "waiting"), {}).get("oldest_us")
            row |= {"oldest_at": rfc3339(from_us(oldest_us)) if oldest_us else None}
            reader = reader_of(self._home.inbox(agent)) if agent in hosted else readers.get(agent)
            rows.append({"agent": agent, **row, "hosted": agent in hosted, "reader": reader or None})
        return rows

    def envelope_rows(self, agent: str, limit: int) -> Iterator[Row]:
        """Yield the waiting and claimed envelopes, in order, at most `limit`."""
        for row in self._ask(_WAITING, agent, limit):
            with suppress(InvalidInput):  # an invalid envelope is quarantined, with its reason, when it is claimed
                envelope = decode(bytes(row["envelope"]))
                place = "claimed" if row["state"] == "claimed" else "inbox"
                yield {"place": place, **envelope_row(row["key"], envelope)}

    def quarantine_rows(self, agent: str = "") -> list[Row]:
        rows = ({**row, "name": row["key"], "at": rfc3339(from_us(row["at_us"]))} for row in self._ask(_ASIDE))
        kept = ("agent", "name", "reason", "at")
        return [
            {name: row[name] for name in kept} | {"place": "quarantine"} for row in rows if agent in {"", row["agent"]}
        ]

    def requeue(self, inbox: Inbox, key: str, *, vouched: bool) -> Put:
        """Put a quarantined envelope back: a row, or else a file of this machine. Raises as `Inbox.requeue`."""
        agent = inbox.folder.name
        for row in self._ask(_OF_KEY, agent, key):
            decode(bytes(row["envelope"]))
        with closing(self.open()) as database:
            found = database.submit(lambda c: inboxes.requeue_envelope(c, agent, key)).result()
        return Put(name=key, fresh=True) if found else inbox.requeue(key, vouched=vouched)

    @contextmanager
    def reading(self, agent: str, reader: str, *, clock: Clock, entropy: Entropy) -> Iterator["SharedReader"]:
        """Yield a reader of an inbox, named `reader`. The reading starts with :meth:`SharedReader.begin`."""
        with closing(self.open()) as database, closing(self.open()) as beside:
            make_private(self._home.inbox(agent))  # the agent's outbox on this machine is in this folder
            made = SharedReader(self._home, agent, reader, database, beside, clock, entropy)
            try:
                yield made
            finally:
                made.end()

    def open(self) -> Database:
        """Connect to the store. Raises as `Database`."""
        return Database(in_schema(self._url, SCHEMA), migrations=MIGRATIONS, upgrade=False)

    def _ask(self, query: str, *values: object) -> Iterator[Any]:
        with closing(SharedSnapshot(self._url, SCHEMA, named=True)) as snapshot:
            yield from snapshot.execute(query, values)


@dataclass(frozen=True, kw_only=True)
class NumberedClaim(Claimed):
    """A claimed envelope, with the number of its row."""

    number: int


class SharedReader(Reader):
    """The only reader of an inbox while its lease lasts. A new reader waits for the end of the previous lease."""

    passing = (inboxes.NotReader, *AWAY)

    def __init__(
        self, home: Home, agent: str, reader: str, database: Database, beside: Database, clock: Clock, entropy: Entropy
    ) -> None:
        """Use two connections, so that a renewal never waits for other work."""
        self._home, self._agent, self._clock, self._entropy = home, agent, clock, entropy
        self._ledger = AckLedger(home.logs, reader.replace(" ", "-"), clock)
        self._failpoints = Failpoints(os.environ)
        self._name = f"{reader}, pid {os.getpid()} on {platform.node()}"
        self._database, self._beside = database, beside
        self._epoch = self._after = self._finished = 0
        self._renewed_s = 0.0
        self._over = threading.Event()
        self._renewing = threading.Thread(target=self._renew, name="inbox-lease", daemon=True)
        self._renewing.start()

    def begin(self) -> None:
        """Become the reader, or remain the reader. Raises NotReader while another reader has the lease."""
        begun_s, before = self._clock.monotonic(), self._epoch
        if not (before and self._do(lambda c: inboxes.renew_reading(c, self._agent, before))):
            self._epoch = 0
            self._epoch = self._do(lambda c: inboxes.begin_reading(c, self._agent, self._name))
        self._after, self._renewed_s = 0, begun_s

    def ready(self) -> str:
        """Return why the inbox cannot be read now (another reader, no database); empty if it can be read."""
        try:
            if not self._is_reader():
                self.begin()
        except self.passing as error:
            return str(error)
        return ""

    def end(self) -> None:
        """Release the lease. If the database does not answer, the lease expires without a release."""
        self._over.set()
        self._renewing.join()
        with suppress(*AWAY):
            self._do(lambda c: inboxes.end_reading(c, self._agent, self._epoch))

    def adopt(self) -> list[Claimed]:
        """Return an empty list, because :meth:`claim` returns the envelopes of an earlier reader first."""
        return []

    def claim(self, limit: int = 1) -> list[Claimed]:
        """Claim waiting or abandoned envelopes, in order. Quarantine malformed envelopes. Raises NotReader."""
        taken: list[Claimed] = []
        with self._again():
            while not taken and (rows := self._do(self._claims(limit))):
                for number, key, data in rows:
                    self._after = max(self._after, number)
                    try:
                        taken.append(NumberedClaim(name=key, envelope=decode(data), number=number))
                    except InvalidInput as error:
                        self._do(self._end_of(number, EnvelopeState.QUARANTINED, str(error)))
        return taken

    def _claims(self, limit: int) -> Callable[[Connection], list[tuple[int, str, bytes]]]:
        return lambda c: inboxes.claim_envelopes(c, self._agent, self._epoch, limit, self._after)

    def finish(self, claimed: Claimed, deliver: Callable[[Envelope], None]) -> None:
        """Deliver one envelope, then acknowledge and archive it. After a passing error, claim the envelope again."""
        with self._again():
            super().finish(claimed, deliver)
            self._finished += 1
            if not self._finished % inboxes.PRUNE_EVERY:
                self._do(lambda c: inboxes.prune(c, self._agent))

    @contextmanager
    def _again(self) -> Iterator[None]:
        """Make unfinished envelopes claimable again after a passing error, even if an answer was lost."""
        try:
            yield
        except self.passing:
            self._after = 0
            raise

    def waiting(self) -> int:
        """Return the number of envelopes that wait or that an earlier reader left."""
        return self._do(lambda c: inboxes.count_envelopes(c, self._agent, EnvelopeState.WAITING, EnvelopeState.CLAIMED))

    def quarantined(self) -> int:
        return self._do(lambda c: inboxes.count_envelopes(c, self._agent, EnvelopeState.QUARANTINED))

    def _prove(self) -> None:
        self._do(lambda c: inboxes.check_reading(c, self._agent, self._epoch))

    def _archive(self, claimed: Claimed) -> None:
        assert isinstance(claimed, NumberedClaim)
        self._insist(self._end_of(claimed.number, EnvelopeState.DELIVERED))

    def _insist(self, work: Callable[[Connection], T]) -> T:
        """Run `work`; if the database does not answer, retry while the lease lasts."""
        while True:
            try:
                return self._do(work)
            except AWAY:
                if not self._is_reader():
                    raise
                self._over.wait(LOOK_S)

    def _end_of(self, number: int, state: EnvelopeState, reason: str = "") -> Callable[[Connection], None]:
        return lambda c: inboxes.end_envelope(c, self._agent, self._epoch, number, state, reason)

    def _put_elsewhere(self, agent: str) -> Callable[[Envelope], Put] | None:
        """Return a function that puts into the inbox of an agent in a terminal; None if the agent has no inbox."""

        def put(envelope: Envelope) -> Put:
            at = self._clock.now()
            (fresh,) = self._insist(lambda c: inboxes.put_envelopes(c, [encoded(envelope)], at))
            return Put(name=envelope.idempotency_key, fresh=fresh)

        return put if self._insist(lambda c: inboxes.has_inbox(c, agent)) else None

    def _is_reader(self) -> bool:
        return bool(self._epoch) and self._clock.monotonic() - self._renewed_s < FENCE_S

    def _renew(self) -> None:
        """Renew the lease until the reader stops."""
        while not self._over.wait(RENEW_S):
            begun_s, epoch = self._clock.monotonic(), self._epoch
            renewal = lambda c, epoch=epoch: inboxes.renew_reading(c, self._agent, epoch)  # noqa: E731
            with suppress(*AWAY):  # the age of the last renewal shows the failure
                if epoch and self._beside.submit(renewal).result():
                    self._renewed_s = begun_s
                elif epoch and self._epoch == epoch:
                    self._epoch = 0

    def _do(self, work: Callable[[Connection], T]) -> T:
        return self._database.submit(work).result()
