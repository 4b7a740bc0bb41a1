"""Rounds of kill -9 on the real daemons while tasks fire, then what was promised is held against what happened.

Run as `python -m tests.integration.lifecycle.rounds --rounds 10 --seed N [--home DIR]`; exits with 1 on a violation.
Each round kills the runtime, the runner, the supervisor and then all three, each after a random pause, and goes on
once both tasks have run to their ends again. Where the supervisor is gone, the heartbeat that a timer would give
(`turnkeeper watchdog tick`) is what brings it back.
"""

import argparse
import os
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from examples.demo.driver import OPEN
from tests.support.constellation import AGENT_RUNTIME, TASK_RUNNER, Constellation
from tests.support.seeded_entropy import SeededEntropy
from turnkeeper.bus.event_log import read_events
from turnkeeper.clock import SystemClock
from turnkeeper.config.home import Home
from turnkeeper.constellation.supervisor.daemons import SUPERVISOR, process_of
from turnkeeper.errors import Unreachable

TASKS = {"every-second": ("1s", "run-all"), "every-other": ("2s", "run-once")}
VICTIMS = {
    "runtime": (AGENT_RUNTIME,),
    "runner": (TASK_RUNNER,),
    "supervisor": (SUPERVISOR,),
    "all": (SUPERVISOR, AGENT_RUNTIME, TASK_RUNNER),
}
# The shortest waits that the settings take; a window that short keeps the pauses between restarts short, too.
SETTINGS = "[watchdog]\ninterval_s = 1\nrestarts = 1000\nfailed_starts = 100\nwindow_s = 5\n"
PATIENCE_S = 120.0


class Rounds:
    """Rounds on one home; the same seed kills in the same order after the same pauses."""

    def __init__(self, home: Home, seed: int) -> None:
        # An answer that takes a while is what a kill can fall into.
        environ = os.environ | {"TURNKEEPER_OFFLINE_DELAY_S": "0.1"}
        self._constellation = Constellation(home, environ, installed=True)
        self._home = home
        self._clock = SystemClock()
        self._entropy = SeededEntropy(seed)

    def begin(self) -> None:
        """Start everything, and tasks that fire every second or two."""
        self._constellation.command("turnkeeper", "init")
        self._home.config.write_text(SETTINGS)
        self._constellation.command("turnkeeper", "up")
        for name, (every, catch_up) in TASKS.items():
            options = ("--every", every, "--catch-up", catch_up)
            self._constellation.create(name, *options, channel=name)
        self._until_more(dict.fromkeys(TASKS, 0))

    def round(self, number: int) -> None:
        """Kill each in turn and then all, each time until work goes on."""
        for whom, victims in VICTIMS.items():
            self._clock.block(self._entropy.uniform(0.0, 2.0))
            before, began = self._succeeded(), self._clock.monotonic()
            pids = [process.pid for daemon in victims if (process := process_of(self._home, daemon))]
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if SUPERVISOR in victims:
                self._constellation.until("its end", lambda: process_of(self._home, SUPERVISOR) is None)
                self._constellation.attempt("turnkeeper", "watchdog", "tick")
            self._until_more(before)
            took = self._clock.monotonic() - began
            say(f"round {number}: killed {whom} (pids {' '.join(map(str, pids))}); work went on after {took:.1f}s")

    def end(self) -> list[str]:
        """Let everything run to its end and return what was broken."""
        for name in TASKS:
            self._constellation.command("task-runner", "disable", name)
        for name in TASKS:
            self._constellation.until(f"{name} to settle", lambda name=name: self._settled(name), PATIENCE_S)
        return [f"{found.invariant}: {found.what}" for found in self._constellation.violations()]

    def tell(self) -> None:
        """Say what the trail and the ledger tell of it."""
        counts = Counter(event["event"] for event in read_events(self._home.logs) if event["process"] == "watchdog")
        say(", ".join(f"{name} {count}" for name, count in sorted(counts.items())))
        for name in TASKS:
            outcomes = Counter(entry["outcome"] for entry in self._constellation.history(name))
            say(f"{name}: {', '.join(f'{outcome} {count}' for outcome, count in sorted(outcomes.items()))}")
        done = self._constellation.attempt("turnkeeper", "status")
        say(f"status (exit {done.returncode}):\n{done.stdout}{done.stderr}")

    def stop(self) -> None:
        """End every process of the home."""
        self._constellation.command("turnkeeper", "down")

    def _settled(self, name: str) -> bool:
        return not any(fire.outcome in OPEN for fire in self._constellation.fires(name))

    def _until_more(self, before: Mapping[str, int]) -> None:
        """Wait until each task has succeeded twice more: the first may have been decided before the kill."""

        def more() -> bool:
            try:
                now = self._succeeded()
            except Unreachable:
                return False  # the runner is down: it was killed
            return all(now[name] >= count + 2 for name, count in before.items())

        self._constellation.until("work to go on", more, PATIENCE_S)

    def _succeeded(self) -> dict[str, int]:
        counts = {}
        for name in TASKS:
            fires = self._constellation.fires(name)
            counts[name] = sum(fire.outcome == "succeeded" for fire in fires)
        return counts


def say(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main(argv: list[str]) -> int:
    """Run the rounds; return 1 if a promise was broken."""
    parser = argparse.ArgumentParser(description="kill -9 in rounds, then the checker")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--home", type=Path)
    given = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="tk-rounds-") as folder:
        rounds = Rounds(Home(root=given.home or Path(folder) / "home"), given.seed)
        try:
            rounds.begin()
            for number in range(1, given.rounds + 1):
                rounds.round(number)
            broken = rounds.end()
            rounds.tell()
        finally:
            rounds.stop()
    say("\n".join(broken) or f"{given.rounds} rounds with seed {given.seed}: no violation")
    return bool(broken)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
