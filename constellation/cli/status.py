"""`turnkeeper status`."""

from datetime import datetime
from importlib import import_module

import typer

from constellation.inspect.condition import findings
from constellation.supervisor.watchdog import read_orders
from turnkeeper.clock import SystemClock
from turnkeeper.console import Column, Output, OutputOption, home, note, show_rows, when
from turnkeeper.errors import EXIT_DEGRADED

_COLUMNS = (
    Column("PROCESS", lambda row: str(row["process"])),
    Column("STATE", lambda row: str(row["state"])),
    Column("PID", lambda row: str(row["pid"] or "-"), right=True),
    Column("SINCE", lambda row: when(datetime.fromisoformat(row["since"])) if row["since"] else "-"),
    Column("LOG", lambda row: str(row["log"])),
)


def status(output: OutputOption = Output.TABLE) -> None:
    """Show whether the processes run, what the watchdog has found, and what waits for you.

    Exits with 6 when a process is missing or the watchdog found something that is not mended.

    Example: turnkeeper status -o json
    """
    place = home()
    place.check()
    found = findings(place, SystemClock().now().timestamp())
    asking = import_module("constellation.inspect.status")  # it loads gRPC, which `up` should not wait for
    rows = asking.rows(place, found, supervised=read_orders(place) is not None)
    show_rows(rows, _COLUMNS, output, name_key="process", footer=asking.decisions(place))
    people = output in {Output.TABLE, Output.WIDE}
    for finding in found if people else ():
        note(str(finding))
    missing = any(row["state"] != "running" for row in rows)
    if missing and people:
        note("not everything runs: turnkeeper up")
    if missing or any(finding.degraded for finding in found):
        raise typer.Exit(EXIT_DEGRADED)
