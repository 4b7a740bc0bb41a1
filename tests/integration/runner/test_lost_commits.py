"""A fire that the runtime has with other content: a lost commit explains it, or its task is quarantined."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from google.rpc import code_pb2

from tests.integration.runner.conftest import Rig
from tests.integration.runner.scripted_runtime import Peer, State, break_stream, refuse
from turnkeeper.v1 import agent_runtime_pb2 as runtime
from turnkeeper.v1 import schedules_pb2 as wire

CONFLICT = refuse(code_pb2.FAILED_PRECONDITION, "fire_id", "it was already accepted with other content")


def accepted(request: runtime.FireRequest, at: datetime, **changes: Any) -> runtime.Turn:
    """Return the turn that a runtime reports about a fire that it accepted before, sent at another time."""
    same = {name: getattr(request, name) for name in ("fire_id", "attempt", "task_id", "thread_id", "channel", "agent")}
    turn = runtime.Turn(
        **same | {"turn_id": "turn-0", "category": request.category, "state": State.SUCCEEDED} | changes
    )
    turn.fired_at.FromDatetime(at)
    turn.ended_at.FromDatetime(at)
    return turn


class Lost:
    """A runtime that had accepted each fire before the runner's store lost it."""

    def __init__(self, rig: Rig, peer: Peer, **changes: Any) -> None:
        self.rig, self.peer, self.changes, self.earlier_s = rig, peer, changes, 5.0
        peer.answer, peer.now = self.answer, rig.clock.now

    def answer(self, request: runtime.FireRequest) -> Any:
        at = request.fired_at.ToDatetime(tzinfo=UTC) - timedelta(seconds=self.earlier_s)
        self.peer.turns[request.fire_id] = accepted(request, at, **self.changes)
        return CONFLICT(request)


async def missed(rig: Rig) -> None:
    """Let a time come due that is sent some seconds later, as after a start."""
    rig.clock.advance(70)
    await rig.loop.tick()


async def test_a_fire_that_was_accepted_before_the_loss_is_taken_over_with_the_end_of_its_turn(
    rig: Rig, peer: Peer
) -> None:
    await rig.create(every="60s")
    Lost(rig, peer)
    async with rig.running():
        await missed(rig)
        (told,) = await rig.trail.saw("fire.taken_over")
        await rig.trail.saw("fire.settled")
    assert await rig.history() == [("succeeded", "", 1)]
    assert (told["turn_id"], rig.trail.named("task.quarantined")) == ("turn-0", [])
    task = await rig.task()
    assert (task.state, task.fires) == ("active", 1)
    said = await rig.service.explain_fire(wire.ExplainFireRequest(name="digest"))
    assert f"agent-runtime had accepted {told['fire_id']}, as turn-0, before the store lost it" in " ".join(said.lines)


async def test_a_fire_that_is_still_queued_is_taken_over_and_its_end_comes_as_an_event(rig: Rig, peer: Peer) -> None:
    await rig.create(every="60s")
    Lost(rig, peer, state=0)
    async with rig.running():
        await missed(rig)
        (told,) = await rig.trail.saw("fire.taken_over")
        assert await rig.history() == [("accepted", "", 1)]
        await peer.play(told["fire_id"], State.SUCCEEDED)
        await rig.trail.saw("fire.settled")
    assert [outcome for outcome, _, _ in await rig.history()] == ["succeeded"]


async def test_a_retry_that_was_accepted_before_the_loss_is_taken_over(rig: Rig, peer: Peer) -> None:
    await rig.create(retries=1, pause_after_failures=9, every="1h")
    peer.now = rig.clock.now
    async with rig.running():
        await rig.pass_time(3600)
        (first,) = await peer.saw(1)
        await rig.trail.saw("fire.accepted")
        await peer.play(first.fire_id, State.FAILED)
        await rig.trail.saw("fire.retried")
        Lost(rig, peer)
        while not rig.trail.named("fire.taken_over"):
            rig.clock.advance(5)
            await rig.history()
        await rig.trail.saw("fire.settled")
    assert [outcome for outcome, _, _ in await rig.history()] == ["succeeded"]
    assert rig.trail.named("fire.taken_over")[0]["attempt"] == 2


async def test_every_fire_of_the_lost_interval_is_taken_over(rig: Rig, peer: Peer) -> None:
    await rig.create(every="60s", catch_up="run-all", grace="1s")
    Lost(rig, peer)
    async with rig.running():
        rig.clock.advance(190)
        await rig.loop.tick()
        while len(rig.trail.named("fire.taken_over")) < 3:
            rig.clock.advance(1)
            await rig.history()
        await rig.trail.saw("fire.settled", 3)
    assert [outcome for outcome, _, _ in await rig.history()] == ["succeeded"] * 3
    assert (await rig.task()).state == "active"


UNEXPLAINED: dict[str, dict[str, Any]] = {
    "another task's": {"task_id": "task-00000000"},
    "on another thread": {"thread_id": "other"},
    "for another agent": {"agent": "codex"},
    "in another channel": {"channel": "other"},
    "with other permissions": {"category": "research"},
}


@pytest.mark.parametrize("what", UNEXPLAINED)
async def test_a_fire_of_another_place_or_with_other_permissions_stays_a_conflict(
    rig: Rig, peer: Peer, what: str
) -> None:
    await rig.create(every="60s")
    Lost(rig, peer, **UNEXPLAINED[what])
    async with rig.running():
        await missed(rig)
        await rig.trail.saw("task.quarantined")
    assert (await rig.task()).state == "quarantined"
    assert not rig.trail.named("fire.taken_over")


@pytest.mark.parametrize(("earlier_s", "what"), [(0.0, "at the same moment"), (-1.0, "later"), (3600.0, "before due")])
async def test_a_fire_that_was_not_sent_between_its_due_time_and_this_sending_stays_a_conflict(
    rig: Rig, peer: Peer, earlier_s: float, what: str
) -> None:
    """The same time of sending with other content is a defect, and an earlier one a forged fire."""
    await rig.create(every="60s")
    Lost(rig, peer).earlier_s = earlier_s
    async with rig.running():
        await missed(rig)
        await rig.trail.saw("task.quarantined")
    assert not rig.trail.named("fire.taken_over"), what


async def test_a_fire_that_the_runtime_no_longer_knows_stays_a_conflict(rig: Rig, peer: Peer) -> None:
    await rig.create(every="60s")
    peer.answer = CONFLICT
    async with rig.running():
        await missed(rig)
        (told,) = await rig.trail.saw("task.quarantined")
    assert "already accepted with other content" in told["reason"]


async def test_a_fire_that_is_sent_again_after_the_stream_broke_is_taken_over(rig: Rig, peer: Peer) -> None:
    await rig.create(every="60s")
    lost = Lost(rig, peer)
    peer.answer = break_stream
    async with rig.running():
        await missed(rig)
        await peer.saw(1)
        peer.answer = lost.answer
        while not rig.trail.named("fire.taken_over"):
            rig.clock.advance(2)
            await rig.history()
    assert (await rig.task()).state == "active"
