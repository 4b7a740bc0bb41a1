"""The process `python -m turnkeeper.constellation.delivery HOME`, which the supervisor runs if `[delivery]` enables it.

It writes turn events into the outbox, and sends deliveries that are due. Like the daemons, it holds its lock, reports
its progress, and answers the health service on `state/run/delivery.sock`.
"""

import asyncio
import os
import signal
import sys
from datetime import timedelta
from functools import partial
from typing import Any

from turnkeeper.bus.event_log import EventLog
from turnkeeper.clock import Clock, SystemClock
from turnkeeper.config.home import Home
from turnkeeper.config.settings import Settings, load_settings
from turnkeeper.config.surfaces import offered
from turnkeeper.constellation.delivery import outbox, targets
from turnkeeper.constellation.delivery.follow import Follower, Overlooker, Settler, digest_of, event_of
from turnkeeper.constellation.delivery.outbox import BY_COMMAND, GATHERED, QUIET, SETTLING, Delivery
from turnkeeper.constellation.delivery.send import Refused, send
from turnkeeper.constellation.supervisor.escalation import escalate
from turnkeeper.errors import InvalidInput, TurnkeeperError
from turnkeeper.rpc.callers import Identity
from turnkeeper.rpc.channel import AsyncCaller
from turnkeeper.rpc.process import Failpoints, Progress, keep_running, together
from turnkeeper.rpc.server import UnixServer, keep_reachable, run_daemon
from turnkeeper.storage.database import Database
from turnkeeper.storage.locking import ProcessLock

PROCESS = "delivery"
VIA = "delivery/api"
NICE = 10  # if processor time is scarce, deliveries wait and fires do not
MOST_AT_ONCE = 8
LOOK_S = 1.0  # seconds between two reads of the outbox, which another machine may have changed
AGAIN_S = 1.0  # seconds before the next attempt to reach a daemon that is unavailable
PRUNE_EVERY_S = 3600.0
_GRACE_S = 2.0


class Courier:
    """The worker that settles and sends the rows that are due."""

    def __init__(
        self, home: Home, settings: Settings, store: Database, daemons: AsyncCaller, *, clock: Clock, log: EventLog
    ) -> None:
        self._home, self._allowed, self._store = home, settings.delivery.allow, store
        self._runner = daemons.by(Identity.of_daemon(PROCESS, "task-runner", home))
        self._settler = Settler(store, daemons, clock, partial(offered, "decision link", home))
        self._clock, self._log, self.failpoints = clock, log, Failpoints(os.environ)
        self.wake, self._lease = asyncio.Event(), outbox.LEASE if store.is_shared else outbox.UNLEASED

    async def run(self) -> None:
        """Process rows when they become due, until cancelled."""
        pruned_at = self._clock.monotonic() - PRUNE_EVERY_S
        while True:
            self.wake.clear()
            now = self._clock.now()
            due = await self._store.run(partial(outbox.take_due, now=now, most=MOST_AT_ONCE, lease=self._lease))
            await asyncio.gather(*map(self._one, due))
            if self._clock.monotonic() - pruned_at >= PRUNE_EVERY_S:
                pruned_at = self._clock.monotonic()
                await self._store.run(lambda store: outbox.prune(store, self._clock.now()))
            if not due:
                await self._clock.wait(self.wake, await self._rest())

    async def _rest(self) -> float:
        at = await self._store.look(outbox.next_due)
        left = LOOK_S if at is None else (at - self._clock.now()).total_seconds()
        return min(max(left, 0.01), LOOK_S)

    async def _one(self, row: Delivery) -> None:
        try:
            known = targets.FILE.read(self._home)
            if not row.body:
                await self._end(row, outbox.DROPPED, "its text was erased")
            elif row.state == SETTLING:
                self.failpoints.reach("delivery.settling")
                await self._settler.settle(row, known)
                self.failpoints.reach("delivery.settled")
            elif row.target not in known:
                await self._end(row, outbox.DROPPED, outbox.REMOVED)
            elif row.address and not known[row.target].takes_run(row.address):
                await self._end(row, outbox.DROPPED, "its target takes no runs at this host any more")
            elif row.reason != BY_COMMAND and (at := known[row.target].after_quiet(now := self._clock.now())) > now:
                await self._store.run(lambda store: outbox.postpone(store, row, at, reason=row.reason or QUIET))
            elif row.state == GATHERED:
                await self._gather(row)
            else:
                await self._send(row, known[row.target].at(row.address))
        except Exception as error:  # noqa: BLE001  such as a daemon that is away; it ends no other delivery
            again, why = self._clock.now() + timedelta(seconds=AGAIN_S), (str(error) or type(error).__name__)[:300]
            await self._store.run(lambda store: outbox.postpone(store, row, again, reason=why))

    async def _send(self, row: Delivery, target: targets.Target) -> None:
        self.failpoints.reach("delivery.sending")
        try:
            if target.event:
                await self._runner.EmitEvent(event_of(target.event, row))
                why = ""
            else:
                why = await send(target, row.key, row.kind, row.body, self._clock.now(), allowed=self._allowed)
        except (Refused, InvalidInput) as error:
            await self._give_up(row, str(error))
            return
        self.failpoints.reach("delivery.sent")
        if not why:
            await self._end(row, outbox.DELIVERED, "")
            self.failpoints.reach("delivery.recorded")
            self._log.emit("delivery.done", key=row.key, target=row.target, about=row.kind, fire_id=row.fire_id)
            return
        now = self._clock.now()
        if await self._store.run(lambda store: outbox.retry(store, row, now, why)):
            self._log.emit("delivery.failed", key=row.key, target=row.target, reason=why)
        else:
            await self._give_up(row, why)

    async def _give_up(self, row: Delivery, why: str) -> None:
        await self._end(row, outbox.GIVEN_UP, why)
        self._log.emit("delivery.given_up", key=row.key, target=row.target, reason=why)
        said = f"a delivery of {row.task or row.kind} to {row.target} was given up: {why}"
        await asyncio.to_thread(escalate, self._home, PROCESS, row.key, said)

    async def _gather(self, due: Delivery) -> None:
        def gather(store: Any) -> None:
            if rows := outbox.gather(store, due.target, now, self._lease):
                reason = due.reason if due.reason == BY_COMMAND else ""
                outbox.put(store, [digest_of(due.target, rows, now)._replace(reason=reason)])
                for row in rows:
                    outbox.end(store, row, outbox.DELIVERED, now, "in the digest")

        now = self._clock.now()
        await self._store.run(gather)
        self.failpoints.reach("delivery.gathered")

    async def _end(self, row: Delivery, state: str, why: str) -> None:
        now = self._clock.now()
        await self._store.run(lambda store: outbox.end(store, row, state, now, why))


async def _follow(follower: Follower | Overlooker, clock: Clock, log: EventLog) -> None:
    """Follow a daemon until cancelled. While the daemon is unavailable, try again."""
    said = ""
    while True:
        try:
            await follower.run()
            said = ""
        except TurnkeeperError as error:
            if said != (said := str(error)[:300]):
                log.emit("delivery.not_following", reason=said)
        await clock.sleep(AGAIN_S)


async def serve(home: Home, lock: ProcessLock) -> None:
    """Serve until SIGTERM or SIGINT. The caller holds the process's lock; this function restores its file if needed."""
    clock, settings, stop = SystemClock(), load_settings(home), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    log, health = EventLog(home.logs, PROCESS, clock), UnixServer(home.socket(PROCESS))
    daemons = AsyncCaller(home, via=VIA)
    store = outbox.open_outbox(home)
    assert store is not None
    courier = Courier(home, settings, store, daemons, clock=clock, log=log)
    follower = Follower(store, daemons, courier.wake.set, courier.failpoints)
    progress = Progress(home, PROCESS, os.getpid())
    ledger = Overlooker(home, store, daemons, clock, courier.wake.set)
    try:
        await store.run(partial(outbox.begin, now=clock.now()))
        await health.start()
        log.emit("process.started")
        await together(
            keep_running(lambda: _follow(follower, clock, log), clock, log.emit),
            keep_running(lambda: _follow(ledger, clock, log), clock, log.emit),
            keep_running(courier.run, clock, log.emit),
            progress.run(clock, lambda: keep_reachable(lock, health, log)),
            stop.wait(),
            until=asyncio.FIRST_COMPLETED,
        )
    finally:
        await daemons.close()
        await health.stop(_GRACE_S)
        await asyncio.to_thread(store.close)
        log.emit("process.stopped")


main = partial(run_daemon, process=PROCESS, serve=serve, nice=NICE)

if __name__ == "__main__":
    os.umask(0o077)
    sys.exit(main(sys.argv[1:]))
