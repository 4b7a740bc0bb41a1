"""One tick of the watchdog: observe each daemon, decide, act. The supervisor and `turnkeeper watchdog tick` run ticks.

The whole state is on disk, so any process can run the next tick. A lock admits one at a time. A decision is on disk
before it is carried out. So a crash in between costs one restart of the budget, but never exceeds it.

A planned restart is a request on disk. A tick claims the request and starts a child that survives the supervisor. While
the child runs, ticks do not touch agent-runtime. If the child dies, the next child continues from the files.
"""

import os
import signal
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import UTC, datetime
from typing import Any

from turnkeeper.bus.event_log import EventLog
from turnkeeper.clock import Clock, SystemClock
from turnkeeper.config.home import Home
from turnkeeper.constellation.supervisor import daemons, markers, policy
from turnkeeper.constellation.supervisor.escalation import Routes, escalate, send, send_all, settle
from turnkeeper.constellation.supervisor.handoff import Deliverer, Draft, crash_text, drafts, write_draft
from turnkeeper.constellation.supervisor.retention import EVERY_S, Kept, let_go
from turnkeeper.entropy import Entropy
from turnkeeper.errors import EXIT_UNREACHABLE, Conflict, Corrupt, Exhausted, MachineTrouble, machine_trouble
from turnkeeper.rpc.process import Failpoints, last_beat
from turnkeeper.rpc.pruning import BelievedTime
from turnkeeper.storage.files import why_unwritable
from turnkeeper.storage.locking import ProcessLock, is_held
from turnkeeper.times import rfc3339

LOCK = "watchdog"
RESTARTER = daemons.Daemon(name="restart", package="turnkeeper.constellation.restart", command=())
RESTARTED = "agent-runtime"
MOST_TRIES = 3
KEPT_STATUS_FILES = 50
_LOCK_PATIENCE_S = 30.0
_TROUBLE_WAIT_S = 2.0
_CALM_S = 60.0  # seconds without machine trouble after which it is over, and new trouble causes an alert
_OVER = float("-inf")
_TAIL_BYTES = 4096
_UNREACHABLE = f"exit code {EXIT_UNREACHABLE}"


@dataclass(frozen=True, kw_only=True)
class Orders:
    """The author's orders to the watchdog, from the last valid `up`."""

    limits: policy.Limits = field(default_factory=policy.Limits)
    routes: Routes = field(default_factory=Routes)
    kept: Kept = field(default_factory=Kept)
    optional: frozenset[str] = frozenset()  # the names of `OPTIONAL` processes that should run
    left_out: frozenset[str] = frozenset()  # the names of `DAEMONS` that should not run on this machine

    @property
    def wanted(self) -> Sequence[daemons.Daemon]:
        own = [one for one in daemons.DAEMONS if one.name not in self.left_out]
        return (*own, *(one for one in daemons.OPTIONAL if one.name in self.optional))


class Watchdog:
    """The watchdog of one home."""

    def __init__(
        self,
        home: Home,
        *,
        clock: Clock,
        entropy: Entropy,
        environ: Mapping[str, str],
        daemons: Sequence[daemons.Daemon] | None = None,
        child: daemons.Daemon = RESTARTER,
    ) -> None:
        """Watch `daemons`, by default the daemons in the orders. `child` carries out planned restarts.

        All are started with the variables in `environ`.
        """
        self._home = home
        self._daemons = daemons
        self._clock = clock
        self._entropy = entropy
        self._environ = environ
        self._log = EventLog(home.logs, LOCK, clock)
        self._planned = Planned(home, log=self._log, environ=environ, child=child)
        self._troubles = Troubles(home, clock, self._log)
        self._orders = Orders()
        self._log_from: dict[str, int] = {}
        self._let_go_at = 0.0
        self._believed = BelievedTime(home, LOCK, clock, self._log.emit)
        self.ended: dict[int, str] = {}
        """The ends of this process's children, by pid."""
        self.waiting: dict[str, str] = {}
        """The last errors of daemons that are absent because a server does not answer, by name."""

    @property
    def watched(self) -> Sequence[daemons.Daemon]:
        """The watched processes, from the newest orders."""
        return self._orders.wanted if self._daemons is None else self._daemons

    def tick(self) -> float | None:
        """Run one tick. Return the seconds until the next, or None if nothing should run.

        If the machine is in trouble, decide nothing: alert the author, and let the next tick try again.
        """
        try:
            with ProcessLock(self._home, LOCK):
                return self._tick()
        except Conflict:
            return 0.5  # another process runs a tick
        except (OSError, MachineTrouble) as error:
            if not self.alert_to(error):
                raise
            return min(self._orders.limits.interval_s, _TROUBLE_WAIT_S)

    def alert_to(self, error: BaseException) -> bool:
        """Alert the author to machine trouble. For any other error, do nothing and return False."""
        trouble = machine_trouble(error, ours=True)
        if trouble is not None:
            self._troubles.look({LOCK: str(trouble)}, self._orders, self._environ, ())
        return trouble is not None

    def _tick(self) -> float | None:
        orders = read_orders(self._home)
        if orders is None:
            return None
        self._orders = orders
        if (trouble := why_unwritable(self._home.run)) is not None:
            raise trouble  # decide nothing that cannot be written to disk
        now = self._clock.now().timestamp()
        quiet = is_quiet(self._home, now)
        wake_at = now + orders.limits.interval_s
        planned = self._planned.under_way(now)
        for daemon in self.watched:
            if planned and daemon.name == RESTARTED:
                wake_at = min(wake_at, now + policy.LOOK_AGAIN_S)
                continue
            before = markers.recall(self._home, daemon.name)
            sight = self._sight(daemon, before)
            if sight is None:
                wake_at = min(wake_at, now + policy.LOOK_AGAIN_S)
                continue
            new_id = self._new_id(daemon)
            step = policy.look(now, sight, before, orders.limits, quiet=quiet, new_id=new_id)
            markers.remember(self._home, daemon.name, before, replace_escalated(step.memory, before))
            for action in step.actions:
                self._act(daemon, step.memory, action, sight.error)
            self._settle(daemon, before, step)
            if sight.state == "up" and daemon.name == RESTARTED:
                self._deliver()
            wake_at = min(wake_at, step.wake_at)
        send_all(self._home, orders.routes, self._log, self._environ, now=now, every_s=orders.limits.interval_s)
        serve = [LOCK, *(one.name for one in self.watched if daemons.serves(self._home, one))]
        self._troubles.look(troubles_of(self._home, self.watched) | self.waiting, orders, self._environ, serve)
        self._let_go(now)
        return max(0.0, wake_at - now)

    def _let_go(self, now: float) -> None:
        """Delete old trails and cut large logs, once an hour."""
        if now < self._let_go_at:
            return
        self._let_go_at = now + EVERY_S
        removed, cut = let_go(self._home, self._orders.kept, self._believed.now())
        if removed or cut:
            self._log.emit("logs.pruned", removed=removed, cut=cut)
            self._log_from.clear()

    def _deliver(self) -> None:
        """Deliver the waiting handoffs, because their reader is up."""
        if any(drafts(self._home)):
            failpoints = Failpoints(self._environ)
            deliverer = Deliverer(self._home, clock=self._clock, entropy=self._entropy, failpoints=failpoints)
            try:
                for id_ in deliverer.deliver_all():
                    self._log.emit("handoff.delivered", id=id_)
            except (Exhausted, Corrupt) as error:  # there is no room, or the sealing key cannot be read
                self._log.emit("handoff.waits", reason=str(error))

    def _settle(self, daemon: daemons.Daemon, before: markers.Memory, step: policy.Step) -> None:
        """Mark the crash loop as escalated after the escalation is on disk."""
        pending = replace_escalated(step.memory, before)
        markers.remember(self._home, daemon.name, pending, replace(pending, crash_loop=step.memory.crash_loop))

    def _sight(self, daemon: daemons.Daemon, memory: markers.Memory) -> policy.Sight | None:
        """Return the observed state of a daemon. None while it is ending and the cause is not known yet."""
        held = is_held(self._home, daemon.name)
        process = daemons.process_of(self._home, daemon) or self._unlocked(daemon, memory)
        if process is not None:
            self.waiting.pop(daemon.name, None)
            beat = last_beat(self._home, daemon.name)
            if beat is not None and beat.pid == process.pid:
                return policy.Sight(state="up", pid=process.pid, beats=beat.count)
            return policy.Sight(state="starting", pid=process.pid)
        revive = memory.revive if isinstance(memory.revive, markers.Revive) else None
        started = revive.pid if revive is not None and revive.up_at is None else None
        if started is not None and daemons.process_with(started, daemon) is not None:
            return policy.Sight(state="starting", pid=started)
        if held:  # the holder is unknown, but the lock is held
            return policy.Sight(state="starting")
        if self._is_ending(_last_pid(memory)):
            return None
        error = self._last_words(daemon, memory)
        if memory.revive is not None or memory.stall is not None:  # a process ended after the daemon was found to wait
            self.waiting.pop(daemon.name, None)
        if error.partition(";")[0] == _UNREACHABLE:
            self.waiting[daemon.name] = error
        waits = daemon.name in self.waiting
        return policy.Sight(state="absent", error=self.waiting.get(daemon.name, error), waits=waits)

    def _is_ending(self, pid: int) -> bool:
        """Return True if a child of this process still runs. Reap it if it has ended."""
        if pid and pid not in self.ended:
            with suppress(ChildProcessError):
                ended, status = os.waitpid(pid, os.WNOHANG)
                if not ended:
                    return True
                self.reaped(pid, status)
        return False

    def reaped(self, pid: int, status: int) -> None:
        """Store the status of a child from `os.waitpid`."""
        code = os.waitstatus_to_exitcode(status)
        self.ended[pid] = f"exit code {code}" if code >= 0 else f"ended by signal {-code}"

    def _unlocked(self, daemon: daemons.Daemon, memory: markers.Memory) -> Any:
        """Return the process that last served if it is still running, although its lock or pid file was removed.

        The process restores the files at its next beat. Do not start a second process beside it.
        """
        if not isinstance(memory.stall, markers.Stall):
            return None
        return daemons.process_on(self._home, memory.stall.pid, daemon)

    def _act(self, daemon: daemons.Daemon, memory: markers.Memory, action: policy.Action, error: str) -> None:
        match action:
            case policy.Start(id=id_, crashed=crashed):
                self._start(daemon, memory, id_, crashed=crashed, error=error)
            case policy.Kill(pid=pid, reason=reason):
                self._log.emit("daemon.killed", daemon=daemon.name, killed=pid, reason=reason)
                if daemons.process_with(pid, daemon) is not None:
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
            case policy.Escalate(key=key, text=text):
                self._log.emit("escalate", durable=True, daemon=daemon.name, key=key, reason=text)
                escalate(self._home, daemon.name, key, text)
            case policy.Phase(id=id_, phase=phase, error=said, waits=waits):
                self._phase(daemon, id_, phase, said, **({"waits": True} if waits else {}))
            case policy.Note(event=event, fields=fields_):
                self._log.emit(event, daemon=daemon.name, **fields_)

    def _start(self, daemon: daemons.Daemon, memory: markers.Memory, id_: str, *, crashed: bool, error: str) -> None:
        now = self._clock.now()
        if crashed and daemon.name == RESTARTED and not any(drafts(self._home)):
            text = crash_text(now, daemon.name, error)
            write_draft(self._home, Draft(id=id_, kind="crash", text=text, at=rfc3339(now)))
        log = daemons.log_of(self._home, daemon)
        self._log_from[daemon.name] = log.stat().st_size if log.exists() else 0
        pid = daemons.spawn(self._home, daemon, self._environ)
        self._log.emit("daemon.started", daemon=daemon.name, id=id_, started=pid, crashed=crashed, reason=error)
        if isinstance(memory.revive, markers.Revive):
            markers.remember(self._home, daemon.name, memory, replace(memory, revive=replace(memory.revive, pid=pid)))
        self._phase(daemon, id_, "spawned", "", pid=pid)

    def _phase(self, daemon: daemons.Daemon, id_: str, phase: str, error: str, **more: Any) -> None:
        at = self._clock.now()
        failed = markers.FAILED_REVIVE.at(self._home, process=daemon.name)
        if phase == "failed":
            says = {"id": id_, "process": daemon.name, "phase": phase, "at": rfc3339(at), "error": error}
            markers.write_marker(failed, says | more)
        elif phase == "verified":
            markers.clear_marker(failed)
            settle(self._home, daemon.name, rfc3339(at))
            if daemon.name == RESTARTED and self._orders.routes.announce:
                said = f"turnkeeper: {daemon.name} is up, verified at {rfc3339(at)} ({self._home.root})"
                send(said, self._orders.routes, self._log, self._environ)
        elif phase == "up-detected" and isinstance(was := markers.read_marker(failed), dict) and was.get("waits"):
            markers.clear_marker(failed)  # the server that it waited for answered: nothing was wrong with the daemon
        if id_:
            write_status(self._home, id_, daemon.name, phase, at, error=error, **more)

    def _last_words(self, daemon: daemons.Daemon, memory: markers.Memory) -> str:
        """Return how a daemon ended, if known. From the daemon's output, include only our own errors."""
        how = self.ended.get(_last_pid(memory), "")
        start = self._log_from.get(daemon.name)
        said = "" if start is None else daemons.last_error(_since(self._home, daemon, start))
        return "; ".join(part for part in (how, said) if part)

    def _new_id(self, daemon: daemons.Daemon) -> str:
        at = self._clock.now().astimezone(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
        return f"{at}-{daemon.name}-{self._entropy.hex(4)}"


def _last_pid(memory: markers.Memory) -> int:
    """Return the pid of the process that was started last, else of the one that served last, else 0.

    How an earlier process ended does not show how this one ended.
    """
    started = memory.revive.pid if isinstance(memory.revive, markers.Revive) else None
    served = memory.stall.pid if isinstance(memory.stall, markers.Stall) else None
    return started or served or 0


def troubles_of(home: Home, of: Sequence[daemons.Daemon]) -> dict[str, str]:
    """Return the machine trouble that each daemon reports, by the daemon's name."""
    found = {}
    for daemon in of:
        beat = last_beat(home, daemon.name)
        if beat is not None and beat.trouble and daemons.serves(home, daemon):
            found[daemon.name] = beat.trouble
    return found


class Troubles:
    """Alerts to the author about machine trouble: one as long as it lasts, even with brief pauses, and one at its end.

    Nothing is stored on disk, because the disk may be in trouble. If no route accepts an alert, each tick tries again.
    """

    def __init__(self, home: Home, clock: Clock, log: EventLog) -> None:
        self._home, self._clock, self._log = home, clock, log
        self._told: dict[str, float] = {}  # when trouble was last seen; `_OVER` if only its end is not reported yet

    def look(self, found: Mapping[str, str], orders: Orders, environ: Mapping[str, str], up: Collection[str]) -> None:
        """Alert the author to new trouble in `found`, by process, and once to its end if the process is in `up`."""
        now = self._clock.monotonic()

        def tell(process: str, what: str) -> bool:
            return send(f"turnkeeper: {process}: {what} ({self._home.root})", orders.routes, self._log, environ)

        for process, what in found.items():
            known = self._told.get(process, _OVER) > _OVER
            if not known:
                self._log.emit("machine.trouble", daemon=process, reason=what)
            if known or tell(process, what):
                self._told[process] = now
        over = f"the trouble is over: none for {_CALM_S:.0f} s"
        calm = {name for name, at in self._told.items() if now - at >= _CALM_S and name in up and name not in found}
        left = {name: _OVER for name in calm if not tell(name, over)}
        self._told = {name: at for name, at in self._told.items() if name not in calm} | left


def write_status(home: Home, id_: str, process: str, phase: str, at: datetime, **more: Any) -> dict[str, Any]:
    """Update the restart-status file `id_`, remove the oldest files, and return its content."""
    path = markers.STATUS.at(home, id=id_)
    path.parent.mkdir(mode=0o700, exist_ok=True)
    earlier = markers.read_marker(path)
    says = {"error": ""} | (earlier if isinstance(earlier, dict) else {})
    says |= {"id": id_, "process": process, "phase": phase, "at": rfc3339(at)} | more
    markers.write_marker(path, says)
    # Sort by age: names have no order, because the requester of a restart chooses its id.
    by_age = sorted(markers.found(home, markers.STATUS), key=lambda file: file.stat().st_mtime_ns)
    for old in by_age[:-KEPT_STATUS_FILES]:
        old.unlink(missing_ok=True)
    return says


def between_ticks(home: Home) -> ExitStack:
    """Return a block in which no tick runs, because a tick that has read the orders still carries them out."""
    clock, stack = SystemClock(), ExitStack()
    deadline = clock.monotonic() + _LOCK_PATIENCE_S
    while True:
        try:
            stack.enter_context(ProcessLock(home, LOCK))
        except Conflict:
            if clock.monotonic() >= deadline:
                raise
            clock.block(daemons.POLL_S)
        else:
            return stack


def read_orders(home: Home) -> Orders | None:
    """Return the orders. Return None if no process should run. Unreadable orders count as the default orders."""
    says = markers.read_marker(markers.WANTED.at(home))
    if says is None:
        return None
    try:
        if isinstance(says, markers.Unreadable):
            return Orders()
        known = {item.name: item.type for item in fields(policy.Limits)}
        given = {name: markers.number(value) for name, value in says["limits"].items() if name in known}
        whole = {name: int(given[name]) for name in ("restarts", "failed_starts") if name in given}
        limits: Any = {**given, **whole}
        routes = Routes(command=says["command"], webhook=says["webhook"], announce=says.get("announce") is True)
        kept = Kept()
        if "kept" in says:
            keep_s, largest_mb = (markers.number(says["kept"][name]) for name in ("keep_s", "largest_mb"))
            kept = Kept(keep_s=keep_s, largest_mb=int(largest_mb))
        optional = frozenset(one.name for one in daemons.OPTIONAL if says.get(one.name) is True)
        left_out = frozenset(one.name for one in daemons.DAEMONS if says.get(one.name) is False)
        return Orders(limits=policy.Limits(**limits), routes=routes, kept=kept, optional=optional, left_out=left_out)
    except (KeyError, TypeError, ValueError, AttributeError):
        return Orders()


def write_orders(home: Home, orders: Orders, at: datetime) -> None:
    parts = {
        "limits": asdict(orders.limits),
        "kept": asdict(orders.kept),
        **dict.fromkeys(sorted(orders.optional), True),
        **dict.fromkeys(sorted(orders.left_out), False),
    }
    says = {"at": rfc3339(at), **parts, **asdict(orders.routes)}
    markers.write_marker(markers.WANTED.at(home), says)


def is_quiet(home: Home, now: float) -> bool:
    """Return True if hang alarms are suppressed. Clear windows that are over. An unreadable window counts as open."""
    quiet = False
    for path in markers.found(home, markers.QUIET):
        epoch = path.name.removeprefix("quiet-until-")
        if epoch.isascii() and epoch.isdigit() and int(epoch) <= now:
            markers.clear_marker(path)
        else:
            quiet = True
    return quiet


def replace_escalated(memory: markers.Memory, before: markers.Memory) -> markers.Memory:
    """Return the memory before the escalation is on disk, in which the escalation is not done yet."""
    loop = memory.crash_loop
    if loop is None or isinstance(loop, markers.Unreadable) or loop == before.crash_loop:
        return memory
    return replace(memory, crash_loop=replace(loop, escalated=False))


def _since(home: Home, daemon: daemons.Daemon, start: int) -> str:
    try:
        with daemons.log_of(home, daemon).open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(start, size - _TAIL_BYTES))
            return file.read(_TAIL_BYTES).decode(errors="replace")
    except OSError:
        return ""


class Planned:
    """The part that claims restart requests, and keeps a child at work on the claimed one."""

    def __init__(
        self, home: Home, *, log: EventLog, environ: Mapping[str, str], child: daemons.Daemon = RESTARTER
    ) -> None:
        self._home = home
        self._log = log
        self._environ = environ
        self._child = child

    def under_way(self, now: float) -> bool:
        """Claim a request, or check on the claimed one. Return True while a child handles agent-runtime."""
        path = markers.PROCESSING.at(self._home)
        says = markers.read_marker(path)
        if says is None:
            request = markers.REQUEST.at(self._home)
            if not os.path.lexists(request):
                return False
            request.rename(path)
            says = markers.read_marker(path)
        if not isinstance(says, dict) or not isinstance(says.get("id"), str):
            self._give_up(f"unreadable-{now:.0f}", "a restart request cannot be read", now)
            return False
        if is_held(self._home, self._child.name) or self._lives(says):
            return True
        tries = _tries(says)
        if tries >= MOST_TRIES:
            self._give_up(says["id"], f"a planned restart did not finish in {tries} tries", now)
            return False
        says = says | {"tries": tries + 1, "pid": None}
        markers.write_marker(path, says)
        pid = daemons.spawn(self._home, self._child, self._environ)
        markers.write_marker(path, says | {"pid": pid})
        self._log.emit("restart.begun", id=says["id"], child=pid, tries=tries + 1)
        return True

    def _lives(self, says: Mapping[str, Any]) -> bool:
        pid = says.get("pid")
        return isinstance(pid, int) and daemons.process_with(pid, self._child) is not None

    def _give_up(self, id_: str, reason: str, now: float) -> None:
        self._log.emit("restart.given_up", durable=True, id=id_, reason=reason)
        escalate(self._home, RESTARTED, f"{now:.0f}", reason)
        failed = {"id": id_, "process": RESTARTED, "phase": "failed", "error": reason}
        markers.write_marker(markers.FAILED_REVIVE.at(self._home, process=RESTARTED), failed)
        set_aside(self._home, id_)


def set_aside(home: Home, id_: str) -> None:
    archive = markers.ARCHIVE.at(home, id=f"{id_}-request")
    archive.parent.mkdir(mode=0o700, exist_ok=True)
    markers.PROCESSING.at(home).rename(archive)
    markers.sync(archive.parent)
    markers.sync(home.run.parent)


def is_under_way(home: Home) -> bool:
    """Return True if a restart is requested or in progress."""
    return any(os.path.lexists(kind.at(home)) for kind in (markers.REQUEST, markers.PROCESSING))


def _tries(says: Mapping[str, Any]) -> int:
    try:
        return int(markers.number(says.get("tries", 0)))
    except ValueError:
        return MOST_TRIES
