"""Memory and open files of both daemons over many turns: do they level off?

Both real daemons, the offline model, and tasks that are due once, in waves. After each wave the daemons are left alone
for a moment, and looked at. `python -m benchmarks.bench_memory 10000` prints one line a wave.
"""

import sys
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import psutil

from benchmarks.ours import RUNNER, Ours, resident_mb, spec
from benchmarks.places import place

RUNTIME = ("agent_runtime.daemon", "agent-runtime")
TURNS, WAVE = 10_000, 500
SETTLE_S = 2.0  # until nothing is under way: the runner's books, a checkpoint of the WAL


@dataclass(frozen=True, kw_only=True)
class Sample:
    """The runtime and the runner after so many turns, in this order."""

    turns: int
    resident_mb: tuple[float, ...]
    open_files: tuple[int, ...]
    threads: tuple[int, ...]


def measure(turns: int = TURNS, wave: int = WAVE) -> Iterator[Sample]:
    """Run turns in waves; yield what the daemons hold before the first and after each."""
    with place() as folder, closing(Ours(folder)) as ours:
        daemons = [ours.start(*RUNTIME, flag="--home"), ours.start(*RUNNER)]
        for done in range(0, turns + 1, wave):
            if done:
                _run(ours, wave)
            time.sleep(SETTLE_S)
            processes = [psutil.Process(daemon.pid) for daemon in daemons]
            yield Sample(
                turns=done,
                resident_mb=tuple(resident_mb(daemon) for daemon in daemons),
                open_files=tuple(process.num_fds() for process in processes),
                threads=tuple(process.num_threads() for process in processes),
            )


def _run(ours: Ours, turns: int) -> None:
    at = (datetime.now(UTC) + timedelta(seconds=2)).isoformat()
    list(ours.facts("turn.stopped"))
    ours.apply([spec(name, at=at) for name in ours.names(turns)])
    ended = ours.wait_for("turn.stopped", turns)
    assert all(fact["state"] == "succeeded" for fact in ended), f"a turn did not succeed: {ended}"


def rows(samples: list[Sample]) -> list[tuple[str, ...]]:
    """Return the samples as rows of a table."""
    return [
        (
            f"{one.turns:,}",
            *(f"{value:.1f}" for value in one.resident_mb),
            *map(str, one.open_files),
            *map(str, one.threads),
        )
        for one in samples
    ]


HEADER = ("turns", "runtime MB", "runner MB", "runtime files", "runner files", "runtime threads", "runner threads")
if __name__ == "__main__":
    print(" | ".join(HEADER), flush=True)
    for sample in measure(int((sys.argv[1:] or [TURNS])[0])):
        print(" | ".join(rows([sample])[0]), flush=True)
