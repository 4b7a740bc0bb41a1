"""An author who decides while the runtime looks the other way: what was acknowledged is what happens."""

import itertools
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from agent_runtime.store import turn_writes
from tests.integration.runtime.harness import STATES, Bench
from tests.support.scripted import calls
from turnkeeper.errors import Conflict, InvalidInput, NotFound, TurnkeeperError


def between_look_and_act(bench: Bench, do: Callable[[], Awaitable[Any]]) -> None:
    """Do something once, after the facts about the next trigger were read and before anything is decided on them."""
    engine: Any = bench.runtime.worker._engines.of("")
    read = engine.read

    async def slowly(*args: Any, **how: Any) -> Any:
        found = await read(*args, **how)
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


async def three_questions(bench: Bench) -> list[str]:
    bench.category("work", tools=[])
    bench.script["go"] = [calls(*(("note", {"text": text}) for text in "abc"))]
    await bench.run()
    return [item.interrupt_id for item in sorted(await bench.pending(), key=lambda item: item.args_json)]


async def test_decisions_in_one_call_let_the_thread_go_on_once(bench: Bench) -> None:
    first, second, third = await three_questions(bench)
    decided = await bench.resolve_all((first, "approve"), (second, "reject"), (third, "approve"))
    assert [(item.interrupt_id, item.decision) for item in decided] == [
        (first, "approve"), (second, "reject"), (third, "approve")
    ]  # fmt: skip
    await bench.events(until=lambda event: event.state == STATES.SUCCEEDED)
    assert sorted(bench.noted) == ["a", "c"]
    assert await bench.history() == ["STARTED", "INTERRUPTED", "RESUMED", "SUCCEEDED"]
    again = await bench.resolve_all((first, "approve"), (second, "reject"), (third, "approve"))
    assert [item.decision for item in again] == ["approve", "reject", "approve"], "the same decisions change nothing"


async def test_one_decision_that_cannot_be_taken_leaves_all_undecided(bench: Bench) -> None:
    ids = await three_questions(bench)
    wrong: list[tuple[str, str, type[TurnkeeperError]]] = [
        ("unknown", "approve", NotFound),
        ("", "answer", InvalidInput),
        ("", "edit", InvalidInput),
        ("", "", InvalidInput),
        ("twice", "approve", InvalidInput),
    ]
    for (named, way, error), at in itertools.product(wrong, range(3)):
        decisions = [(each, "approve") for each in ids]
        decisions[at] = ({"": ids[at], "twice": ids[at - 1]}.get(named, named), way)
        with pytest.raises(error):
            await bench.resolve_all(*decisions)
    with pytest.raises(InvalidInput):
        await bench.resolve_all()
    with pytest.raises(Conflict):
        await bench.resolve_all(*((each, "approve") for each in ids), args_hash="of other arguments")
    assert sorted(item.interrupt_id for item in await bench.pending()) == sorted(ids)
    assert (bench.noted, await bench.history()) == ([], ["STARTED", "INTERRUPTED"])


async def test_decisions_that_were_decided_otherwise_leave_the_others_undecided(bench: Bench) -> None:
    first, second, third = await three_questions(bench)
    await bench.resolve(second, "reject", message="no")
    await bench.stopped((await bench.conversation())[0].turn_id, after=2)
    with pytest.raises(Conflict):
        await bench.resolve_all((first, "approve"), (third, "approve"), (second, "approve"))
    assert {item.interrupt_id for item in await bench.pending()} == {first, third}


@pytest.mark.parametrize("written", range(3))
async def test_a_process_that_dies_between_two_decisions_has_stored_none(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, written: int
) -> None:
    ids, settle, count = await three_questions(bench), turn_writes.settle_interrupt, [0]

    def dying(*args: Any) -> None:
        if count[0] == written:
            raise SystemError("died")
        count[0] += 1
        settle(*args)

    monkeypatch.setattr(turn_writes, "settle_interrupt", dying)
    with pytest.raises(SystemError):
        await bench.resolve_all(*((each, "approve") for each in ids))
    monkeypatch.setattr(turn_writes, "settle_interrupt", settle)
    await bench.crash()
    assert sorted(item.interrupt_id for item in await bench.pending()) == sorted(ids)
    await bench.resolve_all(*((each, "approve") for each in ids))
    await bench.events(until=lambda event: event.state == STATES.SUCCEEDED)
    assert sorted(bench.noted) == ["a", "b", "c"]
