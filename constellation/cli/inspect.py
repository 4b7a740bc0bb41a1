"""`turnkeeper status`, `doctor` and `logs`."""

from collections.abc import Iterator
from datetime import datetime
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from constellation.inspect.condition import examine, findings
from constellation.supervisor.watchdog import read_orders
from turnkeeper.clock import SystemClock
from turnkeeper.console import Column, Output, OutputOption, home, note, plain, show_rows, when
from turnkeeper.errors import EXIT_DEGRADED

_STATUS = (
    Column("PROCESS", lambda row: str(row["process"])),
    Column("STATE", lambda row: str(row["state"])),
    Column("PID", lambda row: str(row["pid"] or "-"), right=True),
    Column("SINCE", lambda row: when(datetime.fromisoformat(row["since"])) if row["since"] else "-"),
    Column("LOG", lambda row: str(row["log"])),
)


def status(output: OutputOption = Output.TABLE) -> None:
    """Show whether the processes run, what the watchdog found, and what waits for your decision.

    Exits with 6 when a process does not run or the watchdog found a problem that persists.

    Example: turnkeeper status -o json
    """
    place = home()
    place.check()
    found = findings(place, SystemClock().now().timestamp())
    asking = import_module("constellation.inspect.status")  # it loads gRPC: other commands should not wait for that
    rows = asking.rows(place, found, supervised=read_orders(place) is not None)
    show_rows(rows, _STATUS, output, name_key="process", footer=asking.decisions(place))
    people = output in {Output.TABLE, Output.WIDE}
    for finding in found if people else ():
        note(str(finding))
    missing = any(row["state"] != "running" for row in rows)
    if missing and people:
        note("some processes do not run; start them with: turnkeeper up")
    if missing or any(finding.degraded for finding in found):
        raise typer.Exit(EXIT_DEGRADED)


_CHECKS = (
    Column("CHECK", lambda row: str(row["check"])),
    Column("STATE", lambda row: str(row["state"])),
    Column("FINDING", lambda row: str(row["finding"] or "-")),
    Column("FIX", lambda row: str(row["fix"] or "-")),
)


def doctor(output: OutputOption = Output.TABLE) -> None:
    """Check the installation, the processes and the stores, and say how to fix each problem. Changes nothing.

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
    show_rows(rows, _CHECKS, output, name_key="check")
    if any(row["state"] == "broken" for row in rows):
        raise typer.Exit(EXIT_DEGRADED)


_POLL_S = 0.2
_BLOCK_BYTES = 64 * 1024


def last_lines(path: Path, count: int) -> tuple[list[str], int]:
    """Return the last `count` whole lines of a log and the offset after them, reading no more than they take."""
    with path.open("rb") as file:
        at = file.seek(0, 2)
        data = b""
        while at > 0 and data.count(b"\n") <= count:
            step = min(_BLOCK_BYTES, at)
            at -= step
            file.seek(at)
            data = file.read(step) + data
    whole, _, _ = data.rpartition(b"\n")
    lines = whole.split(b"\n") if whole else []
    end = at + len(whole) + (1 if whole or data.startswith(b"\n") else 0)
    return [line.decode(errors="replace") for line in lines[max(0, len(lines) - count) :]], end


def follow(folder: Path, ends: dict[Path, int], clock: SystemClock) -> Iterator[tuple[Path, str]]:
    """Yield (log, line) for ever as whole lines are added; a log that shrank is read from its start."""
    while True:
        for path in sorted(folder.glob("*.log")):
            start = ends.get(path, 0)
            with path.open("rb") as file:
                if file.seek(0, 2) < start:
                    start = 0
                file.seek(start)
                whole, newline, _ = file.read().rpartition(b"\n")
            ends[path] = start + len(whole) + len(newline)
            for line in whole.split(b"\n") if newline else ():
                yield path, line.decode(errors="replace")
        clock.block(_POLL_S)


def logs(
    follow_: Annotated[bool, typer.Option("-f", "--follow", help="Keep printing new lines.")] = False,
    lines: Annotated[int, typer.Option("-n", "--lines", min=0, help="How many lines of each process.")] = 20,
) -> None:
    """Print the log output of the processes, each line with the name of its process.

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
