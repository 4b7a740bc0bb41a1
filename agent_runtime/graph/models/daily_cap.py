"""The day's tokens: how many all turns together may use, counted in the turn table.

A day is a day in UTC. Each turn's row says how many of its tokens fall on the day it was last counted on, so the sum is
exact across restarts, across midnight, and for a turn that is resumed days later. The sum is read before each model
call; calls that are under way at once may together go past the cap by what they are using.
"""

from datetime import UTC, datetime, timedelta

from agent_runtime.store.tokens import tokens_of_day
from agent_runtime.store.turn_store import Store
from turnkeeper.clock import Clock
from turnkeeper.errors import Exhausted
from turnkeeper.times import rfc3339


class Allowance:
    """A daily cap on tokens."""

    def __init__(self, cap: int, store: Store, clock: Clock) -> None:
        """Take the most tokens a day; 0 is no cap."""
        self._cap = cap
        self._store = store
        self._clock = clock

    async def check(self) -> None:
        """Raise Exhausted when the day's tokens are used up."""
        if not self._cap:
            return
        now = self._clock.now()
        used = await self._store.read(lambda connection: tokens_of_day(connection, now))
        if used >= self._cap:
            raise Exhausted(
                f"daily token cap of {self._cap:,} reached",
                hint=f"resets at {rfc3339(next_day(now))}; raise [model] daily_token_cap and restart agent-runtime",
            )


def next_day(now: datetime) -> datetime:
    """Return when the next day in UTC begins.

    >>> rfc3339(next_day(datetime(2026, 12, 31, 23, 59, tzinfo=UTC)))
    '2027-01-01T00:00:00Z'
    """
    return now.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=1)
