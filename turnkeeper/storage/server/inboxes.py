"""The inboxes of agents in terminals, in a shared database. Each function is one transaction.

An envelope waits, is claimed, and then is delivered or quarantined. A reader may claim while it holds the inbox's
lease, which expires 15 s after each renewal by the database's clock. Each change checks the lease's epoch in the same
transaction, so an earlier reader that resumes can change nothing. On a single machine, inboxes are folders.
"""

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any, Protocol

from sqlalchemy import Connection, text

from turnkeeper.errors import Conflict, Exhausted
from turnkeeper.storage.server.handover import notify
from turnkeeper.storage.statements import of_server, storable
from turnkeeper.times import to_us

READ_S = 15  # seconds of a reader's lease after a renewal
MOST_WAITING = 100_000  # the limit for inboxes in folders is the same: `turnkeeper/bus/folders.py`
KEPT_S, MOST_KEPT = 14 * 86_400, 10_000  # the same limits apply to delivered envelopes in folders
PRUNE_EVERY = 1024  # the states of envelopes that a reader finishes


class Item(Protocol):
    """An envelope to put: its recipient, its key, and its bytes."""

    @property
    def to(self) -> str: ...
    @property
    def key(self) -> str: ...
    @property
    def data(self) -> bytes: ...


class NotReader(Conflict):
    """The error that another process has become the reader of the inbox. This process can change nothing there."""


def put_envelopes(connection: Connection, items: Sequence[Item], at: datetime) -> list[bool]:
    """Put envelopes with keys into their agents' inboxes. Return False for each key that is already in the inbox.

    Raises Exhausted if an inbox is full; then no envelope is put.
    """
    for agent in sorted({item.to for item in items}):
        _sql(connection, "INSERT INTO inboxes VALUES (:agent, 0, '', 0) ON CONFLICT DO NOTHING", agent=agent)
        if _sql(connection, _COUNT_SOME, agent=agent, most=MOST_WAITING).scalar() == MOST_WAITING:
            where = f"the inbox of {agent}"
            raise Exhausted(f"holds {MOST_WAITING} envelopes", where=where, hint="let the agent catch up")
    rows = ({"agent": item.to, "key": item.key, "envelope": item.data, "at_us": to_us(at)} for item in items)
    return [bool(_sql(connection, _PUT, **row).rowcount) for row in rows]


def has_inbox(connection: Connection, agent: str) -> bool:
    """Return True if anyone ever wrote to or read an agent's inbox."""
    return _sql(connection, _READER, agent=agent).scalar() is not None


def begin_reading(connection: Connection, agent: str, reader: str) -> int:
    """Become the only reader of an inbox. Return the epoch. Raises NotReader while another reader holds the lease."""
    epoch = _sql(connection, _BEGIN, agent=agent, reader=reader, read_us=READ_S * 1_000_000).scalar()
    if epoch is None:
        what = f"the inbox of {agent} is read by {_sql(connection, _READER, agent=agent).scalar()}"
        hint = f"an inbox has one reader: stop that one first; if it was killed, it is forgotten after {READ_S} s"
        raise NotReader(what, where="the shared database", hint=hint)
    prune(connection, agent)
    return int(epoch)


def prune(connection: Connection, agent: str) -> None:
    """Delete delivered envelopes that are too old or too many, unless they belong to unsettled fires."""
    _sql(connection, _PRUNE, agent=agent, kept_us=KEPT_S * 1_000_000, most=MOST_KEPT)


def renew_reading(connection: Connection, agent: str, epoch: int) -> bool:
    """Renew the reader's lease. Return False if another process has become the reader since."""
    return bool(_sql(connection, _RENEW, agent=agent, epoch=epoch, read_us=READ_S * 1_000_000).rowcount)


def end_reading(connection: Connection, agent: str, epoch: int) -> None:
    """End the reader's lease, so that another reader may begin at once."""
    _sql(connection, _END, agent=agent, epoch=epoch)


def check_reading(connection: Connection, agent: str, epoch: int) -> None:
    """Lock the inbox until the transaction ends. Raises NotReader if another process has become the reader since."""
    if _sql(connection, _CHECK, agent=agent, epoch=epoch).scalar() is None:
        raise NotReader(f"the inbox of {agent} has had another reader since", where="the shared database")


def claim_envelopes(
    connection: Connection, agent: str, epoch: int, limit: int, after: int
) -> list[tuple[int, str, bytes]]:
    """Claim the oldest waiting envelopes, and envelopes with a number above `after` that an earlier reader claimed."""
    check_reading(connection, agent, epoch)
    numbers = list(_sql(connection, _OLDEST, agent=agent, most=limit, after=after).scalars())
    return [(*row[:2], bytes(row[2])) for row in sorted(_sql(connection, _CLAIM, numbers=numbers).all())]


def end_envelope(connection: Connection, agent: str, epoch: int, number: int, state: str, reason: str = "") -> None:
    """Record that an envelope was delivered, or is quarantined for a reason. Raises NotReader."""
    check_reading(connection, agent, epoch)
    _sql(connection, _END_ENVELOPE, number=number, state=str(state), reason=storable(reason))


def count_envelopes(connection: Connection, agent: str, *states: str) -> int:
    """Return the number of an agent's envelopes in these states."""
    query = "SELECT count(*) FROM inbox_envelopes WHERE agent = :agent AND state = ANY(:states)"
    return int(_sql(connection, query, agent=agent, states=[str(state) for state in states]).scalar())


def envelope_states(connection: Connection, agent: str, keys: Collection[str]) -> dict[str, str]:
    """Return the states of an agent's envelopes, by key. Leave out unknown keys."""
    query = "SELECT key, state FROM inbox_envelopes WHERE agent = :agent AND key = ANY(:keys)"
    return dict(_sql(connection, query, agent=agent, keys=list(keys)).all())


def take_back(connection: Connection, agent: str, key: str, *, claimed: bool = False) -> bool:
    """Delete a waiting envelope or, with `claimed`, an envelope in any state. Return True if the envelope existed."""
    query = "DELETE FROM inbox_envelopes WHERE agent = :agent AND key = :key AND (state = 'waiting' OR :claimed)"
    return bool(_sql(connection, query, agent=agent, key=key, claimed=claimed).rowcount)


def requeue_envelope(connection: Connection, agent: str, key: str) -> bool:
    """Queue a quarantined envelope again, even if the agent is hosted. Return False if no such envelope exists."""
    found = [_sql(connection, query, agent=agent, key=key).rowcount for query in _REQUEUE]
    notify(connection, [""])
    return any(found)


def unrecorded_fires(connection: Connection) -> list[tuple[str, bytes]]:
    """Return the key and envelope of each waiting or claimed fire that has no row in `deliveries`."""
    return [(key, bytes(data)) for key, data in _sql(connection, _UNRECORDED)] if of_server(connection) else []


def _sql(connection: Connection, query: str, **values: Any) -> Any:
    """Run a statement on a server. Inboxes of a single machine are folders and need no statement."""
    now_us = "CAST(extract(epoch FROM clock_timestamp()) * 1000000 AS bigint)"
    return connection.execute(text(query.replace("now_us()", now_us)), values)


_COUNT_SOME = """SELECT count(*) FROM
    (SELECT FROM inbox_envelopes WHERE agent = :agent AND state = 'waiting' LIMIT :most) AS found"""
_PUT = """INSERT INTO inbox_envelopes (agent, key, envelope, state, at_us)
    VALUES (:agent, :key, :envelope, 'waiting', :at_us) ON CONFLICT DO NOTHING"""
_READER = "SELECT reader FROM inboxes WHERE agent = :agent"
# A lease that lasts longer than `read_us` was made before the server's clock was set back.
_BEGIN = """INSERT INTO inboxes VALUES (:agent, 1, :reader, now_us() + :read_us)
    ON CONFLICT (agent) DO UPDATE SET epoch = inboxes.epoch + 1, reader = :reader, until_us = excluded.until_us
    WHERE inboxes.until_us NOT BETWEEN now_us() AND now_us() + :read_us RETURNING epoch"""
_RENEW = "UPDATE inboxes SET until_us = now_us() + :read_us WHERE agent = :agent AND epoch = :epoch"
_END = "UPDATE inboxes SET until_us = 0, reader = '' WHERE agent = :agent AND epoch = :epoch"
_CHECK = "SELECT epoch FROM inboxes WHERE agent = :agent AND epoch = :epoch FOR SHARE"
_OLDEST = """(SELECT number FROM inbox_envelopes WHERE agent = :agent AND state = 'waiting' ORDER BY number LIMIT :most)
    UNION ALL (SELECT number FROM inbox_envelopes WHERE agent = :agent AND state = 'claimed' AND number > :after
    ORDER BY number LIMIT :most) ORDER BY number LIMIT :most"""
_CLAIM = """UPDATE inbox_envelopes SET state = 'claimed'
    WHERE number = ANY(:numbers) AND state IN ('waiting', 'claimed') RETURNING number, key, envelope"""
_END_ENVELOPE = """UPDATE inbox_envelopes SET state = :state, reason = :reason, at_us = now_us()
    WHERE number = :number AND state = 'claimed'"""
_AGAIN = "SET state = 'waiting', reason = '' WHERE agent = :agent AND key = :key AND state = 'quarantined'"
_REQUEUE = ("UPDATE inbox_envelopes " + _AGAIN, "UPDATE envelopes " + _AGAIN)
_UNRECORDED = """SELECT key, envelope FROM inbox_envelopes i WHERE state IN ('waiting', 'claimed') AND key LIKE 'fire:%'
    AND NOT EXISTS (SELECT FROM deliveries d WHERE d.key = i.key) ORDER BY number"""
_PRUNE = """DELETE FROM inbox_envelopes i WHERE agent = :agent AND state = 'delivered'
    AND (at_us < now_us() - :kept_us OR number <= (SELECT number FROM inbox_envelopes
        WHERE agent = :agent AND state = 'delivered' ORDER BY number DESC LIMIT 1 OFFSET :most))
    AND NOT EXISTS (SELECT FROM deliveries d WHERE d.key = i.key AND d.state = 'waiting')"""
