"""One owner for each process name and home: a lock file held by flock, and the pid of its holder."""

import contextlib
import fcntl
import os
from pathlib import Path
from types import TracebackType
from typing import Self

from turnkeeper.clock import SystemClock
from turnkeeper.config.home import Home
from turnkeeper.errors import Conflict

_TRIES = 10
_PAUSE_S = 0.01


class ProcessLock:
    """The right to be `process` on this home, held until closed or until the process dies.

    The lock file is never unlinked: a second opener would lock a file that nobody else can see. Its descriptor is
    close-on-exec, so that a child never keeps it.
    """

    def __init__(self, home: Home, process: str) -> None:
        self._lock_path = home.lock(process)
        self._pid_path = home.pid(process)
        self._process = process
        self._descriptor: int | None = None

    def __enter__(self) -> Self:
        """Take the lock and write the pid file. Raises Conflict if another process holds it."""
        descriptor = os.open(self._lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if not _taken(descriptor):
            os.close(descriptor)
            raise Conflict(
                f"{self._process} already runs on this home{_holder(self._pid_path)}",
                where=str(self._lock_path),
                hint="stop it with: turnkeeper down",
            )
        self._descriptor = descriptor
        self._pid_path.write_text(f"{os.getpid()}\n", encoding="ascii")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Remove the pid file, then give the lock back."""
        if self._descriptor is not None:
            self._pid_path.unlink(missing_ok=True)
            os.close(self._descriptor)
            self._descriptor = None


def _taken(descriptor: int) -> bool:
    """Take the lock. Whoever asks if it is held holds it too, for a moment: try again before giving up."""
    clock = SystemClock()
    for attempt in range(_TRIES):
        if attempt:
            clock.block(_PAUSE_S)
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
    return False


def is_held(home: Home, process: str) -> bool:
    """Tell whether a live process holds the lock. Asks the kernel, not the pid file."""
    try:
        descriptor = os.open(home.lock(process), os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def holder_pid(home: Home, process: str) -> int | None:
    """Return the pid of the lock's holder, or None when nobody holds it."""
    if not is_held(home, process):
        return None
    return _read_pid(home.pid(process))


def _read_pid(path: Path) -> int | None:
    try:
        text = path.read_text(encoding="ascii").strip()
    except (FileNotFoundError, UnicodeDecodeError):
        return None
    return int(text) if text.isdigit() and text.isascii() else None


def _holder(path: Path) -> str:
    pid = _read_pid(path)
    return f" (pid {pid})" if pid is not None else ""
