"""Each cause of a missed time is named, with its span, by `explain` and `history` alike."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing
from datetime import UTC, datetime, timedelta

import grpc
import pytest
from google.rpc import code_pb2

from task_runner.scheduler import loop
from task_runner.scheduler.loop import Presence
from tests.integration.runner.conftest import Rig
from tests.integration.runner.scripted_runtime import Peer, State, accept, refuse
from tests.support.clock import look_again
from turnkeeper.errors import Unreachable
from turnkeeper.v1 import schedules_pb2 as wire

T0 = datetime(2026, 3, 2, 9, 0, tzinfo=UTC)
LONG_AGO = T0 - timedelta(days=9)
Story = Callable[["World"], Awaitable[None]]


def said(minute: int) -> str:
    """The time so many minutes after the start, as it is written."""
    return f"{T0 + timedelta(minutes=minute):%Y-%m-%dT%H:%M:%SZ}"


def span(first: int, last: int) -> str:
    return f"from {said(first)} to {said(last)}"


class World:
    """What happens to a runner, its runtime and their machine, minute by minute."""

    def __init__(self, rig: Rig, peer: Peer) -> None:
        self.rig, self.peer = rig, peer

    def minute(self) -> int:
        return int((self.rig.clock.now() - T0).total_seconds() // 60)

    async def until(self, minute: int) -> None:
        """Let the runner plan up to a time."""
        while self.minute() < minute:
            self.rig.clock.advance(60)
            await self.rig.loop.tick()

    async def runner_down(self, first: int, last: int, *, booted: int = -9999) -> None:
        """Kill the runner, and start another one; the machine starts at a minute."""
        await self.until(first)
        self.rig.clock.advance(60 * (last - first))
        watching = self.watched(T0 + timedelta(minutes=first), T0 + timedelta(minutes=booted))
        async with watching:
            await self.rig.store.run(lambda session: session.outages.left())
        await self.rig.loop.tick()

    async def runtime_down(self, first: int, last: int) -> None:
        """Stop the runtime; the runner notices each minute that it is away."""
        await self.until(first)
        await self.peer.stop()
        # Until the runner's channel has noticed it, a stream seems to be accepted, and a fire would count as sent.
        while self.rig.runtime._channel.get_state() is grpc.ChannelConnectivity.READY:
            await look_again()
        for minute in range(first, last + 1):
            await self.until(minute)
            with pytest.raises(Unreachable):
                await self.rig.dispatcher.serve_once()
        await self.peer.start()

    async def stands_still(self, first: int, last: int, *, asleep: bool = False) -> None:
        """Stop the runner's process; the steady counter of a machine that sleeps stands still, too."""
        await self.until(first)
        async with self.watched(None, LONG_AGO):
            if asleep:
                self.rig.clock.step(60 * (last - first) - loop.EVERY_S)
            self.rig.clock.advance(loop.EVERY_S if asleep else 60 * (last - first))
        await self.rig.loop.tick()

    @asynccontextmanager
    async def watched(self, last_seen: datetime | None, booted_at: datetime) -> AsyncIterator[None]:
        """Watch the runner's presence until an absence is on record."""

        async def seen() -> datetime | None:
            return last_seen

        watch = Presence(self.rig.store, clock=self.rig.clock, last_seen=seen, booted_at=booted_at)
        watching = asyncio.create_task(watch.run())
        await self.sleeps()
        yield
        await self.recorded()
        watching.cancel()

    async def unusable_store(
        self, first: int, last: int, spoil: Callable[[], object], mend: Callable[[], object]
    ) -> None:
        """Let the loop meet a store that it cannot write, until that is mended."""
        looping = asyncio.create_task(self.rig.loop.run())
        await self.sleeps()
        spoil()
        self.rig.clock.advance(60 * first)
        await self.rig.trail.saw("store.trouble")
        await self.sleeps()
        self.rig.clock.advance(60 * (last - first) - 2)
        await self.rig.trail.saw("store.trouble", 2)
        await self.sleeps()
        mend()
        self.rig.clock.advance(2)
        await self.recorded()
        looping.cancel()

    async def recorded(self) -> None:
        """Wait until a stoppage is on record."""
        while not await self.rig.store.read(lambda session: session.stoppages.listed()):
            await look_again()

    async def sleeps(self) -> None:
        """Wait until something waits for time to pass."""
        while not self.rig.clock.is_awaited:
            await look_again()

    async def refused(self, count: int) -> None:
        """Wait until so many tries were refused: time that passes before the answer would count as silence."""
        self.rig.dispatcher.wake()
        await self.rig.trail.saw("fire.refused", count)

    async def caught_up(self) -> None:
        """Wait until what was missed is sent; time passes only while the runner waits for it, and no answer is owed."""
        listed = await fires(self.rig)
        while not any(fire.fired_at.seconds and fire.count > 1 for fire in listed):
            if self.rig.clock.is_awaited and not any(fire.outcome == "sent" for fire in listed):
                self.rig.clock.advance(0.5)
            await look_again()
            listed = await fires(self.rig)

    async def begun(self) -> str:
        """Return the id of the task's first fire, whose turn has begun."""
        await self.until(1)
        await self.rig.trail.saw("fire.accepted")
        fire_id = self.peer.received[-1].fire_id
        await self.peer.play(fire_id, State.STARTED)
        return fire_id


async def runner_down(world: World) -> None:
    await world.runner_down(1, 6)


async def machine_off(world: World) -> None:
    await world.runner_down(1, 6, booted=5)


async def runtime_down(world: World) -> None:
    await world.runtime_down(1, 6)


async def both_down_and_the_runner_back_first(world: World) -> None:
    await world.runner_down(1, 5)
    await world.runtime_down(5, 6)


async def both_down_and_the_runtime_gone_first(world: World) -> None:
    await world.runtime_down(1, 3)
    await world.runner_down(3, 6)


async def process_suspended(world: World) -> None:
    await world.stands_still(1, 6)


async def machine_asleep(world: World) -> None:
    await world.stands_still(1, 6, asleep=True)


async def store_locked(world: World) -> None:
    await world.rig.store.transact(lambda connection: connection.exec_driver_sql("PRAGMA busy_timeout=0"))
    with closing(sqlite3.connect(world.rig.place)) as other:
        await world.unusable_store(1, 6, lambda: other.execute("BEGIN IMMEDIATE"), other.rollback)


async def disk_full(world: World) -> None:
    def bound(pages: int) -> None:
        """Let the file of the store grow to so many pages."""
        limit = f"PRAGMA max_page_count={pages}"
        world.rig.store._database.submit(lambda connection: connection.exec_driver_sql(limit)).result()

    await world.unusable_store(1, 6, lambda: bound(1), lambda: bound(99_999))


async def category_broken(world: World) -> None:
    world.peer.answer = refuse(code_pb2.UNAVAILABLE, "category", "loop.toml has a mistake")
    async with world.rig.running("dispatcher"):
        for minute in range(1, 6):
            await world.until(minute)
            await world.refused(minute)
        world.peer.answer = accept
        await world.until(6)
        await world.rig.trail.saw("fire.accepted")


async def held_by_an_approval(world: World) -> None:
    async with world.rig.running("dispatcher", "follower"):
        fire_id = await world.begun()
        await world.peer.play(fire_id, State.INTERRUPTED)
        await world.rig.trail.saw("fire.interrupted")
        await world.until(6)
        await world.peer.play(fire_id, State.RESUMED)
        await world.peer.play(fire_id, State.SUCCEEDED)
        await world.rig.trail.saw("fire.settled")


async def runtime_suspended(world: World) -> None:
    world.peer.answers.clear()
    async with world.rig.running("dispatcher", "follower"):
        await world.until(1)
        (request,) = await world.peer.saw(1)
        await world.until(6)
        waits = await world.rig.service.explain_fire(wire.ExplainFireRequest(name="digest", at=said(3)))
        assert f"{request.fire_id} was sent at {said(1)}, and the agent runtime has not answered" in " ".join(
            waits.lines
        )
        world.peer.answers.set()
        await world.rig.trail.saw("fire.accepted")
        await world.peer.play(request.fire_id, State.STARTED)
        await world.peer.play(request.fire_id, State.SUCCEEDED)
        await world.rig.trail.saw("fire.settled")


async def paused(world: World) -> None:
    await world.until(1)
    await world.rig.service.pause_task(wire.PauseTaskRequest(name="digest", note="away"))
    await world.until(6)
    await world.rig.service.resume_task(wire.ResumeTaskRequest(name="digest"))


async def over_budget(world: World) -> None:
    async with world.rig.running("dispatcher", "follower"):
        fire_id = await world.begun()
        await world.peer.play(fire_id, State.SUCCEEDED)
        await world.rig.trail.saw("fire.settled")
    await world.until(6)
    await world.rig.service.resume_task(wire.ResumeTaskRequest(name="digest"))


RUNNER, RUNTIME = "task runner not running", "agent runtime away"
ON_A_FILE = pytest.mark.sqlite_only("the store is a file")
CAUSES = (
    (runner_down, f"{RUNNER} {span(1, 6)}"),
    (machine_off, f"{RUNNER} {span(1, 6)} (the machine was off or restarting until {said(5)})"),
    (runtime_down, f"{RUNTIME} {span(1, 6)}"),
    (both_down_and_the_runner_back_first, f"{RUNNER} {span(1, 5)}, then {RUNTIME} {span(5, 6)}"),
    (both_down_and_the_runtime_gone_first, f"{RUNNER} {span(3, 6)}"),
    pytest.param(process_suspended, f"task runner suspended {span(1, 6)}", marks=ON_A_FILE),
    pytest.param(machine_asleep, f"machine asleep, or its clock set ahead, {span(1, 6)}", marks=ON_A_FILE),
    pytest.param(store_locked, f"store of the task runner not usable {span(1, 6)} (", marks=ON_A_FILE),
    pytest.param(disk_full, f"store of the task runner not usable {span(1, 6)} (", marks=ON_A_FILE),
    (runtime_suspended, f"no answer from the agent runtime {span(1, 6)}"),
    (category_broken, f"fires held by the agent runtime from {said(1)} to {said(6)}"),
    (held_by_an_approval, f"thread waiting for its author {span(1, 6)}"),
    (paused, f"paused {span(1, 6)} (away)"),
    (over_budget, f"paused {span(1, 6)} (budget: "),
)
WHY: dict[str, Story] = {
    "loop.toml has a mistake": category_broken,
    "database is locked": store_locked,
    "disk is full; free room on its disk": disk_full,
}


@pytest.mark.parametrize(("story", "cause"), CAUSES, ids=lambda each: getattr(each, "__name__", ""))
async def test_a_time_that_was_missed_has_its_cause_and_its_span(
    rig: Rig, peer: Peer, story: Story, cause: str
) -> None:
    peer.now = rig.clock.now
    budget = {"turns_per_day": 1} if story is over_budget else {}
    await rig.create(budget=budget, prompt="p" * 100_000 if story is disk_full else "p")
    world = World(rig, peer)
    await story(world)
    async with rig.running("dispatcher", "follower"):
        if story not in {paused, over_budget}:
            rig.dispatcher.wake()
            await world.caught_up()
    answer = await rig.service.explain_fire(wire.ExplainFireRequest(name="digest", at=said(4)))
    assert f"The cause: {cause}" in answer.lines[-1], answer
    assert answer.fire.cause.startswith(cause)
    assert {why for why in WHY if why in answer.fire.cause} == {why for why, of in WHY.items() if of is story}
    (entry,) = [fire for fire in await fires(rig) if fire.entry_id == answer.fire.entry_id]
    assert cause in entry.cause


@pytest.mark.sqlite_only("another connection looks into the file")
async def test_a_silence_is_on_record_as_soon_as_the_answer_is(
    rig: Rig, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    await rig.create()
    world, seen = World(rig, peer), list[str]()
    peer.answers.clear()
    with closing(sqlite3.connect(rig.place)) as other:

        def count(fires: int) -> int:
            seen.extend(cause for (cause,) in other.execute("SELECT cause FROM stoppages"))
            return fires

        async with rig.running("dispatcher"):
            await world.until(1)
            await peer.saw(1)
            await world.until(2)
            monkeypatch.setattr(rig.trail, "emit_all", lambda events: count(len(events)))
            peer.answers.set()
            while not seen:
                await look_again()
    assert seen == ["no answer from the agent runtime"]


async def fires(rig: Rig) -> list[wire.Fire]:
    return list((await rig.service.list_fires(wire.ListFiresRequest(name="digest"))).fires)
