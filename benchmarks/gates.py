"""What has to be reached, and what must not slip back: pure functions over what the parts measured."""

import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

TITLE = "Gates"
HEADER = ("gate", "ratio", "must be", "")
ROOM = 0.25  # that CPU may rise over what was recorded: two runs on one machine differ by a tenth


@dataclass(frozen=True)
class Gate:
    """A ratio that has to be reached: at least, or, of what is to be small, at most."""

    must: float
    at_most: bool = False

    def reached(self, ratio: float) -> bool:
        """Tell whether a ratio reaches it."""
        return ratio <= self.must if self.at_most else ratio >= self.must


# By what a reader sees; all are medians of the ratios, or of the differences, of neighbouring runs.
GATES: dict[str, Gate] = {
    **{
        f"p99 lateness among {idle} idle tasks, APScheduler 3 / ours": Gate(6.0)
        for idle in ("0", "100,000", "1,000,000")
    },
    "5,000 due at once, ours / huey": Gate(4.5),
    "5,000 due at once, ours / APScheduler 3": Gate(10.0),
    "apply of 10,000, ours / APScheduler 3": Gate(40.0),
    **{f"whole turns {n} at once, ours / stock saver": Gate(must) for n, must in ((1, 0.85), (8, 1.25), (64, 1.5))},
    **{
        f"checkpointer alone {n} at once, ours / stock saver": Gate(must) for n, must in ((1, 1.6), (8, 3.0), (64, 2.8))
    },
    **{f"{name} --help / import": Gate(0.55, at_most=True) for name in ("task-runner", "turnkeeper", "agent-runtime")},
    "list with the daemon up / import": Gate(1.1, at_most=True),
    "list with the daemon down / import": Gate(1.1, at_most=True),
    "next --cron with the daemon down / import": Gate(2.0, at_most=True),
    "`up` of a new home, in s": Gate(1.5, at_most=True),
    "memory of the daemons of an idle home, in MB": Gate(150.0, at_most=True),
    "grouped count over 1,000,000 fires, in s": Gate(2.0, at_most=True),
    "shared checkpoints 16 at once, ours / stock saver": Gate(3.0),
    "shared checkpoints 16 at once, ours / our file": Gate(0.4),
    "shared checkpoints 16 at once, not proved / proved": Gate(1.25, at_most=True),
    "hand-overs, 4 runners / 1 runner": Gate(0.9),
    "a claim among 100,000 envelopes / 100": Gate(2.0, at_most=True),
    "between two turns of a thread, shared / our file": Gate(2.0, at_most=True),
    "p99 of takeovers after kill -9, in s": Gate(17.0, at_most=True),
    "CPU of a fire, this build / the earlier one": Gate(1.05, at_most=True),
    "CPU of a turn, this build / the earlier one": Gate(1.05, at_most=True),
    "CPU of a fire beside a query / without": Gate(1.05, at_most=True),
    "CPU of a fire with metrics / without": Gate(1.03, at_most=True),
    "p99 lateness with 50 tabs - without, ms": Gate(5.0, at_most=True),
    "p99 lateness under 10,000 connections a minute - without, ms": Gate(5.0, at_most=True),
}


def rows_of(measured: Mapping[str, Sequence[float]]) -> dict[str, tuple[str, ...]]:
    """Return the rows of the table of gates that were measured, each with its verdict."""
    unknown = measured.keys() - GATES.keys()
    assert not unknown, f"no gate is named {sorted(unknown)}"
    rows = {}
    for name, ratios in measured.items():
        gate, middle = GATES[name], statistics.median(ratios)
        bound = f"{'≤' if gate.at_most else '≥'} {gate.must:g}"
        shown = f"{middle:.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
        rows[name] = (name, shown, bound, "reached" if gate.reached(middle) else "missed")
    return rows


def merged(results: str, fresh: Mapping[str, tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Return all rows of the table of gates: those of earlier results, with fresh ones in their place."""
    section = re.search(rf"(?ms)^## {TITLE}$(.*?)(?=^## |\Z)", results)
    lines = section[1].splitlines() if section else []
    cells = [tuple(cell.strip() for cell in line.strip("| ").split(" | ")) for line in lines if line.startswith("| ")]
    known = {row[0]: row for row in cells if row[0] in GATES} | dict(fresh)
    return [known.get(name, (name, "not measured", "", "")) for name in GATES]


def slipped(recorded: Mapping[str, float], now: Mapping[str, float], room: float = ROOM) -> list[str]:
    """Return in words what takes more CPU than was recorded, by more than the room for noise.

    Both are in units of the calibration of their own run. What was never recorded, and what was not measured, is named
    too: neither says that all is well.
    """
    said = []
    for name in sorted(recorded.keys() | now.keys()):
        if name not in recorded or name not in now:
            said.append(f"{name}: {'nothing is recorded' if name not in recorded else 'was not measured'}")
        elif now[name] > recorded[name] * (1 + room):
            rise = now[name] / recorded[name] - 1
            said.append(
                f"{name}: {now[name]:.4f} of the calibration, {rise:.0%} above the recorded {recorded[name]:.4f}"
            )
    return said
