"""Putting the parts of the runner together: for the daemon, and for a command line without one.

The machine's own time zone, by its IANA name.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path

from task_runner.daemon.warm_up import rehearse_a_fire
from task_runner.dispatcher.canceller import Canceller
from task_runner.dispatcher.dispatcher import Dispatcher, Pace
from task_runner.dispatcher.outcomes import Follower, Wakes
from task_runner.dispatcher.runtime_client import GrpcRuntime
from task_runner.dispatcher.runtime_events import Bridge
from task_runner.scheduler.loop import Loop
from task_runner.scheduler.pruner import Pruner
from task_runner.service.service import Service, Serving
from task_runner.service.task_spec import Defaults
from task_runner.store.sqlite import SqliteStore
from task_runner.timetable import zone
from turnkeeper.clock import SystemClock
from turnkeeper.config.home import Home
from turnkeeper.config.settings import SchedulerSettings, load_settings
from turnkeeper.entropy import SystemEntropy
from turnkeeper.errors import InvalidInput
from turnkeeper.event_log import EventLog
from turnkeeper.failpoints import Failpoints

_FOLDER = "zoneinfo/"


def machine_zone(environ: Mapping[str, str], etc: Path = Path("/etc")) -> str:
    """Return the zone that TZ names, else /etc/timezone, else the link /etc/localtime; UTC where none does."""
    for name in (environ.get("TZ", "").removeprefix(":"), _written(etc / "timezone"), _linked(etc / "localtime")):
        try:
            return zone(name).key
        except InvalidInput:
            continue
    return "UTC"


def _written(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()[:255]
    except OSError:
        return ""


def _linked(path: Path) -> str:
    try:
        target = os.readlink(path)  # noqa: PTH115  the text of the link, not what it resolves to
    except OSError:
        return ""
    return target.partition(_FOLDER)[2]


PROCESS = "task-runner"
_RUNTIME = "agent-runtime"


@dataclass(frozen=True, kw_only=True)
class Runner:
    """The parts that have something to do.

    Attributes:
        service: the operations.
        loop: plans.
        dispatcher: sends.
        follower: takes outcomes in.
        bridge: takes in what happens inside turns.
        canceller: asks for the end of turns that a fire wants ended.
        pruner: lets old history go.
        warm_up: makes the first fire as fast as the second.
    """

    service: Service
    loop: Loop
    dispatcher: Dispatcher
    follower: Follower
    bridge: Bridge
    canceller: Canceller
    pruner: Pruner
    warm_up: Callable[[], Awaitable[None]]


@asynccontextmanager
async def assemble(home: Home, *, daemon: bool) -> AsyncIterator[Runner]:
    """Open the store and put a runner around it. The caller holds the process's lock.

    Args:
        home: the state directory.
        daemon: whether the parts will run; a command line only calls the service.
    """
    settings = load_settings(home).scheduler
    clock, entropy, failpoints = SystemClock(), SystemEntropy(), Failpoints(os.environ)
    log = EventLog(home.logs, PROCESS, clock)
    store, runtime = SqliteStore(home.schedules_db), GrpcRuntime(home.socket(_RUNTIME))
    changed, planned = asyncio.Event(), asyncio.Event()
    dispatcher = Dispatcher(
        store,
        runtime,
        clock=clock,
        entropy=entropy,
        trail=log,
        failpoints=failpoints,
        pace=Pace(concurrency=settings.catch_up_concurrency, stagger_s=settings.catch_up_stagger_s),
        changed=changed,
        planned=planned,
    )
    loop = Loop(
        store, clock=clock, trail=log, failpoints=failpoints, changed=changed, planned=planned,
        dispatch=dispatcher.wake, asking=dispatcher.asking, reachable=lambda: dispatcher.connected,
    )  # fmt: skip
    wakes = Wakes(
        planning=changed, dispatch=dispatcher.work, lost=dispatcher.lost, asking=dispatcher.asking
    )  # fmt: skip
    follower = Follower(store, runtime, clock=clock, entropy=entropy, trail=log, wakes=wakes)
    bridge = Bridge(store, runtime, clock=clock, entropy=entropy, trail=log, wakes=wakes)
    service = Service(
        store,
        runtime,
        clock=clock,
        entropy=entropy,
        trail=log,
        defaults=_defaults(settings),
        tick=loop.tick,
        changed=partial(_tell, changed, dispatcher.work, dispatcher.asking, bridge.changed),
        serving=Serving(since=clock.now(), connected=lambda: dispatcher.connected) if daemon else None,
    )
    try:
        yield Runner(
            service=service,
            loop=loop,
            dispatcher=dispatcher,
            follower=follower,
            bridge=bridge,
            canceller=Canceller(store, runtime, clock=clock, trail=log, work=dispatcher.asking),
            pruner=Pruner(store, clock=clock, trail=log, keep=timedelta(seconds=settings.keep_history)),
            warm_up=lambda: store.rehearse(partial(rehearse_a_fire, now=clock.now(), entropy=entropy)),
        )
    finally:
        await runtime.close()
        store.close()
        log.close()


def _defaults(settings: SchedulerSettings) -> Defaults:
    return Defaults(timezone=settings.timezone or machine_zone(os.environ), grace=timedelta(seconds=settings.grace_s))


def _tell(*concerned: asyncio.Event) -> None:
    for event in concerned:
        event.set()
