"""Asks the daemons for processes, pending decisions, and the turns that a planned restart interrupts. Loads gRPC."""

from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime
from typing import Any

from turnkeeper.config.home import Home
from turnkeeper.config.started import read_start
from turnkeeper.console.unseen import waiting_line
from turnkeeper.constellation.inspect.finding import Finding
from turnkeeper.constellation.supervisor import daemons as known
from turnkeeper.constellation.supervisor.watchdog import read_orders
from turnkeeper.errors import TurnkeeperError
from turnkeeper.rpc.channel import Caller, is_serving
from turnkeeper.storage.locking import is_held
from turnkeeper.times import rfc3339
from turnkeeper.v1 import agent_runtime_pb2 as wire
from turnkeeper.v1.schedules_pb2 import ListTasksRequest

VIA = "turnkeeper/cli"


def rows(place: Home, found: list[Finding], *, supervised: bool) -> list[dict[str, Any]]:
    """Return a row for each process. Include the supervisor and optional processes only if they should run.

    A process is `running` (it answers), `starting` (it does not serve yet), `not answering` (it reported that it
    serves, but calls fail), `suspended` (by a signal) or `stopped`. The supervisor is never called: if its process
    exists, it counts as `running`.
    """
    orders = read_orders(place) if supervised else None
    wanted = orders.wanted if orders else known.DAEMONS
    daemons = [one for one in known.EVERY if one in wanted or is_held(place, one.name)] + [
        known.SUPERVISOR
    ] * supervised
    said = {daemon: [one.what for one in found if one.process == daemon.name] for daemon in daemons}
    return [_row(place, daemon) | {"markers": said[daemon]} for daemon in daemons]


def _row(place: Home, daemon: known.Daemon) -> dict[str, Any]:
    process, log = known.process_of(place, daemon), str(known.log_of(place, daemon))
    if process is None:
        return {"process": daemon.name, "state": "stopped", "pid": None, "since": None, "log": log, "build": None}
    start = read_start(place, daemon.name, process.pid)
    since = rfc3339(datetime.fromtimestamp(int(process.create_time()), UTC))
    said = {"process": daemon.name, "state": _state(place, daemon, process), "pid": process.pid, "since": since}
    return said | {"log": log, "build": start.build if start is not None else None}


def _state(place: Home, daemon: known.Daemon, process: Any) -> str:
    if known.is_suspended(process):
        return "suspended"
    if daemon is known.SUPERVISOR or is_serving(place.socket(daemon.name)):
        return "running"
    return "not answering" if known.serves(place, daemon) else "starting"


def unreachable(place: Home, found: list[dict[str, Any]]) -> Iterator[Finding]:
    """Yield a finding for each running process, a row of :func:`rows`, that cannot be called."""
    for row in found:
        daemon = next(one for one in (*known.EVERY, known.SUPERVISOR) if one.name == row["process"])
        if row["state"] in {"not answering", "suspended"} and (process := known.process_of(place, daemon)) is not None:
            why = known.obstacle(place, daemon, process)
            what = f"pid {process.pid} does not answer{f': {why}' if why else ''}"
            fix = "" if row["state"] == "suspended" else f"if it does not within seconds, run: kill {process.pid}"
            yield Finding(process=daemon.name, what=what, fix=fix)


def decisions(place: Home) -> str:
    """Return a line about pending decisions and broken graphs. Empty if there are none or the runtime is away."""
    try:
        with closing(Caller(place, via=VIA, deadline_s=1.0)) as caller:
            channels = caller.ListChannels(wire.ListChannelsRequest()).channels
            broken = [one.name for one in caller.ListGraphs(wire.ListGraphsRequest()).graphs if one.problem]
    except TurnkeeperError:  # the runtime cannot be called, or cannot read its store; another check reports that
        return ""
    counts = {name: sum(getattr(one, name) for one in channels) for name in ("waiting", "proposed", "deviations")}
    line = waiting_line(**counts)
    return "; ".join(filter(None, [line, f"cannot run: {', '.join(broken)}: turnkeeper graph check" * bool(broken)]))


MOST_NAMED = 20
_OPEN = ("running", "interrupted", "paused")
_ARMED = frozenset({"active", "running", "waiting", "interrupted"})


def handoff_text(home: Home, notes: str) -> str:
    """Return the text of a planned handoff. If a daemon does not answer, its part is reported as unknown."""
    with closing(Caller(home, via=VIA)) as daemons:
        lines = [
            "Planned restart of agent-runtime. Turns continue from their last checkpoint by themselves.",
            _line("open turns", lambda: _turns(daemons)),
            _line("decisions waiting for the author", lambda: _interrupts(daemons)),
            _line("armed tasks", lambda: _tasks(daemons, _ARMED)),
            _line("tasks with held fires", lambda: _tasks(daemons, frozenset({"held"}))),
        ]
    return "\n".join([*lines, f"notes:\n{notes.strip()}" if notes.strip() else "notes: none"])


def _line(what: str, ask: Callable[[], Iterator[str]]) -> str:
    try:
        found = list(ask())
    except TurnkeeperError as error:
        return f"{what}: unknown ({error.what})"
    more = f" and {len(found) - MOST_NAMED} more" if len(found) > MOST_NAMED else ""
    return f"{what}: {', '.join(found[:MOST_NAMED]) or 'none'}{more}"


def _turns(runtime: Any) -> Iterator[str]:
    for status in _OPEN:
        for turn in runtime.ListTurns(wire.ListTurnsRequest(status=status, limit=1000)).turns:
            yield f"{turn.turn_id} ({status}, {turn.task_name or turn.trigger}, in {turn.channel})"


def _interrupts(runtime: Any) -> Iterator[str]:
    for asked in runtime.ListInterrupts(wire.ListInterruptsRequest()).interrupts:
        yield f"{asked.interrupt_id} ({asked.kind} {asked.tool}, in {asked.channel})".replace(" ,", ",")


def _tasks(runner: Any, states: frozenset[str]) -> Iterator[str]:
    for task in runner.ListTasks(ListTasksRequest()).tasks:
        if task.state in states:
            due = f", next {task.next_fire_at.ToJsonString()}" if task.HasField("next_fire_at") else ""
            yield f"{task.spec.name} ({task.schedule}{due})"
