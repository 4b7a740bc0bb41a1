"""Every row of the decision table on a real graph and real stores, with a crash at each of its edges.

=====================================================================  =============================================
row                                                                    tests
=====================================================================  =============================================
this turn is over, waits or is paused                                  `test_what_was_dealt_with_…` (four endings)
this turn is unfinished: input not in the checkpoint                   test_crashes `test_a_row_without_input_…`
… input there, thread at its end or at a question                      `test_an_outcome_that_was_not_written_…`
… otherwise                                                            test_crashes `test_a_turn_that_a_crash_cut_…`
… a resume whose answer is not in the checkpoint                       test_crashes `test_a_resume_that_a_crash_cut_…`
… a resume whose answer is                                             `test_a_resume_goes_on_without_its_answer_…`
… a pause's resume, cut                                                `test_a_pause_met_by_its_fire_survives_a_crash`
another turn is unfinished and nobody runs it                          `test_a_crash_is_healed_before_…`
a turn is running                                                      test_turns `test_turns_of_one_thread_run_…`
waiting for the author, a fire                                         test_approvals `test_a_fire_on_a_waiting_…`
waiting for the author, the decision                                   test_approvals; test_crashes `…stored_decision…`
waiting for the author, a message that may answer                      `test_a_message_taken_as_an_answer_…`
waiting for the author, a message that may not                         test_approvals `test_a_message_on_a_waiting_…`
paused, the next fire of its task                                      `test_a_pause_is_given_…`
paused, anything else                                                  `test_a_pause_…` (three), test_approvals
cancelled or errored, then anything                                    `test_after_a_turn_that_…` (three endings)
settled by another path                                                `test_…another_path…` (four)
nothing in the way                                                     test_turns `test_a_fire_becomes_one_turn`
=====================================================================  =============================================
"""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.types import Command

from agent_runtime.graph.context import turn_around
from agent_runtime.model.turn import TurnContext
from tests.integration.runtime.harness import PATIENCE_S, STATES, Bench, look_again, soon
from tests.support.clock import ManualClock
from tests.support.scripted import calls
from turnkeeper.config.home import Home
from turnkeeper.errors import Conflict
from turnkeeper.v1 import agent_runtime_pb2 as wire

ASKS = [calls(("ask", {"question": "red or blue?"}))]


def hang(part: Any, name: str) -> asyncio.Event:
    """Let a part of the runtime never come back from a call, as if the process died there; the event tells."""
    reached = asyncio.Event()

    async def never(*_args: Any, **_fields: Any) -> None:
        reached.set()
        await asyncio.Event().wait()

    setattr(part, name, never)
    return reached


async def messages(bench: Bench, thread: str = "thread-a") -> list[Any]:
    """Return a thread's messages, having seen to it that each call has one answer, right behind it."""
    engine: Any = bench.runtime.worker._engines.of("")
    snapshot = await engine._graph.aget_state({"configurable": {"thread_id": thread}})
    waiting: list[str] = []
    for message in snapshot.values["messages"]:
        if isinstance(message, ToolMessage):
            waiting.remove(message.tool_call_id)
        else:
            assert not waiting, "a call without an answer"
            waiting = [call["id"] for call in getattr(message, "tool_calls", [])]
    return list(snapshot.values["messages"])


async def paused(bench: Bench) -> wire.TurnEvent:
    bench.script["go"] = [calls(("pause", {}))]
    event = await bench.run(1)
    assert event.state == STATES.PAUSED
    return event


async def by_another_path(bench: Bench, event: wire.TurnEvent, value: Any) -> None:
    """Resume a turn's question with LangGraph alone."""
    worker: Any = bench.runtime.worker
    graph, config = worker._engines.of("")._graph, {"configurable": {"thread_id": event.thread_id}}
    pending = (await graph.aget_state(config)).interrupts
    named = {"turn_id": event.turn_id, "thread_id": event.thread_id, "channel": "main", "agent": "agent0"}
    context = TurnContext(category=bench.runtime.categories.get("work"), **named)
    narrowing = worker._intervals._narrowing
    narrowing.begin(event.turn_id, context.category)  # to the guard the turn runs, as it would elsewhere
    with turn_around(context):
        await graph.ainvoke(Command(resume={pending[0].id: value}), config, context=context)
    narrowing.end(event.turn_id)


@pytest.mark.one_machine("it puts the store into a state of its own")
@pytest.mark.parametrize("ending", ["succeeded", "interrupted", "paused", "held"])
async def test_what_was_dealt_with_and_not_archived_is_archived_and_nothing_else(bench: Bench, ending: str) -> None:
    scripts = {"succeeded": [], "interrupted": ASKS, "paused": [calls(("pause", {}))], "held": []}
    if ending == "held":
        bench.script["first"] = ASKS
        await bench.run(1, prompt="first")
    bench.script["go"] = [*scripts[ending]]
    archiving = hang(bench.runtime.mailboxes, "archive")
    event = await bench.run(2)
    assert STATES.Name(event.state).lower() == ending
    await soon(archiving.wait(), "the archiving")
    before = await bench.history()
    await bench.crash()
    await bench.rest()
    assert await bench.history() == before
    assert (bench.lying("claimed"), len(bench.lying("delivered"))) == ([], 2 if ending == "held" else 1)
    assert (await bench.turn(event.turn_id)).status == ending


@pytest.mark.parametrize(
    ("write", "script", "state"),
    [
        ("finish", [calls(("note", {"text": "x"}))], STATES.SUCCEEDED),
        ("interrupted", [calls(("note", {"text": "x"})), *ASKS], STATES.INTERRUPTED),
        ("paused", [calls(("note", {"text": "x"})), calls(("pause", {}))], STATES.PAUSED),
    ],
)
async def test_an_outcome_that_was_not_written_is_written_and_nothing_runs_twice(
    bench: Bench, write: str, script: list[AIMessage], state: Any
) -> None:
    bench.script["go"] = script
    reached = hang(bench.runtime.store, write)
    receipt = await bench.accept(bench.fire())
    await soon(reached.wait(), "the outcome")
    await bench.crash()
    assert (await bench.stopped(receipt.turn_id)).state == state
    assert bench.noted == ["x"]
    assert await bench.history() == ["STARTED", STATES.Name(state)]
    assert len(await bench.pending()) == (state == STATES.INTERRUPTED)
    assert sum(isinstance(message, HumanMessage) for message in await messages(bench)) == 1


@pytest.mark.one_machine("it puts the store into a state of its own")
@pytest.mark.parametrize("cut", ["in a later step", "before its outcome is written"])
async def test_a_resume_goes_on_without_its_answer_once_that_was_taken(bench: Bench, cut: str) -> None:
    bench.category("work", tools=["tool:block"])
    bench.script["go"] = [calls(("note", {"text": "x"})), calls(("block", {}))]
    event = await bench.run()
    (question,) = await bench.pending()
    reached = hang(bench.runtime.store, "finish") if cut != "in a later step" else bench.blocked
    bench.go.set() if cut != "in a later step" else None
    await bench.resolve(question.interrupt_id, "approve")
    await soon(reached.wait(), "the cut")
    await bench.crash()
    bench.go.set()
    assert (await bench.stopped(event.turn_id, after=event.sequence)).state == STATES.SUCCEEDED
    assert bench.noted == ["x"], "the approved call ran once"
    assert await bench.history() == ["STARTED", "INTERRUPTED", "RESUMED", "SUCCEEDED"]
    await messages(bench)


async def test_a_pause_met_by_its_fire_survives_a_crash(bench: Bench) -> None:
    first = await paused(bench)
    running = hang(bench.runtime.worker._intervals, "run")
    second = await bench.accept(bench.fire(2))
    await soon(running.wait(), "the resume")
    await bench.crash()
    assert (await bench.stopped(second.turn_id)).state == STATES.SUCCEEDED
    assert [line.text for line in await messages(bench) if isinstance(line, ToolMessage)] == [
        "woken by task-0000000a@2"
    ]
    shown = await bench.service.GetTurn(wire.GetTurnRequest(turn_id=first.turn_id), None)
    assert (shown.status, shown.state) == ("succeeded", STATES.SUCCEEDED), "it is no longer paused"
    assert await bench.history() == ["STARTED", "PAUSED", "STARTED", "SUCCEEDED"]


@pytest.mark.one_machine("it puts the store into a state of its own")
@pytest.mark.parametrize("comes", ["a fire", "a message", "a cancel of another turn"])
async def test_a_crash_is_healed_before_anything_else_is_done(bench: Bench, comes: str) -> None:
    bench.script["go"] = [calls(("block", {}))]
    first = await bench.accept(bench.fire(1))
    await soon(bench.blocked.wait(), "the first turn to block")
    worker: Any = bench.runtime.worker
    worker._tasks["claim"].cancel()
    if comes == "a message":
        second = (await bench.send("hello", thread_id="thread-a")).turn_id
    else:
        second = (await bench.accept(bench.fire(2, prompt="later"))).turn_id
    if comes == "a cancel of another turn":
        await bench.service.CancelTurn(wire.CancelTurnRequest(turn_id=second), None)
    await bench.crash()
    await soon(bench.blocked.wait(), "the first turn to be continued")
    assert await bench.history() == ["STARTED"]
    bench.go.set()
    state = STATES.CANCELLED if comes.startswith("a cancel") else STATES.SUCCEEDED
    assert (await bench.stopped(second)).state == state
    events = await bench.events(until=lambda event: event.turn_id == second and event.state == state)
    assert [event.turn_id for event in events][:2] == [first.turn_id] * 2
    await messages(bench)


@pytest.mark.parametrize("moment", ["before it is archived", "before the turn goes on"])
async def test_a_message_taken_as_an_answer_survives_a_crash(bench: Bench, moment: str) -> None:
    bench.script["go"] = [*ASKS]
    event = await bench.run()
    cut = hang(bench.runtime.mailboxes, "archive") if moment == "before it is archived" else None
    if cut is None:
        cut = hang(bench.runtime.store, "resume")
    sent = await bench.send("blue")
    await soon(cut.wait(), "the cut")
    await bench.crash()
    assert (await bench.stopped(event.turn_id, after=event.sequence)).state == STATES.SUCCEEDED
    assert [line.text for line in await messages(bench) if isinstance(line, ToolMessage)] == ["the author says blue"]
    assert (await bench.turn(sent.turn_id)).turn_id == event.turn_id
    await bench.rest()
    assert (await bench.history(), bench.lying("claimed")) == (["STARTED", "INTERRUPTED", "RESUMED", "SUCCEEDED"], [])


async def test_a_pause_is_given_what_its_fire_says(bench: Bench) -> None:
    await paused(bench)
    given: list[Any] = []
    engine: Any = bench.runtime.worker._engines.of("")
    run = engine.run

    async def seen(order: Any, *args: Any) -> Any:
        given.append(order)
        return await run(order, *args)

    engine.run = seen
    assert (await bench.run(2, prompt="again", payload_json='{"n": 2}')).state == STATES.SUCCEEDED
    ((value,),) = [list(order.values.values()) for order in given]
    assert (value["prompt"], value["fire_id"]) == ("again", "task-0000000a@2")
    assert json.loads(value["payload"]) == {"n": 2}
    assert value["nominal_at"] == "2026-09-21T14:13:22Z"


@pytest.mark.one_machine("it puts the store into a state of its own")
@pytest.mark.parametrize("restarted", [False, True])
async def test_a_pause_ends_by_itself_though_nothing_comes(
    home: Home, clock: ManualClock, place: Path | str, restarted: bool
) -> None:
    bench = Bench(home, clock, place=place)
    await bench.open()
    event = await paused(bench)
    await bench.rest()
    if restarted:
        await bench.crash()
    clock.advance(59.0)
    await bench.rest()
    assert (await bench.turn(event.turn_id)).status == "paused"
    clock.advance(2.0)
    ended = await bench.stopped(event.turn_id, after=event.sequence)
    assert (ended.state, ended.error) == (STATES.CANCELLED, "its pause ended before the awaited fire came")
    bench.script["later"] = []
    assert (await bench.run(2, prompt="later")).state == STATES.SUCCEEDED
    await messages(bench)
    await bench.close()


async def test_a_pause_that_is_cancelled_lets_the_waiting_fire_go(bench: Bench) -> None:
    event = await paused(bench)
    bench.script["other"] = []
    other = await bench.accept(bench.fire(2, task="b", prompt="other"))
    sent = await bench.send("hello")
    await bench.service.CancelTurn(wire.CancelTurnRequest(turn_id=event.turn_id, reason="no more"), None)
    assert (await bench.stopped(event.turn_id, after=event.sequence)).state == STATES.CANCELLED
    for turn_id in (other.turn_id, sent.turn_id):
        assert (await bench.stopped(turn_id)).state == STATES.SUCCEEDED
    await messages(bench)


@pytest.mark.one_machine("it puts the store into a state of its own")
async def test_a_pause_keeps_back_a_message_until_its_fire_has_come(bench: Bench) -> None:
    await paused(bench)
    sent = await bench.send("hello")
    async with asyncio.timeout(PATIENCE_S):
        while (kept := await bench.turn(sent.turn_id)).status != "kept":
            await look_again()
    why = "the message waits for the next fire of digest-a, at most until 20"
    assert kept.summary.startswith(why), "and its author is told"
    assert (await bench.run(2)).state == STATES.SUCCEEDED
    assert (await bench.stopped(sent.turn_id)).state == STATES.SUCCEEDED
    await messages(bench)


@pytest.mark.parametrize("ending", ["was cancelled", "failed", "ran out of time"])
async def test_after_a_turn_that_did_not_end_well_the_next_one_starts_fresh_on_the_same_history(
    bench: Bench, ending: str
) -> None:
    bench.category("work", tools=["tool:note", "tool:block", "tool:fail"])
    bench.category("brief", tools=["tool:note", "tool:block"], seconds=2)
    last = "fail" if ending == "failed" else "block"
    bench.script["go"] = [calls(("note", {"text": "a"})), calls(("note", {"text": "b"}), (last, {}))]
    category = "brief" if ending == "ran out of time" else "work"
    receipt = await bench.accept(bench.fire(1, category=category))
    if ending == "was cancelled":
        await soon(bench.blocked.wait(), "the turn to block")
        await bench.service.CancelTurn(wire.CancelTurnRequest(turn_id=receipt.turn_id), None)
    event = await bench.stopped(receipt.turn_id)
    assert event.state == (STATES.FAILED if ending == "failed" else STATES.CANCELLED)
    await bench.send("what happened?")
    bench.script["later"] = [calls(("note", {"text": "c"}))]
    assert (await bench.run(2, prompt="later")).state == STATES.SUCCEEDED
    assert bench.noted == ["a", "b", "c"]
    history = await messages(bench)
    said = [str(message.content) for message in history]
    word = "failed" if ending == "failed" else "was cancelled"
    at = said.index("what happened?")
    assert said[at - 1] == f"The turn before this one on this thread {word} before it finished."
    assert said.count(said[at - 1]) == 1, "the next turn is told, and that one only"
    assert (said[at - 3], history[at - 2].status) == ("noted b", "error"), (
        "what had finished is kept, the rest answered"
    )
    assert said[-4:] == ["later", "", "noted c", "done"]


@pytest.mark.one_machine("it puts the store into a state of its own")
async def test_a_question_settled_by_another_path_lets_go_of_its_thread(bench: Bench) -> None:
    bench.script["go"] = [*ASKS]
    event = await bench.run(1)
    held = await bench.run(2, prompt="later")
    assert held.state == STATES.HELD
    await by_another_path(bench, event, "blue")
    bench.script["later"] = []
    after = await bench.run(3, prompt="later")
    assert after.state == STATES.SUCCEEDED
    assert (await bench.turn(event.turn_id)).status == "succeeded"
    assert await bench.pending() == []
    assert "RELEASED" in await bench.history()
    assert "the author says blue" in [message.content for message in await messages(bench)]


@pytest.mark.one_machine("it puts the store into a state of its own")
async def test_a_pause_settled_by_another_path_lets_go_of_its_thread(bench: Bench) -> None:
    event = await paused(bench)
    await by_another_path(bench, event, {"fire_id": "elsewhere"})
    bench.script["later"] = []
    assert (await bench.run(2, task="b", prompt="later")).state == STATES.SUCCEEDED
    assert (await bench.turn(event.turn_id)).status == "succeeded"
    assert "woken by elsewhere" in [message.content for message in await messages(bench)]


@pytest.mark.one_machine("it puts the store into a state of its own")
async def test_what_another_path_came_to_ask_is_asked_and_holds_the_thread(bench: Bench) -> None:
    bench.script["go"] = [*ASKS, calls(("ask", {"question": "why?"}))]
    event = await bench.run(1)
    (first,) = await bench.pending()
    await by_another_path(bench, event, "blue")
    held = await bench.run(2)
    assert held.state == STATES.HELD
    (second,) = [one for one in await bench.pending() if one.question == "why?"]
    assert list(held.held_by) == [second.interrupt_id]
    await bench.resolve(second.interrupt_id, "answer", message="because")
    released = await bench.events(until=lambda one: one.state == STATES.RELEASED)
    assert (await bench.turn(event.turn_id)).status == "succeeded"
    assert released[-1].fire_id == held.fire_id
    said = [message.content for message in await messages(bench)]
    assert [text for text in said if "author says" in text] == ["the author says blue", "the author says because"]
    with pytest.raises(Conflict):
        await bench.resolve(first.interrupt_id, "answer", message="red")


@pytest.mark.one_machine("it puts the store into a state of its own")
async def test_an_answer_is_never_given_to_what_another_path_came_to_ask(bench: Bench) -> None:
    bench.script["go"] = [calls(("ask_twice", {}))]
    bench.category("work", tools=["tool:ask_twice"])
    event = await bench.run(1)
    (first,) = await bench.pending()
    await by_another_path(bench, event, "blue")
    await bench.resolve(first.interrupt_id, "answer", message="red")
    again = await bench.stopped(event.turn_id, after=event.sequence)
    assert again.state == STATES.INTERRUPTED
    (second,) = await bench.pending()
    assert second.question == "second?"
    await bench.resolve(second.interrupt_id, "answer", message="green")
    assert (await bench.stopped(event.turn_id, after=again.sequence)).state == STATES.SUCCEEDED
    said = [message.content for message in await messages(bench)]
    assert "blue, then green" in said
