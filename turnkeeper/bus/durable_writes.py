"""Writing envelopes: names that sort in writing order, then a temporary file, sync, link, and one sync of the folder.

A name contains nanoseconds (20 digits), the pid, random hex digits, a sequence number and the sender. The order holds
between processes, and also after the clock steps back: a put that begins after another one has returned gets a later
name. `.newest` contains the last nanosecond that was given out. A process reads and increases it under the file's lock.
If that file is lost or outdated, the names of the existing files decide instead.
"""

import ctypes
import fcntl
import os
import re
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path

from turnkeeper.clock import Clock
from turnkeeper.entropy import Entropy
from turnkeeper.errors import Exhausted, TurnkeeperError
from turnkeeper.storage.files import Files, SystemFiles, attempt, create, machine_errors
from turnkeeper.times import to_us

MARK = ".newest"
_NAME = re.compile(r"(\d{20})-(\d{1,10})-[0-9a-f]{8}-\d{6,12}-[a-z0-9@-]+\.json", re.ASCII)
_LATEST_NS = 9 * 10**18  # a time in the year 2255; a later name is forged and does not raise our own names
_DIGITS = 20
_TAG_DIGITS = 8


class Names:
    """The generator of file names for one agent's folder."""

    def __init__(self, folder: Path, *, clock: Clock, entropy: Entropy) -> None:
        self._mark = folder / MARK
        self._clock = clock
        self._entropy = entropy
        self._last_ns = -1
        self._sequence = 0

    def draw(self, senders: Sequence[str], *, lying: Iterable[str]) -> list[str]:
        """Return one name for each sender, later than every earlier name. `lying`, the existing names, is read once."""
        if self._last_ns < 0:
            self._last_ns = max((ns_of(name) or 0 for name in lying), default=0)
        first, tags = self._reserve(len(senders)), self._entropy.hex(_TAG_DIGITS * len(senders))
        cut = [tags[place : place + _TAG_DIGITS] for place in range(0, len(senders) * _TAG_DIGITS, _TAG_DIGITS)]
        return [self._name(first + n, tag, sender) for n, (tag, sender) in enumerate(zip(cut, senders, strict=True))]

    def tag(self) -> str:
        """Return digits that distinguish files that other programs gave the same name."""
        return self._entropy.hex(_TAG_DIGITS)

    def _reserve(self, count: int) -> int:
        descriptor = os.open(self._mark, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            newest = max(self._last_ns, _number(os.pread(descriptor, _DIGITS, 0)))
            first = max(newest + 1, to_us(self._clock.now()) * 1000)
            self._last_ns = first + count - 1
            os.pwrite(descriptor, f"{self._last_ns:020d}".encode(), 0)
        finally:
            os.close(descriptor)  # releases the lock
        return first

    def _name(self, ns: int, tag: str, sender: str) -> str:
        self._sequence += 1
        return f"{ns:020d}-{os.getpid()}-{tag}-{self._sequence:06d}-{sender}.json"


def ns_of(name: str) -> int | None:
    """Return the nanoseconds in a name of ours, or None for any other name.

    >>> ns_of("01772442000000000000-7-0a1b2c3d-000001-author.json")
    1772442000000000000
    """
    found = _NAME.fullmatch(name)
    ns = int(found[1]) if found else _LATEST_NS
    return ns if ns < _LATEST_NS else None


def writer_of(temporary: str) -> int | None:
    """Return the pid in the name of one of our temporary files. Return None for any other name.

    >>> writer_of(".01772442000000000000-7-0a1b2c3d-000001-author.json.tmp")
    7
    """
    if not (temporary.startswith(".") and temporary.endswith(".tmp")):
        return None
    found = _NAME.fullmatch(temporary[1:-4])
    return int(found[2]) if found else None


def _number(digits: bytes) -> int:
    return int(digits) if len(digits) == _DIGITS and digits.isdigit() and int(digits) < _LATEST_NS else 0


Failure = TurnkeeperError | None
SMALLEST_GROUP = 4
_CHUNK = 256  # the most files for which one pass of syncs waits; their descriptors are not kept open
# On these file systems, syncfs(2) writes data and names, and reports the same errors as fsync(2) of each file.
_LOCAL = frozenset({"ext2", "ext3", "ext4", "xfs", "f2fs", "tmpfs"})
_SYNCFS_REPORTS = (5, 8)  # Source: syncfs(2), VERSIONS


class GroupingFiles(SystemFiles):
    """The machine's file system. It syncs a group of new files at once if that is safe, or else one by one."""

    def __init__(self) -> None:
        self._one_pass: dict[int, bool] = {}

    def write_group(self, items: Sequence[tuple[str, bytes]]) -> list[Failure]:
        failures: list[Failure] = []
        for start in range(0, len(items), _CHUNK):
            chunk = items[start : start + _CHUNK]
            whole = len(chunk) >= SMALLEST_GROUP and self._syncs_whole(Path(chunk[0][0]).parent)
            failures += _write_in_one_pass(chunk) if whole else super().write_group(chunk)
        return failures

    def _syncs_whole(self, folder: Path) -> bool:
        device = folder.stat().st_dev
        if device not in self._one_pass:
            self._one_pass[device] = _kernel_reports() and _file_system_of(device) in _LOCAL
        return self._one_pass[device]


def link_all(files: Files, inbox: Path, items: Sequence[tuple[str, bytes]]) -> list[Failure]:
    """Put each (name, data) into `inbox`.

    When the function returns, each file without a failure is on disk under its name. A failed file is not in `inbox`,
    unless a reader took it after the link and before a failed sync of the folder.
    """
    paths = [(f"{inbox}/.{name}.tmp", f"{inbox}/{name}") for name, _ in items]
    new = [(path, data) for (path, _), (_, data) in zip(paths, items, strict=True)]
    alone = len(new) == 1
    failures = [attempt(new[0][0], files.write_synced, *new[0])] if alone else files.write_group(new)
    for place, (temporary, target) in enumerate(paths):
        if failures[place] is None:
            failures[place] = attempt(target, _link, files, temporary, target)
    linked = [target for (_, target), failure in zip(paths, failures, strict=True) if failure is None]
    if not linked:
        return failures
    try:
        with machine_errors(inbox):
            files.sync_folder(inbox)
    except Exhausted as error:
        for target in linked:
            files.unlink(target)
        return [failure or error for failure in failures]
    return failures


def _link(files: Files, temporary: str, target: str) -> None:
    try:
        files.link(temporary, target)
    finally:
        files.unlink(temporary)


def _write_in_one_pass(items: Sequence[tuple[str, bytes]]) -> list[Failure]:
    folder = Path(items[0][0]).parent
    failures: list[Failure] = []
    try:
        with machine_errors(folder):
            # Open the folder before the writes, because the kernel reports only errors that occur after the open.
            watch = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except Exhausted as error:
        return [error] * len(items)
    try:
        failures += [attempt(path, partial(create, sync=False), path, data) for path, data in items]
        with machine_errors(folder):
            _syncfs(watch)
    except Exhausted as error:
        for (path, _), failure in zip(items, failures, strict=True):
            if failure is None:
                Path(path).unlink(missing_ok=True)
        return [failure or error for failure in failures]
    finally:
        os.close(watch)
    return failures


def _syncfs(descriptor: int) -> None:
    if ctypes.CDLL(None, use_errno=True).syncfs(descriptor) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _kernel_reports() -> bool:
    system = os.uname()
    digits = tuple(int(part) for part in system.release.split("-")[0].split(".")[:2] if part.isdigit())
    return system.sysname == "Linux" and digits >= _SYNCFS_REPORTS and hasattr(ctypes.CDLL(None), "syncfs")


def _file_system_of(device: int) -> str:
    """Return the type of a device's file system from the kernel's mount table. Empty if the device is not listed."""
    wanted = f"{os.major(device)}:{os.minor(device)}"
    try:
        mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    rows = (line.split() for line in mounts.splitlines())
    return next((row[row.index("-") + 1] for row in rows if row[2] == wanted and "-" in row), "")
