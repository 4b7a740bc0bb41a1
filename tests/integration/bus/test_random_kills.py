"""Kill -9 at random among real writers and readers: nothing lost, nothing torn, each key once.

`BUS_CHAOS_SECONDS=60 BUS_CHAOS_WRITERS=100 BUS_CHAOS_READERS=4` makes it a longer run.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.bus import chaos

ROOT = Path(__file__).parents[3]
SECONDS = min(60.0, float(os.environ.get("BUS_CHAOS_SECONDS", "2.5")))
MOST_ROUNDS = 12
WRITERS = os.environ.get("BUS_CHAOS_WRITERS", "6")
READERS = os.environ.get("BUS_CHAOS_READERS", "3")
pytestmark = [pytest.mark.process, pytest.mark.timeout(240)]


@pytest.fixture
def folder() -> Iterator[Path]:
    """A kill leaves what the kernel was told, wherever that lies: memory keeps the disk's speed out of the run."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as name:
        yield Path(name)


def run(folder: Path, seconds: float, writers: str, readers: str, *broken: str) -> dict:
    command = [
        sys.executable,
        "-m",
        "tests.integration.bus.chaos",
        str(folder),
        str(seconds),
        writers,
        readers,
        *broken,
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def fresh(folder: Path, number: int) -> Path:
    made = folder / str(number)
    made.mkdir()
    return made


def test_no_kill_loses_tears_or_doubles_an_envelope(folder: Path) -> None:
    found = run(folder, SECONDS, WRITERS, READERS)
    assert found["wrong"] == [], found
    assert found["kills"] > 3, found
    assert found["answered"] > 20, found
    assert found["keys"] > 3, found


@pytest.mark.parametrize(
    ("broken", "seen"),
    [("keys", "took effect"), ("torn", "quarantine holds"), ("lost", "lies in 0 places")],
)
def test_the_checker_sees_a_guard_that_is_gone(folder: Path, broken: str, seen: str) -> None:
    # Where a kill strikes is chance; a few rounds are given to it to strike where the guard stood.
    rounds = (run(fresh(folder, number), 1.0, "4", "2", broken) for number in range(MOST_ROUNDS))
    assert any(seen in item for found in rounds for item in found["wrong"])


def test_a_line_that_a_kill_cut_was_not_said(folder: Path) -> None:
    (folder / "read-1.jsonl").write_text('{"key": "a"}\n{"key": "b')
    assert chaos.read_trails(folder, "read") == [{"key": "a"}]
