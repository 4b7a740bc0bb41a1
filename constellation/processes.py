"""Starting and stopping the two daemons: detached, found again by their locks, never by a remembered child."""

import os
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from turnkeeper.clock import SystemClock
from turnkeeper.errors import TurnkeeperError
from turnkeeper.home import Home
from turnkeeper.locking import holder_pid, is_held
from turnkeeper.rpc.channel import is_serving

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 60.0
_POLL_S = 0.05
_TAIL_LINES = 5


@dataclass(frozen=True, kw_only=True)
class Daemon:
    """One of the constellation's processes.

    Attributes:
        name: as in its socket, lock and log.
        package: the package whose `serve` command it is.
    """

    name: str
    package: str


AGENT_RUNTIME = Daemon(name="agent-runtime", package="agent_runtime")
TASK_RUNNER = Daemon(name="task-runner", package="task_runner")
DAEMONS = (AGENT_RUNTIME, TASK_RUNNER)


@dataclass(frozen=True, kw_only=True)
class Standing:
    """How a daemon stands.

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
    """Ask the kernel and the daemon itself how it stands."""
    log = _log(home, daemon)
    process = _process(home, daemon)
    if process is None:
        return Standing(state="stopped", pid=None, since=None, log=log)
    state = "running" if is_serving(home.socket(daemon.name)) else "starting"
    return Standing(state=state, pid=process.pid, since=process.create_time(), log=log)


def start(home: Home, daemons: Sequence[Daemon], environ: Mapping[str, str]) -> dict[str, bool]:
    """Start daemons, detached and side by side, and return once all answer; by name, False for one that ran already.

    Raises:
        TurnkeeperError: one ended, or did not answer in time; the last lines of its log say why.
    """
    children = {
        daemon.name: None if is_held(home, daemon.name) else _spawn(home, daemon, environ) for daemon in daemons
    }
    for daemon in daemons:
        _await_health(home, daemon, children[daemon.name])
    return {name: child is not None for name, child in children.items()}


def stop(home: Home, daemon: Daemon, *, force: bool = False, timeout_s: float = STOP_TIMEOUT_S) -> str:
    """Stop a daemon and return how: `was not running`, `stopped`, or `killed` when it did not end in time."""
    process = _process(home, daemon)
    if process is None:
        return "was not running"
    process.send_signal(signal.SIGKILL if force else signal.SIGTERM)
    if _gone(home, daemon, timeout_s):
        return "killed" if force else "stopped"
    process.send_signal(signal.SIGKILL)
    if not _gone(home, daemon, STOP_TIMEOUT_S):
        raise TurnkeeperError(f"{daemon.name} (pid {process.pid}) does not end", where=str(home.lock(daemon.name)))
    return f"killed after {timeout_s:.0f}s"


def kill(home: Home, daemon: Daemon) -> int:
    """Kill a running daemon as a crash would; return the pid it had. Raises TurnkeeperError if it does not run."""
    process = _process(home, daemon)
    if process is None:
        raise TurnkeeperError(f"{daemon.name} does not run")
    process.kill()
    _gone(home, daemon, STOP_TIMEOUT_S)
    return process.pid


def _log(home: Home, daemon: Daemon) -> Path:
    return home.logs / f"{daemon.name}.log"


def _process(home: Home, daemon: Daemon) -> psutil.Process | None:
    """Return the live holder of the lock. A pid file left by a crash may name a stranger: its argv must fit."""
    pid = holder_pid(home, daemon.name)
    if pid is None:
        return None
    try:
        process = psutil.Process(pid)
        ours = any(part.split(".")[0] == daemon.package for part in process.cmdline())
    except psutil.NoSuchProcess:
        return None
    return process if ours else None


def _spawn(home: Home, daemon: Daemon, environ: Mapping[str, str]) -> int:
    """Start a daemon in a session of its own and return its pid; it outlives whoever started it."""
    argv = [sys.executable, "-m", daemon.package, "serve", "--home", str(home.root)]
    output = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    files = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, str(_log(home, daemon)), output, 0o600),
        (os.POSIX_SPAWN_DUP2, 1, 2),
    ]
    return os.posix_spawn(argv[0], argv, environ, file_actions=files, setsid=True)


def _await_health(home: Home, daemon: Daemon, child: int | None) -> None:
    clock, log = SystemClock(), _log(home, daemon)
    deadline = clock.monotonic() + START_TIMEOUT_S
    while clock.monotonic() < deadline:
        if is_serving(home.socket(daemon.name)):
            return
        ended = os.waitpid(child, os.WNOHANG) if child is not None else (0, 0)
        if ended[0]:
            how = f"{daemon.name} ended with exit code {os.waitstatus_to_exitcode(ended[1])}"
            raise TurnkeeperError(f"{how}: {_tail(log)}", where=str(log))
        clock.block(_POLL_S)
    raise TurnkeeperError(f"{daemon.name} did not answer within {START_TIMEOUT_S:.0f}s: {_tail(log)}", where=str(log))


def _gone(home: Home, daemon: Daemon, timeout_s: float) -> bool:
    clock = SystemClock()
    deadline = clock.monotonic() + timeout_s
    while is_held(home, daemon.name):
        if clock.monotonic() >= deadline:
            return False
        clock.block(_POLL_S)
    return True


def _tail(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    return " | ".join(line.strip() for line in lines[-_TAIL_LINES:])
