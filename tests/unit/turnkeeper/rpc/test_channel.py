"""Calling a daemon over its socket."""

import asyncio
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import pytest

from task_runner.cli.client import not_running
from turnkeeper.config.home import Home
from turnkeeper.constellation.supervisor import markers
from turnkeeper.errors import EXIT_UNREACHABLE, Exhausted, MachineTrouble, ServerTrouble, Unreachable
from turnkeeper.rpc import channel
from turnkeeper.rpc.channel import AsyncCaller, Caller, daemon_of, method_of
from turnkeeper.rpc.errors import from_rpc, to_status
from turnkeeper.storage.locking import ProcessLock
from turnkeeper.v1 import agent_runtime_pb2 as agents
from turnkeeper.v1 import schedules_pb2 as schedules
from turnkeeper.v1.schedules_pb2_grpc import SchedulesServicer, add_SchedulesServicer_to_server

LONG_S = 0.5


def test_who_calls_a_daemon_that_its_supervisor_starts_again_need_not_start_it(home: Home) -> None:
    caller = Caller(home)

    def advice() -> str:
        with pytest.raises(Unreachable) as caught:
            caller.ask(schedules.GetStatusRequest())
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


async def test_a_call_that_comes_right_after_a_restart_waits_until_the_daemon_listens(home: Home) -> None:
    """The channel has noticed that the daemon went, and connects again only after a pause."""
    caller, server = AsyncCaller(home), grpc.aio.server()
    with pytest.raises(Unreachable, match="task-runner cannot be reached; start it with: turnkeeper up"):
        await caller.ask(schedules.GetStatusRequest())
    with ProcessLock(home, "supervisor"), pytest.raises(Unreachable, match="reached; it is being started"):
        await caller.ask(schedules.GetStatusRequest())
    add_SchedulesServicer_to_server(Runner(), server)
    with ProcessLock(home, "task-runner"):
        asked = asyncio.ensure_future(caller.ask(schedules.GetStatusRequest()))
        await asyncio.wait({asked}, timeout=LONG_S)
        server.add_insecure_port(f"unix:{home.socket('task-runner')}")
        await server.start()
        assert (await asked).version == "7"
    await caller.close()
    await server.stop(None)


async def test_a_daemon_that_runs_and_never_listens_is_not_waited_for_long(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel, "LISTENS_WITHIN_S", 0.1)
    caller = AsyncCaller(home, deadline_s=60)
    with ProcessLock(home, "task-runner"), pytest.raises(Unreachable, match="does not answer in time; it may wait"):
        await caller.ask(schedules.GetStatusRequest())
    await caller.close()


class Runner(SchedulesServicer):
    """A task runner that says its version."""

    def GetStatus(self, _request: Any, _context: Any) -> schedules.RunnerStatus:
        return schedules.RunnerStatus(version="7")


def test_a_daemon_that_is_slow_to_greet_is_waited_for(home: Home, tmp_path: Path) -> None:
    server = grpc.server(ThreadPoolExecutor(2))
    add_SchedulesServicer_to_server(Runner(), server)
    server.add_insecure_port(f"unix:{tmp_path}/real")
    server.start()
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(home.socket("task-runner")))
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
    caller = Caller(home)
    try:
        assert caller.GetStatus(schedules.GetStatusRequest()).version == "7"
        assert caller.ask(schedules.GetStatusRequest()).version == "7"
    finally:
        caller.close()
        server.stop(None)
        greeting.join()
        listening.close()


def test_a_socket_that_nobody_serves_is_no_wait(home: Home) -> None:
    caller = Caller(home, deadline_s=60)
    for request in (schedules.GetStatusRequest(), agents.ListChannelsRequest()):
        with pytest.raises(Unreachable, match=f"{daemon_of(request)} cannot be reached"):
            caller.ask(request)
    caller.close()


@pytest.mark.parametrize("contract", [agents, schedules])
def test_a_request_is_named_after_its_method(contract: Any) -> None:
    """But for those of a stream of fires, and those that two methods share."""
    (service,) = contract.DESCRIPTOR.services_by_name.values()
    named = {one.name: one.input_type._concrete_class() for one in service.methods}
    others = {name for name, request in named.items() if request.DESCRIPTOR.name != f"{name}Request"}
    assert others <= {"FireStream", "FireBatches", "UpdateMemory", "ForgetMemory"}
    assert all(method_of(request).name == name for name, request in named.items() if name not in others)


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
    told = from_rpc(Answered(to_status(ServerTrouble("the database does not answer"))), "task-runner")
    assert (type(told), told.exit_code) == (ServerTrouble, EXIT_UNREACHABLE)
    assert type(from_rpc(Answered(to_status(Exhausted("the inbox is full"))), "task-runner")) is Exhausted
