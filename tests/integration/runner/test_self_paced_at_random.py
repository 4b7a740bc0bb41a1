"""Whatever happens in whatever order: a self-paced task never loses its next wake, and never wakes twice for one."""

from datetime import timedelta
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from task_runner.model.task import OPEN, FireKind, Outcome, TaskState
from task_runner.service import changes
from task_runner.service.changes import reschedule
from tests.integration.runner import simulation as worlds
from turnkeeper.errors import TurnkeeperError

OFTEN = ["work", "tick", "asks", "hour"]
SOMETIMES = ["pause", "resume", "succeeds", "fails", "pauses", "reschedule", "crash", "disconnect", "second", "run"]
SELDOM = [
    "connect", "send", "hear", "follow", "follow one", "is cancelled", "interrupt", "write", "release", "dies",
    "disable", "enable", "step back", "edit",
]  # fmt: skip
STEPS = st.lists(st.sampled_from(4 * OFTEN + 2 * SOMETIMES + SELDOM), min_size=20, max_size=60)


class Life:
    """One self-paced task, and all that can happen to it."""

    def __init__(self, engine: Any, if_silent: str) -> None:
        self.world = worlds.World(engine)
        self.peer = self.world.peer
        self.if_silent = if_silent
        self.world.create(dynamic=True, first="0s", if_silent=if_silent)
        self.requests = 0

    def step(self, name: str) -> None:
        try:
            self._step(name)
        except worlds.Crash:
            self.world.crash()
        except TurnkeeperError:
            pass  # refused, in one line

    def _step(self, name: str) -> None:
        world, now, id_ = self.world, self.world.now, self.world.task_id
        change = {
            "pause": lambda session: changes.stop(session, id_, TaskState.PAUSED, "", now),
            "disable": lambda session: changes.stop(session, id_, TaskState.DISABLED, "", now),
            "resume": lambda session: changes.resume(session, id_, now, replay=False),
            "enable": lambda session: changes.resume(session, id_, now, replay=False),
            "run": lambda session: changes.run_now(session, id_, f"r{self.requests}", now),
            "reschedule": lambda session: reschedule(session, id_, 5, now),
        }
        if name in change:
            self.requests += 1
            world.run(change[name])
        elif name in {"asks", "succeeds", "fails", "is cancelled", "pauses"}:
            asks = name == "asks"
            self.peer.end("succeeds" if asks else name, now, 7 if asks else None)
        elif name in {"interrupt", "write", "release"}:
            getattr(self.peer, name)(now)
        elif name == "work":
            for each in ("tick", "connect", "send", "hear", "follow"):
                getattr(world, each)()
        elif name in {"tick", "connect", "send", "hear", "follow", "crash"}:
            getattr(world, name)()
        else:
            self._rare(name)

    def _rare(self, name: str) -> None:
        world = self.world
        if name == "follow one":
            world.follow(1)
        elif name == "dies":
            world.dies = True
            world.tick()
            world.dies = False
        elif name == "disconnect":
            world.connected = False
            world.receipts.clear()
        elif name == "step back":
            world.now -= timedelta(hours=3)
            world.stepped_back = True
        elif name == "edit":
            world.edit(dynamic=True, first="0s", if_silent=self.if_silent, prompt=f"p{self.requests}")
        else:
            world.now += timedelta(seconds=1) if name == "second" else timedelta(hours=1)

    def settle(self) -> None:
        """Let everything that is under way come to its end, with nobody interfering."""
        for _ in range(8):
            for name in ("tick", "connect", "release", "send", "hear", "follow", "asks", "follow"):
                self.step(name)
            self.world.now += timedelta(seconds=40)

    def check(self) -> None:
        rows = [row for row in self.world.rows() if row.kind is FireKind.WAKE]
        numbers = [int(row.fire_id.rpartition("~w")[2]) for row in rows]
        task = self.world.task()
        assert numbers == list(range(1, len(rows) + 1))
        assert task.pacing is not None
        assert task.pacing.iteration == len(rows)
        assert sum(row.outcome in OPEN for row in rows) <= 1
        going = any(row.outcome in OPEN for row in rows) or task.pacing.armed_at is not None
        assert going or task.state is not TaskState.ACTIVE or self.if_silent == "wait", task


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(steps=STEPS, if_silent=st.sampled_from(["end", "wait", "1m"]))
def test_no_wake_is_lost_or_doubled_whatever_happens(engine: Any, steps: list[str], if_silent: str) -> None:
    life = Life(engine, if_silent)
    for name in steps:
        life.step(name)
        life.check()
    life.settle()
    life.check()
    started = [row.fire_id for row in life.world.rows() if row.started_at is not None]
    ran = {turn.fire_id for turn in life.peer.turns.values() if turn.state not in {"queued", "held", "released"}}
    assert set(started) <= ran
    task = life.world.task()
    if task.state is TaskState.ACTIVE and if_silent != "wait":
        assert not [row for row in life.world.rows() if row.outcome is Outcome.PENDING and row.ready_at is None]
