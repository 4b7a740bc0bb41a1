"""Turn events settle fires, free what waited, and count once however often they are heard."""

import asyncio

import pytest

from tests.integration.runner.conftest import Rig
from tests.integration.runner.emitting import create
from tests.integration.runner.scripted_runtime import Peer, State
from turnkeeper.v1 import agent_runtime_pb2 as runtime
from turnkeeper.v1 import schedules_pb2 as wire


async def fire(rig: Rig, peer: Peer) -> str:
    """Let one fire be accepted; return its id."""
    before = len(rig.trail.named("fire.accepted"))
    await rig.pass_time(60)
    await rig.trail.saw("fire.accepted", before + 1)
    return peer.received[-1].fire_id


async def test_a_turn_is_followed_to_its_end(rig: Rig, peer: Peer) -> None:
    await rig.create()
    async with rig.running():
        fire_id = await fire(rig, peer)
        await peer.play(fire_id, State.STARTED)
        await rig.trail.saw("fire.running")
        assert (await rig.task()).state == "running"
        await peer.play(fire_id, State.FAILED, error="it broke")
        await rig.trail.saw("fire.settled")
    assert await rig.history() == [("failed", "it broke", 1)]
    task = await rig.task()
    assert (task.state, task.last_outcome) == ("active", "failed")


async def test_a_fire_whose_agent_gives_up_after_a_refusal_is_rejected_and_not_tried_again(
    rig: Rig, peer: Peer
) -> None:
    await rig.create(retries=2)
    why = "the agent gave up: the mail was not sent; its approval was rejected: send_mail"
    peer.now = rig.clock.now
    async with rig.running():
        fire_id = await fire(rig, peer)
        await peer.play(fire_id, State.STARTED)
        await peer.play(fire_id, State.FAILED, error=why)
        await rig.trail.saw("fire.settled")
    assert await rig.history() == [("rejected", why, 1)]


async def test_a_rejected_fire_has_an_outcome_an_event_and_a_reason_of_its_own(rig: Rig, peer: Peer) -> None:
    await rig.create(pause_after_failures=1)
    for name in ("succeeded", "rejected", "failed"):
        await create(rig, f"after-{name}", on=f"task.{name}", filters=["task=digest"])
    peer.now = rig.clock.now
    async with rig.running():
        fire_id = await fire(rig, peer)
        await peer.play(fire_id, State.STARTED)
        await peer.play(fire_id, State.SUCCEEDED, error="its approval was rejected: send_mail")
        await rig.trail.saw("fire.settled")
        (_, follower) = await peer.saw(2)
    assert (follower.task_name, '"reason":"its approval was rejected: send_mail"' in follower.prompt) == (
        "after-rejected", True,
    )  # fmt: skip
    (settled,) = rig.trail.named("fire.settled")
    assert (settled["outcome"], settled["reason"]) == ("rejected", "its approval was rejected: send_mail")
    assert await rig.history() == [("rejected", "its approval was rejected: send_mail", 1)]
    task = await rig.task()
    assert (task.state, task.last_outcome) == ("active", "rejected"), "no failure that pauses the task"
    both = await rig.service.list_fires(wire.ListFiresRequest(outcome="cancelled,rejected"))
    assert "rejected" in {fire.outcome for fire in both.fires}
    found = await rig.service.list_fires(wire.ListFiresRequest(outcome="rejected"))
    assert [one.fire_id for one in found.fires] == [fire_id]
    explained = await rig.service.explain_fire(wire.ExplainFireRequest(name="digest"))
    assert explained.verdict == "rejected"
    assert any(
        line.startswith("Its turn ended without your approval") and "its approval was rejected: send_mail" in line
        for line in explained.lines
    ), explained.lines


async def test_the_position_is_durable_and_news_count_once(rig: Rig, peer: Peer) -> None:
    await rig.create()
    async with rig.running():
        await peer.play(await fire(rig, peer), State.SUCCEEDED)
        await rig.trail.saw("fire.settled")
    await rig.close()
    again = rig.again()
    assert await again.store.run(lambda session: session.outcomes_read.get()) == ("one", 1)
    async with again.running():
        await peer.play(await fire(again, peer), State.SUCCEEDED)
        await again.trail.saw("fire.settled")
    assert len(again.trail.named("fire.settled")) == 1
    await again.close()


async def test_an_outcome_releases_what_waited(rig: Rig, peer: Peer) -> None:
    await rig.create()
    async with rig.running():
        first = await fire(rig, peer)
        await rig.pass_time(60)
        await rig.pass_time(60)
        assert await rig.history() == [("accepted", "", 1), ("waiting", "", 2)]
        await peer.play(first, State.SUCCEEDED)
        await peer.saw(2)
        await rig.trail.saw("fire.accepted", 2)
    assert await rig.history() == [("succeeded", "", 1), ("accepted", "", 2)]
    assert peer.received[-1].fire_id.endswith("@20260302T090300Z")


async def test_held_and_released(rig: Rig, peer: Peer) -> None:
    await rig.create(every="1h")
    async with rig.running():
        await rig.pass_time(3540)
        first = await fire(rig, peer)
        await peer.play(first, State.HELD, held_by=["ask-1"])
        await rig.trail.saw("fire.held")
        assert (await rig.task()).state == "held"
        assert await rig.history() == [("held", "waits for approval ask-1", 1)]
        await rig.pass_time(60)
        await peer.play(first, State.RELEASED, error="its approval expired")
        await rig.trail.saw("fire.accepted", 2)
        assert [(one.fire_id, one.attempt) for one in peer.received] == [(first, 1), (first, 2)]
        await peer.play(first, State.SUCCEEDED, attempt=1)
        await peer.play(first, State.SUCCEEDED, attempt=2)
        await rig.trail.saw("fire.settled")
    assert await rig.history() == [("succeeded", "", 1)]


async def test_what_was_missed_while_the_author_was_asked_is_planned_on_release(rig: Rig, peer: Peer) -> None:
    await rig.create()
    async with rig.running():
        first = await fire(rig, peer)
        await peer.play(first, State.INTERRUPTED)
        await rig.trail.saw("fire.interrupted")
        await rig.pass_time(200)
        assert await rig.history() == [("interrupted", "", 1)]
        await peer.play(first, State.SUCCEEDED)
        await rig.trail.saw("fire.accepted", 2)
    assert await rig.history() == [("succeeded", "", 1), ("accepted", "", 3)]


@pytest.mark.parametrize(("known", "outcome"), [(True, "succeeded"), (False, "sent")])
async def test_a_replaced_store_is_asked_about_every_open_fire(rig: Rig, peer: Peer, known, outcome) -> None:
    await rig.create(every="1h")
    await rig.create("other", every="1h")
    async with rig.running():
        await rig.pass_time(3600)
        await rig.trail.saw("fire.accepted", 2)
        mine, other = (one.fire_id for one in peer.received)
        await peer.play(mine, State.STARTED)
        await rig.trail.saw("fire.running")
    peer.incarnation, peer.events = "two", []
    if known:
        peer.turns[mine] = runtime.Turn(fire_id=mine, attempt=1, state=State.SUCCEEDED, turn_id="turn-1")
    await peer.play("unrelated", State.STARTED)
    async with rig.running("follower"):
        await rig.trail.saw("runtime.replaced")
        await rig.trail.saw("fire.settled", 1) if known else None
        while (await rig.store.run(lambda session: session.outcomes_read.get()))[0] != "two":
            await rig.history()
    names = {task.id: task.spec.name for task in (await rig.service.list_tasks(wire.ListTasksRequest())).tasks}
    assert await rig.history(names[mine.partition("@")[0]]) == [(outcome, "", 1)]
    assert await rig.history(names[other.partition("@")[0]]) == [("sent", "", 1)], "the new store never heard of it"


@pytest.mark.parametrize("incarnation", ["two", "one"], ids=["another store", "an older copy"])
async def test_a_store_that_was_replaced_is_noticed_before_it_has_any_event(
    rig: Rig, peer: Peer, incarnation: str
) -> None:
    await rig.create(every="1h")
    async with rig.running():
        await rig.pass_time(3540)
        first = await fire(rig, peer)
        await peer.play(first, State.STARTED)
        await rig.trail.saw("fire.running")
    peer.incarnation, peer.events = incarnation, []
    peer.turns[first] = runtime.Turn(fire_id=first, attempt=1, state=State.SUCCEEDED, turn_id="turn-1")
    async with rig.running("follower"), asyncio.timeout(10):
        await rig.trail.saw("runtime.replaced")
        await rig.trail.saw("fire.settled")
        while await rig.store.run(lambda session: session.outcomes_read.get()) != (incarnation, 0):
            await rig.history()
    assert await rig.history() == [("succeeded", "", 1)]
    async with rig.running("follower"):
        await peer.play("unrelated", State.STARTED)
        while await rig.store.run(lambda session: session.outcomes_read.get()) != (incarnation, 1):
            await rig.history()
    assert len(rig.trail.named("runtime.replaced")) == 1


async def test_what_a_replaced_store_never_heard_of_is_sent_again_on_the_open_stream(rig: Rig, peer: Peer) -> None:
    await rig.create(every="1h")
    async with rig.running():
        await rig.pass_time(3540)
        first = await fire(rig, peer)
        await peer.play(first, State.STARTED)
        await rig.trail.saw("fire.running")
        peer.incarnation, peer.events, peer.taken = "two", [], set()
        for _ in range(2):  # the open watch stands behind the first event
            await peer.play("unrelated", State.STARTED)
        async with asyncio.timeout(10):
            await rig.trail.saw("fire.accepted", 2)
    once, again = (one.SerializeToString(deterministic=True) for one in peer.received)
    assert once == again
    assert await rig.history() == [("accepted", "", 1)]


async def test_cancel_stops_the_turn_and_the_task(rig: Rig, peer: Peer) -> None:
    await rig.create()
    async with rig.running():
        fire_id = await fire(rig, peer)
        await rig.service.disable_task(wire.DisableTaskRequest(name="digest", cancel_running=True))
        assert peer.cancelled == [fire_id]
        await peer.play(fire_id, State.CANCELLED)
        await rig.trail.saw("fire.settled")
    assert await rig.history() == [("cancelled", "", 1)]
    assert (await rig.task()).state == "disabled"


async def test_run_now_keeps_its_id_and_is_sent_again_after_a_release(rig: Rig, peer: Peer) -> None:
    await rig.create()
    request = wire.RunTaskRequest(name="digest", request_id="r1")
    first = await rig.service.run_task(request)
    assert (await rig.service.run_task(request)).fire_id == first.fire_id
    async with rig.running():
        await rig.trail.saw("fire.accepted")
        await peer.play(first.fire_id, State.HELD)
        await rig.trail.saw("fire.held")
        await peer.play(first.fire_id, State.RELEASED)
        await rig.trail.saw("fire.accepted", 2)
    assert [(one.fire_id, one.attempt, one.kind) for one in peer.received] == [
        (first.fire_id, 1, "manual"),
        (first.fire_id, 2, "manual"),
    ]
    assert first.fire_id.endswith("~mr1")
