"""An idle home: how long `turnkeeper up` takes, and how much memory each daemon then needs."""

import subprocess
import sys
import time
from pathlib import Path

import psutil

from benchmarks.places import place
from benchmarks.report import Section, spread

REPETITIONS = 5
SETTLE_S = 2.0  # until the daemons have done what a start leaves for later
DAEMONS = {"supervisor": "supervisor", "runtime": "agent_runtime.daemon", "runner": "task_runner.daemon"}


def idle_home(repetitions: int = REPETITIONS) -> Section:
    """Start and stop the daemons of a new home; the first start, which may find no bytecode, is not counted."""
    found: dict[str, list[float]] = {"`up`, s": [], **{f"{name}, MB": [] for name in DAEMONS}, "all three, MB": []}
    with place() as folder:
        for number in range(-1, repetitions):
            print(f"an idle home: start {number + 1} of {repetitions}", flush=True)
            took_s, memory = _start(folder / f"home-{number + 1}")
            if number >= 0:
                for name, value in zip(found, (took_s, *memory, sum(memory)), strict=True):
                    found[name].append(value)
    rows = [(name, spread(values, 2 if name.endswith(" s") else 0)) for name, values in found.items()]
    gates = {
        "`up` of a new home, in s": found["`up`, s"],
        "memory of the daemons of an idle home, in MB": found["all three, MB"],
    }
    return Section(title=TITLE, about=ABOUT, header=("what", "found"), rows=rows, gates=gates)


def _start(root: Path) -> tuple[float, list[float]]:
    """Start a new home's daemons; return the seconds that it took, and the memory of each daemon in MB."""
    _run(root, "init")
    try:
        begun = time.perf_counter()
        _run(root, "up")
        took_s = time.perf_counter() - begun
        time.sleep(SETTLE_S)
        ours = [one for one in psutil.process_iter(["cmdline"]) if str(root) in (one.info["cmdline"] or ())]
        return took_s, [_memory_mb(ours, module) for module in DAEMONS.values()]
    finally:
        _run(root, "down")


def _run(root: Path, command: str) -> None:
    program = str(Path(sys.executable).with_name("turnkeeper"))
    quiet = subprocess.DEVNULL
    subprocess.run([program, "--home", str(root), command], stdin=quiet, stdout=quiet, stderr=quiet, check=True)


def _memory_mb(processes: list[psutil.Process], module: str) -> float:
    (process,) = (one for one in processes if any(word.endswith(module) for word in one.info["cmdline"]))
    return float(process.memory_full_info().pss) / 1e6


TITLE = "An idle home"
ABOUT = """
`turnkeeper up` in a new home, until the command ends, and the proportional memory (PSS) of each daemon two seconds
later: of a page that several processes share, each has its share.
"""
