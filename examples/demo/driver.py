"""Drives a home from outside, like a person or a script: runs commands, calls the daemons, starts and kills them.

The demonstration and the acceptance tests use it. It observes only what users can observe.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

from turnkeeper.clock import SystemClock
from turnkeeper.config.home import VARIABLE, Home
from turnkeeper.constellation.supervisor.daemons import DAEMONS, Daemon, kill, log_of, spawn, stop
from turnkeeper.constellation.supervisor.up_down import bring_down
from turnkeeper.errors import TurnkeeperError
from turnkeeper.rpc.channel import Caller, is_serving
from turnkeeper.storage.locking import is_held
from turnkeeper.v1.schedules_pb2 import Fire, ListFiresRequest

T = TypeVar("T")
Record = dict[str, Any]
OPEN = frozenset({"waiting", "pending", "sent", "accepted", "running", "interrupted", "held"})
PATIENCE_S = 60.0
_COMMAND_TIMEOUT_S = 60.0
_START_TIMEOUT_S = 120.0
_TAIL_LINES = 5
_AT_ONCE = 4
_ENDINGS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_PACKAGES = {"task-runner": "task_runner", "agent-runtime": "agent_runtime", "turnkeeper": "turnkeeper.constellation"}


class Driver:
    """A home and its daemons, driven from outside.

    Attributes:
        home: the state directory.
        patience_s: the default timeout of waits, in seconds.
        poll_s: the seconds between two probes of a wait.
    """

    patience_s = PATIENCE_S
    poll_s = 0.05

    def __init__(self, home: Home, environ: Mapping[str, str] = os.environ) -> None:
        self.home = home
        self._clock = SystemClock()
        self._environ = dict(environ) | {VARIABLE: str(home.root)}

    def attempt(self, *argv: str, **environ: str) -> "subprocess.CompletedProcess[str]":
        """Run a command, with additional variables. Return its result, even if the exit code is not 0."""
        program, *rest = argv
        return subprocess.run(
            [sys.executable, "-P", "-m", _PACKAGES[program], *rest],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            env=self._environ | environ,
            timeout=_COMMAND_TIMEOUT_S,
            check=False,
        )

    def ask(self, *argv: str) -> Any:
        """Run a command and return its JSON. Raises TurnkeeperError if it fails."""
        done = self.attempt(*argv, "-o", "json")
        if done.returncode:
            raise TurnkeeperError(done.stderr.strip(), where=" ".join(argv))
        return json.loads(done.stdout)

    def history(self, task: str) -> list[Record]:
        """Return a task's ledger entries, newest first."""
        entries: list[Record] = self.ask("task-runner", "history", task, "-n", "1000")
        return entries

    def until(self, what: str, probe: Callable[[], T], timeout_s: float | None = None) -> T:
        """Return the first truthy answer of `probe`. Raises TurnkeeperError after the timeout."""
        timeout_s = self.patience_s if timeout_s is None else timeout_s
        if answer := self._clock.poll(probe, timeout_s=timeout_s, every_s=self.poll_s):
            return answer
        raise TurnkeeperError(f"waited {timeout_s:.0f}s for {what}")

    def ask_all(self, commands: Iterable[Sequence[str]]) -> list[Any]:
        """Run several commands in parallel and return their JSON. Raises TurnkeeperError if one fails."""
        with ThreadPoolExecutor(max_workers=_AT_ONCE) as pool:
            return list(pool.map(lambda argv: self.ask(*argv), commands))

    def histories(self, tasks: Iterable[str]) -> list[Record]:
        """Return the ledger entries of several tasks."""
        asked = self.ask_all(("task-runner", "history", task, "-n", "1000") for task in tasks)
        return [entry for entries in asked for entry in entries]

    def await_outcome(self, task: str, outcome: str, count: int = 1) -> None:
        """Wait until a task has `count` entries with this outcome."""
        self.until(
            f"{count} {outcome} of {task}", lambda: sum(fire.outcome == outcome for fire in self.fires(task)) >= count
        )

    def until_outcome(self, task: str, outcome: str, count: int = 1) -> list[Record]:
        """Wait until a task has `count` entries with this outcome. Return these entries, newest first."""
        self.await_outcome(task, outcome, count)
        return [entry for entry in self.history(task) if entry["outcome"] == outcome]

    def until_settled(self, task: str, count: int = 1) -> None:
        """Wait until a task has at least `count` entries, and none of them is open."""

        def probe() -> bool:
            return len(self.fires(task)) >= count and not self.is_open(task)

        self.until(f"{count} settled entries of {task}", probe)

    def is_open(self, task: str) -> bool:
        """Return True if an entry of a task is open."""
        return any(fire.outcome in OPEN for fire in self.fires(task))

    def fires(self, task: str) -> list[Fire]:
        """Return a task's fires by RPC, because commands are too slow for some waits."""
        runner = Caller(self.home, via="turnkeeper/cli")
        try:
            return list(runner.ListFires(ListFiresRequest(name=task, limit=1000)).fires)
        finally:
            runner.close()

    def start(self, *daemons: Daemon, **environ: str) -> None:
        """Start daemons, by default both, with additional variables. Return after all of them answer.

        Raises TurnkeeperError, with the last lines of the log, if one ended or did not answer in time.
        """
        wanted, environ = daemons or DAEMONS, self._environ | environ
        children = {one: None if is_held(self.home, one.name) else spawn(self.home, one, environ) for one in wanted}
        for daemon, child in children.items():
            self._await_health(daemon, child)

    def _await_health(self, daemon: Daemon, child: int | None) -> None:
        log = log_of(self.home, daemon)

        def answers() -> bool:
            if is_serving(self.home.socket(daemon.name)):
                return True
            ended = os.waitpid(child, os.WNOHANG) if child is not None else (0, 0)
            if ended[0]:
                how = f"{daemon.name} ended with exit code {os.waitstatus_to_exitcode(ended[1])}"
                raise TurnkeeperError(f"{how}: {_tail(log)}", where=str(log))
            return False

        self.until(f"{daemon.name} to answer", answers, _START_TIMEOUT_S)

    def stop(self, *daemons: Daemon) -> None:
        """Stop the named daemons. A supervisor would start them again. Without names, stop everything."""
        for daemon in reversed(daemons):
            stop(self.home, daemon)
        if not daemons:
            bring_down(self.home)

    def kill(self, daemon: Daemon) -> int:
        """End a daemon by kill -9. Return its pid."""
        return kill(self.home, daemon)

    def now(self) -> datetime:
        """Return the wall-clock time, aware, in UTC."""
        return self._clock.now()

    def pass_time(self, seconds: float) -> None:
        """Wait in real time, for output that depends on the wall clock."""
        self._clock.block(seconds)


def end_in_good_order() -> None:
    """Convert a signal that ends this process to KeyboardInterrupt, once, so that nothing interrupts the cleanup."""

    def interrupt(_number: int, _frame: Any) -> None:
        for number in heeded:
            signal.signal(number, lambda *_: None)  # unlike SIG_IGN, this is not inherited by started programs
        raise KeyboardInterrupt

    heeded = [number for number in _ENDINGS if signal.getsignal(number) is not signal.SIG_IGN]
    for number in heeded:
        signal.signal(number, interrupt)


def _tail(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    return " | ".join(line.strip() for line in lines[-_TAIL_LINES:])
