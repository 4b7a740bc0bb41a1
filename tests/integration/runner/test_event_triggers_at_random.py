"""A task that fires for events and on a schedule, through whatever may befall it, in a random order.

Whatever happens: triggers come to as many as there were, nominal times are covered once each, fires take turns, and in
the end nothing is left over. TURNKEEPER_WALKS=500 makes as many walks by hand.
"""

import os
from collections.abc import Sequence
from datetime import timedelta
from itertools import pairwise
from typing import Any, TypeVar

import pytest

from task_runner.model.events import Event
from task_runner.model.task import COUNTED, OPEN, UNDER_WAY, FireKind, TaskState
from task_runner.planner.entries import timetable_of
from task_runner.scheduler.events import take_in
from task_runner.service import changes
from tests.integration.runner.simulation import FINAL, Crash, World
from tests.support.seeded_entropy import SeededEntropy

T = TypeVar("T")
STEPS = 45
OVERLAPS = ["coalesce", "queue", "skip", "cancel-running"]


class Walk:
    """One world, what was done in it, and what has to hold."""

    def __init__(self, engine: Any, seed: int) -> None:
        self.entropy, self.world = SeededEntropy(seed), World(engine)
        self.told = self.matched = 0
        self.done: list[str] = []
        self.fields = {
            "on": "demo",
            "every": self.pick(["60s", None]),
            "debounce": self.pick(["0s", "5s", "90s"]),
            "retries": self.pick([0, 1]),
            "max_catch_up": self.pick([2, 1000]),
            "max_fires": self.pick([None, None, 3]),
            "overlap": self.pick(OVERLAPS),
        }
        self.world.create(**self.fields)

    def step(self) -> None:
        steps = {
            "event": 6, "time": 4, "tick": 3, "connect": 3, "send": 4, "hear": 3, "follow": 4, "end": 4, "interrupt": 1,
            "write": 1, "release": 2, "pause": 1, "resume": 2, "refuse": 1, "lose": 1, "crash": 1, "edit": 1,
            "cancel": 1,
        }  # fmt: skip
        name = self.pick([name for name, weight in steps.items() for _ in range(weight)])
        self.done.append(name)
        getattr(self, name)()
        self.check()

    def pick(self, among: Sequence[T]) -> T:
        return among[min(len(among) - 1, int(self.entropy.uniform(0, len(among))))]

    def event(self) -> None:
        now = self.world.now
        events = [Event(name="demo", id=f"e{self.told + n}", at=now) for n in range(self.pick([1, 1, 2, 5]))]
        self.told += len(events)
        if self.entropy.uniform(0, 1) < 0.2:
            self.world.dies = True
            with pytest.raises(Crash):
                self.world.run(lambda session: take_in(session, events, now))
            self.world.crash()
        heard = self.world.run(lambda session: take_in(session, events, now))
        self.matched += heard.matched
        assert not self.world.run(lambda session: take_in(session, events, now)).fresh

    def time(self) -> None:
        self.world.now += timedelta(seconds=self.pick([1, 7, 31, 61, 400]))

    def tick(self) -> None:
        self.world.tick()

    def connect(self) -> None:
        self.world.connect()

    def send(self) -> None:
        self.world.send()

    def hear(self) -> None:
        self.world.hear()

    def follow(self) -> None:
        self.world.follow()

    def end(self) -> None:
        self.world.peer.end(self.pick(list(FINAL)), self.world.now)

    def interrupt(self) -> None:
        self.world.peer.interrupt(self.world.now)

    def write(self) -> None:
        self.world.peer.write(self.world.now)

    def release(self) -> None:
        self.world.peer.release(self.world.now)

    def cancel(self) -> None:
        self.world.cancel()

    def refuse(self) -> None:
        self.world.peer.refuses = not self.world.peer.refuses

    def lose(self) -> None:
        self.world.connected = False
        self.world.receipts.clear()

    def crash(self) -> None:
        self.world.crash()

    def pause(self) -> None:
        if self.world.task().state is TaskState.ACTIVE:
            now = self.world.now
            self.world.run(lambda session: changes.stop(session, "digest", TaskState.PAUSED, "", now))

    def resume(self) -> None:
        if self.world.task().state is TaskState.PAUSED:
            now = self.world.now
            self.world.run(lambda session: changes.resume(session, "digest", now, replay=False))

    def edit(self) -> None:
        self.fields |= {"debounce": self.pick(["0s", "5s"]), "overlap": self.pick(OVERLAPS)}
        self.world.edit(**self.fields)

    def check(self) -> None:
        rows = self.world.rows()
        triggers = sum(row.count for row in rows if row.kind is FireKind.EVENT)
        assert triggers == self.matched, "each trigger once"
        assert sum(row.outcome in UNDER_WAY and row.kind in COUNTED for row in rows) <= 1, "they take turns"
        task = self.world.task()
        if self.fields["max_fires"] is not None:
            opened = sum(row.outcome in OPEN and row.accepted_at is None for row in rows)
            assert task.accepted + opened <= self.fields["max_fires"], "no more than may be"
        covered = sorted(
            (row.first_at, row.last_at, row.count) for row in rows if row.kind is FireKind.SCHEDULED and row.count
        )
        assert all(one[1] < other[0] for one, other in pairwise(covered)), "no time twice"
        named = timetable_of(task.definition).count(task.created_at, task.cursor_at)
        assert sum(count for _, _, count in covered) == named, "no time left out"

    def drain(self) -> None:
        """Let everything that was begun come to its end."""
        world = self.world
        self.resume()
        world.peer.refuses = False
        for _ in range(60):
            world.now += timedelta(seconds=1)
            world.connect()
            world.peer.release(world.now)
            for part in (world.tick, world.send, world.hear, world.follow):
                part()
            world.peer.end("succeeds", world.now)
            world.follow()
            self.check()
        world.now += timedelta(seconds=100)
        for _ in range(9):
            for part in (world.tick, world.send, world.hear, world.follow):
                part()
            world.peer.end("succeeds", world.now)
            world.follow()
        left = [row for row in world.rows() if row.outcome in OPEN and row.kind is FireKind.EVENT]
        assert not left, "nothing is left over"


@pytest.mark.parametrize("seed", range(int(os.environ.get("TURNKEEPER_WALKS", "8"))))
def test_whatever_befalls_a_hybrid_its_ledger_adds_up(engine: Any, seed: int) -> None:
    walk = Walk(engine, seed)
    try:
        for _ in range(STEPS):
            walk.step()
        walk.drain()
    except AssertionError as error:
        error.add_note(f"{walk.fields}: {' '.join(walk.done)}")
        raise
