"""The limits of an agent's folders: how much may wait, how long delivered envelopes stay, what is swept up.

Quarantine is never emptied: a person looks at it, and queues again or removes by hand.
"""

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

from turnkeeper.bus.file_names import ns_of, writer_of
from turnkeeper.bus.key_index import KeyLinks
from turnkeeper.clock import Clock
from turnkeeper.errors import Exhausted
from turnkeeper.storage.files import Files
from turnkeeper.times import to_us

REASON = ".reason"
_COUNT_AGAIN = 1024  # puts between two counts of the files, which other processes add to and remove from too
_STALE_S = 86_400  # a temporary file older than this is nobody's, also where its writer's pid lives again


@dataclass(frozen=True, kw_only=True)
class Quota:
    """What may wait in one inbox. Several writing processes may together pass it by a thousand envelopes each.

    Attributes:
        most_waiting: envelopes.
        most_bytes: their bytes together.
    """

    most_waiting: int = 100_000
    most_bytes: int = 1 << 30


class Capacity:
    """Counts down what an inbox still takes; counts the files again when that is used up."""

    def __init__(self, folder: Path, quota: Quota) -> None:
        self._folder = folder
        self._quota = quota
        self._left = self._left_bytes = self._until_count = 0
        self._unwritten = self._unwritten_bytes = 0

    def reserve(self, size_bytes: int) -> None:
        """Reserve room for one envelope. Raises Exhausted: the sender is to wait until the agent has caught up."""
        if self._left < 1 or self._left_bytes < size_bytes or self._until_count < 1:
            self._count()
        if self._left < 1:
            raise self._full(f"{self._quota.most_waiting} envelopes")
        if self._left_bytes < size_bytes:
            raise self._full(f"{self._quota.most_bytes} bytes")
        self._left -= 1
        self._left_bytes -= size_bytes
        self._until_count -= 1
        self._unwritten += 1
        self._unwritten_bytes += size_bytes

    def settle(self) -> None:
        """Say that every reserved envelope is written or will never be: the next count finds the files themselves."""
        self._unwritten = self._unwritten_bytes = 0

    def _count(self) -> None:
        with os.scandir(self._folder) as entries:
            sizes = [_size(entry) for entry in entries if not entry.name.startswith(".")]
        self._left = self._quota.most_waiting - len(sizes) - self._unwritten
        self._left_bytes = self._quota.most_bytes - sum(sizes) - self._unwritten_bytes
        self._until_count = _COUNT_AGAIN

    def _full(self, what: str) -> Exhausted:
        return Exhausted(f"the inbox holds {what}", where=str(self._folder), hint="let the agent catch up")


@dataclass(frozen=True, kw_only=True)
class Retention:
    """How long delivered envelopes are kept; whichever bound is reached first.

    Attributes:
        keep_s: seconds since the envelope was put.
        most: how many, the newest.
    """

    keep_s: int = 14 * 86_400
    most: int = 10_000


def prune(folder: Path, *, files: Files, clock: Clock, retention: Retention) -> int:
    """Remove delivered envelopes past retention, oldest first, each with its key; return how many."""
    delivered = folder / "delivered"
    names = [name for name in files.names(delivered) if not name.startswith(".")]
    now_ns = to_us(clock.now()) * 1000
    surplus = len(names) - retention.most
    old = [
        name
        for place, name in enumerate(names)
        if place < surplus or _put_ns(delivered / name) < now_ns - retention.keep_s * 10**9
    ]
    links = KeyLinks(folder, files).by_inode() if old else {}
    for name in old:
        with contextlib.suppress(FileNotFoundError):  # another process of this agent prunes too
            link = links.get((delivered / name).lstat().st_ino)
            if link is not None:
                files.unlink(delivered / link)
            files.unlink(delivered / name)
    return len(old)


def sweep(folder: Path, *, files: Files, clock: Clock) -> int:
    """Remove temporary files of dead writers, and reasons whose envelope is not in quarantine; return how many."""
    now_ns = to_us(clock.now()) * 1000
    stale = [
        folder / "inbox" / name
        for name in files.names(folder / "inbox")
        if (pid := writer_of(name)) is not None
        and (not _lives(pid) or _put_ns(folder / "inbox" / name) < now_ns - _STALE_S * 10**9)
    ]
    set_aside = set(files.names(folder / "quarantine"))
    claimed = set(files.names(folder / "claimed"))
    stale += [
        folder / "quarantine" / name
        for name in set_aside
        if name.endswith(REASON) and not {name.removesuffix(REASON)} & (set_aside | claimed)
    ]
    for path in stale:
        files.unlink(path)
    return len(stale)


def _put_ns(path: Path) -> int:
    named = ns_of(path.name.removeprefix(".").removesuffix(".tmp"))
    with contextlib.suppress(FileNotFoundError):
        return path.lstat().st_mtime_ns if named is None else named
    return 0


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True


def _size(entry: "os.DirEntry[str]") -> int:
    try:
        return entry.stat(follow_symlinks=False).st_size
    except FileNotFoundError:
        return 0  # claimed meanwhile
