"""Progress counters: how a daemon shows, without being asked, that it serves and that its event loop turns.

`state/run/<process>.progress` holds the pid and a number that rises every few seconds. The first number is written
once the daemon serves, so the file is also its session marker. It is replaced whole, never synced: after a power loss
there is no process left to tell of. A process that is stopped or whose loop is blocked writes nothing.
"""

import contextlib
import json
from dataclasses import dataclass
from pathlib import Path

from turnkeeper.clock import Clock
from turnkeeper.config.home import Home

EVERY_S = 5.0
_LARGEST_BYTES = 4096


@dataclass(frozen=True, kw_only=True)
class Beat:
    """What a process last wrote.

    Attributes:
        pid: the process that wrote it; a file may outlive its writer.
        count: from 1, rising as long as the process gets on.
    """

    pid: int
    count: int


class Progress:
    """Writes the counter of one process."""

    def __init__(self, home: Home, process: str, pid: int) -> None:
        self._path = path_of(home, process)
        self._pid = pid
        self._count = 0

    def beat(self) -> None:
        """Raise the counter."""
        self._count += 1
        fresh = self._path.with_suffix(".progress.new")
        fresh.write_text(json.dumps({"pid": self._pid, "count": self._count}), encoding="ascii")
        fresh.replace(self._path)

    async def run(self, clock: Clock) -> None:
        """Beat for ever. A full disk costs beats and nothing else; a watchdog allows for many."""
        while True:
            with contextlib.suppress(OSError):
                self.beat()
            await clock.sleep(EVERY_S)


def path_of(home: Home, process: str) -> Path:
    """Return where a process's counter lies."""
    return home.run / f"{process}.progress"


def last_beat(home: Home, process: str) -> Beat | None:
    """Return what was last written; None where there is nothing or it cannot be read, which proves nothing."""
    try:
        found = json.loads(path_of(home, process).read_bytes()[:_LARGEST_BYTES])
        return Beat(pid=int(found["pid"]), count=int(found["count"]))
    except (OSError, ValueError, TypeError, KeyError):
        return None
