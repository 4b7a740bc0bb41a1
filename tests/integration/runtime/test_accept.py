"""Accepting: what waits shares one pass of syncs, each envelope is its own file, and one bad inbox harms no other."""

import asyncio
from typing import Any

import pytest

from agent_runtime.model.trigger import from_envelope, to_envelope
from agent_runtime.service.requests import read_fire
from tests.integration.runtime.harness import Bench
from turnkeeper.bus.envelope import decode, encode
from turnkeeper.bus.seals import unsealed
from turnkeeper.errors import InvalidInput
from turnkeeper.v1 import agent_runtime_pb2 as wire

pytestmark = pytest.mark.one_machine("it is about files of envelopes")


class Stream:
    """The part of a call's context that a stream of fires uses."""

    async def send_initial_metadata(self, metadata: Any) -> None:
        assert metadata == ()


def count_groups(bench: Bench) -> list[int]:
    """Return a list that grows by the size of each group of files written together."""
    files: Any = bench.runtime.mailboxes._files
    groups: list[int] = []
    write = files.write_group

    def counted(items: Any) -> Any:
        groups.append(len(items))
        return write(items)

    files.write_group = counted
    return groups


@pytest.mark.parametrize("way", ["single calls", "a stream", "messages of many"])
async def test_fires_that_arrive_together_are_written_together(bench: Bench, way: str) -> None:
    groups = count_groups(bench)
    fires = [bench.fire(number, thread_id=f"t{number}", agent="codex") for number in range(1, 101)]

    async def requests() -> Any:
        for fire in fires:
            yield fire

    async def messages() -> Any:
        for start in (0, 50):
            yield wire.FireBatch(fires=fires[start : start + 50])

    if way == "a stream":
        receipts = [receipt async for receipt in bench.service.FireStream(requests(), Stream())]
    elif way == "messages of many":
        answers = [answer async for answer in bench.service.FireBatches(messages(), Stream())]
        receipts = [receipt for answer in answers for receipt in answer.receipts]
    else:
        receipts = await asyncio.gather(*(bench.service.Fire(fire, None) for fire in fires))
    assert [receipt.disposition for receipt in receipts] == [wire.FireReceipt.ACCEPTED] * 100
    assert [receipt.fire_id for receipt in receipts] == [fire.fire_id for fire in fires]
    assert len(list((bench.home.inbox("codex") / "inbox").glob("[!.]*"))) == 100, "each is a file of its own"
    assert max(groups) >= 10
    assert len(groups) <= 10


async def test_the_first_message_of_many_is_on_disk_before_the_next_is_read(bench: Bench) -> None:
    fires = [bench.fire(number, thread_id=f"t{number}", agent="codex") for number in range(1, 101)]
    waiting, lying, start = bench.home.inbox("codex") / "inbox", list[int](), bench.service._fires._begin

    def begin(requests: Any) -> Any:
        lying.append(len(list(waiting.glob("[!.]*"))))
        return start(requests)

    async def messages() -> Any:
        for first, last in ((0, 52), (52, 76), (76, 100)):
            yield wire.FireBatch(fires=fires[first:last])

    bench.service._fires._begin = begin  # type: ignore[method-assign]
    answers = [answer async for answer in bench.service.FireBatches(messages(), Stream())]
    assert [len(answer.receipts) for answer in answers] == [52, 24, 24]
    assert lying == [0, 52, 52], "the later ones are written together"


async def test_an_inbox_that_cannot_be_opened_refuses_its_own_fires_and_no_others(bench: Bench) -> None:
    waiting = bench.home.inbox("open") / "inbox"
    waiting.mkdir(parents=True)
    waiting.chmod(0o777)
    bad, good = await asyncio.gather(
        bench.accept(bench.fire(1, agent="open")),
        bench.accept(bench.fire(2, agent="codex")),
        return_exceptions=True,
    )
    assert isinstance(bad, InvalidInput)
    assert "can be written by other users" in str(bad)
    assert good.disposition == wire.FireReceipt.ACCEPTED
    await bench.crash()
    assert (await bench.turn(good.turn_id)).status == "accepted", "it starts all the same"


async def test_a_bad_fire_in_a_message_is_answered_in_its_place_and_the_rest_are_taken(bench: Bench) -> None:
    fires = [bench.fire(number, thread_id=f"t{number}") for number in range(1, 8)]
    fires[2].channel, fires[4].category = "", "nope"

    async def messages() -> Any:
        yield wire.FireBatch(fires=fires)
        yield wire.FireBatch(fires=fires[:1])

    answers = [answer async for answer in bench.service.FireBatches(messages(), Stream())]
    receipts = [receipt for answer in answers for receipt in answer.receipts]
    assert [receipt.error.field for receipt in receipts] == ["", "", "channel", "", "category", "", "", ""]
    assert receipts[-1].disposition == wire.FireReceipt.DUPLICATE


async def test_an_accepted_fire_lies_there_with_the_bytes_of_its_trigger(bench: Bench) -> None:
    fires = [
        bench.fire(number, agent="codex", prompt=prompt) for number, prompt in enumerate(("Go.", "é \x7f 100%"), 1)
    ]
    for fire in fires:
        await bench.accept(fire)
    waiting = sorted((bench.home.inbox("codex") / "inbox").glob("[!.]*"))
    for path, fire in zip(waiting, fires, strict=True):
        content = unsealed(path.read_bytes())
        lying, trigger = decode(content), read_fire(fire, bench.runtime.categories.get)
        assert encode(to_envelope(trigger, envelope_id=lying.id, at=lying.at)) == content
        assert from_envelope(lying) == trigger


async def test_a_message_without_fires_is_answered_by_one_without_receipts(bench: Bench) -> None:
    async def messages() -> Any:
        yield wire.FireBatch()
        yield wire.FireBatch(fires=[bench.fire(1)])

    answers = [answer async for answer in bench.service.FireBatches(messages(), Stream())]
    assert [len(answer.receipts) for answer in answers] == [0, 1]
