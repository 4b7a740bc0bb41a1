"""The retention of logs and trails, so that they do not fill a disk.

A trail has one file for each day. The file is removed when the day is older than the retention. The output of a daemon
is one file, which is cut when it is too large. The previous part is kept beside it until the next cut.
"""

import re
import shutil
from dataclasses import dataclass
from datetime import date, datetime, timedelta

from turnkeeper.config.home import Home

EVERY_S = 3600.0
_OF_A_DAY = re.compile(r"-(\d{4}-\d{2}-\d{2})\.jsonl", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class Kept:
    """The limits of retention.

    Attributes:
        keep_s: how long trails are kept, in seconds.
        largest_mb: the largest size of a process's log, in mebibytes.
    """

    keep_s: float = 90 * 86_400.0
    largest_mb: int = 64


def is_over(name: str, kept: Kept, now: datetime) -> bool:
    """Return True if a file is the trail of a day that is older than the retention."""
    found = _OF_A_DAY.search(name)
    if found is None:
        return False
    try:
        day = date.fromisoformat(found[1])
    except ValueError:
        return False
    return day < (now - timedelta(seconds=kept.keep_s)).date()


def let_go(home: Home, kept: Kept, now: datetime) -> tuple[list[str], list[str]]:
    """Remove old trails and cut large logs. Return the names of both. Raises OSError."""
    files = [path for path in sorted(home.logs.iterdir()) if path.is_file() and not path.is_symlink()]
    removed = [path for path in files if is_over(path.name, kept, now)]
    cut = [path for path in files if path.suffix == ".log" and path.stat().st_size > kept.largest_mb << 20]
    for path in removed:
        path.unlink(missing_ok=True)
    for path in cut:  # the process keeps appending to it, so the file must stay the same
        shutil.copyfile(path, path.with_name(f"{path.name}.1"))
        with path.open("r+b") as file:
            file.truncate()
    return [path.name for path in removed], [path.name for path in cut]
