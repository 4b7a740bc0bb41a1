"""`turnkeeper restart`."""

import os
import signal
from datetime import UTC
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from constellation.supervisor import markers
from constellation.supervisor.daemons import POLL_S, SUPERVISOR, process_of
from constellation.supervisor.markers import read_marker, write_marker
from constellation.supervisor.planned_restart import is_under_way
from constellation.supervisor.watchdog import Watchdog, read_orders
from turnkeeper.bus.envelope import check_text
from turnkeeper.clock import SystemClock
from turnkeeper.config.home import Home
from turnkeeper.config.toml_file import read_text
from turnkeeper.console import home, note
from turnkeeper.console import status as spinner
from turnkeeper.entropy import SystemEntropy
from turnkeeper.errors import Conflict, TurnkeeperError
from turnkeeper.times import rfc3339

LONGEST_NOTES = 8 << 10  # bytes; as JSON at worst six times as many, which a marker has room for
_PATIENCE_S = 600.0


def restart(
    handoff: Annotated[Path | None, typer.Option("--handoff", help="A text file with notes for agent0.")] = None,
) -> None:
    """Restart agent-runtime as a protocol: preflight, handoff, stop, start, deliver; turns go on from checkpoints.

    The runner and the supervisor keep running. If the preflight finds that the runtime could not start again, nothing
    is stopped. The restart goes on when this command is interrupted.

    Example: turnkeeper restart --handoff notes.txt
    """
    place = home()
    place.check()
    if read_orders(place) is None:
        raise Conflict("nothing is supervised here", where=str(place.root), hint="start it with: turnkeeper up")
    notes = read_text(handoff, LONGEST_NOTES) if handoff is not None else ""
    check_text(notes)
    if is_under_way(place):
        raise Conflict("a restart is under way", where=str(place.root), hint="see: turnkeeper status")
    clock, entropy = SystemClock(), SystemEntropy()
    id_ = f"{clock.now().astimezone(UTC):%Y%m%dT%H%M%S.%fZ}-planned-{entropy.hex(4)}"
    text = import_module("constellation.restart.handoff_text").handoff_text(place, notes)
    at = rfc3339(clock.now())
    write_marker(markers.REQUEST.at(place), {"id": id_, "text": text, "at": at, "by": "author", "tries": 0})
    supervisor = process_of(place, SUPERVISOR)
    if supervisor is not None:
        supervisor.send_signal(signal.SIGHUP)
    else:
        Watchdog(place, clock=clock, entropy=entropy, environ=os.environ).tick()
    with spinner("restarting"):
        ended = _await(place, id_, clock)
    note(f"agent-runtime restarted (pid {ended.get('pid')}); its handoff is in agent0's inbox")


def _await(place: Home, id_: str, clock: SystemClock) -> dict[str, Any]:
    """Return the restart's status once it is over. Raises TurnkeeperError when it was refused or given up."""
    deadline = clock.monotonic() + _PATIENCE_S
    while clock.monotonic() < deadline:
        says = read_marker(markers.STATUS.at(place, id=id_))
        found = says if isinstance(says, dict) else {}
        if not is_under_way(place):
            if found.get("phase") in {"up-detected", "verified"}:
                return found
            why = found.get("error") or "it was given up"
            raise TurnkeeperError(f"the restart did not take place: {why}", hint="see: turnkeeper status")
        clock.block(POLL_S)
    raise TurnkeeperError("the restart is still under way", hint="see: turnkeeper status")
