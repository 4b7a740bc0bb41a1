"""An author who decides while the runtime looks the other way: what was acknowledged is what happens."""

import json
from collections.abc import Awaitable, Callable
from typing import Any

from tests.integration.runtime.harness import STATES, Bench
from tests.support.scripted import calls


def between_look_and_act(bench: Bench, do: Callable[[], Awaitable[Any]]) -> None:
    """Do something once, after the facts about the next trigger were read and before anything is decided on them."""
    engine: Any = bench.runtime.worker._engine
    read = engine.read

    async def slowly(*args: Any) -> Any:
        found = await read(*args)
        if engine.read is slowly:
            engine.read = read
            await do()
        return found

    engine.read = slowly


async def test_a_decision_made_while_another_is_carried_out_is_carried_out_next(bench: Bench) -> None:
    bench.category("work", tools=[])
    bench.script["go"] = [calls(("note", {"text": "a"}), ("note", {"text": "b"}))]
    await bench.run()
    first, second = await bench.pending()
    between_look_and_act(bench, lambda: bench.resolve(second.interrupt_id, "approve"))
    await bench.resolve(first.interrupt_id, "approve")
    await bench.events(until=lambda event: event.state == STATES.SUCCEEDED)
    assert sorted(bench.noted) == ["a", "b"]
    assert await bench.history() == ["STARTED", "INTERRUPTED", "RESUMED", "INTERRUPTED", "RESUMED", "SUCCEEDED"]
    assert [item.decision for item in (await bench.conversation())[0].interrupts] == ["approve", "approve"]


async def test_a_decision_made_while_another_is_carried_out_outlives_a_crash(bench: Bench) -> None:
    bench.category("work", tools=["tool:block"])
    bench.script["go"] = [calls(("note", {"text": "a"}), ("note", {"text": "b"}))]
    await bench.run()
    first, second = await bench.pending()
    store: Any = bench.runtime.store
    interrupted = store.interrupted

    async def then_nothing(*args: Any) -> Any:
        await interrupted(*args)
        await bench.go.wait()

    store.interrupted = then_nothing
    between_look_and_act(bench, lambda: bench.resolve(second.interrupt_id, "reject", message="not this one"))
    await bench.resolve(first.interrupt_id, "approve")
    await bench.events(until=lambda event: event.state == STATES.INTERRUPTED and event.sequence > 2)
    await bench.crash()
    await bench.events(until=lambda event: event.state == STATES.SUCCEEDED)
    assert bench.noted == [json.loads(first.args_json)["text"]]
    (shown,) = await bench.conversation()
    assert [item.decision for item in shown.interrupts] == ["approve", "reject"]


async def test_a_message_does_not_take_the_place_of_an_answer_that_was_just_given(bench: Bench) -> None:
    bench.script["go"] = [calls(("ask", {"question": "Delete it?"}))]
    await bench.run()
    (question,) = await bench.pending()
    between_look_and_act(bench, lambda: bench.resolve(question.interrupt_id, "answer", message="no"))
    sent = await bench.send("by the way", thread_id="thread-a")
    await bench.events(until=lambda event: event.turn_id == sent.turn_id and event.state == STATES.SUCCEEDED)
    first, second = await bench.conversation()
    assert [line.text for line in first.messages if line.role in {"tool", "author"}] == ["no", "the author says no"]
    assert [line.text for line in second.messages] == ["by the way", "done"]
