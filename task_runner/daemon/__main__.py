"""The daemon: `python -m task_runner.daemon HOME`, which `task-runner serve` executes.

It is a separate module, so that no other command has to import it.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Coroutine
from contextlib import nullcontext, suppress
from functools import partial
from typing import Any

from task_runner.daemon.assembly import Runner, assemble
from task_runner.daemon.reads import PROCESS
from task_runner.service.service import RULES, Servicer
from turnkeeper.bus.event_log import EventLog
from turnkeeper.clock import SystemClock
from turnkeeper.config.home import Home
from turnkeeper.config.settings import load_settings
from turnkeeper.errors import MachineTrouble
from turnkeeper.rpc.callers import Door
from turnkeeper.rpc.process import Progress, keep_running, settle_heap, together
from turnkeeper.rpc.server import Observers, UnixServer, keep_reachable, run_daemon
from turnkeeper.storage import nodes
from turnkeeper.storage.damage import StoreWatch
from turnkeeper.storage.locking import ProcessLock
from turnkeeper.v1 import schedules_pb2
from turnkeeper.v1.schedules_pb2_grpc import add_SchedulesServicer_to_server

_STOP_GRACE_S = 2.0


async def serve(home: Home, lock: ProcessLock) -> None:
    """Serve until SIGTERM or SIGINT. The caller holds the process's lock, which stays held."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    log = EventLog(home.logs, PROCESS, SystemClock())
    watch = StoreWatch(home.schedules_db, report=lambda error: log.emit("store.damaged", reason=str(error)))
    with nullcontext() if load_settings(home).store.is_shared else watch:
        await _serve(home, lock, stop, log)


async def _serve(home: Home, lock: ProcessLock, stop: asyncio.Event, log: EventLog) -> None:
    async with assemble(home, daemon=True) as runner:
        server = UnixServer(home.socket(PROCESS), Door(home, RULES, log))
        described = schedules_pb2.DESCRIPTOR.services_by_name["Schedules"]
        server.add(add_SchedulesServicer_to_server, Servicer(runner.service), described)
        if runner.beat is not None:
            runner.beat.on_gone = partial(nodes.alert, home, log.emit)
            runner.beat.on_seen = partial(nodes.date_alerts, home)
        await _end_ephemeral(runner)
        await runner.warm_up()
        settings = load_settings(home)
        observers = Observers(PROCESS, home, runner, settings, runner.clock)
        settle_heap()
        await server.start()
        log.emit("process.started", after=lock.after)
        try:
            runner.trouble.append(observers)
            progress = Progress(home, PROCESS, os.getpid(), runner.trouble)
            kept = progress.run(runner.clock, partial(keep_reachable, lock, server, log, observers=observers))
            await _work_until(stop, runner, kept)
        finally:
            runner.log.changes.close()
            observers.close()
            await server.stop(_STOP_GRACE_S)
            with suppress(MachineTrouble):  # the next start deletes them
                if runner.works and (runner.beat is None or await runner.beat.is_alone()):
                    await runner.presence.leave()
                await _end_ephemeral(runner)
                if runner.beat is not None:
                    await runner.beat.leave()
            await runner.signer.sign()
            log.emit("process.stopped")


async def _end_ephemeral(runner: Runner) -> None:
    """Delete ephemeral tasks, unless another runner is running."""
    if runner.works and (runner.beat is None or await runner.beat.is_alone()):
        await runner.service.end_ephemeral()


async def _work_until(stop: asyncio.Event, runner: Runner, progress: Coroutine[Any, Any, None]) -> None:
    """Run the parts until `stop` is set.

    A runner that only answers has few parts. A part that fails because of machine trouble is restarted. Any other
    failure of a part ends the process, and the supervisor restarts the process.
    """
    beside: list[Any] = [] if runner.beat is None else [runner.beat]
    working = (
        runner.presence, runner.loop, runner.dispatcher, runner.follower, runner.runtime_events, runner.canceller,
        runner.pruner, *([] if runner.listener is None else [runner.listener]),
    )  # fmt: skip
    parts = [
        keep_running(part.run, runner.clock, runner.log.emit, runner.trouble.resting)
        for part in (*(working if runner.works else ()), runner.signer, *beside)
    ]
    await together(*parts, progress, stop.wait(), until=asyncio.FIRST_COMPLETED)


main = partial(run_daemon, process=PROCESS, serve=serve)

if __name__ == "__main__":
    os.umask(0o077)
    sys.exit(main(sys.argv[1:]))
