"""The machines of a test's constellation: one, or two that share a database.

With two machines, commands and surfaces use the first, which plans. The other runs the turns.
"""

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psycopg

from tests.support.constellation import AGENT_RUNTIME, Constellation, Daemon
from tests.support.postgres import Server
from turnkeeper.bus.event_log import read_events
from turnkeeper.config.home import Home
from turnkeeper.storage.locking import is_held


class TwoMachines(Constellation):
    """Two machines: one takes the commands, the other runs the turns. `runtime` means both runtimes.

    Attributes:
        worker: the machine that runs the turns.
        url: the database that they share.
    """

    def __init__(self, front: Home, url: str, environ: Mapping[str, str] = os.environ) -> None:
        super().__init__(front, environ)
        worker = Home(root=front.root.parent / "worker")
        worker.create()
        self.worker, self.url = Constellation(worker, environ), url
        for home, role in ((front, "runner"), (worker, "runtime")):
            Constellation(home).command("turnkeeper", "init")
            _share(home, url, role)

    @property
    def homes(self) -> tuple[Home, ...]:
        """The homes of the first machine, and of the one that runs the turns."""
        return self.home, self.worker.home

    @property
    def at_work(self) -> Constellation:
        """The machine that runs the turns."""
        return self.worker

    def start(self, *daemons: Daemon, **environ: str) -> None:
        """Start daemons. For the runtime, start each machine's that does not run."""
        super().start(*daemons, **environ)
        if AGENT_RUNTIME in (daemons or [AGENT_RUNTIME]):
            self.worker.start(AGENT_RUNTIME, **environ)

    def stop(self, *daemons: Daemon) -> None:
        """Stop daemons. For the runtime, stop it on each machine."""
        if AGENT_RUNTIME in (daemons or [AGENT_RUNTIME]):
            self.worker.stop(*[AGENT_RUNTIME] if daemons else [])
        super().stop(*daemons)
        told = {record["event"] for record in read_events(self.home.logs)}
        assert "turn.started" not in told, "the machine that is asked runs no turn"

    def kill(self, daemon: Daemon) -> int:
        """End a daemon by kill -9, the runtime on each machine. Return the pid that the first one had."""
        killed = super().kill(daemon)
        if daemon == AGENT_RUNTIME:
            self.kill_worker()
        return killed

    def kill_worker(self) -> None:
        """End the runtime that runs the turns by kill -9, and expire its lease."""
        self.worker.kill(AGENT_RUNTIME)
        self._end_leases()

    def silence(self, name: str, seconds: int) -> None:
        """Make the database believe that a dead machine has been silent longer."""
        with psycopg.connect(self.url, autocommit=True) as database:
            database.execute(
                "UPDATE runner.nodes SET beat_us = beat_us - %s WHERE name = %s", (seconds * 1_000_000, name)
            )

    def until_dead(self, daemon: Daemon) -> None:
        """Wait for a daemon that is about to die by itself, on either machine."""
        self.until(f"{daemon.name} to die", lambda: not all(is_held(home, daemon.name) for home in self._homes(daemon)))
        self._end_leases()

    def _homes(self, daemon: Daemon) -> tuple[Home, ...]:
        return self.homes if daemon == AGENT_RUNTIME else (self.home,)

    def _end_leases(self) -> None:
        """Expire the leases of owners that are gone. A running owner joins again."""
        with psycopg.connect(self.url, autocommit=True) as database:
            database.execute("UPDATE runtime.owners SET until_us = 0")


def _share(home: Home, url: str, role: str) -> None:
    """Write the shared database into the config of a home."""
    said = home.config.read_text()
    for section, values in (("store", f'url = "{url}"\n'), ("node", f'name = "{role}"\nroles = ["{role}"]\n')):
        assert said.count(f"[{section}]\n") == 1
        said = said.replace(f"[{section}]\n", f"[{section}]\n{values}")
    home.config.write_text(said)


@contextmanager
def new_home() -> Iterator[Home]:
    """Create a home, at a path short enough for sockets."""
    folder = Path(tempfile.mkdtemp(prefix="tk-"))
    made = Home(root=folder / "home")
    made.create()
    yield made
    shutil.rmtree(folder)


@contextmanager
def constellation_on(server: Server | None, home: Home) -> Iterator[Constellation]:
    """Create a home, or two that share a server's database. Nothing runs yet; the end stops everything."""
    with ExitStack() as stack:
        if server is None:
            made = Constellation(home)
            made.command("turnkeeper", "init")
        else:
            url = server.create()
            stack.callback(server.drop, url)
            made = TwoMachines(home, url)
        stack.callback(made.stop)
        yield made
