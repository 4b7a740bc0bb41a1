"""`turnkeeper up` and `down`."""

import os
import sys
from typing import Annotated

import typer

from constellation.restart.preflight import newer_stores
from constellation.supervisor.daemons import AGENT_RUNTIME, DAEMONS, SUPERVISOR, process_of, stop
from constellation.supervisor.up_down import bring_down, bring_up, prepare
from turnkeeper.config.settings import MOST_WORKERS, ask_for_workers, load_settings
from turnkeeper.console import home, note
from turnkeeper.console import status as spinner


def up(
    workers: Annotated[
        int | None,
        typer.Argument(metavar="[N]", min=0, max=MOST_WORKERS, help="How many workers, agent1 to agentN."),
    ] = None,
    foreground: Annotated[
        bool, typer.Option("--foreground", help="Supervise in this process, for systemd and containers.")
    ] = False,
) -> None:
    """Start what does not run, detached and supervised, and return once everything answers.

    Running it again is safe: a process that runs is left alone, one that died is started. It also clears the markers
    of a crash loop, so that the watchdog tries again.

    N is kept for later starts. Where the runtime runs with another number, it is stopped, in good order, and started
    again.

    Example: turnkeeper up 2
    """
    place = home()
    place.check()
    place.check_sockets()
    for error in newer_stores(place):
        raise error
    for text in prepare(place, load_settings(place)):
        note(f"was escalated: {text}")
    if workers is not None and ask_for_workers(place, workers) and process_of(place, AGENT_RUNTIME) is not None:
        with spinner("stopping agent-runtime"):
            note(f"{AGENT_RUNTIME.name} {stop(place, AGENT_RUNTIME)}, to start with {workers} workers")
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
    force: Annotated[bool, typer.Option("--force", help="Do not wait for turns: kill at once.")] = False,
) -> None:
    """Stop everything; a running turn ends, or stops at its next checkpoint and goes on after the next `up`.

    The supervisor stops first, so that nothing is started again meanwhile.

    Example: turnkeeper down
    """
    place = home()
    place.check()
    with spinner("stopping"):
        ended = bring_down(place, force=force)
    for name, how in ended.items():
        if name != SUPERVISOR.name or how != "was not running":
            note(f"{name} {how}")
