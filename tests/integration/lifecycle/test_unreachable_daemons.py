"""Daemons that live and cannot be called: what they put right themselves, and what the commands say of them."""

import os
import shutil
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from agent_runtime.mailbox.inbox import reading
from tests.support.constellation import AGENT_RUNTIME, TASK_RUNNER, Constellation
from turnkeeper.clock import SystemClock
from turnkeeper.config.home import Home
from turnkeeper.constellation.supervisor.daemons import process_of
from turnkeeper.entropy import SystemEntropy
from turnkeeper.rpc.channel import is_serving
from turnkeeper.storage.locking import holder_pid, reader_of

pytestmark = pytest.mark.process
DAEMONS = (AGENT_RUNTIME, TASK_RUNNER)


@pytest.fixture
def constellation(home: Home) -> Iterator[Constellation]:
    made = Constellation(home)
    yield made
    for daemon in DAEMONS:
        if (pid := holder_pid(home, daemon.name)) is not None:
            os.kill(pid, signal.SIGCONT)
    made.stop()


def each(home: Home, do: Callable[[Home, str], object]) -> None:
    for daemon in DAEMONS:
        do(home, daemon.name)


DAMAGES: dict[str, Callable[[Home], object]] = {
    "sockets removed": lambda home: each(home, lambda home, name: home.socket(name).unlink()),
    "locks and pid files removed": lambda home: each(
        home, lambda home, name: (home.lock(name).unlink(), home.pid(name).unlink())
    ),
    "folder closed": lambda home: (home.run.chmod(0), home.run.chmod(0o755)),
    "folder removed": lambda home: shutil.rmtree(home.run),
    "an inbox's lock removed": lambda home: (home.inbox("agent0") / ".reader").unlink(),
}


def test_what_is_removed_of_the_run_folder_is_put_back_by_the_daemons(constellation: Constellation):
    home = constellation.home
    constellation.start()
    pids = {daemon.name: holder_pid(home, daemon.name) for daemon in DAEMONS}

    def whole() -> bool:
        return (
            home.run.is_dir()
            and home.run.stat().st_mode & 0o777 == 0o700
            and reader_of(home.inbox("agent0")).startswith("agent-runtime, pid ")
            and all(holder_pid(home, name) == pid and is_serving(home.socket(name)) for name, pid in pids.items())
        )

    for what, damage in DAMAGES.items():
        damage(home)
        assert not whole(), what
        constellation.until(f"it is put back: {what}", whole)
    constellation.create("digest", "--in", "1s")
    constellation.await_outcome("digest", "succeeded")


def test_a_socket_that_was_removed_under_a_supervisor_is_bound_again_and_up_waits_for_it(constellation: Constellation):
    home = constellation.home
    constellation.command("turnkeeper", "up")
    pids = {daemon.name: holder_pid(home, daemon.name) for daemon in DAEMONS}
    path = home.socket(AGENT_RUNTIME.name)
    path.unlink()
    path.mkdir()  # which nobody but its owner may remove, so that it stands until doctor has looked
    for command in ("doctor", "status"):
        done = constellation.attempt("turnkeeper", command)
        assert done.returncode == 6
        assert f"{path} is not its socket but another file" in " ".join((done.stdout + done.stderr).split())
    path.rmdir()
    constellation.kill(TASK_RUNNER)
    began = SystemClock().monotonic()
    constellation.command("turnkeeper", "up")
    assert SystemClock().monotonic() - began < 30.0
    assert holder_pid(home, AGENT_RUNTIME.name) == pids[AGENT_RUNTIME.name]
    constellation.command("turnkeeper", "status")
    constellation.create("digest", "--in", "1s")
    constellation.await_outcome("digest", "succeeded")


def test_a_lock_that_was_removed_under_a_supervisor_starts_no_second_daemon(constellation: Constellation):
    home, constellation.installed = constellation.home, True  # the arguments of a process tell whose daemon it is
    constellation.command("turnkeeper", "up")
    pids = {daemon.name: holder_pid(home, daemon.name) for daemon in DAEMONS}
    shutil.rmtree(home.run)
    constellation.attempt("turnkeeper", "watchdog", "tick")
    constellation.until(
        "both to be found again", lambda: all(holder_pid(home, name) == pid for name, pid in pids.items())
    )
    constellation.until("one supervisor", lambda: holder_pid(home, "supervisor"))
    constellation.command("turnkeeper", "up")
    assert {daemon.name: holder_pid(home, daemon.name) for daemon in DAEMONS} == pids


def test_a_suspended_daemon_is_named_and_up_does_not_wait_for_it(constellation: Constellation):
    constellation.command("turnkeeper", "up")
    pid = holder_pid(constellation.home, TASK_RUNNER.name)
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    rows = constellation.attempt("turnkeeper", "status", "-o", "json")
    assert rows.returncode == 6
    assert '"state": "suspended"' in rows.stdout
    assert '"state": "starting"' not in rows.stdout
    said = constellation.attempt("turnkeeper", "status").stderr
    assert f"kill -CONT {pid}" in said
    assert "start them with" not in said
    assert f"kill -CONT {pid}" in " ".join(constellation.attempt("turnkeeper", "doctor").stdout.split())
    began = SystemClock().monotonic()
    done = constellation.attempt("turnkeeper", "up")
    assert done.returncode == 1
    assert f"kill -CONT {pid}" in done.stderr
    assert SystemClock().monotonic() - began < 20.0
    os.kill(pid, signal.SIGCONT)
    constellation.until("it to answer", lambda: is_serving(constellation.home.socket(TASK_RUNNER.name)))
    constellation.command("turnkeeper", "status")
    os.kill(pid, signal.SIGSTOP)
    began = SystemClock().monotonic()
    assert "task-runner stopped" in constellation.attempt("turnkeeper", "down").stderr
    assert SystemClock().monotonic() - began < 20.0


def test_after_a_deliberate_down_nothing_is_wrong(constellation: Constellation):
    constellation.command("turnkeeper", "up")
    clock = SystemClock()
    with (
        reading(constellation.home, "codex", "inbox watch", clock=clock, entropy=SystemEntropy()) as reader,
        ThreadPoolExecutor(1) as pool,
    ):
        down = pool.submit(constellation.attempt, "turnkeeper", "down")
        (taken,) = clock.poll(reader.claim, timeout_s=60, every_s=0.02) or []
        assert taken.envelope.kind == "shutdown"
        assert all(process_of(constellation.home, daemon) for daemon in DAEMONS), "the agent is told before they end"
        reader.finish(taken, lambda _: None)
        assert "codex took the shutdown" in down.result().stderr
    done = constellation.attempt("turnkeeper", "status")
    assert done.returncode == 0
    assert "nothing is supposed to run" in done.stderr
    constellation.command("turnkeeper", "doctor")
