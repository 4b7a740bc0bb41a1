"""Overlap `cancel-running`: the turn before is asked to end, until that is answered or it has ended."""

import pytest

from task_runner.dispatcher.dispatcher import CANCEL_REASON
from task_runner.dispatcher.outcomes import News, record_news
from task_runner.planner.ledger import TurnState
from tests.integration.runner.conftest import Rig
from tests.integration.runner.scripted_runtime import Peer, State
from turnkeeper.v1 import schedules_pb2 as wire


@pytest.fixture(autouse=True)
def one_clock(rig: Rig, peer: Peer) -> None:
    peer.now = rig.clock.now


async def starts(rig: Rig, peer: Peer, fires: int) -> str:
    """Let a minute pass; the fire that is due then starts a turn. Returns its id."""
    await rig.pass_time(60)
    await peer.saw(fires)
    await rig.trail.saw("fire.accepted", fires)
    await peer.play(peer.received[-1].fire_id, State.STARTED)
    await rig.trail.saw("fire.running", fires)
    return peer.received[-1].fire_id


async def test_the_turn_before_is_asked_to_end_and_then_the_next_fire_goes(rig: Rig, peer: Peer) -> None:
    await rig.create(overlap="cancel-running")
    async with rig.running("dispatcher", "follower", "canceller"):
        first = await starts(rig, peer, 1)
        await rig.pass_time(60)
        (asked,) = await rig.trail.saw("fire.asked_to_end")
        assert (asked["fire_id"], asked["reason"]) == (first, CANCEL_REASON)
        assert (peer.cancelled, peer.spared) == ([first], {first}), "unless it waits for its author"
        assert await rig.history() == [("running", "", 1), ("waiting", "cancel-running", 1)]
        await peer.play(first, State.CANCELLED, error=CANCEL_REASON)
        await peer.saw(2)
        await rig.trail.saw("fire.accepted", 2)
        assert await rig.history() == [("cancelled", CANCEL_REASON, 1), ("accepted", "", 1)]
        assert peer.cancelled == [first]


async def test_it_is_asked_until_it_answers_also_after_a_restart(rig: Rig, peer: Peer) -> None:
    await rig.create(overlap="cancel-running")
    async with rig.running("dispatcher", "follower"):
        first = await starts(rig, peer, 1)
        await rig.pass_time(60)
    peer.answers_cancels = False
    assert not await rig.canceller.ask()
    assert not await rig.canceller.ask()
    peer.answers_cancels = True
    assert await rig.canceller.ask()
    assert await rig.canceller.ask()
    assert peer.cancelled == [first] * 3


async def test_what_is_sent_and_not_accepted_yet_is_asked_to_end_too(rig: Rig, peer: Peer) -> None:
    await rig.create(overlap="cancel-running")
    peer.answer = lambda request: None
    async with rig.running("dispatcher"):
        await rig.pass_time(60)
        await peer.saw(1)
    rig.dispatcher.connected = True
    await rig.pass_time(60)
    assert await rig.history() == [("sent", "", 1), ("waiting", "cancel-running", 1)]
    assert await rig.canceller.ask()
    assert peer.cancelled == [peer.received[0].fire_id]


async def test_other_tasks_manual_fires_and_what_waits_for_its_author_run_on(rig: Rig, peer: Peer) -> None:
    await rig.create(overlap="cancel-running", cron="1 * * * *")
    await rig.create("other", cron="1 * * * *")
    async with rig.running():
        await rig.service.run_task(wire.RunTaskRequest(name="digest", request_id="abc"))
        rig.dispatcher.wake()
        await rig.pass_time(60)
        await rig.trail.saw("fire.accepted", 3)
        scheduled = next(
            each.fire_id for each in peer.received if each.task_name == "digest" and "~" not in each.fire_id
        )
        await peer.play(scheduled, State.STARTED)
        await rig.trail.saw("fire.running")
        await rig.pass_time(3600)
        assert await rig.canceller.ask()
        assert peer.cancelled == [scheduled]
        await peer.play(scheduled, State.INTERRUPTED)
        await rig.trail.saw("fire.interrupted")
        await peer.play(scheduled, State.RESUMED)
        await rig.trail.saw("fire.running", 2)
        rig.canceller._answered.clear()
        assert await rig.canceller.ask()
    assert peer.cancelled == [scheduled], "what lined up before its author decided waits for its end"


async def test_an_edit_takes_the_wish_back(rig: Rig, peer: Peer) -> None:
    await rig.create(overlap="cancel-running")
    async with rig.running():
        await starts(rig, peer, 1)
        await rig.pass_time(60)
    task = await rig.task()
    task.spec.overlap = "coalesce"
    await rig.service.update_task(wire.UpdateTaskRequest(name="digest", spec=task.spec))
    assert await rig.history() == [("running", "", 1), ("waiting", "", 1)]
    assert await rig.canceller.ask()
    assert peer.cancelled == []


async def tells(rig: Rig, peer: Peer, **fields: str) -> str:
    """Let an event set off a turn, and another one stand behind it that asks for its end. Returns the turn's fire."""
    spec = wire.TaskSpec(name="digest", category="loop", channel="general", prompt="p", on="demo", **fields)
    spec.overlap = "cancel-running"
    await rig.service.create_task(wire.CreateTaskRequest(spec=spec))
    await rig.service.emit_event(wire.EmitEventRequest(name="demo", event_id="a"))
    rig.dispatcher.wake()  # as the scheduler's loop does, which does not run here
    await peer.saw(1)
    await rig.trail.saw("fire.accepted", 1)
    first = peer.received[0].fire_id
    await peer.play(first, State.STARTED)
    await rig.trail.saw("fire.running", 1)
    rig.clock.advance(5)
    await rig.service.emit_event(wire.EmitEventRequest(name="demo", event_id="b"))
    assert (await rig.history())[-1] == ("pending", "cancel-running", 1)
    return first


@pytest.mark.parametrize("hybrid", [{}, {"every": "1h", "debounce": "1s"}])
async def test_an_event_before_a_turn_that_its_author_decides_over_waits_for_its_end(
    rig: Rig, peer: Peer, hybrid: dict[str, str]
) -> None:
    async with rig.running():
        first = await tells(rig, peer, **hybrid)
        await peer.play(first, State.INTERRUPTED)
        await rig.trail.saw("fire.interrupted")
        assert (await rig.history())[-1] == ("pending", "", 1)
        await peer.play(first, State.RESUMED)
        await rig.trail.saw("fire.running", 2)
        assert await rig.canceller.ask()
        assert peer.cancelled == []
        await peer.play(first, State.SUCCEEDED)
        await rig.trail.saw("fire.accepted", 2)
    assert await rig.history() == [("succeeded", "", 1), ("accepted", "", 1)]


@pytest.mark.parametrize(
    ("overlap", "hybrid"), [("coalesce", {}), ("queue", {}), ("skip", {"every": "1h", "debounce": "1s"})]
)
async def test_an_edit_takes_the_wish_of_an_event_back(
    rig: Rig, peer: Peer, hybrid: dict[str, str], overlap: str
) -> None:
    async with rig.running():
        await tells(rig, peer, **hybrid)
    task = await rig.task()
    task.spec.overlap = overlap
    await rig.service.update_task(wire.UpdateTaskRequest(name="digest", spec=task.spec))
    assert await rig.history() == [("running", "", 1), ("pending", "", 1)]
    assert await rig.canceller.ask()
    assert peer.cancelled == []


@pytest.mark.parametrize("task", [{"every": "60s"}, {"on": "demo"}])
async def test_a_question_and_its_answer_heard_at_once_spare_the_turn(
    rig: Rig, peer: Peer, task: dict[str, str]
) -> None:
    if "on" in task:
        async with rig.running():
            first = await tells(rig, peer)
    else:
        await rig.create(overlap="cancel-running")
        async with rig.running():
            first = await starts(rig, peer, 1)
            await rig.pass_time(60)
    asked, answered = (
        News(fire_id=first, attempt=1, state=state, at=rig.clock.now(), turn_id="", error="")
        for state in (TurnState.INTERRUPTED, TurnState.RESUMED)
    )
    await rig.store.run(lambda session: record_news(session, [asked, answered], rig.clock.now()))
    assert [(outcome, reason) for outcome, reason, _ in await rig.history()] == [
        ("running", ""),
        ("pending" if "on" in task else "waiting", ""),
    ]
    assert await rig.canceller.ask()
    assert peer.cancelled == []
