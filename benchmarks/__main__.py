"""`make bench`: ours beside peers in one run, written to `benchmarks/RESULTS.md`."""

import asyncio
import json
import os
import platform
import sqlite3
import statistics
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks import bench_bus, bench_long_thread, bench_next_fire, bench_turns

REPETITIONS = 5
IDLE = 100_000
RESULTS = Path(__file__).parent / "RESULTS.md"
PEER = "from benchmarks.peers import apscheduler3; apscheduler3.main({due}, {idle})"
Row = tuple[str, ...]


def main() -> None:
    parts = [HEADER.format(**machine()), "## Lateness and fire throughput\n", ABOUT_FIRES]
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "idle.db"
        print(f"making a store with {IDLE:,} idle tasks", flush=True)
        run([sys.executable, "-m", "benchmarks.ours", "fill", str(IDLE), str(store)])
        rows = [
            *lateness("100 due, 0 idle", 100, 0, None),
            *lateness(f"100 due, {IDLE:,} idle", 100, IDLE, store),
            *throughput("5,000 due", 5000),
        ]
    parts.append(table(("work", "figure", "ours", "APScheduler 3", "theirs / ours"), rows))
    print("next fire and bus", flush=True)
    parts += ["\n## Next fire of a cron expression (America/New_York, µs)\n", next_fire()]
    parts += ["\n## Bus\n", bus()]
    parts += ["\n## Turns a second\n", ABOUT_TURNS, table(bench_turns.HEADER, bench_turns.rows(bench_turns.measure()))]
    print("a long thread", flush=True)
    found = asyncio.run(bench_long_thread.measure())
    parts += [
        "\n## Long thread\n",
        ABOUT_LONG,
        table(("of 500 turns on one thread", ""), bench_long_thread.rows(found)),
    ]
    RESULTS.write_text("\n".join(parts) + "\n")
    print(RESULTS.read_text())


def lateness(work: str, due: int, idle: int, store: Path | None) -> list[Row]:
    """Late by how much, p50 and p99 in ms, in pairs of runs."""
    figures: dict[str, list[list[float]]] = {"p50": [], "p99": []}
    for ours, theirs in pairs(work, due, idle, store):
        for name, share in (("p50", 0.5), ("p99", 0.99)):
            figures[name].append([percentile(ours, share), percentile(theirs, share)])
    return [row(work, f"{name} late, ms", *zip(*found, strict=True)) for name, found in figures.items()]


def throughput(work: str, due: int) -> list[Row]:
    """Fires a second, from the moment they were due until the last one was there."""
    found = [
        [due / ours["lateness_ms"][-1] * 1000, due / theirs["lateness_ms"][-1] * 1000]
        for ours, theirs in pairs(work, due, 0, None)
    ]
    ours, theirs = zip(*found, strict=True)
    ratio = statistics.median(a / b for a, b in found)
    return [(work, "fires a second", spread(ours), spread(theirs), f"ours are {ratio:.1f} times as many")]


def pairs(work: str, due: int, idle: int, store: Path | None) -> list[tuple[Any, Any]]:
    found = []
    for number in range(REPETITIONS):
        print(f"{work}: run {number + 1} of {REPETITIONS}", flush=True)
        ours = run([sys.executable, "-m", "benchmarks.ours", str(due), *([str(store)] if store else [])])
        theirs = run([sys.executable, "-c", PEER.format(due=due, idle=idle)])
        assert ours["finished"], "ours lost a fire"
        assert not ours["doubled"], "ours doubled a fire"
        found.append((ours, theirs))
    return found


def next_fire() -> str:
    found = bench_next_fire.measure()["expressions"]
    rows = [
        (f"`{text}`", f"{one['next_us']:.1f}", f"{one['croniter_next_us']:.1f}", f"{one['next_ratio']:.1f}")
        for text, one in found.items()
    ]
    return table(("expression", "ours", "croniter", "theirs / ours"), rows)


def bus() -> str:
    return "```json\n" + json.dumps(bench_bus.measure(), indent=2, default=str) + "\n```"


def row(work: str, figure: str, ours: tuple[float, ...], theirs: tuple[float, ...]) -> Row:
    ratio = statistics.median(b / a for a, b in zip(ours, theirs, strict=True))
    return work, figure, spread(ours), spread(theirs), f"{ratio:.1f}"


def spread(values: tuple[float, ...]) -> str:
    return f"{statistics.median(values):,.0f} ({min(values):,.0f} to {max(values):,.0f})"


def percentile(result: dict[str, Any], share: float) -> float:
    values: list[float] = result["lateness_ms"]
    return values[min(len(values) - 1, int(len(values) * share))]


def table(header: Row, rows: list[Row]) -> str:
    lines = [header, tuple("---" for _ in header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def run(command: list[str]) -> Any:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout) if done.stdout.strip() else None


def machine() -> dict[str, Any]:
    return {
        "cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        "apscheduler": version("apscheduler"),
        "grpcio": version("grpcio"),
        "langgraph": version("langgraph"),
        "repetitions": REPETITIONS,
    }


HEADER = """# Results

Written by `make bench`. {cores} cores, {system}; Python {python}, SQLite {sqlite}, grpcio {grpcio},
APScheduler {apscheduler}, LangGraph {langgraph}. Medians of {repetitions} runs, with the least and the greatest;
a ratio is the median over pairs of runs made in turn. Machines are noisy: read the ratios.
"""
ABOUT_FIRES = """Ours: a real `task-runner`, its socket, and the runtime's accepting half; a fire counts when its
envelope is synced in the inbox. APScheduler 3: a background scheduler with its jobs in SQLite; a job counts when it has
begun, and delivers nothing.
"""
ABOUT_TURNS = """An agent with one tool call, each turn on a thread of its own, so many at once. Bare LangGraph without
a checkpointer, with its stock AsyncSqliteSaver, with our saver (all synced at every commit and waited for between
steps), and our whole runtime in one process: envelope, turn table, guard, checkpoints, conversation, events.
"""
ABOUT_LONG = """The whole runtime, one turn after the other; medians of the first and of the last 25 turns.
"""
if __name__ == "__main__":
    main()
