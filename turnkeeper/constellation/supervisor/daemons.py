"""The two daemons as processes: how they are found by their locks, started detached, and stopped; without RPC calls.

The supervisor uses this module, so it imports neither gRPC nor any other slow module.
"""

import os
import re
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from turnkeeper.clock import SystemClock
from turnkeeper.config.home import Home
from turnkeeper.config.surfaces import processes
from turnkeeper.errors import TurnkeeperError
from turnkeeper.rpc.process import last_beat
from turnkeeper.storage.locking import holder_pid, is_held

STOP_TIMEOUT_S = 75.0  # longer than all grace periods of the runtime together, so that it can finish
CHECK_S = 60.0
POLL_S = 0.05
_NAMED = re.compile(r"([A-Za-z0-9_.]{1,80}(?:Error|Exception|Interrupt)|Corrupt|Exhausted)\b", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class Daemon:
    """A process of the constellation.

    Attributes:
        name: the name in its socket, lock and log.
        check: the module and arguments that check if it could start; empty if only its files matter.
    """

    name: str
    package: str
    command: tuple[str, ...] = ("serve", "--home")
    check: tuple[str, ...] = ()


AGENT_RUNTIME = Daemon(
    name="agent-runtime", package="agent_runtime", check=("agent_runtime.daemon", "--check", "--home")
)
TASK_RUNNER = Daemon(name="task-runner", package="task_runner")
SUPERVISOR = Daemon(name="supervisor", package="turnkeeper.constellation.supervisor", command=())
DAEMONS = (AGENT_RUNTIME, TASK_RUNNER)
# The processes of surfaces run only if the settings enable them.
OPTIONAL = tuple(Daemon(name=one.name, package=one.package, command=()) for one in processes())
EVERY = (*DAEMONS, *OPTIONAL)  # every process that may have left markers, a lock or a log


def log_of(home: Home, daemon: Daemon) -> Path:
    return home.logs / f"{daemon.name}.log"


def process_of(home: Home, daemon: Daemon) -> psutil.Process | None:
    """Return the running holder of the lock. After a crash the pid file may name another program, so check its argv."""
    pid = holder_pid(home, daemon.name)
    return None if pid is None else process_with(pid, daemon)


def process_with(pid: int, daemon: Daemon) -> psutil.Process | None:
    """Return the process `pid` if it is running and is such a daemon. A zombie does not count."""
    try:
        process = psutil.Process(pid)
        # A process that is replacing its program (`serve` becomes the daemon) has no arguments for a moment.
        arguments = SystemClock().poll(process.cmdline, timeout_s=1.0, every_s=0.001) or []
        ours = _runs(daemon, arguments)
        return process if ours and process.status() != psutil.STATUS_ZOMBIE else None
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return None


def _runs(daemon: Daemon, arguments: Sequence[str]) -> bool:
    names = {daemon.package, daemon.package.removeprefix("turnkeeper.")}  # version 0.1 had them at the top level
    return any(part == name or part.startswith(f"{name}.") for part in arguments for name in names)


def running() -> Iterator[tuple[Home, Daemon, int]]:
    """Yield home, daemon and pid of each daemon or supervisor on this machine, found by its open lock file."""
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            arguments = process.cmdline()
            known = [daemon for daemon in (SUPERVISOR, *EVERY) if _runs(daemon, arguments)]
            opened = [Path(file.path) for file in process.open_files()] if known else []
            for daemon in known:
                locks = (path for path in opened if path.parts[-3:] == ("state", "run", f"{daemon.name}.lock"))
                yield from ((Home(root=path.parents[2]), daemon, process.pid) for path in locks)


def process_on(home: Home, pid: int, daemon: Daemon) -> psutil.Process | None:
    """Return the process `pid` if it is running and is this home's daemon, even if it does not hold the lock."""
    with suppress(psutil.Error):
        process = process_with(pid, daemon)
        return process if process is not None and str(home.root) in process.cmdline() else None
    return None


def serves(home: Home, daemon: Daemon) -> bool:
    """Return True if the lock's holder has reported that it serves. Only files are read, so this is cheap."""
    process = process_of(home, daemon)
    beat = last_beat(home, daemon.name) if process is not None else None
    return process is not None and beat is not None and beat.pid == process.pid


def is_suspended(process: psutil.Process) -> bool:
    """Return True if a signal, such as SIGSTOP, has suspended the process."""
    try:
        return bool(process.status() == psutil.STATUS_STOPPED)
    except psutil.NoSuchProcess:
        return False


def obstacle(home: Home, daemon: Daemon, process: psutil.Process) -> str:
    """Return why a running daemon cannot be called, from its process and its socket. Return an empty string if it can.

    A daemon checks its socket at every beat, so it repairs the file within seconds.
    """
    if is_suspended(process):
        return f"it is suspended by a signal; to resume it, run: kill -CONT {process.pid}"
    path = home.socket(daemon.name)
    try:
        mode = path.lstat().st_mode
    except OSError as error:
        return f"its socket {path} cannot be found: {error.strerror}"
    if not stat.S_ISSOCK(mode):
        return f"{path} is not its socket but another file: remove it"
    return "" if mode & 0o600 == 0o600 else f"its socket {path} has mode {stat.S_IMODE(mode):04o}"


def refusal(home: Home, daemon: Daemon, environ: Mapping[str, str]) -> str:
    """Return why the daemon could not start with these variables, as found by a child process.

    Otherwise return an empty string. The child loads everything that the daemon loads, such as the model with its keys
    and the author's graph.
    """
    if not daemon.check:
        return ""
    argv = [sys.executable, "-P", "-m", *daemon.check, str(home.root)]
    try:
        done = subprocess.run(argv, env=dict(environ), capture_output=True, text=True, timeout=CHECK_S, check=False)  # noqa: S603
    except subprocess.TimeoutExpired:
        return f"what it loads takes longer than {CHECK_S:.0f}s"
    if done.returncode == 0:
        return ""
    return last_error(done.stderr) or f"its check ended with exit code {done.returncode}"


def ports_of(home: Home, daemon: Daemon) -> set[int]:
    """Return the TCP ports at which a running daemon listens."""
    with suppress(psutil.Error):
        if process := process_of(home, daemon):
            opened = getattr(process, "net_connections", process.connections)  # the second is the name before psutil 6
            return {one.laddr.port for one in opened() if one.status == psutil.CONN_LISTEN}
    return set()


def environ_of(home: Home, daemon: Daemon) -> dict[str, str] | None:
    """Return the variables of a running daemon. Return None if the daemon is down or its variables cannot be read."""
    with suppress(psutil.Error):
        process = process_of(home, daemon)
        return None if process is None else process.environ()
    return None


def last_error(text: str) -> str:
    r"""Return a daemon's own one-line error, or the type of its fatal exception, but nothing else of its output.

    >>> last_error("Traceback …\nsqlite3.OperationalError: secret"), last_error("error: config.toml:2: unknown key")
    ('sqlite3.OperationalError', 'config.toml:2: unknown key')
    """
    lines = [line for line in text.splitlines() if line.strip()]
    if not lines:
        return ""
    if lines[-1].startswith("error: "):
        return lines[-1].removeprefix("error: ")[:500]
    named = _NAMED.match(lines[-1])
    return named[1] if named else ""


def spawn(home: Home, daemon: Daemon, environ: Mapping[str, str]) -> int:
    """Start a daemon in a new session, so that it survives its parent. Return its pid."""
    # -P: a file in the current folder must not replace a module.
    argv = [sys.executable, "-P", "-m", daemon.package, *daemon.command, str(home.root)]
    output = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    files = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, str(log_of(home, daemon)), output, 0o600),
        (os.POSIX_SPAWN_DUP2, 1, 2),
    ]
    return os.posix_spawn(argv[0], argv, environ, file_actions=files, setsid=True)


def stop(home: Home, daemon: Daemon, *, force: bool = False, timeout_s: float = STOP_TIMEOUT_S) -> str:
    """Stop a daemon. Return the result: `was not running`, `stopped`, or `killed` if it did not end in time."""
    process = process_of(home, daemon)
    if process is None:
        return "was not running"
    _signal(process, signal.SIGKILL if force else signal.SIGTERM)
    _signal(process, signal.SIGCONT)  # a suspended process handles no other signal
    if _gone(home, daemon, process.pid, timeout_s):
        return "killed" if force else "stopped"
    _signal(process, signal.SIGKILL)
    if not _gone(home, daemon, process.pid, STOP_TIMEOUT_S):
        raise TurnkeeperError(f"{daemon.name} (pid {process.pid}) does not end", where=str(home.lock(daemon.name)))
    return f"killed after {timeout_s:.0f}s"


def kill(home: Home, daemon: Daemon) -> int:
    """Kill a running daemon, as a crash would. Return its pid. Raises TurnkeeperError if the daemon does not run."""
    process = process_of(home, daemon)
    if process is None:
        raise TurnkeeperError(f"{daemon.name} does not run")
    _signal(process, signal.SIGKILL)
    _gone(home, daemon, process.pid, STOP_TIMEOUT_S)
    return process.pid


def _signal(process: psutil.Process, number: signal.Signals) -> None:
    try:
        process.send_signal(number)
    except psutil.NoSuchProcess:
        return  # it has ended by itself, as requested


def _gone(home: Home, daemon: Daemon, pid: int, timeout_s: float) -> bool:
    """Wait until `pid` no longer holds the lock. By then a supervisor may have started another process."""

    def gone() -> bool:
        return not is_held(home, daemon.name) or holder_pid(home, daemon.name) not in {pid, None}

    return SystemClock().poll(gone, timeout_s=timeout_s, every_s=POLL_S) is not None
