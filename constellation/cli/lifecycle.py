"""`turnkeeper up`, `down`, `restart` and `service`."""

import os
import signal
import sys
from datetime import UTC
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from constellation.restart.preflight import newer_stores
from constellation.supervisor import markers, systemd
from constellation.supervisor.daemons import AGENT_RUNTIME, DAEMONS, POLL_S, SUPERVISOR, process_of, stop
from constellation.supervisor.planned_restart import is_under_way
from constellation.supervisor.up_down import bring_down, bring_up, prepare
from constellation.supervisor.watchdog import Watchdog, read_orders
from turnkeeper.bus.envelope import check_text
from turnkeeper.clock import SystemClock
from turnkeeper.config.home import Home
from turnkeeper.config.settings import MOST_WORKERS, ask_for_workers, load_settings
from turnkeeper.config.toml_file import read_text
from turnkeeper.console import home, note
from turnkeeper.console import status as spinner
from turnkeeper.entropy import SystemEntropy
from turnkeeper.errors import Conflict, TurnkeeperError
from turnkeeper.times import rfc3339


def up(
    workers: Annotated[
        int | None,
        typer.Argument(metavar="[N]", min=0, max=MOST_WORKERS, help="Number of workers, agent1 to agentN."),
    ] = None,
    foreground: Annotated[
        bool, typer.Option("--foreground", help="Run the supervisor in this process, for systemd and containers.")
    ] = False,
) -> None:
    """Start the daemons and their supervisor in the background, and return once they answer.

    Running it again is safe: it leaves running processes alone and starts those that died. It also clears the markers
    of a crash loop, so that the watchdog tries again.

    N is kept for later starts. If the runtime runs with another number of workers, it is restarted gracefully.

    Example: turnkeeper up 2
    """
    place = home()
    place.check()
    place.check_sockets()
    for error in newer_stores(place):
        raise error
    for text in prepare(place, load_settings(place)):
        note(f"alert: {text}")
    if workers is not None and ask_for_workers(place, workers) and process_of(place, AGENT_RUNTIME) is not None:
        with spinner("stopping agent-runtime"):
            note(f"{AGENT_RUNTIME.name} {stop(place, AGENT_RUNTIME)}; it starts again with {workers} workers")
    if foreground:
        argv = [sys.executable, "-P", "-m", SUPERVISOR.package, str(place.root), "--foreground"]
        os.execv(sys.executable, argv)  # noqa: S606  becomes the supervisor
    with spinner("starting"):
        fresh = bring_up(place, os.environ)
    for daemon in DAEMONS:
        process = process_of(place, daemon)
        how = "is up" if fresh[daemon.name] else "was up already"
        note(f"{daemon.name} {how} (pid {process.pid if process else 'unknown'})")


def down(
    force: Annotated[bool, typer.Option("--force", help="Do not wait for turns; kill the processes.")] = False,
) -> None:
    """Stop the supervisor and the daemons. A turn that does not end in time continues after the next `up`.

    The supervisor stops first, so that it does not restart the daemons.

    Example: turnkeeper down
    """
    place = home()
    place.check()
    with spinner("stopping"):
        ended = bring_down(place, force=force)
    for name, how in ended.items():
        if name != SUPERVISOR.name or how != "was not running":
            note(f"{name} {how}")


LONGEST_NOTES = 8 << 10  # bytes; as JSON at worst six times as many, which a marker has room for
_PATIENCE_S = 600.0


def restart(
    handoff: Annotated[Path | None, typer.Option("--handoff", help="A text file with notes for agent0.")] = None,
) -> None:
    """Restart agent-runtime: check that it can start, stop it, start it, and deliver a handoff to agent0.

    The runner and the supervisor keep running, and turns continue from their checkpoints. If the check finds that the
    runtime could not start again, nothing is stopped. The restart continues if you interrupt this command.

    Example: turnkeeper restart --handoff notes.txt
    """
    place = home()
    place.check()
    if read_orders(place) is None:
        raise Conflict("the daemons are not supervised", where=str(place.root), hint="start it with: turnkeeper up")
    notes = read_text(handoff, LONGEST_NOTES) if handoff is not None else ""
    check_text(notes)
    if is_under_way(place):
        raise Conflict("a restart is in progress", where=str(place.root), hint="see: turnkeeper status")
    clock, entropy = SystemClock(), SystemEntropy()
    id_ = f"{clock.now().astimezone(UTC):%Y%m%dT%H%M%S.%fZ}-planned-{entropy.hex(4)}"
    text = import_module("constellation.restart.handoff_text").handoff_text(place, notes)
    at = rfc3339(clock.now())
    markers.write_marker(markers.REQUEST.at(place), {"id": id_, "text": text, "at": at, "by": "author", "tries": 0})
    supervisor = process_of(place, SUPERVISOR)
    if supervisor is not None:
        supervisor.send_signal(signal.SIGHUP)
    else:
        Watchdog(place, clock=clock, entropy=entropy, environ=os.environ).tick()
    with spinner("restarting"):
        ended = _await(place, id_, clock)
    note(f"agent-runtime restarted (pid {ended.get('pid')}); its handoff is in agent0's inbox")


def _await(place: Home, id_: str, clock: SystemClock) -> dict[str, Any]:
    """Return the restart's status once it is over. Raises TurnkeeperError when it was refused or abandoned."""
    if not clock.poll(lambda: not is_under_way(place), timeout_s=_PATIENCE_S, every_s=POLL_S):
        raise TurnkeeperError("the restart is still in progress", hint="see: turnkeeper status")
    says = markers.read_marker(markers.STATUS.at(place, id=id_))
    found = says if isinstance(says, dict) else {}
    if found.get("phase") not in {"up-detected", "verified"}:
        why = found.get("error") or "it was abandoned"
        raise TurnkeeperError(f"the restart failed: {why}", hint="see: turnkeeper status")
    return found


service = typer.Typer(help="Run it as a systemd service.", no_args_is_help=True, rich_markup_mode=None)


@service.command()
def install() -> None:
    """Write systemd user units for this home: the service, a heartbeat timer and a timer for daily backups.

    Starts nothing. Backups go to a folder next to the home, named like it with -backups; the newest seven are kept.

    Example: turnkeeper service install
    """
    place = home()
    place.check()
    for path in systemd.install(place, os.environ):
        note(f"wrote {path}")
    names = " ".join(name for name, text in systemd.units(place, os.environ).items() if "[Install]" in text)
    note(f"next: systemctl --user daemon-reload && systemctl --user enable --now {names}")
    note("to keep it running while you are logged out: loginctl enable-linger")


@service.command()
def uninstall() -> None:
    """Remove this home's units. It stops nothing; to stop the service first: systemctl --user disable --now.

    Example: turnkeeper service uninstall
    """
    removed = systemd.uninstall(home(), os.environ)
    for path in removed:
        note(f"removed {path}")
    note("next: systemctl --user daemon-reload" if removed else "this home has no units")
