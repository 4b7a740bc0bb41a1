"""Finding a daemon's process by its pid."""

import os
import signal
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from turnkeeper.config.home import Home
from turnkeeper.config.settings import Settings
from turnkeeper.constellation.supervisor import daemons, up_down
from turnkeeper.constellation.supervisor.daemons import AGENT_RUNTIME, process_with

LOOKS = 3000


def test_a_process_that_is_just_replacing_its_program_is_still_there(tmp_path: Path) -> None:
    """`agent-runtime serve` becomes the daemon by exec, and for a moment the kernel shows no arguments."""
    script = tmp_path / "restless"
    script.write_text('#!/bin/sh\nexec "$0" agent_runtime.daemon\n')
    script.chmod(0o755)
    with subprocess.Popen([script, "agent_runtime.daemon"]) as restless:
        try:
            seen = [process_with(restless.pid, AGENT_RUNTIME) is not None for _ in range(LOOKS)]
        finally:
            restless.kill()
    assert all(seen), f"not found {seen.count(False)} times of {LOOKS}"


@pytest.mark.parametrize("argument", ["task_runner.daemon", "my_agent_runtime"])
def test_a_stranger_is_no_daemon(argument: str) -> None:
    with subprocess.Popen(["sh", "-c", "read x", argument], stdin=subprocess.PIPE) as other:
        assert process_with(other.pid, AGENT_RUNTIME) is None
        other.kill()


def test_a_child_has_ended_however_often_that_was_asked() -> None:
    """Of two `up` at once one's supervisor ends at once, and both daemons are waited for."""
    with subprocess.Popen(["true"]) as child:
        while not up_down._ended(child.pid):
            pass
        assert up_down._ended(child.pid)


def test_a_supervisor_that_was_being_killed_while_up_woke_it_is_started_anew(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    up_down.prepare(home, Settings())
    woken: list[int] = []
    spawned: list[str] = []
    dying = SimpleNamespace(send_signal=woken.append)
    monkeypatch.setattr(daemons, "process_of", lambda _home, one: dying if one is daemons.SUPERVISOR else None)
    monkeypatch.setattr(daemons, "spawn", lambda _home, one, _environ: spawned.append(one.name) or os.getpid())
    monkeypatch.setattr(up_down, "_serves", lambda *_: bool(spawned))
    assert up_down.bring_up(home, {}) == {"agent-runtime": True, "task-runner": True}
    assert (woken, spawned) == ([signal.SIGHUP], ["supervisor"])
