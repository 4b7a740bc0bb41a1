"""Real processes: one fire through a death at every failpoint, and a planned stop."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from protos.turnkeeper.v1 import agent_runtime_pb2 as wire
from protos.turnkeeper.v1.agent_runtime_pb2_grpc import AgentRuntimeStub
from turnkeeper.clock import SystemClock
from turnkeeper.errors import Unreachable
from turnkeeper.eventlog import read_events
from turnkeeper.failpoints import VARIABLE
from turnkeeper.home import Home
from turnkeeper.rpc.channel import Caller, is_serving

pytestmark = pytest.mark.process
CLOCK = SystemClock()
PATIENCE_S = 30.0


class Daemon:
    """The daemon on one home, started anew as often as it dies."""

    def __init__(self, home: Home) -> None:
        self.home = home
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, failpoint: str = "") -> None:
        argv = [sys.executable, "-m", "agent_runtime.daemon", "--home", str(self.home.root)]
        environ = {key: value for key, value in os.environ.items() if key != VARIABLE}
        self.process = subprocess.Popen(argv, env=environ | ({VARIABLE: failpoint} if failpoint else {}))

    def serving(self) -> Caller:
        """Wait until it answers."""
        socket = self.home.socket("agent-runtime")
        deadline = CLOCK.monotonic() + PATIENCE_S
        while not is_serving(socket):
            assert self.process is not None
            assert self.process.poll() is None, "the daemon died"
            assert CLOCK.monotonic() < deadline, "the daemon does not answer"
            CLOCK.block(0.05)
        return Caller(socket, AgentRuntimeStub, "agent-runtime")

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


def fire() -> wire.FireRequest:
    request = wire.FireRequest(
        fire_id="task-0000000a@1", task_id="task-0000000a", task_name="digest", thread_id="thread-a", channel="main",
        category="catch-up-summary", prompt="Catch me up.", kind="manual", attempt=1,
    )  # fmt: skip
    request.nominal_at.FromSeconds(1_790_000_000)
    return request


def outcome(daemon: Daemon, turn_id: str) -> list[wire.TurnEvent]:
    """Return all turn events up to the turn's end."""
    found = []
    caller = daemon.serving()
    for event in caller.WatchTurns(wire.WatchTurnsRequest()):
        found.append(event)
        if event.turn_id == turn_id and event.state >= wire.TurnEvent.SUCCEEDED:
            break
    return found


def test_one_fire_through_a_death_at_every_failpoint(daemon: Daemon) -> None:
    daemon.start("runtime.accepted")
    with pytest.raises(Unreachable):
        daemon.serving().Fire(fire())
    assert daemon.wait() == -signal.SIGKILL
    for failpoint in ("claimed", "started", "turn_step", "finished", "recorded"):
        daemon.start(f"runtime.{failpoint}")
        assert daemon.wait() == -signal.SIGKILL, failpoint
    daemon.start()
    caller = daemon.serving()
    receipt = caller.Fire(fire())
    assert receipt.disposition == wire.FireReceipt.DUPLICATE
    events = outcome(daemon, receipt.turn_id)
    assert [event.state for event in events] == [wire.TurnEvent.STARTED, wire.TurnEvent.SUCCEEDED]
    (candidate,) = caller.ListCandidates(wire.ListCandidatesRequest()).candidates
    assert candidate.turn_id == receipt.turn_id
    (shown,) = caller.GetConversation(wire.GetConversationRequest(channel="main")).turns
    assert shown.status == "succeeded"
    daemon.signal(signal.SIGTERM)
    assert daemon.wait() == 0
    folders = {
        name: len(list((daemon.home.inbox("agent0") / name).glob("*.json")))
        for name in ("inbox", "claimed", "delivered")
    }
    assert folders == {"inbox": 0, "claimed": 0, "delivered": 1}
    started = [record["mode"] for record in read_events(daemon.home.logs) if record["event"] == "turn.started"]
    assert started.count("start") <= 1
    assert not daemon.home.pid("agent-runtime").exists()


def test_a_second_daemon_is_refused(daemon: Daemon) -> None:
    daemon.start()
    daemon.serving()
    argv = [sys.executable, "-m", "agent_runtime.daemon", "--home", str(daemon.home.root)]
    second = subprocess.run(argv, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert second.returncode == 4
    assert "already runs" in second.stderr
    daemon.signal(signal.SIGINT)
    assert daemon.wait() == 0
