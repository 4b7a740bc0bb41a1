"""After the clock stepped back nothing waits for a time that only the wrong clock had reached."""

from datetime import timedelta
from typing import Any

import pytest

from task_runner.model.task import Outcome
from tests.integration.runner.conftest import Rig
from tests.integration.runner.scripted_runtime import Peer, State, refuse
from tests.integration.runner.simulation import World
from turnkeeper.v1 import schedules_pb2 as wire

HOURS = 3 * 3600.0


@pytest.fixture(autouse=True)
def one_clock(rig: Rig, peer: Peer) -> None:
    peer.now = rig.clock.now


async def stepped_back(rig: Rig) -> None:
    rig.clock.step(-HOURS)
    await rig.loop._rewind()


async def test_a_manual_fire_and_a_backfill_go_at_once(rig: Rig, peer: Peer) -> None:
    await rig.create(cron="0 0 * * *")
    rig.clock.advance(HOURS)
    await rig.service.run_task(wire.RunTaskRequest(name="digest", request_id="abc"))
    asked = wire.BackfillTaskRequest(name="digest", to="2026-03-02T01:00:00Z", request_id="def")
    setattr(asked, "from", "2026-03-01T23:00:00Z")
    await rig.service.backfill_task(asked)
    await stepped_back(rig)
    async with rig.running():
        await peer.saw(2)
    fires = (await rig.service.list_fires(wire.ListFiresRequest(name="digest"))).fires
    assert all(fire.fired_at.ToDatetime() >= fire.due_at.ToDatetime() for fire in fires), "not early either"


async def test_what_was_refused_is_tried_again_soon(rig: Rig, peer: Peer) -> None:
    await rig.create(cron="0 0 * * *")
    rig.clock.advance(HOURS)
    peer.answer = refuse(8)
    async with rig.running():
        await rig.service.run_task(wire.RunTaskRequest(name="digest", request_id="abc"))
        rig.dispatcher.wake()
        await rig.trail.saw("fire.refused")
    await stepped_back(rig)
    rig.clock.advance(600)
    async with rig.running():
        await peer.saw(2)


async def test_a_retry_waits_no_longer_than_its_pause(rig: Rig, peer: Peer) -> None:
    await rig.create(cron="0 0 * * *", retries=2)
    rig.clock.advance(HOURS)
    async with rig.running():
        await rig.service.run_task(wire.RunTaskRequest(name="digest", request_id="abc"))
        rig.dispatcher.wake()
        await rig.trail.saw("fire.accepted")
        await peer.play(peer.received[0].fire_id, State.FAILED)
        await rig.trail.saw("fire.retried")
    await stepped_back(rig)
    rig.clock.advance(600)
    async with rig.running():
        await peer.saw(2)


def test_a_fire_that_waited_goes_when_it_is_due_by_the_right_clock(engine: Any) -> None:
    world = World(engine)
    world.create(every="1h")
    for hours in (1, 4):
        world.now += timedelta(hours=hours)
        world.tick()
        world.connect()
        world.send()
        world.hear()
        world.follow()
    assert world.rows()[-1].outcome is Outcome.WAITING
    world.now += timedelta(minutes=30)
    world.peer.end("succeeds", world.now)
    world.follow()
    fire = world.rows()[-1]
    assert (fire.outcome, fire.ready_at) == (Outcome.PENDING, world.now)
    world.now -= timedelta(minutes=10)
    world.stepped_back = True
    world.tick()
    assert world.rows()[-1].ready_at == max(world.now, fire.due_at)
