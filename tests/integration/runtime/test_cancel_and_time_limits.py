"""Cancels and time limits: the turn stops at its next await, what was done stays, and the thread goes on afterwards.

Durations are told apart by what happens first, never by a clock: a tool that would wait for ever is still waiting when
its turn is over.
"""

import asyncio
from typing import Any

import pytest
from langchain_core.messages import AIMessage, ToolMessage

from agent_runtime.daemon.assembly import use_threads
from tests.integration.runtime.harness import STATES, Bench, look_again, soon
from tests.support.scripted import calls
from turnkeeper.v1 import agent_runtime_pb2 as wire

TOOLS = ["tool:note", "tool:block", "tool:sit", "tool:resist"]


async def begin(bench: Bench, tool: str, *, seconds: int = 60) -> wire.FireReceipt:
    """Send a fire whose turn notes something, and then stays in a tool."""
    bench.category("work", tools=TOOLS, seconds=seconds)
    bench.script["go"] = [calls(("note", {"text": "a"})), calls(("note", {"text": "b"}), (tool, {}))]
    receipt: wire.FireReceipt = await bench.accept(bench.fire(1))
    reached = asyncio.to_thread(bench.sitting.wait) if tool == "sit" else bench.blocked.wait()
    await soon(reached, f"the turn to reach {tool}")
    return receipt


async def cancel(bench: Bench, turn_id: str) -> wire.Turn:
    return await bench.service.CancelTurn(wire.CancelTurnRequest(turn_id=turn_id, reason="enough"), None)


async def goes_on(bench: Bench) -> list[Any]:
    """Run another turn on the thread; return its history, in which each call has one answer, right behind it."""
    bench.script["later"] = [calls(("note", {"text": "c"}))]
    assert (await bench.run(2, prompt="later")).state == STATES.SUCCEEDED
    engine: Any = bench.runtime.worker._engines.of("")
    snapshot = await engine._graph.aget_state({"configurable": {"thread_id": "thread-a"}})
    waiting: list[str] = []
    for message in snapshot.values["messages"]:
        if isinstance(message, ToolMessage):
            waiting.remove(message.tool_call_id)
        else:
            assert not waiting
            waiting = [call["id"] for call in message.tool_calls] if isinstance(message, AIMessage) else []
    return list(snapshot.values["messages"])


@pytest.mark.parametrize("tool", ["block", "sit", "resist"])
async def test_a_cancel_ends_the_turn_while_its_tool_still_waits(bench: Bench, tool: str) -> None:
    receipt = await begin(bench, tool)
    assert (await cancel(bench, receipt.turn_id)).cancel_requested
    event = await bench.stopped(receipt.turn_id)
    assert (event.state, event.error) == (STATES.CANCELLED, "enough")
    assert bench.noted == ["a", "b"], "the tool has not come back"
    history = await goes_on(bench)
    assert bench.noted == ["a", "b", "c"]
    answers = [message for message in history if isinstance(message, ToolMessage)]
    assert [str(message.content) for message in answers if message.status != "error"] == [
        "noted a",
        "noted b",
        "noted c",
    ]
    (cut,) = [str(message.content) for message in answers if message.status == "error"]
    assert "may" in cut, "nobody knows whether it has done what it does"


@pytest.mark.parametrize("tool", ["sit", "resist"])
async def test_a_hung_tool_meets_the_time_limit_and_the_thread_goes_on(bench: Bench, tool: str) -> None:
    receipt = await begin(bench, tool, seconds=2)
    event = await bench.stopped(receipt.turn_id)
    assert (event.state, event.error) == (STATES.CANCELLED, "took longer than 2 s")
    assert bench.noted == ["a", "b"]
    (shown,) = await bench.conversation()
    assert [line.text for line in shown.messages][:3] == ["go", "", "noted a"], "what was said before stays on record"
    bench.category("work", tools=TOOLS)
    await goes_on(bench)
    assert (await bench.turn(receipt.turn_id)).status == "cancelled"


async def test_a_cancel_that_is_stored_before_the_outcome_is_honoured(bench: Bench) -> None:
    intervals: Any = bench.runtime.worker._intervals
    run = intervals.run

    async def cancelled_late(turn: Any, *args: Any) -> Any:
        ended = await run(turn, *args)
        await bench.runtime.store.cancel(turn.turn_id, "just in time")
        return ended

    intervals.run = cancelled_late
    event = await bench.run(1)
    assert (event.state, event.error) == (STATES.CANCELLED, "just in time")
    intervals.run = run
    await goes_on(bench)


async def test_what_a_thread_does_after_its_turn_was_cancelled_changes_no_record(bench: Bench) -> None:
    receipt = await begin(bench, "sit")
    await cancel(bench, receipt.turn_id)
    await bench.stopped(receipt.turn_id)
    history = [str(message.content) for message in await goes_on(bench)]
    before = await bench.conversation()
    bench.rise.set()
    while "sat" not in bench.noted:
        await look_again()
    bench.script["last"] = []
    assert (await bench.run(3, prompt="last")).state == STATES.SUCCEEDED
    engine: Any = bench.runtime.worker._engines.of("")
    snapshot = await engine._graph.aget_state({"configurable": {"thread_id": "thread-a"}})
    assert [str(message.content) for message in snapshot.values["messages"]] == [*history, "last", "done"]
    assert (await bench.conversation())[:2] == before


async def test_more_hung_threads_than_processors_leave_others_free_to_work(bench: Bench) -> None:
    use_threads()
    await begin(bench, "sit")
    bench.script["sit"] = [calls(("sit", {}))]
    for number in range(10, 50):
        await bench.accept(bench.fire(number, prompt="sit", thread_id=f"thread-{number % 20}"))
    bench.script["two"] = [calls(("note", {"text": "free"}))]
    assert (await bench.run(2, prompt="two", thread_id="thread-free")).state == STATES.SUCCEEDED


@pytest.mark.parametrize("tool", ["sit", "resist"])
async def test_a_hung_tool_does_not_hold_up_a_drain(bench: Bench, tool: str) -> None:
    receipt = await begin(bench, tool)
    await soon(bench.runtime.worker.stop(0.0), "the drain")
    assert (await bench.turn(receipt.turn_id)).status == "running"
    assert bench.noted == ["a", "b"]
