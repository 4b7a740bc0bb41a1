"""CPU of a fire and of a turn on this build and on an earlier one, in turn: what one machine pays for the others.

`make bench-base` checks an earlier build out beside this one, in `.base`, with a virtual environment of its own.
"""

import json
import statistics
import subprocess
from pathlib import Path

from benchmarks.report import Section, ratio, spread

BASE = Path(__file__).parent.parent / ".base"
PROGRAM = "import json; from benchmarks.bench_cpu import fires, turns; print(json.dumps(fires(4) | turns(1)))"
GATES = {
    "CPU of a fire, this build / the earlier one": ("a fire, in the runner", "a fire, in the runtime"),
    "CPU of a turn, this build / the earlier one": ("a turn, 1 at once", "a turn, 8 at once"),
}


def builds(times: int) -> Section:
    """Measure both in turn; the ratio of neighbours is what counts."""
    if not BASE.exists():
        raise SystemExit("there is no earlier build to compare with: make bench-base REV=... makes one")
    runs = [(_measured(BASE), _measured(BASE.parent)) for _ in range(times)]
    rows = []
    for name in runs[0][0]:
        earlier, now = ([run[which][name] * 1e6 for run in runs] for which in (0, 1))
        rows.append((name, spread(earlier), spread(now), ratio(now, earlier, 2)))
    gates = {gate: [_sum(now, names) / _sum(earlier, names) for earlier, now in runs] for gate, names in GATES.items()}
    about = f"On one machine, in µs; the earlier build is {_revision()}."
    return Section(title=BUILDS, about=about, header=("CPU", "earlier", "now", "now / earlier"), rows=rows, gates=gates)


def _measured(checkout: Path) -> dict[str, float]:
    command = [checkout / ".venv/bin/python", "-c", PROGRAM]
    done = subprocess.run(command, cwd=checkout, check=True, capture_output=True, text=True)
    found: dict[str, list[float]] = json.loads(done.stdout.splitlines()[-1])
    return {name: statistics.median(values) for name, values in found.items()}


def _sum(run: dict[str, float], names: tuple[str, ...]) -> float:
    return sum(run[name] for name in names)


def _revision() -> str:
    command = ["git", "-C", str(BASE), "log", "-1", "--format=of %ci (%h)"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


BUILDS = "This build beside an earlier one"
