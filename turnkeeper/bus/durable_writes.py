"""Writing envelopes durably: temporary file, sync, link, and one sync of the folder for all of them."""

import ctypes
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from turnkeeper.errors import Exhausted, TurnkeeperError
from turnkeeper.storage.files import Files, SystemFiles, attempt, machine_errors

Failure = TurnkeeperError | None
SMALLEST_GROUP = 4
_CHUNK = 256  # descriptors are not held: the bound is on what one pass of syncs waits for
# File systems whose syncfs(2) writes data and names and reports errors, as fsync(2) of each file would.
_LOCAL = frozenset({"ext2", "ext3", "ext4", "xfs", "f2fs", "tmpfs"})
_SYNCFS_REPORTS = (5, 8)  # Source: syncfs(2), VERSIONS


class GroupingFiles(SystemFiles):
    """The machine's file system, with one sync for a group of new files where that is safe, else one each."""

    def __init__(self) -> None:
        self._one_pass: dict[int, bool] = {}

    def write_group(self, items: Sequence[tuple[Path, bytes]]) -> list[Failure]:
        """Create the files and sync them all."""
        failures: list[Failure] = []
        for start in range(0, len(items), _CHUNK):
            chunk = items[start : start + _CHUNK]
            whole = len(chunk) >= SMALLEST_GROUP and self._syncs_whole(chunk[0][0].parent)
            failures += _write_in_one_pass(chunk) if whole else super().write_group(chunk)
        return failures

    def _syncs_whole(self, folder: Path) -> bool:
        device = folder.stat().st_dev
        if device not in self._one_pass:
            self._one_pass[device] = _kernel_reports() and _file_system_of(device) in _LOCAL
        return self._one_pass[device]


def link_all(files: Files, inbox: Path, items: Sequence[tuple[str, bytes]]) -> list[Failure]:
    """Put each (name, data) into `inbox`; when this returns, those without a failure are on disk under their names.

    One with a failure is not there, unless a reader took it between its link and a sync of the folder that failed.
    """
    paths = [(inbox / f".{name}.tmp", inbox / name) for name, _ in items]
    new = [(path, data) for (path, _), (_, data) in zip(paths, items, strict=True)]
    alone = len(new) == 1
    failures = [attempt(new[0][0], partial(files.write_synced, *new[0]))] if alone else files.write_group(new)
    for place, (temporary, target) in enumerate(paths):
        if failures[place] is None:
            failures[place] = attempt(target, partial(_link, files, temporary, target))
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


def _link(files: Files, temporary: Path, target: Path) -> None:
    try:
        files.link(temporary, target)
    finally:
        files.unlink(temporary)


def _write_in_one_pass(items: Sequence[tuple[Path, bytes]]) -> list[Failure]:
    folder = items[0][0].parent
    failures: list[Failure] = []
    try:
        with machine_errors(folder):
            # Opened before the writes: the kernel reports the errors that came after.
            watch = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except Exhausted as error:
        return [error] * len(items)
    try:
        failures += [attempt(path, partial(_write_unsynced, path, data)) for path, data in items]
        with machine_errors(folder):
            _syncfs(watch)
    except Exhausted as error:
        for (path, _), failure in zip(items, failures, strict=True):
            if failure is None:
                path.unlink(missing_ok=True)
        return [failure or error for failure in failures]
    finally:
        os.close(watch)
    return failures


def _write_unsynced(path: Path, data: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        written = 0
        while written < len(data):
            written += os.write(descriptor, data[written:])
    except OSError:
        path.unlink(missing_ok=True)
        raise
    finally:
        os.close(descriptor)


def _syncfs(descriptor: int) -> None:
    if ctypes.CDLL(None, use_errno=True).syncfs(descriptor) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _kernel_reports() -> bool:
    system = os.uname()
    digits = tuple(int(part) for part in system.release.split("-")[0].split(".")[:2] if part.isdigit())
    return system.sysname == "Linux" and digits >= _SYNCFS_REPORTS and hasattr(ctypes.CDLL(None), "syncfs")


def _file_system_of(device: int) -> str:
    """Return the type that the kernel's table of mounts gives for a device; empty where it is not in there."""
    wanted = f"{os.major(device)}:{os.minor(device)}"
    try:
        mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    rows = (line.split() for line in mounts.splitlines())
    return next((row[row.index("-") + 1] for row in rows if row[2] == wanted and "-" in row), "")
