"""Trouble with the machine: what cannot be done now is done later, and neither a lane nor the claiming dies of it."""

import asyncio
import errno
import gc
import os
import sqlite3
import threading
from typing import Any

import pytest

from agent_runtime.model.decide import MOST_TRIES, Incoming
from agent_runtime.turns import interval, worker
from agent_runtime.turns.lanes import Handled, Item, Lanes
from tests.integration.runtime.harness import PATIENCE_S, STATES, Bench, look_again, soon
from tests.support.clock import ManualClock
from tests.support.scripted import calls
from turnkeeper.bus.envelope import Envelope
from turnkeeper.clock import SystemClock
from turnkeeper.config.home import Home
from turnkeeper.config.settings import FaultSettings, NotifySettings, Settings
from turnkeeper.v1 import agent_runtime_pb2 as wire

pytestmark = pytest.mark.one_machine("it breaks files and stores of the home")

FULL = OSError(28, "No space left on device")
BUG = RuntimeError("a bug of ours")


def broken(times: int, work: Any, over: asyncio.Event, error: Exception = FULL) -> Any:
    """Return `work` as it is while the disk is full: it raises so many times, then it works again."""
    left = [times]

    def tried(*args: Any, **fields: Any) -> Any:
        if left[0]:
            left[0] -= 1
            raise error
        over.set()
        return work(*args, **fields)

    return tried


async def test_a_trail_that_cannot_be_written_undoes_nothing(
    bench: Bench, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "TROUBLE_S", 0.001)
    bench.runtime.log.close()
    for path in bench.home.logs.glob("events-agent-runtime-*.jsonl"):
        path.unlink()
    today = bench.runtime.clock.now().date()
    trail = bench.home.logs / f"events-agent-runtime-{today}.jsonl"
    trail.symlink_to("/dev/full")
    bench.category("work", tools=["tool:note"])
    bench.script["go"] = [calls(("note", {"text": "x"})), calls(("ask", {"question": "Which?"}))]
    store: Any = bench.runtime.store
    store.begin = broken(2, store.begin, asyncio.Event())
    assert (await bench.run()).state == STATES.INTERRUPTED
    held = await bench.run(2)
    assert held.state == STATES.HELD
    await bench.service.CancelTurn(wire.CancelTurnRequest(turn_id=(await bench.pending())[0].turn_id), None)
    await bench.events(until=lambda event: event.state == STATES.RELEASED)
    assert await bench.history() == ["STARTED", "INTERRUPTED", "HELD", "CANCELLED", "RELEASED"]
    assert bench.noted == ["x"]
    assert capfd.readouterr().err.count("events cannot be written: No space left on device") == 1


async def ended(lanes: Lanes) -> None:
    task = lanes._lanes["thread-a"].task
    assert task is not None
    await asyncio.wait([task])


async def test_a_fire_without_a_lane_is_named_once_that_lasts(home: Home, clock: ManualClock) -> None:
    bench = Bench(home, clock)
    await bench.open()
    bench.script["wait"] = [calls(("block", {}))]
    receipt = await bench.accept(bench.fire(prompt="wait"))
    await soon(bench.blocked.wait(), "the turn to block")
    clock.advance(2 * worker.OWNERLESS_S)
    assert bench.runtime.trouble() == "", "a turn may take as long as it is allowed to"
    (thread,) = bench.runtime.worker._lanes._lanes
    bench.runtime.worker._lanes.drop(thread)
    assert bench.runtime.trouble() == ""
    clock.advance(2 * worker.OWNERLESS_S)
    assert bench.runtime.trouble().startswith(f"accepted, but no turn handles it: {receipt.fire_id}; ")
    await bench.close()


async def test_a_lane_that_died_is_served_again() -> None:
    handled: list[str] = []

    async def handle(thread_id: str, item: Item) -> Handled:
        handled.append(item.asked.turn_id)
        if handled == ["first"]:
            raise asyncio.CancelledError
        return Handled(done=True)

    lanes = Lanes(handle, SystemClock(), most_at_once=1, on_done=lambda: None)
    lanes.put("thread-a", Item(asked=Incoming(source="cancel", turn_id="first")))
    await soon(ended(lanes), "the lane to die")
    lanes.put("thread-a", Item(asked=Incoming(source="cancel", turn_id="second")))
    await soon(ended(lanes), "the lane to end")
    assert handled == ["first", "first", "second"]
    assert lanes.depth == 0


def item(source: Any, turn_id: str, *, trigger: bool = False) -> Item:
    given: Any = object() if trigger else None
    return Item(asked=Incoming(source=source, turn_id=turn_id), trigger=given)


async def test_news_on_a_thread_does_not_wear_out_what_rests_there(clock: ManualClock) -> None:
    handled: list[str] = []

    async def handle(thread_id: str, item: Item) -> Handled:
        handled.append(item.asked.turn_id)
        in_trouble = item.asked.turn_id == "troubled" and handled.count("troubled") < 2
        return Handled(done=False, rest_s=30.0) if in_trouble else Handled(done=True)

    lanes = Lanes(handle, clock, most_at_once=1, on_done=lambda: None)
    lanes.put("thread-a", item("fire", "troubled", trigger=True))
    lanes.put("thread-a", item("fire", "behind it", trigger=True))
    for number in range(3):
        lanes.put("thread-a", item("decision", f"decision {number}"))
        while f"decision {number}" not in handled:
            await look_again()
    assert handled == ["troubled", "decision 0", "decision 1", "decision 2"]
    task: Any = lanes._lanes["thread-a"].task
    while not task.done():
        clock.advance(31.0)
        await asyncio.to_thread(lambda: None)
    assert handled[4:] == ["troubled", "behind it"], "fires and messages keep their order"


async def told(bench: Bench, settings: Settings) -> None:
    """Open the bench again, as one whose author wants to be told by a command."""
    await bench.stop()
    notify = NotifySettings(command=f'echo "$TURNKEEPER_EVENT $TURNKEEPER_TURN_ID" >> {bench.home.root}/told')
    bench.settings = settings.model_copy(update={"notify": notify})
    await bench.open(PATH="/usr/bin:/bin")


async def heard(bench: Bench) -> list[str]:
    async with asyncio.timeout(PATIENCE_S):
        while not bench.trail("notify.done"):
            await look_again()
    return (bench.home.root / "told").read_text().splitlines()


async def test_a_fire_that_is_tried_in_vain_is_seen_by_its_author(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "TROUBLE_S", 0.001)
    await told(bench, bench.settings)
    store: Any = bench.runtime.store
    store.begin = broken(10_000, store.begin, asyncio.Event(), BUG)
    event = await bench.run()
    assert (event.state, "a bug of ours" in event.error) == (STATES.FAILED, True)
    (shown,) = await bench.conversation()
    assert (shown.status, shown.messages[0].text, shown.error) == ("failed", "go", event.error)
    assert await heard(bench) == [f"failure {event.turn_id}"]
    await bench.rest()
    assert len(bench.lying("quarantine")) == 1
    again = await bench.accept(bench.fire())
    assert again.disposition == wire.FireReceipt.DUPLICATE


async def test_a_fire_waits_for_the_machine_however_often_it_fails(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "LONGEST_WAIT_S", 0.001)
    store: Any = bench.runtime.store
    store.begin = broken(10 * worker.MOST_TROUBLE, store.begin, asyncio.Event())
    assert (await bench.run()).state == STATES.SUCCEEDED
    await bench.rest()
    assert [record["tries"] for record in bench.trail("turn.trouble")] == [*range(1, 10 * worker.MOST_TROUBLE + 1)]
    assert bench.runtime.worker.waits == {}


async def test_tries_that_the_machine_broke_do_not_count_beside_failures_of_the_fire_s_own(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "TROUBLE_S", 0.001)
    store: Any = bench.runtime.store
    failing = broken(worker.MOST_TROUBLE - 1, store.begin, asyncio.Event(), BUG)
    store.begin = broken(worker.MOST_TROUBLE, failing, asyncio.Event())
    assert (await bench.run()).state == STATES.SUCCEEDED
    assert len(bench.trail("turn.trouble")) == 2 * worker.MOST_TROUBLE - 1


async def test_an_interval_that_the_machine_broke_does_not_count_and_says_what_it_waits_for(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "LONGEST_WAIT_S", 0.001)
    writer: Any = bench.runtime.worker._engines.of("")._checkpoints._file.writer
    serve, failing = writer._serves[0], threading.Event()
    failing.set()

    def fail(batch: Any) -> None:
        if not failing.is_set():
            serve(batch)
        else:
            error = sqlite3.DatabaseError("database disk image is malformed")  # as a failed read looks
            error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
            raise error

    writer._serves = [fail]
    receipt = await bench.accept(bench.fire())
    async with asyncio.timeout(PATIENCE_S):
        while len(bench.trail("turn.trouble")) < 20:
            await look_again()
    waits = await bench.turn(receipt.turn_id)
    assert (waits.status, waits.error[:7]) == ("running", "waits: ")
    assert (
        "the disk returned a page that is not readable; check its disk, and the file with: turnkeeper doctor"
        in waits.error
    )
    assert "malformed" not in waits.error, "the store is sound"
    assert "checkpoints.db" in bench.runtime.trouble()
    failing.clear()
    assert (await bench.stopped(receipt.turn_id)).state == STATES.SUCCEEDED
    await bench.rest()
    assert ((await bench.turn(receipt.turn_id)).error, bench.runtime.trouble()) == ("", "")


class Failing(list[str]):
    """A device that a tool writes to, and that fails a number of times."""

    def __init__(self, times: int, number: int = errno.EIO) -> None:
        super().__init__()
        self._left, self._number = times, number

    def append(self, text: str) -> None:
        if self._left:
            self._left -= 1
            raise OSError(self._number, os.strerror(self._number))
        super().append(text)


async def test_a_graph_whose_own_error_is_none_of_the_machine_fails_at_once(bench: Bench) -> None:
    bench.noted = Failing(1, errno.ENOENT)
    bench.script["go"] = [calls(("note", {"text": "x"}))]
    event = await bench.run()
    assert (event.state, bench.noted, bench.trail("turn.trouble")) == (STATES.FAILED, [], [])


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC, errno.EMFILE, errno.ENFILE, errno.ENOMEM])
async def test_a_graph_that_the_machine_fails_many_times_succeeds_when_the_machine_works_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.setattr(worker, "LONGEST_WAIT_S", 0.001)
    bench.noted = Failing(40, number)
    bench.script["go"] = [calls(("note", {"text": "x"}))]
    assert (await bench.run()).state == STATES.SUCCEEDED
    assert (bench.noted, len(bench.trail("turn.trouble"))) == (["x"], 40)


@pytest.mark.parametrize("of", ["fire", "decision", "recovery"])
async def test_a_graph_that_the_machine_fails_for_longer_than_its_limit_fails_and_says_so(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, of: str
) -> None:
    monkeypatch.setattr(worker, "LONGEST_WAIT_S", 0.001)
    bench.settings = bench.settings.model_copy(update={"faults": FaultSettings(graph_wait_s=0.05)})
    await bench.crash()
    bench.noted = Failing(100_000)
    asked = [] if of == "fire" else [calls(("ask", {"question": "Which?"}))]
    bench.script["go"] = [*asked, calls(("note", {"text": "x"}))]
    receipt = await bench.accept(bench.fire())
    event = await bench.stopped(receipt.turn_id)
    if of != "fire":
        (question,) = await bench.pending()
        await bench.resolve(question.interrupt_id, "answer", message="this")
        if of == "recovery":
            await bench.crash()
        event = await bench.stopped(receipt.turn_id, after=event.sequence)
    assert event.state == STATES.FAILED
    assert (
        event.error
        == "a file or device of its graph cannot be read or written: Input/output error; the runtime retried for 0 s"
    )
    await bench.rest()
    assert bench.runtime.worker.waits == {}
    bench.noted, bench.script["go"] = [], [calls(("note", {"text": "x"}))]
    assert (await bench.run(2)).state == STATES.SUCCEEDED


async def test_an_accepted_fire_whose_envelope_can_no_longer_be_read_has_failed(bench: Bench) -> None:
    bench.script["wait"] = [calls(("block", {}))]
    await bench.accept(bench.fire(1, prompt="wait"))
    await soon(bench.blocked.wait(), "the first turn to block")
    await bench.runtime.worker.stop(0.0)
    second = await bench.accept(bench.fire(2))
    (path,) = (bench.home.inbox("agent0") / "inbox").glob("*.json")
    path.write_text(path.read_text().replace('"nominal_at"', '"nominally_at"'))
    bench.runtime.mailboxes.close()
    await told(bench, bench.settings)
    event = await bench.stopped(second.turn_id)
    assert (event.state, event.fire_id, event.attempt) == (STATES.FAILED, second.fire_id, 1)
    assert "cannot be read" in event.error
    assert (await bench.turn(second.turn_id)).status == "failed"
    assert await heard(bench) == [f"failure {second.turn_id}"]
    again = await bench.accept(bench.fire(2))
    assert again.disposition == wire.FireReceipt.DUPLICATE, "it is over, and not begun once more"
    bench.go.set()
    await bench.rest()
    await bench.crash()
    await bench.rest()
    assert (await bench.history()).count("FAILED") == 1


async def test_an_envelope_that_cannot_be_moved_aside_holds_up_nothing_and_is_tried_ever_less_often(
    home: Home, clock: ManualClock
) -> None:
    bench = Bench(home, clock)
    await bench.open()
    mailboxes: Any = bench.runtime.mailboxes
    over = asyncio.Event()
    quarantine, mailboxes.quarantine = mailboxes.quarantine, broken(10_000, None, over)
    forged = Envelope(id="1", sender="author", to="agent0", kind="fire", text="go", at=bench.runtime.clock.now())
    name = bench.post(forged)
    assert (await bench.run()).state == STATES.SUCCEEDED
    for _ in range(400):
        clock.advance(1.0)
        await asyncio.to_thread(lambda: None)
    tries = [record["tries"] for record in bench.trail("envelope.stuck")]
    assert tries == list(range(1, len(tries) + 1))
    assert 2 <= len(tries) <= 25, "tried each second it would have been 400 times"
    mailboxes.quarantine = broken(0, quarantine, over)
    async with asyncio.timeout(PATIENCE_S):
        while not bench.lying("quarantine"):
            clock.advance(1.0)
            await asyncio.to_thread(lambda: None)
    assert bench.lying("quarantine") == [name]
    await bench.close()


async def test_a_decision_is_tried_until_it_is_carried_out(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "TROUBLE_S", 0.001)
    bench.script["go"] = [calls(("ask", {"question": "Which?"}))]
    event = await bench.run()
    (asked,) = await bench.pending()
    store: Any = bench.runtime.store
    store.resume = broken(2 * worker.MOST_TROUBLE, store.resume, asyncio.Event())
    await bench.resolve(asked.interrupt_id, "answer", message="this")
    assert (await bench.stopped(event.turn_id, after=event.sequence)).state == STATES.SUCCEEDED


async def test_a_fire_that_is_given_up_leaves_no_turn_to_be_continued(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "TROUBLE_S", 0.001)
    intervals: Any = bench.runtime.worker._intervals
    intervals.run = broken(10_000, intervals.run, asyncio.Event(), BUG)
    store: Any = bench.runtime.store
    store.try_again = broken(10_000, store.try_again, asyncio.Event(), BUG)
    event = await bench.run()
    assert event.state == STATES.FAILED
    assert (await bench.turn(event.turn_id)).status == "failed"
    await bench.rest()
    await bench.crash()
    await bench.rest()
    assert await bench.history() == ["STARTED", "FAILED"]
    assert (await bench.run(2)).state == STATES.SUCCEEDED


async def test_an_interval_that_the_machine_broke_off_counts_no_try_even_if_that_cannot_be_written(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that fails now and then lets a turn begin, breaks it off, and keeps the store from taking the try back."""
    monkeypatch.setattr(worker, "LONGEST_WAIT_S", 0.001)
    store, intervals = bench.runtime.store, bench.runtime.worker._intervals
    tries = 4 * MOST_TRIES
    monkeypatch.setattr(intervals, "run", broken(tries, intervals.run, asyncio.Event()))
    monkeypatch.setattr(store, "give_back", broken(tries, store.give_back, asyncio.Event()))
    event = await bench.run()
    assert event.state == STATES.SUCCEEDED
    await bench.rest()
    assert await bench.history() == ["STARTED", "SUCCEEDED"]
    assert (bench.lying("claimed"), bench.lying("quarantine")) == ([], [])


async def test_giving_a_fire_up_is_tried_until_it_is_written(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "TROUBLE_S", 0.001)
    store: Any = bench.runtime.store
    store.begin = broken(10_000, store.begin, asyncio.Event(), BUG)
    over = asyncio.Event()
    store.refuse = broken(3, store.refuse, over)
    event = await bench.run()
    assert (event.state, over.is_set()) == (STATES.FAILED, True)
    await bench.rest()
    assert (bench.lying("claimed"), len(bench.lying("quarantine"))) == ([], 1)
    assert bench.runtime.trouble() == ""


async def test_a_turn_that_ended_stays_as_it_is_when_its_envelope_cannot_be_archived(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "TROUBLE_S", 0.001)
    mailboxes: Any = bench.runtime.mailboxes
    mailboxes.archive = broken(10_000, mailboxes.archive, asyncio.Event(), BUG)
    assert (await bench.run()).state == STATES.SUCCEEDED
    await bench.rest()
    assert await bench.history() == ["STARTED", "SUCCEEDED"]


async def test_what_is_said_meanwhile_and_cannot_be_written_is_no_bug(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is written with the outcome: no error of it is left that nobody asked for."""
    unheard: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unheard.append(context))
    bench.category("work", tools=["tool:note"])
    bench.script["go"] = [calls(("note", {"text": text})) for text in ("x", "y", "z")]
    store: Any = bench.runtime.store
    over = asyncio.Event()

    async def full(*_: Any, **__: Any) -> None:
        over.set()
        raise FULL

    monkeypatch.setattr(interval, "RECORD_S", 0.0)
    monkeypatch.setattr(store, "record", full)
    assert (await bench.run()).state == STATES.SUCCEEDED
    gc.collect()
    assert over.is_set()
    assert [context["message"] for context in unheard] == []
    assert bench.noted == ["x", "y", "z"]
