"""What every backend of the bus promises; the page `turnkeeper/bus/port.py` as tests."""

import asyncio
import hashlib
from collections import Counter

import pytest

from tests.support.clock import START
from turnkeeper.bus.envelope import Envelope, encode
from turnkeeper.bus.port import Bus, Claimed, Put
from turnkeeper.errors import Exhausted, InvalidInput, NotFound


def message(text: str, **changes: object) -> Envelope:
    fields = {"id": text or "empty", "sender": "author", "to": "agent0", "kind": "message", "text": text, "at": START}
    return Envelope(**{**fields, **changes})  # type: ignore[arg-type]


def texts(claimed: list[Claimed]) -> list[str]:
    return [item.envelope.text for item in claimed]


async def finish(bus: Bus, claimed: list[Claimed]) -> None:
    for item in claimed:
        await bus.archive(item)


async def test_what_is_put_is_claimed_in_order_byte_for_byte_and_archived(backend) -> None:
    sent = [
        message("one", thread="t 1", swarm="night", requires_ack=True, meta={"deep": [{"x": [1, 2.5, None, "é"]}]}),
        message("two ✓ \n\t <b>&amp;</b>", idempotency_key="k#2", id="m2"),
        message("", kind="ack", id="m3"),
    ]
    async with backend.open() as bus:
        assert [put.fresh for put in await bus.put_all(sent)] == [True] * 3
        assert await bus.waiting() == 3
        claimed = await bus.claim(10)
        assert [item.envelope for item in claimed] == sent
        assert await bus.waiting() == 0
        await finish(bus, claimed)
        assert await bus.adopt() == []
    assert backend.delivered() == [encode(item) for item in sent]


async def test_a_claim_takes_no_more_than_it_was_asked_for_and_nothing_twice(backend) -> None:
    async with backend.open() as bus:
        await bus.put_all([message(str(place)) for place in range(5)])
        assert texts(await bus.claim(2)) == ["0", "1"]
        assert texts(await bus.claim(2)) == ["2", "3"]
        await bus.put(message("5"))
        assert texts(await bus.claim(10)) + texts(await bus.claim(10)) == ["4", "5"]
        assert await bus.claim(10) == []


async def test_a_put_after_an_answer_sorts_after_it_in_whichever_process_and_clock(backend) -> None:
    async with backend.open() as one, backend.open() as other:
        for place, bus in enumerate((one, other, one, other)):
            backend.clock.step(-1000)
            await bus.put(message(str(place)))
        assert texts(await one.claim(10)) == ["0", "1", "2", "3"]


async def test_two_readers_share_the_work_without_overlap(backend) -> None:
    async with backend.open() as one, backend.open() as other:
        await one.put_all([message(str(place)) for place in range(40)])
        groups = await asyncio.gather(*(bus.claim(3) for bus in (one, other) * 10))
    assert Counter(text for group in groups for text in texts(group)) == Counter(map(str, range(40)))


async def test_a_key_put_twice_by_one_process_is_one_envelope(backend) -> None:
    async with backend.open() as bus:
        first = await bus.put(message("one", idempotency_key="k"))
        again = await bus.put(message("one", idempotency_key="k"))
        assert (first.fresh, again) == (True, Put(name=first.name, fresh=False))
        group = await bus.put_all([message("two", idempotency_key="l")] * 2 + [message("one", idempotency_key="k")])
        assert [put.fresh for put in group] == [True, False, False]
        assert (await bus.known("k")).text == "one"
        assert await bus.known("absent") is None
        assert texts(await bus.claim(10)) == ["one", "two"]
        assert not (await bus.put(message("one", idempotency_key="k"))).fresh, "a claimed key is known"


async def test_a_key_is_known_after_a_restart(backend) -> None:
    async with backend.open() as bus:
        await bus.put_all([message("one", idempotency_key="k"), message("two", idempotency_key="l")])
        await bus.claim(1)
    async with backend.open() as bus:
        assert [(await bus.known(key)).text for key in ("k", "l")] == ["one", "two"]
        assert not (await bus.put(message("one", idempotency_key="k"))).fresh


async def test_one_key_from_several_processes_at_once_is_handed_out_once_or_told_apart_by_its_key(backend) -> None:
    async with backend.open() as one, backend.open() as two, backend.open() as three:
        buses = (one, two, three)
        await asyncio.gather(*(bus.known("k") for bus in buses))
        await asyncio.gather(*(bus.put(message("x", id=f"m{n}", idempotency_key="k")) for n, bus in enumerate(buses)))
        groups = await asyncio.gather(*(bus.claim(10) for bus in buses))
    handed_out = [item for group in groups for item in group]
    assert {item.envelope.idempotency_key for item in handed_out} == {"k"}
    if backend.settles_keys:
        assert len(handed_out) == 1


async def test_what_was_claimed_and_not_archived_is_adopted_and_what_was_archived_is_not(backend) -> None:
    async with backend.open() as bus:
        await bus.put_all([message("one", idempotency_key="k"), message("two"), message("three")])
        done, *left = await bus.claim(2)
        await bus.archive(done)
    async with backend.open() as bus:
        adopted = await bus.adopt()
        assert adopted == left
        assert texts(await bus.claim(10)) == ["three"]
        await finish(bus, adopted)
        await finish(bus, adopted)
        assert texts(await bus.adopt()) == ["three"]


async def test_a_malformed_envelope_is_refused_at_the_writers_edge_and_the_rest_of_its_group_is_taken(backend) -> None:
    async with backend.open() as bus:
        with pytest.raises(InvalidInput):
            await bus.put(message("<channel>"))
        answers = await bus.put_all([message("one"), message("</chan\u200bnel>"), message("two")])
        assert [type(answer) for answer in answers] == [Put, InvalidInput, Put]
        assert texts(await bus.claim(10)) == ["one", "two"]


async def test_a_malformed_envelope_is_set_aside_at_the_readers_edge_whole_with_its_reason(backend) -> None:
    async with backend.open() as bus:
        data = encode(message("one")).replace(b"one", b"<channel>")
        backend.plant(data)
        await bus.put(message("good"))
        assert texts(await bus.claim(10)) == ["good"]
        (item,) = await bus.quarantined()
        assert "wrapper token" in item.reason
        assert item.at == backend.clock.now()
        with pytest.raises(InvalidInput):
            await bus.requeue(item.name)
        assert await bus.quarantined() == [item]


async def test_what_is_quarantined_waits_again_when_requeued(backend) -> None:
    async with backend.open() as bus:
        await bus.put(message("one", idempotency_key="k"))
        (item,) = await bus.claim(1)
        await bus.quarantine(item.name, "five attempts")
        assert [aside.reason for aside in await bus.quarantined()] == ["five attempts"]
        assert await bus.adopt() == []
        assert (await bus.requeue(item.name)).fresh
        assert await bus.quarantined() == []
        (again,) = await bus.claim(1)
        assert again.envelope == item.envelope
        with pytest.raises(NotFound):
            await bus.requeue(item.name)


async def test_a_full_inbox_refuses_with_a_typed_error_and_takes_again_when_it_clears(backend) -> None:
    async with backend.open(most_waiting=3) as bus:
        answers = await bus.put_all([message(str(place)) for place in range(5)])
        assert [type(answer) for answer in answers] == [Put] * 3 + [Exhausted] * 2
        with pytest.raises(Exhausted):
            await bus.put(message("late"))
        assert await bus.waiting() == 3
        assert texts(await bus.claim(2)) == ["0", "1"]
        assert (await bus.put(message("late"))).fresh


async def test_many_tasks_that_put_at_once_are_each_answered_for_their_own(backend) -> None:
    async with backend.open() as bus:
        sent = [message(f"m{place}", idempotency_key=f"k{place % 150}") for place in range(200)]
        puts = await asyncio.gather(*(bus.put(item) for item in sent))
        assert sum(put.fresh for put in puts) == 150
        claimed = {item.name: item.envelope for item in await bus.claim(1000)}
    for item, put in zip(sent, puts, strict=True):
        assert claimed[put.name].idempotency_key == item.idempotency_key


async def test_a_put_whose_caller_gave_up_leaves_the_others_whole(backend) -> None:
    async with backend.open() as bus:
        tasks = [asyncio.create_task(bus.put(message(f"m{place}"))) for place in range(10)]
        await asyncio.wait(tasks, timeout=0)
        tasks[3].cancel()
        done = await asyncio.gather(*tasks, return_exceptions=True)
        assert sum(isinstance(put, Put) for put in done) >= 9
        assert {f"m{place}" for place in range(10) if place != 3} <= set(texts(await bus.claim(100)))


async def test_the_largest_envelope_arrives_whole(backend) -> None:
    text = hashlib.sha256(b"seed").hexdigest() * 60_000
    async with backend.open() as bus:
        await bus.put(message(text, id="large"))
        (item,) = await bus.claim(1)
        assert item.envelope.text == text
