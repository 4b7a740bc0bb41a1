"""Mixed faults of the machine under a mixed load on a small disk; then what was promised is held against what happened.

Run as `python -m tests.integration.lifecycle.chaos --minutes 5 --seed N [--pages 50]`, or `make chaos MINUTES=5`; exits
with 1 if something was lost, doubled, left standing or answered with a traceback. For so long, on a home of 24 MB: the
disk is filled and freed, reads and writes of the stores fail (EIO, ENOSPC, EROFS), descriptors run out (EMFILE),
sockets are removed and daemons are killed, while tasks fire, loops run, messages come and approvals wait. All
commands are tried during each fault. Afterwards pages of each store are damaged one by one: a daemon that starts on one
either does its work or names the file.
"""

import argparse
import os
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import psutil

from examples.demo.driver import OPEN
from tests.integration.lifecycle import test_damaged_stores as damaged
from tests.support import faults
from tests.support.constellation import AGENT_RUNTIME, TASK_RUNNER, Constellation
from tests.support.seeded_entropy import SeededEntropy
from turnkeeper.bus.event_log import read_events
from turnkeeper.clock import SystemClock
from turnkeeper.config.home import Home
from turnkeeper.constellation.supervisor.daemons import DAEMONS, SUPERVISOR, log_of, process_of
from turnkeeper.errors import TurnkeeperError

DISK_MB = 24
FILLS = 10
TASKS = {"every-second": ("1s", "run-all"), "every-other": ("2s", "run-once")}
ASKING = "Summarise the garden, then remember: the pump was replaced"
SETTINGS = """
[watchdog]
interval_s = 1
restarts = 1000
failed_starts = 100
window_s = 5
command = 'echo "$TURNKEEPER_TEXT" >> {pages}'
"""
COMMANDS: tuple[tuple[str, ...], ...] = (
    ("turnkeeper", "status"),
    ("turnkeeper", "doctor"),
    ("task-runner", "list"),
    ("task-runner", "history", "every-second"),
    ("task-runner", "create", "one-more", "--in", "1h", "--category", "loop", "--channel", "general", "--prompt", "x"),
    ("task-runner", "pause", "spare"),
    ("task-runner", "enable", "spare"),
    ("task-runner", "emit", "garden.watered"),
    ("task-runner", "delete", "one-more"),
    ("agent-runtime", "send", "chat", "What is new?"),
    ("agent-runtime", "turns", "list"),
    ("agent-runtime", "approvals", "list"),
    ("agent-runtime", "approvals", "resolve", "no-such-approval", "--approve"),
    ("agent-runtime", "conversation", "show", "chat"),
)
_FAILURES = (
    ("EIO", faults.READS), ("EIO", faults.WRITES), ("ENOSPC", faults.WRITES), ("EROFS", faults.WRITES),
)  # fmt: skip
EXPECTED = frozenset({0, 1, 3, 4, 5, 6})
PATIENCE_S = 90.0


class Chaos:
    """Faults on one home; the same seed makes the same faults in the same order."""

    def __init__(self, home: Home, seed: int, *, fault_s: float = 3.0) -> None:
        environ = os.environ | {"TURNKEEPER_OFFLINE_DELAY_S": "0.1"}
        self.home = home
        self.constellation = Constellation(home, environ)
        self.pages = home.root.parent / "pages"
        self.wrong: list[str] = []
        self._fault_s = fault_s
        self._clock, self._entropy = SystemClock(), SeededEntropy(seed)
        self._tried = 0

    def begin(self) -> None:
        """Start everything, and a load of every kind."""
        run = self.constellation.command
        run("turnkeeper", "init")
        self.home.config.write_text(SETTINGS.format(pages=self.pages))
        run("turnkeeper", "up")
        for name, (every, catch_up) in TASKS.items():
            self.constellation.create(name, "--every", every, "--catch-up", catch_up, channel=name)
        self.constellation.create("spare", "--cron", "0 7 * * *")
        self.constellation.create("asks", "--every", "10s", "--prompt", ASKING, channel="asks")
        run("task-runner", "loop", "create", "3s", "Say what is new", "--name", "loops")
        self._until_more(dict.fromkeys(TASKS, 0))

    def faults(self) -> dict[str, Callable[[], AbstractContextManager[object]]]:
        """Return the faults by name; each lasts as long as its block."""
        runtime = (self.home.agent_db, self.home.checkpoints_db)
        found: dict[str, Callable[[], AbstractContextManager[object]]] = {"full disk": self._full}
        for daemon, stores in ((AGENT_RUNTIME, runtime), (TASK_RUNNER, (self.home.schedules_db,))):
            for error, calls in _FAILURES:
                what = "reads" if calls == faults.READS else "writes"
                found[f"{error} on {what} of {daemon.name}"] = lambda d=daemon, s=stores, e=error, c=calls: (
                    self._failing(d, s, e, c)  # type: ignore[misc]
                )
            found[f"EMFILE in {daemon.name}"] = lambda d=daemon: faults.without_descriptors(self._pid(d))  # type: ignore[misc]
            found[f"socket of {daemon.name} removed"] = lambda d=daemon: self._without_socket(d)  # type: ignore[misc]
        for daemon in (*DAEMONS, SUPERVISOR):
            found[f"{daemon.name} killed"] = lambda d=daemon: self._killed(d)  # type: ignore[misc]
        return found

    def suffer(self, name: str, fault: Callable[[], AbstractContextManager[object]]) -> None:
        """Let one fault last a while, try commands meanwhile, and wait until work goes on by itself."""
        before, began = self._succeeded(), self._clock.monotonic()
        with ExitStack() as lasting:
            try:
                lasting.enter_context(fault())
            except (psutil.Error, LookupError):
                return  # the process has just died of the fault before, and is about to be there again
            until = self._clock.monotonic() + self._fault_s
            while self._clock.monotonic() < until:
                self._try_next_command(name)
                self._clock.block(0.05)
        ended = self._clock.monotonic()
        try:
            self._until_more(before)
        except TurnkeeperError as error:
            self.wrong.append(f"after {name}: {error}; {self._said('turnkeeper', 'status')}")
        took = self._clock.monotonic() - ended
        say(f"{name}: for {ended - began:.1f}s; work went on {took:.1f}s later")

    def end(self) -> None:
        """Answer what waits, let everything run to its end, and hold the history against the promises."""
        for name in (*TASKS, "asks", "loops"):
            self.constellation.command("task-runner", "disable", name)
        for name in (*TASKS, "asks", "loops"):
            with suppress(TurnkeeperError):
                self.constellation.until(f"{name} to settle", lambda name=name: self._settled(name), PATIENCE_S)
        self.wrong += [f"{found.invariant}: {found.what}" for found in self.constellation.violations()]
        done = self.constellation.attempt("turnkeeper", "status")
        if done.returncode:
            self.wrong.append(f"status exits with {done.returncode} after all: {done.stdout}{done.stderr}")
        for daemon in (*DAEMONS, SUPERVISOR):
            text = log_of(self.home, daemon).read_text(errors="replace")
            if "Traceback" in text:
                self.wrong.append(f"a traceback in the log of {daemon.name}: {text[-1500:]}")

    def damage(self, pages: int) -> Counter[str]:
        """Damage pages of each store one by one; return how many were found out, and how many hold nothing."""
        found: Counter[str] = Counter()
        self.constellation.command("turnkeeper", "down")
        for path, daemon in damaged.stores(self.home).items():
            whole = path.read_bytes()
            for number in range(pages):
                damaged.garble(path, int(self._entropy.uniform(0, len(whole) // damaged.PAGE)))
                said = damaged.start(self.constellation, daemon)
                found["refused" if said else "served"] += 1
                if said and not said.startswith(f"error: {path}: "):
                    self.wrong.append(f"{path.name}, damage {number}: {said}")
                for left in path.parent.glob(f"{path.name}[-.]*"):
                    left.unlink()
                path.write_bytes(whole)
        return found

    def tell(self) -> None:
        counts = Counter(event["event"] for event in read_events(self.home.logs))
        named = ("machine.trouble", "store.trouble", "turn.trouble", "daemon.started", "fire.refused", "run.repaired")
        say(", ".join(f"{name} {counts[name]}" for name in named))
        say(f"{self._tried} commands; alerts sent: {len(self.alerts())}")

    def alerts(self) -> list[str]:
        return self.pages.read_text().splitlines() if self.pages.exists() else []

    @contextmanager
    def _full(self) -> Iterator[None]:
        faults.fill(self.home.root)
        try:
            yield
        finally:
            faults.free(self.home.root)

    def _failing(self, daemon: Any, stores: tuple[Path, ...], error: str, calls: str) -> AbstractContextManager[object]:
        under = [path.with_name(f"{path.name}{suffix}") for path in stores for suffix in ("", "-wal")]
        return faults.failing(self._pid(daemon), calls, error, under)

    def _without_socket(self, daemon: Any) -> AbstractContextManager[object]:
        self.home.socket(daemon.name).unlink(missing_ok=True)
        return nullcontext()

    def _killed(self, daemon: Any) -> AbstractContextManager[object]:
        psutil.Process(self._pid(daemon)).kill()
        if daemon is SUPERVISOR:
            self.constellation.until("its end", lambda: process_of(self.home, SUPERVISOR) is None)
            self.constellation.attempt("turnkeeper", "watchdog", "tick")
        return nullcontext()

    def _pid(self, daemon: Any) -> int:
        process = process_of(self.home, daemon)
        if process is None:
            raise LookupError(daemon.name)
        return process.pid

    def _try_next_command(self, during: str) -> None:
        argv = COMMANDS[self._tried % len(COMMANDS)]
        self._tried += 1
        began = self._clock.monotonic()
        try:
            done = self.constellation.attempt(*argv)
        except Exception as error:  # noqa: BLE001  what a user would see as a traceback
            self.wrong.append(f"{' '.join(argv)} during {during}: {type(error).__name__}: {error}")
            return
        said, took = done.stdout + done.stderr, self._clock.monotonic() - began
        if "Traceback" in said or "Unexpected <class" in said or done.returncode not in EXPECTED or took > 30:
            self.wrong.append(f"{' '.join(argv)} during {during}: exit {done.returncode}, {took:.1f}s: {said[-800:]}")

    def _said(self, *argv: str) -> str:
        done = self.constellation.attempt(*argv)
        return f"{' '.join(argv)} (exit {done.returncode}): {done.stdout}{done.stderr}"

    def _settled(self, name: str) -> bool:
        for asked in self.constellation.ask("agent-runtime", "approvals", "list"):
            self.constellation.attempt("agent-runtime", "approvals", "resolve", asked["interrupt_id"], "--approve")
        return not any(fire.outcome in OPEN for fire in self.constellation.fires(name))

    def _until_more(self, before: dict[str, int]) -> None:
        """Wait until each task has succeeded twice more: the first may have been decided before the fault."""

        def more() -> bool:
            now = self._succeeded()
            return all(now.get(name, 0) >= count + 2 for name, count in before.items())

        self.constellation.until("work to go on", more, PATIENCE_S)

    def _succeeded(self) -> dict[str, int]:
        counts = {}
        for name in TASKS:
            with suppress(TurnkeeperError):
                counts[name] = sum(fire.outcome == "succeeded" for fire in self.constellation.fires(name))
        return counts


def rounds(chaos: Chaos, minutes: float) -> None:
    """Make every fault in turn, the disk's filling between any two until it was filled ten times."""
    clock, all_faults = SystemClock(), chaos.faults()
    names, fills, number = [name for name in all_faults if name != "full disk"], 0, 0
    until = clock.monotonic() + minutes * 60
    while clock.monotonic() < until or fills < FILLS:
        if fills < FILLS:
            fills += 1
            chaos.suffer("full disk", all_faults["full disk"])
        if clock.monotonic() < until:
            chaos.suffer(names[number % len(names)], all_faults[names[number % len(names)]])
            number += 1


def say(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main(argv: list[str]) -> int:
    """Run the faults; return 1 if a promise was broken."""
    parser = argparse.ArgumentParser(description="mixed faults of the machine, then the checker")
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--pages", type=int, default=50, help="pages of each store that are damaged afterwards")
    given = parser.parse_args(argv)
    if lacking := faults.missing():
        if os.geteuid() and shutil.which("unshare"):
            again = ["unshare", "--map-root-user", "--mount", sys.executable, "-m", __spec__.name, *argv]
            os.execvp(again[0], again)
        say(f"cannot run here: {lacking}")
        return 1
    with tempfile.TemporaryDirectory(prefix="tk-chaos-") as folder, faults.small_disk(Path(folder) / "h", DISK_MB):
        chaos = Chaos(Home(root=Path(folder) / "h"), given.seed)
        chaos.constellation.installed = True
        try:
            chaos.begin()
            rounds(chaos, given.minutes)
            chaos.end()
            chaos.tell()
            alerts = chaos.alerts()
            say(f"damaged pages: {dict(chaos.damage(given.pages))}")
        finally:
            chaos.constellation.stop()
    wrong = chaos.wrong + ([] if alerts else ["no alert was sent"])
    say("\n".join(wrong) or f"{given.minutes:g} minutes with seed {given.seed}: nothing lost, nothing doubled")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
