"""A home whose daemons are stand-ins: real processes, locks and signals, without the weight of the real ones."""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from tests.support.restarted import RESTARTER
from tests.support.standin import STANDINS
from tests.support.supervised import SUPERVISED
from turnkeeper.bus.event_log import read_events
from turnkeeper.clock import SystemClock
from turnkeeper.config.home import Home
from turnkeeper.constellation.inspect.condition import findings
from turnkeeper.constellation.supervisor import markers
from turnkeeper.constellation.supervisor.daemons import Daemon, process_of, process_with, spawn
from turnkeeper.constellation.supervisor.escalation import Routes
from turnkeeper.constellation.supervisor.markers import Revive, clear_marker, found, read_marker, recall
from turnkeeper.constellation.supervisor.policy import Limits
from turnkeeper.constellation.supervisor.watchdog import Orders, Watchdog, write_orders
from turnkeeper.entropy import SystemEntropy

RUNTIME, RUNNER = STANDINS
PATIENCE_S = 60.0


class Supervised:
    """Stand-ins under a supervisor on one home."""

    def __init__(self, home: Home) -> None:
        self.home = home
        self.clock = SystemClock()
        self._supervisors: list[int] = []

    def want(self, *, command: str = "", webhook: str = "", announce: bool = False, **limits: Any) -> None:
        routes = Routes(command=command, webhook=webhook, announce=announce)
        orders = Orders(limits=Limits(**limits), routes=routes)
        write_orders(self.home, orders, self.clock.now())

    def watchdog(self) -> Watchdog:
        """A watchdog that ticks when the test says so; what it starts are children of the test."""
        return Watchdog(
            self.home,
            clock=self.clock,
            entropy=SystemEntropy(),
            environ=os.environ,
            daemons=STANDINS,
            child=RESTARTER,
        )

    def supervise(self, **environ: str) -> int:
        pid = spawn(self.home, SUPERVISED, os.environ | environ)
        self._supervisors.append(pid)
        self.until(lambda: process_of(self.home, SUPERVISED) or process_with(pid, SUPERVISED) is None)
        return pid

    def until(self, probe: Callable[[], Any]) -> Any:
        deadline = self.clock.monotonic() + PATIENCE_S
        while not (answer := probe()):
            assert self.clock.monotonic() < deadline, f"waited in vain: {self.events()[-5:]} {self.conditions()}"
            self.clock.block(0.02)
        return answer

    def pid(self, daemon: Daemon) -> int | None:
        process = process_of(self.home, daemon)
        return process.pid if process else None

    def until_up(self, daemon: Daemon, *, other_than: int | None = None) -> int:
        pid: int = self.until(lambda: (found := self.pid(daemon)) != other_than and found)
        self.until(lambda: (markers.PROGRESS.at(self.home, process=daemon.name)).exists())
        return pid

    def kill(self, *daemons: Daemon) -> None:
        for daemon in daemons:
            with suppress(ProcessLookupError):
                os.kill(self.pid(daemon) or 0, signal.SIGKILL) if self.pid(daemon) else None

    def flag(self, daemon: Daemon, what: str) -> Any:
        return self.home.root / f"{daemon.name}.{what}"

    def marker(self, kind: markers.Kind, daemon: Daemon) -> Any:
        return read_marker(kind.at(self.home, process=daemon.name))

    def events(self, name: str = "") -> list[dict[str, Any]]:
        return [event for event in read_events(self.home.logs) if not name or event["event"] == name]

    def conditions(self) -> list[str]:
        return [str(finding) for finding in findings(self.home, self.clock.now().timestamp())]

    def statuses(self) -> list[dict[str, Any]]:
        return [says for path in found(self.home, markers.STATUS) if isinstance(says := read_marker(path), dict)]

    def end(self) -> None:
        clear_marker(markers.WANTED.at(self.home))
        for pid in self._supervisors:
            with suppress(ProcessLookupError, ChildProcessError):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
        for daemon in STANDINS:
            self.kill(daemon)
            revive = recall(self.home, daemon.name).revive
            pid = revive.pid if isinstance(revive, Revive) else None
            if pid is not None and process_with(pid, daemon) is not None:
                os.kill(pid, signal.SIGKILL)


@pytest.fixture
def supervised(home: Home) -> Iterator[Supervised]:
    made = Supervised(home)
    yield made
    made.end()
