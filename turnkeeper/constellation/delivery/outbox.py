"""The outbox.

Every delivery is a row that is written before the first attempt, and leaves the queue when its target accepts it. A
delivery is sent at least once. Every attempt has the same key, so a receiver can recognise a repetition.

    settling    a fire's turn ended, or a turn asks; deliveries replace the row after the ledger shows the outcome
    waiting     the delivery is sent at `next_us`, and again after each failure
    gathered    the delivery waits for the daily digest of its target
    delivered, given up, dropped    the delivery is over; its text is removed
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from sqlalchemy import BigInteger, Column, Connection, Identity, MetaData, Table, Update, delete, func, select, update

from turnkeeper.config.home import Home
from turnkeeper.config.settings import load_settings
from turnkeeper.errors import Conflict
from turnkeeper.storage.database import Database
from turnkeeper.storage.schema_revision import STORES
from turnkeeper.storage.server.url import in_schema
from turnkeeper.storage.statements import NUMBER, TEXT, one_of, storable, upsert
from turnkeeper.times import from_us, rfc3339, to_us

MIGRATIONS, SCHEMA = "turnkeeper.constellation.delivery:migrations", "delivery"
SETTLING, WAITING, GATHERED, DELIVERED, GIVEN_UP, DROPPED = (
    "settling", "waiting", "gathered", "delivered", "given up", "dropped"
)  # fmt: skip
OPEN = (SETTLING, WAITING, GATHERED)
QUIET, DIGEST, BY_COMMAND = "quiet hours", "daily digest", "sent by command"  # reasons of rows that no attempt failed
REMOVED = "its target was removed"
KEPT = timedelta(days=90)
LEASE = timedelta(seconds=60)  # how long one process may work on a row; longer than any single attempt
UNLEASED = timedelta()  # the lease of rows in a file, which only one process takes
FIRST_PAUSE_S, LONGEST_PAUSE_S = 5.0, 3600.0
TRIED_FOR = timedelta(days=3)
_PEER, _LEDGER = "agent-runtime", "task-runner"
metadata = MetaData()
_TEXTS = ("kind", "state", "target", "address", "task_id", "task", "channel", "fire_id", "turn_id", "body", "reason")
deliveries = Table(
    "deliveries",
    metadata,
    Column("number", NUMBER, Identity(), primary_key=True),
    Column("key", TEXT, nullable=False, unique=True),  # the key that a receiver recognises a repeated delivery by
    *(Column(name, TEXT, nullable=False) for name in _TEXTS),
    Column("tries", BigInteger, nullable=False),
    Column("next_us", BigInteger),  # the time when a process takes an open row next
    Column("made_us", BigInteger, nullable=False),
    Column("ended_us", BigInteger),
)
followed = Table(
    "followed",
    metadata,
    Column("peer", TEXT, primary_key=True),
    Column("incarnation", TEXT, nullable=False),
    Column("sequence", BigInteger, nullable=False),
    Column("at_us", BigInteger, nullable=False),
)
_ROW = deliveries.c
_STOPS = Table("stoppages", MetaData(), *map(Column, ("task_id", "why", "from_us", "to_us")))


class Place(NamedTuple):
    """A position in the runtime's turn events: the incarnation of its store, and the last event's number and time."""

    incarnation: str
    sequence: int
    at_us: int


class Delivery(NamedTuple):
    """A row of the outbox. The module's docstring explains `state`; `address` is a URL if there is no target."""

    key: str
    kind: str
    state: str
    next_us: int | None
    made_us: int
    target: str = ""
    address: str = ""
    task_id: str = ""
    task: str = ""
    channel: str = ""
    fire_id: str = ""
    turn_id: str = ""
    body: str = ""
    reason: str = ""
    tries: int = 0
    ended_us: int | None = None


def open_outbox(home: Home, *, read_only: bool = False, upgrade: bool = True) -> Database | None:
    """Open the outbox: a file, or a schema of the shared database.

    None if the file does not exist, unless the caller may write and upgrade it.
    """
    url, path = load_settings(home).store.shared_url, home.root / "state" / "delivery.db"
    if (read_only or not upgrade) and not url and not path.exists():
        return None
    where = in_schema(url, SCHEMA) if url else path
    return Database(where, migrations=MIGRATIONS, read_only=read_only, upgrade=upgrade)


def changed(home: Home, change: Callable[[Connection], int]) -> int:
    """Change the outbox from a command. Return the number of rows, or 0 if no process has made the outbox yet."""
    with suppress(Conflict):
        if store := open_outbox(home, upgrade=False):
            with closing(store):
                return store.submit(change).result()
    return 0


def begin(connection: Connection, now: datetime) -> None:
    """Record the first start, so that only later events are delivered. Later starts change nothing."""
    first = Place("", 0, to_us(now))._asdict()
    for peer in (_PEER, _LEDGER):
        connection.execute(upsert(followed, [followed.c.peer]).values(peer=peer, **first))


def place(connection: Connection, peer: str = _PEER) -> Place:
    """Return the position up to which the events were read."""
    return Place(*connection.execute(select(*list(followed.c)[1:]).where(followed.c.peer == peer)).one())


def began(connection: Connection) -> datetime:
    """Return the time from which entries of the ledger are delivered."""
    return from_us(place(connection, _LEDGER).at_us)


def move(connection: Connection, to: Place) -> None:
    """Record the position up to which the events were read."""
    named = to._asdict()
    connection.execute(upsert(followed, [followed.c.peer], list(named)).values(peer=_PEER, **named))


def put(connection: Connection, rows: Iterable[Delivery]) -> None:
    """Add rows to the outbox. Ignore a row with a key that already exists."""
    for row in rows:
        values = {name: storable(value) if isinstance(value, str) else value for name, value in row._asdict().items()}
        connection.execute(upsert(deliveries, [_ROW.key]).values(**values))


def take_due(connection: Connection, now: datetime, most: int, lease: timedelta) -> list[Delivery]:
    """Return rows that are due, oldest first, and lease them: no process takes them again before the lease is over."""
    now_us = to_us(now)
    query = select(*_ALL).where(_ROW.next_us <= now_us).order_by(_ROW.next_us, _ROW.number).limit(most)
    found = [Delivery(*row) for row in connection.execute(query)]
    taken = (not lease or _change(connection, row, next_us=to_us(now + lease) - 1 | 1) for row in found)
    return [row for row, is_ours in zip(found, list(taken), strict=True) if is_ours]


def next_due(connection: Connection) -> datetime | None:
    """Return when the next row is due. Return None if no row is open."""
    found = connection.execute(select(func.min(_ROW.next_us))).scalar()
    return None if found is None else from_us(found)


def settle(connection: Connection, row: Delivery, results: Sequence[Delivery], now: datetime, why: str) -> None:
    """Replace a row in the state `settling` by the deliveries to its targets, in one step."""
    put(connection, results)
    end(connection, row, DROPPED, now, why)


def postpone(connection: Connection, row: Delivery, at: datetime, **changes: Any) -> None:
    """Set the next time of a row. Change nothing if a command has closed the row."""
    is_open = (_ROW.key == row.key) & one_of(_ROW.state, OPEN)
    connection.execute(update(deliveries).where(is_open).values(next_us=to_us(at), **changes))


def release(connection: Connection, target: str, now: datetime) -> int:
    """Make the rows due that wait for a target's digest or the end of its quiet hours. Return their number."""
    held = (_ROW.target == target) & ((_ROW.state == GATHERED) | (_ROW.reason == QUIET)) & one_of(_ROW.state, OPEN)
    # A lease ends at an odd microsecond: its process sends the row already.
    freed = update(deliveries).where(held & (_ROW.next_us % 2 == 0))
    return connection.execute(freed.values(next_us=to_us(now) // 2 * 2, reason=BY_COMMAND)).rowcount


def drop(connection: Connection, target: str, now: datetime) -> int:
    """Close the open rows of a target that was removed. Return their number."""
    of_target = (_ROW.target == target) & one_of(_ROW.state, OPEN)
    return connection.execute(_closing(of_target, DROPPED, now, REMOVED)).rowcount


def retry(connection: Connection, row: Delivery, now: datetime, reason: str) -> bool:
    """Record a failed attempt. Return False if the attempt was the last one."""
    if now - from_us(row.made_us) >= TRIED_FOR:
        end(connection, row, GIVEN_UP, now, reason, tries=row.tries + 1)
        return False
    pause_s = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 3.0 ** min(row.tries, 16))
    postpone(connection, row, now + timedelta(seconds=pause_s), tries=row.tries + 1, reason=reason)
    return True


def end(connection: Connection, row: Delivery, state: str, now: datetime, reason: str = "", **changes: Any) -> None:
    """Close a row. Remove the text of the row, because the conversation keeps it."""
    connection.execute(_closing(_ROW.key == row.key, state, now, reason).values(**changes))


def _closing(which: Any, state: str, now: datetime, reason: str) -> Update:
    return (
        update(deliveries).where(which).values(state=state, next_us=None, ended_us=to_us(now), reason=reason, body="")
    )


def gather(connection: Connection, target: str, now: datetime, lease: timedelta) -> list[Delivery]:
    """Return the rows of a target that are due for its digest, oldest first, also if they are leased.

    A digest is due at a whole minute, and a lease ends at an odd microsecond.
    """
    leased = (_ROW.next_us <= to_us(now + lease)) & (_ROW.next_us % 2 != 0)
    waits = (_ROW.state == GATHERED) & (_ROW.target == target) & (_ROW.body != "")
    due = waits & (leased | (_ROW.next_us <= to_us(now)))
    return [Delivery(*row) for row in connection.execute(select(*_ALL).where(due).order_by(_ROW.number))]


def prune(connection: Connection, now: datetime) -> int:
    """Delete rows that ended more than `KEPT` ago. Return their number."""
    return connection.execute(delete(deliveries).where(_ROW.ended_us < to_us(now - KEPT))).rowcount


def rows_of(connection: Connection, *, limit: int, after: int = 0, only_open: bool = False) -> list[Mapping[str, Any]]:
    """Return deliveries to targets, newest first, with their numbers."""
    query = select(_ROW.number, *_ALL).where(_ROW.target != "").order_by(_ROW.number.desc()).limit(limit)
    query = query.where(_ROW.number < after) if after else query
    query = query.where(one_of(_ROW.state, OPEN)) if only_open else query
    return [dict(row) for row in connection.execute(query).mappings()]


def of_fires(home: Home, names: Collection[str]) -> list[Delivery]:
    """Return the deliveries of entries of the ledger, oldest first. Empty if the home delivers nothing.

    Args:
        names: the name of each entry: its fire id, or the key of its settling row if it has none.

    Raises:
        TurnkeeperError: the outbox cannot be read.
    """
    store = open_outbox(home, read_only=True)
    if store is None:
        return []
    tasks = [name.partition(":")[0] for name in names]
    of_entries = one_of(_ROW.task_id, tasks) & (_ROW.fire_id == "")
    query = select(*_ALL).where((one_of(_ROW.fire_id, list(names)) | of_entries) & (_ROW.target != ""))
    with closing(store):
        found = store.submit(lambda it: [Delivery(*row) for row in it.execute(query.order_by(_ROW.number))]).result()
    return [row for row in found if entry_of(row, names)]


def failing(home: Home) -> Counter[Any]:
    """Return the number of open deliveries that failed at least once, by target and reason. Raises TurnkeeperError."""
    query = select(_ROW.target, _ROW.reason).where((_ROW.target != "") & (_ROW.tries > 0) & one_of(_ROW.state, OPEN))
    if (store := open_outbox(home, read_only=True)) is None:
        return Counter()
    with closing(store):
        return Counter(store.submit(lambda it: [*it.execute(query)]).result())


def stops(home: Home) -> Sequence[Any]:
    """Return the runner's records of stops: the task, the reason, the begin and the end. Raises TurnkeeperError."""
    url = load_settings(home).store.shared_url
    place = in_schema(url, "runner") if url else home.schedules_db
    with closing(Database(place, migrations=STORES["runner"], read_only=True)) as store:
        return store.submit(lambda it: it.execute(select(_STOPS)).all()).result()


def entry_of(row: Delivery, names: Collection[str]) -> str:
    """Return the name of the ledger entry that a delivery is about; empty if it is about none of `names`."""
    return row.fire_id or next((name for name in names if delivery_key(name, row.target) == row.key), "")


def delivery_key(about: str, target: str) -> str:
    """Return the key of a delivery, which depends only on its result and its target."""
    return f"msg_{hashlib.sha256(f'{about} {target}'.encode()).hexdigest()[:32]}"


def sentence(row: Delivery) -> str:
    """Return a sentence about the state of a delivery."""
    what = f"Its delivery {row.key} ({row.kind}) to {row.target}"
    tries = f" after {row.tries} failed {'try' if row.tries == 1 else 'tries'}" if row.tries else ""
    why = f": {row.reason}" if row.reason and row.state != GATHERED else ""
    if row.next_us is None:
        return f"{what} was {row.state} at {rfc3339(from_us(row.ended_us or 0))}{tries}{why}."
    waits = "waits for the digest" if row.state == GATHERED else "waits"
    return f"{what} {waits} until {rfc3339(from_us(row.next_us))}{tries}{why}."


def _change(connection: Connection, row: Delivery, *, next_us: int) -> bool:
    same = (_ROW.key == row.key) & (_ROW.next_us == row.next_us)
    return bool(connection.execute(update(deliveries).where(same).values(next_us=next_us)).rowcount)


_ALL = [_ROW[name] for name in Delivery._fields]
