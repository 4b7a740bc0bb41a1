"""The demonstration on several machines: the same story, while one process of each kind is killed every few seconds.

Two runners and three runtimes, each with its own home, share a temporary PostgreSQL server. A command runs in any home
whose daemon serves, like an author's command on any of the machines. A killed daemon is started again at once, as its
supervisor would do; meanwhile the other machines continue its work.
"""

import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from subprocess import CompletedProcess

from examples.demo import postgres
from examples.demo.driver import Driver, Record
from examples.demo.story import Stage, play
from turnkeeper.bus.event_log import read_events
from turnkeeper.config.home import Home
from turnkeeper.console import note
from turnkeeper.constellation.supervisor.daemons import AGENT_RUNTIME, TASK_RUNNER, Daemon, spawn
from turnkeeper.errors import TurnkeeperError, Unreachable
from turnkeeper.rpc.channel import is_serving
from turnkeeper.v1.schedules_pb2 import Fire

KINDS = (TASK_RUNNER, TASK_RUNNER, AGENT_RUNTIME, AGENT_RUNTIME, AGENT_RUNTIME)
KILL_S = 7.0
ROOM = {"max_connections": "100"}
CONFIG = '[store]\nurl = "{url}"\n[node]\nname = "{name}"\n'


class Machine(Driver):
    """A home and its only daemon.

    Attributes:
        name: its name for the other machines.
        daemon: the daemon that runs there.
        in_use: locked while a command runs there, and while its daemon is killed.
        pid: the pid of its daemon; 0 while there is none.
    """

    def __init__(self, home: Home, daemon: Daemon) -> None:
        super().__init__(home)
        self.name, self.daemon, self.in_use = home.root.name, daemon, threading.Lock()
        self.environ: dict[str, str] = {}
        self.pid = 0

    def begin(self) -> None:
        """Start its daemon. Return before it answers."""
        self.pid = spawn(self.home, self.daemon, self._environ | self.environ)

    def serves(self) -> bool:
        """Return True if its daemon answers."""
        return is_serving(self.home.socket(self.daemon.name))

    def end(self, number: int) -> int:
        """End its daemon by a signal. Return the pid of the daemon."""
        os.kill(self.pid, number)
        os.waitpid(self.pid, 0)
        ended, self.pid = self.pid, 0
        return ended


class ClusterStage(Stage):
    """The stage of the story: a temporary database, and the machines that share it."""

    beginning = "One PostgreSQL, two runners and three runtimes with a home each, some real input, two tasks"
    comes_back = "Its next process continues the turn, or another runtime does once the dead one's lease has expired."
    patience_s = 90.0

    def __init__(self, folder: Path, url: str) -> None:
        names = [f"{daemon.name}-{number}" for number, daemon in enumerate(KINDS, 1)]
        homes = [Home(root=folder / name) for name in names]
        super().__init__(homes[0])
        self.machines = [Machine(home, daemon) for home, daemon in zip(homes, KINDS, strict=True)]
        self._url, self._over = url, threading.Event()
        self._killer = threading.Thread(target=self._kill_for_ever, daemon=True)
        self.killed = 0

    def type(self, *argv: str, **environ: str) -> None:
        """Run a command on a ready machine, or run `init`, `up` and `down` on each machine. Show it with its output."""
        if argv[0] != "turnkeeper":
            super().type(*argv, **environ)
            return
        self._prompt(f"{' '.join(argv)}    # on each of {len(self.machines)} machines")
        {"init": self._init, "up": self._up, "down": self._down}[argv[1]](environ)

    def attempt(self, *argv: str, **environ: str) -> "CompletedProcess[str]":
        """Run a command on a machine whose daemon answers it."""
        with self._serving(argv[0]) as machine:
            return machine.attempt(*argv, **environ)

    def fires(self, task: str) -> list[Fire]:
        """Ask any runner for the fires of a task."""
        with self._serving(TASK_RUNNER.name) as machine:
            return machine.fires(task)

    def kill(self, daemon: Daemon) -> int:
        """Kill the runtime that began the newest turn. Return its pid."""
        newest = [event["pid"] for event in self.events() if event["event"] == "turn.started"][-1]
        machine = next((m for m in self.machines if m.daemon is daemon and m.pid == newest), self.machines[-1])
        return self._kill(machine)

    def events(self) -> list[Record]:
        """Return the events of all machines' trails in order of time."""
        found = [event for machine in self.machines for event in read_events(machine.home.logs)]
        return sorted(found, key=lambda event: event["at"])

    def close(self) -> None:
        """End every process."""
        self._stop_killing()
        for machine in self.machines:
            if machine.pid:
                machine.end(signal.SIGKILL)

    def _init(self, _environ: dict[str, str]) -> None:
        for machine in self.machines:
            machine.home.create()
            machine.home.config.write_text(CONFIG.format(url=self._url, name=machine.name))

    def _up(self, environ: dict[str, str]) -> None:
        for machine in self.machines:
            machine.environ |= environ
            machine.begin()
        self.until("the machines to answer", lambda: all(machine.serves() for machine in self.machines))
        if not self._over.is_set():
            self._killer.start()

    def _down(self, _environ: dict[str, str]) -> None:
        self._stop_killing()
        for machine in self.machines:
            os.kill(machine.pid, signal.SIGTERM)
        for machine in self.machines:
            machine.end(signal.SIGTERM)

    def _all_serve(self) -> bool:
        return self._over.is_set() or all(machine.serves() for machine in self.machines)

    def _stop_killing(self) -> None:
        self._over.set()
        if self._killer.is_alive():
            self._killer.join()

    def _kill_for_ever(self) -> None:
        """Kill a runner and a runtime every few seconds, in turns, and start them again."""
        number = 0
        while not self._over.wait(KILL_S):
            # A busy machine starts them slowly, so more frequent kills would leave the cluster down.
            if not self._clock.poll(self._all_serve, timeout_s=KILL_S, every_s=0.2):
                continue
            for kind in (TASK_RUNNER, AGENT_RUNTIME):
                its = [machine for machine in self.machines if machine.daemon is kind]
                machine = its[number % len(its)]
                self._prompt(f"kill -9 {self._kill(machine)}    # {machine.name}, as every few seconds")
            number += 1

    def _kill(self, machine: Machine) -> int:
        with machine.in_use:
            pid = machine.end(signal.SIGKILL)
            machine.begin()
        self.killed += 1
        return pid

    @contextmanager
    def _serving(self, program: str) -> Iterator[Machine]:
        """Yield a machine whose daemon answers, and prevent kills of the daemon meanwhile."""

        def free() -> Machine | None:
            for machine in (m for m in self.machines if m.daemon.name == program):
                if machine.in_use.acquire(blocking=False):
                    if machine.serves():
                        return machine
                    machine.in_use.release()
            return None

        machine = self._clock.poll(free, timeout_s=self.patience_s, every_s=0.05)
        if machine is None:
            raise Unreachable("none of the machines answers", where=program)
        try:
            yield machine
        finally:
            machine.in_use.release()


def perform(*, keep: bool) -> bool:
    """Play the story on several machines. Return True if every claim was true.

    Raises:
        TurnkeeperError: PostgreSQL is not installed.
    """
    binaries = postgres.find_binaries()
    if binaries is None:
        hint = "install its packages (make test-services), or run: make demo"
        raise TurnkeeperError("PostgreSQL is not installed on this machine", where="postgres", hint=hint)
    folder = Path(tempfile.mkdtemp(prefix="turnkeeper-"))
    with ExitStack() as stack:
        stack.callback(note, f"kept: {folder}") if keep else stack.callback(shutil.rmtree, folder)
        server = postgres.Server(binaries, ROOM)
        stack.callback(server.stop)
        stage = ClusterStage(folder, server.create())
        stack.callback(stage.close)
        play(stage)
    stage.claim(f"all of this while {stage.killed} processes were killed", stage.killed > 0)
    stage.act("Claims")
    return stage.recall()
