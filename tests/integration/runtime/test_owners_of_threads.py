"""Two runtimes share one database: whoever is asked, the owner of the thread does it, and whoever looks sees it."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import Connection, select, update
from sqlalchemy.exc import OperationalError

from agent_runtime.cli import client
from agent_runtime.cli.chat import conversation
from agent_runtime.graph.checkpointer import saver
from agent_runtime.mailbox.outboxes import open_requests
from agent_runtime.mailbox.shared import Ownership
from agent_runtime.store import leases, schema
from agent_runtime.store.database import open_database
from agent_runtime.store.leases import Fenced, Lease, under
from agent_runtime.store.turn_store import Store
from agent_runtime.turns import lanes, turns, worker
from tests.integration.runtime.harness import PATIENCE_S, STATES, Bench, soon
from tests.integration.runtime.test_follow_conversation import served
from tests.integration.runtime.test_messages_from_terminals import says
from tests.support.clock import ManualClock, look_again
from tests.support.cluster import taken
from tests.support.scripted import calls
from tests.support.seeded_entropy import SeededEntropy
from turnkeeper.config.home import Home
from turnkeeper.storage import nodes
from turnkeeper.storage.server import following, handover, inboxes
from turnkeeper.v1 import agent_runtime_pb2 as wire

Pair = tuple[Bench, Bench]
TOOLS = ["agent.send", "tool:note", "tool:block", "tool:pause"]


async def running(pair: Pair) -> tuple[wire.FireReceipt, Bench, Bench]:
    """Start a turn that blocks; return its receipt, the runtime that runs it, and the other."""
    receipt: wire.FireReceipt = await pair[0].accept(pair[0].fire(1))
    waits = [asyncio.create_task(bench.blocked.wait()) for bench in pair]
    await soon(asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED), "the turn to block")
    one, other = pair if waits[0].done() else pair[::-1]
    for wait in waits:
        wait.cancel()
    return receipt, one, other


async def test_a_turn_is_cancelled_by_way_of_the_other(pair: Pair) -> None:
    receipt, _, other = await running(pair)
    asked = wire.CancelTurnRequest(turn_id=receipt.turn_id, reason="enough")
    assert (await other.service.CancelTurn(asked, None)).cancel_requested
    event = await other.stopped(receipt.turn_id)
    assert (event.state, event.error) == (STATES.CANCELLED, "enough")
    assert [bench.noted for bench in pair].count(["a"]) == 1


async def test_an_approval_is_decided_by_way_of_the_other(pair: Pair) -> None:
    for bench in pair:
        bench.category("work", tools=["tool:block"])
        bench.script["go"] = [calls(("note", {"text": "x"}))]
    event = await pair[0].run(1)
    assert event.state == STATES.INTERRUPTED
    (question,) = await pair[1].pending()
    await pair[1].resolve(question.interrupt_id, "approve", args_hash=question.args_hash)
    assert (await pair[0].stopped(event.turn_id, after=event.sequence)).state == STATES.SUCCEEDED
    assert [*pair[0].noted, *pair[1].noted] == ["x"]


async def test_who_waits_for_a_turn_that_another_machine_is_about_to_go_on_with_waits_on(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    for bench in pair:
        bench.category("work", tools=["tool:block"])
        bench.script["go"] = [calls(("note", {"text": "x"}))]
    monkeypatch.setenv("TURNKEEPER_HOME", str(pair[0].home.root))
    event = await pair[0].run(1)
    assert event.state == STATES.INTERRUPTED
    while any(bench.runtime.mailboxes.ownership.held for bench in pair):
        await look_again()
    await looks_no_more(*pair)
    (question,) = await pair[0].pending()
    await pair[1].resolve(question.interrupt_id, "approve", args_hash=question.args_hash)
    loop = asyncio.get_running_loop()

    def go_on() -> None:
        for bench in pair:
            vars(bench.runtime.mailboxes.ownership).pop("take", None)

    def change(request: Any) -> Any:
        answer = client.change(request)
        loop.call_soon_threadsafe(go_on)
        return answer

    monkeypatch.setattr(conversation, "change", change)
    async with served(pair[0]):
        turn = await asyncio.to_thread(conversation._await, event.turn_id, PATIENCE_S)
    assert turn.status == "succeeded"


@pytest.mark.parametrize("of", ["category", "graph"])
async def test_a_turn_goes_on_where_its_category_and_its_graph_are_as_it_began(pair: Pair, of: str) -> None:
    for bench in pair:
        bench.category("work", tools=["tool:block"])
        bench.script["go"] = [calls(("note", {"text": "x"}))]
        bench.runtime.store.right.digest_of_graph = lambda _name: "of-one"
    event = await pair[0].run(1)
    assert event.state == STATES.INTERRUPTED
    begun = nodes.digest(pair[0].runtime.categories.get("work").to_dict()) if of == "category" else "of-one"
    one, other = [bench.runtime.mailboxes.ownership for bench in pair]
    while one.held or other.held:
        await look_again()
    other.lacking = lambda: {begun}
    one.lacking = lambda: {"what-else"}
    await looks_no_more(pair[0])
    (question,) = await pair[1].pending()
    await pair[1].resolve(question.interrupt_id, "approve", args_hash=question.args_hash)
    await looked(pair[1])
    assert await pair[1].history() == ["STARTED", "INTERRUPTED"], "it waits for the one that has it"
    del one.take
    assert (await pair[0].stopped(event.turn_id, after=event.sequence)).state == STATES.SUCCEEDED
    assert (pair[0].noted, pair[1].noted) == (["x"], [])


async def looked(bench: Bench, count: int = 3) -> None:
    """Return once a machine has looked so often what waits."""
    where, seen = bench.runtime.mailboxes.ownership, 0

    async def counted() -> Any:
        nonlocal seen
        seen += 1
        return await type(where).take(where)

    where.take = counted
    while seen <= count:
        bench.runtime.worker._arrived.notify()
        await look_again()
    del where.take


async def looks_no_more(*benches: Bench) -> None:
    """Let machines take nothing; return once the look that each had begun before is over."""
    for bench in benches:
        looked = asyncio.Event()

        async def look(looked: asyncio.Event = looked) -> list[Any]:
            looked.set()
            return []

        bench.runtime.mailboxes.ownership.take = look
        bench.runtime.worker._arrived.notify()
        await soon(looked.wait(), "a look that takes nothing")


async def test_an_author_writes_to_the_same_thread_by_way_of_either(pair: Pair) -> None:
    for bench in pair:
        bench.script |= {"hello": [], "and again": []}
    first = await pair[0].send("hello", thread_id="thread-a", request_id="same")
    again = await pair[1].send("hello", thread_id="thread-a", request_id="same")
    assert again.turn_id == first.turn_id
    assert (await pair[1].stopped(first.turn_id)).state == STATES.SUCCEEDED
    second = await pair[1].send("and again", thread_id="thread-a")
    assert (await pair[0].stopped(second.turn_id)).state == STATES.SUCCEEDED
    assert [turn.messages[0].text for turn in await pair[0].conversation()] == ["hello", "and again"]


async def test_what_waits_for_a_thread_goes_to_its_owner_in_order(pair: Pair) -> None:
    receipt, one, other = await running(pair)
    later = [await other.accept(other.fire(number)) for number in (2, 3)]
    for bench in pair:
        bench.script["go"] = []
    one.go.set()
    events = [await other.stopped(each.turn_id) for each in (receipt, *later)]
    assert [event.state for event in events] == [STATES.SUCCEEDED] * 3
    assert [event.sequence for event in events] == sorted(event.sequence for event in events)
    turns = {event.turn_id: event.thread_id for event in events}
    assert set(turns.values()) == {"thread-a"}


async def test_a_runtime_that_stops_in_good_order_hands_its_turns_over(pair: Pair) -> None:
    receipt, one, other = await running(pair)
    one.runtime.worker._engines.drain()
    await one.runtime.worker.stop(0.0)
    await soon(other.blocked.wait(), "the other to go on with the turn")
    other.go.set()
    assert (await other.stopped(receipt.turn_id)).state == STATES.SUCCEEDED
    turn = await other.turn(receipt.turn_id)
    assert turn.status == "succeeded"


async def test_a_runtime_that_stops_hands_each_thread_over_as_its_turn_stops(pair: Pair) -> None:
    """Another of its turns takes as long as it may to come to a step's end."""
    receipt, one, other = await running(pair)
    for bench in pair:
        bench.category("work", tools=TOOLS, tool_calls=1000)
    one.script["many"] = [calls(("note", {"text": str(number)})) for number in range(500)]
    other.script["many"] = []
    await looks_no_more(other)
    second = await one.accept(one.fire(2, task="b", thread_id="thread-b", prompt="many"))
    while not one.runtime.mailboxes.owns("thread-b") or "1" not in one.noted:
        await look_again()
    stopping = asyncio.create_task(one.runtime.worker.stop(PATIENCE_S))
    del other.runtime.mailboxes.ownership.take
    assert (await other.stopped(second.turn_id)).state == STATES.SUCCEEDED
    assert not stopping.done()
    assert len(one.noted) < 500
    one.go.set()
    await stopping
    other.go.set()
    assert (await other.stopped(receipt.turn_id)).state == STATES.SUCCEEDED


async def test_a_thread_whose_owner_lost_it_goes_on_with_the_next(pair: Pair) -> None:
    """Its owner was stopped for longer than its lease: what it does later is refused, and its turn ends elsewhere."""
    receipt, one, other = await running(pair)
    lease = one.runtime.mailboxes.lease_of("thread-a")
    assert lease == Lease("thread-a", 1)
    owner: Any = one.runtime.mailboxes
    await one.runtime.store._database.run(
        lambda c: c.execute(
            update(schema.owners).where(schema.owners.c.owner == owner.ownership.owner).values(until_us=0)
        )
    )
    await soon(other.blocked.wait(), "the other to go on with the turn")
    other.go.set()
    assert (await other.stopped(receipt.turn_id)).state == STATES.SUCCEEDED
    one.go.set()
    while one.runtime.mailboxes.lease_of("thread-a") == lease:
        await look_again()
    await one.rest()
    assert await other.history() == ["STARTED", "SUCCEEDED"]
    rows = await other.runtime.store.read(lambda c: c.execute(select(schema.turns.c.epoch, schema.turns.c.tries)).all())
    assert [tuple(row) for row in rows] == [(2, 2)]


class AnswersLost:
    """A connection that is cut behind the commit of one unit: whoever asked for it never learns that it was done."""

    def __init__(self, database: Any) -> None:
        self._database, self.lost = database, list[str]()
        self.loses: Any = lambda _answer: False

    async def run(self, work: Any) -> Any:
        return self._told(await self._database.run(work))

    async def read(self, work: Any) -> Any:
        return self._told(await self._database.read(work))

    def _told(self, answer: Any) -> Any:
        if self.loses(answer):
            self.lost.append("an answer")
            raise OperationalError("", None, ConnectionError("cut"))
        return answer


async def test_what_was_claimed_before_and_with_a_lost_answer_is_not_left_lying(pair: Pair) -> None:
    """Of three threads the second one's claim is committed, and its answer is lost."""
    one, other = pair
    one.script["go"], where, asked = [], one.runtime.mailboxes.ownership, ("thread-1", "thread-2", "thread-3")
    where._database = cut = AnswersLost(where._database)
    cut.loses = lambda answer: isinstance(answer, tuple) and answer[0] == Lease("thread-2", 1) and not cut.lost
    await looks_no_more(one, other)
    receipts = [await one.accept(one.fire(number, thread_id=name)) for number, name in enumerate(asked, 1)]
    del where.take
    one.runtime.worker._arrived.notify()
    assert (await one.stopped(receipts[0].turn_id)).state == STATES.SUCCEEDED, "it was claimed before"
    assert cut.lost
    await freed(one)
    for receipt in receipts[1:]:
        assert (await one.stopped(receipt.turn_id)).state == STATES.SUCCEEDED
    epochs = await one.runtime.store.read(lambda c: c.execute(select(schema.turns.c.thread_id, schema.turns.c.epoch)))
    assert dict(map(tuple, epochs.all())) == {"thread-1": 1, "thread-2": 2, "thread-3": 1}


async def test_a_thread_whose_news_were_claimed_with_a_lost_answer_is_given_up(pair: Pair) -> None:
    """Its turn goes on under the next epoch, and behind it what was claimed."""
    receipt, one, other = await running(pair)
    await looks_no_more(other)
    where = one.runtime.mailboxes.ownership
    where._database = cut = AnswersLost(where._database)
    cut.loses = lambda answer: isinstance(answer, tuple) and bool(answer[1]) and not cut.lost
    later = await one.accept(one.fire(2))
    while not cut.lost:
        await look_again()
    one.script["go"] = []
    one.go.set()
    await freed(one)
    for each in (receipt, later):
        assert (await one.stopped(each.turn_id)).state == STATES.SUCCEEDED
    assert [row.status for row in await one.runtime.store.read(lambda c: c.execute(select(schema.turns)).all())] == [
        "succeeded"
    ] * 2


async def test_the_next_process_of_a_home_that_was_killed_goes_on_at_once(shared_url: str, tmp_path: Path) -> None:
    url, _ = taken(shared_url)
    database, log = open_database(url), SimpleNamespace(emit=print)

    async def owner_of(home: str, seed: int) -> Ownership:
        how: Any = {"clock": ManualClock(), "entropy": SeededEntropy(seed), "log": log}
        made = Ownership(database, tmp_path / home, **how)
        await made.begin(print)
        return made

    async def takes(ownership: Ownership) -> Lease | None:
        return await database.run(lambda c: leases.take(c, "nightly", ownership.owner))

    killed = await owner_of("one", 1)
    before, beside = await takes(killed), await owner_of("two", 2)
    assert killed._keeping is not None
    killed._keeping.cancel()
    assert await takes(beside) is None, "another machine waits until the lease has ended"
    after = await takes(again := await owner_of("one", 3))
    assert before is not None
    assert after == Lease("nightly", before.epoch + 1)
    with pytest.raises(Fenced):
        await database.run(lambda c: leases.check(c, before))
    for ownership in (again, beside):
        await ownership.leave()
    database.close()


async def test_a_machine_that_cannot_renew_gives_its_threads_up_in_time(shared_url: str, tmp_path: Path) -> None:
    """Ten seconds after it could the last time: its lease holds for fifteen, and until then nobody may take them."""
    url, _ = taken(shared_url)
    database, clock, lost, said = open_database(url), ManualClock(), list[str](), list[str]()
    cut: Any = AnswersLost(database)
    log: Any = SimpleNamespace(emit=lambda event, **_fields: said.append(event))
    ownership = Ownership(cut, tmp_path / "owner", clock=clock, entropy=SeededEntropy(1), log=log)
    await ownership.begin(lost.append)
    ownership.held["t"], cut.loses = Lease("t", 1), lambda _answer: True
    for seconds in range(2, 11, 2):
        while not clock._sleepers:
            await look_again()
        assert lost == [], f"before {seconds} s"
        clock.advance(2)
        while len(cut.lost) < seconds / 2:
            await look_again()
    while "lease.lost" not in said:
        await look_again()
    assert (lost, dict(ownership.held)) == (["t"], {})
    cut.loses = lambda _answer: False
    row = {"key": "k", "thread_id": "t", "agent": "a", "kind": handover.FIRE, "envelope": b"{}"}
    await database.run(lambda c: schema.handover.put_all(c, [row], clock.now()))
    assert await ownership.take() == [], "it takes what it could not keep"
    while not clock._sleepers:
        await look_again()
    clock.advance(2)
    while not await ownership.take():  # once it could renew
        await look_again()
    await ownership.leave()
    database.close()


async def test_a_cordoned_machine_whose_lease_ended_stays_cordoned(shared_url: str, tmp_path: Path) -> None:
    url, _ = taken(shared_url)
    database, clock, seen = open_database(url), ManualClock(), list[str]()
    log: Any = SimpleNamespace(emit=lambda *_said, **_fields: None)
    ownership = Ownership(database, tmp_path / "owner", clock=clock, entropy=SeededEntropy(1), log=log)
    ownership.node = "one"
    await database.run(lambda c: leases.set_meta(c, "cordoned one", "2026-01-01"))
    await ownership.begin(print)
    began: Any = ownership._begin

    async def begin() -> None:
        seen.append(ownership.cordoned)
        await began()

    ownership._begin = begin  # type: ignore[method-assign]
    await database.run(lambda c: leases.leave(c, ownership.owner))
    while not clock._sleepers:
        await look_again()
    clock.advance(2)
    while not seen:
        await look_again()
    assert seen == ["2026-01-01"], "it takes no turns until it is an owner again"
    await ownership.leave()
    database.close()


@pytest.mark.parametrize("fails", ["to begin the thread", "to read the files"])
async def test_what_was_claimed_is_given_up_if_it_cannot_be_begun(pair: Pair, fails: str) -> None:
    one, other = pair
    mailboxes: Any = one.runtime.mailboxes
    one.script["go"], failed = [], list[str]()
    await looks_no_more(other)

    def fail(*_asked: object) -> list[Any]:
        if not failed and mailboxes.ownership.held:
            failed.append("once")
            raise OSError("cut")
        return []

    async def fail_to_begin(_thread_id: str) -> None:
        fail()

    if fails == "to begin the thread":
        mailboxes._on_taken = fail_to_begin
    else:
        mailboxes._claim = fail
    receipt = await one.accept(one.fire(1))
    while not failed:
        await look_again()
    await freed(one)
    assert (await one.stopped(receipt.turn_id)).state == STATES.SUCCEEDED


async def test_what_failed_and_cannot_even_be_recorded_is_left_to_whoever_takes_its_thread_next(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = pair
    of: Any = one.runtime.worker
    await looks_no_more(other)
    one.script["go"], failed, handle = [], list[str](), of._turns.handle

    async def fail(*_asked: object) -> None:
        failed.append("once")
        raise RuntimeError("no reason known")

    monkeypatch.setattr(worker, "MOST_TROUBLE", 1)
    monkeypatch.setattr(of._turns, "handle", fail)
    monkeypatch.setattr(one.runtime.store, "refuse", fail)
    receipt = await one.accept(one.fire(1))
    while len(failed) < 2 or one.runtime.mailboxes.owns("thread-a"):
        await look_again()
    monkeypatch.setattr(of._turns, "handle", handle)
    await freed(one)
    assert (await one.stopped(receipt.turn_id)).state == STATES.SUCCEEDED


async def freed(bench: Bench) -> None:
    """Free, as two renewals do, what this machine owns by the database, and does not hold."""
    ownership: Any = bench.runtime.mailboxes.ownership
    for _ in range(2):
        epochs, _ = await ownership._database.run(lambda c: leases.renew(c, ownership.owner))
        await ownership._give_up({Lease(*owned) for owned in epochs.items() if owned[0] not in ownership.held})
    bench.runtime.worker._arrived.notify()


async def test_a_thread_that_another_was_faster_to_deal_with_is_not_kept(pair: Pair) -> None:
    """It was wanted at the look, and nothing waits once it is taken: who kept it would soon own all that it may."""
    ownership = pair[0].runtime.mailboxes.ownership
    ownership._wanted = lambda _connection: ["thread-x"]
    assert await ownership.take() == []
    assert not ownership.held
    owners = await pair[0].runtime.store.read(lambda c: c.execute(select(schema.threads.c.owner)).scalars().all())
    assert owners == [""]


async def test_no_look_passes_between_what_waits_for_a_thread_of_a_live_owner(
    home: Home, shared_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Looks come once an hour here, and what is put off, as old checkpoints are, is put off for as long.

    What waits is more than is claimed at a time, and then comes while a turn runs. The thread is let go all the same.
    """
    put_off = ((saver, "HELD_S"), (saver, "PRUNED_S"), (turns, "PRUNING_S"))
    for module, name in ((worker, "POLL_S"), (lanes, "NEXT_S"), (following, "LOOK_S"), *put_off):
        monkeypatch.setattr(module, name, 3600.0)
    bench = Bench(home, shared=shared_url)
    await bench.open()
    try:
        store, fire = bench.runtime.store, bench.fire(1)
        row = {"key": f"fire:{fire.fire_id}:1", "thread_id": "thread-a", "agent": "agent0", "kind": "fire"}

        def put(connection: Connection) -> None:
            for number in range(leases.MOST_OF_THREAD + 2):
                schema.handover.look(connection, "thread-a", f"{number}", store.clock.now())
            schema.handover.put_all(connection, [{**row, "envelope": fire.SerializeToString()}], store.clock.now())

        bench.script["go"] = [calls(("block", {}))]
        await store.write(put)
        await soon(bench.blocked.wait(), "what was put last")
        later = await bench.accept(bench.fire(2))
        bench.script["go"] = []
        bench.go.set()
        assert (await bench.stopped(later.turn_id)).state == STATES.SUCCEEDED
        assert await bench.history() == ["STARTED", "SUCCEEDED"] * 2
        async with asyncio.timeout(PATIENCE_S):
            while bench.runtime.mailboxes.owns("thread-a"):
                await look_again()
        kept = await bench.runtime.checkpoints.achange(
            lambda c: c.execute("SELECT count(*) FROM checkpoints WHERE thread_id = 'thread-a'").fetchone()
        )
        assert kept == (1,), "the old ones are gone before the thread is"
    finally:
        await bench.close()


async def test_a_pause_ends_on_whichever_machine(pair: Pair) -> None:
    """The first look comes too early, as by a clock that is ahead: the pause goes on, and the next look ends it."""
    for bench in pair:
        bench.script["go"] = [calls(("pause", {}))]
    event = await pair[0].run(1)
    assert event.state == STATES.PAUSED
    store = pair[0].runtime.store
    early = await store.read(looks)
    await store.write(lambda c: c.execute(update(schema.envelopes).values(not_before_us=0)))
    while await store.read(looks) in ([], early):
        await look_again()
    await store.write(lambda c: c.execute(update(schema.turns).values(paused_until_us=1)))
    await store.write(lambda c: c.execute(update(schema.envelopes).values(not_before_us=0)))
    assert (await pair[1].stopped(event.turn_id, after=event.sequence)).state == STATES.CANCELLED


def looks(connection: Connection) -> list[int]:
    return list(connection.execute(select(schema.envelopes.c.number)).scalars())


async def test_what_nobody_can_run_fails_and_its_thread_is_let_go(pair: Pair) -> None:
    request = pair[0].fire(1)
    request.category = "unheard-of"
    row = {"key": f"fire:{request.fire_id}:1", "thread_id": "thread-a", "agent": "agent0", "kind": "fire"}
    at = pair[0].runtime.clock.now()
    put = [{**row, "envelope": request.SerializeToString()}, {**row, "key": "fire:x@1:1", "envelope": b"\xff\xff"}]
    await pair[0].runtime.store.write(lambda c: schema.handover.put_all(c, put, at))
    events = await pair[1].events(until=lambda event: event.fire_id == "x@1")
    assert {event.state for event in events} == {STATES.FAILED}
    while any(bench.runtime.mailboxes.owns("thread-a") for bench in pair):
        await look_again()
    states = select(schema.envelopes.c.state, schema.envelopes.c.reason).order_by(schema.envelopes.c.number)
    first, second = await pair[0].runtime.store.read(lambda c: c.execute(states).all())
    assert (first.state, second.state) == ("quarantined", "quarantined")
    assert "unheard-of" in first.reason


async def test_all_goes_on_without_notifications_at_the_next_look(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody's pooler may lose them: then a look finds what was put, cancelled and ended, a second later."""
    monkeypatch.setattr(handover, "notify", lambda *_about: None)
    receipt, _, other = await running(pair)
    await other.service.CancelTurn(wire.CancelTurnRequest(turn_id=receipt.turn_id, reason="enough"), None)
    assert (await other.stopped(receipt.turn_id)).state == STATES.CANCELLED


async def test_what_one_was_told_to_report_of_turns_the_other_reports_as_well(pair: Pair) -> None:
    await pair[0].runtime.store.write(
        lambda c: pair[0].runtime.store.event_source.want(c, frozenset({"turn_start", "turn_end"}), 0)
    )
    for bench in pair:
        bench.script["go"] = []
    for number in range(1, 7):
        await pair[number % 2].run(number, thread_id=f"thread-{number}")
    names = await pair[1].runtime.store.read(lambda c: c.execute(select(schema.bridged_events.c.name)).scalars().all())
    assert sorted(names) == ["turn_end"] * 6 + ["turn_start"] * 6


async def test_every_write_for_a_turn_proves_its_epoch(pair: Pair) -> None:
    receipt, one, _ = await running(pair)
    store, stale = one.runtime.store, Lease("thread-a", 1)
    await store._database.run(lambda c: c.execute(update(schema.threads).values(epoch=2)))
    turn, at = receipt.turn_id, ()
    writes = {
        "record": lambda: store.record(turn, [], (1, 1)),
        "wake": lambda: store.wake(turn, 5),
        "narrow": lambda: store.narrow(turn, "{}"),
        "try_again": lambda: store.try_again(turn),
        "give_back": lambda: store.give_back(turn),
        "resume": lambda: store.resume(turn, at),
        "finish": lambda: store.finish(turn, "succeeded"),
        "interrupted": lambda: store.interrupted(turn, at),
        "a write of a tool": lambda: one.runtime.workspace.write(lambda _connection: None),
        "an archive": lambda: one.runtime.store.write(lambda c: leases.archive(c, stale, 1)),
    }
    for name, write in writes.items():
        with under(stale):
            refused = (await asyncio.gather(write(), return_exceptions=True))[0]
        assert isinstance(refused, Fenced), name
    unproven = (await asyncio.gather(store.finish(turn, "succeeded"), return_exceptions=True))[0]
    assert isinstance(unproven, RuntimeError), "without a lease no turn is written"
    assert {"cancel", "decide", "end_exceptions", "expire", "told"} <= set(dir(Store))
    one.go.set()


async def test_of_two_answers_that_terminals_of_two_machines_give_to_one_message_one_counts(pair: Pair) -> None:
    for bench in pair:
        bench.category("work", tools=["agent.send", "tool:block"])
        bench.home.inbox("codex").mkdir(parents=True)
        bench.home.inbox("codex").chmod(0o700)
        bench.script["go"] = [calls(("agent_send", {"worker": "codex", "text": "is CI green?"})), calls(("block", {}))]
    await pair[0].runtime.store.write(lambda c: inboxes.begin_reading(c, "codex", "inbox watch"))
    await running(pair)  # what is answered waits until this turn is over
    (asked,) = await pair[0].runtime.store.read(lambda c: open_requests(c, "codex", ""))
    for bench in pair:
        says(bench, "1", body="it is", meta={"answers": asked[0].turn_id})  # type: ignore[arg-type]

    def told(what: str) -> int:
        return sum(len(bench.trail(what)) for bench in pair)

    async with asyncio.timeout(PATIENCE_S):
        while told("outbox.accepted") + told("outbox.refused") < 2:
            await look_again()
    assert (told("outbox.accepted"), told("outbox.refused")) == (1, 1)
