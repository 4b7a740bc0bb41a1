"""`make bench`: ours beside peers in one run, written to `benchmarks/RESULTS.md` with its plots beside it.

`python -m benchmarks` runs every part in turn; `python -m benchmarks lateness fires` only those, and replaces their
sections in the results. `--times 7` takes another number of repetitions than five, where a part lets it be chosen.

How to read the results: machines differ and are noisy, so ours and a peer's runs take turns, and what counts is the
ratio of neighbours. Each figure is a median, with the least and the greatest in brackets. Nothing here is a test.
"""

import argparse
import asyncio
import os
import platform
import sqlite3
import sys
import time
from collections.abc import Callable
from importlib.metadata import version

from benchmarks import (
    bench_bus,
    bench_catch_up,
    bench_fires,
    bench_long_thread,
    bench_next_fire,
    bench_store,
    bench_turns,
)
from benchmarks.report import RESULTS, Section, put_in

REPETITIONS = 5
Part = Callable[[int], Section]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measure ours beside peers.")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; all without one")
    parser.add_argument("--times", type=int, default=REPETITIONS, help="repetitions")
    given = parser.parse_args()
    if unknown := [part for part in given.parts if part not in PARTS]:
        parser.error(f"no part named {unknown[0]}")
    for name in given.parts or PARTS:
        begun, load = time.monotonic(), os.getloadavg()[0]
        text = PARTS[name][1](given.times).text()
        text += f"\n\nMachine's load before this part: {load:.1f}; {given.times} repetitions asked for."
        header = HEADER.format(**machine())
        old = RESULTS.read_text() if RESULTS.exists() else ""
        RESULTS.write_text(put_in(old, header, [text], [title for title, _ in PARTS.values()]))
        sys.stdout.write(f"{text}\n\n{name} took {time.monotonic() - begun:.0f} s\n\n")


def next_fire(_times: int) -> Section:
    rows = [
        (f"`{text}`", f"{one['next_us']:.1f}", f"{one['croniter_next_us']:.1f}", f"{one['next_ratio']:.1f}")
        for text, one in bench_next_fire.measure()["expressions"].items()
    ]
    about = "In America/New_York, in µs: fire after fire from an object made once."
    return Section(title=NEXT, about=about, header=("expression", "ours", "croniter", "theirs / ours"), rows=rows)


def bus(_times: int) -> Section:
    found = bench_bus.measure()
    works = (("put", "", "grouped"), ("put, claim and archive", "_cycle", "cycle"))
    rows = []
    for label, infix, name in works:
        low, high = found[f"{name}_ratio_spread"]
        single, grouped = found[f"one_by_one{infix}_per_s"], found[f"grouped{infix}_per_s"]
        both = f"{found[f'{name}_ratio']:.2f} ({low:.2f} to {high:.2f})"
        rows.append((f"{label}, a second", f"{single:,.0f}", f"{grouped:,.0f}", both))
    low, high = found["lone_ratio_spread"]
    about = (
        f"{found['envelopes']:,} envelopes of 600 bytes, medians of {found['repetitions']}. A lone put takes"
        f" {found['lone_us']:.0f} µs, its bare system calls {found['bare_us']:.0f} µs:"
        f" {found['lone_ratio']:.2f} ({low:.2f} to {high:.2f})."
    )
    return Section(title=BUS, about=about, header=("work", "one by one", "grouped", "grouped / one by one"), rows=rows)


def turns(times: int) -> Section:
    rows = bench_turns.rows(bench_turns.measure(times))
    return Section(title=TURNS, about=ABOUT_TURNS, header=bench_turns.HEADER, rows=rows)


def long_thread(_times: int) -> Section:
    rows = bench_long_thread.rows(asyncio.run(bench_long_thread.measure()))
    about = "The whole runtime, one turn after the other; medians of the first and of the last 25 turns."
    return Section(title=THREAD, about=about, header=("of 500 turns on one thread", ""), rows=rows)


def machine() -> dict[str, object]:
    packages = ("apscheduler", "huey", "grpcio", "langgraph")
    return {name: version(name) for name in packages} | {
        "cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
    }


NEXT, BUS, TURNS, THREAD = "Next fire of a cron expression", "Bus", "Turns a second", "Long thread"
PARTS: dict[str, tuple[str, Part]] = {
    "lateness": (bench_fires.LATENESS, bench_fires.lateness),
    "fires": (bench_fires.FIRES, bench_fires.fires),
    "register": (bench_store.REGISTER, bench_store.register),
    "start": (bench_store.START, bench_store.start),
    "catch-up": (bench_catch_up.CATCH_UP, bench_catch_up.catch_up),
    "next": (NEXT, next_fire),
    "bus": (BUS, bus),
    "turns": (TURNS, turns),
    "thread": (THREAD, long_thread),
}
HEADER = """# Results

Written by `make bench`, part by part; how to read it and how to run a part alone is in `benchmarks/__main__.py`.
{cores} cores, {system}; Python {python}, SQLite {sqlite}, grpcio {grpcio}, APScheduler {apscheduler}, huey {huey},
LangGraph {langgraph}. Medians of runs made in turn, with the least and the greatest; a ratio is that of neighbouring
runs. Machines are noisy: read the ratios.
"""
ABOUT_TURNS = """
An agent with one tool call, each turn on a thread of its own, so many at once. Bare LangGraph without a checkpointer,
with its stock AsyncSqliteSaver, with our saver (all synced at every commit and waited for between steps), and our whole
runtime in one process: envelope, turn table, guard, checkpoints, conversation, events.
"""
if __name__ == "__main__":
    main()
