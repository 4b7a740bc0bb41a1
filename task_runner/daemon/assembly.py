"""Assembly of the runner's parts, for the daemon, and for one operation of a command while no daemon runs."""

import asyncio
import os
import shlex
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from task_runner.daemon.reads import PROCESS, defaults_of
from task_runner.dispatcher import dispatcher as sending
from task_runner.dispatcher import outcomes
from task_runner.dispatcher.runtime_client import Runtime
from task_runner.scheduler import firing, planning
from task_runner.scheduler.loop import Loop, Presence
from task_runner.scheduler.pruner import FIRST_AFTER_S, Pruner
from task_runner.service import changes
from task_runner.service import service as operations
from task_runner.service.task_spec import Defaults
from task_runner.service.watch import TaskChanges, WatchedLog
from task_runner.store.schema import audit
from task_runner.store.store import Session, Store
from turnkeeper.clock import Clock, SystemClock, booted_at
from turnkeeper.config.home import Home
from turnkeeper.config.settings import Settings, load_settings
from turnkeeper.config.surfaces import offered, required
from turnkeeper.entropy import Entropy, SystemEntropy
from turnkeeper.errors import Unreachable
from turnkeeper.rpc import callers, channel
from turnkeeper.rpc.process import Failpoints, Troubles, last_alive
from turnkeeper.rpc.pruning import BelievedTime, Pruning
from turnkeeper.storage import chain, nodes
from turnkeeper.storage.identity import require, take
from turnkeeper.storage.locking import ProcessLock
from turnkeeper.times import rfc3339
from turnkeeper.v1 import agent_runtime_pb2, schedules_pb2

_RUNTIME = "agent-runtime"
_COMMAND = f"{PROCESS}/cli"
_DELIVERY_S = 60.0


@dataclass(frozen=True, kw_only=True)
class Runner:
    """The parts of a runner.

    Attributes:
        listener: receives notifications of other processes on a shared database; None if the store is a local file.
        canceller: cancels the turns that waiting fires ask to cancel.
        pruner: deletes old history.
        warm_up: makes the first fire as fast as later ones.
        works: True if the runner plans and sends fires; False if it only answers the web page of its machine.
        beat: reports to the other processes of a shared database that this one is running; None for a local store.
        trouble: returns the machine fault that blocks the store or the event log; empty if there is none.
    """

    store: Store
    service: operations.Service
    loop: Loop
    dispatcher: Any
    follower: Any
    runtime_events: Any
    listener: Any
    canceller: sending.Canceller
    pruner: Pruning
    presence: Presence
    signer: chain.Signer
    clock: Clock
    warm_up: Callable[[], Awaitable[None]]
    works: bool
    beat: nodes.Beat | None
    log: WatchedLog
    trouble: Troubles


@asynccontextmanager
async def assemble(home: Home, *, daemon: bool, staggered: bool = True, **how: Any) -> AsyncIterator[Runner]:
    """Open the store and assemble a runner on it. The caller holds the process's lock.

    Args:
        daemon: True if the parts will run; a command line only calls the service.
        staggered: True if caught-up fires are sent one at a time, with pauses between them.
        how: options of `Store` for opening the home's file; `clock`, `entropy` and `connect` of a simulation.
    """
    loaded = load_settings(home)
    settings, shared, works = loaded.scheduler, loaded.store.is_shared, "runner" in loaded.node.roles
    how["entropy"], failpoints = how.get("entropy") or SystemEntropy(), Failpoints(os.environ)
    entropy, (clock, store, runtime, beat) = how["entropy"], await _opened(home, loaded, daemon=daemon, **how)
    log = WatchedLog(home.logs, PROCESS, clock)
    log.changes = TaskChanges(entropy.hex(8))
    changed, planned = asyncio.Event(), asyncio.Event()
    stagger_s, admit = settings.catch_up_stagger_s * staggered, offered("limits of queues", loaded) or sending.every
    pace = sending.Pace(concurrency=settings.catch_up_concurrency, stagger_s=stagger_s, admit=admit)
    common: Any = {"clock": clock, "log": log}
    sends: Any = {"failpoints": failpoints, "pace": pace, "changed": changed, "planned": planned}
    dispatcher, follower, runtime_events, listener = _exchange(store, runtime, loaded, entropy, common, sends)
    loop = Loop(
        store, clock=clock, log=log, failpoints=failpoints, changed=changed, planned=planned,
        handover=dispatcher, asking=dispatcher.asking,
    )  # fmt: skip
    concerned = [dispatcher.looking] if shared else [changed, dispatcher.work, runtime_events.changed]

    def task_changed() -> None:
        for event in (dispatcher.asking, *concerned):
            event.set()

    serving = operations.Serving(since=clock.now(), connected=lambda: dispatcher.connected or not works)
    service = operations.Service(
        store, runtime, clock=clock, entropy=entropy, log=log, defaults=defaults_of(settings), tick=loop.tick,
        changed=task_changed, watched=log.changes, serving=serving if daemon else None,
    )  # fmt: skip
    try:
        yield Runner(
            store=store,
            service=service,
            loop=loop,
            dispatcher=dispatcher,
            follower=follower,
            runtime_events=runtime_events,
            listener=listener,
            canceller=sending.Canceller(store, runtime, clock=clock, log=log, work=dispatcher.asking),
            signer=chain.signer_of(shared)(home, store.transact, audit, clock=clock, entropy=entropy, emit=log.emit),
            clock=clock,
            presence=_presence(home, store, clock, beat),
            pruner=_pruning(home, store, clock, log, keep_s=settings.keep_history),
            works=works,
            beat=beat,
            log=log,
            trouble=Troubles(store, log, dispatcher),
            warm_up=lambda: _warm_up(store, clock, entropy),
        )
    finally:
        await runtime.close()
        store.close()
        log.close()


def _pruning(home: Home, store: Store, clock: Clock, log: WatchedLog, *, keep_s: float) -> Pruning:
    pruner = Pruner(store, clock=clock, log=log, keep=timedelta(seconds=keep_s))
    return Pruning(BelievedTime(home, PROCESS, clock, log.emit), pruner.pass_over, clock=clock, first_s=FIRST_AFTER_S)


def _presence(home: Home, store: Store, clock: Clock, beat: nodes.Beat | None) -> Presence:
    async def last_seen() -> datetime | None:
        return alive if beat is None else await beat.last_other()

    alive = last_alive(home, PROCESS)  # read before this process overwrites it
    return Presence(store, clock=clock, last_seen=last_seen, booted_at=booted_at())


def _exchange(store: Store, runtime: Runtime, settings: Settings, entropy: Entropy, common: Any, sends: Any) -> Any:
    """Return the parts that send fires, record outcomes, record events inside turns, and look at a shared store."""
    own = partial(sending.Dispatcher, store, runtime, entropy=entropy)
    shared: Any = required("shared-runner") if store.is_shared else None
    sender: Any = (partial(shared.handover, store) if shared else own)(**sends, **common)
    planning, dispatch = (sender.looking, sender.looking) if shared else (sends["changed"], sender.work)
    wakes = outcomes.Wakes(planning=planning, dispatch=dispatch, lost=sender.lost, asking=sender.asking)
    how = common | {"wakes": wakes} | ({} if shared else {"entropy": entropy})
    if shared:
        parts = sender, shared.follower(store, **how), shared.events(store, **how)
        return *parts, shared.listener(store, settings.store, runtime, *parts, **common)
    return sender, outcomes.Follower(store, runtime, **how), outcomes.RuntimeEvents(store, runtime, **how), None


async def _opened(
    home: Home,
    settings: Settings,
    *,
    daemon: bool,
    entropy: Entropy,
    clock: Any = None,
    connect: Any = channel.connect,
    **how: Any,
) -> tuple[Clock, Store, Runtime, nodes.Beat | None]:
    """Open the store. Return its clock, the store, the runtime, and the part that reports that this process runs."""
    offered("calendar of a home", home)
    offered("prices of a home", home)
    identity = callers.Identity.of_daemon(PROCESS, _RUNTIME, home) if daemon else callers.Identity(_COMMAND)
    at_home, socket = f" --home {shlex.quote(str(home.root))}", home.socket(_RUNTIME)
    if settings.store.is_shared:
        made: tuple[Clock, Store, Runtime, nodes.Beat | None] = await required("shared-runner").opened(
            home, settings, at_home, entropy, PROCESS, socket, identity, daemon=daemon
        )
        return made
    clock, path = clock or SystemClock(), home.schedules_db
    require(home, path)
    store = Store(path, at_home, clock, entropy, **how)
    if how.get("upgrade", True):
        await take(home, path, run=store.transact, chain=audit, at=clock.now(), entropy=entropy, starts=daemon)
    return clock, store, Runtime(socket, identity, connect), None


async def _warm_up(store: Store, clock: Clock, entropy: Entropy) -> None:
    if not store.is_shared:  # in a shared store, the rehearsal would lock other processes' rows
        await store.rehearse(lambda session: _rehearse_a_fire(session, clock.now(), entropy))


def call(home: Home, method: str, request: Any) -> Any:
    """Run one operation of the service in this process. `method` is its name in the contract.

    Raises the operation's errors, and Conflict if another process holds the lock.
    """

    async def operation() -> Any:
        callers.answer_for(callers.read_via(_COMMAND))
        async with assemble(home, daemon=False, **how) as runner:
            answer = await getattr(runner.service, operations.METHODS[method])(request)
            callers.record(runner.log, operations.RULES, method, request, answer, callers.current())
            return answer

    home.create()
    with ProcessLock(home, PROCESS):
        is_made = home.schedules_db.exists() and home.schedules_db.stat().st_size > 0
        reads = method in operations.RULES.reads
        how: dict[str, Any] = {"read_only": reads and is_made, "upgrade": not changes_nothing(method, request)}
        return asyncio.run(operation())


def changes_nothing(method: str, request: Any) -> bool:
    """Return whether an operation only reads, or only shows the changes that it would make."""
    return method in operations.RULES.reads or bool(getattr(request, "dry_run", False))


def deliver(home: Home) -> int:
    """Do the daemon's work once: record outcomes, plan, and send. Return the number of fires that were sent.

    Raises TurnkeeperError if the runtime does not accept them, or another process holds the lock.
    """

    async def once() -> int:
        async with assemble(home, daemon=True, staggered=False) as runner, asyncio.timeout(_DELIVERY_S):
            try:
                await runner.follower.ask_about_open(again=False)
                await runner.loop.tick()
                sent: int = await runner.dispatcher.send_all()
                return sent
            finally:
                if runner.beat is not None:  # otherwise other machines would soon consider this one lost
                    await runner.beat.leave()

    home.check_taken_over()
    with ProcessLock(home, PROCESS):
        try:
            return asyncio.run(once())
        except TimeoutError as error:
            raise Unreachable(f"{_RUNTIME} did not accept every fire in {_DELIVERY_S:.0f}s") from error


def _rehearse_a_fire(session: Session, now: datetime, entropy: Entropy) -> None:
    """Run a task through its life cycle in a transaction that is rolled back, so that every statement is compiled."""
    at = now.replace(microsecond=0) + timedelta(days=1)
    name = f"warm-up-{entropy.hex(8)}"
    for way in ("short", "long"):
        spec = schedules_pb2.TaskSpec(name=f"{name}-{way}", category="c", channel="c", prompt="p", at=rfc3339(at))
        task = changes.create(session, spec, Defaults(timezone="UTC"), now, entropy).task
        firing.fire_due(session, now, 1, {}, sent_at=now, room=1, reachable=True)
        if way == "short":
            fires = [fire for fire in firing.prepare(session, [task.id]).values() if fire is not None]
            keys = [key for key, *_ in firing.fire_all(session, fires, at).sent]
        else:
            planning.plan_tasks(session, [task.id], at)
            keys = [sending.key_of(outgoing.fire) for outgoing in sending.claim(session, at, 1, 1, single=True)]
        session.tasks.next_wake()
        session.fires.unanswered(0, 1)
    for key in keys:
        accepted = agent_runtime_pb2.FireReceipt.ACCEPTED
        receipt = agent_runtime_pb2.FireReceipt(fire_id=key.fire_id, attempt=1, disposition=accepted)
        sending.record_receipts(session, [receipt], [key], at)
        succeeded = agent_runtime_pb2.TurnEvent.SUCCEEDED
        event = agent_runtime_pb2.TurnEvent(fire_id=key.fire_id, attempt=1, state=succeeded)
        outcomes.record_news(session, [outcomes.news_of(event, at)], at)
    for caught_up in (False, True):
        session.fires.next_ready(caught_up=caught_up)
    session.outcomes_read.move(*session.outcomes_read.get())
