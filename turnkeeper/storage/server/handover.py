"""The queue of envelopes for threads in a shared database. Senders put envelopes, and the thread's owner reads them.

A row is an envelope or a request to look at the thread. A fire is stored as the bytes of its request, any other trigger
as the bytes of its envelope. Rows of a thread are handled in the order of their numbers. The transaction that writes
the row hands over the envelope; nothing else is necessary. A notification only makes the owner read sooner.

    waiting      not begun; the sender may still delete it
    claimed      the thread's owner has it; after a change of owner, the next owner gets it again
    quarantined  it cannot be handled, and stays for a person to look at

The thread's owner deletes a row in the transaction that handles it. The table `keys` holds permanently taken keys.
"""

import json
from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from turnkeeper.storage import statements
from turnkeeper.times import to_us

SCHEMA = "runtime"  # the schema of the runtime's tables in a shared database
NEWS = "turnkeeper_envelopes"  # the channel that tells of waiting envelopes
OUTCOMES = "turnkeeper_outcomes"  # the channel that tells of turn events, or of events inside turns
STARTED = "started"  # the text on that channel that tells of the start of a fire's turn, which no runner waits for
TASKS = "turnkeeper_tasks"  # the channel that tells that an author has changed tasks
FOLLOWED = "turnkeeper_followed"  # the channel that tells that a client follows a conversation
WORDS = "turnkeeper_words"  # the channel that sends the present output of a turn
LOOK_S = 1.0
FIRE, ENVELOPE, LOOK = "fire", "envelope", "look"
# The tables of checkpoints. A checkpoint's data are bytes, because they may contain a NUL, which text cannot.
CHECKPOINTS = (
    """CREATE TABLE IF NOT EXISTS checkpoints (
        thread_id text COLLATE "C" NOT NULL, checkpoint_ns text COLLATE "C" NOT NULL DEFAULT '',
        checkpoint_id text COLLATE "C" NOT NULL, parent_checkpoint_id text COLLATE "C",
        type text, checkpoint bytea, metadata bytea,
        PRIMARY KEY (thread_id, checkpoint_ns, checkpoint_id))""",
    """CREATE TABLE IF NOT EXISTS writes (
        thread_id text COLLATE "C" NOT NULL, checkpoint_ns text COLLATE "C" NOT NULL DEFAULT '',
        checkpoint_id text COLLATE "C" NOT NULL, task_id text COLLATE "C" NOT NULL,
        task_path text COLLATE "C" NOT NULL DEFAULT '', idx integer NOT NULL, channel text COLLATE "C" NOT NULL,
        type text, value bytea,
        PRIMARY KEY (thread_id, checkpoint_ns, checkpoint_id, task_id, idx))""",
)


def tables_of(metadata: sa.MetaData) -> tuple[sa.Table, sa.Table, sa.Table]:
    """Return the tables of envelopes, owned threads and owners. `metadata` is the metadata of the runtime's store."""
    envelopes = sa.Table(
        "envelopes",
        metadata,
        sa.Column("number", statements.NUMBER, primary_key=True, autoincrement=True),
        sa.Column("key", statements.TEXT, nullable=False, unique=True),
        *statements.texts("thread_id", "agent", "kind"),
        sa.Column("envelope", sa.LargeBinary, nullable=False),
        sa.Column("state", statements.TEXT, nullable=False),
        sa.Column("reason", statements.TEXT, nullable=False, server_default=""),  # of a fire that waits: its tag
        *statements.numbers("not_before_us", "at_us"),
        sa.CheckConstraint("kind IN ('fire', 'envelope', 'look')", name="envelopes_kind"),
        sa.CheckConstraint("state IN ('waiting', 'claimed', 'quarantined')", name="envelopes_state"),
        sa.Index("envelopes_by_thread", "thread_id", "number"),
        sa.Index("envelopes_waiting", "number", **statements.partial("state = 'waiting'")),
        sa.Index("envelopes_claimed", "number", **statements.partial("state = 'claimed'")),
        **statements.NEVER_AGAIN,
    )
    threads = sa.Table(
        "threads",
        metadata,
        sa.Column("thread_id", statements.TEXT, primary_key=True),
        sa.Column("epoch", sa.BigInteger, nullable=False),  # increases with each change of the owner
        sa.Column("owner", statements.TEXT, nullable=False),  # empty if the thread has no owner
        # digest of the graph's code when the newest turn of the thread began
        sa.Column("graph_digest", statements.TEXT, nullable=False, server_default=""),
        sa.Index("threads_by_owner", "owner", **statements.partial("owner <> ''")),
    )
    owners = sa.Table(
        "owners",
        metadata,
        sa.Column("owner", statements.TEXT, primary_key=True),  # the id of one run of a runtime
        sa.Column("until_us", sa.BigInteger, nullable=False),  # by the database's clock
    )
    return envelopes, threads, owners


class Handover:
    """The writer of envelopes. Every method runs in the transaction that is open on the connection."""

    def __init__(self, envelopes: sa.Table, owners: sa.Table, cancels: sa.Table) -> None:
        self._put = statements.Statement(statements.upsert(envelopes, [envelopes.c.key]))
        waiting = (envelopes.c.key == sa.bindparam("key")) & (envelopes.c.state == "waiting")
        self._withdraw = statements.Statement(sa.delete(envelopes).where(waiting))
        some = sa.select(envelopes.c.number).where(envelopes.c.state == "waiting").limit(sa.bindparam("most"))
        self._waiting = statements.Statement(sa.select(sa.func.count()).select_from(some.subquery()))
        self._now = statements.Statement(sa.select(statements.now_us()))
        live = owners.c.until_us > statements.now_us()
        self._live = statements.Statement(sa.select(sa.func.count()).select_from(owners).where(live))
        self._cancel = statements.Statement(statements.upsert(cancels, [cancels.c.turn_id]))

    def put_all(self, connection: sa.Connection, rows: Sequence[dict[str, Any]], at: datetime) -> list[bool]:
        """Put rows with key, thread_id, agent, kind, envelope, optional not_before_us, reason. Return whether new."""
        fresh = [
            bool(self._put.run(connection, **{"not_before_us": 0, **row}, state="waiting", at_us=to_us(at)))
            for row in rows
        ]
        notify(connection, {row["thread_id"] for row, new in zip(rows, fresh, strict=True) if new})
        return fresh

    def look(
        self, connection: sa.Connection, thread_id: str, why: str, at: datetime, *, until: datetime | None = None
    ) -> None:
        """Request that the owner of a thread look at the thread at `until` or later.

        At most one request waits per `why`. The database's clock measures the delay, because machines' clocks differ.
        """
        due_us = 0 if until is None else self._now.value(connection) + to_us(until) - to_us(at)
        self.put_all(connection, [_look(thread_id, why, b"") | {"not_before_us": due_us}], at)

    def cancel(self, connection: sa.Connection, turn_id: str, thread_id: str, reason: str, at: datetime) -> None:
        """Store a cancellation, and request that the owner apply it. The first reason is kept."""
        self._cancel.run(connection, turn_id=turn_id, reason=reason, at_us=to_us(at))
        wish = json.dumps({"cancel": turn_id}).encode()
        self.put_all(connection, [_look(thread_id, f"cancel {turn_id}", wish)], at)

    def withdraw(self, connection: sa.Connection, key: str) -> bool:
        """Delete an envelope whose work has not begun. Return False if the work has begun."""
        return bool(self._withdraw.run(connection, key=key))

    def waiting(self, connection: sa.Connection, most: int = 1_000_000) -> int:
        """Return the number of envelopes whose work has not begun, at most `most`."""
        return int(self._waiting.value(connection, most=most))

    def has_runtime(self, connection: sa.Connection) -> bool:
        """Return True if a runtime is running that can take the envelopes."""
        return bool(self._live.value(connection))


def handover_of(schema: str | None = SCHEMA) -> Handover:
    """Return the hand-over to tables in a schema of the connection's database, for a process that does not own it."""
    metadata = sa.MetaData(schema=schema)
    envelopes, _, owners = tables_of(metadata)
    columns = [sa.Column(name, statements.TEXT, primary_key=name == "turn_id") for name in ("turn_id", "reason")]
    return Handover(envelopes, owners, sa.Table("cancels", metadata, *columns, sa.Column("at_us", sa.BigInteger)))


def notify(connection: sa.Connection, threads: Collection[str], channel: str = NEWS) -> None:
    """After the transaction is committed, notify other processes that envelopes wait for these threads."""
    if threads and statements.of_server(connection):
        said = [(channel, thread_id if len(thread_id) < 500 else "") for thread_id in threads]
        # PostgreSQL commits transactions that notify one after the other.
        connection.info.setdefault(statements.AFTER_COMMIT, {}).update(dict.fromkeys(said))


def _look(thread_id: str, why: str, wish: bytes) -> dict[str, Any]:
    key = f"look:{thread_id}:{why}"
    return {"key": key, "thread_id": thread_id, "agent": "", "kind": LOOK, "envelope": wish}
