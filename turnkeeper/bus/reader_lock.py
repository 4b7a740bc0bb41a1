"""The one reader of an inbox: who may claim from an agent's folder, held by flock for as long as it reads.

Any number of processes put. A second that claims would adopt, and hand out again, what the first is working on.
"""

import fcntl
import os
from pathlib import Path
from types import TracebackType
from typing import Self

from turnkeeper.config.home import make_private
from turnkeeper.errors import Conflict

LOCK = ".reader"
_LONGEST = 200  # bytes of the holder's line


class ReaderLock:
    """The right to claim from one agent's folder, held until closed or until the process dies.

    The file is never unlinked: a second opener would lock one that nobody else can see. A child never inherits it.
    """

    def __init__(self, folder: Path, reader: str) -> None:
        """Take the agent's folder, and the name under which others are told of this reader."""
        self._folder = folder
        self._reader = reader
        self._descriptor: int | None = None

    def __enter__(self) -> Self:
        """Take the lock. Raises Conflict at once, naming the holder, if another process has it."""
        make_private(self._folder)
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(self._folder / LOCK, flags, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = _line(descriptor)
            os.close(descriptor)
            what = f"the inbox of {self._folder.name} is read by {holder or 'another process'}"
            raise Conflict(
                what, where=str(self._folder), hint="an inbox has one reader: stop that one first"
            ) from error
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{self._reader}, pid {os.getpid()}\n".encode(), 0)
        self._descriptor = descriptor
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Give the lock back."""
        if self._descriptor is not None:
            os.ftruncate(self._descriptor, 0)
            os.close(self._descriptor)
            self._descriptor = None


def reader_of(folder: Path) -> str:
    """Return who claims from an agent's folder now, empty for nobody. Asks the kernel, not the file."""
    try:
        descriptor = os.open(folder / LOCK, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return ""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _line(descriptor) or "another process"
    finally:
        os.close(descriptor)
    return ""


def _line(descriptor: int) -> str:
    return os.pread(descriptor, _LONGEST, 0).decode("utf-8", "replace").strip()
