"""How everything stands, as rows: what `turnkeeper status` shows. It asks the daemons, so it loads gRPC."""

from datetime import UTC, datetime
from typing import Any

from constellation.inspect.condition import Finding
from constellation.inspect.processes import AGENT_RUNTIME, DAEMONS, SUPERVISOR, Daemon, standing
from protos.turnkeeper.v1.agent_runtime_pb2 import ListChannelsRequest
from protos.turnkeeper.v1.agent_runtime_pb2_grpc import AgentRuntimeStub
from turnkeeper.config.home import Home
from turnkeeper.errors import Unreachable
from turnkeeper.rpc.channel import Caller
from turnkeeper.times import rfc3339


def rows(place: Home, found: list[Finding], *, supervised: bool) -> list[dict[str, Any]]:
    """Return a row for each process; the supervisor's only where there is meant to be one."""
    made = [_row(place, daemon) for daemon in (*DAEMONS, *([SUPERVISOR] if supervised else []))]
    for row in made:
        row["markers"] = [finding.what for finding in found if finding.process == row["process"]]
    return made


def _row(place: Home, daemon: Daemon) -> dict[str, Any]:
    found = standing(place, daemon)
    since = rfc3339(datetime.fromtimestamp(int(found.since), UTC)) if found.since is not None else None
    return {
        "process": daemon.name,
        "state": found.state,
        "pid": found.pid,
        "since": since,
        "log": str(found.log),
    }


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
