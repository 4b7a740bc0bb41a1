"""The end of a tmux server that a test started."""

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from turnkeeper.clock import SystemClock

PATIENCE_S = 60.0


def end(tmux: Sequence[str], environ: Mapping[str, str]) -> None:
    """End a server and all programs of its panes; return when none lives that could still write into the home.

    `tmux kill-server` comes back before a shell in a pane has ended.
    """
    listed = subprocess.run(
        [*tmux, "list-panes", "-a", "-F", "#{pane_pid}"], check=False, capture_output=True, text=True, env=environ
    )
    sessions = {int(pid) for pid in listed.stdout.split()}  # a pane's program leads a session of processes
    subprocess.run([*tmux, "kill-server"], check=False, capture_output=True, env=environ)
    clock = SystemClock()
    deadline = clock.monotonic() + PATIENCE_S
    while living := _of(sessions):
        assert clock.monotonic() < deadline, f"processes of a pane live on: {living}"
        for pid in living:
            _kill(pid)
        clock.block(0.005)


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return  # it has ended meanwhile


def _of(sessions: set[int]) -> list[int]:
    """Return the processes of these sessions that have not ended."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                state, _, _, session = (entry / "stat").read_text().rpartition(")")[2].split()[:4]
            except (FileNotFoundError, ProcessLookupError):
                continue  # it has ended meanwhile
            if int(session) in sessions and state not in "ZX":
                found.append(int(entry.name))
    return found
