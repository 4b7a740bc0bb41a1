"""Errors of the machine that come and go, on several homes at once; then what was due is held against what happened.

Run as `python -m tests.integration.lifecycle.intermittent --runs 60 --seed N [--at-once 2]`; `make chaos` runs it, too.
In each run every n-th call of one kind (`pwrite64`, `fsync`, `fdatasync`, `openat`) of one process fails with EIO, ENOSPC
or EMFILE for 5 to 20 seconds, while tasks fire. It exits with 1 if a minute later something that was due is open, a
fire was lost, doubled or charged with a failed attempt, an envelope was quarantined, or a daemon had to be restarted.
"""

import argparse
import os
import shutil
import sys
import tempfile
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from subprocess import CompletedProcess

from examples.demo.driver import OPEN
from tests.support import faults
from tests.support.constellation import Constellation
from tests.support.seeded_entropy import SeededEntropy
from turnkeeper.clock import SystemClock
from turnkeeper.config.home import Home
from turnkeeper.constellation.supervisor.daemons import DAEMONS, SUPERVISOR, Daemon, log_of, process_of
from turnkeeper.errors import TurnkeeperError

CALLS = ("pwrite64", "fsync", "fdatasync", "openat")
ERRORS = ("EIO", "ENOSPC", "EMFILE")
PROCESSES = (*DAEMONS, SUPERVISOR)
TASKS = {"every-second": "1s", "every-other": "2s", "every-third": "3s"}
HEALED_S = 60.0
NAMES = (*TASKS, "loops")


@dataclass(frozen=True)
class Run:
    """One fault: every `step`-th call fails, from the `first` on, for so many seconds."""

    daemon: Daemon
    call: str
    error: str
    first: int
    step: int
    seconds: float

    def __str__(self) -> str:
        where = f"{self.call} of {self.daemon.name}"
        return f"{self.error} on {where}, when={self.first}+{self.step}, for {self.seconds:.0f}s"


def planned(seed: int, runs: int) -> list[Run]:
    """Return the faults of a seed: each kind comes about equally often."""
    entropy = SeededEntropy(seed)

    def below(limit: int) -> int:
        return int(entropy.uniform(0, limit))

    kinds = [(daemon, call, error) for daemon in PROCESSES for call in CALLS for error in ERRORS]
    found: list[Run] = []
    while len(found) < runs:
        left = list(kinds)
        while left and len(found) < runs:
            daemon, call, error = left.pop(below(len(left)))
            found.append(Run(daemon, call, error, 1 + below(4), 1 + below(5), entropy.uniform(5, 20)))
    return found


class Loaded:
    """One home under load, through one fault after another."""

    def __init__(self, home: Home) -> None:
        self.home = home
        self.installed = Constellation(home, installed=True)
        self.constellation = Constellation(home)  # what only asks and tells runs in this process
        self._clock = SystemClock()

    def begin(self) -> None:
        """Start everything, and the load."""
        run = self.installed.command
        run("turnkeeper", "init")
        self.home.config.write_text("[watchdog]\ninterval_s = 1\nrestarts = 1000\nfailed_starts = 100\nwindow_s = 5\n")
        run("turnkeeper", "up")
        for name, every in TASKS.items():
            self.constellation.create(name, "--every", every, "--catch-up", "run-all", channel=name)
        run("task-runner", "loop", "create", "3s", "Say what is new", "--name", "loops")

    def suffer(self, run: Run) -> list[str]:
        """Make one fault; return what is wrong a minute after it."""
        for name in NAMES:
            self.constellation.command("task-runner", "enable", name)
        before = self._pids()
        process = process_of(self.home, run.daemon)
        if process is None:
            return [f"{run.daemon.name} was not running"]
        with faults.failing(process.pid, run.call, f"{run.error}:when={run.first}+{run.step}", ()):
            self._clock.block(run.seconds)
        return [*self._unhealed(), *self._charged(), *self._restarted(before)]

    def _unhealed(self) -> list[str]:
        """Disable the tasks and wait until nothing of them is open."""
        wrong = []
        for name in NAMES:
            with suppress(TurnkeeperError):
                self.constellation.until("a disable", lambda name=name: self._disabled(name), HEALED_S)
        for name in NAMES:
            try:
                self.constellation.until("it to settle", lambda name=name: not self._open(name), HEALED_S)
            except TurnkeeperError as error:
                wrong.append(f"{name}: {len(self._open(name))} fires are open: {error}")
        with suppress(TurnkeeperError):  # a daemon says at its next beat that it is well
            self.constellation.until("a good status", lambda: self._status().returncode == 0, HEALED_S)
        status = self._status()
        return wrong + ([f"status: {status.stdout}{status.stderr}"] if wrong or status.returncode else [])

    def _charged(self) -> list[str]:
        """Return what was counted against a task, and what breaks an invariant."""
        wrong = [f"{found.invariant}: {found.what}" for found in self.constellation.violations()]
        for name in NAMES:
            wrong += [
                f"{name}: {fire['fire_id']} {fire['outcome']}, attempt {fire.get('attempt')}"
                for fire in self.constellation.ask("task-runner", "history", name, "-n", "1000")
                if fire["outcome"] not in {"succeeded", "coalesced", "skipped"} or fire.get("attempt", 1) > 1
            ]
        aside = [str(path) for path in self.home.root.rglob("quarantine/*.json")]
        return wrong + [f"quarantined: {path}" for path in aside]

    def _restarted(self, before: dict[str, int]) -> list[str]:
        """Return which daemons had to be started again, and tracebacks in their logs."""
        wrong = [f"{name} was restarted" for name, pid in self._pids().items() if before.get(name) not in (None, pid)]
        for daemon in PROCESSES:
            text = log_of(self.home, daemon).read_text(errors="replace")
            if "Traceback" in text:
                wrong.append(f"a traceback in the log of {daemon.name}: {text[-1500:]}")
                log_of(self.home, daemon).write_text("")
        return wrong

    def _status(self) -> "CompletedProcess[str]":
        return self.constellation.attempt("turnkeeper", "status")

    def _disabled(self, name: str) -> bool:
        return self.constellation.attempt("task-runner", "disable", name).returncode == 0

    def _open(self, name: str) -> list[str]:
        return [fire.fire_id for fire in self.constellation.fires(name) if fire.outcome in OPEN]

    def _pids(self) -> dict[str, int]:
        found = {daemon.name: process_of(self.home, daemon) for daemon in PROCESSES}
        return {name: process.pid for name, process in found.items() if process is not None}


def say(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def through(folder: Path, runs: list[Run]) -> int:
    """Take one home through its faults; return in how many runs something was wrong."""
    under_load, bad = Loaded(Home(root=folder)), 0
    try:
        under_load.begin()
        for run in runs:
            wrong = under_load.suffer(run)
            bad += bool(wrong)
            say(f"{'WRONG' if wrong else 'well '} {run}" + "".join(f"\n    {each}" for each in wrong[:8]))
            if wrong:  # the next run begins on a home in order
                under_load.installed.stop()
                shutil.rmtree(folder)
                under_load = Loaded(Home(root=folder))
                under_load.begin()
    finally:
        under_load.installed.stop()
    return bad


def main(argv: list[str]) -> int:
    """Run the faults; return 1 if something was wrong after one."""
    parser = argparse.ArgumentParser(description="errors of the machine that come and go, then the checker")
    parser.add_argument("--runs", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--at-once", type=int, default=2, help="homes side by side")
    given = parser.parse_args(argv)
    if lacking := faults.missing():
        say(f"cannot run here: {lacking}")
        return 1
    runs = planned(given.seed, given.runs)
    os.environ["TURNKEEPER_OFFLINE_DELAY_S"] = "0.1"
    with tempfile.TemporaryDirectory(prefix="tk-") as folder, ProcessPoolExecutor(given.at_once) as pool:
        shares = [runs[number :: given.at_once] for number in range(given.at_once)]
        homes = [Path(folder) / f"h{number}" for number in range(given.at_once)]
        bad = sum(pool.map(through, homes, shares))
    kinds = Counter(f"{run.error} on {run.call}" for run in runs)
    say(f"{len(runs)} runs with seed {given.seed}: {bad} wrong; " + ", ".join(f"{n} {k}" for k, n in kinds.items()))
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
