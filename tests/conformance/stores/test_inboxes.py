"""Who reads the inbox of an agent in a terminal, of a shared store: one at a time, in order, and nothing is read twice."""

import threading
from collections.abc import Callable, Iterator
from itertools import combinations
from typing import Any

import pytest
from sqlalchemy import Connection, select, text, update

from agent_runtime.model.trigger import TriggerHeader
from agent_runtime.store import mail, schema
from tests.support.clock import ManualClock
from tests.support.cluster import Do, doing
from turnkeeper.bus.envelope import Encoded
from turnkeeper.bus.folders import EnvelopeState, Quota, Retention
from turnkeeper.errors import Exhausted
from turnkeeper.storage.server import inboxes
from turnkeeper.storage.server.handover import SCHEMA
from turnkeeper.storage.server.url import in_schema

AT = ManualClock().now()


def put(connection: Connection, *keys: str, agent: str = "codex") -> list[bool]:
    return inboxes.put_envelopes(connection, [Encoded(agent, "agent0", key, key.encode()) for key in keys], AT)


def end_lease(connection: Connection) -> None:
    """Let every reader's time be over, as if it had been stopped for longer than its lease."""
    connection.execute(update(schema.inboxes).values(until_us=0))


class Watcher:
    """Reads an inbox step by step, as `inbox watch` does.

    Attributes:
        pasted: the keys that it has delivered.
    """

    def __init__(self, do: Do, name: str) -> None:
        self.do, self.name = do, name
        self.epoch = self.after = 0
        self.held: list[tuple[int, str, bytes]] = []
        self.pasted: list[str] = []

    def begin(self) -> None:
        self.epoch = self.do(lambda c: inboxes.begin_reading(c, "codex", self.name))
        self.after = 0

    def claim(self) -> list[str]:
        self.held = self.do(lambda c: inboxes.claim_envelopes(c, "codex", self.epoch, 1, self.after))
        self.after = max([self.after, *(number for number, _, _ in self.held)])
        return self.keys

    def paste(self) -> None:
        if self.held:
            self.do(lambda c: inboxes.check_reading(c, "codex", self.epoch))
            self.pasted += self.keys

    def archive(self) -> None:
        for number, _, _ in self.held:
            self.end(number, EnvelopeState.DELIVERED)

    def end(self, number: int, state: EnvelopeState) -> None:
        self.do(lambda c: inboxes.end_envelope(c, "codex", self.epoch, number, state))

    @property
    def keys(self) -> list[str]:
        return [key for _, key, _ in self.held]

    def read(self) -> list[str]:
        """Read all that there is."""
        self.begin()
        while self.claim():
            self.paste()
            self.archive()
        self.do(lambda c: inboxes.end_reading(c, "codex", self.epoch))
        return self.pasted


@pytest.fixture
def do(shared_url: str) -> Iterator[Do]:
    with doing(in_schema(shared_url, SCHEMA)) as made:
        yield made


def states(do: Do) -> dict[str, EnvelopeState]:
    keys = do(lambda c: c.execute(select(schema.inbox_envelopes.c.key)).scalars().all())
    return do(lambda c: inboxes.envelope_states(c, "codex", keys))


def test_an_inbox_has_one_reader_until_it_ends_or_its_lease_does(do: Do) -> None:
    one, two = Watcher(do, "one"), Watcher(do, "two")
    one.begin()
    with pytest.raises(inboxes.NotReader, match="read by one"):
        two.begin()
    assert do(lambda c: inboxes.renew_reading(c, "codex", one.epoch))
    do(lambda c: inboxes.end_reading(c, "codex", one.epoch))
    two.begin()
    assert (one.epoch, two.epoch) == (1, 2)
    assert not do(lambda c: inboxes.renew_reading(c, "codex", one.epoch)), "a reader of before renews nothing"
    do(lambda c: inboxes.end_reading(c, "codex", one.epoch))
    with pytest.raises(inboxes.NotReader, match="read by two"):
        one.begin()
    do(end_lease)
    one.begin()
    do(lambda c: c.execute(text("UPDATE inboxes SET until_us = until_us + 3600000000")))
    two.begin()  # the server's clock was set back: nobody has renewed a lease that lasts longer than one
    assert do(lambda c: inboxes.has_inbox(c, "codex"))
    assert not do(lambda c: inboxes.has_inbox(c, "claude"))


def test_what_comes_is_read_in_order_and_once_whichever_reader_reads(do: Do) -> None:
    assert do(lambda c: put(c, "b", "a")) == [True, True]
    assert do(lambda c: put(c, "c", "b")) == [True, False], "a key is taken once"
    do(lambda c: put(c, "b", agent="claude"))
    one, two = Watcher(do, "one"), Watcher(do, "two")
    one.begin()
    assert one.claim() == ["b"]
    assert one.claim() == ["a"]
    one.paste()
    one.archive()
    do(end_lease)
    assert two.read() == ["b", "c"], "first what a reader of before had claimed"
    assert do(lambda c: put(c, "b")) == [False], "also after it was read"
    for late in (one.claim, one.paste, one.archive):
        with pytest.raises(inboxes.NotReader):
            late()
    assert set(states(do).values()) == {EnvelopeState.DELIVERED}
    assert do(lambda c: inboxes.count_envelopes(c, "claude", EnvelopeState.WAITING)) == 1


def test_what_nobody_has_claimed_is_taken_back_and_nothing_else(do: Do) -> None:
    do(lambda c: put(c, "a", "b"))
    one = Watcher(do, "one")
    one.begin()
    one.claim()
    assert not do(lambda c: inboxes.take_back(c, "codex", "a"))
    assert do(lambda c: inboxes.take_back(c, "codex", "b"))
    assert do(lambda c: inboxes.envelope_states(c, "codex", ["a", "b"])) == {"a": EnvelopeState.CLAIMED}
    assert one.claim() == []
    assert do(lambda c: inboxes.take_back(c, "codex", "a", claimed=True))


def test_what_was_set_aside_waits_again_when_somebody_puts_it_back(do: Do) -> None:
    do(lambda c: put(c, "a", "b"))
    one = Watcher(do, "one")
    one.begin()
    one.claim()
    one.end(one.held[0][0], EnvelopeState.QUARANTINED)
    assert one.claim() == ["b"]
    assert states(do) == {"a": EnvelopeState.QUARANTINED, "b": EnvelopeState.CLAIMED}
    assert do(lambda c: inboxes.requeue_envelope(c, "codex", "a"))
    assert not do(lambda c: inboxes.requeue_envelope(c, "codex", "b"))
    assert one.claim() == ["a"]


def test_what_was_read_is_kept_for_a_time_and_until_its_fire_is_settled(
    do: Do, monkeypatch: pytest.MonkeyPatch
) -> None:
    do(lambda c: put(c, "fire:a:1", "fire:b:1", "c", "d"))
    names = dict.fromkeys(TriggerHeader.__dataclass_fields__, "") | {"key": "fire:b:1", "attempt": 1}
    do(lambda c: mail.add_terminal_delivery(c, TriggerHeader(**names), "fire:b:1", AT))  # type: ignore[arg-type]
    assert [key for key, _ in do(inboxes.unrecorded_fires)] == ["fire:a:1"]
    Watcher(do, "one").read()
    old = update(schema.inbox_envelopes).where(schema.inbox_envelopes.c.key != "d").values(at_us=1)
    do(lambda c: c.execute(old))
    Watcher(do, "two").read()
    assert set(states(do)) == {"fire:b:1", "d"}
    assert (Quota().most_waiting, Retention()) == (
        inboxes.MOST_WAITING,
        Retention(keep_s=inboxes.KEPT_S, most=inboxes.MOST_KEPT),
    ), "as of folders"
    monkeypatch.setattr(inboxes, "MOST_WAITING", 2)
    do(lambda c: put(c, "e"))
    with pytest.raises(Exhausted, match="holds 2"):
        do(lambda c: (put(c, "f"), put(c, "g")))


def test_a_claim_reads_nothing_of_the_many_that_were_delivered_before(do: Do) -> None:
    many = """INSERT INTO inbox_envelopes (agent, key, envelope, state, at_us)
        SELECT 'codex', n::text, '', CASE WHEN n > 20000 THEN 'waiting' ELSE 'delivered' END, 0
        FROM generate_series(1, 25000) AS n"""
    do(lambda c: c.execute(text(many)))
    do(lambda c: c.execute(text("ANALYZE inbox_envelopes")))
    explained = text(f"EXPLAIN (ANALYZE, TIMING OFF) {inboxes._OLDEST}")
    plan = do(lambda c: c.execute(explained, {"agent": "codex", "most": 1, "after": 0}).scalars().all())
    assert not [line for line in plan if "Removed by Filter" in line], plan


STEPS = ("begin", "claim", "paste", "archive")


class Two:
    """Two watchers of one inbox in which one envelope lies.

    Attributes:
        again: how often it may be pasted again: a reader began between what another had pasted and its archive.
    """

    def __init__(self, do: Do) -> None:
        self.watchers = [Watcher(do, "one"), Watcher(do, "two")]
        self.left = [list(STEPS), list(STEPS)]
        self.archived = [False, False]
        self.again = 0

    def step(self, who: int) -> None:
        """Let one of them do its next step; one that may not read any more does none."""
        if not self.left[who]:
            return
        name = self.left[who].pop(0)
        try:
            getattr(self.watchers[who], name)()
        except inboxes.NotReader:
            self.left[who].clear()
            return
        self.archived[who] |= name == "archive"
        if name == "begin":
            self.begun()

    def begun(self) -> None:
        """Count what the reader that has begun now will paste again."""
        pairs = zip(self.watchers, self.archived, strict=True)
        self.again += any(watcher.pasted and not archived for watcher, archived in pairs)


@pytest.mark.parametrize("ends", [None, 1, 2, 3, 5], ids=lambda at: f"lease-ends-{at}")
def test_of_two_watchers_in_any_order_no_two_read_the_same(shared_url: str, ends: int | None) -> None:
    """All orders of their steps; the lease ends before one of the steps, or never."""
    with doing(in_schema(shared_url, SCHEMA)) as do:
        for number, places in enumerate(combinations(range(8), 4)):
            do(lambda c, number=number: put(c, f"{number}"))
            two = Two(do)
            for at in range(8):
                if at == ends:
                    do(end_lease)
                two.step(0 if at in places else 1)
            do(end_lease)
            two.begun()
            rest = Watcher(do, "three").read()
            read = [*two.watchers[0].pasted, *two.watchers[1].pasted, *rest]
            assert set(read) == {f"{number}"}, f"{places}: nothing is lost"
            assert len(read) <= 1 + two.again, f"{places}: {read}"


# Interleavings within a step. Each of the two is a transaction that is not over.


@pytest.fixture
def place(shared_url: str) -> str:
    url = in_schema(shared_url, SCHEMA)
    with doing(url) as do:
        do(lambda c: put(c, "a"))
    return url


def waits_for_a_lock(connection: Connection) -> bool:
    return bool(connection.execute(text("SELECT count(*) FROM pg_locks WHERE NOT granted")).scalar())


def during(place: str, first: Callable[[Connection], Any], then: Callable[[Connection], Any]) -> tuple[Any, Any]:
    """Run a unit to its last statement, begin another, and commit the first once the other waits for it."""
    answers: list[Any] = []
    with doing(place) as one, doing(place) as two, doing(place) as watching:

        def other() -> None:
            try:
                answers.append(two(then))
            except inboxes.NotReader as error:
                answers.append(error)

        thread = threading.Thread(target=other)

        def work(connection: Connection) -> Any:
            answer = first(connection)
            thread.start()
            assert any(watching(waits_for_a_lock) for _ in range(4000)), "it did not wait"
            return answer

        answer = one(work)
        thread.join(20)
    return answer, answers[0]


def test_who_begins_to_read_waits_for_what_the_reader_of_before_writes(place: str) -> None:
    with doing(place) as do:
        one = Watcher(do, "one")
        one.begin()
        one.claim()
        number = one.held[0][0]
        do(end_lease)
    _, epoch = during(
        place,
        lambda c: inboxes.end_envelope(c, "codex", 1, number, EnvelopeState.DELIVERED),
        lambda c: inboxes.begin_reading(c, "codex", "two"),
    )
    assert epoch == 2
    with doing(place) as do:
        assert Watcher(do, "three").do(lambda c: inboxes.claim_envelopes(c, "codex", 2, 1, 0)) == []


def test_of_two_that_begin_at_once_one_reads(place: str) -> None:
    epoch, error = during(
        place, lambda c: inboxes.begin_reading(c, "codex", "one"), lambda c: inboxes.begin_reading(c, "codex", "two")
    )
    assert epoch == 1
    assert isinstance(error, inboxes.NotReader)


def test_what_is_claimed_is_not_taken_back_and_what_is_taken_back_is_not_claimed(place: str) -> None:
    with doing(place) as do:
        do(lambda c: inboxes.begin_reading(c, "codex", "one"))
    claim: Callable[[Connection], Any] = lambda c: len(inboxes.claim_envelopes(c, "codex", 1, 1, 0))  # noqa: E731
    take_back: Callable[[Connection], Any] = lambda c: inboxes.take_back(c, "codex", "a")  # noqa: E731
    assert during(place, claim, take_back) == (1, False)
    with doing(place) as do:
        do(lambda c: c.execute(update(schema.inbox_envelopes).values(state="waiting")))
    assert during(place, take_back, claim) == (True, 0)
