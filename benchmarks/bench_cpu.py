"""CPU for each fire and for each turn, which noise disturbs least, and in units of a calibration of the same run."""

import asyncio
import json
import statistics
import time
from contextlib import closing
from pathlib import Path

from benchmarks import agents
from benchmarks.gates import slipped
from benchmarks.machine import calibration_s
from benchmarks.ours import RUNNER, RUNTIME, Ours, cpu_s
from benchmarks.places import place
from benchmarks.report import Section, spread

REPETITIONS = 5
DUE = 2000
TURNS = ((1, 60), (8, 120))  # at once, turns
RECORDED = Path(__file__).parent / "recorded.json"
Found = dict[str, list[float]]


def cpu(repetitions: int = REPETITIONS) -> Section:
    """Measure the CPU that a fire costs each daemon, and that a turn costs the runtime."""
    unit, found = calibration_s(), measure(repetitions)
    rows = [
        (name, spread([value * 1e6 for value in values]), f"{statistics.median(values) / unit:.5f}")
        for name, values in found.items()
    ]
    about = f"{ABOUT} The calibration took {unit * 1000:.0f} ms."
    recorded = {name: statistics.median(values) / unit for name, values in found.items()}
    header = ("CPU", "µs", "in units of the calibration")
    return Section(title=CPU, about=about, header=header, rows=rows, recorded=recorded)


def measure(repetitions: int) -> Found:
    """Return the CPU seconds of each fire and turn."""
    return fires(repetitions) | turns(repetitions)


def fires(repetitions: int) -> Found:
    found: Found = {"a fire, in the runner": [], "a fire, in the runtime": []}
    with place() as folder, closing(Ours(folder)) as ours:
        daemons = ours.start(*RUNTIME), ours.start(*RUNNER)
        for number in range(-1, repetitions):
            print(f"CPU of a fire: run {number + 1} of {repetitions}", flush=True)
            before: list[float] = []
            ours.wave(DUE, declared=lambda: before.extend(map(cpu_s, daemons)))  # noqa: B023  called before the next
            runtime, runner = (after - begun for after, begun in zip(map(cpu_s, daemons), before, strict=True))
            if number >= 0:  # the first of a process pays for what the others find ready
                found["a fire, in the runner"].append(runner / DUE)
                found["a fire, in the runtime"].append(runtime / DUE)
    return found


def turns(repetitions: int) -> Found:
    found: Found = {f"a turn, {at_once} at once": [] for at_once, _ in TURNS}
    for number in range(repetitions):
        print(f"CPU of a turn: run {number + 1} of {repetitions}", flush=True)
        for at_once, count in TURNS:
            found[f"a turn, {at_once} at once"].append(asyncio.run(_turns(at_once, count)))
    return found


async def _turns(at_once: int, count: int) -> float:
    async with agents.on_our_runtime() as agent:
        await agent.turn(count)
        numbers = iter(range(count))

        async def client() -> None:
            for number in numbers:
                await agent.turn(number)

        begun = time.process_time()
        await asyncio.gather(*(client() for _ in range(at_once)))
        return (time.process_time() - begun) / count


def check(repetitions: int) -> int:
    """Compare with what was recorded; say what slipped, and return the exit code."""
    if not RECORDED.exists():
        print(f"nothing is recorded yet: `make bench` on an idle machine writes {RECORDED}")
        return 2
    unit = calibration_s()
    now = {name: statistics.median(values) / unit for name, values in measure(repetitions).items()}
    for name, value in now.items():
        print(f"{name}: {value:.5f} of the calibration ({value * unit * 1e6:,.0f} µs)")
    said = slipped(json.loads(RECORDED.read_text()), now)
    print("\n".join(f"slipped: {line}" for line in said) or "nothing slipped")
    return 1 if said else 0


CPU = "CPU of a fire and of a turn"
ABOUT = f"""
Fires: {DUE:,} due at one moment, user and system time of each daemon from the tasks' declaration on. Turns: the whole
runtime in one process, with the measuring. `make bench-check` compares the last column with what was recorded.
"""
