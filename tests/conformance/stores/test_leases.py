"""Who owns a thread, on each database: one at a time, under a rising epoch; and what waits always finds an owner."""

import itertools
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest
from sqlalchemy import Connection, select, text, update

from agent_runtime.mailbox.shared import Ownership
from agent_runtime.store import leases, schema
from agent_runtime.store.database import MIGRATIONS
from agent_runtime.store.leases import Fenced, Lease, Right, current, set_meta, under
from tests.integration.cluster.test_interleavings import Party, party
from tests.support.clock import ManualClock
from tests.support.cluster import Do, doing, end_lease, taken
from tests.support.postgres import Places
from turnkeeper.storage.statements import now_us

AT = ManualClock().now()
T1 = Lease("t", 1)


def put(connection: Connection, *keys: str, thread_id: str = "t", **more: Any) -> None:
    rows = [{"key": key, "thread_id": thread_id, "agent": "agent0", "kind": "envelope"} for key in keys]
    schema.handover.put_all(connection, [{**row, "envelope": b"x", **more} for row in rows], AT)


def keys_of(rows: list[leases.Row]) -> list[str]:
    return [row.key for row in rows]


@pytest.fixture
def do(tmp_path: Path, place_of: Places) -> Iterator[Do]:
    with doing(place_of(tmp_path / "agent.db")) as made:
        yield _with_owners(made)


@pytest.fixture
def on_server(shared_url: str) -> Iterator[Do]:
    """Run in a database that machines share: only such owners renew, in one statement that a file does not take."""
    with doing(shared_url) as made:
        yield _with_owners(made)


def _with_owners(do: Do) -> Do:
    for owner in ("one", "two"):
        do(lambda c, owner=owner: leases.begin(c, owner))
    return do


def test_a_thread_has_one_owner_until_it_is_released_or_its_owner_stops(do: Do) -> None:
    assert do(lambda c: leases.take(c, "t", "one")) == T1
    assert do(lambda c: leases.take(c, "t", "two")) is None
    assert do(lambda c: leases.take(c, "t", "one")) is None
    assert do(lambda c: leases.take(c, "another", "one")) == Lease("another", 1)
    assert do(lambda c: leases.release(c, T1))
    assert do(lambda c: leases.take(c, "t", "two")) == Lease("t", 2)
    do(lambda c: end_lease(c, "two"))
    assert do(lambda c: leases.take(c, "t", "one")) == Lease("t", 3), "each owner has an epoch of its own"


def test_after_a_database_was_put_back_no_epoch_is_given_out_twice(do: Do) -> None:
    do(lambda c: set_meta(c, "first_epoch", "1000000"))
    assert do(lambda c: leases.take(c, "never seen before", "one")) == Lease("never seen before", 1_000_000)


def test_what_an_owner_of_before_writes_is_refused(do: Do) -> None:
    do(lambda c: leases.take(c, "t", "one"))
    do(lambda c: put(c, "a"))
    (row,) = do(lambda c: leases.load(c, T1, adopt=True))
    do(lambda c: end_lease(c, "one"))
    do(lambda c: leases.check(c, T1))  # nobody has taken the thread: it may go on
    do(lambda c: leases.take(c, "t", "two"))
    for work in (
        lambda c: leases.check(c, T1),
        lambda c: leases.load(c, T1, adopt=False),
        lambda c: leases.archive(c, T1, row.number),
        lambda c: leases.quarantine(c, T1, row.number, "why"),
    ):
        with pytest.raises(Fenced, match="since epoch 1"):
            do(work)
    assert do(lambda c: leases.release(c, T1)), "nothing is left for it to do"
    assert do(lambda c: leases.take(c, "t", "one")) is None, "the new owner stays"


def test_a_lease_is_renewed_with_all_that_is_owned_and_not_after_its_end(on_server: Do) -> None:
    for thread_id in ("t", "u"):
        on_server(lambda c, thread_id=thread_id: leases.take(c, thread_id, "one"))
    assert on_server(lambda c: leases.renew(c, "one"))[0] == {"t": 1, "u": 1}
    on_server(lambda c: end_lease(c, "one"))
    on_server(lambda c: leases.take(c, "u", "two"))
    assert on_server(lambda c: leases.renew(c, "one"))[0] is None
    assert on_server(lambda c: leases.renew(c, "two"))[0] == {"u": 2}
    on_server(lambda c: leases.leave(c, "two"))
    assert on_server(lambda c: leases.renew(c, "two"))[0] is None


@pytest.mark.parametrize("let_go", [leases.release, leases.free], ids=lambda let_go: let_go.__name__)
def test_who_let_a_thread_go_and_got_no_answer_writes_nothing_there(do: Do, let_go: Callable[..., object]) -> None:
    """He takes it for his own still, and somebody else may take it at any moment."""
    lease = do(lambda c: leases.take(c, "t", "one"))
    do(lambda c: let_go(c, lease))
    do(lambda c: put(c, "a"))
    with pytest.raises(Fenced):
        do(lambda c: leases.load(c, lease, adopt=False))
    assert do(lambda c: leases.take(c, "t", "two")).epoch > lease.epoch


def test_after_the_servers_clock_was_set_back_no_lease_lasts_longer_than_one(on_server: Do) -> None:
    """As after a failover to a server whose clock is behind: whoever died with the first owns no thread for longer."""
    on_server(lambda c: leases.take(c, "t", "one"))
    before = on_server(lambda c: c.execute(select(now_us())).scalar())
    on_server(lambda c: c.execute(update(schema.owners).values(until_us=before + 3_600_000_000)))
    assert on_server(lambda c: leases.renew(c, "two"))[0] == {}, "an owner that runs keeps its lease"
    until_us = on_server(lambda c: c.execute(select(schema.owners.c.until_us)).scalars().all())
    assert [until - before < 3 * leases.LEASE_S * 1e6 for until in until_us] == [True, True]
    assert on_server(lambda c: leases.take(c, "t", "two")) is None, "there is time to renew for each that lives"
    on_server(lambda c: end_lease(c, "two"))
    assert on_server(lambda c: leases.renew(c, "two"))[0] is None


def test_the_envelopes_of_a_thread_come_in_order_and_those_of_a_dead_owner_again(do: Do) -> None:
    do(lambda c: put(c, "b", "a"))
    do(lambda c: leases.take(c, "t", "one"))
    assert keys_of(do(lambda c: leases.load(c, T1, adopt=True))) == ["b", "a"]
    do(lambda c: put(c, "c"))
    assert keys_of(do(lambda c: leases.load(c, T1, adopt=False))) == ["c"]
    assert do(lambda c: leases.wanted(c, "two", 9)) == []
    do(lambda c: end_lease(c, "one"))
    assert do(lambda c: leases.wanted(c, "two", 9)) == ["t"]
    assert keys_of(do(lambda c: leases.load(c, leases.take(c, "t", "two"), adopt=True))) == ["b", "a", "c"]


def test_a_thread_is_not_released_while_something_waits_for_it(do: Do) -> None:
    do(lambda c: leases.take(c, "t", "one"))
    do(lambda c: put(c, "a"))
    assert not do(lambda c: leases.release(c, T1))
    (row,) = do(lambda c: leases.load(c, T1, adopt=False))
    assert not do(lambda c: leases.release(c, T1)), "what it has claimed is not done"
    do(lambda c: leases.archive(c, T1, row.number))
    do(lambda c: put(c, "later", not_before_us=2**60))
    assert do(lambda c: leases.release(c, T1))
    assert do(lambda c: leases.wanted(c, "two", 9)) == [], "what waits for its time waits for nobody"


def test_threads_that_wait_are_found_by_whoever_may_take_them(do: Do) -> None:
    do(lambda c: put(c, "a", thread_id="t"))
    do(lambda c: put(c, "b", "c", thread_id="u"))
    assert do(lambda c: leases.wanted(c, "one", 9)) == ["t", "u"]
    assert do(lambda c: leases.wanted(c, "one", 1)) == ["t"]
    do(lambda c: leases.take(c, "t", "two"))
    assert do(lambda c: leases.wanted(c, "one", 9)) == ["u"]
    assert do(lambda c: leases.wanted(c, "two", 9)) == ["t", "u"], "its own that have news, too"


def test_what_was_set_aside_waits_no_more_and_stays(do: Do) -> None:
    do(lambda c: put(c, "a"))
    do(lambda c: leases.take(c, "t", "one"))
    (row,) = do(lambda c: leases.load(c, T1, adopt=True))
    assert keys_of(do(lambda c: leases.known(c, ["a", "b"]))) == ["a"]
    do(lambda c: leases.quarantine(c, T1, row.number, "it is unreadable"))
    assert do(lambda c: leases.release(c, T1))
    assert do(lambda c: leases.known(c, ["a"])) == []
    assert do(lambda c: c.execute(select(schema.envelopes.c.state, schema.envelopes.c.reason)).one()) == (
        "quarantined",
        "it is unreadable",
    )


def test_a_write_proves_the_lease_of_its_caller_in_its_own_transaction(do: Do) -> None:
    right = Right(7, shared=True)
    do(lambda c: leases.take(c, "t", "one"))
    with pytest.raises(RuntimeError, match="under the lease"):
        right.demand()
    with under(T1):
        right.demand()
        proven = right.proven(lambda _connection: current())
    assert do(proven) == T1
    do(lambda c: end_lease(c, "one"))
    do(lambda c: leases.take(c, "t", "two"))
    with pytest.raises(Fenced):
        do(proven)
    assert do(right.proven(lambda _connection: "an author's act")) == "an author's act"


# Interleavings. Each step is a statement of one of two processes.


@pytest.fixture
def place(shared_url: str) -> str:
    url, _ = taken(shared_url, owner="one")
    with doing(url) as do:
        do(lambda c: leases.begin(c, "two"))
    return url


def test_who_takes_a_thread_waits_for_its_release(place: str) -> None:
    """The release looked, and found nothing; what is put now is found by who takes the thread, as it waits."""
    answered: list[Lease | None] = []
    with doing(place) as releasing, doing(place) as taking, doing(place) as putting:
        looked, waited = threading.Event(), threading.Event()

        def release(connection: Connection) -> None:
            assert leases.release(connection, T1)
            looked.set()
            assert waited.wait(20)

        thread = threading.Thread(target=lambda: releasing(release))
        thread.start()
        assert looked.wait(20)
        putting(lambda c: put(c, "a"))
        other = threading.Thread(target=lambda: answered.append(taking(lambda c: leases.take(c, "t", "two"))))
        other.start()
        until(lambda: putting(waits_for_a_lock))
        waited.set()
        thread.join(20)
        other.join(20)
    assert answered == [Lease("t", 2)], "a wake-up that races with a release is not lost"


def test_nobody_takes_a_thread_between_the_proof_of_a_write_and_its_commit(place: str) -> None:
    answered: list[Lease | None] = []
    with doing(place) as writing, doing(place) as taking, doing(place) as watching:

        def write(connection: Connection) -> list[Lease | None]:
            leases.check(connection, T1)
            other.start()
            until(lambda: watching(waits_for_a_lock))
            return list(answered)

        watching(lambda c: end_lease(c, "one"))
        other = threading.Thread(target=lambda: answered.append(taking(lambda c: leases.take(c, "t", "two"))))
        assert writing(write) == []
        other.join(20)
    assert answered == [Lease("t", 2)]


def test_a_release_looks_only_once_it_holds_the_thread(place: str) -> None:
    """Another was about to take it, and let go; what was put before that must be seen, or nobody would look at it."""
    released: list[bool] = []
    with doing(place) as releasing, doing(place) as taking:

        def take(connection: Connection) -> None:
            assert leases.take(connection, "t", "two") is None  # its owner lives; the row is held until the end of this
            other.start()
            with doing(place) as third:
                until(lambda: third(waits_for_a_lock))
                third(lambda c: put(c, "a"))

        other = threading.Thread(target=lambda: released.append(releasing(lambda c: leases.release(c, T1))))
        taking(take)
        other.join(20)
    assert released == [False]


class Owner(threading.Thread):
    """Takes the thread at each wake-up, deals with what waits, and lets it go: by wake-ups alone, without a sweep."""

    def __init__(self, place: str, name: str, left: threading.Semaphore) -> None:
        super().__init__(name=name)
        self.news, self.over = threading.Semaphore(0), False
        self._place, self._left = place, left

    def run(self) -> None:
        with doing(self._place) as do:
            while self.news.acquire(timeout=20) and not self.over:
                lease = do(lambda c: leases.take(c, "t", self.name))
                while lease is not None and not self.deal(do, lease):
                    pass

    def deal(self, do: Do, lease: Lease) -> bool:
        for row in do(lambda c: leases.load(c, lease, adopt=True)):
            do(lambda c, row=row: leases.archive(c, lease, row.number))
            self._left.release()
        return bool(do(lambda c: leases.release(c, lease)))

    def end(self) -> None:
        self.over = True
        self.news.release()
        self.join(20)


def test_at_random_no_envelope_is_left_without_an_owner(place: str) -> None:
    """Whoever puts says so to both at once. RACES says how often, for a run of some minutes."""
    rounds, left = int(os.environ.get("RACES", "150")), threading.Semaphore(0)
    both = [Owner(place, name, left) for name in ("one", "two")]
    with doing(place) as do:
        do(lambda c: leases.release(c, T1))
        do(lambda c: c.execute(update(schema.owners).values(until_us=2**60)))  # both live, however long this takes
        for each in both:
            each.start()
        for number in range(rounds):
            do(lambda c, number=number: put(c, f"key {number}"))
            for each in both:
                each.news.release()
            if number % 10:  # the one before is dealt with, and its thread may be released at this moment
                assert left.acquire(timeout=20), number
            if number % 10 == 9:
                assert left.acquire(timeout=20), number
                until(lambda: do(is_released))
        for each in both:
            each.end()
        epoch = do(lambda c: c.execute(select(schema.threads.c.epoch)).scalar())
    assert rounds / 10 <= epoch, "it was released, and taken again, time and again"


def is_released(connection: Connection) -> bool:
    return connection.execute(select(schema.threads.c.owner)).scalar() == ""


class Release:
    """An owner deals with what waits for a thread and lets it go, and stops before its statement `stops_at`.

    Meanwhile an envelope is put, and who put it wakes another, once: nobody looks later what waits without an owner.
    """

    def __init__(self, place: str, thread_id: str, stops_at: int) -> None:
        self.thread_id, self._place = thread_id, place
        self.one, self.two = party(place, MIGRATIONS), party(place, MIGRATIONS)
        lease: Lease = self.one.database.submit(lambda c: leases.take(c, thread_id, "one")).result(20)
        self.put("first")
        self.one.gate.arm(stops_at)
        self._pool = ThreadPoolExecutor(2)
        self.first = self._pool.submit(self.deal, self.one, lease)
        while not self.one.gate.reached.wait(0.001) and not self.first.done():
            pass

    def put(self, key: str) -> None:
        of = self.thread_id
        self.two.database.submit(lambda c: put(c, f"{key} of {of}", thread_id=of)).result(20)

    def deal(self, of: Party, lease: Lease | None, *, ends: bool = False) -> None:
        """Take the thread where there is no lease yet, and deal with what waits until it is let go."""

        def do(work: Callable[[Connection], Any]) -> Any:
            return of.database.submit(lambda c: (work(c), of.gate.step())[0]).result(20)

        lease = lease or do(lambda c: leases.take(c, self.thread_id, "two"))
        while lease is not None and not ends:
            for row in do(lambda c: leases.load(c, lease, adopt=True)):
                do(lambda c, row=row: leases.archive(c, lease, row.number))
            ends = do(lambda c: leases.release(c, lease))

    def wake_the_other(self) -> "Future[None]":
        """Let the other try once to take the thread; return when it is done, or waits for a lock."""
        self.put("second")
        woken = self._pool.submit(self.deal, self.two, None)
        with doing(self._place) as watching:
            until(lambda: woken.done() or watching(waits_for_a_lock))
        return woken

    def left(self) -> list[str]:
        of = schema.envelopes.c.thread_id == self.thread_id
        keys = self.two.database.submit(lambda c: c.execute(select(schema.envelopes.c.key).where(of)).scalars().all())
        return list(keys.result(20))

    def close(self) -> None:
        self._pool.shutdown()
        for each in (self.one, self.two):
            each.database.close()


@pytest.mark.parametrize("killed", [False, True], ids=["stopped", "killed"])
def test_what_is_put_while_a_thread_is_released_finds_an_owner_wherever_that_stands(
    place: str, *, killed: bool
) -> None:
    """Whoever is stopped goes on. Who is killed leaves all to the next one that looks once its lease has ended."""
    for stops_at in itertools.count():
        made = Release(place, f"thread {stops_at}", stops_at)
        if made.first.done():
            made.close()
            assert stops_at > 10
            return
        if killed:
            made.two.database.submit(lambda c, pid=made.one.pid: c.execute(text(f"SELECT pg_terminate_backend({pid})")))
        woken = made.wake_the_other()
        made.one.gate.goes_on.set()
        woken.result(20)
        if killed:
            assert made.first.exception(20) is not None
            with doing(place) as do:
                do(lambda c: end_lease(c, "one"))
                if made.left():
                    assert do(lambda c: leases.wanted(c, "two", 9)) == [made.thread_id]
                    made.deal(made.two, None)
                do(lambda c: c.execute(update(schema.owners).values(until_us=2**60)))
        else:
            made.first.result(20)
        assert made.left() == [], f"stopped before its statement {stops_at}"
        made.close()


@contextmanager
def leaving(place: str, stops_at: int, act: str) -> Iterator[Any]:
    """One machine leaves a fire to the other; that one may act where the first stops, before its statement `stops_at`."""
    parties, thread_id = (party(place, MIGRATIONS), party(place, MIGRATIONS)), f"thread {stops_at}"
    how: dict[str, Any] = {"clock": ManualClock(), "entropy": None, "log": None}
    one, two = (Ownership(cast(Any, None), Path("owner"), **how) for _ in parties)
    one.owner, two.owner, one._left["another"] = "one", "two", 1.0
    one.lacks, one.others = lambda _data: ["category a"], lambda: [{"category a": "as it is there"}]
    first, second = (lambda work, of=of: of.database.submit(work).result(20) for of in parties)
    gate, key = parties[0].gate, f"fire:task-00000001@{stops_at}:1"
    held: Lease = first(lambda c: leases.take(c, thread_id, "one"))
    first(lambda c: put(c, key, thread_id=thread_id, kind="fire"))
    if act != "let go":
        first(lambda c: leases.free(c, held))

    def leave(connection: Connection) -> bool:
        left = one._release(connection, held) if act == "let go" else not one._take(connection, thread_id, None)
        gate.step()
        return left

    gate.arm(stops_at)
    with ThreadPoolExecutor(2) as pool:
        left = pool.submit(first, leave)
        while not gate.reached.wait(0.001) and not left.done():
            pass
        over = left.done()

        def meanwhile(work: Callable[[Connection], Any]) -> Any:
            other = pool.submit(second, work)
            with doing(place) as watching:
                until(lambda: other.done() or watching(waits_for_a_lock))
            gate.goes_on.set()
            assert left.result(20), "it is left"
            return other.result(20)

        yield key, thread_id, second, meanwhile, lambda c: two._take(c, thread_id, None), over
    for each in parties:
        each.database.close()


@pytest.mark.parametrize("act", ["take", "let go", "withdraw"])
def test_a_fire_that_is_left_is_begun_once_or_withdrawn_wherever_that_stands(place: str, act: str) -> None:
    for stops_at in itertools.count():
        with leaving(place, stops_at, act) as (key, thread_id, do, meanwhile, take, over):
            if act == "withdraw":
                assert meanwhile(lambda c, key=key: schema.handover.withdraw(c, key)), "nobody has begun it"
                lease = do(lambda c, of=thread_id: leases.take(c, of, "two"))
            else:
                found = meanwhile(take)
                if found is None:  # the first one owned the thread just then: the next look finds it
                    assert do(lambda c: leases.wanted(c, "two", 9)) == [thread_id]
                    found = do(take)
                lease, (row,) = found
                assert row.key == key, f"stopped before its statement {stops_at}"
                do(lambda c, lease=lease, row=row: leases.archive(c, lease, row.number))
            assert do(lambda c, lease=lease: leases.release(c, lease))
        if over:
            assert stops_at > 5
            return


def waits_for_a_lock(connection: Connection) -> bool:
    return bool(connection.execute(text("SELECT count(*) FROM pg_locks WHERE NOT granted")).scalar())


def until(true: Callable[[], bool]) -> None:
    for _ in range(4000):
        if true():
            return
    raise AssertionError("it never waited")
