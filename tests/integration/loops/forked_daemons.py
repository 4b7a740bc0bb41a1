"""Both daemons, forked from a process that has imported everything and started nothing: real ones, and soon there.

`python -m tests.integration.loops.forked_daemons` reads a JSON object a line and answers each by one.
"""

import gc
import json
import os
import signal
import subprocess
import sys
from typing import Any

from protos.turnkeeper.v1.agent_runtime_pb2_grpc import AgentRuntimeStub
from protos.turnkeeper.v1.schedules_pb2_grpc import SchedulesStub
from turnkeeper.clock import SystemClock
from turnkeeper.config.home import Home
from turnkeeper.rpc.channel import Caller, is_serving

RUNTIME, RUNNER = "agent-runtime", "task-runner"
PATIENCE_S = 60.0
CLOCK = SystemClock()


def nurse() -> None:
    """Fork daemons and kill them, as standard input asks."""
    from agent_runtime.daemon import __main__ as runtime

    os.environ.update(runtime.ENVIRONMENT)
    import agent_runtime.daemon.assembly  # noqa: F401  what a daemon imports is imported here, once
    from task_runner.daemon import __main__ as runner

    gc.freeze()
    for line in sys.stdin:
        asked = json.loads(line)
        answer = None
        if asked["do"] == "start":
            answer = os.fork()
            if not answer:
                _be(runtime.main if asked["which"] == RUNTIME else runner.main, asked["argv"], asked["errors"])
        else:
            os.kill(asked["pid"], signal.SIGKILL)
            os.waitpid(asked["pid"], 0)
        sys.stdout.write(f"{json.dumps(answer)}\n")
        sys.stdout.flush()


def _be(main: Any, argv: list[str], errors: str) -> None:
    code = 1
    try:
        silence, said = os.open(os.devnull, os.O_RDWR), os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        for descriptor, target in ((silence, 0), (silence, 1), (said, 2)):
            os.dup2(descriptor, target)
        code = main(argv)
    finally:
        os._exit(code)


class Nursery:
    """The two daemons of one home."""

    def __init__(self, home: Home) -> None:
        self.home = home
        argv = [sys.executable, "-m", "tests.integration.loops.forked_daemons"]
        self._process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._pids: dict[str, int] = {}
        self.runtime = Caller(home.socket(RUNTIME), AgentRuntimeStub, RUNTIME)
        self.runner = Caller(home.socket(RUNNER), SchedulesStub, RUNNER)

    def start(self, which: str) -> None:
        """Start a daemon, and wait until it answers."""
        root = str(self.home.root)
        argv = ["--home", root] if which == RUNTIME else [root]
        self._pids[which] = self._ask(do="start", which=which, argv=argv, errors=f"{root}/{which}.stderr")
        deadline = CLOCK.monotonic() + PATIENCE_S
        while not is_serving(self.home.socket(which)):
            assert CLOCK.monotonic() < deadline, f"{which} does not answer: {self.errors(which)}"
            CLOCK.block(0.02)

    def kill(self, which: str) -> None:
        """Kill a daemon without a word, and wait until it is gone."""
        self._ask(do="kill", pid=self._pids.pop(which))

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
            self._process.communicate(timeout=PATIENCE_S)

    def _ask(self, **asked: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{json.dumps(asked)}\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())


if __name__ == "__main__":
    nurse()
