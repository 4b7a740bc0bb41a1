"""A runner on a real store, and a scripted runtime on a real socket."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from task_runner.dispatcher.dispatcher import Canceller, Dispatcher, Pace
from task_runner.dispatcher.outcomes import Follower, RuntimeEvents, Wakes
from task_runner.dispatcher.runtime_client import Runtime
from task_runner.scheduler.loop import Loop
from task_runner.service.service import Service
from task_runner.service.task_spec import Defaults
from task_runner.store.store import Store
from tests.integration.runner.scripted_runtime import Peer
from tests.integration.runner.simulation import open_store
from tests.support.clock import ManualClock
from tests.support.postgres import Places, Server
from tests.support.seeded_entropy import SeededEntropy
from turnkeeper.config.home import Home
from turnkeeper.rpc.callers import Identity
from turnkeeper.rpc.process import Failpoints
from turnkeeper.v1 import schedules_pb2 as wire


class Trail:
    """Keeps the facts, and lets a test wait for one."""

    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []
        self._news = asyncio.Event()

    def emit(self, event: str, *, durable: bool = False, **fields: Any) -> None:
        self.events.append((event, fields))
        self._news.set()

    def emit_all(self, events: Any) -> None:
        for name, fields in events:
            self.emit(name, **fields)

    def named(self, name: str) -> list[dict[str, Any]]:
        return [fields for event, fields in self.events if event == name]

    async def saw(self, name: str, count: int = 1) -> list[dict[str, Any]]:
        while len(self.named(name)) < count:
            self._news.clear()
            await self._news.wait()
        return self.named(name)


class Rig:
    """The runner's parts, wired as the daemon wires them, on a clock that the test moves."""

    def __init__(self, home: Home, clock: ManualClock, place: Path | str, pace: Pace | None = None) -> None:
        self.clock, self.trail, self.home, self.place = clock, Trail(), home, place
        self.entropy = SeededEntropy(1)
        self.store = Store(
            self.place, f" --home {home.root}", clock, SeededEntropy(2)
        )  # of its own: a file draws a name
        self.runtime = Runtime(home.socket("agent-runtime"), Identity("task-runner/cli"))
        self.changed, self.planned = asyncio.Event(), asyncio.Event()
        self.planned.set()  # a rig may run without its loop
        shared: Any = {"clock": clock, "log": self.trail}
        self.dispatcher = Dispatcher(
            self.store, self.runtime, entropy=self.entropy, failpoints=Failpoints({}), pace=pace or Pace(),
            changed=self.changed, planned=self.planned, **shared,
        )  # fmt: skip
        self.loop = Loop(
            self.store,
            failpoints=Failpoints({}),
            changed=self.changed,
            planned=self.planned,
            handover=self.dispatcher,
            asking=self.dispatcher.asking,
            **shared,
        )
        sender = self.dispatcher
        wakes = Wakes(planning=self.changed, dispatch=sender.work, lost=sender.lost, asking=sender.asking)
        self.follower = Follower(self.store, self.runtime, entropy=self.entropy, wakes=wakes, **shared)
        self.runtime_events = RuntimeEvents(self.store, self.runtime, entropy=self.entropy, wakes=wakes, **shared)
        self.canceller = Canceller(self.store, self.runtime, work=self.dispatcher.asking, **shared)
        self.service = Service(
            self.store, self.runtime, entropy=self.entropy, tick=self.loop.tick, changed=self._task_changed,
            defaults=Defaults(timezone="UTC", grace=timedelta(seconds=10)), **shared,
        )  # fmt: skip

    def _task_changed(self) -> None:
        """Wake the parts that the daemon wakes after each command."""
        self.changed.set()
        self.dispatcher.wake()
        self.dispatcher.asking.set()
        self.runtime_events.changed.set()

    @asynccontextmanager
    async def running(self, *parts: str) -> AsyncIterator[None]:
        tasks = [asyncio.create_task(getattr(self, part).run()) for part in parts or ("dispatcher", "follower")]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def again(self) -> "Rig":
        """Return another runner, on the store of this one, which is closed."""
        return Rig(self.home, self.clock, self.place)

    async def close(self) -> None:
        await self.runtime.close()
        self.store.close()

    async def create(self, name: str = "digest", **fields: Any) -> wire.Task:
        fields = {"every": "60s", "category": "loop", "channel": "general", "prompt": "p"} | fields
        if "cron" in fields or "at" in fields or "in" in fields:
            del fields["every"]
        answer = await self.service.create_task(wire.CreateTaskRequest(spec=wire.TaskSpec(name=name, **fields)))
        return answer.task

    async def pass_time(self, seconds: float) -> None:
        """Let time pass and plan what fell due."""
        self.clock.advance(seconds)
        await self.loop.tick()

    async def history(self, name: str = "digest") -> list[tuple[str, str, int]]:
        """(outcome, reason, count), oldest first."""
        fires = (await self.service.list_fires(wire.ListFiresRequest(name=name, limit=1000))).fires
        return [(fire.outcome, fire.reason, fire.count) for fire in reversed(fires)]

    async def task(self, name: str = "digest") -> wire.Task:
        return await self.service.get_task(wire.GetTaskRequest(name=name))


@pytest.fixture
async def peer(home: Home) -> AsyncIterator[Peer]:
    made = Peer(home.run)
    await made.start()
    yield made
    await made.stop()


@pytest.fixture
def place(home: Home, place_of: Places) -> Path | str:
    """Where the runner's store is, on whichever database."""
    return place_of(home.schedules_db)


@pytest.fixture
async def rig(home: Home, clock: ManualClock, place: Path | str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Rig]:
    """A runner whose units run in the order in which they came, also on a server: its clock moves only between them.

    What several units at once may do to each other is for `tests/integration/cluster/`.
    """
    monkeypatch.setattr("task_runner.store.store.CONNECTIONS", 1)
    made = Rig(home, clock, place)
    yield made
    await made.close()


@pytest.fixture(scope="module")
def engine(postgres_server: Server | None) -> Iterator[Any]:
    """A store that all simulated worlds of a module share, one after the other."""
    made = open_store(postgres_server.create() if postgres_server else "sqlite://")
    yield made
    made.dispose()
