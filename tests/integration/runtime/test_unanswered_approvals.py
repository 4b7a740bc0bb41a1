"""An approval that nobody answers: the author is reminded, an alert is raised, the approval ends, each exactly once."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage

from agent_runtime.store.turn_reads import timed_interrupts
from tests.integration.runtime.harness import PATIENCE_S, SETTINGS, STATES, Bench, look_again, soon
from tests.support.clock import ManualClock
from tests.support.scripted import calls
from turnkeeper.config.home import Home
from turnkeeper.config.settings import ApprovalSettings
from turnkeeper.errors import Conflict, InvalidInput
from turnkeeper.v1 import agent_runtime_pb2 as wire

HOUR, DAY = 3600, 86_400
WAITS = {"approval_reminder_s": HOUR, "approval_escalation_s": 4 * HOUR, "approval_timeout_s": DAY}
PlaceOf = Callable[[Path], Path | str]


@pytest.fixture
async def timed(home: Home, place_of: PlaceOf) -> AsyncIterator[Bench]:
    """A runtime whose clock a test moves."""
    made = Bench(home, ManualClock(), place=place_of(home.agent_db))
    await made.open()
    yield made
    await made.close()


def clock(bench: Bench) -> ManualClock:
    assert isinstance(bench.clock, ManualClock)
    return bench.clock


async def ask(bench: Bench, *lines: AIMessage, **changes: Any) -> tuple[wire.TurnEvent, wire.Interrupt]:
    """Run a fire whose call is out of scope; return its event and what the author is asked."""
    bench.category("work", tools=["tool:ask"])
    bench.script["go"] = [*(lines or [calls(("note", {"text": "x"}))])]
    event = await bench.run(**(WAITS | changes))
    assert event.state == STATES.INTERRUPTED
    return event, (await bench.pending())[0]


async def until(what: Callable[[], bool], said: str) -> None:
    async def look() -> None:
        while not what():
            await look_again()

    await soon(look(), said)


async def pass_time(bench: Bench, seconds: int, event: str, count: int = 1) -> None:
    """Move the clock, and on as a clock moves, until the log has that event so many times."""
    clock(bench).advance(seconds)
    async with asyncio.timeout(PATIENCE_S):
        while len(bench.trail(event)) < count:
            clock(bench).advance(1)
            await asyncio.to_thread(lambda: None)


def alerts(bench: Bench) -> list[str]:
    return [json.loads(one.read_text())["text"] for one in bench.home.run.parent.glob("escalate-failed-*-approvals")]


async def resumed(bench: Bench, event: wire.TurnEvent) -> wire.TurnEvent:
    return await bench.stopped(event.turn_id, after=event.sequence)


async def test_without_a_setting_an_approval_waits_for_ever(timed: Bench) -> None:
    never = dict.fromkeys(WAITS, 0)
    await ask(timed, **never)
    for _ in range(3):
        clock(timed).advance(400 * DAY)
        await timed.rest()
    (still,) = await timed.pending()
    assert not still.HasField("expires_at")
    assert not timed.trail("interrupt.expired")
    assert not timed.trail("interrupt.reminded")


async def test_an_approval_that_nobody_answers_is_refused_and_its_turn_goes_on(timed: Bench) -> None:
    event, asked = await ask(timed)
    assert asked.expires_at.seconds - asked.created_at.seconds == DAY
    await pass_time(timed, DAY, "interrupt.expired")
    ended = await resumed(timed, event)
    assert (ended.state, ended.error) == (STATES.SUCCEEDED, "its approval expired: no answer within 1d")
    assert timed.noted == []
    (shown,) = await timed.conversation()
    told = [line.text for line in shown.messages if line.role == "tool"]
    assert told == ["no answer within 1d: this call was not run; finish without it"]
    (settled,) = shown.interrupts
    assert (settled.status, settled.decision) == ("resolved", "expired")
    assert settled.message == "no answer within 1d"
    assert await timed.history() == ["STARTED", "INTERRUPTED", "RESUMED", "SUCCEEDED"]


async def test_an_approval_does_not_end_before_its_time(timed: Bench) -> None:
    event, asked = await ask(timed)
    clock(timed).advance(DAY - 60)
    await until(lambda: len(timed.trail("interrupt.reminded")) == 1, "the reminder")
    await timed.resolve(asked.interrupt_id, "approve")
    assert (await resumed(timed, event)).state == STATES.SUCCEEDED
    assert timed.noted == ["x"]
    clock(timed).advance(10 * DAY)
    await timed.rest()
    assert not timed.trail("interrupt.expired")


async def test_the_author_is_reminded_once_and_alerted_once(timed: Bench) -> None:
    _, asked = await ask(timed)
    await pass_time(timed, HOUR, "interrupt.reminded")
    (pending,) = await timed.pending()
    assert pending.HasField("reminded_at")
    assert not pending.HasField("escalated_at")
    assert alerts(timed) == []
    await pass_time(timed, 3 * HOUR, "interrupt.escalated")
    (text,) = alerts(timed)
    assert "note of digest-a has waited for your decision since 2026-03-02T09:00:00Z" in text
    clock(timed).advance(HOUR)
    await timed.rest()
    assert len(timed.trail("interrupt.reminded")) == len(timed.trail("interrupt.escalated")) == 1
    await timed.resolve(asked.interrupt_id, "reject")
    await pass_time(timed, DAY, "turn.stopped", 2)
    await until(lambda: not alerts(timed), "the alert to be withdrawn")


async def test_what_is_overdue_after_a_long_absence_ends_without_a_reminder(timed: Bench) -> None:
    event, _ = await ask(timed)
    clock(timed).step(3 * DAY)  # the wall clock alone, as after a sleep of the machine
    await pass_time(timed, 60, "interrupt.expired")
    assert (await resumed(timed, event)).state == STATES.SUCCEEDED
    assert not timed.trail("interrupt.reminded")
    assert alerts(timed) == []


async def test_a_clock_that_is_set_back_ends_nothing_early_and_nothing_twice(timed: Bench) -> None:
    event, _ = await ask(timed)
    clock(timed).step(-2 * DAY)
    clock(timed).advance(DAY + 60)
    await timed.rest()
    assert len(await timed.pending()) == 1
    clock(timed).step(2 * DAY)
    await pass_time(timed, 60, "interrupt.expired")
    assert (await resumed(timed, event)).state == STATES.SUCCEEDED
    clock(timed).step(-2 * DAY)
    clock(timed).advance(3 * DAY)
    await timed.rest()
    assert len(timed.trail("interrupt.expired")) == 1


@pytest.mark.parametrize("decision", ["approve", "reject", "edit"])
async def test_a_late_answer_is_refused_and_says_what_to_do(timed: Bench, decision: str) -> None:
    event, asked = await ask(timed)
    await pass_time(timed, DAY, "interrupt.expired")
    await resumed(timed, event)
    given = {"args_json": '{"text": "y"}'} if decision == "edit" else {}
    with pytest.raises(Conflict, match="expired at 2026-03-03T09:.*no answer within 1d") as refused:
        await timed.resolve(asked.interrupt_id, decision, **given)
    assert refused.value.hint == "run the task again: turnkeeper task run digest-a"
    assert timed.noted == []


async def test_expired_is_no_decision_that_anyone_can_send(timed: Bench) -> None:
    _, asked = await ask(timed)
    with pytest.raises(InvalidInput, match="'expired' cannot decide"):
        await timed.resolve(asked.interrupt_id, "expired")


async def test_of_an_answer_and_the_end_exactly_one_counts(timed: Bench) -> None:
    came: list[bool] = []
    for number in range(1, 13):
        event, asked = await ask(timed, number=number, thread_id=f"thread-{number}", approval_timeout_s=HOUR)
        noted = len(timed.noted)

        async def answer(interrupt_id: str = asked.interrupt_id) -> bool:
            for _ in range(number % 4):  # noqa: B023
                await asyncio.to_thread(lambda: None)
            try:
                await timed.resolve(interrupt_id, "approve")
            except Conflict:
                return False
            return True

        clock(timed).advance(HOUR)
        approved = await answer()
        assert (await resumed(timed, event)).state == STATES.SUCCEEDED
        assert (len(timed.noted) == noted + 1) is approved
        came.append(approved)
    assert len(timed.trail("interrupt.expired")) == came.count(False)


async def test_after_an_unanswered_approval_a_turn_asks_nothing_more(timed: Bench) -> None:
    lines = [calls(("note", {"text": "x"})), calls(("note", {"text": "y"})), AIMessage("Done without it.")]
    event, _ = await ask(timed, *lines)
    await pass_time(timed, DAY, "interrupt.expired")
    assert (await resumed(timed, event)).state == STATES.SUCCEEDED
    (shown,) = await timed.conversation()
    told = [line.text for line in shown.messages if line.role == "tool"]
    assert told[1].startswith("an earlier question of this turn got no answer")
    assert timed.noted == []
    assert len(timed.trail("interrupt.raised")) == 1


async def test_a_question_of_the_graphs_own_ends_as_refused(timed: Bench) -> None:
    event, _ = await ask(timed, calls(("ask", {"question": "which bed?"})))
    await pass_time(timed, DAY, "interrupt.expired")
    assert (await resumed(timed, event)).state == STATES.SUCCEEDED
    (shown,) = await timed.conversation()
    (told,) = [line.text for line in shown.messages if line.role == "tool"]
    assert told == "the author says False", "an object would be a yes to a graph that tests `if interrupt(…)`"
    assert "no answer within 1d" in shown.interrupts[0].message


async def test_held_fires_and_kept_messages_go_on_when_an_approval_ends(timed: Bench) -> None:
    event, _ = await ask(timed)
    held = await timed.run(2, task="b", prompt="later")
    assert held.state == STATES.HELD
    kept = await timed.send("and what of the pump?", thread_id="thread-a")
    await pass_time(timed, DAY, "interrupt.expired")
    await resumed(timed, event)
    assert (await timed.stopped(kept.turn_id)).state == STATES.SUCCEEDED
    released = [one for one in timed.trail("turn.released") if one["turn_id"] == held.turn_id]
    assert len(released) == 1
    found = await timed.events(until=lambda one: one.state == STATES.RELEASED)
    assert found[-1].error == "its approval expired: no answer within 1d"
    again = await timed.run(2, task="b", prompt="later", attempt=2)
    assert again.state == STATES.SUCCEEDED


async def test_an_alert_about_an_approval_without_an_end_is_withdrawn_when_it_is_answered(timed: Bench) -> None:
    event, asked = await ask(timed, approval_reminder_s=0, approval_timeout_s=0)
    await pass_time(timed, 4 * HOUR, "interrupt.escalated")
    assert len(alerts(timed)) == 1
    await timed.resolve(asked.interrupt_id, "reject")
    await resumed(timed, event)
    await until(lambda: not alerts(timed), "the alert to be withdrawn")


async def test_a_cancelled_turn_asks_nothing_more_and_its_alert_is_withdrawn(timed: Bench) -> None:
    event, _ = await ask(timed)
    await pass_time(timed, 4 * HOUR, "interrupt.escalated")
    await timed.service.CancelTurn(wire.CancelTurnRequest(turn_id=event.turn_id), None)
    assert (await resumed(timed, event)).state == STATES.CANCELLED
    clock(timed).advance(2 * DAY)
    await until(lambda: not alerts(timed), "the alert to be withdrawn")
    assert not timed.trail("interrupt.expired")


async def test_the_times_survive_the_process(timed: Bench) -> None:
    event, _ = await ask(timed)
    await timed.crash()
    await pass_time(timed, HOUR, "interrupt.reminded")
    await timed.crash()
    await pass_time(timed, DAY, "interrupt.expired")
    assert (await resumed(timed, event)).state == STATES.SUCCEEDED
    assert len(timed.trail("interrupt.reminded")) == len(timed.trail("interrupt.expired")) == 1


async def test_a_turn_without_a_task_has_the_times_of_the_settings(timed: Bench) -> None:
    await timed.stop()
    timed.settings = SETTINGS.model_copy(update={"approvals": ApprovalSettings(timeout_s=HOUR)})
    await timed.crash()
    timed.category("conversation", tools=[])
    timed.script["note it"] = [calls(("note", {"text": "x"}))]
    sent = await timed.send("note it")
    event = await timed.stopped(sent.turn_id)
    assert event.state == STATES.INTERRUPTED
    (asked,) = await timed.pending()
    assert asked.expires_at.seconds - asked.created_at.seconds == HOUR
    await pass_time(timed, HOUR, "interrupt.expired")
    await resumed(timed, event)
    with pytest.raises(Conflict) as refused:
        await timed.resolve(asked.interrupt_id, "approve")
    assert refused.value.hint == "write to the agent again"


@pytest.mark.parametrize("field", sorted(WAITS))
@pytest.mark.parametrize("value", [-1, 10**15])
async def test_a_duration_that_cannot_be_is_refused(timed: Bench, field: str, value: int) -> None:
    with pytest.raises(InvalidInput) as refused:
        await timed.accept(timed.fire(**{field: value}))
    assert refused.value.where == field


async def test_of_machines_that_share_a_store_one_raises_the_alert(home: Home, place_of: PlaceOf) -> None:
    place = place_of(home.agent_db)
    if isinstance(place, Path):
        pytest.skip("several machines share a server's database: --database postgres")
    other = Home(root=home.root.with_name("another"))
    other.create()
    benches = [Bench(each, ManualClock(), place=place, shared=place) for each in (home, other)]
    try:
        await benches[0].open()
        await ask(benches[0])
        await benches[1].open()
        (item,) = await benches[0].runtime.store.read(timed_interrupts)
        for bench in benches:  # both have read that it is due
            worker: Any = bench.runtime.worker
            await worker._deadlines._escalate(item)
            await worker._deadlines._remind(item)
        assert [len(bench.trail("interrupt.escalated")) for bench in benches] == [1, 0]
        assert [len(bench.trail("interrupt.reminded")) for bench in benches] == [1, 0]
        assert [len(alerts(bench)) for bench in benches] == [1, 0]
    finally:
        for bench in benches:
            await bench.close()
