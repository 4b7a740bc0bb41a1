"""`turnkeeper doctor`."""

from typing import Any

import typer

from constellation.inspect.doctor import examine
from turnkeeper.clock import SystemClock
from turnkeeper.console import Column, Output, OutputOption, home, show_rows
from turnkeeper.errors import EXIT_DEGRADED

_COLUMNS = (
    Column("CHECK", lambda row: str(row["check"])),
    Column("STATE", lambda row: str(row["state"])),
    Column("FINDING", lambda row: str(row["finding"] or "-")),
    Column("FIX", lambda row: str(row["fix"] or "-")),
)


def doctor(output: OutputOption = Output.TABLE) -> None:
    """Look at everything that could be wrong, and say for each finding what to do. Changes nothing.

    Exits with 6 when something is broken.

    Example: turnkeeper doctor
    """
    place = home()
    place.check()
    rows: list[dict[str, Any]] = []
    for check in examine(place, SystemClock().now().timestamp()):
        for found in check.findings:
            what = f"{found.process}: {found.what}" if found.process else found.what
            state = "broken" if found.degraded else "note"
            rows.append({"check": check.name, "state": state, "finding": what, "fix": found.fix})
        if not check.findings:
            rows.append({"check": check.name, "state": "ok", "finding": "", "fix": ""})
    show_rows(rows, _COLUMNS, output, name_key="check")
    if any(row["state"] == "broken" for row in rows):
        raise typer.Exit(EXIT_DEGRADED)
