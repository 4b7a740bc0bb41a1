"""A crash at any moment: the next process finds the envelope or the row, and nothing runs twice or gets lost."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from langchain_core.messages import AIMessage, ToolMessage

from agent_runtime.model import decide
from agent_runtime.model.approval import AuthorDecision, RaisedInterrupt
from agent_runtime.model.trigger import encode_trigger
from agent_runtime.model.turn import Said, TurnContext
from agent_runtime.service.requests import read_fire
from agent_runtime.store.idempotency import Call
from agent_runtime.workspace.model import PageDraft, SummaryDraft
from tests.integration.runtime.harness import PATIENCE_S, STATES, Bench, soon
from tests.support.scripted import calls
from tests.support.workspace import put_page
from turnkeeper.errors import Conflict
from turnkeeper.v1 import agent_runtime_pb2 as wire


async def test_a_turn_that_a_crash_cut_goes_on_from_its_checkpoint(bench: Bench) -> None:
    bench.script["go"] = [calls(("note", {"text": "a"})), calls(("block", {})), calls(("note", {"text": "b"}))]
    receipt = await bench.accept(bench.fire())
    await soon(bench.blocked.wait(), "the turn to block")
    await bench.crash()
    await soon(bench.blocked.wait(), "the next process to reach the same step")
    bench.go.set()
    assert (await bench.stopped(receipt.turn_id)).state == STATES.SUCCEEDED
    assert bench.noted == ["a", "b"], "what was finished before the crash is not done again"
    assert await bench.history() == ["STARTED", "SUCCEEDED"]
    modes = [record["mode"] for record in bench.trail("turn.started")]
    assert modes == ["start", "continue"]
    (shown,) = await bench.conversation()
    assert [line.role for line in shown.messages] == ["trigger", *["agent", "tool"] * 3, "agent"]


@pytest.mark.one_machine("it writes for a turn that it does not own")
async def test_a_superseded_process_writes_nothing(bench: Bench) -> None:
    bench.script["go"] = [calls(("block", {}))]
    receipt = await bench.accept(bench.fire())
    await soon(bench.blocked.wait(), "the turn to block")
    before = bench.runtime
    await bench.crash()
    trigger = read_fire(bench.fire(2), before.categories.get)
    said = (Said(role="agent", text="late"),)
    raised = [RaisedInterrupt(interrupt_id="late", kind="question", question="?")]
    context = TurnContext(
        turn_id=receipt.turn_id, thread_id="thread-a", channel="main", agent="agent0",
        category=replace(
            before.categories.get("work"), tools=frozenset({"summary.propose", "memory.put"}),
            writes=frozenset({"candidate-summary"}), memory=frozenset({"channel"}),
        ),
    )  # fmt: skip
    call = Call(context=context, key="late")
    late = [
        before.store.begin(trigger), before.store.begin_ended(trigger, "cancelled"), before.store.refuse(trigger, "late"),
        before.store.hold(trigger, ()), before.store.keep(trigger), before.store.take_answer(trigger, receipt.turn_id, "i"),
        before.store.resume_pause(trigger, receipt.turn_id, "i", ""), before.store.try_again(receipt.turn_id),
        before.store.resume(receipt.turn_id, ()), before.store.record(receipt.turn_id, said, (1, 1)),
        before.store.interrupted(receipt.turn_id, raised), before.store.paused(receipt.turn_id, raised[0]),
        before.store.finish(receipt.turn_id, "failed"), before.store.cancel(receipt.turn_id, "late"),
        before.store.decide([("i", AuthorDecision(decision="approve"), "")]),
        before.workspace.propose(call, SummaryDraft(channel="main", title="late", body="late")),
        before.workspace.memory.put(call, tier="channel", text="late", key="", channel=""),
        put_page(before.workspace, PageDraft(page_id="late", title="late", body="late", tags=())),
        before.workspace.authors.decide("c-late", accept=True),
    ]  # fmt: skip
    for write in late:
        with pytest.raises(Conflict, match="taken over"):
            await write
    bench.go.set()
    assert (await bench.stopped(receipt.turn_id)).state == STATES.SUCCEEDED
    assert await bench.history() == ["STARTED", "SUCCEEDED"]


async def test_an_envelope_that_was_claimed_and_never_begun_is_adopted(bench: Bench) -> None:
    bench.script["go"] = [calls(("block", {}))]
    await bench.accept(bench.fire(1))
    await soon(bench.blocked.wait(), "the first turn to block")
    second = await bench.accept(bench.fire(2, prompt="later"))
    await bench.crash()
    again = await bench.accept(bench.fire(2, prompt="later"))
    assert again.disposition == wire.FireReceipt.DUPLICATE
    await soon(bench.blocked.wait(), "the first turn to be continued")
    bench.go.set()
    assert (await bench.stopped(second.turn_id)).state == STATES.SUCCEEDED
    assert await bench.history() == ["STARTED", "SUCCEEDED"] * 2


@pytest.mark.one_machine("it writes for a turn that it does not own")
async def test_a_row_without_input_is_given_its_input(bench: Bench) -> None:
    store = bench.runtime.store
    worker: Any = bench.runtime.worker
    worker._tasks["claim"].cancel()
    trigger = read_fire(bench.fire(), bench.runtime.categories.get)
    await bench.runtime.mailboxes.put([encode_trigger(trigger, envelope_id="1", at=bench.runtime.clock.now())])
    await bench.runtime.mailboxes.claim(1)
    await store.begin(trigger)
    await bench.crash()
    assert (await bench.stopped(trigger.turn_id)).state == STATES.SUCCEEDED
    assert await bench.history() == ["STARTED", "SUCCEEDED"]
    (shown,) = await bench.conversation()
    assert [line.text for line in shown.messages] == ["go", "done"]
    await bench.rest()
    assert bench.lying("claimed") == []


async def test_a_stored_decision_survives_a_crash_before_the_resume(bench: Bench) -> None:
    bench.category("work", tools=[])
    bench.script["go"] = [calls(("note", {"text": "x"}))]
    event = await bench.run()
    (question,) = await bench.pending()
    bench.runtime.worker.answered = lambda _thread: None  # type: ignore[method-assign]
    await bench.resolve(question.interrupt_id, "approve")
    await bench.crash()
    assert (await bench.stopped(event.turn_id, after=event.sequence)).state == STATES.SUCCEEDED
    assert bench.noted == ["x"]


async def test_a_resume_that_a_crash_cut_is_given_its_answer_again(bench: Bench) -> None:
    bench.category("work", tools=[])
    bench.script["go"] = [calls(("block", {})), AIMessage("over")]
    event = await bench.run()
    (question,) = await bench.pending()
    await bench.resolve(question.interrupt_id, "approve")
    await soon(bench.blocked.wait(), "the approved call to run")
    await bench.crash()
    await soon(bench.blocked.wait(), "the approved call to run again")
    bench.go.set()
    assert (await bench.stopped(event.turn_id, after=event.sequence)).state == STATES.SUCCEEDED
    assert await bench.history() == ["STARTED", "INTERRUPTED", "RESUMED", "SUCCEEDED"]


async def cut_before_a_checkpoint(bench: Bench) -> wire.FireReceipt:
    """Stop a turn where both results of a step are on disk, and the checkpoint that takes them in is not."""
    bench.script["go"] = [calls(("note", {"text": "a"}), ("note", {"text": "b"})), calls(("note", {"text": "c"}))]
    engine: Any = bench.runtime.worker._engines.of("")
    saver, reached = engine._graph.checkpointer, asyncio.Event()
    put = saver.aput

    async def cut(*args: Any) -> Any:
        if len(bench.noted) == 2:
            reached.set()
            await asyncio.Event().wait()
        return await put(*args)

    saver.aput = cut
    receipt = await bench.accept(bench.fire())
    await soon(reached.wait(), "the step's checkpoint")
    return receipt


async def answers(bench: Bench, thread: str = "thread-a") -> list[str]:
    """Return what a thread's tools answered, having seen to it that each call has one answer, right behind it."""
    engine: Any = bench.runtime.worker._engines.of("")
    snapshot = await engine._graph.aget_state({"configurable": {"thread_id": thread}})
    assert not snapshot.tasks
    waiting: list[str] = []
    for message in snapshot.values["messages"]:
        if isinstance(message, ToolMessage):
            waiting.remove(message.tool_call_id)
        else:
            assert not waiting
            waiting = [call["id"] for call in getattr(message, "tool_calls", [])]
    return [message.text for message in snapshot.values["messages"] if isinstance(message, ToolMessage)]


async def test_a_crash_between_a_steps_results_and_its_checkpoint_loses_nothing(bench: Bench) -> None:
    receipt = await cut_before_a_checkpoint(bench)
    await bench.crash()
    assert (await bench.stopped(receipt.turn_id)).state == STATES.SUCCEEDED
    assert bench.noted == ["a", "b", "c"], "what follows is done, what was done is not done again"
    assert await answers(bench) == ["noted a", "noted b", "noted c"]
    assert await bench.history() == ["STARTED", "SUCCEEDED"]


async def test_a_cancel_between_a_steps_results_and_its_checkpoint_keeps_the_results(bench: Bench) -> None:
    receipt = await cut_before_a_checkpoint(bench)
    await bench.runtime.store.cancel(receipt.turn_id, "enough")
    await bench.crash()
    assert (await bench.stopped(receipt.turn_id)).state == STATES.CANCELLED
    bench.script["later"] = [calls(("note", {"text": "z"}))]
    assert (await bench.run(2, prompt="later")).state == STATES.SUCCEEDED
    assert await answers(bench) == ["noted a", "noted b", "noted z"]


async def test_a_question_survives_crashes_untouched(bench: Bench) -> None:
    bench.category("work", tools=[])
    bench.script["go"] = [calls(("note", {"text": "x"}))]
    event = await bench.run()
    (question,) = await bench.pending()
    for _ in range(2):
        await bench.crash()
    assert (await bench.pending())[0].interrupt_id == question.interrupt_id
    await bench.resolve(question.interrupt_id, "approve")
    assert (await bench.stopped(event.turn_id, after=event.sequence)).state == STATES.SUCCEEDED


async def test_a_cancel_survives_a_crash(bench: Bench) -> None:
    bench.script["go"] = [calls(("block", {}))]
    receipt = await bench.accept(bench.fire())
    await soon(bench.blocked.wait(), "the turn to block")
    await bench.runtime.store.cancel(receipt.turn_id, "stop it")
    await bench.crash()
    event = await bench.stopped(receipt.turn_id)
    assert (event.state, event.error) == (STATES.CANCELLED, "stop it")


async def test_a_turn_that_never_ends_a_process_well_is_given_up(bench: Bench) -> None:
    bench.script["go"] = [calls(("block", {}))]
    receipt = await bench.accept(bench.fire())
    for _ in range(5):
        await soon(bench.blocked.wait(), "the turn to block")
        await bench.crash()
    event = await bench.stopped(receipt.turn_id)
    assert event.state == STATES.FAILED
    assert "was tried 5 times" in event.error


async def test_a_drain_leaves_the_turn_to_the_next_process(bench: Bench) -> None:
    bench.script["go"] = [calls(("note", {"text": "a"})), calls(("block", {})), calls(("note", {"text": "b"}))]
    receipt = await bench.accept(bench.fire())
    await soon(bench.blocked.wait(), "the turn to block")
    stopping = asyncio.create_task(bench.runtime.worker.stop(5.0))
    await asyncio.wait([stopping], timeout=0.05)
    bench.go.set()
    await soon(stopping, "the drain")
    assert bench.noted == ["a"], "it stopped at the step's end"
    assert (await bench.turn(receipt.turn_id)).status == "running"
    bench.runtime.mailboxes.close()
    await bench.open()
    assert (await bench.stopped(receipt.turn_id)).state == STATES.SUCCEEDED
    assert bench.noted == ["a", "b"]
    assert [record["state"] for record in bench.trail("turn.stopped")] == ["drained", "succeeded"]


async def test_restarts_in_good_order_are_no_failed_tries(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decide, "MOST_TRIES", 1)
    bench.script["go"] = [calls(("block", {})) for _ in range(3)]
    receipt = await bench.accept(bench.fire())
    for grace_s in (PATIENCE_S, 0.0):  # at a step's end, then in the middle of a step
        await soon(bench.blocked.wait(), "the turn to block")
        stopping = asyncio.create_task(bench.runtime.worker.stop(grace_s))
        await asyncio.wait([stopping], timeout=0.01)
        bench.go.set()
        await soon(stopping, "the drain")
        await bench.crash()
    await soon(bench.blocked.wait(), "the turn to block")
    await bench.crash()
    event = await bench.stopped(receipt.turn_id)
    assert (event.state, event.error) == (STATES.FAILED, "was tried 1 times and never finished"), "a crash is one"


async def test_a_drain_does_not_wait_for_ever(bench: Bench) -> None:
    bench.script["go"] = [calls(("block", {}))]
    receipt = await bench.accept(bench.fire())
    await soon(bench.blocked.wait(), "the turn to block")
    await soon(bench.runtime.worker.stop(0.0), "the drain")
    assert (await bench.turn(receipt.turn_id)).status == "running"
    assert await bench.history() == ["STARTED"]
