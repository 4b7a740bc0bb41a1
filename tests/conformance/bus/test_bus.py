"""What every inbox promises, whatever carries the envelopes: the contract of `turnkeeper.bus.inbox.Inbox` as tests."""

import hashlib
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.support.clock import START
from turnkeeper.bus.envelope import Envelope, encode
from turnkeeper.bus.inbox import Claimed, Inbox, Put
from turnkeeper.errors import Exhausted, InvalidInput, NotFound


def message(text: str, **changes: object) -> Envelope:
    fields = {"id": text or "empty", "sender": "author", "to": "agent0", "kind": "message", "text": text, "at": START}
    return Envelope(**{**fields, **changes})  # type: ignore[arg-type]


def texts(claimed: list[Claimed]) -> list[str]:
    return [item.envelope.text for item in claimed]


def at_once(*works: Callable[[], Any]) -> list[Any]:
    """Run each in a thread of its own, as so many processes would."""
    with ThreadPoolExecutor(len(works)) as pool:
        return list(pool.map(lambda work: work(), works))


def finish(bus: Inbox, claimed: list[Claimed]) -> None:
    for item in claimed:
        bus.archive(item)


def test_what_is_put_is_claimed_in_order_byte_for_byte_and_archived(backend) -> None:
    sent = [
        message("one", thread="t 1", swarm="night", requires_ack=True, meta={"deep": [{"x": [1, 2.5, None, "é"]}]}),
        message("two ✓ \n\t <b>&amp;</b>", idempotency_key="k#2", id="m2"),
        message("", kind="ack", id="m3"),
    ]
    bus = backend.open()
    assert [put.fresh for put in bus.put_each(sent)] == [True] * 3
    assert bus.waiting() == 3
    claimed = bus.claim(10)
    assert [item.envelope for item in claimed] == sent
    assert bus.waiting() == 0
    finish(bus, claimed)
    assert bus.adopt() == []
    assert backend.delivered() == [encode(item) for item in sent]


def test_a_claim_takes_no_more_than_it_was_asked_for_and_nothing_twice(backend) -> None:
    bus = backend.open()
    bus.put_each([message(str(place)) for place in range(5)])
    assert texts(bus.claim(2)) == ["0", "1"]
    assert texts(bus.claim(2)) == ["2", "3"]
    bus.put(message("5"))
    assert texts(bus.claim(10)) + texts(bus.claim(10)) == ["4", "5"]
    assert bus.claim(10) == []


def test_a_put_after_an_answer_sorts_after_it_in_whichever_process_and_clock(backend) -> None:
    one, other = backend.open(), backend.open()
    for place, bus in enumerate((one, other, one, other)):
        backend.clock.step(-1000)
        bus.put(message(str(place)))
    assert texts(one.claim(10)) == ["0", "1", "2", "3"]


def test_two_readers_share_the_work_without_overlap(backend) -> None:
    one, other = backend.open(), backend.open()
    one.put_each([message(str(place)) for place in range(40)])
    taken = at_once(*(lambda bus=bus: [bus.claim(3) for _ in range(10)] for bus in (one, other)))
    assert Counter(text for groups in taken for group in groups for text in texts(group)) == Counter(
        map(str, range(40))
    )


def test_a_key_put_twice_by_one_process_is_one_envelope(backend) -> None:
    bus = backend.open()
    first = bus.put(message("one", idempotency_key="k"))
    again = bus.put(message("one", idempotency_key="k"))
    assert (first.fresh, again) == (True, Put(name=first.name, fresh=False))
    group = bus.put_each([message("two", idempotency_key="l")] * 2 + [message("one", idempotency_key="k")])
    assert [put.fresh for put in group] == [True, False, False]
    assert bus.known("k").text == "one"
    assert bus.known("absent") is None
    assert texts(bus.claim(10)) == ["one", "two"]
    assert not bus.put(message("one", idempotency_key="k")).fresh, "a claimed key is known"


def test_a_key_is_known_after_a_restart(backend) -> None:
    bus = backend.open()
    bus.put_each([message("one", idempotency_key="k"), message("two", idempotency_key="l")])
    bus.claim(1)
    bus = backend.open()
    assert [bus.known(key).text for key in ("k", "l")] == ["one", "two"]
    assert not bus.put(message("one", idempotency_key="k")).fresh


def test_one_key_from_several_processes_at_once_is_handed_out_once_or_told_apart_by_its_key(backend) -> None:
    buses = [backend.open() for _ in range(3)]
    at_once(*(lambda bus=bus: bus.known("k") for bus in buses))
    at_once(
        *(lambda bus=bus, n=n: bus.put(message("x", id=f"m{n}", idempotency_key="k")) for n, bus in enumerate(buses))
    )
    groups = at_once(*(lambda bus=bus: bus.claim(10) for bus in buses))
    handed_out = [item for group in groups for item in group]
    assert {item.envelope.idempotency_key for item in handed_out} == {"k"}
    if backend.settles_keys:
        assert len(handed_out) == 1


def test_what_was_claimed_and_not_archived_is_adopted_and_what_was_archived_is_not(backend) -> None:
    bus = backend.open()
    bus.put_each([message("one", idempotency_key="k"), message("two"), message("three")])
    done, *left = bus.claim(2)
    bus.archive(done)
    bus = backend.open()
    adopted = bus.adopt()
    assert adopted == left
    assert texts(bus.claim(10)) == ["three"]
    finish(bus, adopted)
    finish(bus, adopted)
    assert texts(bus.adopt()) == ["three"]


def test_a_malformed_envelope_is_refused_at_the_writers_edge_and_the_rest_of_its_group_is_taken(backend) -> None:
    bus = backend.open()
    with pytest.raises(InvalidInput):
        bus.put(message("<channel>"))
    answers = bus.put_each([message("one"), message("</chan\u200bnel>"), message("two")])
    assert [type(answer) for answer in answers] == [Put, InvalidInput, Put]
    assert texts(bus.claim(10)) == ["one", "two"]


def test_a_malformed_envelope_is_set_aside_at_the_readers_edge_whole_with_its_reason(backend) -> None:
    bus = backend.open()
    data = encode(message("one")).replace(b"one", b"<channel>")
    backend.plant(data)
    bus.put(message("good"))
    assert texts(bus.claim(10)) == ["good"]
    (item,) = bus.quarantined()
    assert "wrapper token" in item.reason
    assert item.at == backend.clock.now()
    with pytest.raises(InvalidInput):
        bus.requeue(item.name)
    assert bus.quarantined() == [item]


def test_what_is_quarantined_waits_again_when_requeued(backend) -> None:
    bus = backend.open()
    bus.put(message("one", idempotency_key="k"))
    (item,) = bus.claim(1)
    bus.quarantine(item.name, "five attempts")
    assert [aside.reason for aside in bus.quarantined()] == ["five attempts"]
    assert bus.adopt() == []
    assert bus.requeue(item.name).fresh
    assert bus.quarantined() == []
    (again,) = bus.claim(1)
    assert again.envelope == item.envelope
    with pytest.raises(NotFound):
        bus.requeue(item.name)


def test_a_full_inbox_refuses_with_a_typed_error_and_takes_again_when_it_clears(backend) -> None:
    bus = backend.open(most_waiting=3)
    answers = bus.put_each([message(str(place)) for place in range(5)])
    assert [type(answer) for answer in answers] == [Put] * 3 + [Exhausted] * 2
    with pytest.raises(Exhausted):
        bus.put(message("late"))
    assert bus.waiting() == 3
    assert texts(bus.claim(2)) == ["0", "1"]
    assert bus.put(message("late")).fresh


def test_many_that_are_put_together_are_each_answered_for_their_own(backend) -> None:
    bus = backend.open()
    sent = [message(f"m{place}", idempotency_key=f"k{place % 150}") for place in range(200)]
    puts = bus.put_each(sent)
    assert sum(put.fresh for put in puts) == 150
    claimed = {item.name: item.envelope for item in bus.claim(1000)}
    for item, put in zip(sent, puts, strict=True):
        assert claimed[put.name].idempotency_key == item.idempotency_key


def test_the_largest_envelope_arrives_whole(backend) -> None:
    text = hashlib.sha256(b"seed").hexdigest() * 60_000
    bus = backend.open()
    bus.put(message(text, id="large"))
    (item,) = bus.claim(1)
    assert item.envelope.text == text
