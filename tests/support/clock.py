"""A clock that moves only when a test moves it."""

import asyncio
from datetime import UTC, datetime, timedelta

from turnkeeper.clock import SystemClock

START = datetime(2026, 3, 2, 9, 0, tzinfo=UTC)


async def look_again() -> None:
    """Wait a moment before a test polls again, because constant polling would use up the processor."""
    await SystemClock().sleep(0.005)


class ManualClock:
    """Virtual time. `advance` moves it and wakes the waiters."""

    def __init__(self, at: datetime = START) -> None:
        self._now = at
        self._steady = 0.0
        self._sleepers: list[tuple[float, asyncio.Future[None]]] = []

    def now(self) -> datetime:
        return self._now

    def monotonic(self) -> float:
        return self._steady

    async def sleep(self, seconds: float) -> None:
        if seconds <= 0:
            return
        waiter = asyncio.get_running_loop().create_future()
        self._sleepers.append((self._steady + seconds, waiter))
        await waiter

    async def wait(self, event: asyncio.Event, timeout_s: float) -> bool:
        if event.is_set():
            return True
        set_first = asyncio.ensure_future(event.wait())
        passed = asyncio.ensure_future(self.sleep(timeout_s))
        try:
            await asyncio.wait({set_first, passed}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            set_first.cancel()
            passed.cancel()
        return event.is_set()

    @property
    def is_awaited(self) -> bool:
        """True if a waiter waits for time to pass."""
        return any(not waiter.done() for _, waiter in self._sleepers)

    def advance(self, seconds: float) -> None:
        self._now += timedelta(seconds=seconds)
        self._steady += seconds
        self._wake()

    def step(self, seconds: float) -> None:
        """Step only the wall clock, as an operator or NTP would."""
        self._now += timedelta(seconds=seconds)

    def _wake(self) -> None:
        due = [waiter for at, waiter in self._sleepers if at <= self._steady]
        self._sleepers = [(at, waiter) for at, waiter in self._sleepers if at > self._steady]
        for waiter in due:
            if not waiter.done():
                waiter.set_result(None)
