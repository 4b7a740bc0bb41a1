"""The two daemons as nodes of one loop: the real assemblies and parts, which die at any await and start again."""

import asyncio
import os
import queue
import random  # noqa: TID251  seeded, so that a run can be repeated
import threading
import traceback
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

from agent_runtime.daemon import assembly as runtime_daemon
from agent_runtime.service.servicer import Servicer
from task_runner.daemon import __main__ as runner_daemon
from task_runner.daemon import assembly as runner_assembly
from task_runner.service.service import Servicer as RunnerServicer
from tests.simulation.disk import Disk, SimulatedFiles
from tests.simulation.graph import builder, forget_newest_id
from tests.simulation.loop import NODE, Clock, Loop, Node, context_of
from tests.simulation.script import RUNNER, RUNTIME
from tests.simulation.transport import Network, Server
from tests.support.seeded_entropy import SeededEntropy
from turnkeeper.bus.event_log import EventLog
from turnkeeper.config.home import Home
from turnkeeper.config.settings import CategorySettings, Settings
from turnkeeper.errors import machine_trouble
from turnkeeper.rpc.process import path_of
from turnkeeper.storage.database import Call, WorkerThread
from turnkeeper.times import rfc3339

SETTINGS = Settings(categories=CategorySettings(autonomous_allowed=("loop",)))
_VOLATILE = frozenset({"checkpoint_id", "took_s"})  # measured, or made by LangGraph from the machine's clock


class StepWorker(WorkerThread):
    """A worker without a thread: each batch is a step of the loop of its process."""

    def _start(self, _number: int) -> threading.Thread:
        self._queue = _Arrivals(self)
        self._is_due = False
        return threading.Thread()  # never started, so that there is nothing to join

    def arm(self) -> None:
        if not self._is_due and self._open:
            self._is_due = True
            loop = asyncio.get_running_loop()
            assert isinstance(loop, Loop)
            loop.call_later(loop.disk.draw(), self._go)

    def submit(self, work: Any) -> "Future[Any]":
        """Run work at once, as the caller waits for it without an event loop."""
        answer: Future[Any] = Future()
        call = Call(work, answer)
        try:
            self._serves[0]([call])
        except BaseException as error:  # noqa: BLE001  as the thread does
            call.error = error
        self._type_errors([call])
        call.answer()
        return answer

    def close(self) -> None:
        self._open = False

    def _next(self) -> tuple[list[Call], bool]:
        batch: list[Call] = []
        while len(batch) < self._largest:
            try:
                batch += self._queue.get_nowait() or []
            except queue.Empty:
                break
        held, self._held = self._held, []
        return [*batch, *held], False

    def _go(self) -> None:
        self._is_due = False
        self._run(0)
        node, loop = NODE.get(), asyncio.get_running_loop()
        if node is not None and isinstance(loop, Loop) and "read" not in self._name:
            name = node.name.partition(" ")[0]
            loop.reach(f"{name}.{'saved' if 'checkpoints' in self._name else 'stored'}")
        if not self._queue.empty():
            self.arm()


class _Arrivals(queue.SimpleQueue[Any]):
    """A queue that wakes its worker in a later step."""

    def __init__(self, worker: StepWorker) -> None:
        super().__init__()
        self._worker = worker

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        super().put(item, block, timeout)
        self._worker.arm()


class Process:
    """One of the two daemons, through all its lives.

    Attributes:
        node: its present life.
        died: set while it has no life.
        servicer: the service of this life, if it has one apart from its parts.
        parts: the assembled parts of this life; None until they are there.
        ended: why lives ended by themselves. A start may end because of the machine, and the supervisor repeats it.
        wrong: the ends that no fault of the machine explains, and those of a process that had started.
    """

    name = ""

    def __init__(
        self, home: Home, loop: Loop, clock: Clock, disk: Disk, network: Network, seed: int, events: list[Any]
    ) -> None:
        self.home, self.loop, self.clock, self.disk, self.network = home, loop, clock, disk, network
        self.seed, self.events = seed, events
        self.node = Node(self.name)
        self.node.is_dead = True
        self.died = asyncio.Event()
        self.died.set()
        self.parts: Any = None
        self.servicer: Any = None
        self.ended: list[str] = []
        self.wrong: list[str] = []
        self._lives = 0
        self._kept: list[Any] = []  # the remains of dead lives: no `finally` of theirs may run

    @property
    def deaths(self) -> int:
        return max(0, self._lives - 1)

    @property
    def is_dead(self) -> bool:
        return self.node.is_dead

    def start(self) -> None:
        self._lives += 1
        self.node, self.parts = Node(f"{self.name} {self._lives}", self.died.set), None
        self.died.clear()
        self.loop.note("started", self.node.name)
        self._kept.append(self.loop.create_task(self._life(self.node), context=context_of(self.node)))

    def die(self) -> None:
        """End this life as kill -9 does."""
        if not self.node.is_dead:
            self.loop.note("crashed", self.node.name)
        self.node.is_dead = True
        self.died.set()
        seen = self.clock.now().timestamp()
        progress = path_of(self.home, self.name)
        if progress.exists():
            os.utime(progress, (seen, seen))
        self.break_calls()

    def break_calls(self) -> None:
        """Break the connections of this life."""
        self.network.break_all()

    def keep(self, task: Any) -> None:
        """Keep a task of this process until the run is over."""
        self._kept.append(task)

    def entropy(self) -> SeededEntropy:
        return SeededEntropy(random.Random(f"ids {self.seed} {self.node.name}").getrandbits(64))

    async def serve(self) -> None:
        """Assemble the daemon and run its parts."""
        raise NotImplementedError

    def listen(self, log: EventLog) -> None:
        """Keep the events of a log, in the order in which they were written."""
        before, life = log.count, self._lives  # one process plays all: the life is its process's id

        def count(events: Sequence[tuple[str, Any]]) -> None:
            before(events)
            for name, fields in events:
                told = (f"{key}={str(fields[key])[:200]}" for key in sorted(fields.keys() - _VOLATILE))
                self.loop.note(self.name, name, *told)
                at = rfc3339(self.clock.now())
                self.events.append({**fields, "event": name, "at": at, "process": self.name, "pid": life})

        log.count = count

    async def _life(self, node: Node) -> None:
        try:
            await self.serve()
            self._end(node, "it ended")
        except (asyncio.CancelledError, GeneratorExit):
            raise
        except BaseException as error:  # noqa: BLE001  the process ends, and its supervisor starts it again
            why = f"{type(error).__name__}: {error}"
            if not self.loop.is_over and (self.parts is not None or machine_trouble(error, ours=True) is None):
                self.wrong.append(why)
            self._end(node, why, "".join(traceback.format_exception(error)))

    def _end(self, node: Node, why: str, trace: str = "") -> None:
        if not self.loop.is_over and NODE.get() is node:
            self.loop.note("ended", node.name, why)
            self.ended.append(f"{why}\n{trace}")
            self.die()


class RunnerProcess(Process):
    name = RUNNER

    def __init__(self, *given: Any, door: Network) -> None:
        """Serve the runner's own calls on `door`."""
        super().__init__(*given)
        self._door = door

    def break_calls(self) -> None:
        super().break_calls()
        self._door.break_all()

    async def serve(self) -> None:
        made = runner_assembly.assemble(
            self.home, daemon=True, clock=self.clock, entropy=self.entropy(), connect=self.network.connect,
            worker=StepWorker,
        )  # fmt: skip
        async with made as runner:
            self._kept.append(runner)
            self.listen(runner.log)
            path_of(self.home, self.name).touch()
            self.parts = runner
            self._door.server = Server(self.node, RunnerServicer(runner.service))
            await runner_daemon._work_until(asyncio.Event(), runner, _forever())


class RuntimeProcess(Process):
    name = RUNTIME

    def __init__(self, *given: Any, fails: float) -> None:
        super().__init__(*given)
        self._fails = fails
        self._drawn = random.Random(f"graph {self.seed}")

    async def serve(self) -> None:
        forget_newest_id()
        files, entropy = SimulatedFiles(self.disk), self.entropy()
        async with runtime_daemon.assemble(
            self.home, SETTINGS, environ={}, clock=self.clock, entropy=entropy,
            build=builder(self._drawn, self.clock, entropy, self._fails),
            worker=StepWorker, files=files,
        ) as runtime:  # fmt: skip
            self._kept.append(runtime)
            self.listen(runtime.log)
            runtime.log.emit("session.began", epoch=runtime.store.epoch, incarnation=runtime.store.incarnation)
            await runtime.worker.start()
            self.servicer = Servicer(runtime)
            self.network.server = Server(self.node, self.servicer)
            self.parts = runtime
            _signer, beside = runtime_daemon._beside(self.home, runtime, SETTINGS)
            await asyncio.wait(beside, return_when=asyncio.FIRST_COMPLETED)
            for part in beside:
                if part.done():
                    part.result()


async def _forever() -> None:
    await asyncio.Event().wait()
