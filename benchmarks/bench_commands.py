"""The commands' start: from the start of a process to its end, beside Python with the libraries that it could need."""

import os
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

from benchmarks.ours import RUNNER, Ours
from benchmarks.places import place
from benchmarks.report import Row, Section, ratio, spread

REPETITIONS = 5
RUNS_EACH = 4
BIN = Path(sys.executable).parent
IMPORT = (sys.executable, "-c", "import grpc, typer, pydantic")
NEXT = ("next", "--cron", "30 2 * * *")


def commands(repetitions: int = REPETITIONS) -> Section:
    """Measure each command and the import in turn."""
    with place() as folder, closing(Ours(folder)) as ours:
        home = str(ours.home.root)
        ours.start(*RUNNER)
        took = _took({"list with the daemon up": ("task-runner", "--home", home, "list")}, repetitions)
        ours.close()
        down = {f"{name} --help": (name, "--help") for name in ("task-runner", "turnkeeper", "agent-runtime")}
        down["list with the daemon down"] = ("task-runner", "--home", home, "list")
        down["next --cron with the daemon down"] = ("task-runner", "--home", home, *NEXT)
        took |= _took(down, repetitions)
    rows: list[Row] = []
    for name, pairs in took.items():
        (mine, theirs), cpus = ([pair[side] for pair in pairs] for side in (0, 1)), [pair[2] for pair in pairs]
        rows.append((name, spread(mine), spread(theirs), ratio(mine, theirs, 2), f"{min(cpus):.2f}"))
    header = ("command", "wall, ms", "import, ms", "command / import", "least CPU / least CPU")
    gates = {f"{name} / import": [mine / theirs for mine, theirs, _ in pairs] for name, pairs in took.items()}
    return Section(title=COMMANDS, about=ABOUT, header=header, rows=rows, gates=gates)


def _took(asked: dict[str, tuple[str, ...]], repetitions: int) -> dict[str, list[tuple[float, float, float]]]:
    """Return by command the wall ms of each run and of the import beside it, and the ratio of the least CPU so far."""
    found: dict[str, list[tuple[float, float, float]]] = {name: [] for name in asked}
    least: dict[str, list[float]] = {name: [9e9, 9e9] for name in asked}
    for number in range(-1, repetitions * RUNS_EACH):
        if number % RUNS_EACH == 0:
            print(f"commands: run {number + 1} of {repetitions * RUNS_EACH}", flush=True)
        for name, argv in asked.items():
            mine, theirs = _run(str(BIN / argv[0]), *argv[1:]), _run(*IMPORT)
            least[name] = [min(pair) for pair in zip(least[name], (mine[1], theirs[1]), strict=True)]
            if number >= 0:  # the first may find no bytecode
                found[name].append((mine[0], theirs[0], least[name][0] / least[name][1]))
    return found


def _run(*argv: str) -> tuple[float, float]:
    """Run a program; return the ms that it took, and its CPU seconds. Raises if it fails."""
    begun = time.perf_counter()
    process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    took_ms = (time.perf_counter() - begun) * 1000
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, argv
    return took_ms, used.ru_utime + used.ru_stime


COMMANDS = "Start of the commands"
ABOUT = """
From the start of a command's process to its end, its output thrown away, each run beside one of Python that imports
grpc, typer and pydantic. The least CPU of both is beside it: load disturbs that least.
"""
