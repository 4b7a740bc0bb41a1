"""An agent's folders: the owners of idempotency keys, the states of envelopes, the quota, and the removal of old files.

For an agent without a database, files decide which envelope owns a key. When a process claims an envelope with a key,
it links the file exclusively as `delivered/.key-<digest>`. The envelope in that file owns the key. Any other envelope
with the same key is dropped. The link is in the folder of delivered envelopes, so one sync makes both the archived
envelope and the link durable. The link can be made again from the envelope, and is removed with the envelope. The
sender of an envelope with a key reads the envelope's state from the same files.

Quarantine is never emptied automatically. A person inspects an envelope and then requeues or removes it.
"""

import contextlib
import fcntl
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from turnkeeper.bus.durable_writes import ns_of, writer_of
from turnkeeper.bus.envelope import decode
from turnkeeper.bus.seals import LARGEST_FILE, unsealed
from turnkeeper.clock import Clock
from turnkeeper.config.home import AGENT, Home
from turnkeeper.errors import Corrupt, Exhausted, InvalidInput
from turnkeeper.storage.files import Files
from turnkeeper.times import to_us

PREFIX = ".key-"
_TRIES = 16


class KeyLinks:
    """The key links of one agent."""

    def __init__(self, folder: Path, files: Files) -> None:
        self._claimed = folder / "claimed"
        self._delivered = folder / "delivered"
        self._files = files

    def settle(self, key: str, name: str) -> bool:
        """Take the key for the claimed envelope `name`. Return False if another envelope owns the key."""
        mine, link = self._claimed / name, self._link(key)
        for _ in range(_TRIES):
            try:
                self._files.link(mine, link)
            except FileExistsError:
                pass
            else:
                return True
            with contextlib.suppress(FileNotFoundError):  # removed between the two reads
                found = link.stat()
                if found.st_ino == mine.stat().st_ino:
                    return True
                if found.st_nlink > 1:
                    return False
                self._forget_orphan(link)
        return False

    def name_of(self, key: str) -> str:
        """Return the name of the envelope that owns a key. Return an empty string while the envelope is being moved."""
        with contextlib.suppress(FileNotFoundError):
            owner = self._link(key).stat().st_ino
            for folder in (self._claimed, self._delivered):
                with os.scandir(folder) as entries:
                    for entry in entries:
                        if entry.inode() == owner and not entry.name.startswith("."):
                            return entry.name
        return ""

    def inode_of(self, key: str) -> int | None:
        """Return the inode of the envelope that owns a key. None if the key was never claimed or its file is gone."""
        with contextlib.suppress(FileNotFoundError):
            found = self._link(key).stat()
            return found.st_ino if found.st_nlink > 1 else None
        return None

    def by_inode(self) -> dict[int, str]:
        with os.scandir(self._delivered) as entries:
            return {entry.inode(): entry.name for entry in entries if entry.name.startswith(PREFIX)}

    def rebuild(self) -> None:
        """Create missing links, for example after a restore copied the files. No process may claim meanwhile."""
        for name in self.by_inode().values():
            if (self._delivered / name).stat().st_nlink == 1:
                self._forget_orphan(self._delivered / name)
        linked = self.by_inode()
        for folder in (self._delivered, self._claimed):
            for name, inode in _visible(folder):
                if inode not in linked:
                    self._link_again(folder / name)

    def _link_again(self, path: Path) -> None:
        with contextlib.suppress(InvalidInput, Corrupt, FileNotFoundError, FileExistsError):
            key = decode(unsealed(self._files.read(path, LARGEST_FILE))).idempotency_key
            if key:
                self._files.link(path, self._link(key))

    def _forget_orphan(self, link: Path) -> None:
        """Remove a key link if it is the last name of its file. Two claimers cannot remove each other's link."""
        descriptor = os.open(self._delivered, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if link.stat().st_nlink == 1:
                self._files.unlink(link)
        except FileNotFoundError:
            pass
        finally:
            os.close(descriptor)

    def _link(self, key: str) -> Path:
        return self._delivered / f"{PREFIX}{hashlib.sha256(key.encode()).hexdigest()[:40]}"


def _visible(folder: Path) -> Iterator[tuple[str, int]]:
    with os.scandir(folder) as entries:
        found = [(entry.name, entry.inode()) for entry in entries if not entry.name.startswith(".")]
    yield from sorted(found)


class EnvelopeState(StrEnum):
    """The state of an envelope, in the form that its sender gets."""

    WAITING = "waiting"
    CLAIMED = "claimed"
    DELIVERED = "delivered"
    QUARANTINED = "quarantined"
    GONE = "gone"  # removed by age after its delivery, or removed manually


def envelope_states(folder: Path, wanted: Mapping[str, str], files: Files) -> dict[str, EnvelopeState]:
    """Return the state of each envelope, by key. `wanted` maps each key to the name of its envelope.

    Envelopes move while the folders are read. The folders are read in the order of the moves. So each envelope is found
    in the folder that it just left or in the next one.
    """
    waiting = set(files.names(folder / "inbox"))
    claimed = set(files.names(folder / "claimed"))
    found = {key: EnvelopeState.WAITING for key, name in wanted.items() if name in waiting}
    found |= {key: EnvelopeState.CLAIMED for key, name in wanted.items() if name in claimed and key not in found}
    left = {key: name for key, name in wanted.items() if key not in found}
    return found | (_further(folder, left, _inodes(folder / "claimed", claimed), files) if left else {})


def _further(
    folder: Path, left: Mapping[str, str], claimed_inodes: Mapping[int, str], files: Files
) -> dict[str, EnvelopeState]:
    """Return the state of envelopes that are neither waiting nor claimed under their own names."""
    links = KeyLinks(folder, files)
    owners = {key: links.inode_of(key) for key in left}
    delivered, set_aside = set(files.names(folder / "delivered")), set(files.names(folder / "quarantine"))
    found = {}
    for key, name in left.items():
        if owners[key] in claimed_inodes:  # claimed under a different name, or adopted by a later reader
            found[key] = EnvelopeState.CLAIMED
        elif owners[key] is not None or name in delivered:
            found[key] = EnvelopeState.DELIVERED
        else:
            found[key] = EnvelopeState.QUARANTINED if name in set_aside else EnvelopeState.GONE
    return found


def _inodes(folder: Path, names: set[str]) -> dict[int, str]:
    found = {}
    for name in names:
        with contextlib.suppress(FileNotFoundError):  # another process has archived it
            found[(folder / name).lstat().st_ino] = name
    return found


REASON = ".reason"
_COUNT_AGAIN = 1024  # fewest puts between two counts of the files, because other processes add and remove files, too
_WRITERS = 8  # a process uses at most an eighth of the free room between two counts, so eight processes can share it
_LARGEST_STEP_S = 86_400
_STALE_S = 86_400  # an older temporary file has no writer, even if another process now has its pid


@dataclass(frozen=True, kw_only=True)
class Quota:
    """The limits of one inbox. Up to eight concurrent writers may exceed them by a thousand envelopes per process.

    Attributes:
        most_bytes: the most bytes of all waiting envelopes together.
    """

    most_waiting: int = 100_000
    most_bytes: int = 1 << 30


class Capacity:
    """The count of the free room in an inbox. If there is little room, the files are counted more often."""

    def __init__(self, folder: Path, quota: Quota) -> None:
        self._folder = folder
        self._quota = quota
        self._left = self._left_bytes = self._found_left = self._found_left_bytes = 0
        self._unwritten = self._unwritten_bytes = 0

    def reserve(self, size_bytes: int) -> None:
        """Reserve room for one envelope. Raises Exhausted if the sender must wait for the agent."""
        if self._left < 1 or self._left_bytes < size_bytes or self._is_stale():
            self._count()
        if self._left < 1:
            raise self._full(f"{self._quota.most_waiting} envelopes")
        if self._left_bytes < size_bytes:
            raise self._full(f"{self._quota.most_bytes} bytes")
        self._left -= 1
        self._left_bytes -= size_bytes
        self._unwritten += 1
        self._unwritten_bytes += size_bytes

    def settle(self) -> None:
        """Mark every reservation as used or given up. The next count then includes the files that were written."""
        self._unwritten = self._unwritten_bytes = 0

    def _is_stale(self) -> bool:
        used, used_bytes = self._found_left - self._left, self._found_left_bytes - self._left_bytes
        most, most_bytes = self._found_left // _WRITERS, self._found_left_bytes // _WRITERS
        return used >= _COUNT_AGAIN and (used >= most or used_bytes >= most_bytes)

    def _count(self) -> None:
        with os.scandir(self._folder) as entries:
            sizes = [_size(entry) for entry in entries if not entry.name.startswith(".")]
        self._left = self._quota.most_waiting - len(sizes) - self._unwritten
        self._left_bytes = self._quota.most_bytes - sum(sizes) - self._unwritten_bytes
        self._found_left, self._found_left_bytes = self._left, self._left_bytes

    def _full(self, what: str) -> Exhausted:
        return Exhausted(f"the inbox holds {what}", where=str(self._folder), hint="let the agent catch up")


@dataclass(frozen=True, kw_only=True)
class Retention:
    """The limits on delivered envelopes. The first limit that an envelope exceeds applies.

    Attributes:
        keep_s: seconds after the envelope was put.
        most: how many of the newest envelopes are kept.
        seen: the file with the runtime's last known time. A clock more than a day ahead of that time is not trusted.
    """

    keep_s: int = 14 * 86_400
    most: int = 10_000
    seen: Path | None = None


def prune(folder: Path, *, files: Files, clock: Clock, retention: Retention) -> int:
    """Remove delivered envelopes past their retention, oldest first, each with its key. Return the number removed."""
    delivered = folder / "delivered"
    names = [name for name in files.names(delivered) if not name.startswith(".")]
    now_ns = _believed_ns(to_us(clock.now()) * 1000, retention.seen)
    surplus = len(names) - retention.most
    old = [
        name
        for place, name in enumerate(names)
        if place < surplus or _put_ns(delivered, name) < now_ns - retention.keep_s * 10**9
    ]
    links = KeyLinks(folder, files).by_inode() if old else {}
    for name in old:
        with contextlib.suppress(FileNotFoundError):  # another process of this agent also removes files
            link = links.get((delivered / name).lstat().st_ino)
            if link is not None:
                files.unlink(delivered / link)
            files.unlink(delivered / name)
    return len(old)


def _believed_ns(now_ns: int, seen: Path | None) -> int:
    """Return the time by which envelopes are old: the clock's, but at most a day after the last known time."""
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError, AttributeError):
        known = json.loads(seen.read_bytes()) if seen is not None else {}
        last_s = known["at"] if known["before"] is None else known["before"]
        return min(now_ns, int((last_s + _LARGEST_STEP_S) * 10**9))
    return now_ns


def sweep(folder: Path, *, files: Files, clock: Clock) -> int:
    """Remove temporary files of dead writers, and reasons of envelopes that left quarantine. Return their number."""
    now_ns = to_us(clock.now()) * 1000
    stale = [
        folder / "inbox" / name
        for name in files.names(folder / "inbox")
        if (pid := writer_of(name)) is not None
        and (not _lives(pid) or _put_ns(folder / "inbox", name) < now_ns - _STALE_S * 10**9)
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


def _put_ns(folder: Path, name: str) -> int:
    named = ns_of(name.removeprefix(".").removesuffix(".tmp"))
    if named is not None:
        return named
    with contextlib.suppress(FileNotFoundError):
        return (folder / name).lstat().st_mtime_ns
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
        return 0  # a process has claimed it


def agents_with_inboxes(home: Home) -> list[str]:
    """Return the names of the agents that have an inbox. Sort numbers in names by value."""
    folder = home.inbox("agent0").parent
    found = [name for name in os.listdir(folder) if AGENT.fullmatch(name)] if folder.is_dir() else []
    return sorted((name for name in found if (folder / name).is_dir()), key=natural)


def natural(name: str) -> tuple[str, int]:
    """Return the sort key of an agent's name, which sorts numbers in the name by value."""
    stem = name.rstrip("0123456789")
    return stem, int(name[len(stem) :] or -1)
