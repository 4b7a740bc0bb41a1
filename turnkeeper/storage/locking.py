"""Locks held by flock for as long as a process lives: one holder for each process name and home, one reader an inbox.

Lock files are never unlinked: a second opener would lock a file that nobody else can see. Their descriptors are
close-on-exec, so that a child never keeps a lock.
"""

import contextlib
import fcntl
import os
import stat
from pathlib import Path
from typing import Self

from turnkeeper.clock import SystemClock
from turnkeeper.config.home import Home, make_private
from turnkeeper.errors import Conflict

_TRIES = 10
_TRIES_WHILE_ASKED = 1000
_PAUSE_S = 0.01
_READER = ".reader"
_LONGEST = 200  # bytes of the line that names the reader


class ProcessLock:
    """The right to be `process` on this home, held until closed or until the process dies.

    Attributes:
        after: the pid of the process that had it before, if that ended without letting it go; else None.
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
        with contextlib.suppress(OSError):  # the lock holds without it, and `holder_pid` looks on
            self._pid_path.write_text(f"{os.getpid()}\n", encoding="ascii")
        return self

    def keep(self) -> list[str]:
        """Put back what others removed or changed: the folder and its mode, the lock, the pid file; return what.

        Raises:
            Conflict: another process has taken the lock, whose file was removed; this one must end.
            OSError: it cannot be put back now.
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
        """Open the lock's file and lock it; the folder is made where it was removed."""
        with contextlib.suppress(FileExistsError):
            self._lock_path.parent.mkdir(mode=0o700)
        descriptor = os.open(self._lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if not _taken(descriptor):
            os.close(descriptor)
            raise Conflict(
                f"{self._process} already runs on this home{_holder(self._pid_path)}",
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
    """Return the pid of who took a lock, from the kernel's table; None where it has none or does not say."""
    with contextlib.suppress(OSError):
        inode = path.stat().st_ino
        for line in Path("/proc/locks").read_text(encoding="ascii").splitlines():
            fields = line.split()  # 1: FLOCK ADVISORY WRITE 4711 00:2e:1234 0 EOF
            if fields[1:4] == ["FLOCK", "ADVISORY", "WRITE"] and fields[5].endswith(f":{inode}"):
                return int(fields[4])
    return None


def _taken(descriptor: int) -> bool:
    """Take the lock and return True; return False if another process holds it.

    A process that asks whether the lock is held shares it for a moment, which is long on a busy machine. Askers are
    waited for longer than a holder.
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
    """Tell whether a live process holds the lock. Asks the kernel, not the pid file."""
    return _is_locked(home.lock(process))


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
    """Return the pid of the lock's holder, or None when nobody holds it."""
    if not is_held(home, process):
        return None
    pid = _read_pid(home.pid(process))
    return pid if pid is not None else _holder_by_kernel(home.lock(process))


def _read_pid(path: Path) -> int | None:
    with contextlib.suppress(OSError):
        return _pid_in(path)
    return None


def _pid_in(path: Path) -> int | None:
    """Return the pid that a file names; None if it is gone or names none. Raises OSError if it cannot be read now."""
    try:
        text = path.read_text(encoding="ascii").strip()
    except (FileNotFoundError, UnicodeDecodeError):
        return None
    return int(text) if text.isdigit() and text.isascii() else None


def _holder(path: Path) -> str:
    pid = _read_pid(path)
    return f" (pid {pid})" if pid is not None else ""


class ReaderLock:
    """The right to claim from one agent's folder, held until closed or until the process dies.

    Any number of processes put. A second that claims would adopt, and hand out again, what the first is working on.
    """

    def __init__(self, folder: Path, reader: str) -> None:
        self._folder = folder
        self._reader = reader
        self._descriptor: int | None = None

    def __enter__(self) -> Self:
        """Take the lock. Raises Conflict at once, naming the holder, if another process has it."""
        self._descriptor = self._take()
        return self

    def keep(self) -> list[str]:
        """Put the lock's file back where it was removed; return what was.

        Raises:
            Conflict: another process reads meanwhile, or the home was moved; this one must claim no more.
            OSError: it cannot be put back now.
        """
        path = self._folder / _READER
        try:
            if self._descriptor is None or _is_file_of(path, self._descriptor):
                return []
        except NotADirectoryError:  # a file that leads to where the home is now lies in the place of the home
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
            holder = _line(descriptor)
            os.close(descriptor)
            what = f"the inbox of {self._folder.name} is read by {holder or 'another process'}"
            raise Conflict(
                what, where=str(self._folder), hint="an inbox can have only one reader; stop the other one first"
            ) from error
        with contextlib.suppress(OSError):  # the lock holds without the name, as on a full disk
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{self._reader}, pid {os.getpid()}\n".encode(), 0)
        return descriptor

    def __exit__(self, *_error: object) -> None:
        if self._descriptor is not None:
            os.ftruncate(self._descriptor, 0)
            os.close(self._descriptor)
            self._descriptor = None


def reader_of(folder: Path) -> str:
    """Return who claims from an agent's folder now, empty for nobody. Asks the kernel, not the file."""
    path = folder / _READER
    if not _is_locked(path):
        return ""
    return path.read_bytes()[:_LONGEST].decode("utf-8", "replace").strip() or "another process"


def _line(descriptor: int) -> str:
    return os.pread(descriptor, _LONGEST, 0).decode("utf-8", "replace").strip()
