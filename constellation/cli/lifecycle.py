"""`turnkeeper up`, `down` and `status`."""

import os
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from constellation.processes import AGENT_RUNTIME, DAEMONS, standing, start, stop
from protos.turnkeeper.v1.agent_runtime_pb2 import ListInterruptsRequest
from protos.turnkeeper.v1.agent_runtime_pb2_grpc import AgentRuntimeStub
from turnkeeper.clock import rfc3339
from turnkeeper.console import Column, Output, OutputOption, home, note, show_rows, when
from turnkeeper.console import status as spinner
from turnkeeper.errors import EXIT_DEGRADED, Unreachable
from turnkeeper.home import Home
from turnkeeper.rpc.channel import Caller

_COLUMNS = (
    Column("PROCESS", lambda row: str(row["process"])),
    Column("STATE", lambda row: str(row["state"])),
    Column("PID", lambda row: str(row["pid"] or "-"), right=True),
    Column("SINCE", lambda row: when(datetime.fromisoformat(row["since"])) if row["since"] else "-"),
    Column("LOG", lambda row: str(row["log"])),
)


def up() -> None:
    """Start what does not run, detached, and return once everything answers.

    Running it again is safe: a process that runs is left alone, one that died is started.

    Example: turnkeeper up
    """
    place = home()
    place.check()
    place.check_sockets()
    with spinner("starting"):
        fresh = start(place, DAEMONS, os.environ)
    for daemon in DAEMONS:
        how = "is up" if fresh[daemon.name] else "was up already"
        note(f"{daemon.name} {how} (pid {standing(place, daemon).pid})")


def down(
    force: Annotated[bool, typer.Option("--force", help="Do not wait for turns: kill at once.")] = False,
) -> None:
    """Stop everything; a running turn ends, or stops at its next checkpoint and goes on after the next `up`.

    Example: turnkeeper down
    """
    place = home()
    place.check()
    for daemon in reversed(DAEMONS):
        with spinner(f"stopping {daemon.name}"):
            how = stop(place, daemon, force=force)
        note(f"{daemon.name} {how}")


def status(output: OutputOption = Output.TABLE) -> None:
    """Show whether the processes run, and what waits for you. Exits with 6 when one of them is missing.

    Example: turnkeeper status -o json
    """
    place = home()
    place.check()
    rows = [_row(place, daemon) for daemon in DAEMONS]
    show_rows(rows, _COLUMNS, output, name_key="process", footer=_decisions(place))
    if any(row["state"] != "running" for row in rows):
        if output in {Output.TABLE, Output.WIDE}:
            note("not everything runs: turnkeeper up")
        raise typer.Exit(EXIT_DEGRADED)


def _row(place: Home, daemon: Any) -> dict[str, Any]:
    found = standing(place, daemon)
    since = rfc3339(datetime.fromtimestamp(int(found.since), UTC)) if found.since is not None else None
    return {
        "process": daemon.name,
        "state": found.state,
        "pid": found.pid,
        "since": since,
        "log": str(found.log),
    }


def _decisions(place: Home) -> str:
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
