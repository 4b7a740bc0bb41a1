"""What is removed from an agent's folders, and when: delivered envelopes past retention, and what dead writers left.

Quarantine is never emptied: a person looks at it, and queues again or removes by hand.
"""

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

from turnkeeper.bus.file_names import ns_of, writer_of
from turnkeeper.bus.key_index import KeyLinks
from turnkeeper.clock import Clock
from turnkeeper.storage.files import Files
from turnkeeper.times import to_us

REASON = ".reason"
_STALE_S = 86_400  # a temporary file older than this is nobody's, also where its writer's pid lives again


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
    if named is not None:
        return named
    try:
        return path.lstat().st_mtime_ns
    except FileNotFoundError:
        return 0


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True
