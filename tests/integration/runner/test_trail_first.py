"""What reaches the runner, and what it is about to do, is in its trail although its store is locked."""

import asyncio
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import timedelta

from tests.integration.runner.conftest import Rig
from tests.integration.runner.scripted_runtime import Peer, State
from tests.integration.runner.test_outcomes import fire
from turnkeeper.v1 import agent_runtime_pb2 as wire


@contextmanager
def locked(rig: Rig) -> Iterator[None]:
    with closing(sqlite3.connect(rig.place, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        yield


async def test_what_the_runtime_says_of_a_turn_is_told_before_the_store_has_taken_it(rig: Rig, peer: Peer) -> None:
    await rig.create()
    async with rig.running():
        fire_id = await fire(rig, peer)
        with locked(rig):
            await peer.play(fire_id, State.STARTED)
            (heard,) = await rig.trail.saw("fire.heard")
            assert not rig.trail.named("fire.running")
        assert (heard["fire_id"], heard["state"]) == (fire_id, "started")
        await rig.trail.saw("fire.running")


async def test_a_fire_that_falls_due_is_told_before_the_store_has_taken_it_and_each_step_then_in_order(
    rig: Rig, peer: Peer
) -> None:
    await rig.create()
    wake_at = rig.clock.now() + timedelta(seconds=60)
    rig.changed.clear()  # nothing changed since the task was made
    await rig.loop._prepare(wake_at)
    with locked(rig):
        planning = asyncio.create_task(rig.pass_time(60))
        (due,) = await rig.trail.saw("fire.due")
        assert not rig.trail.named("fire.committed")
    await planning
    async with rig.running("dispatcher"):
        assert due["fire_id"] == (await rig.trail.saw("fire.accepted"))[0]["fire_id"]
    steps = [name for name, fields in rig.trail.events if fields.get("fire_id") == due["fire_id"]]
    assert steps == ["fire.due", "fire.committed", "fire.sent", "fire.accepted"]


async def test_an_answer_is_told_before_the_store_has_taken_it(rig: Rig, peer: Peer) -> None:
    receipt = wire.FireReceipt(fire_id="task-1@20260302T090000Z", turn_id="turn-1")
    with locked(rig):
        taking = asyncio.create_task(rig.dispatcher.take_in([receipt]))
        (answered,) = await rig.trail.saw("fire.answered")
        assert answered == {"fire_id": receipt.fire_id, "turn_id": "turn-1"}
    await taking
