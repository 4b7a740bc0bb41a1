"""`turnkeeper watchdog tick`, `quiet` and `logs`."""

import os
from datetime import UTC, datetime
from typing import Annotated

import typer

from constellation.inspect.condition import findings
from constellation.inspect.logs import follow, last_lines
from constellation.supervisor import markers
from constellation.supervisor.daemons import SUPERVISOR, process_of, spawn
from constellation.supervisor.markers import clear_marker, found, write_marker
from constellation.supervisor.watchdog import Watchdog, read_orders
from turnkeeper.clock import SystemClock
from turnkeeper.console import home, note, plain, when
from turnkeeper.entropy import SystemEntropy
from turnkeeper.errors import EXIT_DEGRADED, InvalidInput
from turnkeeper.times import parse_duration, to_us

app = typer.Typer(help="Look after the processes.", no_args_is_help=True, rich_markup_mode=None)


@app.command()
def tick() -> None:
    """Look once, mend what is broken, and start the supervisor if it is gone. Safe beside the supervisor.

    A timer may call it, as a heartbeat that needs nothing of ours to be alive. Exits with 6 when something is broken.

    Example: turnkeeper watchdog tick
    """
    place = home()
    place.check()
    clock = SystemClock()
    if read_orders(place) is None:
        note("nothing is meant to run: turnkeeper up")
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


def quiet(
    duration: Annotated[str, typer.Argument(help="How long, such as 30m or 2h.")] = "",
    clear: Annotated[bool, typer.Option("--clear", help="End every quiet window now.")] = False,
) -> None:
    """Expect a daemon to stand still for a while: nothing is taken for a hang until then.

    Example: turnkeeper quiet 30m
    """
    place = home()
    place.check()
    if clear == bool(duration):
        raise InvalidInput("wants a duration or --clear", where="quiet", hint="for example: turnkeeper quiet 30m")
    if clear:
        for path in found(place, markers.QUIET):
            clear_marker(path)
        note("hangs are noticed again")
        return
    until = SystemClock().now() + parse_duration(duration)
    place.create()
    epoch = -(-to_us(until) // 1_000_000)
    write_marker(markers.QUIET.at(place, epoch=str(epoch)), {"until": epoch})
    note(f"no hang is suspected until {when(datetime.fromtimestamp(epoch, UTC))}")


def logs(
    follow_: Annotated[bool, typer.Option("-f", "--follow", help="Go on printing what is added.")] = False,
    lines: Annotated[int, typer.Option("-n", "--lines", min=0, help="So many lines of each process.")] = 20,
) -> None:
    """Print what the processes themselves said, each line with its process.

    Example: turnkeeper logs -f
    """
    place = home()
    place.check()
    ends = {}
    for path in sorted(place.logs.glob("*.log")):
        said, ends[path] = last_lines(path, lines)
        for line in said:
            _say(path.stem, line)
    if follow_:
        for path, line in follow(place.logs, ends, SystemClock()):
            _say(path.stem, line)


def _say(process: str, line: str) -> None:
    print(f"{process}: {plain(line)}", flush=True)
