"""A real constellation in a throwaway home: real daemons, real sockets, the real command lines.

To save start-up time, daemons, the supervisor and the commands that start and stop them are forked from a prepared
process. Commands that only query run in this process, by the function that the installed program calls. A program that
replaces itself by another runs as installed, and so does every process of a constellation that is `installed`.
"""

import io
import os
import signal
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from datetime import datetime
from subprocess import CompletedProcess
from typing import Any, cast

from agent_runtime.cli import app as agent_runtime
from examples.demo.driver import Driver, Record
from examples.demo.history import History, Outside, Violation, check
from task_runner.cli import application
from tests.support.forked_daemons import fork_server, starting_forks
from tests.support.program import app as turnkeeper
from tests.support.stored import calls_of, triggers_of
from turnkeeper import console
from turnkeeper.bus.event_log import read_events
from turnkeeper.config.home import Home
from turnkeeper.config.settings import load_settings
from turnkeeper.constellation.supervisor.daemons import AGENT_RUNTIME, DAEMONS, TASK_RUNNER, Daemon, log_of
from turnkeeper.rpc.channel import is_serving
from turnkeeper.storage.locking import holder_pid, is_held

_UNSEEN = Outside()
PROGRAMS = {
    "task-runner": application,
    "agent-runtime": lambda: agent_runtime,
    "turnkeeper": lambda: turnkeeper,
}
PROCESSES = frozenset({"up", "down", "restart", "watchdog", "move", "query", "report"})  # the last two limit themselves
INSTALLED = frozenset({"serve", "--foreground", "demo", "service", "watch"})


class Constellation(Driver):
    """Both daemons on one home, used as a person would use them.

    Attributes:
        installed: True if every process starts as an installed program, and none is forked.
    """

    poll_s = 0.1  # most probes are calls, each of which takes 12 ms of CPU on both sides

    def __init__(self, home: Home, environ: Mapping[str, str] = os.environ, *, installed: bool = False) -> None:
        super().__init__(home, environ)
        self.installed = installed

    @property
    def homes(self) -> tuple[Home, ...]:
        """The homes of its machines. Commands run on the first."""
        return (self.home,)

    @property
    def at_work(self) -> "Constellation":
        """The machine that runs the turns."""
        return self

    @property
    def logs(self) -> list[Record]:
        """The events of its machines, in order."""
        told = (record for home in self.homes for record in read_events(home.logs))
        return sorted(told, key=lambda record: str(record["at"]))

    def until_dead(self, daemon: Daemon) -> None:
        """Wait for a daemon that is about to die by itself."""
        self.until(f"{daemon.name} to die", lambda: not is_held(self.home, daemon.name))

    def attempt(self, *argv: str, **environ: str) -> "CompletedProcess[str]":
        """Run a command, with additional variables. Return its result, whatever the exit code."""
        program, *rest = argv
        if self.installed or "LD_PRELOAD" in environ or INSTALLED & {*rest}:
            return super().attempt(*argv, **environ)
        if environ or PROCESSES & {*rest}:
            return fork_server().run(argv, self._environ | environ)
        out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
        with redirect_stdout(out), redirect_stderr(err), starting_forks():
            code = console.run(PROGRAMS[program](), ["--home", str(self.home.root), *rest])
        printed = (cast("io.BytesIO", stream.buffer).getvalue().decode() for stream in (out, err))
        return CompletedProcess(argv, code, *printed)

    def ask_all(self, commands: Iterable[Sequence[str]]) -> list[Any]:
        """Run several commands for their JSON, one after the other. Raises TurnkeeperError if one fails."""
        return [self.ask(*argv) for argv in commands]

    def start(self, *daemons: Daemon, **environ: str) -> None:
        """Start daemons, both unless named, with additional variables. Return once they answer."""
        if self.installed or "LD_PRELOAD" in environ:  # this works only in a process that loads a program
            super().start(*daemons, **environ)
            return
        for daemon in daemons or DAEMONS:
            if not is_held(self.home, daemon.name):
                self.launch(daemon, **environ)
        for daemon in daemons or DAEMONS:
            self.until(f"{daemon.name} to answer", lambda daemon=daemon: is_serving(self.home.socket(daemon.name)))

    def launch(self, daemon: Daemon, **environ: str) -> None:
        """Start a daemon that may die before it answers."""
        fork_server().start(self.home, daemon.name, log_of(self.home, daemon), self._environ | environ)

    def command(self, *argv: str, code: int = 0) -> str:
        """Run a command, check its exit code, and return its output on stdout."""
        done = self.attempt(*argv)
        assert done.returncode == code, f"{argv} exited with {done.returncode}: {done.stdout}{done.stderr}"
        return done.stdout

    def create(self, name: str, *options: str, channel: str = "general") -> dict[str, Any]:
        """Create a task with defaults for the options that a test does not need."""
        given = list(options)
        for flag, value in (("--category", "catch-up-summary"), ("--channel", channel), ("--prompt", "Summarise.")):
            given += [] if flag in given else [flag, value]
        self.command("task-runner", "create", name, *given)
        found: dict[str, Any] = self.ask("task-runner", "show", name)
        return found

    def conversation(self, channel: str = "general", limit: int = 50) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.ask("agent-runtime", "conversation", "show", channel, "-n", str(limit))
        return found

    def violations(self, *, drained: bool = True, outside: Outside = _UNSEEN) -> list[Violation]:
        """Check the history of this home, and what was seen outside of it, against the invariants."""
        tasks = self.ask("task-runner", "list")
        asked = [("task-runner", "history", task["name"], "-n", "1000") for task in tasks]
        turns, *entries = self.ask_all([("agent-runtime", "turns", "list", "-n", "1000"), *asked])
        ledger = [entry for found in entries for entry in found]
        delivers = load_settings(self.home).delivery.enabled
        rows = self.ask("turnkeeper", "deliver", "log", "-n", "1000") if delivers else []
        calls, again = calls_of(self.home)
        more = {"deliveries": rows, "triggers": triggers_of(self.home), "calls": calls, "again": again}
        history = History(events=self.logs, ledger=ledger, turns=turns, outside=outside, **more)
        periods = {task["id"]: task for task in tasks}
        return check(history, drained=drained, count_nominals=lambda *span: self._count(periods, *span))

    def _count(self, tasks: dict[str, Any], task_id: str, first: datetime, last: datetime) -> int:
        """Count nominal times with the preview, which shares no code with the planner's own counting.

        A recorded home may be months old: the distance of an interval's first two times gives all the others.
        """
        if tasks[task_id]["kind"] == "at":
            return 1
        shown = self._previewed(tasks[task_id]["name"], first)
        if tasks[task_id]["kind"] == "every":
            return 1 + (last - first) // (shown[1] - shown[0])
        while shown[-1] < last:
            shown += self._previewed(tasks[task_id]["name"], shown[-1])[1:]
        return sum(at <= last for at in shown)

    def _previewed(self, name: str, first: datetime) -> list[datetime]:
        """Return a thousand nominal times from `first` on."""
        start_at = datetime.fromtimestamp(first.timestamp() - 1, first.tzinfo).isoformat()
        shown = self.ask("task-runner", "next", name, "--from", start_at, "-n", "1000")
        return [datetime.fromisoformat(item["nominal_at"]) for item in shown]


__all__ = ["AGENT_RUNTIME", "TASK_RUNNER", "Constellation", "Daemon"]


@contextmanager
def suspended(constellation: Constellation, daemon: Daemon) -> Iterator[None]:
    """Stop a daemon's process in the middle of what it does, as a debugger or a full swap does."""
    pid = holder_pid(constellation.home, daemon.name)
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)
