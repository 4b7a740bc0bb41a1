"""Retries, failures in a row and budgets: what a task does with turns that fail or cost too much."""

from datetime import timedelta

import pytest

from task_runner.cli.state import run
from tests.integration.runner.conftest import Rig
from tests.integration.runner.scripted_runtime import Peer, State
from turnkeeper.v1 import schedules_pb2 as wire


@pytest.fixture(autouse=True)
def one_clock(rig: Rig, peer: Peer) -> None:
    peer.now = rig.clock.now


async def fire(rig: Rig, peer: Peer, state: State, *, tokens: int = 0) -> str:
    """Let the task's next fire be accepted and its turn end; return its id."""
    accepted, settled = len(rig.trail.named("fire.accepted")), len(rig.trail.named("fire.settled"))
    await rig.pass_time(60)
    await rig.trail.saw("fire.accepted", accepted + 1)
    fire_id = peer.received[-1].fire_id
    await peer.play(fire_id, state, error="it broke", tokens_in=tokens)
    await rig.trail.saw("fire.settled", settled + 1)
    return fire_id


async def test_a_failed_turn_is_tried_again_with_the_same_id_and_the_next_attempt(rig: Rig, peer: Peer) -> None:
    await rig.create(every="1d", retries=1)
    async with rig.running():
        await rig.pass_time(86_400)
        await rig.trail.saw("fire.accepted")
        fire_id = peer.received[0].fire_id
        await peer.play(fire_id, State.FAILED, error="it broke")
        (retried,) = await rig.trail.saw("fire.retried")
        assert retried["next_attempt"] == 2
        assert await rig.history() == [("pending", "attempt 1 failed: it broke", 1)]
        early = rig.clock.now() + timedelta(seconds=29)
        assert await rig.store.run(lambda session: session.fires.ready(early, 9, caught_up=False)) == []
        rig.clock.advance(30)
        rig.dispatcher.wake()
        assert [(each.fire_id, each.attempt) for each in await peer.saw(2)] == [(fire_id, 1), (fire_id, 2)]
        await rig.trail.saw("fire.accepted", 2)
        await peer.play(fire_id, State.FAILED, attempt=2, error="still broken")
        await rig.trail.saw("fire.settled")
    assert await rig.history() == [("failed", "still broken", 1)]
    task = await rig.task()
    assert (task.fires, task.state) == (1, "active")


async def test_failures_in_a_row_pause_the_task_with_the_reason(rig: Rig, peer: Peer) -> None:
    await rig.create(pause_after_failures=2)
    async with rig.running():
        for state in (State.FAILED, State.SUCCEEDED, State.FAILED):
            await fire(rig, peer, state)
        assert (await rig.task()).state == "active", "a success in between begins the count anew"
        await fire(rig, peer, State.FAILED)
        await rig.trail.saw("task.paused")
    task = await rig.task()
    assert (task.state, task.paused_note) == ("paused", "2 failures in a row, the last: it broke")
    await rig.service.resume_task(wire.ResumeTaskRequest(name="digest"))
    assert (await rig.task()).state == "active"


@pytest.mark.parametrize(
    ("budget", "turns", "says"),
    [
        ({"turns_per_day": 2}, 2, "budget: turns_per_day is 2, 2 used on 2026-03-02"),
        ({"tokens_per_day": 100}, 2, "budget: tokens_per_day is 100, 120 used on 2026-03-02"),
        ({"tokens_per_fire": 60}, 1, "budget: tokens_per_fire is 60, 60 used by task-"),
    ],
)
async def test_a_budget_that_is_reached_pauses_the_task_with_the_reason(
    rig: Rig, peer: Peer, budget, turns, says
) -> None:
    await rig.create(budget=budget)
    async with rig.running():
        for number in range(turns):
            assert (await rig.task()).state == "active", number
            await fire(rig, peer, State.SUCCEEDED, tokens=60)
        await rig.trail.saw("task.paused")
    task = await rig.task()
    assert task.state == "paused"
    assert task.paused_note.startswith(says)


@pytest.mark.parametrize(
    ("budget", "turns", "says"),
    [
        ({"seconds_per_day": 50}, 2, "budget: seconds_per_day is 50, 60 used on 2026-03-02"),
        ({"seconds_per_fire": 31}, 0, ""),
        ({"seconds_per_fire": 30}, 1, "budget: seconds_per_fire is 30, 30 used by task-"),
    ],
)
async def test_the_time_that_turns_take_counts(rig: Rig, peer: Peer, budget, turns, says) -> None:
    await rig.create(budget=budget)
    async with rig.running():
        for number in range(1, 3):
            await rig.pass_time(60)
            await rig.trail.saw("fire.accepted", number)
            await peer.play(peer.received[-1].fire_id, State.STARTED)
            await rig.trail.saw("fire.running", number)
            rig.clock.advance(30)
            await peer.play(peer.received[-1].fire_id, State.SUCCEEDED)
            await rig.trail.saw("fire.settled", number)
            assert ((await rig.task()).state == "paused") is (number == turns)
            if number == turns:
                break
    assert (await rig.task()).paused_note.startswith(says)


async def test_a_task_over_the_budget_of_a_day_continues_by_itself_on_the_next_day_in_its_zone(
    rig: Rig, peer: Peer
) -> None:
    await rig.create(budget={"turns_per_day": 1, "tokens_per_fire": 60}, timezone="Europe/Riga")
    async with rig.running():
        await fire(rig, peer, State.SUCCEEDED)
        await rig.trail.saw("task.paused")
        task = await rig.task()
        until = task.paused_until.ToDatetime()
        assert (task.state, until.isoformat()) == ("paused", "2026-03-02T22:00:00"), "midnight in Riga"
        await rig.pass_time(3600)
        assert (await rig.task()).state == "paused"
        await rig.pass_time((until - rig.clock.now().replace(tzinfo=None)).total_seconds())
        assert (await rig.task()).state == "active"
        await fire(rig, peer, State.SUCCEEDED, tokens=60)
        await rig.trail.saw("task.paused", 2)
        task = await rig.task()
        assert (task.state, task.HasField("paused_until")) == ("paused", False), "a limit of one fire is for a person"


async def test_a_run_by_hand_counts_toward_the_budget_alone_as_its_help_says(rig: Rig, peer: Peer) -> None:
    await rig.create(every="1d", max_fires=1, pause_after_failures=1, budget={"turns_per_day": 2})
    async with rig.running():
        for number in (1, 2):
            assert (await rig.task()).state == "active", number
            await rig.service.run_task(wire.RunTaskRequest(name="digest", request_id=f"r{number}"))
            await rig.trail.saw("fire.accepted", number)
            await peer.play(peer.received[-1].fire_id, State.FAILED, error="it broke")
            await rig.trail.saw("fire.settled", number)
    task = await rig.task()
    assert (task.state, task.paused_note.partition(",")[0]) == ("paused", "budget: turns_per_day is 2")
    assert "counts toward the task's budget, but not toward --max-fires and --pause-after-failures" in " ".join(
        (run.__doc__ or "").split()
    )


async def test_a_days_budget_is_whole_again_on_the_next_day(rig: Rig, peer: Peer) -> None:
    await rig.create(every="1d", budget={"turns_per_day": 2})
    async with rig.running():
        for number in range(3):
            rig.clock.advance(86_400 - 60)
            await fire(rig, peer, State.SUCCEEDED)
            assert (await rig.task()).state == "active", number


async def test_a_budget_of_turns_ends_the_retries_of_a_fire(rig: Rig, peer: Peer) -> None:
    await rig.create(every="1d", retries=5, budget={"turns_per_fire": 2})
    async with rig.running():
        await rig.pass_time(86_400)
        for attempt in (1, 2):
            await rig.trail.saw("fire.accepted", attempt)
            await peer.play(peer.received[0].fire_id, State.FAILED, attempt=attempt, error="it broke")
            await rig.trail.saw("fire.retried", attempt)
            rig.clock.advance(60)
            rig.dispatcher.wake()
        await rig.trail.saw("task.paused")
    assert "turns_per_fire is 2, 2 used" in (await rig.task()).paused_note
    assert await rig.history() == [("skipped", "paused", 1)]
    assert len(peer.received) == 2


async def budgeted(rig: Rig, **budget: int) -> wire.Task:
    """Give the task this budget, as an edit does; return the task after it."""
    spec = (await rig.task()).spec
    spec.budget.update(budget)
    return (await rig.service.update_task(wire.UpdateTaskRequest(name="digest", spec=spec))).task


async def test_a_days_budget_counts_what_the_task_used_that_day_before_the_edit_that_set_it(
    rig: Rig, peer: Peer
) -> None:
    await rig.create()
    async with rig.running():
        for _ in range(2):
            await fire(rig, peer, State.SUCCEEDED, tokens=60)
        assert (await budgeted(rig, tokens_per_day=150)).state == "active"
        await fire(rig, peer, State.SUCCEEDED, tokens=60)
        await rig.trail.saw("task.paused")
    assert (await rig.task()).paused_note == "budget: tokens_per_day is 150, 180 used on 2026-03-02"


@pytest.mark.parametrize("key", ["tokens_per_day", "tokens_per_fire"])
async def test_a_task_that_its_budget_stops_is_resumed_by_the_edit_that_raises_or_removes_the_limit(
    rig: Rig, peer: Peer, key: str
) -> None:
    await rig.create(budget={key: 60})
    async with rig.running():
        await fire(rig, peer, State.SUCCEEDED, tokens=60)
        await rig.trail.saw("task.paused")
        assert (await budgeted(rig, turns_per_day=9)).state == "paused", "another limit stops it"
        assert (await budgeted(rig, **{key: 61})).state == "active"
        await fire(rig, peer, State.SUCCEEDED, tokens=61)
        await rig.trail.saw("task.paused", 2)
        spec = (await rig.task()).spec
        del spec.budget[key]
        task = (await rig.service.update_task(wire.UpdateTaskRequest(name="digest", spec=spec))).task
        assert (task.state, task.paused_note) == ("active", "")
        await rig.service.pause_task(wire.PauseTaskRequest(name="digest", note="mine"))
        assert (await budgeted(rig, **{key: 9_999})).state == "paused", "its author paused it"


async def test_an_edit_that_sets_a_days_budget_below_what_was_used_stops_the_task_until_the_next_day(
    rig: Rig, peer: Peer
) -> None:
    await rig.create()
    async with rig.running():
        await fire(rig, peer, State.SUCCEEDED, tokens=60)
        task = await budgeted(rig, tokens_per_day=60)
        assert (task.state, task.paused_note) == ("paused", "budget: tokens_per_day is 60, 60 used on 2026-03-02")
        assert task.paused_until.ToDatetime().isoformat() == "2026-03-03T00:00:00"
        await rig.service.resume_task(wire.ResumeTaskRequest(name="digest"))
        spec = (await rig.task()).spec
        spec.prompt = "another"
        await rig.service.update_task(wire.UpdateTaskRequest(name="digest", spec=spec))
        assert (await rig.task()).state == "active", "only an edit of the budget looks at what was used"
        rig.clock.advance(86_400)
        assert (await budgeted(rig, tokens_per_day=50)).state != "paused", "the next day begins at nothing"
