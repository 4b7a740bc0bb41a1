"""The bus of files: grouped puts beside one-by-one synced puts, and a lone put beside its own bare system calls.

Run `python -m benchmarks.bench_bus`. Each repetition writes into a folder of its own that is removed after the last
one: some file systems avoid the inodes of files just deleted, which would be measured instead.
"""

import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from turnkeeper.bus.durable_writes import GroupingFiles
from turnkeeper.bus.envelope import Envelope, encode
from turnkeeper.bus.inbox import Inbox
from turnkeeper.clock import SystemClock
from turnkeeper.entropy import SystemEntropy

GROUP = 64
GROUPS = 16
LONE = 60
REPETITIONS = 7


def measure() -> dict[str, Any]:
    """Return medians of rates (per second) and of lone puts (microseconds), and the ratios between them.

    `grouped_ratio` is grouped / one by one: groups of 64 puts, as the daemon makes them of what waits at one moment,
    against the same synced puts one after another. `cycle_ratio` is the same with claim and archive. `lone_ratio` is a
    lone put against open, write, fsync, close, link, unlink and the folder's fsync of the same bytes.
    """
    root = Path(tempfile.mkdtemp(prefix="tk-bench-"))
    try:
        rows = [_repetition(root / str(place)) for place in range(REPETITIONS)]
    finally:
        shutil.rmtree(root)
    found: dict[str, Any] = {name: statistics.median(row[name] for row in rows) for name in rows[0]}
    ratios = {
        "grouped_ratio": [row["grouped_per_s"] / row["one_by_one_per_s"] for row in rows],
        "cycle_ratio": [row["grouped_cycle_per_s"] / row["one_by_one_cycle_per_s"] for row in rows],
        "lone_ratio": [row["lone_us"] / row["bare_us"] for row in rows],
    }
    spread = {f"{name}_spread": [min(values), max(values)] for name, values in ratios.items()}
    medians = {name: statistics.median(values) for name, values in ratios.items()}
    return {"repetitions": REPETITIONS, "envelopes": GROUP * GROUPS, **found, **medians, **spread}


def _repetition(folder: Path) -> dict[str, float]:
    row: dict[str, float] = {}
    count = GROUP * GROUPS
    row["one_by_one_per_s"] = count / _seconds(_one_by_one, folder / "single")
    row["grouped_per_s"] = count / _seconds(_grouped, folder / "grouped")
    row["one_by_one_cycle_per_s"] = count / _seconds(_one_by_one_cycle, folder / "single")
    row["grouped_cycle_per_s"] = count / _seconds(_grouped_cycle, folder / "grouped")
    row |= _lone(folder)
    return row


def _seconds(work: Callable[[Path], None], folder: Path) -> float:
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    started = time.perf_counter()
    work(folder)
    return time.perf_counter() - started


def _inbox(folder: Path) -> Inbox:
    return Inbox(folder, files=GroupingFiles(), clock=SystemClock(), entropy=SystemEntropy())


def _message(place: int) -> Envelope:
    return Envelope(
        id=f"m{place}",
        sender="author",
        to="agent0",
        kind="message",
        text="what happened since yesterday? " * 20,
        at=SystemClock().now(),
        idempotency_key=f"message:{place}",
    )


def _one_by_one(folder: Path) -> None:
    inbox = _inbox(folder)
    for place in range(GROUP * GROUPS):
        inbox.put(_message(place))


def _one_by_one_cycle(folder: Path) -> None:
    inbox = _inbox(folder)
    for place in range(GROUP * GROUPS):
        inbox.put(_message(place + 1_000_000))
        for item in inbox.claim(1):
            inbox.archive(item)


def _grouped(folder: Path) -> None:
    inbox = _inbox(folder)
    for first in range(0, GROUP * GROUPS, GROUP):
        inbox.put_each([_message(first + place) for place in range(GROUP)])


def _grouped_cycle(folder: Path) -> None:
    inbox = _inbox(folder)
    for first in range(0, GROUP * GROUPS, GROUP):
        inbox.put_each([_message(1_000_000 + first + place) for place in range(GROUP)])
        inbox.archive_all(inbox.claim(GROUP))


def _lone(folder: Path) -> dict[str, float]:
    """Take turns, put by put, so that both meet the same moments of the disk."""
    bare = folder / "bare"
    bare.mkdir(mode=0o700)
    (folder / "lone").mkdir(mode=0o700)

    inbox = _inbox(folder / "lone")
    ours, theirs = [], []
    for place in range(LONE):
        message = _message(place)
        started = time.perf_counter()
        inbox.put(message)
        ours.append(time.perf_counter() - started)
        data = encode(message)
        started = time.perf_counter()
        _bare_put(bare, place, data)
        theirs.append(time.perf_counter() - started)
    return {"lone_us": statistics.median(ours) * 1e6, "bare_us": statistics.median(theirs) * 1e6}


def _bare_put(folder: Path, place: int, data: bytes) -> None:
    temporary, target = f"{folder}/.{place}.tmp", f"{folder}/{place}.json"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    os.write(descriptor, data)
    os.fsync(descriptor)
    os.close(descriptor)
    os.link(temporary, target)
    os.unlink(temporary)  # noqa: PTH108  the bare call
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    os.fsync(descriptor)
    os.close(descriptor)


def main() -> None:
    """Print a table."""
    found = measure()
    print(f"bus of files, {found['envelopes']} envelopes of 600 bytes, medians of {found['repetitions']}")
    rows = (
        ("put", "one_by_one_per_s", "grouped_per_s", "grouped_ratio"),
        ("put + claim + archive", "one_by_one_cycle_per_s", "grouped_cycle_per_s", "cycle_ratio"),
    )
    for label, single, grouped, ratio in rows:
        low, high = found[f"{ratio}_spread"]
        print(
            f"{label:<22} one by one {found[single]:>7.0f}/s   grouped {found[grouped]:>7.0f}/s"
            f"   x {found[ratio]:.2f} ({low:.2f} to {high:.2f})"
        )
    low, high = found["lone_ratio_spread"]
    print(
        f"{'lone put':<22} bare calls {found['bare_us']:>6.0f} us   ours    {found['lone_us']:>6.0f} us"
        f"    x {found['lone_ratio']:.2f} ({low:.2f} to {high:.2f})"
    )


if __name__ == "__main__":
    main()
