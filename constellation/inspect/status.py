"""What `turnkeeper status` shows: a row for each process, and what waits for the author. It asks the daemons."""

from datetime import UTC, datetime
from typing import Any

from constellation.inspect.condition import Finding
from constellation.supervisor.daemons import AGENT_RUNTIME, DAEMONS, SUPERVISOR, Daemon, log_of, process_of
from protos.turnkeeper.v1.agent_runtime_pb2 import ListChannelsRequest
from protos.turnkeeper.v1.agent_runtime_pb2_grpc import AgentRuntimeStub
from turnkeeper.config.home import Home
from turnkeeper.errors import Unreachable
from turnkeeper.rpc.channel import Caller, is_serving
from turnkeeper.times import rfc3339


def rows(place: Home, found: list[Finding], *, supervised: bool) -> list[dict[str, Any]]:
    """Return a row for each process; the supervisor's only where there is meant to be one.

    A process is `running` (it answers), `starting` (it holds its lock and does not answer) or `stopped`. The supervisor
    answers nobody: it runs if it lives.
    """
    daemons = (*DAEMONS, *([SUPERVISOR] if supervised else []))
    return [_row(place, daemon) | {"markers": _markers(found, daemon)} for daemon in daemons]


def _row(place: Home, daemon: Daemon) -> dict[str, Any]:
    process, log = process_of(place, daemon), str(log_of(place, daemon))
    if process is None:
        return {"process": daemon.name, "state": "stopped", "pid": None, "since": None, "log": log}
    running = daemon is SUPERVISOR or is_serving(place.socket(daemon.name))
    since = rfc3339(datetime.fromtimestamp(int(process.create_time()), UTC))
    state = "running" if running else "starting"
    return {"process": daemon.name, "state": state, "pid": process.pid, "since": since, "log": log}


def _markers(found: list[Finding], daemon: Daemon) -> list[str]:
    return [finding.what for finding in found if finding.process == daemon.name]


def decisions(place: Home) -> str:
    """Return a line that says what waits for the author; empty when nothing does, or nobody can tell."""
    caller = Caller(place.socket(AGENT_RUNTIME.name), AgentRuntimeStub, AGENT_RUNTIME.name, deadline_s=1.0)
    try:
        channels = caller.ListChannels(ListChannelsRequest()).channels
    except Unreachable:
        return ""
    finally:
        caller.close()
    proposed, deviations = sum(one.proposed for one in channels), sum(one.deviations for one in channels)
    return decisions_line(sum(one.waiting for one in channels), proposed=proposed, deviations=deviations)


def decisions_line(waiting: int, *, proposed: int = 0, deviations: int = 0) -> str:
    """Return the line that keeps what waits for the author from going unseen; empty when nothing does.

    >>> decisions_line(2, proposed=1)
    '2 decisions waiting: agent-runtime approvals list; 1 proposal: agent-runtime triage'
    """
    parts = [f"{_many(waiting, 'decision')} waiting: agent-runtime approvals list"] if waiting else []
    named = ((proposed, "proposal"), (deviations, "deviation"))
    undecided = " and ".join(_many(number, name) for number, name in named if number)
    return "; ".join(parts + ([f"{undecided}: agent-runtime triage"] if undecided else []))


def _many(number: int, name: str) -> str:
    return f"{number} {name}{'' if number == 1 else 's'}"
