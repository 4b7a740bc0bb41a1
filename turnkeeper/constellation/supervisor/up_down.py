"""Starts and stops of the constellation, for `turnkeeper up` and `down`."""

import os
import signal
import socket
from collections.abc import Collection, Mapping
from contextlib import suppress
from importlib import import_module

from turnkeeper.bus.event_log import EventLog
from turnkeeper.clock import SystemClock
from turnkeeper.config.home import Home
from turnkeeper.config.settings import Settings, load_settings, workers_asked_for
from turnkeeper.config.started import READS
from turnkeeper.config.surfaces import surfaces
from turnkeeper.constellation.supervisor import daemons, markers, terminals, watchdog
from turnkeeper.constellation.supervisor.escalation import Routes, take_pending
from turnkeeper.constellation.supervisor.policy import Limits
from turnkeeper.constellation.supervisor.retention import Kept
from turnkeeper.entropy import SystemEntropy
from turnkeeper.errors import Conflict, InvalidInput, TurnkeeperError, Unreachable
from turnkeeper.storage.files import replace_whole, why_unwritable
from turnkeeper.storage.locking import is_held

START_TIMEOUT_S = 120.0
ANSWER_TIMEOUT_S = 20.0  # seconds after the daemon has reported that it serves; four of its beats


def prepare(home: Home, settings: Settings) -> list[str]:
    """Write the order to run, and reset the watchdog's counts.

    Return the texts of undelivered alerts and clear them. The caller shows the texts.
    """
    home.create()
    with watchdog.between_ticks(home):
        before, orders = watchdog.read_orders(home), orders_of(settings)
        for daemon in daemons.EVERY:
            memory = markers.recall(home, daemon.name)
            if before is not None and memory.budget is not None and not is_held(home, daemon.name):
                _record_unseen_end(home, daemon, memory)
            markers.forget(home, daemon.name, keep_start=isinstance(memory.revive, markers.Revive))
        watchdog.write_orders(home, orders, SystemClock().now())
        for daemon in before.wanted if before is not None else ():
            if daemon not in orders.wanted:  # a supervisor no longer watches the daemon
                daemons.stop(home, daemon)
                markers.forget(home, daemon.name, keep_start=False)  # a start that was not verified yet did not fail
        return take_pending(home)


def _record_unseen_end(home: Home, daemon: daemons.Daemon, memory: markers.Memory) -> None:
    """Record that a daemon that should be running ended while no supervisor was running."""
    log = EventLog(home.logs, watchdog.LOCK, SystemClock())
    start_id = memory.revive.id if isinstance(memory.revive, markers.Revive) else ""
    log.emit("daemon.lost", daemon=daemon.name, id=start_id, reason="ended while no supervisor was running")


def set_workers(home: Home, workers: int, environ: Mapping[str, str]) -> str:
    """Store the number of workers, and stop a runtime that runs with a different number.

    Return how the runtime ended, or an empty string. Do not stop a runtime that could not start again.

    Raises:
        TurnkeeperError: it could not start again with the supervisor's variables or, without a supervisor, with
            `environ`. Nothing is changed.
    """
    with suppress(InvalidInput):
        if workers_asked_for(home) == workers:
            return ""
    if runs := daemons.process_of(home, daemons.AGENT_RUNTIME) is not None:
        _require_startable(home, daemons.AGENT_RUNTIME, environ)
    ask_for_workers(home, workers)
    return _stop_on_purpose(home, daemons.AGENT_RUNTIME) if runs else ""


def stop_some(home: Home, names: Collection[str], environ: Mapping[str, str]) -> dict[str, str]:
    """Stop the named processes before they start with the current build and settings. Return how each process ended.

    If the supervisor is named, stop it first: it would restart the other processes.

    Raises:
        TurnkeeperError: a process cannot start with the current settings. No process was stopped.
    """
    named = [daemon for daemon in daemons.EVERY if daemon.name in names]
    for daemon in named:
        _require_startable(home, daemon, environ)
    first = [daemons.SUPERVISOR] if daemons.SUPERVISOR.name in names else []
    return {daemon.name: _stop_on_purpose(home, daemon) for daemon in (*first, *named)}


def _stop_on_purpose(home: Home, daemon: daemons.Daemon) -> str:
    """Stop a process, and let the watchdog start it as a process that did not crash. Return how it ended."""
    with watchdog.between_ticks(home):
        how = daemons.stop(home, daemon)
        markers.forget(home, daemon.name, keep_start=False)
        return how


def check_places(home: Home, daemon: daemons.Daemon) -> None:
    """Check that a daemon could use its database, and could listen at its address or already listens there.

    Raises:
        Unreachable: the database does not answer.
        Conflict: the daemon could not use the database's schemas, or another program listens at the address.
    """
    settings = load_settings(home)
    if settings.store.is_shared and "store" in READS[daemon.name]:
        import_module("turnkeeper.storage.database").check_schemas(settings.store.url)
    for address in filter(None, (one.listens(settings).get(daemon.name) for one in surfaces().values())):
        host, _, port = address.rpartition(":")
        if int(port) in daemons.ports_of(home, daemon):
            continue
        try:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            socket.create_server((host.strip("[]"), int(port)), family=family).close()
        except OSError as error:
            what, hint = f"cannot listen on {address}: {error.strerror}", "stop that program, or set another port"
            raise Conflict(what, where=f"[{daemon.name}]", hint=hint) from error


def _require_startable(home: Home, daemon: daemons.Daemon, environ: Mapping[str, str]) -> None:
    """Raise TurnkeeperError if a daemon could not start with the supervisor's variables or, without it, `environ`."""
    known = daemons.environ_of(home, daemons.SUPERVISOR) or environ
    kept = f"{daemon.name} keeps running as it is, since it could not start again: "
    try:
        check_places(home, daemon)
    except TurnkeeperError as error:
        error.what = kept + error.what
        raise
    if why := daemons.refusal(home, daemon, known):
        raise TurnkeeperError(kept + why, hint="fix it, then run the command again")


def bring_up(home: Home, environ: Mapping[str, str]) -> dict[str, bool]:
    """Start or wake the supervisor. Return after every process that should run serves.

    Return True for each process that was started and False for each that already ran, by name in that order.

    Call :func:`prepare` first.

    Raises:
        TurnkeeperError: a daemon or the supervisor ended, or did not serve in time, or nothing can be written.
    """
    wanted = (watchdog.read_orders(home) or watchdog.Orders()).wanted
    ran = {daemon.name: is_held(home, daemon.name) for daemon in wanted}
    supervisor = daemons.process_of(home, daemons.SUPERVISOR)
    child = daemons.spawn(home, daemons.SUPERVISOR, environ) if supervisor is None else None
    if supervisor is not None:
        supervisor.send_signal(signal.SIGHUP)
    for daemon in wanted:
        child = _await(home, daemon, child, environ)
    return {name: not before for name, before in ran.items()}


def bring_down(home: Home, *, force: bool = False, supervisor: bool = True) -> dict[str, str]:
    """Stop everything. Stop the supervisor first, so that it starts nothing again.

    Return how each process ended, by name. Before that, unless `force`, send the shutdown to agents in terminals, and
    give them a minute to read it.
    """
    if not home.run.is_dir():
        return {}
    runs = any(is_held(home, daemon.name) for daemon in (daemons.SUPERVISOR, *daemons.EVERY))
    how = {} if force or not runs else terminals.tell_all(home, clock=SystemClock(), entropy=SystemEntropy())
    with watchdog.between_ticks(home):
        markers.clear_marker(markers.WANTED.at(home))
    order = (*([daemons.SUPERVISOR] if supervisor else []), *reversed(daemons.EVERY))
    for daemon in order:
        if daemon is not daemons.SUPERVISOR:
            _end_restart(home)  # the supervisor has ended, so no new restart begins
        _stop_starting(home, daemon)
        how[daemon.name] = daemons.stop(home, daemon, force=force)
    for daemon in daemons.EVERY:
        markers.forget(home, daemon.name, keep_start=False)
    return how


def _end_restart(home: Home) -> None:
    """End a planned restart at any stage. Its handoff is on disk and will be delivered after the next `up`."""
    daemons.stop(home, watchdog.RESTARTER, force=True)
    says = markers.read_marker(markers.PROCESSING.at(home))
    if says is not None:
        watchdog.set_aside(home, str(says.get("id")) if isinstance(says, dict) else "unreadable")
    markers.clear_marker(markers.REQUEST.at(home))


def orders_of(settings: Settings) -> watchdog.Orders:
    said = settings.watchdog.model_dump()
    limits = {name: said.pop(name) for name in list(said) if name not in {"command", "webhook", "announce"}}
    kept = Kept(keep_s=settings.logs.keep, largest_mb=settings.logs.largest_mb)
    optional = frozenset(one.name for one in settings.processes)
    left_out = frozenset(one.name for one in daemons.DAEMONS) - settings.daemons
    return watchdog.Orders(
        limits=Limits(**limits), routes=Routes(**said), kept=kept, optional=optional, left_out=left_out
    )


def ask_for_workers(home: Home, count: int) -> bool:
    """Write the number of workers for the next start of the runtime. Return False if it did not change."""
    with suppress(InvalidInput):
        if workers_asked_for(home) == count:
            return False
    replace_whole(home.workers, f"{count}\n".encode())
    return True


def _await(home: Home, daemon: daemons.Daemon, supervisor: int | None, environ: Mapping[str, str]) -> int | None:
    """Wait until a daemon serves. Return the pid of the supervisor: `supervisor`, or the one that was started later."""
    clock, serving_since = SystemClock(), None

    def up() -> bool:
        nonlocal serving_since, supervisor
        if supervisor is None and not is_held(home, daemons.SUPERVISOR.name):
            supervisor = daemons.spawn(home, daemons.SUPERVISOR, environ)  # the running supervisor was being killed
        if _serves(home, daemon):
            return True
        serving_since = (serving_since or clock.monotonic()) if daemons.serves(home, daemon) else None
        _raise_if_unreachable(home, daemon, 0.0 if serving_since is None else clock.monotonic() - serving_since)
        _raise_if_failed(home, daemon)
        if daemons.process_of(home, daemon) is None and (trouble := why_unwritable(home.run)) is not None:
            raise trouble  # meanwhile the supervisor starts nothing; later it continues by itself
        if supervisor is not None and _ended(supervisor) and not is_held(home, daemons.SUPERVISOR.name):
            log = daemons.log_of(home, daemons.SUPERVISOR)
            raise TurnkeeperError("the supervisor ended", where=str(log), hint="read its log")
        return False

    if not clock.poll(up, timeout_s=START_TIMEOUT_S, every_s=daemons.POLL_S):
        what = f"{daemon.name} did not answer within {START_TIMEOUT_S:.0f}s"
        raise TurnkeeperError(what, where=str(daemons.log_of(home, daemon)))
    return supervisor


def _ended(child: int) -> bool:
    """Return True if a child has ended, even if its status was read before."""
    try:
        return os.waitpid(child, os.WNOHANG)[0] != 0
    except ChildProcessError:
        return True


def _serves(home: Home, daemon: daemons.Daemon) -> bool:
    """Query the health service, but only after the daemon has reported that it serves, because a query is expensive."""
    if not daemons.serves(home, daemon):
        return False
    return bool(import_module("turnkeeper.rpc.channel").is_serving(home.socket(daemon.name)))


def _raise_if_unreachable(home: Home, daemon: daemons.Daemon, silent_s: float) -> None:
    """Raise TurnkeeperError for a daemon that is suspended, or that serves but has not answered for too long."""
    process = daemons.process_of(home, daemon)
    if process is None:
        return
    if daemons.is_suspended(process) or silent_s > ANSWER_TIMEOUT_S:
        why = daemons.obstacle(home, daemon, process)
        what = f"{daemon.name} (pid {process.pid}) does not answer{f': {why}' if why else ''}"
        raise TurnkeeperError(what, where=str(home.socket(daemon.name)), hint="see: turnkeeper doctor")


def _raise_if_failed(home: Home, daemon: daemons.Daemon) -> None:
    says = markers.read_marker(markers.FAILED_REVIVE.at(home, process=daemon.name))
    if says is not None:
        why = str(says.get("error") or "") if isinstance(says, dict) else ""
        what = f"{daemon.name} did not start{f': {why}' if why else ''}"
        waits = isinstance(says, dict) and says.get("waits")
        hint = markers.WAITS if waits else "fix it, then run: turnkeeper up --restart"
        kind = Unreachable if waits else TurnkeeperError
        raise kind(what, where=str(daemons.log_of(home, daemon)), hint=hint)


def _stop_starting(home: Home, daemon: daemons.Daemon) -> None:
    """End a daemon that was started and does not hold its lock yet, because no later program would find it."""
    revive = markers.recall(home, daemon.name).revive
    if is_held(home, daemon.name) or not isinstance(revive, markers.Revive) or revive.pid is None:
        return
    if daemons.process_with(revive.pid, daemon) is not None:
        with suppress(ProcessLookupError):
            os.kill(revive.pid, signal.SIGTERM)
