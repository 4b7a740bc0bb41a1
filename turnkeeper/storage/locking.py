"""Locks held by flock while a process runs: one holder for each process name and home, one reader for each inbox.

Lock files are never unlinked, because a process that opens the name later would lock a different file. The descriptors
are close-on-exec, so that a child process never holds a lock.
"""

import contextlib
import fcntl
import os
import stat
from importlib import import_module
from pathlib import Path
from typing import Self

from turnkeeper.clock import SystemClock
from turnkeeper.config.home import Home, make_private
from turnkeeper.errors import Conflict, InvalidInput

_TRIES = 10
_TRIES_WHILE_ASKED = 1000
_PAUSE_S = 0.01
_READER = ".reader"
_LONGEST = 200  # length in bytes of the line that names the reader
STARTING = "it is being started; repeat the command in a few seconds, or see: turnkeeper status"


class ProcessLock:
    """The right to be `process` on this home. It lasts until the lock is closed or the process dies.

    Attributes:
        after: the pid of the previous holder, if that process ended without releasing the lock; else None.
    """

    after: int | None = None

    def __init__(self, home: Home, process: str) -> None:
        self._lock_path = home.lock(process)
        self._pid_path = home.pid(process)
        self._process = process
        self._descriptor: int | None = None

    def __enter__(self) -> Self:
        """Take the lock and write the pid file. Raises Conflict if another process holds it."""
        self._descriptor = self._take()
        self.after = _read_pid(self._pid_path)
        with contextlib.suppress(OSError):  # the lock works without the pid file, and `holder_pid` also asks the kernel
            self._pid_path.write_text(f"{os.getpid()}\n", encoding="ascii")
        return self

    def keep(self) -> list[str]:
        """Restore the lock's files if they were removed or changed: the folder with its mode, the lock, the pid file.

        Return a description of each repair. Raises:
            Conflict: another process took the lock after its file was removed; this process must end.
            OSError: the files cannot be restored at the moment.
        """
        repaired = _keep_private(self._lock_path.parent)
        if self._descriptor is not None and not _is_file_of(self._lock_path, self._descriptor):
            before, self._descriptor = self._descriptor, self._take()
            os.close(before)
            repaired.append(f"{self._lock_path} was removed")
        if _pid_in(self._pid_path) != os.getpid():
            self._pid_path.unlink(missing_ok=True)
            self._pid_path.write_text(f"{os.getpid()}\n", encoding="ascii")
            repaired.append(f"{self._pid_path} was removed or changed")
        return repaired

    def __exit__(self, *_error: object) -> None:
        if self._descriptor is not None:
            if _read_pid(self._pid_path) == os.getpid():
                with contextlib.suppress(OSError):
                    self._pid_path.unlink(missing_ok=True)
            os.close(self._descriptor)
            self._descriptor = None

    def _take(self) -> int:
        """Open the lock's file and lock it. Create the folder if it was removed."""
        with contextlib.suppress(FileExistsError):
            self._lock_path.parent.mkdir(mode=0o700)
        descriptor = os.open(self._lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if not _taken(descriptor):
            os.close(descriptor)
            pid = _read_pid(self._pid_path)
            raise Conflict(
                f"{self._process} already runs on this home{'' if pid is None else f' (pid {pid})'}",
                where=str(self._lock_path),
                hint="stop it with: turnkeeper down",
            )
        return descriptor


def _keep_private(folder: Path) -> list[str]:
    try:
        mode = stat.S_IMODE(folder.lstat().st_mode)
    except FileNotFoundError:
        folder.mkdir(mode=0o700)
        return [f"{folder} was removed"]
    if mode == 0o700 or folder.is_symlink():
        return []
    folder.chmod(0o700)
    return [f"{folder} had mode {mode:04o}"]


def _is_file_of(path: Path, descriptor: int) -> bool:
    try:
        found, ours = path.lstat(), os.fstat(descriptor)
    except FileNotFoundError:
        return False
    return (found.st_dev, found.st_ino) == (ours.st_dev, ours.st_ino)


def _holder_by_kernel(path: Path) -> int | None:
    """Return the pid of a lock's holder from the kernel's table. Return None if it has none or is unreadable."""
    with contextlib.suppress(OSError):
        inode = path.stat().st_ino
        for line in Path("/proc/locks").read_text(encoding="ascii").splitlines():
            fields = line.split()  # 1: FLOCK ADVISORY WRITE 4711 00:2e:1234 0 EOF
            if fields[1:4] == ["FLOCK", "ADVISORY", "WRITE"] and fields[5].endswith(f":{inode}"):
                return int(fields[4])
    return None


def _taken(descriptor: int) -> bool:
    """Take the lock and return True; return False if another process holds it.

    A process that checks a lock shares it briefly; on a busy machine this can take longer. Wait longer for a check to
    end than for a holder to release the lock.
    """
    clock, refused, asked = SystemClock(), 0, 0
    while not _locks(descriptor, fcntl.LOCK_EX):
        if _locks(descriptor, fcntl.LOCK_SH):
            fcntl.flock(descriptor, fcntl.LOCK_UN)
            asked += 1
        else:
            refused += 1
        if refused == _TRIES or asked == _TRIES_WHILE_ASKED:
            return False
        clock.block(_PAUSE_S)
    return True


def _locks(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def is_held(home: Home, process: str) -> bool:
    """Return True if a running process holds the lock. Ask the kernel; do not read the pid file."""
    return _is_locked(home.lock(process))


def way_to(home: Home, process: str) -> str:
    """Return advice for a daemon that cannot be reached: ask on another machine, wait, or start it manually."""
    settings = import_module("turnkeeper.config.settings")  # this import is slow
    with contextlib.suppress(InvalidInput):
        if process not in settings.load_settings(home).daemons:
            return "[node] roles leaves it out on this machine; ask on another: turnkeeper status lists them"
    return STARTING if is_starting(home, process) else "start it with: turnkeeper up"


def is_starting(home: Home, process: str) -> bool:
    """Return True if a daemon that does not answer yet is running, or if its supervisor starts it."""
    has_stopped_trying = (home.run.parent / f"{process}-crashloop-suspected").exists()
    return is_held(home, process) or (is_held(home, "supervisor") and not has_stopped_trying)


def _is_locked(path: Path) -> bool:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        return not _locks(descriptor, fcntl.LOCK_SH)
    finally:
        os.close(descriptor)


def holder_pid(home: Home, process: str) -> int | None:
    """Return the pid of the lock's holder. Return None if no process holds it."""
    if not is_held(home, process):
        return None
    pid = _read_pid(home.pid(process))
    return pid if pid is not None else _holder_by_kernel(home.lock(process))


def _read_pid(path: Path) -> int | None:
    with contextlib.suppress(OSError):
        return _pid_in(path)
    return None


def _pid_in(path: Path) -> int | None:
    """Return the pid in a file. None if the file is gone or has no pid. Raises OSError if the file cannot be read."""
    try:
        text = path.read_text(encoding="ascii").strip()
    except (FileNotFoundError, UnicodeDecodeError):
        return None
    return int(text) if text.isdigit() and text.isascii() else None


class ReaderLock:
    """The right to claim from one agent's folder. It lasts until the lock is closed or the process dies.

    Any number of processes may put. A second claimer would adopt and hand out the envelopes that the first one handles.
    """

    def __init__(self, folder: Path, reader: str) -> None:
        self._folder = folder
        self._reader = reader
        self._descriptor: int | None = None

    def __enter__(self) -> Self:
        """Take the lock. Raises Conflict at once, and names the holder, if another process holds it."""
        self._descriptor = self._take()
        return self

    def keep(self) -> list[str]:
        """Restore the lock's file if it was removed. Return a description of the repair.

        Raises:
            Conflict: another process has become the reader, or the home was moved. This process must not claim again.
            OSError: the file cannot be restored at the moment.
        """
        path = self._folder / _READER
        try:
            if self._descriptor is None or _is_file_of(path, self._descriptor):
                return []
        except NotADirectoryError:  # the home's old path is now a file that names its new path
            raise Conflict("the home was moved", where=str(self._folder), hint="start the reader again") from None
        before, self._descriptor = self._descriptor, self._take()
        os.close(before)
        return [f"{path} was removed"]

    def _take(self) -> int:
        make_private(self._folder)
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(self._folder / _READER, flags, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.pread(descriptor, _LONGEST, 0).decode("utf-8", "replace").strip()
            os.close(descriptor)
            what = f"the inbox of {self._folder.name} is read by {holder or 'another process'}"
            raise Conflict(
                what, where=str(self._folder), hint="an inbox can have only one reader; stop the other one first"
            ) from error
        with contextlib.suppress(OSError):  # the lock works without the text, which a full disk can prevent
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{self._reader}, pid {os.getpid()}\n".encode(), 0)
        return descriptor

    def __exit__(self, *_error: object) -> None:
        if self._descriptor is not None:
            os.ftruncate(self._descriptor, 0)
            os.close(self._descriptor)
            self._descriptor = None


def reader_of(folder: Path) -> str:
    """Return the reader of an agent's folder, or "" if there is none. Ask the kernel; do not read the file."""
    path = folder / _READER
    if not _is_locked(path):
        return ""
    return path.read_bytes()[:_LONGEST].decode("utf-8", "replace").strip() or "another process"


def identity_of(path: Path) -> tuple[int, int]:
    """Return the device and the inode of a file, or zeros if the file is missing."""
    try:
        found = path.lstat()
    except OSError:
        return (0, 0)
    return (found.st_dev, found.st_ino)
