"""The processes' own output: the last lines of each log, and what is added to them."""

from collections.abc import Iterator
from pathlib import Path

from turnkeeper.clock import SystemClock

_POLL_S = 0.2
_BLOCK_BYTES = 64 * 1024


def last_lines(path: Path, count: int) -> tuple[list[str], int]:
    """Return the last `count` whole lines of a log and the offset after them, reading no more than they take."""
    with path.open("rb") as file:
        at = file.seek(0, 2)
        data = b""
        while at > 0 and data.count(b"\n") <= count:
            step = min(_BLOCK_BYTES, at)
            at -= step
            file.seek(at)
            data = file.read(step) + data
    whole, _, _ = data.rpartition(b"\n")
    lines = whole.split(b"\n") if whole else []
    end = at + len(whole) + (1 if whole or data.startswith(b"\n") else 0)
    return [line.decode(errors="replace") for line in lines[max(0, len(lines) - count) :]], end


def follow(folder: Path, ends: dict[Path, int], clock: SystemClock) -> Iterator[tuple[Path, str]]:
    """Yield (log, line) for ever as whole lines are added; a log that shrank is read from its start."""
    while True:
        for path in sorted(folder.glob("*.log")):
            start = ends.get(path, 0)
            with path.open("rb") as file:
                if file.seek(0, 2) < start:
                    start = 0
                file.seek(start)
                whole, newline, _ = file.read().rpartition(b"\n")
            ends[path] = start + len(whole) + len(newline)
            for line in whole.split(b"\n") if newline else ():
                yield path, line.decode(errors="replace")
        clock.block(_POLL_S)
