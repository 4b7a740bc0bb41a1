"""Whether the machine is idle enough to measure on, and how fast it is.

A figure from a busy machine is no result: a peer that syncs often suffers most from load, which once made 2.7 times
look like 15 times.
"""

import os
import sqlite3
import statistics
import time
from collections.abc import Mapping
from pathlib import Path

import psutil

MOST_LOAD = 0.5
MOST_SHARE = 0.05  # of a core, of any process that is not part of the measuring
_LOOK_S = 1.0
_ROUNDS = 5


def busy(load: float | None, shares: Mapping[str, float]) -> list[str]:
    """Return what keeps a machine from being idle, in words; empty for an idle one.

    Args:
        load: the load average of the last minute; None where the measuring itself has made it.
        shares: of a core, by process.
    """
    loaded = [] if load is None or load < MOST_LOAD else [f"the load is {load:.2f}, and must be under {MOST_LOAD}"]
    greedy = sorted(((share, name) for name, share in shares.items() if share > MOST_SHARE), reverse=True)
    return loaded + [f"{name} takes {share:.0%} of a core; at most {MOST_SHARE:.0%} is idle" for share, name in greedy]


def look(*, begun: bool = False) -> list[str]:
    """Return what keeps this machine from being idle; the load counts only before the measuring has begun."""
    before = _cpu_s()
    time.sleep(_LOOK_S)
    after = _cpu_s()
    shares = {
        f"{name} (pid {pid})": (used - before.get((pid, name), used)) / _LOOK_S for (pid, name), used in after.items()
    }
    return busy(None if begun else os.getloadavg()[0], shares)


def _cpu_s() -> dict[tuple[int, str], float]:
    """Return the CPU seconds of every process but this one, those that it started, and those that started it."""
    own = psutil.Process()
    ours = {own.pid, *(each.pid for each in [*own.parents(), *own.children(recursive=True)])}
    ticks = os.sysconf("SC_CLK_TCK")
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            text = (folder / "stat").read_text()
        except OSError:
            continue  # it has ended
        name, _, rest = text.partition("(")[2].rpartition(")")
        if int(folder.name) not in ours:
            found[int(folder.name), name] = sum(map(int, rest.split()[11:13])) / ticks
    return found


def calibration_s() -> float:
    """Return the CPU seconds of a fixed piece of work, in Python and in SQLite: machines differ by its length."""
    took = []
    for _ in range(_ROUNDS):
        begun = time.process_time()
        _work()
        took.append(time.process_time() - begun)
    return statistics.median(took)


def _work() -> None:
    rows = [{"number": number, "text": f"row {number * 7919 % 10_007}", "at": number % 97} for number in range(20_000)]
    found: dict[str, int] = {}
    for row in rows:
        found[str(row["text"])] = found.get(str(row["text"]), 0) + int(row["at"])
    connection = sqlite3.connect(":memory:")
    connection.execute("CREATE TABLE rows (number INTEGER PRIMARY KEY, text TEXT, at INTEGER)")
    connection.execute("CREATE INDEX rows_text ON rows (text)")
    connection.executemany("INSERT INTO rows VALUES (:number, :text, :at)", rows)
    for text in sorted(found)[::10]:
        connection.execute("SELECT sum(at) FROM rows WHERE text = ?", [text]).fetchone()
    connection.close()
