"""Calling a daemon over its socket."""

import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from task_runner.cli.client import not_running
from turnkeeper.config.home import Home
from turnkeeper.constellation.supervisor import markers
from turnkeeper.errors import Exhausted, MachineTrouble, Unreachable
from turnkeeper.rpc.channel import Caller
from turnkeeper.rpc.errors import from_rpc, to_status
from turnkeeper.storage.locking import ProcessLock

LONG_S = 0.5


def test_who_calls_a_daemon_that_its_supervisor_starts_again_need_not_start_it(home: Home) -> None:
    caller = Caller(home.socket("task-runner"), health_pb2_grpc.HealthStub, "task-runner")

    def advice() -> str:
        with pytest.raises(Unreachable) as caught:
            caller.Check(health_pb2.HealthCheckRequest())
        return caught.value.hint

    assert advice() == "start it with: turnkeeper up"
    with ProcessLock(home, "supervisor"):
        assert advice().startswith("it is being started; repeat the command in a few seconds")
        assert not_running(home) == f"task-runner is not running: {advice()}"
        markers.CRASH_LOOP.at(home, process="task-runner").write_text("{}")
        assert advice() == "start it with: turnkeeper up", "the supervisor has stopped trying"
    with ProcessLock(home, "task-runner"):
        assert advice().startswith("it is being started"), "it does not listen yet"
    caller.close()


def test_a_daemon_that_is_slow_to_greet_is_waited_for(tmp_path: Path) -> None:
    server = grpc.server(ThreadPoolExecutor(2))
    health_pb2_grpc.add_HealthServicer_to_server(health.HealthServicer(), server)
    server.add_insecure_port(f"unix:{tmp_path}/real")
    server.start()
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(f"{tmp_path}/slow")
    listening.listen()

    def greet_late() -> None:
        taken, _ = listening.accept()
        threading.Event().wait(LONG_S)
        with taken, socket.socket(socket.AF_UNIX) as real:
            real.connect(f"{tmp_path}/real")
            answers = threading.Thread(target=pump, args=(real, taken))
            answers.start()
            pump(taken, real)
            real.shutdown(socket.SHUT_WR)
            answers.join()

    greeting = threading.Thread(target=greet_late)
    greeting.start()
    caller = Caller(tmp_path / "slow", health_pb2_grpc.HealthStub, "a daemon")
    try:
        answer = caller.Check(health_pb2.HealthCheckRequest())
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
    finally:
        caller.close()
        server.stop(None)
        greeting.join()
        listening.close()


def test_a_socket_that_nobody_serves_is_no_wait(tmp_path: Path) -> None:
    caller = Caller(tmp_path / "nobody", health_pb2_grpc.HealthStub, "a daemon", deadline_s=60)
    with pytest.raises(Unreachable, match="cannot be reached"):
        caller.Check(health_pb2.HealthCheckRequest())
    caller.close()


def pump(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):  # either side may go first
        while data := source.recv(65536):
            sink.sendall(data)


class Answered(grpc.RpcError):
    """A call that was answered with a status."""

    def __init__(self, status: Any) -> None:
        self.code = lambda: status.code
        self.details = lambda: status.details
        self.trailing_metadata = lambda: status.trailing_metadata


def test_a_caller_learns_that_the_machine_of_the_daemon_is_in_trouble() -> None:
    """So it waits, as for its own machine, and takes the refusal for no answer."""
    told = from_rpc(
        Answered(to_status(MachineTrouble("x", where="keys/calls.json", hint="free memory"))), "task-runner"
    )
    assert (type(told), str(told)) == (MachineTrouble, "keys/calls.json: x; free memory")
    assert type(from_rpc(Answered(to_status(Exhausted("the inbox is full"))), "task-runner")) is Exhausted
