"""What a daemon needs as a process: a counter that shows its progress, failpoints, a heap settled after start-up.

`state/run/<process>.progress` holds the pid and a number that rises every few seconds while the event loop turns. The
first number is written once the daemon serves, so the file is also its session marker. It is replaced whole and never
synced: after a power loss there is no process left to tell of. A process that is stopped, or whose event loop is
blocked, writes nothing.

A failpoint is a named place at which a test makes the process die as if by kill -9:
`TURNKEEPER_FAILPOINTS=runner.committed:2` kills it the second time it passes `runner.committed`. Unset, a failpoint
costs one dictionary look-up.
"""

import contextlib
import gc
import json
import os
import signal
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from turnkeeper.clock import Clock
from turnkeeper.config.home import Home

EVERY_S = 5.0
VARIABLE = "TURNKEEPER_FAILPOINTS"
_LARGEST_BYTES = 4096
_YOUNG = 10_000  # objects made before the youngest are looked at; Python's 700 is a pass every other fire


@dataclass(frozen=True, kw_only=True)
class Beat:
    """What a process last wrote.

    Attributes:
        pid: the process that wrote it; a file may outlive its writer.
        count: from 1, rising as long as the event loop turns.
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

    async def run(self, clock: Clock, keep: Callable[[], Awaitable[None]] | None = None) -> None:
        """Beat for ever, and call `keep` at each beat. A full disk costs beats and nothing else."""
        while True:
            with contextlib.suppress(OSError):
                if keep is not None:
                    await keep()
            with contextlib.suppress(OSError):
                self.beat()
            await clock.sleep(EVERY_S)


def path_of(home: Home, process: str) -> Path:
    """Return where a process's counter lies."""
    return home.run / f"{process}.progress"


def last_beat(home: Home, process: str) -> Beat | None:
    """Return what was last written; None where there is nothing or it cannot be read, which proves nothing."""
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
        found = json.loads(path_of(home, process).read_bytes()[:_LARGEST_BYTES])
        return Beat(pid=int(found["pid"]), count=int(found["count"]))
    return None


class Failpoints:
    """The failpoints armed for one process; built once, in the process's wiring."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._left: dict[str, int] = {}
        for item in filter(None, environ.get(VARIABLE, "").split(",")):
            name, _, nth = item.partition(":")
            self._left[name] = int(nth or 1)

    def reach(self, name: str) -> None:
        """Pass the place `name`; do not return if it is armed and this is the pass it is armed for."""
        if name in self._left:
            self._left[name] -= 1
            if self._left[name] == 0:
                os.kill(os.getpid(), signal.SIGKILL)


def settle_heap() -> None:
    """Hide what start-up made from the garbage collector: its passes would now and then delay a fire that is due."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG, 20, 20)
