"""Finding a daemon's process by its pid."""

import subprocess
from pathlib import Path

import pytest

from turnkeeper.constellation.supervisor import up_down
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
