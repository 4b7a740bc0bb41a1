"""Trouble with the machine: what cannot be done now is done later, and neither a lane nor the claiming dies of it."""

import asyncio
from typing import Any

import pytest

from agent_runtime import worker as worker_module
from agent_runtime.decide import Asked
from agent_runtime.lanes import Handled, Item, Lanes
from tests.integration.runtime.harness import STATES, Bench, soon
from tests.support.scripted import calls
from turnkeeper.bus.envelope import Envelope, encode
from turnkeeper.clock import SystemClock

FULL = OSError(28, "No space left on device")


def broken(times: int, work: Any, over: asyncio.Event) -> Any:
    """Return `work` as it is while the disk is full: it raises so many times, then it works again."""
    left = [times]

    def tried(*args: Any, **fields: Any) -> Any:
        if left[0]:
            left[0] -= 1
            raise FULL
        over.set()
        return work(*args, **fields)

    return tried


async def test_a_lane_outlives_trouble_that_cannot_be_recorded(bench: Bench) -> None:
    store: Any = bench.runtime.store
    log: Any = bench.runtime.log
    emit = log.emit

    def full(event: str, **fields: Any) -> None:
        if event == "turn.trouble":
            raise FULL
        emit(event, **fields)

    log.emit = full
    store.begin = broken(2, store.begin, asyncio.Event())
    assert (await bench.run()).state == STATES.SUCCEEDED


async def ended(lanes: Lanes) -> None:
    task = lanes._lanes["thread-a"].task
    assert task is not None
    await asyncio.wait([task])


async def test_a_lane_that_died_is_served_again() -> None:
    handled: list[str] = []

    async def handle(thread_id: str, item: Item) -> Handled:
        handled.append(item.asked.turn_id)
        if handled == ["first"]:
            raise asyncio.CancelledError
        return Handled(done=True)

    lanes = Lanes(handle, SystemClock(), most_at_once=1, on_done=lambda: None)
    lanes.put("thread-a", Item(asked=Asked(source="cancel", turn_id="first")))
    await soon(ended(lanes), "the lane to die")
    lanes.put("thread-a", Item(asked=Asked(source="cancel", turn_id="second")))
    await soon(ended(lanes), "the lane to end")
    assert handled == ["first", "first", "second"]
    assert lanes.depth == 0


async def test_an_envelope_that_cannot_be_moved_aside_holds_up_nothing(bench: Bench) -> None:
    mailboxes: Any = bench.runtime.mailboxes
    over = asyncio.Event()
    mailboxes.quarantine = broken(1, mailboxes.quarantine, over)
    forged = Envelope(id="1", sender="author", to="agent0", kind="fire", text="go", at=bench.runtime.clock.now())
    (bench.home.inbox("agent0") / "inbox" / "00-forged.json").write_bytes(encode(forged))
    assert (await bench.run()).state == STATES.SUCCEEDED
    await soon(over.wait(), "the next try")
    assert len(bench.trail("envelope.stuck")) == 1


async def test_a_decision_is_tried_until_it_is_carried_out(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_module, "TROUBLE_S", 0.001)
    bench.script["go"] = [calls(("ask", {"question": "Which?"}))]
    event = await bench.run()
    (asked,) = await bench.pending()
    store: Any = bench.runtime.store
    store.resume = broken(2 * worker_module.MOST_TROUBLE, store.resume, asyncio.Event())
    await bench.resolve(asked.interrupt_id, "answer", message="this")
    assert (await bench.stopped(event.turn_id, after=event.sequence)).state == STATES.SUCCEEDED


async def test_a_fire_that_is_given_up_leaves_no_turn_to_be_continued(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_module, "TROUBLE_S", 0.001)
    intervals: Any = bench.runtime.worker._intervals
    intervals.run = broken(10_000, intervals.run, asyncio.Event())
    store: Any = bench.runtime.store
    store.try_again = broken(10_000, store.try_again, asyncio.Event())
    event = await bench.run()
    assert event.state == STATES.FAILED
    assert (await bench.turn(event.turn_id)).status == "failed"
    await bench.rest()
    await bench.crash()
    await bench.rest()
    assert await bench.history() == ["STARTED", "FAILED"]
    assert (await bench.run(2)).state == STATES.SUCCEEDED


async def test_a_turn_that_ended_stays_as_it_is_when_its_envelope_cannot_be_archived(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_module, "TROUBLE_S", 0.001)
    mailboxes: Any = bench.runtime.mailboxes
    mailboxes.archive = broken(10_000, mailboxes.archive, asyncio.Event())
    assert (await bench.run()).state == STATES.SUCCEEDED
    await bench.rest()
    assert await bench.history() == ["STARTED", "SUCCEEDED"]
