"""Replays: each seed in two new processes, whose logs must be the same, byte for byte.

The two have different hash seeds and folders for temporary files. A log has the notes of the run, with each
statement of a store and its values, each message on a connection, and each change of a file of envelopes.
"""

import os
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import zip_longest
from pathlib import Path
from typing import Any
from unittest.mock import patch

from tests.simulation.loop import Loop

ROOT = Path(__file__).parents[2]
FOLDERS = ("one", "two")  # of one length, which stands before each path in a message


@contextmanager
def statements(loop: Loop) -> Iterator[None]:
    """Note each statement of SQLite, with its values, within the block, if the notes are kept."""
    connect, loops = sqlite3.connect, [loop]

    def note(statement: str) -> None:
        for one in loops:
            one.detail("runs", statement.replace("\n", " "))

    def traced(*given: Any, **options: Any) -> sqlite3.Connection:
        connection = connect(*given, **options)
        connection.set_trace_callback(note)
        return connection

    if loop.lines is None:
        yield
        return
    try:
        with patch.object(sqlite3, "connect", traced), patch.object(sqlite3.dbapi2, "connect", traced):
            yield
    finally:
        loops.clear()  # the garbage collector does not see what a connection calls


def written(lines: Sequence[str]) -> bytes:
    """Return the bytes of a log."""
    return "\n".join(lines).encode(errors="backslashreplace")


def log_of(seeds: range, options: Sequence[str], folder: Path, hash_seed: int) -> bytes:
    """Run seeds in a new process, and return their log. Raises CalledProcessError if the process ends without one."""
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "log"
    command = [sys.executable, "-m", "tests.simulation", "--seeds", f"{seeds.start}:{seeds.stop}", "--trace", str(log)]
    environ = os.environ | {"PYTHONHASHSEED": str(hash_seed), "TMPDIR": str(folder)}
    command += ["--reduce", "0", *options]
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False)
    if not log.exists():
        raise subprocess.CalledProcessError(done.returncode, command, done.stdout, done.stderr)
    found = log.read_bytes()
    log.unlink()
    return found


def replay(seeds: range, options: Sequence[str], memory: str | None, say: Callable[[str], None]) -> int:
    """Run each seed twice, and return how many had two logs. Of such a seed, print the first lines that differ."""
    differ = lines = size = 0
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        for seed in seeds:
            one, other = (
                log_of(range(seed, seed + 1), options, Path(folder) / name, 1 + 2 * seed + number)
                for number, name in enumerate(FOLDERS)
            )
            count = one.count(b"\n") + 1
            differ, lines, size = differ + (one != other), lines + count, size + len(one)
            say(f"{seed} {'same' if one == other else 'DIFFERENT'}: {count} lines, {len(one)} bytes")
            for first, second in list(differing(one, other))[:3]:
                say(f"    {first[:1500]!r}\n    {second[:1500]!r}")
    say(f"{len(seeds)} seeds replayed, {differ} different; {lines} lines, {size} bytes")
    return differ


def differing(one: bytes, other: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the pairs of lines that differ."""
    pairs = zip_longest(one.split(b"\n"), other.split(b"\n"), fillvalue=b"")
    return ((first, second) for first, second in pairs if first != second)
