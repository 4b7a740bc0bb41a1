"""`turnkeeper watchdog`: `tick` and `suspend`."""

import os
from datetime import UTC, datetime
from typing import Annotated

import typer

from constellation.inspect.condition import findings
from constellation.supervisor import markers
from constellation.supervisor.daemons import SUPERVISOR, process_of, spawn
from constellation.supervisor.watchdog import Watchdog, read_orders
from turnkeeper.clock import SystemClock
from turnkeeper.console import home, note, when
from turnkeeper.entropy import SystemEntropy
from turnkeeper.errors import EXIT_DEGRADED, InvalidInput
from turnkeeper.times import parse_duration, to_us

app = typer.Typer(help="Check and repair the processes.", no_args_is_help=True, rich_markup_mode=None)


@app.command()
def tick() -> None:
    """Check every process once, restart what died, and start the supervisor if it does not run.

    It is safe while the supervisor runs. A timer can call it as a heartbeat. Exits with 6 when something is broken.

    Example: turnkeeper watchdog tick
    """
    place = home()
    place.check()
    clock = SystemClock()
    if read_orders(place) is None:
        note("nothing is supposed to run; start it with: turnkeeper up")
        return
    if process_of(place, SUPERVISOR) is None:
        note(f"supervisor started (pid {spawn(place, SUPERVISOR, os.environ)})")
    else:
        Watchdog(place, clock=clock, entropy=SystemEntropy(), environ=os.environ).tick()
    bad = [finding for finding in findings(place, clock.now().timestamp()) if finding.degraded]
    for finding in bad:
        note(str(finding))
    if bad:
        raise typer.Exit(EXIT_DEGRADED)


@app.command()
def suspend(
    duration: Annotated[str, typer.Argument(help="How long, such as 30m or 2h.")] = "",
    clear: Annotated[bool, typer.Option("--clear", help="End every suspension now.")] = False,
) -> None:
    """Suspend hang detection for a while, for example while a daemon is stopped in a debugger.

    Example: turnkeeper watchdog suspend 30m
    """
    place = home()
    place.check()
    if clear == bool(duration):
        hint = "for example: turnkeeper watchdog suspend 30m"
        raise InvalidInput("give either a duration or --clear", where="watchdog suspend", hint=hint)
    if clear:
        for path in markers.found(place, markers.QUIET):
            markers.clear_marker(path)
        note("hang detection is on again")
        return
    until = SystemClock().now() + parse_duration(duration)
    place.create()
    epoch = -(-to_us(until) // 1_000_000)
    markers.write_marker(markers.QUIET.at(place, epoch=str(epoch)), {"until": epoch})
    note(f"hang detection is suspended until {when(datetime.fromtimestamp(epoch, UTC))}")
