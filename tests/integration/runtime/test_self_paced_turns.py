"""A turn of a self-paced loop says when the next is to come; the runner hears it with the outcome, and only then."""

import math
from dataclasses import replace
from typing import Any

import pytest
from langchain_core.messages import AIMessage

from agent_runtime.graph.agent.default import system_prompt
from agent_runtime.model.trigger import MISASKED, from_envelope, identify, to_envelope
from agent_runtime.model.turn import Category, TurnContext
from agent_runtime.store.idempotency import Call
from agent_runtime.store.turn_reads import list_turns
from agent_runtime.tools.loops import Loops
from tests.integration.runtime.harness import STATES, Bench, look_again
from tests.support.scripted import calls
from turnkeeper.bus.inbox import Inbox
from turnkeeper.clock import SystemClock
from turnkeeper.entropy import SystemEntropy
from turnkeeper.errors import Corrupt, Exhausted, InvalidInput, MachineTrouble, TurnkeeperError
from turnkeeper.rpc.channel import AsyncCaller
from turnkeeper.storage.files import SystemFiles
from turnkeeper.v1 import agent_runtime_pb2 as wire

LOOP = "loop-0000000a"


@pytest.fixture
def paced(bench: Bench) -> Bench:
    bench.category("work", tools=["loop.wakeup", "tool:note", "tool:block", "tool:fail"])
    return bench


def wake(delay: object, reason: str = "not done yet") -> tuple[str, dict[str, object]]:
    return "schedule_loop_wakeup", {"delay_seconds": delay, "reason": reason}


def of_loop(**changes: object) -> dict[str, object]:
    return {"fire_id": f"{LOOP}@1~w1", "task_id": LOOP, "task_name": LOOP, "thread_id": LOOP, "kind": "wake"} | changes


async def answers(bench: Bench) -> list[str]:
    """Return what the tools of the newest turn answered."""
    *_, turn = await bench.conversation()
    return [message.text for message in turn.messages if message.role == "tool"]


async def test_what_a_turn_asked_for_last_reaches_the_runner_with_its_outcome(paced: Bench) -> None:
    paced.script["go"] = [calls(wake(90.2)), AIMessage("one step done")]
    paced.script["change"] = [calls(wake(60)), calls(wake(0)), AIMessage("done")]
    event = await paced.run(1, **of_loop())
    assert (event.state, event.wake_after_s) == (STATES.SUCCEEDED, 91)
    assert "91 s after the end of this turn" in (await answers(paced))[0]
    assert await paced.history() == ["STARTED", "SUCCEEDED"], "nothing is said in the middle of it"
    event = await paced.run(2, prompt="change", **of_loop(fire_id=f"{LOOP}@2~w2"))
    assert event.wake_after_s == 0
    assert "as soon as this turn has ended" in (await answers(paced))[-1]
    event = await paced.run(3, prompt="enough", **of_loop(fire_id=f"{LOOP}@3~w3"))
    assert not event.HasField("wake_after_s"), "to end the loop, a turn asks for nothing"


def test_a_model_is_told_how_a_loop_goes_on_and_how_it_ends() -> None:
    turn = TurnContext(turn_id="t", thread_id=LOOP, channel="main", agent="agent0", category=Category(name="loop"))
    assert "schedule_loop_wakeup" not in system_prompt(turn)
    assert "If its goal is met, do not call it" in system_prompt(replace(turn, paced=True))


async def test_a_crash_neither_loses_nor_doubles_it(paced: Bench) -> None:
    paced.script["go"] = [calls(wake(7), ("block", {})), AIMessage("done")]
    receipt = await paced.accept(paced.fire(**of_loop()))
    await paced.blocked.wait()
    while (await paced.runtime.store.read(list_turns))[0][0].wake_after_s is None:
        await look_again()
    await paced.crash()
    await paced.blocked.wait()
    await paced.crash()
    paced.go.set()
    event = await paced.stopped(receipt.turn_id)
    assert (event.state, event.wake_after_s) == (STATES.SUCCEEDED, 7)
    assert await paced.history() == ["STARTED", "SUCCEEDED"]


async def test_a_later_call_stands_although_an_earlier_one_is_run_again(paced: Bench) -> None:
    paced.script["go"] = [calls(("block", {})), AIMessage("done")]
    receipt = await paced.accept(paced.fire(**of_loop()))
    await paced.blocked.wait()
    runtime, category = paced.runtime, Category(name="work", tools=frozenset({"loop.wakeup"}))
    turn = TurnContext(turn_id=receipt.turn_id, thread_id=LOOP, channel="main", agent="agent0", category=category)
    loops = Loops(runtime.store, runtime.categories, paced.home, runtime.clock)
    for key, delay in (("first", 60), ("second", 5), ("first", 60)):
        await loops.wake(Call(context=turn, key=key), delay)
    paced.go.set()
    assert (await paced.stopped(receipt.turn_id)).wake_after_s == 5


@pytest.mark.parametrize("kind", [Exhausted, MachineTrouble, Corrupt])
async def test_a_wake_is_taken_although_the_runner_or_our_own_machine_cannot_say_when_its_budget_is_free(
    paced: Bench, monkeypatch: pytest.MonkeyPatch, kind: type[TurnkeeperError]
) -> None:
    async def refuse(*_asked: Any) -> None:
        raise kind("cannot be read or written: Too many open files", where="keys/calls.json")

    monkeypatch.setattr(AsyncCaller, "GetTask", refuse, raising=False)
    paced.script["go"] = [calls(wake(7)), AIMessage("done")]
    event = await paced.run(**of_loop())
    assert (event.state, event.wake_after_s, event.error) == (STATES.SUCCEEDED, 7, "")


async def test_a_turn_that_comes_to_no_good_end_asks_for_nothing(paced: Bench) -> None:
    paced.script["go"] = [calls(wake(7)), calls(("fail", {}))]
    paced.script["wait"] = [calls(wake(7)), calls(("block", {}))]
    failed = await paced.run(1, **of_loop())
    receipt = await paced.accept(paced.fire(2, prompt="wait", **of_loop(fire_id=f"{LOOP}@2~w2")))
    await paced.blocked.wait()
    await paced.service.CancelTurn(wire.CancelTurnRequest(turn_id=receipt.turn_id), None)
    cancelled = await paced.stopped(receipt.turn_id)
    assert (failed.state, cancelled.state) == (STATES.FAILED, STATES.CANCELLED)
    assert not failed.HasField("wake_after_s")
    assert not cancelled.HasField("wake_after_s")


async def test_what_is_no_time_to_come_within_a_week_is_refused_to_the_model(paced: Bench) -> None:
    delays = (-1, math.nan, math.inf, 7 * 86_400 + 1, "soon", None)
    paced.script["go"] = [calls(*(wake(delay) for delay in delays)), AIMessage("I see")]
    event = await paced.run(**of_loop())
    assert (event.state, event.HasField("wake_after_s")) == (STATES.SUCCEEDED, False)
    told = await answers(paced)
    assert len(told) == len(delays)
    assert all("delay_seconds" in one and "number" in one for one in told), told
    assert event.error.startswith(f"{MISASKED}: "), "the runner keeps the loop armed, and its author is told why"
    *_, shown = await paced.conversation()
    assert shown.error == event.error


@pytest.mark.parametrize("args", [{"delaySeconds": 60}, {"delay_seconds": 60, "when": "later"}, {"reason": 5}])
async def test_a_wake_with_wrong_arguments_is_told_to_the_runner_also_of_a_silent_turn(paced: Bench, args: Any) -> None:
    paced.category("work", tools=["loop.wakeup"], silent=True)
    paced.script["go"] = [calls(("schedule_loop_wakeup", args)), AIMessage("")]
    event = await paced.run(**of_loop())
    assert not event.HasField("wake_after_s"), "what is not understood is no wake at once"
    assert event.error.startswith(MISASKED)


async def test_the_delay_and_the_reason_may_be_left_out(paced: Bench) -> None:
    paced.script["go"] = [calls(("schedule_loop_wakeup", {})), AIMessage("one step done")]
    event = await paced.run(**of_loop())
    assert (event.wake_after_s, event.error) == (0, "")


async def test_a_wake_that_its_author_rejected_ends_the_loop(bench: Bench) -> None:
    bench.script["go"] = [calls(wake(5)), AIMessage("as you wish")]
    stopped = await bench.run(**of_loop())
    (asked,) = await bench.pending()
    await bench.resolve(asked.interrupt_id, "reject", message="enough")
    event = await bench.stopped(stopped.turn_id, after=stopped.sequence)
    refused = "its approval was rejected: schedule_loop_wakeup"
    assert (event.state, event.HasField("wake_after_s"), event.error) == (STATES.SUCCEEDED, False, refused)


async def test_an_authors_turn_has_no_loop_to_wake_and_is_told_so(bench: Bench) -> None:
    bench.category("conversation", tools=["loop.wakeup"])
    bench.script["again, please"] = [calls(wake(5))]
    sent = await bench.send("again, please")
    event = await bench.stopped(sent.turn_id)
    assert not event.HasField("wake_after_s")
    assert "the author began this turn" in (await answers(bench))[0]
    assert "LoopCreate" in (await answers(bench))[0]


async def test_an_author_who_writes_into_its_thread_is_told_that_it_ends_and_the_runner_hears_of_the_turn(
    paced: Bench,
) -> None:
    paced.category("conversation")
    paced.script["go"] = [calls(wake(60))]
    ended = await paced.run(**of_loop())
    look = await paced.send("stop, I do it myself", thread_id=LOOP, look=True)
    assert (look.thread_id, look.takes_over, look.turn_id) == (LOOP, LOOP, ""), "it is told before anything is sent"
    sent = await paced.send("stop, I do it myself", thread_id=LOOP)
    assert (sent.thread_id, sent.takes_over) == (LOOP, LOOP)
    after = await paced.events(until=lambda event: event.turn_id == sent.turn_id, after=ended.sequence)
    started = after[-1]
    assert (started.state, started.trigger, started.thread_id) == (STATES.STARTED, wire.TurnEvent.AUTHOR, LOOP)
    await paced.stopped(sent.turn_id)
    assert (await paced.send("and now?")).takes_over == "", "it ended before"


async def test_a_message_that_names_no_thread_goes_past_the_thread_of_a_loop_that_goes_on(paced: Bench) -> None:
    paced.category("conversation")
    paced.script["go"] = paced.script["again"] = [calls(wake(60))]
    before = await paced.send("good morning")
    await paced.stopped(before.turn_id)
    await paced.run(**of_loop())
    beside = await paced.send("and how are you?")
    assert (beside.thread_id, beside.takes_over, beside.beside) == (before.thread_id, "", LOOP)
    await paced.stopped(beside.turn_id)
    into = await paced.send("look closer", thread_id=LOOP, keep_loop=True)
    assert (into.thread_id, into.takes_over) == (LOOP, ""), "its author said that it goes on"
    seen = await paced.events(until=lambda event: event.turn_id == into.turn_id)
    assert seen[-1].trigger == wire.TurnEvent.ASIDE, "the runner ends no loop for it"
    await paced.stopped(into.turn_id)
    assert (await paced.send("well?", look=True)).beside == LOOP, "it still goes on"
    await paced.run(2, prompt="again", **of_loop(fire_id=f"{LOOP}@2~w2"))
    assert (await paced.send("well?")).thread_id == before.thread_id, "the loop's thread is no other conversation's"


async def test_a_loop_in_a_conversation_is_taken_over_by_the_next_message_there(paced: Bench) -> None:
    paced.category("conversation")
    paced.script["go"] = [calls(wake(60))]
    before = await paced.send("good morning")
    await paced.stopped(before.turn_id)
    await paced.run(**of_loop(thread_id=before.thread_id))
    assert (await paced.send("I do it myself")).takes_over == LOOP


async def test_a_turn_of_a_task_with_times_is_told_that_it_may_change_nothing_and_nothing_is_taken_over(
    paced: Bench,
) -> None:
    paced.category("conversation")
    paced.script["go"] = [calls(wake(5))]
    event = await paced.run(kind="scheduled")
    assert event.wake_after_s == 5
    assert "digest-a was not woken as a self-paced task" in (await answers(paced))[0]
    assert (await paced.send("hello")).takes_over == ""
    await paced.run(2, prompt="enough", **of_loop())
    assert (await paced.send("hello", thread_id=LOOP)).takes_over == "", "it had ended by itself"


async def test_a_turn_that_only_reads_or_acts_only_with_its_author_goes_on_by_itself(bench: Bench) -> None:
    bench.category("work", tools=["loop.wakeup"], autonomous=False)
    bench.script["go"] = [calls(wake(5))]
    event = await bench.run(read_only=True, **of_loop())
    assert (event.state, event.wake_after_s) == (STATES.SUCCEEDED, 5)


async def test_a_loop_that_only_reads_stalls_on_no_question(paced: Bench) -> None:
    paced.script["go"] = [calls(("note", {"text": "x"}), ("ask", {"question": "may I?"}), wake(5)), AIMessage("I see")]
    event = await paced.run(read_only=True, **of_loop())
    assert (event.state, event.wake_after_s, await paced.pending(), paced.noted) == (STATES.SUCCEEDED, 5, [], [])
    told = await answers(paced)
    assert ["this loop only reads" in one for one in told] == [True, True, False]
    event = await paced.run(2, read_only=True)
    assert event.state == STATES.INTERRUPTED, "a task that is no loop asks its author"


async def test_out_of_scope_it_asks_the_author(bench: Bench) -> None:
    bench.script["go"] = [calls(wake(5))]
    assert (await bench.run(**of_loop())).state == STATES.INTERRUPTED
    (asked,) = await bench.pending()
    assert asked.missing_scope == "loop.wakeup"


@pytest.mark.one_machine("it reads the envelope's file")
async def test_a_loops_fire_says_in_its_envelope_that_it_is_a_loops(bench: Bench) -> None:
    await bench.accept(bench.fire(agent="codex", prompt="look at CI", **of_loop()))
    files, clock, entropy = SystemFiles(), SystemClock(), SystemEntropy()
    reader = Inbox(bench.home.inbox("codex"), files=files, clock=clock, entropy=entropy, settles_keys=True)
    (item,) = reader.claim(10)
    envelope = item.envelope
    assert (envelope.sender, envelope.kind, envelope.thread) == ("agentloop", "loop-tick", LOOP)
    trigger = from_envelope(envelope)
    assert (trigger.source, trigger.task_id, trigger.fire_id) == ("fire", LOOP, f"{LOOP}@1~w1")
    assert from_envelope(replace(envelope, sender="task-runner", kind="fire")) == trigger, "from an earlier version"
    as_of_task = replace(trigger, task_id="task-0000000a").sealed()
    forged = replace(
        to_envelope(as_of_task, envelope_id=envelope.id, at=envelope.at), sender="agentloop", kind="loop-tick"
    )
    for wrong in (forged, replace(envelope, sender="task-runner"), replace(envelope, kind="fire")):
        with pytest.raises(InvalidInput):
            from_envelope(wrong)
    assert identify(envelope) == identify(replace(envelope, sender="task-runner", kind="fire"))
    assert identify(replace(envelope, kind="message")) is None
