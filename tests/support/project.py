"""The process of an author's project, started as the supervisor does."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.program import PROJECT
from turnkeeper.clock import SystemClock
from turnkeeper.config.home import Home
from turnkeeper.constellation.supervisor.daemons import log_of
from turnkeeper.rpc.process import last_beat


class Project:
    """The running process.

    Attributes:
        pid: of the process.
    """

    def __init__(self, home: Home) -> None:
        self.home = home

    def start(self, **environ: str) -> None:
        """Start the process with more variables. Return once it serves."""
        log, argv = log_of(self.home, PROJECT), [sys.executable, "-P", "-m", PROJECT.package, str(self.home.root)]
        self.home.logs.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as output:
            self._process = subprocess.Popen(argv, stdout=output, stderr=output, env={**os.environ, **environ})
        self.pid = self._process.pid

        def serves() -> bool:
            beat = last_beat(self.home, PROJECT.name)
            return (beat is not None and beat.pid == self.pid) or self._process.poll() is not None

        assert SystemClock().poll(serves, timeout_s=60, every_s=0.02)
        if self._process.poll() is not None:
            raise AssertionError(log.read_text())

    def kill(self) -> None:
        """End the process as a crash does."""
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """End the process as the supervisor does."""
        self._process.terminate()
        self._process.wait()


@contextmanager
def project_of(home: Home, *, is_served: bool = True) -> Iterator[Project]:
    """Run the process, if it is served."""
    project = Project(home)
    if is_served:
        project.start()
    try:
        yield project
    finally:
        if is_served:
            project.stop()
