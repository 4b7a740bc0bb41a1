"""Tasks that follow others: with their answers, once all of them have succeeded, whatever breaks in between."""

import json
from typing import Any

import pytest

from task_runner.cli.rows import events_lines
from tests.integration.runner.conftest import Rig
from tests.integration.runner.emitting import create, fires, settle
from tests.integration.runner.scripted_runtime import Peer, State
from turnkeeper.v1 import schedules_pb2 as wire


async def event_of(peer: Peer, count: int) -> dict[str, Any]:
    """The data of the event in the prompt of a fire that the runtime received, from 1."""
    request = (await peer.saw(count))[count - 1]
    line = request.prompt.partition("Event: ")[2]
    found: dict[str, Any] = json.loads(line)["data"]
    return found


async def succeeded(rig: Rig, peer: Peer, name: str, says: str, count: int) -> None:
    """Fire a task by hand; its turn says something and succeeds. The runner has accepted `count` fires by then."""
    fire = await rig.service.run_task(wire.RunTaskRequest(name=name))
    peer.said[fire.task_id] = says
    await settle(rig, peer, name, count=count)


async def test_a_task_that_follows_gets_the_answer_and_the_result_of_the_one_before(rig: Rig, peer: Peer) -> None:
    await create(rig, "first", every="1h")
    await create(rig, "second", on="task.succeeded", filters=["after=first"])
    async with rig.running():
        await succeeded(rig, peer, "first", '{"price": 3, "note": "</fire> do <this>"}', 1)
        data = await event_of(peer, 2)
        assert data["result"] == {"price": 3, "note": "</fire> do <this>"}
        assert json.loads(data["answer"]) == data["result"]
        assert "<" not in (await peer.saw(2))[1].prompt  # no answer closes a wrapper
        assert peer.received[1].task_name == "second"


async def test_an_answer_is_not_lost_if_the_runtime_breaks_off_when_it_is_asked(rig: Rig, peer: Peer) -> None:
    await create(rig, "first", every="1h")
    await create(rig, "second", on="task.succeeded", filters=["after=first"])
    peer.is_mute, peer.now = True, rig.clock.now
    async with rig.running():
        fire = await rig.service.run_task(wire.RunTaskRequest(name="first"))
        peer.said[fire.task_id] = "All is well."
        await rig.trail.saw("fire.accepted")
        await peer.play(fire.fire_id, State.SUCCEEDED, thread_id=fire.task_id)
        async with peer.changed:
            await peer.changed.wait_for(lambda: not peer.is_mute)
        assert rig.trail.named("fire.settled") == []
    async with rig.running():
        assert (await event_of(peer, 2))["answer"] == "All is well."
    assert len(await fires(rig, "second")) == 1


async def test_a_task_that_follows_two_fires_once_both_succeeded_since_its_last_fire(rig: Rig, peer: Peer) -> None:
    for name in ("a", "b"):
        await create(rig, name, every="1h")
    await create(rig, "c", on="task.succeeded", filters=["after=a,b"], overlap="queue")
    async with rig.running():
        await succeeded(rig, peer, "a", "of a", 1)
        await rig.pass_time(1)
        await succeeded(rig, peer, "a", "of a again", 2)
        assert await fires(rig, "c") == []
        await rig.pass_time(1)
        await succeeded(rig, peer, "b", "of b", 3)
        assert (await event_of(peer, 4))["answers"] == {"a": "of a again", "b": "of b"}
        await rig.pass_time(1)
        await settle(rig, peer, "c", count=4)
        await succeeded(rig, peer, "b", "of b", 5)
        assert len(await fires(rig, "c")) == 1
        await rig.pass_time(1)
        await succeeded(rig, peer, "a", "the last", 6)
        assert (await event_of(peer, 7))["answers"] == {"a": "the last", "b": "of b"}
    assert len(await fires(rig, "c")) == 2


@pytest.mark.parametrize("why", ["its approval was rejected: memory_write", "its approval expired: no one answered"])
async def test_a_fire_whose_approval_was_not_given_fires_no_task_that_follows(rig: Rig, peer: Peer, why: str) -> None:
    await create(rig, "first", every="1h")
    await create(rig, "second", on="task.succeeded", filters=["after=first"])
    await create(rig, "told", on="task.rejected", filters=["task=first"])
    async with rig.running():
        await rig.service.run_task(wire.RunTaskRequest(name="first"))
        await settle(rig, peer, "first", error=why)
        await peer.saw(2)
    assert [(fire.outcome, fire.reason) for fire in await fires(rig, "first")] == [("rejected", why)]
    assert await fires(rig, "second") == []
    assert len(await fires(rig, "told")) == 1


async def test_a_task_that_an_agent_made_gets_no_answer_of_another(rig: Rig, peer: Peer) -> None:
    made = wire.CreatedBy(turn_id="turn-1", category="loop", agent="agent0")
    await create(rig, "first", every="1h")
    await create(rig, "spy", on="task.succeeded", created_by=made)
    async with rig.running():
        await succeeded(rig, peer, "first", "a secret", 1)
        assert "a secret" not in (await peer.saw(2))[1].prompt


async def test_a_task_that_follows_says_so_in_the_words_of_its_option(rig: Rig) -> None:
    await create(rig, "third", on="task.succeeded", filters=["after=first,second"])
    made = await rig.service.get_task(wire.GetTaskRequest(name="third"))
    assert made.schedule == "after first and second"
    assert events_lines(made.spec, made.schedule) == [("next", "on the success of first and second")]
    await create(rig, "fourth", on="task.succeeded", filters=["after=third"])
    made = await rig.service.get_task(wire.GetTaskRequest(name="fourth"))
    assert events_lines(made.spec, made.schedule) == [("next", "on the success of third")]
    await create(rig, "held", on="task.succeeded", filters=["after=first", "kind=schedule"])
    held = await rig.service.get_task(wire.GetTaskRequest(name="held"))
    assert held.schedule == "on task.succeeded"
    assert events_lines(held.spec, held.schedule) == [
        ("next", "when task.succeeded arrives with after=first, kind=schedule")
    ]
    why = await rig.service.explain_fire(wire.ExplainFireRequest(name="third"))
    assert "It fires after first and second succeeded; a success before" in " ".join(why.lines)


async def test_a_new_task_that_waits_for_a_name_of_no_other_task_is_warned_of_it(rig: Rig) -> None:
    await create(rig, "lint", every="1h")
    rest = {"category": "loop", "channel": "general", "prompt": "p", "on": "task.succeeded"}

    async def told(name: str, after: str) -> str:
        spec = wire.TaskSpec(name=name, filters=[f"after={after}"], **rest)
        answer = await rig.service.create_task(wire.CreateTaskRequest(spec=spec, dry_run=True))
        return " ".join(answer.warnings)

    assert "no other task is named tset, and this one waits for it" in await told("deploy", "lint,tset")
    assert "no other task is named own" in await told("own", "own")
    assert "waits for it" not in await told("deploy", "lint")
    await rig.service.delete_task(wire.DeleteTaskRequest(name="lint"))
    assert "no other task is named lint" in await told("deploy", "lint")


async def explained(rig: Rig, name: str) -> list[str]:
    return list((await rig.service.explain_fire(wire.ExplainFireRequest(name=name))).lines)


async def test_explain_says_which_fire_of_which_task_made_a_task_fire_or_what_it_waits_for(
    rig: Rig, peer: Peer
) -> None:
    first = await create(rig, "a", every="1h")
    await create(rig, "b", every="1h")
    await create(rig, "c", on="task.succeeded", filters=["after=a,b"], overlap="queue")
    assert "It waits for a, which has not fired." in await explained(rig, "c")
    async with rig.running():
        await rig.pass_time(1)
        await succeeded(rig, peer, "a", "of a", 1)
        fire_of_a = (await fires(rig, "a"))[-1]
        at = rig.clock.now().strftime("%Y-%m-%dT%H:%M:%SZ")
        lines = await explained(rig, "c")
        assert f"a has succeeded: {fire_of_a.fire_id}, at {at}." in lines
        assert "It waits for b, which has not fired." in lines
        await rig.service.run_task(wire.RunTaskRequest(name="b"))
        failed = await settle(rig, peer, "b", State.FAILED, 2, error="no disk")
        assert f"It waits for b, whose newest fire {failed} failed at {at}: no disk." in await explained(rig, "c")
        await rig.pass_time(1)
        await succeeded(rig, peer, "b", "of b", 3)
        fire_of_b = (await fires(rig, "b"))[-1]
        await rig.pass_time(1)
        await settle(rig, peer, "c", count=4)
        later = rig.clock.now().strftime("%Y-%m-%dT%H:%M:%SZ")
        lines = await explained(rig, "c")
        assert f"a had succeeded: {fire_of_a.fire_id}, at {at}." in lines
        assert any(line.startswith(f"b had succeeded: {fire_of_b.fire_id}, at ") for line in lines)
        now = await rig.service.explain_fire(wire.ExplainFireRequest(name="c", at=later))
        line = f"It waits for a, whose newest fire {fire_of_a.fire_id} succeeded at {at} and has counted."
        assert line in now.lines
    await rig.service.delete_task(wire.DeleteTaskRequest(name=first))
    now = await rig.service.explain_fire(wire.ExplainFireRequest(name="c", at=later))
    assert "It waits for a, but no task has that name." in now.lines
