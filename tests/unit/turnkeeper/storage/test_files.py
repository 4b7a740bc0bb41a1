"""A small file survives a power cut, because the file is synced, and then its folder."""

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from turnkeeper.config.home import Home
from turnkeeper.constellation.supervisor.up_down import ask_for_workers
from turnkeeper.constellation.upkeep.cordon import Here

FILE_AND_FOLDER = ["file", "folder"]


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is synced, in order."""
    found, sync = list[str](), os.fsync

    def noted(descriptor: int) -> None:
        found.append("folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file")
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    return found


@pytest.mark.parametrize(
    ("write", "path"),
    [(lambda home: Here(home).begin(), "cordon"), (lambda home: ask_for_workers(home, 3), "workers")],
)
def test_a_small_file_and_its_name_are_synced(
    home: Home, synced: list[str], write: Callable[[Home], object], path: str
) -> None:
    write(home)
    written: Path = getattr(home, path)
    assert written.read_text()
    assert stat.S_IMODE(written.stat().st_mode) == 0o600
    assert synced == FILE_AND_FOLDER


def test_the_end_of_a_cordon_is_synced(home: Home, synced: list[str]) -> None:
    cordon = Here(home)
    assert not cordon.end()
    cordon.begin()
    assert cordon.end()
    assert synced == [*FILE_AND_FOLDER, "folder"]
