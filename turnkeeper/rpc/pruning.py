"""Deletion of old history, which is suspended while the clock may be wrong.

If a clock steps forward by months, all history is old at once. So each process that deletes by age stores the time that
it last saw in `state/time-<process>.json`. If the next time is more than a day later, the process deletes nothing until
the clock has run for a day or is back. A machine that was switched off for more than a day looks the same.
"""

import json
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from turnkeeper.clock import Clock
from turnkeeper.config.home import Home
from turnkeeper.errors import TurnkeeperError
from turnkeeper.storage.files import replace_whole
from turnkeeper.times import rfc3339

LARGEST_STEP_S = CONFIRMED_AFTER_S = 86_400.0
EVERY_S = 3600.0  # seconds between two deletions
LOOK_EVERY_S = 60.0
_LONGEST_GAP_S = 1800.0  # seconds between two checks of a running clock; a longer gap confirms nothing
_WRITE_EVERY_S = 600.0


@dataclass(kw_only=True)
class _Seen:
    """The times that a process has seen, in seconds since 1970.

    Attributes:
        before: the last time before an unconfirmed step; None if there is none.
        ran_s: seconds that the clock has run since the step.
    """

    at: float
    before: float | None = None
    ran_s: float = 0.0


class BelievedTime:
    """The check that a clock can be trusted to decide which history is old."""

    def __init__(self, home: Home, process: str, clock: Clock, emit: Callable[..., None]) -> None:
        """Take the process's name, and `emit`, which writes an event."""
        self._path, self._clock, self._emit = home.time_seen(process), clock, emit
        self._seen: _Seen | None = None
        self._written_at = 0.0

    def look(self) -> bool:
        """Return True if the time is trusted. Raises Exhausted if the time cannot be stored."""
        now = self._clock.now().timestamp()
        seen = self._seen = self._seen or self._read() or _Seen(at=now)
        gap, held = now - seen.at, seen.before is not None
        if gap > LARGEST_STEP_S:
            seen.before, seen.ran_s = seen.at if seen.before is None else seen.before, 0.0
            self._emit("pruning.held", before=_shown(seen.at), after=_shown(now))
        elif seen.before is not None:
            seen.ran_s += gap if 0 < gap <= _LONGEST_GAP_S else 0.0
            if seen.ran_s >= CONFIRMED_AFTER_S or now - seen.before <= LARGEST_STEP_S:
                self._emit("pruning.resumed", why="is back" if seen.ran_s < CONFIRMED_AFTER_S else "ran for a day")
                seen.before = None
        seen.at = now
        if held != (seen.before is not None) or not 0 <= now - self._written_at < _WRITE_EVERY_S:
            replace_whole(self._path, json.dumps(asdict(seen)).encode())
            self._written_at = now
        return seen.before is None

    def now(self) -> datetime:
        """Return the time that ages are measured from: the last trusted time."""
        self.look()
        seen = self._seen
        return self._clock.now() if seen is None or seen.before is None else datetime.fromtimestamp(seen.before, UTC)

    def _read(self) -> _Seen | None:
        with suppress(OSError, ValueError, TypeError):
            return _Seen(**json.loads(self._path.read_bytes()))
        return None


class Pruning:
    """The hourly deletion of old history, which runs only while the time is trusted."""

    def __init__(
        self, believed: BelievedTime, work: Callable[[], Awaitable[Any]], *, clock: Clock, first_s: float
    ) -> None:
        """Take `work`, which deletes, and the seconds from the process's start to the first deletion."""
        self._believed, self._work, self._clock, self._first_s = believed, work, clock, first_s

    async def run(self) -> None:
        """Check the clock every minute, and delete every hour, until cancelled."""
        wait_s = self._first_s
        while True:
            is_believed = self._believed.look()
            if wait_s <= 0:
                wait_s = EVERY_S
                if is_believed:
                    await self._work()
            await self._clock.sleep(min(wait_s, LOOK_EVERY_S))
            wait_s -= LOOK_EVERY_S


def held(home: Home, process: str) -> str:
    """Return why a process does not delete old history at present. Empty if it deletes."""
    with suppress(OSError, ValueError, TypeError, TurnkeeperError):
        seen = _Seen(**json.loads(home.time_seen(process).read_bytes()))
        if seen.before is not None:
            left = max(0.0, CONFIRMED_AFTER_S - seen.ran_s) / 3600
            return f"the clock stepped forward from {_shown(seen.before)}; it is believed after {left:.0f} h more"
    return ""


def _shown(seconds: float) -> str:
    return rfc3339(datetime.fromtimestamp(seconds, UTC).replace(microsecond=0))
