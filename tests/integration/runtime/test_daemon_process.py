"""The daemon as it is started from a shell. What it survives is shown in `test_turn_kills`, on daemons forked warm."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent_runtime.daemon.assembly import check
from turnkeeper.clock import SystemClock
from turnkeeper.config.home import Home
from turnkeeper.errors import InvalidInput
from turnkeeper.rpc.channel import Caller, is_serving
from turnkeeper.rpc.process import VARIABLE

pytestmark = pytest.mark.process
CLOCK = SystemClock()
PATIENCE_S = 30.0


class Daemon:
    """The daemon on one home."""

    def __init__(self, home: Home) -> None:
        self.home = home
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        argv = [sys.executable, "-m", "agent_runtime.daemon", "--home", str(self.home.root)]
        environ = {key: value for key, value in os.environ.items() if key != VARIABLE}
        self.process = subprocess.Popen(argv, env=environ)

    def serving(self) -> Caller:
        """Wait until it answers."""
        socket = self.home.socket("agent-runtime")
        deadline = CLOCK.monotonic() + PATIENCE_S
        while not is_serving(socket):
            assert self.process is not None
            assert self.process.poll() is None, "the daemon died"
            assert CLOCK.monotonic() < deadline, "the daemon does not answer"
            CLOCK.block(0.05)
        return Caller(self.home)

    def wait(self) -> int:
        assert self.process is not None
        return self.process.wait(PATIENCE_S)

    def signal(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)


@pytest.fixture
def daemon(home: Home) -> Iterator[Daemon]:
    made = Daemon(home)
    yield made
    if made.process is not None and made.process.poll() is None:
        made.process.kill()
        made.process.wait()


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_daemon_runs_in_its_home_wherever_it_is_started(daemon: Daemon) -> None:
    daemon.start()
    daemon.serving()
    assert daemon.process is not None
    assert Path(f"/proc/{daemon.process.pid}/cwd").resolve() == daemon.home.root.resolve() != Path.cwd()


def test_a_second_daemon_is_refused(daemon: Daemon) -> None:
    daemon.start()
    daemon.serving()
    argv = [sys.executable, "-m", "agent_runtime.daemon", "--home", str(daemon.home.root)]
    second = subprocess.run(argv, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert second.returncode == 4
    assert "already runs" in second.stderr
    daemon.signal(signal.SIGINT)
    assert daemon.wait() == 0
    assert not daemon.home.pid("agent-runtime").exists()


async def test_a_restart_is_refused_in_advance_for_a_category_file_with_a_mistake(home: Home) -> None:
    await check(home)
    home.categories.mkdir(parents=True, exist_ok=True)
    (home.categories / "mine.toml").write_text("what = ")
    with pytest.raises(InvalidInput, match=r"category mine cannot be used: .*mine\.toml"):
        await check(home)
