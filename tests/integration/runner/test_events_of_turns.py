"""Events that turns cause: tasks that wait for others, bounded circles, and what the runtime is asked for."""

from datetime import timedelta

from task_runner.dispatcher.outcomes import event_of
from tests.integration.runner.conftest import Rig
from tests.integration.runner.emitting import bridged, create, emit, fires, ledger, settle, told
from tests.integration.runner.scripted_runtime import Peer, State
from turnkeeper.v1 import schedules_pb2 as wire


async def test_a_task_fires_when_another_has_succeeded(rig: Rig, peer: Peer) -> None:
    await create(rig, "nightly", every="60s")
    await create(rig, "report", on="task.succeeded", filters=["task=nightly"])
    await create(rig, "alarm", on="task.failed", filters=["task~=^night"])
    await rig.pass_time(60)
    async with rig.running():
        cause = await settle(rig, peer, "nightly")
        request = (await peer.saw(2))[1]
    assert request.task_name == "report"
    assert f'"fire_id":"{cause}"' in request.prompt
    assert await ledger(rig, "alarm") == []


async def test_how_a_turn_ended_says_what_is_told(rig: Rig, peer: Peer) -> None:
    ends = {"FAILED": "task.failed", "SILENT": "task.succeeded", "DELIVERED": "task.succeeded"}
    ends |= {"PAUSED": "", "CANCELLED": ""}
    for name in ("task.succeeded", "task.failed", "thread.released"):
        await create(rig, f"on-{name.replace('.', '-')}", on=name, filters=["task~=^e-"], overlap="queue")
    for number, end in enumerate(ends):
        await create(rig, f"e-{end.lower()}", on="demo", filters=[f"n={number}"])
    peer.now = rig.clock.now
    async with rig.running():
        for number, end in enumerate(ends):
            await emit(rig, data_json=f'{{"n":{number}}}')
            (fire,) = await fires(rig, f"e-{end.lower()}")
            async with peer.changed:
                await peer.changed.wait_for(lambda id_=fire.fire_id: id_ in {each.fire_id for each in peer.received})
            await peer.play(fire.fire_id, State.Value(end))
            await rig.trail.saw("fire.settled", number + 1)
    causes = [event["fire_id"].partition("@")[0] for event in rig.trail.named("fire.committed")]
    listening = {
        name: (await rig.task(f"on-{name.replace('.', '-')}")).id for name in ("task.succeeded", "task.failed")
    }
    heard = {name: causes.count(id_) for name, id_ in listening.items()}
    assert heard == {"task.succeeded": 2, "task.failed": 1}
    assert await ledger(rig, "on-thread-released") == []


async def test_a_failure_that_is_tried_again_is_not_told_yet(rig: Rig, peer: Peer) -> None:
    await create(rig, "alarm", on="task.failed")
    await create(rig, "first", every="60s", retries=1)
    await rig.pass_time(60)
    async with rig.running():
        await rig.trail.saw("fire.accepted")
        await peer.play(peer.received[0].fire_id, State.FAILED)
        await rig.trail.saw("fire.retried")
    assert await ledger(rig, "alarm") == []


async def test_a_release_is_told_once_however_many_fires_were_held(rig: Rig, peer: Peer) -> None:
    await create(rig, "watch", on="thread.released", filters=["thread=shared"], overlap="queue")
    for name in ("a", "b"):
        await create(rig, name, every="60s", thread_id="shared")
    await rig.pass_time(60)
    peer.now = rig.clock.now
    async with rig.running():
        requests = list(await peer.saw(2))
        for state in (State.HELD, State.RELEASED):
            for request in requests:
                await peer.play(request.fire_id, state)
        await rig.trail.saw("fire.released", 2)
    assert len(await ledger(rig, "watch")) == 1


async def test_a_task_is_not_set_off_by_its_own_turns_and_says_so(rig: Rig, peer: Peer) -> None:
    await create(rig, "echo", on="task.succeeded", thread_id="t")
    await create(rig, "start", on="demo")
    await emit(rig)
    async with rig.running():
        await settle(rig, peer, "start")
        await rig.trail.saw("fire.committed", 2)
        own = await settle(rig, peer, "echo", count=2)
        await bridged(rig, told(fire_id=own))
    assert await ledger(rig, "echo") == [("succeeded", "", 1), ("skipped", "storm: own chain", 1)]
    (skipped,) = rig.trail.named("trigger.skipped")
    assert (skipped["reason"], skipped["count"]) == ("storm: own chain", 1)


async def test_a_circle_of_two_tasks_goes_round_once(rig: Rig, peer: Peer) -> None:
    await create(rig, "a", on="task.succeeded", filters=["task~=^(b|start)$"])
    await create(rig, "b", on="task.succeeded", filters=["task=a"])
    await create(rig, "start", on="demo")
    await emit(rig)
    peer.finishes, peer.now = True, rig.clock.now
    async with rig.running():
        await rig.trail.saw("trigger.skipped")
    assert await ledger(rig, "a") == [("succeeded", "", 1), ("skipped", "storm: own chain", 1)]
    assert await ledger(rig, "b") == [("succeeded", "", 1)]
    said = "\n".join((await rig.service.explain_fire(wire.ExplainFireRequest(name="a"))).lines)
    assert "A fire of the same task triggered it" in said
    assert "by way of start → a → b" in said


async def test_an_event_that_a_running_turn_tells_of_is_an_effect_of_its_fire(rig: Rig, peer: Peer) -> None:
    await create(rig, "self", on="demo")
    await emit(rig)
    async with rig.running():
        await rig.trail.saw("fire.accepted")
        (own,) = await fires(rig, "self")
        await emit(rig, created_by=wire.CreatedBy(turn_id=own.turn_id, category="loop", agent="agent0"))
        await create(rig, "next", on="demo")
        await emit(rig, fire_id=own.fire_id)
    assert (await ledger(rig, "self"))[1:] == [("skipped", "storm: own chain", 2)]
    assert len(await ledger(rig, "next")) == 1


async def test_what_a_turn_tells_of_says_its_thread_and_its_channel(rig: Rig, peer: Peer) -> None:
    source = await create(rig, "source", on="start")
    await create(rig, "here", on="demo", filters=["channel=general", f"thread_id={source}"])
    await create(rig, "there", on="demo", filters=["channel=office", "thread_id=talk"])
    await emit(rig, "start")
    async with rig.running():
        await rig.trail.saw("fire.accepted")
        (own,) = await fires(rig, "source")
        by = wire.CreatedBy(turn_id=own.turn_id, category="loop", agent="agent0")
        assert (await emit(rig, fire_id=own.fire_id, created_by=by)).matched == 1
        by.turn_id = "turn-of-the-author"
        assert (await emit(rig, created_by=by)).matched == 0, "nobody said where that turn is"
        assert (await emit(rig, created_by=by, channel="office", thread_id="talk")).matched == 1
    (fire,) = await fires(rig, "there")
    assert fire.fire_id


async def test_the_runtime_is_asked_only_for_what_some_task_listens_for(rig: Rig, peer: Peer) -> None:
    async with rig.running("runtime_events"):
        await create(rig, "one", on="turn_end")
        assert await peer.was_asked(1) == [["turn_end"]]
        await create(rig, "two", on="tool_execution_end")
        await create(rig, "own", on="demo")
        assert (await peer.was_asked(2))[1:] == [["tool_execution_end", "turn_end"]]
        await rig.service.delete_task(wire.DeleteTaskRequest(name="one"))
        await rig.service.delete_task(wire.DeleteTaskRequest(name="two"))
        assert (await peer.was_asked(3))[-1] in (["tool_execution_end"], [])
        while peer.asked_for[-1]:
            await peer.was_asked(len(peer.asked_for) + 1)


async def test_nothing_is_asked_for_while_no_task_listens(rig: Rig, peer: Peer) -> None:
    async with rig.running("runtime_events"):
        await rig.clock.wait(rig.runtime_events.changed, 0)
        await create(rig, "one", on="demo")
        await rig.task("one")
    assert peer.asked_for == []


async def test_a_runner_goes_on_behind_the_last_event_it_took_in(rig: Rig, peer: Peer) -> None:
    await create(rig, "one", on="turn_end", overlap="queue")
    peer.now = rig.clock.now
    async with rig.running("runtime_events"):
        await peer.was_asked(1)
        await peer.tell(told(), told("turn_start"), told())
        await rig.trail.saw("fire.committed", 2)
    await peer.tell(told())
    async with rig.running("runtime_events"):
        await rig.trail.saw("fire.committed", 3)
    assert [entry[0] for entry in await ledger(rig, "one")] == ["pending"] * 3


async def test_a_store_that_was_put_back_tells_its_events_again_and_none_counts_twice(rig: Rig, peer: Peer) -> None:
    await create(rig, "one", on="turn_end", overlap="queue")
    peer.now = rig.clock.now
    async with rig.running("runtime_events"):
        await peer.was_asked(1)
        await peer.tell(told(), told())
        await rig.trail.saw("fire.committed", 2)
    peer.incarnation = "two"
    for event in peer.bridged:
        event.incarnation = "two"
    await peer.tell(told())
    async with rig.running("runtime_events"):
        await rig.trail.saw("fire.committed", 3)
    assert [entry[0] for entry in await ledger(rig, "one")] == ["pending"] * 3
    position = await rig.store.run(lambda session: session.events_read.get())
    assert position == ("two", 3)


def test_an_event_of_the_future_happens_now_and_keeps_its_id(clock) -> None:
    event = told()
    event.at.FromDatetime(clock.now() + timedelta(hours=1))
    early = event_of(event, clock.now())
    assert early.at == clock.now()
    assert event_of(event, clock.now() + timedelta(seconds=9)).id == early.id
