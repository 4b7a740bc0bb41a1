"""Readers that go by numbers, beside writers that number rows and commit in any order: no row is skipped."""

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack
from threading import Event
from typing import Any

import pytest
from sqlalchemy import Connection, text

from agent_runtime.model.trigger import Trigger
from agent_runtime.model.turn import Category
from agent_runtime.service.streams import _Seen, watch_turns
from agent_runtime.store import turn_events, turn_reads, turn_writes
from agent_runtime.store.database import open_database
from agent_runtime.store.leases import Right
from agent_runtime.store.turn_events import Signal
from tests.conformance.stores.test_leases import AT, until
from tests.integration.runtime.harness import Call
from tests.support.clock import look_again
from tests.support.cluster import Do, doing
from turnkeeper.storage.server.following import Holes
from turnkeeper.storage.server.handover import SCHEMA
from turnkeeper.storage.server.url import in_schema
from turnkeeper.storage.statements import Statement
from turnkeeper.v1 import agent_runtime_pb2 as wire

WRITERS, ROUNDS = 8, 60
Work = Callable[[Connection], Any]


class Writer:
    """A session whose transactions wait before their commits."""

    def __init__(self, do: Do) -> None:
        self._do, self._goes_on, self._commits = do, Event(), True
        self._done: Future[Any] = Future()

    def begin(self, work: Work) -> Event:
        """Run a function in a transaction that stops before its commit. Return the event that it has come so far."""
        written, self._goes_on, self._commits = Event(), Event(), True

        def held(connection: Connection) -> None:
            connection.execute(text("SET LOCAL idle_in_transaction_session_timeout = 0"))
            work(connection)
            written.set()
            assert self._goes_on.wait(60)
            assert self._commits

        self._done = self._do(held)
        return written

    def write(self, work: Work) -> None:
        assert self.begin(work).wait(60)

    def commit(self) -> None:
        self._goes_on.set()
        self._done.result(60)

    def roll_back(self) -> None:
        self._commits = False
        self._goes_on.set()
        assert isinstance(self._done.exception(60), AssertionError)


@pytest.fixture
def place(shared_url: str) -> str:
    return in_schema(shared_url, SCHEMA)


@pytest.fixture
def do(place: str) -> Iterator[Do]:
    with doing(place) as made:
        yield made


@pytest.fixture
def writers(place: str) -> Iterator[list[Writer]]:
    with ExitStack() as stack:
        databases = [open_database(place) for _ in range(WRITERS)]
        for database in databases:
            stack.callback(database.close)
        yield [Writer(database.submit) for database in databases]


def trigger(number: int) -> Trigger:
    own: dict[str, Any] = {"key": f"k-{number}", "turn_id": f"turn-{number}", "thread_id": f"t-{number}"}
    return Trigger(
        source="message", agent="agent0", channel="c", prompt="p", digest="", grant=Category(name="work"), **own
    )


def event(number: int) -> Work:
    return lambda c: turn_events.add_event(c, trigger(number), "STARTED", AT, trigger="author")


def turn(number: int) -> Work:
    return lambda c: turn_writes.add_turn(c, trigger(number), status="running", epoch=1, at=AT)


def out_of_order(
    writers: list[Writer], write: Callable[[int], Work], look: Callable[[], object], rounds: int = ROUNDS
) -> None:
    """Let all writers number rows, and then commit in another order each time. Look after each commit."""
    for turn_of in range(rounds):
        for number, writer in enumerate(writers, turn_of * WRITERS):
            writer.write(write(number))
        first = turn_of % WRITERS
        for writer in reversed(writers[first:] + writers[:first]):
            writer.commit()
            look()


class Reader:
    """A reader of turn events that remembers only the number of the last one."""

    def __init__(self, do: Do, read: Any) -> None:
        self._do, self._read, self.found = do, read, list[int]()

    def look(self) -> None:
        after = self.found[-1] if self.found else 0
        rows = self._do(lambda c: turn_reads.events_after(c, after, read=self._read))
        self.found += [row.sequence for row in rows]


def test_a_reader_of_turn_events_skips_none_that_is_committed_out_of_order(writers: list[Writer], do: Do) -> None:
    reader, naive = Reader(do, Holes().settled), Reader(do, Statement.dicts)

    def look() -> None:
        reader.look()
        naive.look()

    out_of_order(writers, event, look)
    assert len(naive.found) < WRITERS * ROUNDS, "the numbers do not follow the commits"
    assert reader.found == list(range(1, WRITERS * ROUNDS + 1))


def test_a_number_that_was_drawn_in_vain_stops_no_reader(writers: list[Writer], do: Do) -> None:
    reader = Reader(do, Holes().settled)
    do(event(1))
    vain, behind, beside = writers[:3]
    vain.write(event(2))
    behind.write(event(3))
    behind.commit()
    reader.look()
    assert reader.found == [1], "the other may come yet"
    beside.write(event(4))
    vain.roll_back()
    reader.look()
    assert reader.found == [1, 3], "whoever began since then has a higher number"
    beside.commit()
    reader.look()
    assert reader.found == [1, 3, 4]


def test_a_writer_has_its_transactions_id_before_it_draws_a_number(writers: list[Writer], do: Do) -> None:
    """A trigger holds it up between the two. Without an id, no snapshot would show that its row may come yet.

    The first number of a sequence is logged, and this alone draws an id.
    """
    do(event(0))
    do(
        lambda c: c.execute(
            text(
                "CREATE FUNCTION held() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
                " IF NEW.turn_id = 'turn-1' THEN PERFORM pg_advisory_xact_lock(77); END IF; RETURN NEW; END $$;"
                "CREATE TRIGGER held BEFORE INSERT ON turn_events FOR EACH ROW EXECUTE FUNCTION held()"
            )
        )
    )
    holder, slow = writers[:2]
    holder.write(lambda c: c.execute(text("SELECT pg_advisory_xact_lock(77)")))
    slow.begin(event(1))
    until(lambda: do(lambda c: c.execute(text("SELECT last_value FROM turn_events_sequence_seq")).scalar()) == 2)
    do(event(2))
    reader = Reader(do, Holes().settled)
    reader.look()
    assert reader.found == [1]
    holder.commit()
    slow.commit()
    reader.look()
    assert reader.found == [1, 2, 3]


async def test_a_stream_from_now_on_has_what_was_numbered_before_and_is_committed_later(
    writers: list[Writer], do: Do
) -> None:
    do(event(1))
    writers[0].write(event(2))
    do(event(3))
    store = Stored(do)
    request = wire.WatchTurnsRequest(from_now=True)
    stream = watch_turns(store, request, Call(), lambda: False)  # type: ignore[arg-type]
    found = asyncio.ensure_future(anext(stream))
    while not store.looked:
        await look_again()
    writers[0].commit()
    do(event(4))
    store.events.notify()
    assert (await found).turn_id == "turn-2"
    assert (await anext(stream)).turn_id == "turn-4", "the third was committed before"


class Stored:
    """A store that several machines share, reduced to the methods that a stream calls."""

    right, incarnation = Right(1, shared=True), "one"

    def __init__(self, do: Do) -> None:
        self._do, self.events, self.looked = do, Signal(), False

    async def read(self, work: Any, *given: Any) -> Any:
        return self._do(lambda c: work(c, *given))

    async def look(self, work: Any, *given: Any) -> Any:
        self.looked = True
        return await self.read(work, *given)


def test_a_follower_of_a_conversation_gets_each_turn_once_however_they_are_committed(
    writers: list[Writer], do: Do
) -> None:
    seen = _Seen(wire.WatchConversationRequest(channel="c", limit=5), "c", Stored(do))  # type: ignore[arg-type]
    found: list[str] = []

    def look() -> None:
        seen.stale, asking = True, seen.changed()
        try:
            asking.send(None)
        except StopIteration as answer:
            found.extend(one.turn_id for one in answer.value)

    do(turn(-1))
    look()
    out_of_order(writers, turn, look, rounds=8)
    assert sorted(found) == sorted(f"turn-{number}" for number in range(-1, WRITERS * 8))
