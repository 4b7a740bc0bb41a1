"""How everything stands, as rows: what `turnkeeper status` shows. It asks the daemons, so it loads gRPC."""

from datetime import UTC, datetime
from typing import Any

from constellation.condition import Finding
from constellation.processes import AGENT_RUNTIME, DAEMONS, SUPERVISOR, Daemon, standing
from protos.turnkeeper.v1.agent_runtime_pb2 import ListInterruptsRequest
from protos.turnkeeper.v1.agent_runtime_pb2_grpc import AgentRuntimeStub
from turnkeeper.clock import rfc3339
from turnkeeper.errors import Unreachable
from turnkeeper.home import Home
from turnkeeper.rpc.channel import Caller


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
    """Return a line that says how many decisions wait; empty when none does, or nobody can tell."""
    caller = Caller(place.socket(AGENT_RUNTIME.name), AgentRuntimeStub, AGENT_RUNTIME.name, deadline_s=1.0)
    try:
        waiting = len(caller.ListInterrupts(ListInterruptsRequest()).interrupts)
    except Unreachable:
        return ""
    finally:
        caller.close()
    return decisions_line(waiting)


def decisions_line(waiting: int) -> str:
    """Return the line that keeps a waiting decision from going unseen; empty when none waits."""
    if not waiting:
        return ""
    return f"{waiting} decision{'s' if waiting > 1 else ''} waiting: agent-runtime interrupts list"
