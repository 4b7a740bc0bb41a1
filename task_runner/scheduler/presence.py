"""Spans in which the runner did not run: the process was gone or stopped, or the machine was off or asleep."""

from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta

from task_runner.store.rows import Cause
from task_runner.store.store import Session, Store
from turnkeeper.clock import Clock
from turnkeeper.times import rfc3339

EVERY_S = 5.0
_LONGEST_LAG = timedelta(seconds=5)  # longer than the delay of a wake-up on a busy machine


class Presence:
    """A recorder of the spans in which this process did not run, which explain missed times."""

    def __init__(
        self, store: Store, *, clock: Clock, last_seen: Callable[[], Awaitable[datetime | None]], booted_at: datetime
    ) -> None:
        """Call `last_seen` to learn when a runner was last seen before this process. `booted_at` is the boot time."""
        self._store, self._clock = store, clock
        self._last_seen, self._booted_at = last_seen, booted_at
        self._has_begun = False
        self._unwritten: list[tuple[Cause, datetime, datetime]] = []

    async def run(self) -> None:
        """Record the absence before this start, then each pause that is too long for a busy machine."""
        if not self._has_begun:
            await self._begin()
        while True:
            wall, steady = self._clock.now(), self._clock.monotonic()
            await self._clock.sleep(EVERY_S)
            now, passed = self._clock.now(), timedelta(seconds=self._clock.monotonic() - steady)
            self._look(wall, now, passed)
            while self._unwritten:
                await self._store.run(lambda session: session.stoppages.happened(*self._unwritten[0]))
                del self._unwritten[0]

    async def leave(self) -> None:
        """Record that no runner is running from now on."""
        now = self._clock.now()
        await self._store.run(lambda session: session.stoppages.begin(Cause.RUNNER, "", now))

    async def _begin(self) -> None:
        last_seen, now = await self._last_seen(), self._clock.now()
        await self._store.run(lambda session: _end_absence(session, last_seen, now, self._booted_at))
        self._has_begun = True

    def _look(self, since: datetime, now: datetime, passed: timedelta) -> None:
        """Record a pause that is too long, unless the database is shared: another runner may have worked meanwhile."""
        if not self._store.is_shared and now - since - timedelta(seconds=EVERY_S) > _LONGEST_LAG:
            # The monotonic clock stops while the machine sleeps.
            ran = passed > (now - since) / 2
            self._unwritten.append((Cause.SUSPENDED if ran else Cause.ASLEEP, since, now))


def _end_absence(session: Session, last_seen: datetime | None, now: datetime, booted_at: datetime) -> None:
    """Record the end of an absence, which began at an orderly stop, or when a runner was last seen."""
    left = next((each for each in session.stoppages.listed() if each.lasts and each.cause is Cause.RUNNER), None)
    since = last_seen if left is None else left.since
    if since is None or since >= now:
        return
    off = f"the machine was off or restarting until {rfc3339(booted_at.replace(microsecond=0))}"
    why = off if booted_at > since else ""
    if left is None:
        session.stoppages.happened(Cause.RUNNER, since, now, why)
    else:
        session.stoppages.end(Cause.RUNNER, "", now, why)
