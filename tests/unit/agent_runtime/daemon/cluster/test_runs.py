"""Passing the events of runs on between machines: each once, in order, in notifications that fit, or the end is left."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager

import pytest

from agent_runtime.daemon.cluster.runs import LONGEST_EVENT, RunRelay
from agent_runtime.graph.engine.run_events import Recorder, RunEvents
from agent_runtime.model.turn import Category, TurnContext
from tests.support.clock import ManualClock, look_again
from tests.support.seeded_entropy import SeededEntropy

LONGEST_NOTIFICATION = 7999  # bytes
OVER = '{"status": "succeeded"}'


class Machines:
    """The rings of machines `a`, `b` and `c`, which hear each other's notifications, except those that are lost."""

    def __init__(self) -> None:
        self.clock, self.lose = ManualClock(), False
        self.rings = {name: RunEvents() for name in "abc"}
        self.relays = {name: RunRelay(self._of(name), self._tell, self.clock, node=name) for name in "abc"}

    def _of(self, name: str) -> Callable[[], RunEvents]:
        return lambda: self.rings[name]

    async def _tell(self, _channel: str, *texts: str) -> None:
        for text in texts:
            assert len(text.encode()) <= LONGEST_NOTIFICATION
            for relay in () if self.lose else self.relays.values():
                relay.heard(text)

    async def settle(self) -> None:
        """Let two seconds pass."""
        for _ in range(20):
            await look_again()
            self.clock.advance(0.1)

    def begin(self, name: str, turn_id: str = "turn-1") -> Recorder:
        category = Category(name="x")
        turn = TurnContext(turn_id=turn_id, thread_id="th", channel="general", agent="agent0", category=category)
        return self.rings[name].begin(turn, {"stream_modes": ["values"]})

    def events(self, name: str) -> list[tuple[str, str, str]]:
        return [(one.turn_id, one.mode, one.data_json) for one in self.rings[name].ring("th").after(0)]


@asynccontextmanager
async def machines(*readers: str, known: tuple[str, str] = ("", "")) -> AsyncIterator[Machines]:
    """Run three machines; the readers follow the thread."""
    found = Machines()
    running = [asyncio.create_task(relay.run()) for relay in found.relays.values()]
    with ExitStack() as stack:
        for name in readers:
            stack.enter_context(found.rings[name].reading("th", *known))
        yield found
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)


async def test_each_follower_gets_each_event_of_a_run_once() -> None:
    async with machines("b", "c") as found:
        await found.settle()
        recorder = found.begin("a")
        noise = "é" + SeededEntropy(1).hex(50_000)  # which no compression makes fit into one notification
        for number in range(3):
            recorder.add("values", {"number": number, "noise": noise})
            await found.settle()
        found.rings["a"].stopped("th", "turn-1", "succeeded")
        await found.settle()
        assert len(found.events("a")) == 5
        assert found.events("b") == found.events("c") == found.events("a")
        assert found.rings["b"].ring("th").stopped == ("turn-1", "succeeded")


async def test_a_follower_that_comes_later_gets_the_run_from_its_beginning_and_of_earlier_runs_nothing() -> None:
    async with machines("b") as found:
        await found.settle()
        found.begin("a", "turn-0")
        found.rings["a"].stopped("th", "turn-0", "succeeded")
        found.begin("a").add("values", {"a": 1})
        await found.settle()
        with found.rings["c"].reading("th", "turn-1", ""):
            await found.settle()
            assert found.events("c") == found.events("a")[2:]
        found.rings["a"].stopped("th", "turn-1", "interrupted")
        await found.settle()
        assert found.events("b") == found.events("a")


async def test_a_run_that_ended_before_the_announcement_came_is_passed_on_to_who_awaits_it() -> None:
    async with machines("b", known=("turn-1", "")) as found:
        found.begin("a").add("values", {"a": 1})
        found.rings["a"].stopped("th", "turn-1", "succeeded")
        await found.settle()
        assert found.events("b") == found.events("a")


@pytest.mark.parametrize("state", ["succeeded", "interrupted"])
async def test_a_follower_gets_all_after_the_turn_it_knows_also_if_its_announcement_comes_later(state: str) -> None:
    async with machines("b", known=("turn-1", state)) as found:
        for turn_id, end in (
            ("turn-1", state),
            ("turn-2", "interrupted"),
            ("turn-2", "succeeded"),
            ("turn-3", "failed"),
        ):
            found.begin("a", turn_id).add("values", {"a": 1})
            found.rings["a"].stopped("th", turn_id, end)
        await found.settle()
        assert found.events("b") == found.events("a")[3:]


async def test_a_follower_that_knows_a_turn_of_another_machine_gets_the_running_one_from_its_beginning() -> None:
    for state in ("", "succeeded"):
        async with machines("b", known=("turn-1", state)) as found:
            found.begin("a", "turn-2").add("values", {"a": 1})
            await found.settle()
            assert found.events("b") == found.events("a")


async def test_a_follower_of_a_thread_without_turns_gets_all_that_happened_since() -> None:
    async with machines("b") as found:
        for turn_id in ("turn-1", "turn-2"):
            found.begin("a", turn_id).add("values", {"a": 1})
            found.rings["a"].stopped("th", turn_id, "succeeded")
        await found.settle()
        assert len(found.events("b")) == 6


async def test_of_a_run_that_lacks_an_event_the_end_is_left_to_the_store() -> None:
    async with machines("b") as found:
        await found.settle()
        found.begin("a").add("values", "x" * LONGEST_EVENT)
        found.rings["a"].stopped("th", "turn-1", "succeeded")
        await found.settle()
        lost = found.begin("a", "turn-2")
        await found.settle()
        found.lose = True
        lost.add("values", {"a": 1})
        await found.settle()
        found.lose = False
        found.rings["a"].stopped("th", "turn-2", "succeeded")
        await found.settle()
        assert [one[:2] for one in found.events("b")] == [("turn-1", "status"), ("turn-2", "status")]
        assert found.rings["b"].ring("th").incomplete == ("turn-2", "succeeded")
        found.begin("a", "turn-3")
        found.rings["a"].stopped("th", "turn-3", "succeeded")
        await found.settle()
        assert found.events("b")[-1] == ("turn-3", "status", OVER)


async def test_a_run_that_another_machine_takes_over_is_passed_on_from_there() -> None:
    async with machines("c") as found:
        await found.settle()
        found.begin("a").add("values", {"a": 1})
        await found.settle()
        found.begin("b").add("values", {"a": 2})
        found.rings["b"].stopped("th", "turn-1", "succeeded")
        await found.settle()
        assert found.events("c") == [*found.events("a"), *found.events("b")]


async def test_a_turn_that_waits_is_forgotten_with_its_last_reader_because_it_may_go_on_elsewhere() -> None:
    async with machines() as found:
        with found.rings["b"].reading("th", "", ""):
            await found.settle()
            found.begin("a")
            found.rings["a"].stopped("th", "turn-1", "interrupted")
            await found.settle()
            assert len(found.events("b")) == 2
        assert found.events("b") == []
