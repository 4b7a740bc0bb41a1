"""Self-paced tasks and loops on a real store: armed once by each turn, whatever dies in between."""

from datetime import timedelta
from typing import Any

import pytest
from google.protobuf.timestamp_pb2 import Timestamp

from task_runner.model.task import MISASKED, FireKind, Outcome
from task_runner.service.service import Serving
from tests.integration.runner import simulation as worlds
from tests.integration.runner.conftest import Rig
from tests.integration.runner.scripted_runtime import Peer, State
from turnkeeper.errors import Conflict, Exhausted, InvalidInput, NotFound
from turnkeeper.rpc.errors import AlreadyExists
from turnkeeper.v1 import agent_runtime_pb2 as runtime
from turnkeeper.v1 import schedules_pb2 as wire

BY = wire.CreatedBy(turn_id="turn-9", category="loop", agent="agent0")
AUTHOR = runtime.TurnEvent.AUTHOR


async def loop(rig: Rig, **fields: Any) -> wire.Task:
    fields = {"dynamic": True, "prompt": "p"} | fields
    request = wire.CreateTaskRequest(loop=True, spec=wire.TaskSpec(**fields))
    return (await rig.service.create_task(request)).task


async def tell(rig: Rig, peer: Peer, fire_id: str, state: Any, **said: Any) -> None:
    """Let the runtime tell of a turn, at the rig's time."""
    at = Timestamp()
    at.FromDatetime(rig.clock.now())
    async with peer.changed:
        said = {"attempt": 1, "turn_id": f"turn-{len(peer.events)}"} | said
        sequence = len(peer.events) + 1
        event = runtime.TurnEvent(
            incarnation=peer.incarnation, sequence=sequence, fire_id=fire_id, state=state, at=at, **said
        )
        peer.events.append(event)
        peer.changed.notify_all()


async def iterate(rig: Rig, peer: Peer, after_s: float = 0, *, state: Any = State.SUCCEEDED, **said: Any) -> str:
    """Let some time pass, a wake be accepted, and its turn end; return the fire's id."""
    accepted, settled = len(rig.trail.named("fire.accepted")), len(rig.trail.named("fire.settled"))
    await rig.pass_time(after_s)
    rig.dispatcher.wake()  # as the daemon does after each command
    await rig.trail.saw("fire.accepted", accepted + 1)
    fire_id = peer.received[-1].fire_id
    await tell(rig, peer, fire_id, state, **said)
    await rig.trail.saw("fire.settled", settled + 1)
    return fire_id


async def kinds(rig: Rig, name: str) -> list[tuple[str, str, str]]:
    """(kind, what stands behind the time in the fire's id, outcome), oldest first."""
    fires = (await rig.service.list_fires(wire.ListFiresRequest(name=name, limit=1000))).fires
    return [(fire.kind, fire.fire_id.partition("Z")[2], fire.outcome) for fire in reversed(fires)]


async def test_a_loop_wakes_as_its_turns_ask_and_ends_when_one_does_not(rig: Rig, peer: Peer) -> None:
    made = await loop(rig)
    assert made.id.startswith("loop-")
    assert (made.spec.name, made.spec.channel, made.spec.category) == (made.id, "general", "loop")
    assert (made.kind, made.spec.first, made.spec.if_silent) == ("dynamic", "0s", "end")
    async with rig.running():
        await iterate(rig, peer, wake_after_s=30)
        armed = await rig.task(made.id)
        assert (armed.iteration, armed.next_fire_at.seconds - made.created_at.seconds) == (1, 30)
        assert armed.armed_at == armed.next_fire_at
        await iterate(rig, peer, 30, wake_after_s=0)
        await iterate(rig, peer)
    assert await kinds(rig, made.id) == [("wake", f"~w{number}", "succeeded") for number in (1, 2, 3)]
    done = await rig.task(made.id)
    assert (done.state, done.iteration, done.fires) == ("done", 3, 3)
    assert "asked for no further wake" in done.reason
    assert [request.thread_id for request in peer.received] == [made.id] * 3
    assert [request.kind for request in peer.received] == ["wake"] * 3


async def test_a_restart_between_two_iterations_changes_nothing(rig: Rig, peer: Peer) -> None:
    made = await loop(rig)
    async with rig.running():
        await iterate(rig, peer, wake_after_s=30)
    await rig.close()
    again = rig.again()
    assert (await again.task(made.id)).armed_at.seconds - made.created_at.seconds == 30
    async with again.running():
        await iterate(again, peer, 30)
    assert await kinds(again, made.id) == [("wake", "~w1", "succeeded"), ("wake", "~w2", "succeeded")]
    assert again.trail.named("task.armed") == []
    await again.close()


def lived(engine: Any, dies_at: int) -> tuple[worlds.World, int]:
    """Let a loop of three iterations live, and the runner die before one of its commits; return how many there were."""
    world = worlds.World(engine)
    asks = [1, 0]
    world.create(dynamic=True, first="0s", if_silent="end")
    commits, run = 0, world.run

    def counted(work: Any) -> Any:
        nonlocal commits
        commits += 1
        world.dies = commits == dies_at
        return run(work)

    world.run = counted  # type: ignore[method-assign]

    def end() -> None:
        if world.peer.one("running"):
            world.peer.end("succeeds", world.now, asks.pop(0) if asks else None)

    steps = [world.tick, world.connect, world.send, world.hear, world.follow]
    for _ in range(7):
        for step in [*steps, end, world.follow]:
            try:
                step()
            except worlds.Crash:
                world.crash()
        world.now += timedelta(seconds=1)
    return world, commits


def test_no_iteration_is_lost_or_doubled_whichever_commit_the_runner_dies_before(engine: Any) -> None:
    _, commits = lived(engine, 0)
    assert commits > 30
    for dies_at in range(commits + 1):
        world, _ = lived(engine, dies_at)
        rows = world.rows()
        assert [(row.kind, row.outcome) for row in rows] == [(FireKind.WAKE, Outcome.SUCCEEDED)] * 3, dies_at
        assert [row.fire_id.rpartition("~")[2] for row in rows] == ["w1", "w2", "w3"], dies_at
        assert list(world.peer.turns) == [(row.fire_id, 1) for row in rows], dies_at
        task = world.task()
        assert (task.state, task.pacing and task.pacing.iteration) == ("done", 3), dies_at


@pytest.mark.parametrize("agent", ["codex", "agent0"])
async def test_an_agent_in_a_terminal_is_told_how_to_go_on_and_how_to_end(rig: Rig, peer: Peer, agent: str) -> None:
    made = await loop(rig, agent=agent)
    async with rig.running():
        await iterate(rig, peer)
    request = peer.received[0]
    ways, program = (
        (f"reschedule {made.id} SECONDS.", f"delete {made.id} --yes)"),
        f"turnkeeper --home {rig.home.root}",
    )
    told = [f"{program} loop {how}" in request.prompt for how in ways]
    assert told == [agent == "codex"] * 2, "one that the runtime hosts has a tool for it"


async def test_hearing_of_the_same_end_twice_arms_once(rig: Rig, peer: Peer) -> None:
    made = await loop(rig)
    async with rig.running():
        fire_id = await iterate(rig, peer, wake_after_s=30)
        for _ in range(2):
            await tell(rig, peer, fire_id, State.SUCCEEDED, wake_after_s=7)
        await tell(rig, peer, "", State.STARTED, thread_id="other", trigger=AUTHOR)
        await rig.follower.take_in(peer.events[-1:])
    assert len(rig.trail.named("task.armed")) == 1
    assert (await rig.task(made.id)).armed_at.seconds - made.created_at.seconds == 30


async def test_a_store_of_the_runtime_that_was_replaced_is_asked_for_the_wake(rig: Rig, peer: Peer) -> None:
    made = await loop(rig)
    async with rig.running():
        await rig.pass_time(0)
        (accepted,) = await rig.trail.saw("fire.accepted")
        await tell(rig, peer, accepted["fire_id"], State.STARTED)
        await rig.trail.saw("fire.running")
    turn = runtime.Turn(
        fire_id=accepted["fire_id"], attempt=1, turn_id="turn-1", state=State.SUCCEEDED, wake_after_s=60
    )
    turn.ended_at.FromDatetime(rig.clock.now())
    peer.turns[accepted["fire_id"]], peer.incarnation, peer.events = turn, "two", []
    async with rig.running():
        await tell(rig, peer, "", State.STARTED, thread_id="other")
        await rig.trail.saw("fire.settled")
    assert (await rig.task(made.id)).armed_at.seconds - made.created_at.seconds == 60


async def test_a_wake_missed_while_nobody_ran_runs_once(rig: Rig, peer: Peer) -> None:
    made = await loop(rig, first="60s", catch_up="run-once", grace="1s")
    await rig.pass_time(86_400)
    await rig.pass_time(86_400)
    assert await kinds(rig, made.id) == [("wake", "~w1", "pending")]
    async with rig.running():
        await iterate(rig, peer)
    assert peer.received[0].nominal_at.seconds - made.created_at.seconds == 60


async def test_a_held_wake_is_sent_again_on_release_and_arms_then(rig: Rig, peer: Peer) -> None:
    made = await loop(rig)
    async with rig.running():
        await rig.pass_time(0)
        (accepted,) = await rig.trail.saw("fire.accepted")
        await tell(rig, peer, accepted["fire_id"], State.HELD)
        await rig.trail.saw("fire.held")
        await rig.pass_time(7200)
        await tell(rig, peer, accepted["fire_id"], State.RELEASED)
        await rig.trail.saw("fire.accepted", 2)
        await tell(rig, peer, accepted["fire_id"], State.SUCCEEDED, attempt=2, wake_after_s=5)
        await rig.trail.saw("fire.settled")
    assert await kinds(rig, made.id) == [("wake", "~w1", "succeeded")]
    assert (await rig.task(made.id)).armed_at.seconds - made.created_at.seconds == 7205


async def test_a_failed_turn_that_may_be_tried_again_is_and_keeps_its_iteration(rig: Rig, peer: Peer) -> None:
    made = await loop(rig, retries=1)
    async with rig.running():
        await rig.pass_time(0)
        (accepted,) = await rig.trail.saw("fire.accepted")
        await tell(rig, peer, accepted["fire_id"], State.FAILED, error="no")
        await rig.trail.saw("fire.retried")
        await rig.pass_time(31)
        await rig.trail.saw("fire.accepted", 2)
        await tell(rig, peer, accepted["fire_id"], State.SUCCEEDED, attempt=2, wake_after_s=5)
        await rig.trail.saw("fire.settled")
    assert await kinds(rig, made.id) == [("wake", "~w1", "succeeded")]
    assert (await rig.task(made.id)).iteration == 1


async def test_three_failures_in_a_row_pause_a_loop_and_resuming_lets_it_go_on(rig: Rig, peer: Peer) -> None:
    made = await loop(rig)
    async with rig.running():
        for after_s in (0, 1500, 1500):
            await iterate(rig, peer, after_s, state=State.FAILED, error="it broke")
        paused = await rig.task(made.id)
        assert (paused.state, paused.paused_note[:22]) == ("paused", "3 turns in a row faile")
        await rig.pass_time(3000)
        assert len(peer.received) == 3
        await rig.service.resume_task(wire.ResumeTaskRequest(name=made.id))
        await iterate(rig, peer, state=State.FAILED)
    goes_on = await rig.task(made.id)
    assert (goes_on.iteration, goes_on.state) == (4, "active")


async def test_a_loop_is_done_when_as_many_wakes_were_accepted_as_it_may_have(rig: Rig, peer: Peer) -> None:
    made = await loop(rig, first="60s", max_fires=2)
    async with rig.running():
        await rig.service.run_task(wire.RunTaskRequest(name=made.id, request_id="beside"))
        await iterate(rig, peer)
        for after_s in (60, 1):
            await iterate(rig, peer, after_s, wake_after_s=1)
        await rig.trail.saw("task.done")
    done = await rig.task(made.id)
    assert (done.iteration, done.fires, done.reason) == (2, 3, "max_fires is 2, and 2 were accepted")
    with pytest.raises(Conflict, match="max_fires is 2"):
        await rig.service.reschedule_task(wire.RescheduleTaskRequest(name=made.id, seconds=0))


async def test_a_budget_pauses_a_loop_which_stays_armed(rig: Rig, peer: Peer) -> None:
    made = await loop(rig, budget={"turns_per_day": 1})
    async with rig.running():
        await iterate(rig, peer, wake_after_s=5)
        paused = await rig.task(made.id)
        assert (paused.state, paused.paused_note.startswith("budget: turns_per_day")) == ("paused", True)
        assert paused.armed_at.seconds - made.created_at.seconds == 5
        assert not paused.HasField("next_fire_at")


async def test_pausing_withdraws_an_unsent_wake_and_resuming_wakes_at_once(rig: Rig, peer: Peer) -> None:
    made = await loop(rig)
    await rig.pass_time(0)
    await rig.service.pause_task(wire.PauseTaskRequest(name=made.id))
    assert await kinds(rig, made.id) == [("wake", "~w1", "skipped")]
    await rig.pass_time(600)
    assert len(await kinds(rig, made.id)) == 1
    await rig.service.resume_task(wire.ResumeTaskRequest(name=made.id))
    assert await kinds(rig, made.id) == [("wake", "~w1", "skipped"), ("wake", "~w2", "pending")]


async def test_a_pause_with_an_end_lets_the_wake_come_then(rig: Rig, peer: Peer) -> None:
    made = await loop(rig, first="60s")
    await rig.service.pause_task(wire.PauseTaskRequest(name=made.id, until="2026-03-02T10:00:00Z"))
    await rig.pass_time(3000)
    assert await kinds(rig, made.id) == []
    await rig.pass_time(700)
    await rig.loop.tick()
    assert await kinds(rig, made.id) == [("wake", "~w1", "pending")]


async def test_disabling_and_enabling_goes_on_on_the_same_thread(rig: Rig, peer: Peer) -> None:
    made = await loop(rig)
    async with rig.running():
        await rig.pass_time(0)
        (accepted,) = await rig.trail.saw("fire.accepted")
        await rig.service.disable_task(wire.DisableTaskRequest(name=made.id, cancel_running=True))
        assert peer.cancelled == [accepted["fire_id"]]
        await tell(rig, peer, accepted["fire_id"], State.CANCELLED)
        await rig.trail.saw("fire.settled")
        await rig.pass_time(2000)
        assert len(peer.received) == 1
        await rig.service.enable_task(wire.EnableTaskRequest(name=made.id))
        await iterate(rig, peer)
    assert [request.thread_id for request in peer.received] == [made.id] * 2


async def test_one_that_had_ended_has_ended_also_after_it_was_disabled_and_enabled(rig: Rig, peer: Peer) -> None:
    made = await loop(rig)
    async with rig.running():
        await iterate(rig, peer)
        before = await rig.task(made.id)
        await rig.service.disable_task(wire.DisableTaskRequest(name=made.id))
        await rig.service.enable_task(wire.EnableTaskRequest(name=made.id))
        after = await rig.task(made.id)
    assert (after.state, after.reason) == (before.state, before.reason)
    assert (after.state, after.reason) == ("done", "turn turn-1 asked for no further wake")


async def test_a_manual_run_beside_it_is_no_iteration(rig: Rig, peer: Peer) -> None:
    made = await loop(rig, first="1h")
    async with rig.running():
        await rig.service.run_task(wire.RunTaskRequest(name=made.id, request_id="r1"))
        await iterate(rig, peer, wake_after_s=10)
        assert ((await rig.task(made.id)).iteration, await kinds(rig, made.id)) == (
            0,
            [("manual", "~mr1", "succeeded")],
        )
        await iterate(rig, peer, 10)
    assert (await kinds(rig, made.id))[-1] == ("wake", "~w1", "succeeded")


async def test_rescheduling_moves_what_is_armed_and_withdraws_what_is_unsent(rig: Rig, peer: Peer) -> None:
    made = await loop(rig)
    await rig.pass_time(0)
    moved = await rig.service.reschedule_task(wire.RescheduleTaskRequest(name=made.id, seconds=90))
    assert moved.armed_at.seconds - made.created_at.seconds == 90
    assert await kinds(rig, made.id) == [("wake", "~w1", "skipped")]
    await rig.pass_time(90)
    assert (await kinds(rig, made.id))[-1] == ("wake", "~w2", "pending")


async def test_what_keeps_a_schedule_cannot_be_rescheduled(rig: Rig) -> None:
    fixed = await loop(rig, every="15m", prompt="p")
    with pytest.raises(Conflict, match="its schedule determines its next fire"):
        await rig.service.reschedule_task(wire.RescheduleTaskRequest(name=fixed.id, seconds=90))
    with pytest.raises(NotFound):
        await rig.service.reschedule_task(wire.RescheduleTaskRequest(name="loop-00000000", seconds=90))
    paced = await loop(rig)
    for seconds in (-1, 1 << 62):
        with pytest.raises(InvalidInput, match="from 0 to"):
            await rig.service.reschedule_task(wire.RescheduleTaskRequest(name=paced.id, seconds=seconds))


async def test_an_author_who_writes_into_its_thread_takes_over_and_others_keep_running(rig: Rig, peer: Peer) -> None:
    paced, other, fixed = await loop(rig), await loop(rig, first="1h"), await loop(rig, every="15m")
    async with rig.running():
        await iterate(rig, peer, wake_after_s=30)
        for thread_id in (paced.id, fixed.id):
            await tell(rig, peer, "", State.STARTED, thread_id=thread_id, trigger=AUTHOR)
        await rig.trail.saw("task.done")
    states = [(await rig.task(each.id)).state for each in (paced, other, fixed)]
    assert states == ["done", "active", "active"]
    assert "author took over" in (await rig.task(paced.id)).reason
    await rig.pass_time(60)
    assert len(await kinds(rig, paced.id)) == 1


async def test_a_loop_that_was_stopped_is_not_taken_over(rig: Rig, peer: Peer) -> None:
    made = await loop(rig, first="60s")
    await rig.service.disable_task(wire.DisableTaskRequest(name=made.id))
    await tell(rig, peer, "", State.STARTED, thread_id=made.id, trigger=AUTHOR)
    await rig.follower.take_in(peer.events)
    await rig.service.enable_task(wire.EnableTaskRequest(name=made.id))
    async with rig.running():
        await iterate(rig, peer, 60)
    with pytest.raises(Conflict, match="loop reschedule"):
        await rig.service.resume_task(wire.ResumeTaskRequest(name=made.id))


async def test_a_wake_on_its_way_when_its_author_takes_over_is_cancelled(rig: Rig, peer: Peer) -> None:
    made = await loop(rig)
    async with rig.running():
        await rig.pass_time(0)
        (accepted,) = await rig.trail.saw("fire.accepted")
        await tell(rig, peer, "", State.STARTED, thread_id=made.id, trigger=AUTHOR)
        await rig.trail.saw("task.done")
        await tell(rig, peer, accepted["fire_id"], State.CANCELLED)
        await rig.trail.saw("fire.settled")
    assert peer.cancelled == [accepted["fire_id"]]
    assert ((await rig.task(made.id)).state, await kinds(rig, made.id)) == ("done", [("wake", "~w1", "cancelled")])


async def test_a_loop_whose_budget_of_the_hour_is_used_up_says_so_and_goes_on_in_the_next(rig: Rig, peer: Peer) -> None:
    made = await loop(rig, budget={"turns_per_hour": 2})
    async with rig.running():
        await iterate(rig, peer, wake_after_s=0)
        assert not (await rig.task(made.id)).put_off
        await rig.pass_time(0)
        rig.dispatcher.wake()
        await rig.trail.saw("fire.accepted", 2)
        running = await rig.task(made.id)
        assert running.wakes_from.seconds - made.created_at.seconds == 3600, "what its tool tells the model"
        await tell(rig, peer, peer.received[-1].fire_id, State.SUCCEEDED, wake_after_s=0)
        await rig.trail.saw("fire.settled", 2)
        late = await rig.task(made.id)
        assert "turns_per_hour is 2" in late.put_off
        assert (late.state, late.next_fire_at) == ("active", running.wakes_from)
        await iterate(rig, peer, 3600, wake_after_s=0)
    assert (await rig.task(made.id)).put_off == ""


async def test_a_wake_that_could_not_be_read_keeps_the_loop(rig: Rig, peer: Peer) -> None:
    made = await loop(rig)
    async with rig.running():
        await iterate(rig, peer, error=f"{MISASKED}: delay_seconds: must be a number")
    task = await rig.task(made.id)
    assert (task.state, task.next_fire_at.seconds - made.created_at.seconds) == ("active", 1500)
    (fire,) = (await rig.service.list_fires(wire.ListFiresRequest(name=made.id))).fires
    assert fire.reason == f"{MISASKED}: delay_seconds: must be a number"


async def test_answers_and_other_agents_do_not_take_over(rig: Rig, peer: Peer) -> None:
    made = await loop(rig)
    async with rig.running():
        await rig.pass_time(0)
        (accepted,) = await rig.trail.saw("fire.accepted")
        await tell(rig, peer, accepted["fire_id"], State.INTERRUPTED, thread_id=made.id)
        answer = runtime.TurnEvent.ANSWER
        await tell(rig, peer, accepted["fire_id"], State.RESUMED, thread_id=made.id, trigger=answer)
        for beside in (runtime.TurnEvent.AGENT, runtime.TurnEvent.ASIDE):
            await tell(rig, peer, "", State.STARTED, thread_id=made.id, trigger=beside)
        await tell(rig, peer, accepted["fire_id"], State.SUCCEEDED, thread_id=made.id, wake_after_s=9)
        await rig.trail.saw("fire.settled")
    assert (await rig.task(made.id)).state == "active"


async def test_a_clock_that_stepped_back_leaves_a_wake_as_far_away_as_it_was(rig: Rig, peer: Peer) -> None:
    rig.clock.advance(86_400)  # wrong
    made = await loop(rig)
    async with rig.running():
        await iterate(rig, peer, wake_after_s=60)
    rig.clock.step(-86_400)
    await rig.loop._rewind()
    armed = (await rig.task(made.id)).armed_at.seconds
    assert armed - (made.created_at.seconds - 86_400) == 60
    async with rig.running():
        await iterate(rig, peer, 60)
    assert [each[1] for each in await kinds(rig, made.id)] == ["~w1", "~w2"]


async def test_what_an_agent_made_expires_is_put_off_a_little_and_remembers_who_made_it(rig: Rig) -> None:
    made = await loop(rig, every="10m", created_by=BY)
    assert made.spec.expires_at == "2026-03-09T09:00:00Z"
    assert (made.spec.jitter, made.spec.created_by) == ("30s", BY)
    assert (await loop(rig, every="1m", created_by=BY)).spec.jitter == "6s"
    paced = await loop(rig, created_by=BY)
    assert (paced.spec.jitter, paced.spec.if_silent, paced.spec.expires_at) == ("", "end", "2026-03-09T09:00:00Z")
    with pytest.raises(InvalidInput, match="lasts 7d"):
        await loop(rig, created_by=BY, expires_at="8d")
    update = wire.UpdateTaskRequest(name=made.id, spec=wire.TaskSpec(name=made.id, category="loop", channel="c"))
    update.spec.every, update.spec.prompt = "10m", "q"
    kept = (await rig.service.update_task(update)).task.spec
    assert (kept.created_by, kept.expires_at) == (BY, made.spec.expires_at)


async def test_an_agent_has_25_tasks_of_its_own_making_and_no_more(rig: Rig) -> None:
    made = [await loop(rig, every="1h", created_by=BY) for _ in range(25)]
    await rig.service.pause_task(wire.PauseTaskRequest(name=made[0].id))
    with pytest.raises(Exhausted, match="has 25 tasks that have not ended, and the limit is 25"):
        await loop(rig, every="1h", created_by=BY)
    await loop(rig, every="1h")
    await loop(rig, every="1h", created_by=wire.CreatedBy(turn_id="turn-9", category="loop", agent="agent1"))
    await rig.service.delete_task(wire.DeleteTaskRequest(name=made[0].id))
    await loop(rig, every="1h", created_by=BY)


async def test_an_agents_last_loop_made_again_exists_already_and_is_not_one_too_many(rig: Rig) -> None:
    for number in range(25):
        await loop(rig, name=f"agent-loop-{number}", every="1h", created_by=BY)
    with pytest.raises(AlreadyExists, match="a task named 'agent-loop-24' exists"):
        await loop(rig, name="agent-loop-24", every="1h", created_by=BY)
    with pytest.raises(Exhausted):
        await loop(rig, name="agent-loop-25", every="1h", created_by=BY)


async def test_a_declared_loop_gets_its_id_back_or_another_loops_but_no_other_kind(rig: Rig) -> None:
    made = await loop(rig, name="watch", every="1h")
    await rig.service.delete_task(wire.DeleteTaskRequest(name=made.id))
    specs = [
        wire.TaskSpec(name=name, id=id_, every="1h", category="loop", channel="c", prompt="p")
        for name, id_ in (("watch", made.id), ("other", "loop-0000abcd"))
    ]
    await rig.service.apply_tasks(wire.ApplyTasksRequest(specs=specs))
    again, other = await rig.task("watch"), await rig.task("other")
    assert other.id == "loop-0000abcd"
    assert again.id.startswith("loop-"), "an id is given once"
    assert again.id != made.id
    specs[0].name, specs[1].name = "one", "two"
    specs[0].id = specs[1].id
    with pytest.raises(InvalidInput, match="'loop-0000abcd' is declared twice"):
        await rig.service.apply_tasks(wire.ApplyTasksRequest(specs=specs))
    specs[0].id = "task-0000abcd"
    with pytest.raises(InvalidInput, match="is not a loop's id") as refused:
        await rig.service.apply_tasks(wire.ApplyTasksRequest(specs=specs))
    assert refused.value.where == "one: id"


async def test_what_is_ephemeral_lasts_as_long_as_the_daemon(rig: Rig) -> None:
    with pytest.raises(Conflict, match="no daemon runs"):
        await loop(rig, ephemeral=True)
    spec = wire.TaskSpec(name="x", category="loop", channel="c", prompt="p", every="1h", ephemeral=True)
    with pytest.raises(Conflict, match="no daemon runs"):
        await rig.service.apply_tasks(wire.ApplyTasksRequest(specs=[spec]))
    rig.service._serving = Serving(since=rig.clock.now(), connected=lambda: False)
    kept, gone = await loop(rig), await loop(rig, ephemeral=True)
    await rig.service.end_ephemeral()
    deleted = await rig.task(gone.id)
    assert (deleted.state, deleted.reason) == ("deleted", "the daemon stopped, and the task was ephemeral")
    assert (await rig.task(kept.id)).state == "active"
    assert [fields["reason"] for fields in rig.trail.named("task.deleted")] == [deleted.reason]


async def test_explain_says_what_armed_a_wake_and_what_comes_next(rig: Rig, peer: Peer) -> None:
    made = await loop(rig)
    async with rig.running():
        await iterate(rig, peer, wake_after_s=30)
        said = await rig.service.explain_fire(wire.ExplainFireRequest(name=made.id))
        assert said.verdict == "succeeded"
        assert "~w1 is iteration 1" in said.lines[1]
        assert (
            "iteration 2, comes at 2026-03-02T09:00:30Z: turn turn-1 asked to be woken 30s after its end"
            in said.lines[-3]
        )
        ahead = await rig.service.explain_fire(wire.ExplainFireRequest(name=made.id, at="2026-03-03T09:00:00Z"))
        assert (ahead.verdict, ahead.lines[-1]) == ("future", "If a turn asks for no further wake, the task ends.")
        await iterate(rig, peer, 30)
        ended = await rig.service.explain_fire(wire.ExplainFireRequest(name=made.id))
        assert "The previous one, turn turn-1, ended 30s earlier." in ended.lines[1]
        assert "asked for no further wake" in ended.lines[-1]
    preview = await rig.service.preview_schedule(wire.PreviewScheduleRequest(name=made.id))
    assert (list(preview.nominals), preview.schedule) == ([], "self-paced")


async def test_a_self_paced_task_becomes_a_fixed_one_and_back(rig: Rig, peer: Peer) -> None:
    made = await loop(rig)
    await rig.pass_time(0)
    spec = wire.TaskSpec(name=made.id, category="loop", channel="general", prompt="p", every="60s")
    await rig.service.update_task(wire.UpdateTaskRequest(name=made.id, spec=spec))
    assert (await rig.service.list_fires(wire.ListFiresRequest(name=made.id))).fires[0].reason == "superseded"
    await rig.pass_time(60)
    assert (await kinds(rig, made.id))[-1] == ("scheduled", "", "pending")
    spec.dynamic, spec.first = True, "10s"
    back = (await rig.service.update_task(wire.UpdateTaskRequest(name=made.id, spec=spec))).task
    assert (back.iteration, back.kind) == (1, "dynamic")
    await rig.pass_time(10)
    assert (await kinds(rig, made.id))[-1] == ("wake", "~w2", "pending")


async def test_backfilling_what_names_no_times_is_refused(rig: Rig) -> None:
    made = await loop(rig)
    request = wire.BackfillTaskRequest(name=made.id, to="2026-03-02T09:00:00Z")
    setattr(request, "from", "2026-03-01T09:00:00Z")
    with pytest.raises(InvalidInput, match="is self-paced"):
        await rig.service.backfill_task(request)
