"""What reaches the runtime is in its trail before a store has answered: a store that is locked blinds nobody."""

import asyncio
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

from tests.integration.runtime.harness import Bench, soon
from tests.support.clock import look_again
from tests.support.program import app
from tests.support.scripted import calls
from turnkeeper import console
from turnkeeper.bus.event_log import read_events
from turnkeeper.v1 import agent_runtime_pb2 as wire


@contextmanager
def locked(bench: Bench) -> Iterator[None]:
    with closing(sqlite3.connect(bench.home.agent_db, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        yield


async def until_told(bench: Bench, event: str, count: int = 1) -> dict[str, Any]:
    """Return the newest of so many records of an event."""
    async with asyncio.timeout(8):  # less than a writer waits for the lock
        while True:
            found = [record for record in read_events(bench.home.logs) if record["event"] == event]
            if len(found) >= count:
                return found[-1]
            await look_again()


async def test_a_fire_that_arrives_while_the_store_is_locked_is_told_before_the_store_answers(
    bench: Bench, capsys: Any
) -> None:
    with locked(bench):
        asked = asyncio.create_task(bench.accept(bench.fire()))
        told = await until_told(bench, "fire.arrived")
        assert console.run(app, ["--home", str(bench.home.root), "events", "--trace", told["fire_id"]]) == 0
        assert f"the agent runtime got fire {told['fire_id']}" in capsys.readouterr().out
        assert not asked.done()
    receipt = await asked
    assert (told["fire_id"], told["turn_id"]) == (receipt.fire_id, receipt.turn_id)
    await bench.stopped(receipt.turn_id)


async def test_each_fire_that_arrives_while_the_store_is_locked_is_told_once(bench: Bench) -> None:
    with locked(bench):
        asked = []
        for number in (1, 2, 3):
            asked.append(asyncio.create_task(bench.service.Fire(bench.fire(number), None)))
            await until_told(bench, "fire.arrived", number)
    receipts = await asyncio.gather(*asked)
    told = [record["turn_id"] for record in read_events(bench.home.logs) if record["event"] == "fire.arrived"]
    assert told == [receipt.turn_id for receipt in receipts]
    for receipt in receipts:
        await bench.stopped(receipt.turn_id)


async def test_a_turn_whose_graph_stops_while_the_store_is_locked_says_so_before_the_store_answers(
    bench: Bench,
) -> None:
    bench.script["go"] = [calls(("block", {}))]
    receipt = await bench.accept(bench.fire())
    await soon(bench.blocked.wait(), "the turn to block")
    with locked(bench):
        bench.go.set()
        told = await until_told(bench, "turn.ran")
    assert (told["turn_id"], told["state"]) == (receipt.turn_id, "end")
    await bench.stopped(receipt.turn_id)


async def test_a_turn_that_begins_and_the_tools_it_calls_are_told_while_the_store_is_locked(bench: Bench) -> None:
    bench.script["go"] = [calls(("block", {})), calls(("block", {}))]
    with locked(bench):
        asked = asyncio.create_task(bench.accept(bench.fire()))
        await until_told(bench, "fire.arrived")
    receipt = await asked
    await soon(bench.blocked.wait(), "the turn to block")
    (first,) = [record for record in read_events(bench.home.logs) if record["event"] == "tool.called"]
    assert (first["turn_id"], first["tool"]) == (receipt.turn_id, "block")
    bench.go.set()
    await bench.stopped(receipt.turn_id)
    told = [record for record in read_events(bench.home.logs) if record["event"] == "tool.called"]
    assert len({record["call_id"] for record in told}) == len(told) == 2, "each call once"


async def test_a_store_that_answers_at_once_adds_no_line(bench: Bench) -> None:
    receipt = await bench.accept(bench.fire())
    await bench.stopped(receipt.turn_id)
    events = {record["event"] for record in read_events(bench.home.logs)}
    assert not events & {"fire.arrived", "turn.ran", "act.asked"}
    (received,) = [record for record in read_events(bench.home.logs) if record["event"] == "fire.received"]
    (acked,) = read_events(bench.home.logs, "channel-acks")
    assert received["name"] == acked["name"], "so that a receipt of an envelope is tied to its fire"
    assert receipt.disposition == wire.FireReceipt.ACCEPTED
