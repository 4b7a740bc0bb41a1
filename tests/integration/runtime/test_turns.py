"""Fires and messages become turns: once, in order, with their outcome on record."""

import asyncio
from typing import Any

import pytest
from langchain_core.messages import AIMessage

from tests.integration.runtime.harness import STATES, Bench, Call, soon
from tests.support.scripted import calls
from turnkeeper.errors import Conflict, Degraded, InvalidInput, NotFound, Unreachable
from turnkeeper.rpc.channel import Greeting, read_greeting
from turnkeeper.v1 import agent_runtime_pb2 as wire


async def test_a_fire_becomes_one_turn(bench: Bench) -> None:
    bench.script["go"] = [calls(("note", {"text": "x"})), AIMessage("all done")]
    receipt = await bench.accept(bench.fire())
    event = await bench.stopped(receipt.turn_id)
    assert (receipt.disposition, event.state) == (wire.FireReceipt.ACCEPTED, STATES.SUCCEEDED)
    assert event.summary == "all done"
    assert bench.noted == ["x"]
    (shown,) = await bench.conversation()
    assert [(line.role, line.text) for line in shown.messages] == [
        ("trigger", "go"), ("agent", ""), ("tool", "noted x"), ("agent", "all done"),
    ]  # fmt: skip
    assert shown.messages[1].tool_calls[0].name == "note"
    assert await bench.history() == ["STARTED", "SUCCEEDED"]


async def test_our_own_agent_would_read_what_a_task_gives_it(bench: Bench) -> None:
    asked = wire.ListGraphsRequest(inputs=[wire.FireRequest(prompt="go")])
    assert list((await bench.service.ListGraphs(asked, None)).warnings) == []


async def test_a_fire_sent_again_changes_nothing(bench: Bench) -> None:
    await bench.run()
    again = await bench.accept(bench.fire())
    assert again.disposition == wire.FireReceipt.DUPLICATE
    assert await bench.history() == ["STARTED", "SUCCEEDED"]


async def test_the_same_fire_with_other_content_is_refused(bench: Bench) -> None:
    await bench.run()
    with pytest.raises(Conflict, match="already accepted with other content"):
        await bench.accept(bench.fire(prompt="other"))
    traced = bench.fire(traceparent=f"00-{'a' * 32}-{'b' * 16}-01")
    assert (await bench.accept(traced)).disposition == wire.FireReceipt.DUPLICATE


async def test_a_new_attempt_is_a_new_turn(bench: Bench) -> None:
    first, second = await bench.run(), await bench.run(attempt=2)
    assert first.turn_id != second.turn_id
    assert (second.fire_id, second.attempt) == (first.fire_id, 2)


async def test_a_malformed_fire_is_refused_and_leaves_nothing(bench: Bench) -> None:
    with pytest.raises(InvalidInput) as refused:
        await bench.accept(bench.fire(channel="../up"))
    assert refused.value.where == "channel"
    assert bench.lying("inbox") == bench.lying("claimed") == bench.lying("delivered") == []


async def test_a_fire_of_an_unknown_category_can_be_sent_again_later(bench: Bench) -> None:
    with pytest.raises(Degraded) as refused:
        await bench.service.Fire(bench.fire(category="nope"), None)
    assert refused.value.where == "category"


async def test_a_stream_answers_each_fire_in_order_and_survives_a_bad_one(bench: Bench) -> None:
    async def requests() -> Any:
        for number in range(1, 30):
            yield bench.fire(number, prompt="" if number == 7 else "go", channel="" if number == 7 else "main")

    requested = [request async for request in requests()]
    requested[6].channel = ""

    async def again() -> Any:
        for request in requested:
            yield request

    receipts = [receipt async for receipt in bench.service.FireStream(again(), Call())]
    assert [receipt.fire_id for receipt in receipts] == [request.fire_id for request in requested]
    assert receipts[6].error.field == "channel"
    assert all(r.disposition == wire.FireReceipt.ACCEPTED for r in receipts if r is not receipts[6])


@pytest.mark.one_machine("it reads the files of envelopes")
async def test_turns_of_one_thread_run_one_after_the_other_in_order(bench: Bench) -> None:
    bench.script["wait"] = [calls(("block", {}))]
    first = await bench.accept(bench.fire(1, prompt="wait"))
    await soon(bench.blocked.wait(), "the first turn to block")
    second = await bench.accept(bench.fire(2))
    message = await bench.send("hello", thread_id="thread-a")
    other = await bench.run(3, task="b", thread_id="thread-b")
    assert other.state == STATES.SUCCEEDED, "another thread goes on meanwhile"
    assert (await bench.turn(second.turn_id)).status == "accepted"
    bench.go.set()
    await bench.stopped(message.turn_id)
    ids = [first.turn_id, second.turn_id, message.turn_id]
    started = [record["turn_id"] for record in bench.trail("turn.started") if record["turn_id"] in ids]
    stopped = [record["turn_id"] for record in bench.trail("turn.stopped") if record["turn_id"] in ids]
    assert started == ids
    assert stopped[:2] == ids[:2]


async def test_a_silent_turn_without_a_word_leaves_no_trace_in_the_conversation(bench: Bench) -> None:
    bench.category("quiet", silent=True)
    bench.script["hush"] = [AIMessage("")]
    assert (await bench.run(1, category="quiet", prompt="hush")).state == STATES.SILENT
    assert await bench.conversation() == []
    assert (await bench.run(2, category="quiet")).state == STATES.SUCCEEDED
    assert len(await bench.conversation()) == 1


async def test_a_failing_graph_is_a_failed_turn_and_the_next_one_starts_clean(bench: Bench) -> None:
    bench.category("work", tools=["tool:note", "tool:fail"])
    bench.script["break"] = [calls(("note", {"text": "before"})), calls(("note", {"text": "b"}), ("fail", {}))]
    event = await bench.run(1, prompt="break")
    assert event.state == STATES.FAILED
    assert "the tool broke" in event.error
    assert (await bench.run(2)).state == STATES.SUCCEEDED


async def test_a_cancel_stops_a_running_turn_and_is_visible(bench: Bench) -> None:
    bench.script["wait"] = [calls(("block", {}))]
    receipt = await bench.accept(bench.fire(1, prompt="wait"))
    await soon(bench.blocked.wait(), "the turn to block")
    await bench.service.CancelTurn(wire.CancelTurnRequest(turn_id=receipt.turn_id, reason="enough"), None)
    event = await bench.stopped(receipt.turn_id)
    assert (event.state, event.error) == (STATES.CANCELLED, "enough")
    (shown,) = await bench.conversation()
    assert shown.status == "cancelled"
    after = await bench.run(2)
    assert after.state == STATES.SUCCEEDED, "the thread is of use again"


async def test_a_cancel_of_a_fire_that_has_not_started_is_kept(bench: Bench) -> None:
    bench.script["wait"] = [calls(("block", {}))]
    await bench.accept(bench.fire(1, prompt="wait"))
    await soon(bench.blocked.wait(), "the first turn to block")
    second = await bench.accept(bench.fire(2))
    asked = wire.CancelTurnRequest(fire_id="task-0000000a@2", attempt=1)
    assert (await bench.service.CancelTurn(asked, None)).cancel_requested
    bench.go.set()
    event = await bench.stopped(second.turn_id)
    assert event.state == STATES.CANCELLED
    assert second.turn_id not in {record["turn_id"] for record in bench.trail("turn.started")}


async def test_a_hung_turn_meets_its_category_limit(bench: Bench) -> None:
    bench.category("brief", tools=["tool:block"], seconds=1)
    bench.script["wait"] = [calls(("block", {}))]
    event = await bench.run(1, prompt="wait", category="brief")
    assert (event.state, event.error) == (STATES.CANCELLED, "took longer than 1 s")


async def test_a_model_that_calls_tools_without_end_is_told_then_stopped(bench: Bench) -> None:
    bench.category("brief", tools=["tool:note"], tool_calls=2)
    bench.script["go on"] = [calls(("note", {"text": str(number)})) for number in range(30)]
    event = await bench.run(1, prompt="go on", category="brief")
    assert event.state == STATES.FAILED
    assert "its category allows 2" in event.error
    assert bench.noted == ["0", "1"]


@pytest.mark.parametrize(
    ("whose", "after", "starts_at"), [("another", 99, 1), ("own", 99, 1), ("own", 1, 2), ("own", -1, 1)]
)
async def test_watching_starts_at_the_beginning_for_a_sequence_of_another_store(
    bench: Bench, whose: str, after: int, starts_at: int
) -> None:
    await bench.run()
    incarnation = bench.runtime.store.incarnation
    request = wire.WatchTurnsRequest(incarnation=incarnation if whose == "own" else whose, after_sequence=after)
    call = Call()
    stream: Any = bench.service.WatchTurns(request, call)
    first = await soon(anext(stream), "the first event")
    assert (first.sequence, first.incarnation) == (starts_at, incarnation)
    assert read_greeting(call.metadata) == Greeting(incarnation=incarnation, after=starts_at - 1)
    await stream.aclose()


async def test_a_message_is_taken_once_and_continues_the_newest_visible_thread(bench: Bench) -> None:
    event = await bench.run()
    one = await bench.send("hello", request_id="r1")
    two = await bench.send("hello", request_id="r1")
    assert (one.thread_id, one.continues, one.duplicate) == (event.thread_id, True, False)
    assert (two.turn_id, two.duplicate) == (one.turn_id, True)
    await bench.stopped(one.turn_id)
    fresh = await bench.send("elsewhere", new_thread=True)
    assert fresh.thread_id.startswith("thread-")
    assert not fresh.continues
    with pytest.raises(Conflict, match="belongs to channel"):
        await bench.service.SendMessage(wire.SendMessageRequest(channel="x", text="y", thread_id="thread-a"), None)


async def test_what_is_not_there_is_not_found(bench: Bench) -> None:
    for request in (wire.GetTurnRequest(turn_id="turn-x"), wire.GetTurnRequest(fire_id="f", attempt=1)):
        with pytest.raises(NotFound):
            await bench.service.GetTurn(request, None)


async def test_a_forged_envelope_is_set_aside(bench: Bench) -> None:
    from turnkeeper.bus.envelope import Envelope, encode

    forged = Envelope(id="1", sender="author", to="agent0", kind="fire", text="go", at=bench.runtime.clock.now())
    (bench.home.inbox("agent0") / "inbox" / "00-forged.json").write_bytes(encode(forged))
    await bench.run()
    assert bench.lying("quarantine") == ["00-forged.json"]
    assert len(bench.trail("envelope.quarantined")) == 1


@pytest.mark.one_machine("it reads the files of envelopes")
async def test_at_rest_every_envelope_is_delivered(bench: Bench) -> None:
    turns = [await bench.accept(bench.fire(number, thread_id=f"t{number % 3}")) for number in range(1, 13)]
    await asyncio.gather(*(bench.stopped(turn.turn_id) for turn in turns))
    await bench.stop()
    assert (bench.lying("inbox"), bench.lying("claimed")) == ([], [])
    assert len(bench.lying("delivered")) == 12


async def test_a_runtime_that_drains_takes_no_fire_and_ends_its_streams(bench: Bench) -> None:
    async def one_and_wait():
        yield bench.fire()
        await asyncio.Event().wait()

    stream = bench.service.FireStream(one_and_wait(), Call())
    receipt = await anext(stream)
    assert receipt.disposition == wire.FireReceipt.ACCEPTED
    bench.service.refuse_fires()
    assert [receipt async for receipt in stream] == []
    with pytest.raises(Unreachable):
        await bench.accept(bench.fire(2))
    with pytest.raises(Unreachable):
        await anext(bench.service.FireStream(one_and_wait(), Call()))
    assert (await bench.stopped(receipt.turn_id)).state == STATES.SUCCEEDED, "what was accepted is still reported"


async def test_a_cancel_that_overtakes_its_fire_is_honoured(bench: Bench) -> None:
    fire = bench.fire(1)
    await bench.service.CancelTurn(wire.CancelTurnRequest(fire_id=fire.fire_id, attempt=fire.attempt), None)
    receipt = await bench.accept(fire)
    assert (await bench.stopped(receipt.turn_id)).state == STATES.CANCELLED
    with pytest.raises(NotFound):
        await bench.service.CancelTurn(wire.CancelTurnRequest(turn_id="turn-0000000000000000"), None)


async def test_a_turn_that_fails_keeps_what_it_said_and_used(bench: Bench) -> None:
    said = calls(("note", {"text": "before"}))
    said.usage_metadata = {"input_tokens": 20, "output_tokens": 3, "total_tokens": 23}
    bench.category("work", tools=["tool:note", "tool:fail"])
    bench.script["break"] = [said, calls(("fail", {}))]
    event = await bench.run(1, prompt="break")
    assert (event.state, event.tokens_in, event.tokens_out) == (STATES.FAILED, 20, 3)
    (shown,) = await bench.conversation()
    assert [(line.role, line.text) for line in shown.messages] == [
        ("trigger", "break"), ("agent", ""), ("tool", "noted before"), ("agent", ""),
    ]  # fmt: skip


async def test_a_tool_that_does_not_answer_meets_the_time_limit(bench: Bench) -> None:
    bench.category("work", tools=["tool:block"], seconds=1)
    bench.script["wait"] = [calls(("block", {}))]
    event = await bench.run(1, prompt="wait")
    assert (event.state, event.error) == (STATES.CANCELLED, "took longer than 1 s")
    bench.category("work", tools=["tool:block"])
    assert (await bench.run(2)).state == STATES.SUCCEEDED


async def test_an_agent_that_could_not_do_the_task_ends_its_turn_as_failed_with_its_reason(bench: Bench) -> None:
    bench.category("work", tools=["turn.fail"])
    bench.script["go"] = [calls(("turn_fail", {"reason": "the server\n did not answer"})), AIMessage("never said")]
    event = await bench.run(1)
    assert (event.state, event.error) == (STATES.FAILED, "the agent gave up: the server did not answer")
    (turn,) = await bench.conversation()
    assert "never said" not in [message.text for message in turn.messages]
    bench.script["again"] = [AIMessage("done")]
    assert (await bench.run(2, prompt="again")).state == STATES.SUCCEEDED, "the thread goes on"


async def test_a_category_grants_that_a_turn_says_it_failed(bench: Bench) -> None:
    bench.category("work", tools=["tool:note"])
    bench.script["go"] = [calls(("turn_fail", {"reason": "no"}))]
    assert (await bench.run(1)).state == STATES.INTERRUPTED
