"""The clock port, and the one place that reads a clock.

Everything else takes a :class:`Clock`. A simulation passes its own and runs the same code on virtual time.
"""

import asyncio
import time
from datetime import UTC, datetime, timedelta
from typing import Protocol

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


class Clock(Protocol):
    """Wall time, a steady counter, and waiting."""

    def now(self) -> datetime:
        """Return the wall-clock time, aware, in UTC."""

    def monotonic(self) -> float:
        """Return seconds that never step backwards, for measuring intervals."""

    async def sleep(self, seconds: float) -> None:
        """Wait at least `seconds`."""

    async def wait(self, event: asyncio.Event, timeout_s: float) -> bool:
        """Wait until `event` is set or `timeout_s` has passed; True if it was set. Leaves the event as it is."""


class SystemClock:
    """The machine's clock."""

    def now(self) -> datetime:
        """Return the wall-clock time, aware, in UTC."""
        return datetime.now(UTC)

    def monotonic(self) -> float:
        """Return seconds that never step backwards."""
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        """Wait at least `seconds`."""
        await asyncio.sleep(seconds)

    async def wait(self, event: asyncio.Event, timeout_s: float) -> bool:
        """Wait until `event` is set or `timeout_s` has passed; True if it was set."""
        if event.is_set():
            return True
        try:
            async with asyncio.timeout(timeout_s):
                await event.wait()
        except TimeoutError:
            return False
        return True

    def block(self, seconds: float) -> None:
        """Block the calling thread: for command-line programs, which have no event loop."""
        time.sleep(seconds)


def to_us(at: datetime) -> int:
    """Convert an aware datetime to integer microseconds since 1970 in UTC, exactly.

    >>> to_us(datetime(1970, 1, 1, 0, 0, 1, 5, tzinfo=UTC))
    1000005
    """
    return (at - EPOCH) // _MICROSECOND


def from_us(us: int) -> datetime:
    """Convert microseconds since 1970 to an aware datetime in UTC, exactly.

    >>> from_us(1000005).isoformat()
    '1970-01-01T00:00:01.000005+00:00'
    """
    return EPOCH + timedelta(microseconds=us)


def rfc3339(at: datetime) -> str:
    """Format an instant as RFC 3339 in UTC with `Z`; fractions only where there are any.

    >>> rfc3339(from_us(0)), rfc3339(from_us(1_500_000))
    ('1970-01-01T00:00:00Z', '1970-01-01T00:00:01.500000Z')
    """
    text = (at if at.tzinfo is UTC else at.astimezone(UTC)).isoformat()
    return f"{text[:-6]}Z"  # without +00:00


def parse_rfc3339(text: str) -> datetime:
    """Parse an RFC 3339 instant; it must carry an offset. Raises ValueError.

    >>> parse_rfc3339("2026-11-20T09:00:00Z").hour
    9
    """
    at = datetime.fromisoformat(text)
    if at.tzinfo is None:
        raise ValueError(f"{text!r} has no offset")
    return at.astimezone(UTC)
