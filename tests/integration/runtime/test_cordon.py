"""A cordoned machine begins no turn, finishes what runs, and takes turns again after the cordon."""

import asyncio
from collections.abc import Callable
from typing import Any

from sqlalchemy import select

from agent_runtime.store.schema import threads
from tests.integration.runtime.harness import PATIENCE_S, Bench
from tests.support.clock import look_again
from tests.support.scripted import calls
from turnkeeper.config.settings import NodeSettings
from turnkeeper.constellation.upkeep.cordon import Here, Shared
from turnkeeper.storage import nodes
from turnkeeper.v1 import agent_runtime_pb2 as wire


def cordon_of(bench: Bench) -> Here | Shared:
    if bench.shared:
        return Shared(bench.shared, nodes.name_of(bench.settings.node))
    return Here(bench.home)


async def until(true: Callable[[], Any]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not true():
            await look_again()


async def cordoned(bench: Bench) -> Here | Shared:
    """Cordon the machine of a bench, and wait until its runtime knows."""
    cordon = cordon_of(bench)
    await asyncio.to_thread(cordon.begin)
    await until(bench.runtime.mailboxes.cordoned)
    return cordon


def at_rest(bench: Bench) -> bool:
    mailboxes: Any = bench.runtime.mailboxes
    return bool(mailboxes.ownership.at_rest()) if bench.shared else bench.home.cordoned.exists()


async def test_a_cordoned_machine_finishes_what_runs_and_begins_nothing(bench: Bench) -> None:
    bench.script["go"] = [calls(("block", {}))]
    running = await bench.accept(bench.fire(1))
    await bench.blocked.wait()
    behind = await bench.accept(bench.fire(2, prompt="again", task="b"))
    cordon = await cordoned(bench)
    other = await bench.accept(bench.fire(3, prompt="again", task="c", thread_id="thread-b"))
    assert not at_rest(bench), "a turn runs"
    bench.go.set()
    assert (await bench.stopped(running.turn_id)).turn_id == running.turn_id
    await until(lambda: at_rest(bench))
    if bench.shared:
        mailboxes: Any = bench.runtime.mailboxes
        renewed = mailboxes.ownership._renewed
        await until(lambda: mailboxes.ownership._renewed != renewed)
        taken = await bench.runtime.store.read(lambda c: list(c.execute(select(threads.c.thread_id)).scalars()))
        assert taken == ["thread-a"], "it takes no thread, or it would hand it over again and again"
    assert set(await bench.history()) == {"STARTED", "SUCCEEDED"}
    assert (await bench.history()).count("STARTED") == 1
    await asyncio.to_thread(cordon.end)
    for receipt in (behind, other):
        await bench.stopped(receipt.turn_id)
    assert (await bench.history()).count("STARTED") == 3


async def test_a_cordon_outlives_the_runtime(bench: Bench) -> None:
    cordon = await cordoned(bench)
    receipt = await bench.accept(bench.fire(1))
    await until(lambda: bench.shared or bench.runtime.worker.waiting)  # a crash in the middle of a claim is none here
    bench.home.cordoned.unlink(missing_ok=True)
    await bench.crash()
    await until(lambda: at_rest(bench))
    assert await bench.history() == []
    await asyncio.to_thread(cordon.end)
    assert (await bench.stopped(receipt.turn_id)).turn_id == receipt.turn_id


async def test_a_turn_that_was_killed_continues_on_the_one_machine_in_spite_of_its_cordon(bench: Bench) -> None:
    if bench.shared:
        return  # other machines continue it
    bench.script["go"] = [calls(("block", {}))]
    receipt = await bench.accept(bench.fire(1))
    await bench.blocked.wait()
    await cordoned(bench)
    await bench.crash()
    await bench.blocked.wait()
    bench.go.set()
    await bench.stopped(receipt.turn_id)
    await until(lambda: at_rest(bench))


async def test_a_decision_waits_for_the_end_of_a_cordon_and_a_cancel_does_not(bench: Bench) -> None:
    bench.script["go"] = [calls(("ask", {"question": "well?"}))]
    for number, task in ((1, "a"), (2, "b")):
        await bench.run(number, task=task, thread_id=f"thread-{task}")
    first, second = await bench.pending()
    cordon = await cordoned(bench)
    await until(lambda: at_rest(bench))
    await bench.resolve(first.interrupt_id, "approve")
    if not bench.shared:  # otherwise another machine cancels the turn
        await bench.service.CancelTurn(wire.CancelTurnRequest(turn_id=second.turn_id), None)
        await bench.stopped(second.turn_id)
    assert "RESUMED" not in await bench.history()
    await asyncio.to_thread(cordon.end)
    await bench.events(until=lambda event: event.turn_id == first.turn_id and event.state == event.SUCCEEDED)


async def test_another_machine_takes_what_a_cordoned_one_leaves(pair: tuple[Bench, Bench]) -> None:
    one, two = pair
    for bench, name in ((one, "one"), (two, "two")):
        await bench.stop()
        bench.settings = bench.settings.model_copy(update={"node": NodeSettings(name=name)})
        await bench.open()
    one.script["go"] = two.script["go"] = [calls(("block", {}))]
    two_cordon = await cordoned(two)
    first = await one.accept(one.fire(1))
    await one.blocked.wait()
    behind = await one.accept(one.fire(2, task="b"))
    await cordoned(one)
    await asyncio.to_thread(two_cordon.end)
    one.go.set()
    await two.blocked.wait()
    two.go.set()
    await two.stopped(first.turn_id)
    await two.stopped(behind.turn_id)
    await until(lambda: at_rest(one))
    assert not at_rest(two)
