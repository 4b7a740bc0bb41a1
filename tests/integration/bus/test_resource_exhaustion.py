"""No disk, no descriptors, no right to write: a typed error, nothing partial in sight, and work goes on afterwards."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
pytestmark = pytest.mark.process


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=768k,mode=0700", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("mounting a small tmpfs needs root")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def run(folder: Path, kind: str) -> dict:
    command = [sys.executable, "-m", "tests.integration.bus.exhausted", str(folder), kind]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def check(found: dict) -> None:
    assert found["errors"], "it was never refused"
    assert set(found["errors"]) == {"MachineTrouble"}
    assert found["there"] == sorted(found["answered"]), "what is visible is what was answered for"
    assert found["claimed"] == [*found["answered"], found["after"]], "all of it arrives, and what was put afterwards"
    assert found["hidden"] == found["quarantined"] == []


def test_a_full_disk(small_disk: Path) -> None:
    check(run(small_disk, "disk"))


def test_no_descriptors_left(tmp_path: Path) -> None:
    found = run(tmp_path, "descriptors")
    assert found["errors"] == ["MachineTrouble"] * 2
    check(found)


def test_a_folder_that_may_not_be_written() -> None:
    with tempfile.TemporaryDirectory(prefix="tk-") as name:
        Path(name).chmod(0o777)
        found = run(Path(name), "read-only")
        assert found["errors"] == ["MachineTrouble"] * 3
        check(found)
