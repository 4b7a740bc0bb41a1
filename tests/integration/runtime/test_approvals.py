"""Out of scope means: the author is asked, nothing happens meanwhile, and nothing but the author's decision moves it."""

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command, interrupt

from agent_runtime.model.turn import Category
from agent_runtime.store.turn_reads import events_after
from tests.integration.runtime.harness import STATES, Bench, soon
from tests.support.clock import ManualClock
from tests.support.scripted import ScriptedModel, calls
from turnkeeper.config.home import Home
from turnkeeper.errors import Conflict, InvalidInput, NotFound
from turnkeeper.rpc.callers import UNKNOWN, Via, answer_for
from turnkeeper.v1 import agent_runtime_pb2 as wire


async def asked(bench: Bench, *lines: AIMessage, **changes: Any) -> tuple[wire.TurnEvent, wire.Interrupt]:
    """Run a fire whose script is out of scope; return its event and what the author is asked."""
    bench.category("work", tools=["tool:ask", "tool:pause"])
    bench.script["go"] = [*(lines or [calls(("note", {"text": "x"}))])]
    event = await bench.run(**changes)
    assert event.state == STATES.INTERRUPTED
    return event, (await bench.pending())[0]


async def resumed(bench: Bench, event: wire.TurnEvent) -> wire.TurnEvent:
    return await bench.stopped(event.turn_id, after=event.sequence)


async def test_an_out_of_scope_call_asks_and_does_nothing(bench: Bench) -> None:
    event, question = await asked(bench)
    assert (question.kind, question.tool, question.missing_scope) == ("permission", "note", "tool:note")
    assert json.loads(question.args_json) == {"text": "x"}
    assert list(event.held_by) == [question.interrupt_id]
    assert bench.noted == []


async def test_an_approval_runs_exactly_that_call_once(bench: Bench) -> None:
    event, question = await asked(bench, calls(("note", {"text": "x"})), calls(("note", {"text": "y"})))
    await bench.resolve(question.interrupt_id, "approve", args_hash=question.args_hash)
    again = await resumed(bench, event)
    assert again.state == STATES.INTERRUPTED, "one approval covers one call"
    assert bench.noted == ["x"]
    (second,) = await bench.pending()
    assert json.loads(second.args_json) == {"text": "y"}
    await bench.resolve(second.interrupt_id, "approve")
    assert (await resumed(bench, again)).state == STATES.SUCCEEDED
    assert bench.noted == ["x", "y"]
    assert await bench.history() == ["STARTED", "INTERRUPTED", "RESUMED", "INTERRUPTED", "RESUMED", "SUCCEEDED"]


async def test_an_edit_runs_the_authors_arguments(bench: Bench) -> None:
    event, question = await asked(bench)
    await bench.resolve(question.interrupt_id, "edit", args_json='{"text": "better"}')
    assert (await resumed(bench, event)).state == STATES.SUCCEEDED
    assert bench.noted == ["better"]


async def test_a_rejection_tells_the_model_why(bench: Bench) -> None:
    event, question = await asked(bench)
    await bench.resolve(question.interrupt_id, "reject", message="not today")
    ended = await resumed(bench, event)
    assert (ended.state, ended.error) == (STATES.SUCCEEDED, "its approval was rejected: note")
    assert bench.noted == []
    (shown,) = await bench.conversation()
    assert [line.text for line in shown.messages if line.role == "tool"] == ["the author refused this call: not today"]
    assert shown.interrupts[0].decision == "reject"


async def test_an_agent_that_gives_up_after_a_refusal_fails_its_turn_with_both_reasons(bench: Bench) -> None:
    bench.category("work", tools=["turn.fail"])
    bench.script["go"] = [calls(("note", {"text": "x"})), calls(("turn_fail", {"reason": "no note"}))]
    event = await bench.run()
    (question,) = await bench.pending()
    await bench.resolve(question.interrupt_id, "reject")
    ended = await resumed(bench, event)
    assert (ended.state, ended.error) == (STATES.FAILED, "the agent gave up: no note; its approval was rejected: note")


async def test_a_rejection_is_no_reason_once_the_author_approved_the_same_tool_later(bench: Bench) -> None:
    event, question = await asked(bench, calls(("note", {"text": "x"})), calls(("note", {"text": "y"})))
    await bench.resolve(question.interrupt_id, "reject")
    again = await resumed(bench, event)
    (second,) = await bench.pending()
    await bench.resolve(second.interrupt_id, "approve")
    ended = await resumed(bench, again)
    assert (ended.state, ended.error, bench.noted) == (STATES.SUCCEEDED, "", ["y"])


async def test_two_questions_are_answered_each_by_its_id(bench: Bench) -> None:
    event, _ = await asked(bench, calls(("note", {"text": "a"}), ("note", {"text": "b"})))
    first, second = await bench.pending()
    await bench.resolve(second.interrupt_id, "approve")
    again = await resumed(bench, event)
    assert again.state == STATES.INTERRUPTED
    assert bench.noted == [json.loads(second.args_json)["text"]]
    assert [one.interrupt_id for one in await bench.pending()] == [first.interrupt_id]
    await bench.resolve(first.interrupt_id, "reject")
    ended = await resumed(bench, again)
    assert (ended.state, ended.error) == (STATES.SUCCEEDED, "its approval was rejected: note")
    assert len(bench.noted) == 1


async def test_a_decision_is_bound_to_what_was_shown(bench: Bench) -> None:
    event, question = await asked(bench)
    with pytest.raises(Conflict, match="differ from those that were shown"):
        await bench.resolve(question.interrupt_id, "approve", args_hash="0" * 64)
    with pytest.raises(InvalidInput):
        await bench.resolve(question.interrupt_id, "answer", message="yes")
    with pytest.raises(NotFound):
        await bench.resolve("nothing", "approve")
    await bench.resolve(question.interrupt_id, "approve")
    same = await bench.resolve(question.interrupt_id, "approve")
    assert same.status == "resolved", "the same decision again changes nothing"
    with pytest.raises(Conflict, match="already decided"):
        await bench.resolve(question.interrupt_id, "reject")
    assert (await resumed(bench, event)).state == STATES.SUCCEEDED
    assert bench.noted == ["x"]


async def test_a_fire_on_a_waiting_thread_is_held_and_released(bench: Bench) -> None:
    event, question = await asked(bench)
    bench.script["later"] = []
    held = await bench.run(2, prompt="later")
    assert (held.state, list(held.held_by)) == (STATES.HELD, [question.interrupt_id])
    assert (await bench.turn(held.turn_id)).status == "held"
    assert [one.interrupt_id for one in await bench.pending()] == [question.interrupt_id], "it is untouched"
    await bench.resolve(question.interrupt_id, "reject")
    events = await bench.events(until=lambda one: one.state == STATES.RELEASED)
    assert (events[-1].fire_id, events[-2].state) == (held.fire_id, STATES.SUCCEEDED)
    assert events[-2].turn_id == event.turn_id
    again = await bench.run(2, prompt="later", attempt=2)
    assert again.state == STATES.SUCCEEDED


async def test_a_message_on_a_waiting_thread_is_kept_until_it_is_released(bench: Bench) -> None:
    event, question = await asked(bench)
    sent = await bench.send("and now?")
    assert (sent.thread_id, list(sent.pending_interrupts)) == (event.thread_id, [question.interrupt_id])
    await bench.crash()
    assert (await bench.turn(sent.turn_id)).status in {"kept", "accepted"}
    assert [one.interrupt_id for one in await bench.pending()] == [question.interrupt_id]
    await bench.resolve(question.interrupt_id, "approve")
    assert (await bench.stopped(sent.turn_id)).state == STATES.SUCCEEDED
    assert bench.noted == ["x"]
    shown = await bench.conversation()
    assert [turn.messages[0].text for turn in shown] == ["go", "and now?"]


async def test_a_message_answers_a_question_that_takes_text(bench: Bench) -> None:
    event, question = await asked(bench, calls(("ask", {"question": "red or blue?"})))
    assert (question.kind, question.question, question.allows_text) == ("question", "red or blue?", True)
    answer_for(Via(program="my-bot", surface="web", key="k1"))
    sent = await bench.send("blue", request_id="r")
    answer_for(UNKNOWN)
    assert (await resumed(bench, event)).state == STATES.SUCCEEDED
    (record,) = (await bench.service.ListInterrupts(wire.ListInterruptsRequest(all=True), None)).interrupts
    assert record.decided_by == "my-bot/web/k1", "by what the message came"
    assert [one["via"] for one in bench.trail("interrupt.resolved")] == ["my-bot/web/k1"]
    (shown,) = await bench.conversation()
    roles = [(line.role, line.text) for line in shown.messages]
    assert ("author", "blue") in roles
    assert roles.index(("author", "blue")) < roles.index(("tool", "the author says blue"))
    assert (await bench.turn(sent.turn_id)).turn_id == event.turn_id, "the message became that turn's answer"
    assert (await bench.send("blue", request_id="r")).duplicate


async def test_a_narrowed_category_holds_on_resume_and_a_widened_one_waits_for_the_next_fire(bench: Bench) -> None:
    event, question = await asked(bench, calls(("note", {"text": "x"})), calls(("note", {"text": "y"})))
    bench.category("work", tools=["tool:note", "tool:ask", "tool:pause"])
    await bench.resolve(question.interrupt_id, "reject")
    again = await resumed(bench, event)
    assert again.state == STATES.INTERRUPTED, "the grant of the fire is what it was"
    bench.category("work", tools=[])
    (second,) = await bench.pending()
    await bench.resolve(second.interrupt_id, "approve")
    assert (await resumed(bench, again)).state == STATES.SUCCEEDED
    assert bench.noted == ["y"]


@pytest.mark.parametrize(
    ("left", "ran"), [(["tool:note"], True), (["tool:pause"], False)], ids=["another tool", "the tool of the call"]
)
async def test_an_approval_covers_its_call_unless_a_grant_that_the_call_needs_was_taken_since(
    bench: Bench, left: list[str], *, ran: bool
) -> None:
    bench.category("careful", tools=["tool:note", "tool:pause"], autonomous=False)
    bench.script["go"] = [calls(("note", {"text": "a"}))]
    event = await bench.run(category="careful")
    (question,) = await bench.pending()
    bench.category("careful", tools=left, autonomous=False)
    await bench.resolve(question.interrupt_id, "approve")
    again = await resumed(bench, event)
    assert (again.state == STATES.SUCCEEDED, bench.noted) == (ran, ["a"] * ran)
    told = [
        one.question.startswith("you approved this call, and its category was narrowed since")
        for one in await bench.pending()
    ]
    assert told == [True] * (not ran)


async def test_a_category_that_does_not_act_by_itself_proposes_once_a_turn(bench: Bench) -> None:
    bench.category("careful", tools=["tool:note"], autonomous=False)
    bench.script["go"] = [calls(("note", {"text": "a"})), calls(("note", {"text": "b"}))]
    event = await bench.run(category="careful")
    (question,) = await bench.pending()
    assert (question.kind, question.missing_scope) == ("proposal", "tool:note")
    assert bench.noted == []
    await bench.resolve(question.interrupt_id, "approve")
    assert (await resumed(bench, event)).state == STATES.SUCCEEDED
    assert bench.noted == ["a", "b"]
    next_turn = await bench.run(2, category="careful")
    assert next_turn.state == STATES.INTERRUPTED, "the next turn asks anew"


async def test_a_cancelled_question_frees_its_thread(bench: Bench) -> None:
    event, question = await asked(bench)
    await bench.service.CancelTurn(wire.CancelTurnRequest(turn_id=event.turn_id), None)
    assert (await resumed(bench, event)).state == STATES.CANCELLED
    assert await bench.pending() == []
    with pytest.raises(Conflict, match="no longer asked"):
        await bench.resolve(question.interrupt_id, "approve")
    bench.script["later"] = []
    assert (await bench.run(2, prompt="later")).state == STATES.SUCCEEDED
    assert bench.noted == []


async def test_a_cancel_of_what_runs_leaves_a_question_alone(bench: Bench) -> None:
    event, question = await asked(bench)
    request = wire.CancelTurnRequest(fire_id=event.fire_id, attempt=event.attempt, unless_waiting=True)
    assert not (await bench.service.CancelTurn(request, None)).cancel_requested
    assert [one.interrupt_id for one in await bench.pending()] == [question.interrupt_id]
    await bench.resolve(question.interrupt_id, "approve")
    assert (await resumed(bench, event)).state == STATES.SUCCEEDED


async def test_a_bounded_pause_meets_the_next_fire_of_its_task(bench: Bench) -> None:
    bench.script["go"] = [calls(("pause", {}))]
    bench.category("work", tools=["tool:pause"])
    paused = await bench.run(1)
    assert paused.state == STATES.PAUSED
    other = await bench.accept(bench.fire(2, task="b"))
    next_fire = await bench.run(3)
    assert next_fire.state == STATES.SUCCEEDED
    events = await bench.events(until=lambda one: one.turn_id == other.turn_id and one.state >= STATES.PAUSED)
    order = [one.turn_id for one in events if one.state == STATES.STARTED]
    assert order == [paused.turn_id, next_fire.turn_id, other.turn_id], "the other task's fire waited"
    shown = await bench.conversation()
    assert "woken by task-0000000a@3" in [line.text for line in shown[1].messages]


async def test_a_bounded_pause_ends_by_itself(home: Home, clock: ManualClock, place: Path | str) -> None:
    bench = Bench(home, clock, place=place)
    await bench.open()
    bench.category("work", tools=["tool:pause"])
    bench.script["go"] = [calls(("pause", {}))]
    bench.script["other"] = []
    await bench.run(1)
    receipt = await bench.accept(bench.fire(2, task="b", prompt="other"))
    clock.advance(timedelta(seconds=61).total_seconds())
    clock.advance(1.0)
    bench.runtime.worker.answered("thread-a")
    assert (await bench.stopped(receipt.turn_id)).state == STATES.SUCCEEDED
    assert await bench.history() == ["STARTED", "PAUSED", "CANCELLED", "STARTED", "SUCCEEDED"]
    await bench.close()


async def test_a_turn_cancelled_before_it_began_hides_no_question(bench: Bench) -> None:
    bench.category("work", tools=["tool:block"])
    bench.script["go"] = [calls(("block", {})), calls(("note", {"text": "x"}))]
    first = await bench.accept(bench.fire(1))
    await soon(bench.blocked.wait(), "the first turn to block")
    second = await bench.accept(bench.fire(2, task="b"))
    await bench.service.CancelTurn(wire.CancelTurnRequest(turn_id=second.turn_id), None)
    bench.go.set()
    event = await bench.stopped(first.turn_id)
    assert event.state == STATES.INTERRUPTED
    assert (await bench.stopped(second.turn_id)).state == STATES.CANCELLED
    third = await bench.accept(bench.fire(3, task="b"))
    assert (await bench.stopped(third.turn_id)).state == STATES.HELD
    (question,) = await bench.pending()
    await bench.resolve(question.interrupt_id, "approve")
    assert (await resumed(bench, event)).state == STATES.SUCCEEDED
    assert bench.noted == ["x"]


async def test_plain_langgraph_loses_a_question_to_new_input() -> None:
    def ask_first(text: str) -> str:
        """Ask."""
        return str(interrupt({"may I": text}))

    script = {"go": [calls(("ask_first", {"text": "x"}))], "new": []}
    graph = create_agent(ScriptedModel(script=script), [ask_first], checkpointer=InMemorySaver())
    config: Any = {"configurable": {"thread_id": "t"}}
    await graph.ainvoke({"messages": [HumanMessage("go")]}, config)
    pending = (await graph.aget_state(config)).interrupts
    await graph.ainvoke({"messages": [HumanMessage("new")]}, config)
    assert pending
    assert not (await graph.aget_state(config)).interrupts, "new input destroyed the question"
    late = await graph.ainvoke(Command(resume={pending[0].id: "yes"}), config)
    assert "yes" not in [message.content for message in late["messages"]], "and the answer came to nothing"


async def test_new_input_leaves_a_question_as_it_is(bench: Bench) -> None:
    event, question = await asked(bench)
    await bench.run(2, prompt="new")
    await bench.send("new")
    assert [one.interrupt_id for one in await bench.pending()] == [question.interrupt_id]
    await bench.resolve(question.interrupt_id, "approve")
    assert (await resumed(bench, event)).state == STATES.SUCCEEDED
    assert bench.noted == ["x"]


async def test_the_grant_is_pinned_in_the_checkpoint(bench: Bench) -> None:
    event, _ = await asked(bench)
    engine: Any = bench.runtime.worker._engines.of("")
    snapshot = await engine._graph.aget_state({"configurable": {"thread_id": event.thread_id}})
    pinned = Category.from_dict(json.loads(snapshot.metadata["grant"]))
    assert pinned.tools == frozenset({"tool:ask", "tool:pause"})
    assert snapshot.metadata["turn_id"] == event.turn_id


async def test_event_numbers_have_no_gaps(bench: Bench) -> None:
    await asked(bench)
    await bench.run(2)
    found = await bench.runtime.store.read(lambda connection: events_after(connection, 0))
    assert [one.sequence for one in found] == list(range(1, len(found) + 1))
