"""Fires reach a real server on a real socket: each at least once, each attempt with the same bytes."""

import asyncio
from datetime import timedelta

import pytest
from google.rpc import code_pb2

from task_runner.dispatcher.dispatcher import Pace, claim, record_receipts
from task_runner.dispatcher.runtime_client import batches
from task_runner.planner import ledger
from task_runner.store.store import Session
from tests.integration.runner.conftest import Rig
from tests.integration.runner.scripted_runtime import Peer, State, accept, break_stream, refuse
from turnkeeper.bus.event_log import EventLog
from turnkeeper.clock import SystemClock
from turnkeeper.errors import Denied
from turnkeeper.rpc.callers import Door, Identity, Rules
from turnkeeper.rpc.server import UnixServer
from turnkeeper.v1 import agent_runtime_pb2 as runtime
from turnkeeper.v1 import schedules_pb2 as wire
from turnkeeper.v1.agent_runtime_pb2_grpc import add_AgentRuntimeServicer_to_server


async def test_a_due_fire_is_sent_and_its_receipt_recorded(rig: Rig, peer: Peer) -> None:
    task = await rig.create(prompt="Summarise.", payload_json='{"a": 1}', read_only=True)
    async with rig.running():
        await rig.pass_time(60)
        (request,) = await peer.saw(1)
        await rig.trail.saw("fire.accepted")
    assert request.fire_id == f"{task.id}@20260302T090100Z"
    assert (request.kind, request.attempt, request.category, request.channel) == ("scheduled", 1, "loop", "general")
    assert (request.thread_id, request.agent, request.read_only) == (task.id, "agent0", True)
    assert (request.prompt, request.payload_json, request.timezone) == ("Summarise.", '{"a":1}', "UTC")
    assert request.nominal_at.seconds == request.fired_at.seconds
    assert (request.catch_up.policy, request.catch_up.count) == ("run-once", 1)
    assert await rig.history() == [("accepted", "", 1)]
    assert (await rig.task()).fires == 1


async def test_each_fire_has_a_thread_of_its_own_and_keeps_it_when_it_is_sent_again(rig: Rig, peer: Peer) -> None:
    task = await rig.create(thread_id="each", retries=1, pause_after_failures=9)
    assert task.spec.thread_id == "each"
    peer.now = rig.clock.now
    async with rig.running():
        await rig.pass_time(60)
        (first,) = await peer.saw(1)
        await rig.trail.saw("fire.accepted")
        await peer.play(first.fire_id, State.STARTED)
        await peer.play(first.fire_id, State.FAILED)
        while len(peer.received) < 2:
            rig.clock.advance(2)
            await rig.history()
        await rig.trail.saw("fire.accepted", 2)
        await peer.play(first.fire_id, State.SUCCEEDED, attempt=2)
        await rig.trail.saw("fire.settled")
        await rig.pass_time(60)
        *_, again, second = await peer.saw(3)
    assert (again.attempt, again.fire_id) == (2, first.fire_id)
    assert [each.thread_id for each in (first, again, second)] == [first.fire_id, first.fire_id, second.fire_id]
    assert first.fire_id != second.fire_id
    said = await rig.service.explain_fire(wire.ExplainFireRequest(name="digest", at=first.nominal_at.ToJsonString()))
    assert f"It has its own thread: {first.fire_id}." in said.lines


async def test_nothing_is_sent_while_the_runtime_is_down_and_the_newest_stands_for_all(rig: Rig, peer: Peer) -> None:
    await peer.stop()
    await rig.create()
    async with rig.running():
        for _ in range(3):
            await rig.pass_time(60)
        assert [outcome for outcome, _, _ in await rig.history()] == ["coalesced", "coalesced", "pending"]
        await peer.start()
        await rig.pass_time(5)
        while not peer.received:
            rig.clock.advance(2)
            await rig.history()
        await rig.trail.saw("fire.accepted")
    (request,) = peer.received
    assert request.catch_up.count == 3
    assert not rig.trail.named("fire.sent")[1:]


async def test_a_stream_that_breaks_leaves_it_unknown_and_the_same_bytes_go_again(rig: Rig, peer: Peer) -> None:
    await rig.create(grace="1s")
    peer.answer = break_stream
    async with rig.running("dispatcher"):
        await rig.pass_time(60)
        await peer.saw(1)
        assert await rig.history() == [("sent", "", 1)]
        peer.answer = accept
        await rig.pass_time(300)
        assert (await rig.history())[0] == ("sent", "", 1), "however late, it is no miss"
        while len(peer.received) < 2:
            rig.clock.advance(2)
            await rig.history()
        await rig.trail.saw("fire.accepted")
    first, second = peer.received[0], peer.received[-1]
    assert first.SerializeToString(deterministic=True) == second.SerializeToString(deterministic=True)


async def test_a_restart_sends_what_was_not_answered(rig: Rig, peer: Peer) -> None:
    await rig.create()
    peer.answer = break_stream
    async with rig.running("dispatcher"):
        await rig.pass_time(60)
        await peer.saw(1)
    await rig.close()
    peer.answer = accept
    again = rig.again()
    async with again.running("dispatcher"):
        await again.trail.saw("fire.accepted")
    assert len({request.fire_id for request in peer.received}) == 1
    await again.close()


async def test_what_is_late_at_the_start_is_planned_before_it_can_be_sent(rig: Rig, peer: Peer) -> None:
    await rig.create("unanswered", every="1h")
    peer.answer = break_stream
    async with rig.running("dispatcher"):
        await rig.pass_time(3600)
        await peer.saw(1)
    await rig.create(catch_up="skip", grace="10s")
    await rig.pass_time(60)
    await rig.close()
    rig.clock.advance(30)
    peer.answer = accept
    again = rig.again()
    again.planned.clear()
    async with again.running("dispatcher"):
        await again.trail.saw("fire.accepted")
        for _ in range(5):  # each goes through the store's queue, behind a claim
            assert await again.history() == [("pending", "", 1)]
        async with again.running("loop"):
            await again.trail.saw("fire.settled")
            await asyncio.wait_for(again.planned.wait(), 10)
    assert await again.history() == [("skipped", "missed", 1)]
    assert len({request.fire_id for request in peer.received}) == 1
    await again.close()


async def test_a_definite_refusal_is_tried_again_after_a_pause_on_the_same_stream(rig: Rig, peer: Peer) -> None:
    await rig.create()
    peer.answer = refuse(code_pb2.RESOURCE_EXHAUSTED, message="inbox full")
    async with rig.running("dispatcher"):
        await rig.pass_time(60)
        await rig.trail.saw("fire.refused")
        assert await rig.history() == [("pending", "inbox full", 1)]
        peer.answer = accept
        accepted = asyncio.ensure_future(rig.trail.saw("fire.accepted"))
        while not accepted.done():  # the dispatcher may not have begun to wait yet when the time goes by
            rig.clock.advance(0.6)
            await asyncio.wait([accepted], timeout=0.05)
    assert len(peer.received) == 2
    assert await rig.history() == [("accepted", "", 1)]


async def test_a_fire_that_ran_though_it_was_refused_has_a_time_of_sending(rig: Rig, peer: Peer) -> None:
    await rig.create()
    peer.answer = refuse(code_pb2.RESOURCE_EXHAUSTED, message="no room")
    async with rig.running():
        await rig.pass_time(60)
        await rig.trail.saw("fire.refused")
        await peer.play(peer.received[-1].fire_id, State.SUCCEEDED)
        await rig.trail.saw("fire.settled")
    (entry,) = (await rig.service.list_fires(wire.ListFiresRequest(name="digest", limit=9))).fires
    assert entry.outcome == "succeeded"
    assert entry.HasField("fired_at")


async def test_a_refused_fire_that_is_late_is_planned_again_under_the_policy(rig: Rig, peer: Peer) -> None:
    await rig.create(catch_up="skip", grace="10s")
    peer.answer = refuse(code_pb2.RESOURCE_EXHAUSTED)
    async with rig.running("dispatcher"):
        await rig.pass_time(60)
        await rig.trail.saw("fire.refused")
        await rig.pass_time(10.1)
    assert await rig.history() == [("skipped", "missed", 1)]


async def test_an_unknown_category_quarantines_the_task(rig: Rig, peer: Peer) -> None:
    await rig.create()
    peer.answer = refuse(code_pb2.FAILED_PRECONDITION, field="category", message="unknown category 'loop'")
    async with rig.running("dispatcher"):
        await rig.pass_time(60)
        await rig.trail.saw("task.quarantined")
    task = await rig.task()
    assert (task.state, task.reason) == ("quarantined", "category: unknown category 'loop'")
    await rig.pass_time(600)
    assert await rig.history() == [("skipped", "quarantined", 1)]
    await rig.service.resume_task(wire.ResumeTaskRequest(name="digest"))
    assert (await rig.task()).state == "active"


async def test_a_fire_whose_category_cannot_be_used_now_is_held_and_sent_once_that_is_repaired(
    rig: Rig, peer: Peer
) -> None:
    await rig.create()
    why = "category loop cannot be used: loop.toml:3: a key is missing"
    peer.answer = refuse(code_pb2.UNAVAILABLE, field="category", message=why)
    async with rig.running("dispatcher"):
        await rig.pass_time(60)
        await rig.trail.saw("fire.refused")
        task = await rig.task()
        assert (task.state, task.waits_for) == ("waiting", f"the repair of this: {why}"), "it is not quarantined"
        assert rig.dispatcher.trouble == f"fires are held until this is repaired: {why}"
        peer.answer = accept
        await rig.pass_time(1)
        await rig.trail.saw("fire.accepted")
        assert rig.dispatcher.trouble == ""
        assert (await rig.task()).waits_for == ""


async def test_caught_up_fires_take_turns(home, clock, place, peer: Peer) -> None:
    rig = Rig(home, clock, place, Pace(concurrency=2, stagger_s=0))
    for number in range(5):
        await rig.create(f"task{number}")
    await rig.pass_time(330)
    async with rig.running():
        await rig.trail.saw("fire.accepted", 2)
        assert len(peer.received) == 2
        await peer.play(peer.received[0].fire_id, State.SUCCEEDED)
        await rig.trail.saw("fire.accepted", 3)
        assert len(peer.received) == 3
    await rig.close()


async def test_a_thousand_fires_due_at_once_are_sent_each_once(rig: Rig, peer: Peer) -> None:
    specs = [
        wire.TaskSpec(name=f"t{n}", at="2026-03-02T09:01:00Z", category="loop", channel="c", prompt="p")
        for n in range(1000)
    ]
    await rig.service.apply_tasks(wire.ApplyTasksRequest(specs=specs))
    async with rig.running():
        await rig.pass_time(60)
        await rig.trail.saw("fire.accepted", 1000)
    assert len({request.fire_id for request in peer.received}) == len(peer.received) == 1000


async def test_what_is_written_of_a_fire_that_is_sent_and_accepted_is_all_that_changed(rig: Rig) -> None:
    await rig.create("digest")
    await rig.create("watch", overlap="queue", catch_up="run-all")
    await rig.pass_time(60)
    now = rig.clock.now()

    def send_and_accept(session: Session) -> None:
        sent = [outgoing.fire for outgoing in claim(session, now, 10, 4, single=False)]
        ids = {fire.fire_id for fire in sent}
        assert len(ids) == 2
        assert session.fires.by_ids(ids) == {fire.fire_id: fire for fire in sent}
        receipts = [accept(runtime.FireRequest(fire_id=fire.fire_id, attempt=1)) for fire in sent]
        record_receipts(session, receipts, [None, None], now)
        accepted = {fire.fire_id: ledger.accepted(fire, now, attempt=1, turn_id="turn-1") for fire in sent}
        assert session.fires.by_ids(ids) == accepted

    await rig.store.run(send_and_accept)


async def test_a_refusal_and_an_acceptance_in_one_batch_leave_what_both_changed(rig: Rig) -> None:
    await rig.create("digest")
    await rig.pass_time(60)
    now = rig.clock.now()

    def refuse_then_accept(session: Session) -> None:
        (outgoing,) = claim(session, now, 10, 4, single=False)
        request = runtime.FireRequest(fire_id=outgoing.fire.fire_id, attempt=1)
        record_receipts(session, [refuse(code_pb2.UNAVAILABLE)(request), accept(request)], [None, None], now)
        refused = ledger.refused(outgoing.fire, now, attempt=1, why="no")
        expected = ledger.accepted(refused, now, attempt=1, turn_id="turn-1")
        assert session.fires.by_ids({expected.fire_id}) == {expected.fire_id: expected}

    await rig.store.run(refuse_then_accept)


async def test_an_acceptance_forgets_earlier_refusals(rig: Rig) -> None:
    await rig.create("digest")
    await rig.pass_time(60)
    now, later = rig.clock.now(), rig.clock.now() + timedelta(seconds=10)

    def refuse_and_accept_later(session: Session) -> None:
        (outgoing,) = claim(session, now, 10, 4, single=False)
        request = runtime.FireRequest(fire_id=outgoing.fire.fire_id, attempt=1)
        record_receipts(session, [refuse(code_pb2.UNAVAILABLE)(request)], [None], now)
        (again,) = claim(session, later, 10, 4, single=False)
        assert again.fire.refusals == 1
        record_receipts(session, [accept(request)], [None], later)
        expected = ledger.accepted(again.fire, later, attempt=1, turn_id="turn-1")
        assert session.fires.by_ids({expected.fire_id}) == {expected.fire_id: expected}
        assert expected.refusals == 0

    await rig.store.run(refuse_and_accept_later)


def test_fires_fill_messages_in_order_and_a_long_prompt_travels_alone() -> None:
    fires = [runtime.FireRequest(fire_id=f"f{number}", prompt="p") for number in range(300)]
    fires[5].prompt = "x" * (1 << 20)
    found = [runtime.FireBatch.FromString(each) for each in batches([fire.SerializeToString() for fire in fires])]
    assert [fire for batch in found for fire in batch.fires] == fires
    assert [len(batch.fires) for batch in found] == [5, 1, 128, 128, 38]


async def test_a_runtime_that_refuses_this_runner_is_named_once_until_it_takes_fires(rig: Rig, peer: Peer) -> None:
    await peer.stop()
    rules = Rules(peer="task-runner", reads=(), acts={}, reserved_methods={"FireBatches"})
    server = UnixServer(peer.socket, Door(rig.home, rules, EventLog(rig.home.logs, "agent-runtime", SystemClock())))
    server.add(add_AgentRuntimeServicer_to_server, peer)
    await server.start()
    for _ in range(2):
        with pytest.raises(Denied, match="only task-runner may call FireBatches"):
            await rig.dispatcher.serve_once()
    assert rig.dispatcher.refusal.startswith("no fire can be sent: ")
    assert len(rig.trail.named("runtime.refused")) == 1
    rig.runtime._identity = Identity.of_daemon("task-runner", "agent-runtime", rig.home)
    await rig.create()
    await rig.pass_time(60)
    async with rig.running("dispatcher"):
        await rig.trail.saw("fire.accepted")
    assert rig.dispatcher.refusal == ""
    await server.stop(0.0)
