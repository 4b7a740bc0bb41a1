"""An answered put survives a power cut: the disk is copied as it is at the answer, checked as at a boot, and looked at."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.inboxes import message
from turnkeeper.bus.durable_writes import GroupingFiles
from turnkeeper.bus.envelope import encode
from turnkeeper.bus.inbox import Inbox, Put
from turnkeeper.clock import SystemClock
from turnkeeper.entropy import SystemEntropy

pytestmark = pytest.mark.process
_SIZE = 16 << 20
_REPAIRED = 1  # e2fsck corrected errors


def run(*command: object) -> int:
    return subprocess.run([str(part) for part in command], capture_output=True, check=False).returncode


@contextmanager
def mounted(image: Path, folder: Path) -> Iterator[Path]:
    folder.mkdir()
    if os.geteuid() != 0 or run("mount", "-o", "loop", image, folder) != 0:
        pytest.skip("mounting an image of a disk needs root and loop devices")
    try:
        yield folder
    finally:
        assert run("umount", folder) == 0


@pytest.mark.parametrize("count", [1, 6])
@pytest.mark.parametrize("journal", ["has_journal", "^has_journal"])
def test_an_envelope_that_was_answered_for_is_there_after_a_power_cut(journal: str, count: int, tmp_path: Path) -> None:
    disk, after = tmp_path / "disk", tmp_path / "after"
    disk.write_bytes(b"")
    os.truncate(disk, _SIZE)
    if run("mkfs.ext4", "-q", "-F", "-O", journal, disk) != 0:
        pytest.skip("mkfs.ext4 is absent")
    messages = [message(f"m{number}-{'x' * 200}", key=f"k{number}") for number in range(count)]
    with mounted(disk, tmp_path / "before"):
        folder = tmp_path / "before" / "agent0"
        folder.mkdir(mode=0o700)
        inbox = Inbox(folder, files=GroupingFiles(), clock=SystemClock(), entropy=SystemEntropy())
        subprocess.run(["sync", "-f", folder], check=True)  # the folders are older than the envelopes
        answers = inbox.put_each(messages)
        assert all(isinstance(answer, Put) for answer in answers), answers
        subprocess.run(["cp", "--sparse=always", disk, after], check=True)
    assert run("e2fsck", "-f", "-y", after) in {0, _REPAIRED}
    with mounted(after, tmp_path / "boot"):
        found = {path.name: path.read_bytes() for path in (tmp_path / "boot" / "agent0" / "inbox").glob("[!.]*")}
    assert found == {
        answer.name: encode(one) for answer, one in zip(answers, messages, strict=True) if isinstance(answer, Put)
    }
