"""One run: the script's faults strike the two daemons, then all is healed, and everything must come to its end."""

import asyncio
import errno
import gc
import logging
import os
import random  # noqa: TID251  seeded, so that a run can be repeated
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cache, partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

from agent_runtime.graph.guard import hooks
from examples.demo.history import Violation
from tests.simulation.checking import History, check, read
from tests.simulation.delivering import DeliveryProcess, Receiver, is_settled, outbox_of
from tests.simulation.disk import CALLS_OF_SQLITE, Disk, Failing, under_sqlite
from tests.simulation.graph import ASK, BROKE, CATEGORY, PROMPTS, ids_of_checkpoints
from tests.simulation.loop import Clock, Loop, Stalled, context_of
from tests.simulation.people import People, opened
from tests.simulation.points import Points
from tests.simulation.processes import Process, RunnerProcess, RuntimeProcess
from tests.simulation.replay import statements
from tests.simulation.reused import reused
from tests.simulation.script import DELIVERY, RUNNER, RUNTIME, Act, Fault, Script, Task
from tests.simulation.transport import Network
from turnkeeper.config.home import Home
from turnkeeper.constellation.delivery import outbox
from turnkeeper.storage.database import Database
from turnkeeper.storage.schema_revision import STORES
from turnkeeper.times import to_us
from turnkeeper.v1 import schedules_pb2 as wire

RISES_S = 10.0  # after the faults, processes that met one may still end, and start again
LEAST_REST_S, MOST_REST_S = 0.1, 4.0  # before a process is started again
SETTLES_S = 180.0  # after the tasks are paused, everything is at its end within so long
COUNTED = ("fire.committed", "fire.sent", "fire.settled", "turn.started", "interrupt.raised")
PID = 7777  # stands in names of envelopes: those of a run do not depend on its process
_UNENDED = "('running', 'interrupted', 'paused')"


@dataclass
class Outcome:
    """What came of a run.

    Attributes:
        trace: the digest of the run: that of the same script is the same, byte for byte.
        lines: the trace itself, if it was kept.
        history: what the run left; None if it did not come to its end.
        stuck: what each live task of the daemons awaits, if something did not come to its end.
    """

    script: Script
    violations: list[Violation] = field(default_factory=list)
    trace: str = ""
    lines: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    history: History | None = None
    stuck: list[str] = field(default_factory=list)


class World:
    """The home, the two daemons and the connection between them, for the time of one run."""

    def __init__(self, root: Path, script: Script, *, keep: bool = False) -> None:
        self.script = script
        self.home = Home(root=root)
        self.loop = Loop(script.seed, keep=keep)
        self.loop.hidden = {str(root): "HOME"}
        self.clock = Clock(self.loop)
        self.events: list[dict[str, Any]] = []
        self.disk, self.points = Disk(self.loop.note, self.loop.detail), Points()
        self.disk.reach = self.loop.reach = self.points.reach
        self.network = Network(self.loop, script.seed)
        if script.cuts_power:
            self.disk.memory.stash = root.parent / "stash"
            self.disk.memory.stash.mkdir()
        self._drawn = random.Random(f"power {script.seed}")
        given = (self.home, self.loop, self.clock, self.disk, self.network, script.seed, self.events)
        door = Network(self.loop, f"runner {script.seed}")
        self.networks = (self.network, door)
        self.processes: dict[str, Process] = {
            RUNTIME: RuntimeProcess(*given, fails=script.fails), RUNNER: RunnerProcess(*given, door=door)
        }  # fmt: skip
        self.receiver = Receiver(self.home, self.loop, script.seed)
        if script.delivers:
            self.processes[DELIVERY] = DeliveryProcess(*given, door=door)
        self.people = People(
            self.processes[RUNNER], self.processes[RUNTIME], self.loop, self.clock, script.seed
        )  # fmt: skip
        self.history: History | None = None
        self.violations: list[Violation] = []
        self.stuck: list[str] = []
        self._paused_us = 0
        self._healed = asyncio.Event()
        self._away: dict[str, float] = {}  # by process: until when it stays dead

    async def main(self) -> None:
        """Run the script. What is wrong at the end is in `violations`."""
        self._make_home()
        watching = [asyncio.create_task(self._restarts(process)) for process in self.processes.values()]
        for task in self.script.tasks:
            await self.people.ask_runner("create_task", wire.CreateTaskRequest(spec=_spec(task)))
        if any(task.job == ASK for task in self.script.tasks):
            watching.append(asyncio.create_task(self.people.decide()))
        under_way = [asyncio.create_task(self._strike(fault)) for fault in self.script.faults]
        under_way += [asyncio.create_task(self._act(act)) for act in self.script.acts]
        await self._until(self.script.faulty_s)
        await asyncio.gather(*under_way[: len(self.script.faults)])
        self._heal()
        await self.clock.sleep(RISES_S)
        lives = {name: len(process.ended) for name, process in self.processes.items()}
        await self.clock.sleep(self.script.works_s)
        await asyncio.gather(*under_way)
        self._paused_us = to_us(self.clock.now())
        for task in self.script.tasks:
            await self.people.ask_runner("pause_task", wire.PauseTaskRequest(name=task.name))
        paused_at = self.loop.time()
        while not self._is_settled() and self.loop.time() < paused_at + SETTLES_S:
            await self.clock.sleep(5)
        for name, process in self.processes.items():
            for why in process.ended[lives[name] :]:
                self._wrong("S1", f"the {name} ended after all was healed: {why}")
            for why in process.wrong:
                self._wrong("S1", f"the {name} ended: {why}")
        for why in self.people.wrong:
            self._wrong("S1", why)
        self.history = self._read()
        self.violations += check(self.history)
        self.stuck = [] if not self.violations else list(_awaits(self.loop))
        for each in watching:
            each.cancel()

    def _read(self) -> History:
        """Return what the run left behind."""
        steps = [fault.seconds for fault in self.script.faults if fault.kind == "step"]
        return read(
            self.home,
            {task.name: task.every_s for task in self.script.tasks if task.is_scheduled},
            asked=self.people.asked,
            withdrawn=self.people.withdrawn,
            follows={task.name: task.after for task in self.script.tasks if task.after},
            listens=frozenset(task.name for task in self.script.tasks if task.on),
            loops={task.name: task.every_s for task in self.script.tasks if task.is_loop},
            paused_us=self._paused_us,
            deaths=self.processes[RUNTIME].deaths,
            back_us=-round(sum(min(0.0, step) for step in steps) * 1e6),
            is_stepped=bool(steps),
            reasons=(BROKE,),
            events=self.events,
            attempts=self.receiver.attempts if self.script.delivers else None,
        )

    def _make_home(self) -> None:
        self.home.create()
        for name, made in _migrated().items():
            if self.script.delivers or name != outbox_of(self.home).name:
                (self.home.schedules_db.parent / name).write_bytes(made)
        if self.script.delivers:
            self.receiver.add()
        self.home.socket("agent-runtime").touch()
        (self.home.categories / "loop.toml").write_text(CATEGORY)

    def _wrong(self, invariant: str, what: str) -> None:
        self.violations.append(Violation(invariant=invariant, what=what))

    async def _restarts(self, process: Process) -> None:
        """Start a process, and again whenever it has died, later after each start that fails: as the supervisor does."""
        rest_s, began = LEAST_REST_S, -MOST_REST_S
        while True:
            await process.died.wait()
            process.die()  # its connections break, however it died
            rest_s = min(2 * rest_s, MOST_REST_S) if self.loop.time() - began < MOST_REST_S else LEAST_REST_S
            until = max(self._away.get(process.name, 0.0), self.loop.time() + rest_s)
            await self.clock.wait(self._healed, until - self.loop.time())
            await self.clock.sleep(0.1 if self._healed.is_set() else 0.0)
            if self.loop.time() >= self._away.get(process.name, 0.0):
                began = self.loop.time()
                process.start()

    async def _until(self, seconds: float) -> None:
        await self.clock.sleep(max(0.0, seconds - self.loop.time()))

    async def _strike(self, fault: Fault) -> None:
        await self._until(fault.at)
        self.loop.note("fault", fault)
        if fault.kind in {"crash", "death"}:
            self._kill(fault)
        elif fault.kind == "power":
            self._cut(fault)
        elif fault.kind == "break":
            self._break_all()
        elif fault.kind == "lose":
            for network in self.networks:
                network.loses[fault.what] = fault.number
        elif fault.kind == "step":
            self.clock.ahead += timedelta(seconds=fault.seconds)
        elif fault.kind == "aim":
            self.points.arm(fault.what, fault.number, partial(self._hit, fault))
        elif fault.kind in {"writes", "stores", "flaky"}:
            code, only = getattr(errno, fault.what), () if fault.kind == "writes" else CALLS_OF_SQLITE
            drawn = random.Random(f"flaky {self.script.seed} {fault.at}") if fault.kind == "flaky" else None
            failing = Failing(fault.process, fault.number, code, only, drawn=drawn)
            with self.disk.failing(failing):
                await self.clock.sleep(fault.seconds)
        else:
            await self._disconnect(fault)

    def _hit(self, fault: Fault, effect: str) -> None:
        """Carry out an aimed fault: its process has just passed the point."""
        self.loop.note("hit", fault.what)
        if effect == "crash":
            self._away[fault.process] = self.loop.time() + fault.seconds
            self.processes[fault.process].node.die_in = 1
        elif effect == "power":
            self.loop.call_soon(self._cut, fault, context=context_of(None))
        elif effect == "lose":
            self.loop.call_soon(self._break_all, context=context_of(None))
        else:
            self.disk.arm(Failing(fault.process, 1, getattr(errno, effect), most=1))

    def _cut(self, fault: Fault) -> None:
        """Cut the power: both processes die, and nothing is left that was not synced."""
        for name, process in self.processes.items():
            self._away[name] = self.loop.time() + fault.seconds
            process.die()
        self.disk.memory.cut(self.home.root, self._drawn)

    def _kill(self, fault: Fault) -> None:
        process = self.processes[fault.process]
        self._away[fault.process] = self.loop.time() + fault.seconds
        if fault.kind == "crash":
            process.die()
        else:
            process.node.die_in = fault.number

    async def _disconnect(self, fault: Fault) -> None:
        name = {"cut": "is_cut", "hang": "is_hung"}[fault.kind]
        for network in self.networks:
            setattr(network, name, True)
        if fault.kind == "cut":
            self._break_all()
        await self.clock.sleep(fault.seconds)
        for network in self.networks:
            setattr(network, name, False)
        self._break_all(only_hung=True)

    def _break_all(self, *, only_hung: bool = False) -> None:
        for network in self.networks:
            network.break_all(only_hung=only_hung)

    def _heal(self) -> None:
        """End all faults: from now on nothing may fail."""
        self.loop.note("healed")
        for network in self.networks:
            network.loses.clear()
            network.delays.may_be_long = False
        self.points.clear()
        self.disk.heal()
        self.loop.disk.may_be_long, self.receiver.is_well = False, True
        self._away.clear()
        self._healed.set()
        for process in self.processes.values():
            process.node.die_in = None

    async def _act(self, act: Act) -> None:
        await self._until(act.at)
        self.loop.note("act", act)
        await self.people.act(act)

    def _is_settled(self) -> bool:
        with opened(self.home.schedules_db) as store:
            fires: int = store.execute("SELECT count(*) FROM fires WHERE is_open").fetchone()[0]
        with opened(self.home.agent_db) as store:
            turns: int = store.execute(f"SELECT count(*) FROM turns WHERE status IN {_UNENDED}").fetchone()[0]
        inbox = self.home.inbox("agent0")
        if self.script.delivers and not is_settled(self.home):
            return False
        return not (fires or turns or [*inbox.glob("claimed/*.json"), *inbox.glob("inbox/*.json")])


@cache
def _migrated() -> dict[str, bytes]:
    """Return empty stores of the newest schema by their names: to make them takes longer than many a run."""
    with tempfile.TemporaryDirectory(dir=memory()) as folder:
        home = Home(root=Path(folder))
        home.create()
        paths = (home.schedules_db, home.agent_db, outbox_of(home))
        for path, migrations in zip(paths, (*STORES.values(), outbox.MIGRATIONS), strict=True):
            Database(path, migrations=migrations).close()
        return {path.name: path.read_bytes() for path in paths}


def _spec(task: Task) -> wire.TaskSpec:
    spec = wire.TaskSpec(
        name=task.name, category="loop", channel="general", prompt=PROMPTS[task.job], timezone="UTC",
        approval_timeout="45s",
    )  # fmt: skip
    if task.is_scheduled:
        spec.every, spec.catch_up, spec.grace = f"{task.every_s}s", task.catch_up, "10s"
    elif task.is_loop:
        spec.dynamic, spec.first, spec.if_silent = True, f"{task.every_s}s", f"{task.every_s}s"
    else:
        spec.on = task.on or "task.succeeded"
        spec.filters.extend([f"after={task.after}"] if task.after else [])
    if task.overlap:
        spec.overlap = task.overlap
    if task.retries:
        spec.retries = task.retries
    return spec


def _awaits(loop: Loop) -> Iterator[str]:
    """Yield the chain of awaits of each task whose process is alive."""
    for task in sorted(asyncio.all_tasks(loop), key=lambda task: task.get_name()):
        chain, awaited = [], task.get_coro()
        while awaited is not None and (frame := getattr(awaited, "cr_frame", None)) is not None:
            chain.append(f"{awaited.__qualname__}:{frame.f_lineno}")
            awaited = getattr(awaited, "cr_await", None)
        if chain:
            yield f"{task.get_name()}: {' > '.join(chain)}"


def run(script: Script, *, keep: bool = False) -> Outcome:
    """Run a script in a home of its own, and return what came of it."""
    _migrated()
    with tempfile.TemporaryDirectory(prefix="tk-simulation-", dir=memory()) as folder, _alone():
        world = World(Path(folder) / "h", script, keep=keep)
        asyncio.set_event_loop(world.loop)
        try:
            with (
                under_sqlite(world.disk),
                world.points.watched(),
                world.disk.memory.watched(),
                ids_of_checkpoints(world.clock, script.seed),
                reused(),
                statements(world.loop),
                world.receiver.receiving(),
                patch.object(os, "getpid", lambda: PID),
            ):
                world.loop.run_until_complete(world.main())
        except Stalled:
            world._wrong("S1", "nothing is scheduled any more")
        finally:
            world.loop.is_over = True
            asyncio.set_event_loop(None)
        counts = Counter(
            {
                "refused writes": world.disk.failed,
                "writes undone by power cuts": world.disk.memory.lost,
                "virtual seconds": round(world.loop.time()),
            }
        )
        counts += Counter(f"{fault.kind} faults" for fault in script.faults) + world.points.struck
        counts += sum((network.lost for network in world.networks), Counter())
        counts += Counter(f"deliveries: target {attempt.way}" for attempt in world.receiver.attempts)
        counts += Counter({f"passed {point}": count for point, count in world.points.passed.items() if keep})
        counts += Counter(f"{act.kind}s asked" for act in script.acts)
        names = Counter(event["event"] for event in world.events)
        counts += Counter({f"{name} events": names[name] for name in COUNTED})
        outcome = Outcome(script, world.violations, world.loop.trace.hexdigest(), world.loop.lines or [], counts)
        outcome.stuck, outcome.history = world.stuck, world.history
        _end(world)
        del world
    return outcome


def memory() -> str | None:
    """Return TMPDIR, or a folder in memory if there is one: a power cut is simulated, so that nothing needs a disk."""
    return os.environ.get("TMPDIR") or ("/dev/shm" if Path("/dev/shm").is_dir() else None)


@contextmanager
def _alone() -> Iterator[None]:
    """Collect no garbage during a run, so that the coroutines of dead processes run no `finally` before its end.

    What was there before the run is not looked at by the collections after it.
    """
    level = logging.getLogger("asyncio").level
    hook, sys.unraisablehook = sys.unraisablehook, lambda _error: None
    gc.disable()
    gc.freeze()
    logging.getLogger("asyncio").setLevel(logging.CRITICAL + 1)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
            gc.collect()
    finally:
        gc.unfreeze()
        gc.enable()
        sys.unraisablehook = hook
        logging.getLogger("asyncio").setLevel(level)


def _end(world: World) -> None:
    """Drop everything that the run has left, with the connections of dead processes."""
    for process in world.processes.values():
        process.node.is_dead = True
        process._kept.clear()
        process.parts = None
    for network in world.networks:
        network.calls.clear()
        network.server = None
    world.loop._ready.clear()
    world.loop._scheduled.clear()
    if hooks._WATCHES:  # a guard keeps its dead process, whose store has calls left
        hooks._WATCHES.clear()
        hooks._remove_hooks()
    gc.collect()
