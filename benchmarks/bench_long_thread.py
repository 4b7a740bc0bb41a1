"""Five hundred turns on one thread: how large the stores grow, and how much longer the last turns take than the first.

`python -m benchmarks.bench_long_thread` prints one JSON document.
"""

import asyncio
import json
import sqlite3
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks import agents

TURNS = 500
AT_EACH_END = 25  # turns whose median stands for "first" and "last"
MARKS = 5  # sizes taken on the way


async def measure(turns: int = TURNS) -> dict[str, Any]:
    """Return sizes in bytes by turn, the latencies of the first and last turns in ms, and both ratios.

    `linearity` is the size at the end over the size that the second fifth's growth foretells; the first fifth pays for
    what every store holds.
    """
    latencies: list[float] = []
    sizes: dict[int, int] = {}
    with tempfile.TemporaryDirectory(prefix="tk-") as folder:
        home = Path(folder) / "home"
        async with agents.on_our_runtime(home) as agent:
            await agent.turn(turns, thread="another")  # the first of a process pays for what the others find ready
            for number in range(turns):
                begun = time.perf_counter()
                await agent.turn(number, thread="one")
                latencies.append((time.perf_counter() - begun) * 1000)
                if (number + 1) % (turns // MARKS) == 0:
                    sizes[number + 1] = size(home)
    first, last = (statistics.median(part) for part in (latencies[:AT_EACH_END], latencies[-AT_EACH_END:]))
    early, later = turns // MARKS, 2 * turns // MARKS
    foretold = sizes[early] + (sizes[later] - sizes[early]) * (MARKS - 1)
    return {
        "turns": turns,
        "sizes": sizes,
        "bytes_a_turn": sizes[turns] / turns,
        "linearity": sizes[turns] / foretold,
        "first_ms": first,
        "last_ms": last,
        "latency_ratio": last / first,
    }


def size(home: Path) -> int:
    """Return the bytes of both stores' pages; their logs are of one size whatever has been stored."""
    return sum(pages(path) for path in home.rglob("*.db"))


def pages(path: Path) -> int:
    connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    counted, each = (int(connection.execute(f"PRAGMA {name}").fetchone()[0]) for name in ("page_count", "page_size"))
    connection.close()
    return counted * each


def rows(found: dict[str, Any]) -> list[tuple[str, ...]]:
    """Return the results as rows of a table."""
    return [
        ("stores after all turns", f"{found['sizes'][found['turns']] / 1e6:.1f} MB"),
        ("bytes a turn", f"{found['bytes_a_turn']:,.0f}"),
        ("size / linear growth", f"{found['linearity']:.2f}"),
        ("first turns, ms", f"{found['first_ms']:.1f}"),
        ("last turns, ms", f"{found['last_ms']:.1f}"),
        ("last / first", f"{found['latency_ratio']:.2f}"),
    ]


if __name__ == "__main__":
    print(json.dumps(asyncio.run(measure()), indent=2))
