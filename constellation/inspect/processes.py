"""The two daemons as their callers see them: started one by one and awaited, asked how they stand.

`constellation/supervisor/up_down.py` brings a supervised constellation up and down; this module is for callers that
look after the daemons themselves.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from constellation.supervisor.daemons import (
    AGENT_RUNTIME,
    DAEMONS,
    POLL_S,
    SUPERVISOR,
    TASK_RUNNER,
    Daemon,
    kill,
    log_of,
    process_of,
    spawn,
    stop,
)
from turnkeeper.clock import SystemClock
from turnkeeper.config.home import Home
from turnkeeper.errors import TurnkeeperError
from turnkeeper.rpc.channel import is_serving
from turnkeeper.storage.locking import is_held

__all__ = [
    "AGENT_RUNTIME",
    "DAEMONS",
    "SUPERVISOR",
    "TASK_RUNNER",
    "Daemon",
    "Standing",
    "kill",
    "standing",
    "start",
    "stop",
]
START_TIMEOUT_S = 60.0
_TAIL_LINES = 5


@dataclass(frozen=True, kw_only=True)
class Standing:
    """How a process stands.

    Attributes:
        state: `running` (answers), `starting` (holds its lock, does not answer) or `stopped`.
        pid: its pid; None when stopped.
        since: when its process began, seconds since 1970; None when stopped.
        log: where its own output goes.
    """

    state: str
    pid: int | None
    since: float | None
    log: Path


def standing(home: Home, daemon: Daemon) -> Standing:
    """Ask the kernel and the process itself how it stands. The supervisor answers nobody: it runs if it lives."""
    log = log_of(home, daemon)
    process = process_of(home, daemon)
    if process is None:
        return Standing(state="stopped", pid=None, since=None, log=log)
    running = daemon is SUPERVISOR or is_serving(home.socket(daemon.name))
    return Standing(state="running" if running else "starting", pid=process.pid, since=process.create_time(), log=log)


def start(home: Home, daemons: Sequence[Daemon], environ: Mapping[str, str]) -> dict[str, bool]:
    """Start daemons, detached and side by side, and return once all answer; by name, False for one that ran already.

    Raises:
        TurnkeeperError: one ended, or did not answer in time; the last lines of its log say why.
    """
    children = {daemon.name: None if is_held(home, daemon.name) else spawn(home, daemon, environ) for daemon in daemons}
    for daemon in daemons:
        _await_health(home, daemon, children[daemon.name])
    return {name: child is not None for name, child in children.items()}


def _await_health(home: Home, daemon: Daemon, child: int | None) -> None:
    clock, log = SystemClock(), log_of(home, daemon)
    deadline = clock.monotonic() + START_TIMEOUT_S
    while clock.monotonic() < deadline:
        if is_serving(home.socket(daemon.name)):
            return
        ended = os.waitpid(child, os.WNOHANG) if child is not None else (0, 0)
        if ended[0]:
            how = f"{daemon.name} ended with exit code {os.waitstatus_to_exitcode(ended[1])}"
            raise TurnkeeperError(f"{how}: {_tail(log)}", where=str(log))
        clock.block(POLL_S)
    raise TurnkeeperError(f"{daemon.name} did not answer within {START_TIMEOUT_S:.0f}s: {_tail(log)}", where=str(log))


def _tail(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    return " | ".join(line.strip() for line in lines[-_TAIL_LINES:])
