"""A daemon's process: a counter that shows its progress, parts that continue after machine trouble, and failpoints.

`state/run/<process>.progress` contains the pid, the machine trouble that blocks the process, and a number that
increases every few seconds while the event loop runs. The process writes the first number when it begins to serve, so
the file also shows that the start succeeded. Later numbers are written in place through one open descriptor. This needs
neither disk space nor a new descriptor, so a full disk does not look like a hang. The file is never synced, because no
process survives a power loss. A suspended process, or a process with a blocked event loop, writes nothing.

A failpoint is a named point in the code at which a test kills the process, as by kill -9.
`TURNKEEPER_FAILPOINTS=runner.committed:2` kills the process the second time that it passes `runner.committed`. A
failpoint that is not set costs one dictionary look-up.
"""

import contextlib
import gc
import json
import os
import signal
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from turnkeeper.clock import Clock
from turnkeeper.config.home import Home
from turnkeeper.errors import TurnkeeperError, machine_trouble

EVERY_S = 5.0
IN_TROUBLE_S = 0.5
SHORTEST_REST_S, LONGEST_REST_S = 0.2, 5.0
VARIABLE = "TURNKEEPER_FAILPOINTS"
_LARGEST_BYTES = 4096
_YOUNG = 10_000  # new objects before a garbage collection; with Python's default of 700, every second fire causes one


@dataclass(frozen=True, kw_only=True)
class Beat:
    """The last progress that a process wrote.

    Attributes:
        pid: the process that wrote the file; it may have ended.
        count: starts at 1 and increases while the event loop runs.
        trouble: the machine trouble that blocks the process; empty if there is none.
    """

    pid: int
    count: int
    trouble: str = ""


class Progress:
    """The writer of one process's counter."""

    def __init__(self, home: Home, process: str, pid: int, troubles: Callable[[], str] = str) -> None:
        """Count for the process `pid`. `troubles` returns the machine trouble that blocks the process."""
        self._path = path_of(home, process)
        self._pid = pid
        self._troubles = troubles
        self._count = 0
        self._descriptor: int | None = None

    def beat(self) -> str:
        """Increase the counter. Return the trouble that was written with it. Raises OSError."""
        self._count += 1
        says: dict[str, Any] = {"pid": self._pid, "count": self._count}
        if trouble := self._troubles():
            says["trouble"] = trouble[:1000]
        data = json.dumps(says).encode().ljust(_LARGEST_BYTES - 1) + b"\n"
        if self._descriptor is not None and os.fstat(self._descriptor).st_nlink:
            os.pwrite(self._descriptor, data, 0)
        else:
            self._replace(data)
        return trouble

    async def run(self, clock: Clock, keep: Callable[[], Awaitable[None]] | None = None) -> None:
        """Beat until cancelled, and more often during trouble. Call `keep` at each beat. An OSError skips a beat."""
        while True:
            trouble = "the trouble is unknown"
            with contextlib.suppress(OSError):
                if keep is not None:
                    await keep()
            with contextlib.suppress(OSError):
                trouble = self.beat()
            await clock.sleep(IN_TROUBLE_S if trouble else EVERY_S)

    def _replace(self, data: bytes) -> None:
        """Replace the file of an earlier process with a new one, which stays open."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
        fresh = self._path.with_suffix(".progress.new")
        descriptor = os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            os.pwrite(descriptor, data, 0)
            fresh.replace(self._path)
        except OSError:
            os.close(descriptor)
            raise
        self._descriptor = descriptor


class Troubles(list[Any]):
    """The parts of a daemon that have a `trouble`, in the order of importance; and the parts that rest.

    Attributes:
        resting: by name, the reason why a part rests, as :func:`keep_running` notes it.
    """

    def __init__(self, *parts: Any) -> None:
        super().__init__(parts)
        self.resting: dict[str, str] = {}

    def __call__(self) -> str:
        """Return the first trouble; empty if there is none."""
        return next(filter(None, (one.trouble for one in self)), "") or next(iter(self.resting.values()), "")


async def keep_running(
    part: Callable[[], Awaitable[None]], clock: Clock, emit: Callable[..., None], resting: dict[str, str] | None = None
) -> None:
    """Run a part of a daemon.

    If the disk or another part of the machine fails, restart the part after a pause that grows. `emit` logs each
    failure. During the pause, `resting` contains the reason under the name of the part. An error of the system or a
    database counts as machine trouble even if its code is unknown. Any other error is raised.
    """
    tries, name = 0, getattr(part, "__qualname__", str(part))
    while True:
        began = clock.monotonic()
        try:
            return await part()
        except Exception as error:
            trouble = machine_trouble(error)
            if trouble is None and not isinstance(error, OSError) and type(error).__name__ != "OperationalError":
                raise
            reason = str(trouble or error)
        tries = 1 if clock.monotonic() - began > LONGEST_REST_S else tries + 1
        emit("machine.trouble", part=name, tries=tries, reason=reason)
        noted = {} if resting is None else resting
        noted[name] = reason
        try:
            await clock.sleep(min(SHORTEST_REST_S * 2.0 ** min(tries - 1, 10), LONGEST_REST_S))
        finally:
            del noted[name]


async def together(*parts: Coroutine[Any, Any, object], until: str = "FIRST_EXCEPTION") -> None:
    """Run parts until all have ended or, with `asyncio.FIRST_COMPLETED`, until the first one has ended.

    Cancel the others. The first failure also cancels the others, and its error is raised. A bug takes precedence over
    our own error classes. Unlike `asyncio.TaskGroup` before Python 3.13, this function never loses a cancellation: one
    that arrives while a part fails cancels the caller.
    """
    import asyncio  # noqa: PLC0415  as in `told_if_late`

    tasks = [asyncio.ensure_future(part) for part in parts]
    try:
        await asyncio.wait(tasks, return_when=until)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    errors = [error for task in tasks if not task.cancelled() and (error := task.exception()) is not None]
    for error in sorted(errors, key=lambda error: isinstance(error, TurnkeeperError)):
        raise error


def path_of(home: Home, process: str) -> Path:
    return home.run / f"{process}.progress"


def last_beat(home: Home, process: str) -> Beat | None:
    """Return the last progress that was written. Raises OSError if the file is unreadable."""
    with contextlib.suppress(FileNotFoundError, ValueError, TypeError, KeyError):
        found = json.loads(path_of(home, process).read_bytes()[:_LARGEST_BYTES])
        return Beat(pid=int(found["pid"]), count=int(found["count"]), trouble=str(found.get("trouble", "")))
    return None


def last_alive(home: Home, process: str) -> datetime | None:
    """Return when a process last wrote its counter; None if it never did."""
    with contextlib.suppress(OSError):
        return datetime.fromtimestamp(path_of(home, process).stat().st_mtime, UTC)
    return None


class Failpoints:
    """The failpoints that are set for one process, read once at its start."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._left: dict[str, int] = {}
        for item in filter(None, environ.get(VARIABLE, "").split(",")):
            name, _, nth = item.partition(":")
            self._left[name] = int(nth or 1)

    def reach(self, name: str) -> None:
        """Pass the failpoint `name`. Kill the process if the failpoint is set for this pass."""
        if name in self._left:
            self._left[name] -= 1
            if self._left[name] == 0:
                os.kill(os.getpid(), signal.SIGKILL)


@contextlib.contextmanager
def loading() -> Iterator[None]:
    """Exempt the modules that the block imports from garbage collection, because all of their objects stay in use."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def settle_heap() -> None:
    """Exempt the objects made at start-up from garbage collection, because a collection sometimes delays a due fire."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG, 20, 20)
