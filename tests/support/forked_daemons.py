"""The daemons, forked from a process that has imported everything and started nothing: real ones, and soon there.

`python -m tests.support.forked_daemons` reads a JSON object a line and answers each by one.
"""

import atexit
import gc
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from protos.turnkeeper.v1.agent_runtime_pb2_grpc import AgentRuntimeStub
from protos.turnkeeper.v1.schedules_pb2_grpc import SchedulesStub
from turnkeeper.clock import SystemClock
from turnkeeper.config.home import Home
from turnkeeper.rpc.channel import Caller, is_serving

RUNTIME, RUNNER = "agent-runtime", "task-runner"
PATIENCE_S = 60.0
CLOCK = SystemClock()


def serve() -> None:
    """Fork daemons and kill them, as standard input asks."""
    from agent_runtime.daemon import __main__ as runtime

    os.environ.update(runtime.ENVIRONMENT)
    import agent_runtime.daemon.assembly  # noqa: F401  what a daemon imports is imported here, once
    from task_runner.daemon import __main__ as runner

    gc.freeze()
    alive: set[int] = set()
    for line in sys.stdin:
        alive = {pid for pid in alive if not os.waitpid(pid, os.WNOHANG)[0]}
        asked = json.loads(line)
        answer = None
        if asked["do"] == "start":
            answer = os.fork()
            alive.add(answer)
            if not answer:
                os.setsid()
                os.umask(0o077)
                os.environ.update(asked["environ"])
                root = asked["home"]
                if asked["which"] == RUNTIME:
                    _be(runtime.main, ["--home", root], asked["log"])
                _be(runner.main, [root], asked["log"])
        elif asked["pid"] in alive:
            os.kill(asked["pid"], signal.SIGKILL)
            os.waitpid(asked["pid"], 0)
            alive.remove(asked["pid"])
        sys.stdout.write(f"{json.dumps(answer)}\n")
        sys.stdout.flush()
    for pid in alive:  # whoever asked for them is gone
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _be(main: Any, argv: list[str], log: str) -> None:
    code = 1
    try:
        silence, said = os.open(os.devnull, os.O_RDONLY), os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        for descriptor, target in ((silence, 0), (said, 1), (said, 2)):
            os.dup2(descriptor, target)
        code = main(argv)
    finally:
        os._exit(code)


class ForkServer:
    """The process that forks daemons, for any number of homes."""

    def __init__(self) -> None:
        # The packages' names make each daemon known as what it is: it is looked up by its command line.
        argv = [sys.executable, "-m", "tests.support.forked_daemons", "agent_runtime", "task_runner"]
        self._process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def start(self, home: Home, which: str, log: Path, environ: Mapping[str, str]) -> int:
        """Start a daemon and return its pid; it may not answer yet.

        Args:
            home: the home that it serves.
            which: `agent-runtime` or `task-runner`.
            log: where its output is appended.
            environ: variables beside those of this process.
        """
        pid: int = self._ask(do="start", which=which, home=str(home.root), log=str(log), environ=dict(environ))
        return pid

    def kill(self, pid: int) -> None:
        """Kill a daemon without a word, and wait until it is gone."""
        self._ask(do="kill", pid=pid)

    def close(self) -> None:
        self._process.communicate(timeout=PATIENCE_S)

    def _ask(self, **asked: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{json.dumps(asked)}\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())


@cache
def fork_server() -> ForkServer:
    """Return the fork server of this process."""
    made = ForkServer()
    atexit.register(made.close)
    return made


class Nursery:
    """The two daemons of one home."""

    def __init__(self, home: Home) -> None:
        self.home = home
        self._pids: dict[str, int] = {}
        self.runtime = Caller(home.socket(RUNTIME), AgentRuntimeStub, RUNTIME)
        self.runner = Caller(home.socket(RUNNER), SchedulesStub, RUNNER)

    def start(self, which: str) -> None:
        """Start a daemon, and wait until it answers."""
        self._pids[which] = fork_server().start(self.home, which, self.home.root / f"{which}.stderr", {})
        deadline = CLOCK.monotonic() + PATIENCE_S
        while not is_serving(self.home.socket(which)):
            assert CLOCK.monotonic() < deadline, f"{which} does not answer: {self.errors(which)}"
            CLOCK.block(0.02)

    def kill(self, which: str) -> None:
        """Kill a daemon without a word, and wait until it is gone."""
        fork_server().kill(self._pids.pop(which))

    def errors(self, which: str) -> str:
        path = self.home.root / f"{which}.stderr"
        return path.read_text()[-2000:] if path.exists() else ""

    def close(self) -> None:
        try:
            for which in list(self._pids):
                self.kill(which)
        finally:
            self.runtime.close()
            self.runner.close()


if __name__ == "__main__":
    serve()
