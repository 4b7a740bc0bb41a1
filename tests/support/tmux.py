"""Ending a tmux server that a test started."""

import os
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress

import psutil

PATIENCE_S = 60.0


def end(tmux: Sequence[str], environ: Mapping[str, str]) -> None:
    """End a server and all programs of its panes. Return once none runs that could still write into the home.

    `tmux kill-server` returns before a shell in a pane has ended.
    """
    asked = [*tmux, "list-panes", "-a", "-F", "#{pane_pid}"]
    listed = subprocess.run(asked, check=False, capture_output=True, text=True, env=environ)
    sessions = {int(pid) for pid in listed.stdout.split()}  # the program of a pane leads a session of processes
    subprocess.run([*tmux, "kill-server"], check=False, capture_output=True, env=environ)
    while living := [one for one in psutil.process_iter() if _session(one) in sessions]:
        for one in living:
            with suppress(psutil.NoSuchProcess):
                one.kill()
        _, left = psutil.wait_procs(living, PATIENCE_S)
        assert not left, f"programs of a terminal do not end: {left}"


def _session(one: psutil.Process) -> int:
    """Return the session of a process. 0 if it has ended."""
    try:
        return os.getsid(one.pid) if one.status() != psutil.STATUS_ZOMBIE else 0
    except (ProcessLookupError, psutil.NoSuchProcess):
        return 0
