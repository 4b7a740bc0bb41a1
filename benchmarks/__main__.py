"""`make bench`: ours beside peers in one run, written to `benchmarks/RESULTS.md` with its plots beside it.

`python -m benchmarks` runs every part in turn; `python -m benchmarks lateness fires` only those, and replaces their
sections in the results. `--times 7` takes another number of repetitions than the parts' own, where a part lets it be
chosen: five for what has a gate, fewer for the rest, so that all parts end within about twelve minutes. The parts that
say how fast the main work is: `commands lateness fires register turns cpu home shared catch-up`.

It measures only on an idle machine, as a figure from a busy one is no result. `--busy-ok` measures all the same, into
`benchmarks/busy.md` or the file of `--into`, marks every figure, and leaves the results as they are.

`make bench-check` (`python -m benchmarks --check`) compares the CPU of a fire and of a turn with what the last full run
recorded in `benchmarks/recorded.json`, in units of a calibration, with room for noise, and names what slipped.

How to read the results: machines differ and are noisy, so ours and a peer's runs take turns, and what counts is the
ratio of neighbours. Each figure is a median, with the least and the greatest in brackets. Nothing here is a test.
"""

import argparse
import asyncio
import json
import os
import platform
import sqlite3
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks import (
    bench_builds,
    bench_bus,
    bench_catch_up,
    bench_cluster,
    bench_commands,
    bench_cpu,
    bench_engines,
    bench_fires,
    bench_flood,
    bench_home,
    bench_long_thread,
    bench_memory,
    bench_next_fire,
    bench_shared,
    bench_store,
    bench_tabs,
    bench_turns,
    bench_watching,
    gates,
    report,
)
from benchmarks.machine import look
from benchmarks.report import RESULTS, Section, put_in

BUSY = RESULTS.with_name("busy.md")
EXIT_BUSY = 3
Part = Callable[[int], Section]


def main() -> int:
    """Run the parts; return the exit code: 3 for a machine that is not idle, 1 for what slipped."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measure ours beside peers.")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; all without one")
    parser.add_argument("--times", type=int, help="repetitions; each part has its own number otherwise")
    parser.add_argument("--busy-ok", action="store_true", help="measure on a busy machine too; nothing is a result")
    parser.add_argument("--into", type=Path, help=f"the file to write; RESULTS.md, with --busy-ok {BUSY.name}")
    parser.add_argument("--check", action="store_true", help="compare the CPU of fires and turns with what is recorded")
    given = parser.parse_args()
    if unknown := [part for part in given.parts if part not in PARTS]:
        parser.error(f"no part named {unknown[0]}")
    if given.check:
        return bench_cpu.check(given.times or 3)
    if given.busy_ok and given.into is not None and given.into.resolve() == RESULTS:
        parser.error(f"--busy-ok writes no results: name another file than {RESULTS}")
    return measure(given)


def measure(given: Any) -> int:
    """Run the parts that were asked for; a part during which the machine was busy is not written."""
    into, refused = given.into or (BUSY if given.busy_ok else RESULTS), False
    wanted = given.parts or [name for name in PARTS if name != "builds" or bench_builds.BASE.exists()]
    for name in wanted:
        _, part, times = PARTS[name]
        load = os.getloadavg()[0]
        if refuse(look(begun=name != wanted[0]), given):
            return EXIT_BUSY
        begun = time.monotonic()
        section = part(given.times or times)
        if refuse(look(begun=True), given):
            sys.stdout.write(f"{name}: not written, as the machine was busy meanwhile\n\n")
            refused = True
            continue
        write(into, section, given, f"Machine's load before this part: {load:.1f}; {given.times or times} repetitions")
        sys.stdout.write(f"{section.text(is_result=False) if given.busy_ok else section.text()}\n\n")
        sys.stdout.write(f"{name} took {time.monotonic() - begun:.0f} s\n\n")
    return EXIT_BUSY if refused else 0


def refuse(why: list[str], given: Any) -> bool:
    """Say why the machine is not idle; tell whether nothing may be written for that."""
    if why:
        told = (
            "go on, but nothing is a result"
            if given.busy_ok
            else "nothing is measured or written; --busy-ok measures all the same"
        )
        sys.stdout.write("the machine is not idle: " + "; ".join(why) + f": {told}\n")
    return bool(why) and not given.busy_ok


def write(into: Path, section: Section, given: Any, how: str) -> None:
    """Put a section, and its verdicts on the gates, in the place of earlier ones."""
    old = into.read_text() if into.exists() else ""
    fresh = gates.rows_of(section.gates)
    if given.busy_ok:
        fresh = {name: report.unusable(row[:2]) + row[2:3] + ("busy: no result",) for name, row in fresh.items()}
    verdicts = Section(title=gates.TITLE, about=ABOUT_GATES, header=gates.HEADER, rows=gates.merged(old, fresh))
    text = f"{section.text(is_result=not given.busy_ok)}\n\n{how}{'; busy, so no result' * given.busy_ok}."
    order = [gates.TITLE, *(title for title, _, _ in PARTS.values())]
    header = HEADER.format(**machine()) + (BUSY_HEADER if given.busy_ok else "")
    into.write_text(put_in(old, header, [verdicts.text(), text], order))
    if section.recorded and not given.busy_ok:
        bench_cpu.RECORDED.write_text(json.dumps(section.recorded, indent=2) + "\n")


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
    return Section(
        title=ENVELOPES, about=about, header=("work", "one by one", "grouped", "grouped / one by one"), rows=rows
    )


def turns(times: int) -> Section:
    found = bench_turns.measure(times)
    rows, ratios = bench_turns.rows(found), bench_turns.gates(found)
    return Section(title=TURNS, about=ABOUT_TURNS, header=bench_turns.HEADER, rows=rows, gates=ratios)


def long_thread(_times: int) -> Section:
    rows = bench_long_thread.rows(asyncio.run(bench_long_thread.measure()))
    about = "The whole runtime, one turn after the other; medians of the first and of the last 25 turns."
    return Section(title=THREAD, about=about, header=("of 500 turns on one thread", ""), rows=rows)


def memory(_times: int) -> Section:
    rows = bench_memory.rows(list(bench_memory.measure()))
    return Section(title=MEMORY, about=ABOUT_MEMORY, header=bench_memory.HEADER, rows=rows)


def machine() -> dict[str, object]:
    packages = ("apscheduler", "huey", "grpcio", "langgraph")
    return {name: version(name) for name in packages} | {
        "cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
    }


NEXT, ENVELOPES, TURNS, THREAD = "Next fire of a cron expression", "Bus", "Turns a second", "Long thread"
MEMORY = "Memory and open files"
# Each part's title, what it does, and how often it does it by default.
PARTS: dict[str, tuple[str, Part, int]] = {
    "commands": (bench_commands.COMMANDS, bench_commands.commands, 5),
    "lateness": (bench_fires.LATENESS, bench_fires.lateness, 5),
    "fires": (bench_fires.FIRES, bench_fires.fires, 5),
    "register": (bench_store.REGISTER, bench_store.register, 5),
    "turns": (TURNS, turns, 5),
    "cpu": (bench_cpu.CPU, bench_cpu.cpu, 5),
    "builds": (bench_builds.BUILDS, bench_builds.builds, 5),
    "start": (bench_store.START, bench_store.start, 2),
    "catch-up": (bench_catch_up.CATCH_UP, bench_catch_up.catch_up, 1),
    "next": (NEXT, next_fire, 1),
    "bus": (ENVELOPES, bus, 1),
    "thread": (THREAD, long_thread, 1),
    "home": (bench_home.TITLE, bench_home.idle_home, 5),
    "memory": (MEMORY, memory, 1),
    "shared": (bench_shared.SHARED, bench_shared.shared, 5),
    "engines": (bench_engines.TITLE, bench_engines.engines, 3),
    "cluster": (bench_cluster.CLUSTER, bench_cluster.cluster, 3),
    "query": (bench_watching.QUERY, bench_watching.query, 5),
    "metrics": (bench_watching.METRICS, bench_watching.metrics, 9),
    "tabs": (bench_tabs.TITLE, bench_tabs.tabs, 5),
    "flood": (bench_flood.TITLE, bench_flood.flood, 5),
}
HEADER = """# Results

Written by `make bench`, part by part; how to read it and how to run a part alone is in `benchmarks/__main__.py`.
{cores} cores, {system}; Python {python}, SQLite {sqlite}, grpcio {grpcio}, APScheduler {apscheduler}, huey {huey},
LangGraph {langgraph}. Medians of runs made in turn, with the least and the greatest; a ratio is that of neighbouring
runs. Machines are noisy: read the ratios.
"""
BUSY_HEADER = """
**Not a result: measured while the machine was busy, to see that every part works.**
"""
ABOUT_GATES = "What has to be reached: medians of the ratios of neighbouring runs, on an idle machine."
ABOUT_TURNS = """
An agent with one tool call, each turn on a thread of its own, so many at once. Bare LangGraph without a checkpointer,
with its stock AsyncSqliteSaver, with our saver (all synced at every commit and waited for between steps), and our whole
runtime in one process: envelope, turn table, guard, checkpoints, conversation, events.
"""
ABOUT_MEMORY = """
Both real daemons and the offline model; tasks of the category `catch-up-summary` that are due once, 500 at a time. The
daemons are looked at when the turns of a wave are over. What grows at first is what SQLite keeps of its files, 16 MB
for a store and 4 MB for each of two connections to the checkpoints, and what Python's heap needs at its busiest.
"""
if __name__ == "__main__":
    sys.exit(main())
