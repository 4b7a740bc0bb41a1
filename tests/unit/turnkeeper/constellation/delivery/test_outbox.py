"""The rows of the outbox: each goes out until it was taken, and one process works on it at a time."""

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from turnkeeper.constellation.delivery import outbox
from turnkeeper.constellation.delivery.follow import digest_of
from turnkeeper.constellation.delivery.outbox import GATHERED, LEASE, UNLEASED, WAITING, Delivery
from turnkeeper.storage.database import Database
from turnkeeper.times import from_us, to_us

NOW = datetime(2026, 11, 20, 8, tzinfo=UTC)
Do = Callable[..., Any]


@pytest.fixture
def do(tmp_path: Path) -> Iterator[Do]:
    store = Database(tmp_path / "delivery.db", migrations=outbox.MIGRATIONS)
    yield lambda work, *given, **named: store.submit(lambda it: work(it, *given, **named)).result()
    store.close()


def row(key: str, *, state: str = WAITING, at: datetime = NOW, target: str = "ops") -> Delivery:
    body = json.dumps({"data": {"task": key, "outcome": "succeeded", "text": f"of {key}", "reason": ""}})
    return Delivery(key, "success", state, to_us(at), to_us(at), target=target, fire_id=f"{key}@1", body=body)


def test_a_row_is_taken_once_until_its_lease_is_over(do: Do) -> None:
    do(outbox.put, [row("one"), row("later", at=NOW + timedelta(seconds=1))])
    assert [one.key for one in do(outbox.take_due, NOW, 8, LEASE)] == ["one"]
    assert do(outbox.take_due, NOW, 8, LEASE) == []
    assert [one.key for one in do(outbox.take_due, NOW + LEASE, 8, LEASE)] == ["later", "one"]


def test_without_a_lease_a_row_stays_due_and_no_other_becomes_due(do: Do) -> None:
    do(outbox.put, [row("one"), row("soon", at=NOW + timedelta(seconds=30))])
    for _ in range(2):
        assert [one.key for one in do(outbox.take_due, NOW, 8, UNLEASED)] == ["one"]


def test_a_known_key_changes_nothing_even_after_its_end(do: Do) -> None:
    do(outbox.put, [row("one")])
    do(outbox.end, row("one"), outbox.DELIVERED, NOW)
    do(outbox.put, [row("one")])
    assert do(outbox.take_due, NOW, 8, LEASE) == []
    (found,) = do(outbox.rows_of, limit=10)
    assert (found["state"], found["body"]) == ("delivered", "")


def test_tries_come_less_often_and_end_after_three_days(do: Do) -> None:
    do(outbox.put, [row("one")])
    pauses, now = [], NOW
    while True:
        ((one,), was) = do(outbox.take_due, now, 8, LEASE), now
        if not do(outbox.retry, one, now, "status 503"):
            break
        now = do(outbox.next_due)
        pauses.append((now - was).total_seconds())
    assert pauses[:6] == [5, 15, 45, 135, 405, 1215]
    assert set(pauses[7:]) == {3600}
    assert timedelta(days=3) <= now - NOW < timedelta(days=3, hours=1)
    (found,) = do(outbox.rows_of, limit=10)
    assert (found["state"], found["reason"]) == ("given up", "status 503")


def test_a_digest_holds_all_that_is_due_of_one_target_and_has_the_same_key_however_often_it_is_made(do: Do) -> None:
    later = NOW + timedelta(days=1)
    do(outbox.put, [row("one", state=GATHERED), row("two", state=GATHERED), row("other", state=GATHERED, target="ada")])
    do(outbox.put, [row("tomorrow", state=GATHERED, at=later)])
    rows = do(outbox.gather, "ops", NOW, LEASE)
    assert [one.key for one in rows] == ["one", "two"]
    made = digest_of("ops", rows, NOW)
    assert made.key == digest_of("ops", rows, later).key
    assert json.loads(made.body)["data"]["text"] == "one succeeded: of one\n\ntwo succeeded: of two"


@pytest.mark.parametrize("lease", [LEASE, UNLEASED])
def test_a_late_digest_holds_what_another_process_leased_and_nothing_that_waits_for_the_next_one(
    do: Do, lease: timedelta
) -> None:
    soon = NOW + timedelta(seconds=30)
    do(outbox.put, [row("yesterday", state=GATHERED, at=NOW - timedelta(hours=1))])
    do(outbox.take_due, NOW, 8, lease)
    do(outbox.put, [row("today", state=GATHERED, at=soon)])
    assert [one.key for one in do(outbox.gather, "ops", NOW, lease)] == ["yesterday"]


def test_what_ended_long_ago_is_deleted(do: Do) -> None:
    do(outbox.put, [row("old"), row("open")])
    do(outbox.end, row("old"), outbox.DELIVERED, NOW)
    assert do(outbox.prune, NOW + outbox.KEPT) == 0
    assert do(outbox.prune, NOW + outbox.KEPT + timedelta(seconds=1)) == 1
    assert [one["key"] for one in do(outbox.rows_of, limit=10)] == ["open"]


def test_each_state_is_told_in_a_sentence() -> None:
    waits = row("k", at=from_us(0))._replace(tries=1, reason="status 503")
    start = "Its delivery k (success) to ops"
    assert outbox.sentence(waits) == f"{start} waits until 1970-01-01T00:00:00Z after 1 failed try: status 503."
    done = row("k")._replace(state="delivered", next_us=None, ended_us=0)
    assert outbox.sentence(done) == f"{start} was delivered at 1970-01-01T00:00:00Z."
