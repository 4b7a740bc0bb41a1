"""The clock port, and the only module that reads a clock.

All other code takes a :class:`Clock`. A simulation passes its own clock, and runs the same code in virtual time.
"""

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from importlib import import_module
from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    import asyncio  # a command without an event loop does not import asyncio, because the import takes long

T = TypeVar("T")


def booted_at() -> datetime:
    """Return when the machine started."""
    since_s = time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))
    return datetime.now(UTC) - timedelta(seconds=since_s)


class Clock(Protocol):
    """Wall time, a monotonic counter, and waiting."""

    def now(self) -> datetime:
        """Return the wall-clock time, aware, in UTC."""

    def monotonic(self) -> float:
        """Return seconds that never step backwards, for measuring intervals."""

    async def sleep(self, seconds: float) -> None:
        """Wait at least `seconds`."""

    async def wait(self, event: "asyncio.Event", timeout_s: float) -> bool:
        """Wait until `event` is set or `timeout_s` has passed. Return True if set. Do not clear the event."""


class SystemClock:
    """The machine's clock."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        """Return seconds that never step backwards."""
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await import_module("asyncio").sleep(seconds)

    async def wait(self, event: "asyncio.Event", timeout_s: float) -> bool:
        """Wait until `event` is set or `timeout_s` has passed. Return True if the event was set."""
        if event.is_set():
            return True
        try:
            async with import_module("asyncio").timeout(timeout_s):
                await event.wait()
        except TimeoutError:
            return False
        return True

    def poll(self, probe: Callable[[], T], *, timeout_s: float, every_s: float) -> T | None:
        """Call `probe` every `every_s` and return its first truthy result, or None after the timeout. Blocks."""
        deadline = self.monotonic() + timeout_s
        while not (answer := probe()):
            if self.monotonic() >= deadline:
                return None
            self.block(every_s)
        return answer

    def block(self, seconds: float) -> None:
        """Block the calling thread. For command-line programs, which have no event loop."""
        time.sleep(seconds)


class SharedClock(SystemClock):
    """The clock that several machines share: the database's time, advanced by this machine's monotonic counter.

    After :meth:`set`, the time no longer depends on this machine's wall clock, even if that clock is changed.

    Attributes:
        ahead_s: seconds by which this machine's wall clock is ahead of the shared clock.
    """

    def __init__(self) -> None:
        """Begin with this machine's own clock."""
        self.ahead_s = 0.0
        self._base: tuple[datetime, float] | None = None

    def set(self, at: datetime, waited_s: float = 0.0) -> None:
        """Set the clock to `at`, a time read within the last `waited_s` seconds.

        The clock may be behind this time, but is never ahead of it. If the clock is at most `waited_s` ahead of `at`,
        keep its time, because it may be exact.
        """
        if self._base is None or not timedelta() <= self.now() - at <= timedelta(seconds=waited_s):
            self._base = at, self.monotonic()
        self.ahead_s = (datetime.now(UTC) - self.now()).total_seconds()

    def now(self) -> datetime:
        if self._base is None:
            return datetime.now(UTC)
        at, since = self._base
        return at + timedelta(seconds=self.monotonic() - since)
