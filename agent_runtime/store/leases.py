"""The right to write the runtime's store: the store's owner, and in a shared store the owners of threads.

The table `meta` names the store (`incarnation`) and counts its owners (`epoch`). Each owner takes the next epoch, and
each write checks that the epoch is still its own, so a superseded process changes nothing.

If machines share the store, each thread has one owner at a time. The owner works on the thread under a lease, which
each task and thread that it starts inherits. Each write checks in its own transaction that the epoch of the lease is
current. Each function is one transaction.

A process of the runtime is an owner while it renews its own row. It owns a thread from `take` until `release`, or until
its row expires; then any process may take the thread, under the next epoch. Only the database's clock counts.

    take      waits for the row of the thread, so that an envelope put during a release is not lost
    check     holds that row until its transaction ends: no owner takes the thread between the check and the write
    release   locks the row before it looks for waiting envelopes: without the lock it would miss a concurrent put
"""

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TypeVar

import sqlalchemy as sa
from sqlalchemy import Connection, and_, bindparam, delete, exists, insert, literal_column, or_, select, update

from agent_runtime.store.schema import envelopes, meta, owners, threads, turns
from turnkeeper.errors import Conflict
from turnkeeper.storage.server.handover import FIRE
from turnkeeper.storage.statements import Statement, among, listed, now_us, one_of, upsert

T = TypeVar("T")
LEASE_S = 15.0
MOST_OF_THREAD = 64  # envelopes that an owner claims at a time
MOST_LOOKED_AT = 512  # envelopes that a search for threads reads; many of them may belong to one thread


@dataclass(frozen=True)
class Lease:
    """The proof of ownership of a thread: the thread's id, and the epoch of this owner."""

    thread_id: str
    epoch: int


class Fenced(Conflict):
    """Another owner has taken the thread. The process stops its work for the thread, and this write changed nothing."""

    def __init__(self, lease: Lease) -> None:
        self.lease = lease
        super().__init__(f"another owner has taken the thread since epoch {lease.epoch}", where=lease.thread_id)


def current() -> Lease | None:
    """Return the lease of the running code; None if there is none."""
    return _HELD.get()


@contextmanager
def under(lease: Lease | None) -> Iterator[None]:
    """Run the block, and all tasks and threads that it starts, under a lease."""
    before = _HELD.set(lease)
    try:
        yield
    finally:
        _HELD.reset(before)


class Right:
    """A process's right to write its store: the whole store or, if machines share it, a thread under its lease.

    Attributes:
        shared: True if other processes write the store as well.
        digest_of_graph: returns, by name, the digest of this process's code of a graph.
    """

    def __init__(self, epoch: int, *, shared: bool = False) -> None:
        """Take the epoch of the process."""
        self._epoch = epoch
        self.shared = shared
        self.digest_of_graph: Callable[[str], str] = lambda _name: ""

    @property
    def epoch(self) -> int:
        """The epoch of the lease under which this code runs; without a lease, the epoch of the process."""
        lease = current()
        return self._epoch if lease is None else lease.epoch

    def begun(self, connection: Connection, thread_id: str, graph: str) -> None:
        """Write the digest of the graph's code when a turn begins, because other machines may have other code."""
        if self.shared:
            _BEGUN.run(connection, thread=thread_id, graph_digest=self.digest_of_graph(graph))

    def demand(self) -> None:
        """Raise RuntimeError if the store is shared and no lease names the thread's owner."""
        if self.shared and current() is None:
            raise RuntimeError("a turn may be written only under the lease of its thread")

    def proven(self, work: Callable[[Connection], T]) -> Callable[[Connection], T]:
        """Return `work` preceded by a check of the right to write, in one transaction. The check raises Conflict."""
        if not self.shared:

            def owned(connection: Connection) -> T:
                check_lease(connection, self._epoch)
                return work(connection)

            return owned
        lease = current()

        def leased(connection: Connection) -> T:
            if lease is not None:
                check(connection, lease)
            with under(lease):
                return work(connection)

        return leased


@dataclass(frozen=True, kw_only=True)
class Row:
    """An envelope. Fields are named like the columns.

    Attributes:
        begun: True if its turn, or the turn's cancellation, is recorded, so that no machine has to begin it.
    """

    number: int
    key: str
    thread_id: str
    agent: str
    kind: str
    envelope: bytes
    reason: str
    begun: bool = False


def begin(connection: Connection, owner: str, lease_s: float = LEASE_S) -> None:
    """Become an owner. Delete owners that expired long ago and have no thread with waiting envelopes."""
    connection.execute(delete(owners).where(owners.c.until_us < now_us() - int(lease_s * 1e6) * 100))
    connection.execute(insert(owners).values(owner=owner, until_us=now_us() + int(lease_s * 1e6)))


def renew(connection: Connection, owner: str, key: str = "") -> tuple[dict[str, int] | None, str]:
    """Renew the lease of everything owned. Return the epoch of each owned thread, or None if the lease has expired.

    Also return the store's fact `key`, and shorten each lease that lasts longer than a new lease would. Otherwise a
    dead owner would keep its threads after the server's clock was set back. All this is one statement.
    """
    rows = _RENEW.rows(connection, me=owner, lease_us=int(LEASE_S * 1e6), key=key)
    return {thread: epoch for thread, epoch, _ in rows if thread} if rows else None, rows[0][2] or "" if rows else ""


def leave(connection: Connection, owner: str) -> None:
    """Release everything that the process owns."""
    _LEAVE.run(connection, me=owner)


def wanted(connection: Connection, owner: str, most: int, besides: Collection[str] = ()) -> list[str]:
    """Return at most `most` threads with waiting envelopes: first those that the owner owns, then those of no owner.

    Ignore fires that wait for the agents and tags in `besides`, because other machines have them.
    """
    found = _WANTED.values(connection, me=owner, besides=listed(sorted(besides)))
    return list(dict.fromkeys(found))[:most]


def take(connection: Connection, thread_id: str, owner: str) -> Lease | None:
    """Become the owner of a thread. None if another running process owns the thread."""
    epoch = _TAKE.value(connection, thread_id=thread_id, owner=owner)
    return None if epoch is None else Lease(thread_id, epoch)


def check(connection: Connection, lease: Lease) -> None:
    """Lock the thread until the transaction ends. Raises Fenced if another process released or took the thread."""
    if _CHECK.value(connection, thread=lease.thread_id, since=lease.epoch) is None:
        raise Fenced(lease)


def release(connection: Connection, lease: Lease) -> bool:
    """Release a thread. Return False if an envelope waits, because the owner must handle the envelope first."""
    if _LOCK.value(connection, thread=lease.thread_id, since=lease.epoch) is None:
        return True  # another process owns the thread
    return bool(_RELEASE.run(connection, thread=lease.thread_id))


def free(connection: Connection, lease: Lease) -> None:
    """Release a thread, even if envelopes wait for it."""
    _FREE.run(connection, thread=lease.thread_id, since=lease.epoch, owner="")


def load(connection: Connection, lease: Lease, *, adopt: bool, besides: Collection[str] = ()) -> list[Row]:
    """Claim the oldest envelopes of an owned thread. With `adopt`, include envelopes that an earlier owner had claimed.

    Do not claim fires that wait for the agents and tags in `besides`.
    """
    check(connection, lease)
    states = listed(["waiting", "claimed"] if adopt else ["waiting"])
    of_thread = {"thread_id": lease.thread_id, "states": states, "besides": listed(sorted(besides))}
    numbers = _OLDEST.values(connection, **of_thread)
    _CLAIM.run(connection, numbers=listed(numbers))
    rows = [Row(**values) for values in _ROWS.dicts(connection, numbers=listed(numbers))]
    return [Row(**{**vars(row), "envelope": bytes(row.envelope)}) for row in rows]


def put_back(connection: Connection, rows: Collection[Row]) -> None:
    """Put envelopes that this transaction claimed back into the queue, because another machine must begin them."""
    _PUT_BACK.run(connection, numbers=listed([row.number for row in rows]))


def archive(connection: Connection, lease: Lease, number: int) -> bool:
    """Delete a handled envelope. Return False if the envelope was already deleted. Raises Fenced."""
    check(connection, lease)
    return bool(_ARCHIVE.run(connection, number=number))


def quarantine(connection: Connection, lease: Lease, number: int, reason: str) -> None:
    """Quarantine an envelope that cannot be handled. Raises Fenced."""
    check(connection, lease)
    _SET_ASIDE.run(connection, of=number, state="quarantined", reason=reason)


def known(connection: Connection, keys: Collection[str]) -> list[Row]:
    """Return the unhandled envelopes with these keys."""
    return [Row(**values) for values in _KNOWN.dicts(connection, keys=listed(sorted(keys)))]


_LIVE = owners.c.until_us > now_us()
_END = now_us() + bindparam("lease_us", type_=owners.c.until_us.type)
_RENEWED = (
    update(owners)
    .where(or_(and_(owners.c.owner == bindparam("me"), _LIVE), owners.c.until_us > _END))
    .values(until_us=_END)
    .returning(owners.c.owner)
    .cte("renewed")
)
_FACT = select(meta.c.value).where(meta.c.key == bindparam("key")).scalar_subquery()
_RENEW = Statement(
    select(threads.c.thread_id, threads.c.epoch, _FACT.label("fact"))
    .select_from(_RENEWED.outerjoin(threads, threads.c.owner == _RENEWED.c.owner))
    .where(_RENEWED.c.owner == bindparam("me"))
)
_LEAVE = Statement(delete(owners).where(owners.c.owner == bindparam("me")))
# A literal name, because in an upsert a column of `threads` would mean all threads.
_OWNER_LIVES = exists().where(owners.c.owner == literal_column("threads.owner"), _LIVE)
_OWNED = exists().where(threads.c.thread_id == envelopes.c.thread_id, owners.c.owner == threads.c.owner, _LIVE)
_DUE = and_(envelopes.c.state == "waiting", envelopes.c.not_before_us <= now_us())
_SEARCH = select(envelopes.c.thread_id).order_by(envelopes.c.number).limit(MOST_LOOKED_AT)
_ELSEWHERE = or_(among(envelopes.c.agent, "besides"), among(envelopes.c.reason, "besides"))
_FOR_OTHERS = and_(envelopes.c.kind == FIRE, envelopes.c.state == "waiting", _ELSEWHERE)
_HAS_NEWS = exists().where(envelopes.c.thread_id == threads.c.thread_id, _DUE, ~_FOR_OTHERS)
_OWN = select(threads.c.thread_id).where(threads.c.owner == bindparam("me"), threads.c.owner != "", _HAS_NEWS)
_LEFT = _SEARCH.where(envelopes.c.state == "claimed", ~_OWNED)
_SEARCHES = [_OWN, _SEARCH.where(_DUE, ~_OWNED, ~_FOR_OTHERS), _LEFT]
_WANTED = Statement(sa.union_all(*(select(each.subquery().c.thread_id) for each in _SEARCHES)))
# After the restore of an older copy, the first epoch is greater than all epochs that owners ever had.
_FIRST_EPOCH = select(sa.cast(meta.c.value, sa.BigInteger)).where(meta.c.key == "first_epoch").scalar_subquery()
_TAKE = Statement(
    upsert(
        threads,
        [threads.c.thread_id],
        {"epoch": threads.c.epoch + 1, "owner": literal_column("excluded.owner")},
        where=~_OWNER_LIVES,
    )
    .values(epoch=sa.func.coalesce(_FIRST_EPOCH, 1))
    .returning(threads.c.epoch)
)
OPEN_TURNS = Statement(
    select(turns.c.thread_id, turns.c.grant_json, threads.c.graph_digest)
    .join(threads, threads.c.thread_id == turns.c.thread_id)
    .where(among(turns.c.thread_id, "ids"), one_of(turns.c.status, ["running", "interrupted", "paused"]))
)
_BEGUN = Statement(update(threads).where(threads.c.thread_id == bindparam("thread")))
_OF = and_(threads.c.thread_id == bindparam("thread"), threads.c.epoch == bindparam("since"))
# If the answer to a release is lost, the process still considers itself the owner of the thread.
_CHECK = Statement(select(threads.c.epoch).where(_OF, threads.c.owner != "").with_for_update(read=True))
_LOCK = Statement(select(threads.c.epoch).where(_OF).with_for_update())
_WAITS = exists().where(envelopes.c.thread_id == threads.c.thread_id, or_(_DUE, envelopes.c.state == "claimed"))
_RELEASE = Statement(update(threads).where(threads.c.thread_id == bindparam("thread"), ~_WAITS).values(owner=""))
_FREE = Statement(update(threads).where(_OF))
_OLDEST = Statement(
    select(envelopes.c.number)
    .where(
        envelopes.c.thread_id == bindparam("thread_id"),
        among(envelopes.c.state, "states"),
        envelopes.c.not_before_us <= now_us(),
        ~_FOR_OTHERS,
    )
    .order_by(envelopes.c.number)
    .limit(MOST_OF_THREAD)
)
_NUMBERED = among(envelopes.c.number, "numbers")
_CLAIM = Statement(update(envelopes).where(_NUMBERED).values(state="claimed"))
_PUT_BACK = Statement(update(envelopes).where(_NUMBERED).values(state="waiting"))
_COLUMNS = [envelopes.c[name] for name in Row.__dataclass_fields__ if name != "begun"]
_ROWS = Statement(select(*_COLUMNS).where(_NUMBERED, envelopes.c.state == "claimed").order_by(envelopes.c.number))
_ARCHIVE = Statement(delete(envelopes).where(envelopes.c.number == bindparam("number")))
_SET_ASIDE = Statement(update(envelopes).where(envelopes.c.number == bindparam("of")))
_NOT_DEALT_WITH = or_(envelopes.c.state == "waiting", envelopes.c.state == "claimed")
# The keys of the oldest unhandled envelopes.
UNHANDLED = Statement(select(envelopes.c.key).where(_NOT_DEALT_WITH).order_by(envelopes.c.number).limit(10_000))
_KNOWN = Statement(select(*_COLUMNS).where(among(envelopes.c.key, "keys"), envelopes.c.state != "quarantined"))


def get_meta(connection: Connection, key: str) -> str:
    """Return a fact about the store; empty if the fact is not set."""
    return _META.value(connection, key=key) or ""


def set_meta(connection: Connection, key: str, value: str) -> None:
    """Write a fact about the store."""
    connection.execute(upsert(meta, [meta.c.key], ["value"]).values(key=key, value=value))


def take_lease(connection: Connection, drawn: str) -> tuple[str, int]:
    """Take ownership of the store. Return its incarnation, which is `drawn` for a new store, and the new epoch."""
    connection.execute(_COUNT)  # if several processes begin at once, the others wait here for the first one
    connection.execute(upsert(meta, [meta.c.key]).values(key="incarnation", value=drawn))
    return get_meta(connection, "incarnation"), int(get_meta(connection, "epoch"))


def check_lease(connection: Connection, epoch: int) -> None:
    """Raise Conflict if another process has taken over the store since `epoch`."""
    if get_meta(connection, "epoch") != str(epoch):
        raise Conflict("another process has taken over this store", where="epoch")


_NEXT = sa.cast(sa.cast(meta.c.value, sa.BigInteger) + 1, sa.Text)
_COUNT = upsert(meta, [meta.c.key], {"value": _NEXT}).values(key="epoch", value="1")
_META = Statement(select(meta.c.value).where(meta.c.key == bindparam("key")))
_HELD: ContextVar[Lease | None] = ContextVar("lease", default=None)
