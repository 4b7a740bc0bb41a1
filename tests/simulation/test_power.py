"""A power cut loses names, bytes and writes that were not synced, and nothing else."""

import random  # noqa: TID251  seeded
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.simulation.disk import Disk, SimulatedFiles, under_sqlite
from turnkeeper.storage.files import SystemFiles, create


class All(random.Random):
    """A draw that keeps nothing of what was not synced."""

    def randint(self, a: int, _b: int) -> int:
        return a


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    made = Disk(lambda *_what: None)
    made.memory.stash = tmp_path / "stash"
    made.memory.stash.mkdir()
    (tmp_path / "home" / "inbox").mkdir(parents=True)
    (tmp_path / "home" / "claimed").mkdir()
    with made.memory.watched(), under_sqlite(made):
        yield made


def names(home: Path) -> list[str]:
    return sorted(str(path.relative_to(home)) for path in home.rglob("*.json"))


def test_a_name_is_lost_until_its_folder_is_synced(disk: Disk, tmp_path: Path) -> None:
    home, files = tmp_path / "home", SimulatedFiles(disk)
    files.write_synced(home / "inbox/kept.json", b"kept")
    files.sync_folder(home / "inbox")
    files.write_synced(home / "inbox/lost.json", b"lost")
    disk.memory.cut(home, All())
    assert names(home) == ["inbox/kept.json"]


def test_a_move_and_a_removal_are_undone_until_a_folder_is_synced(disk: Disk, tmp_path: Path) -> None:
    home, files = tmp_path / "home", SimulatedFiles(disk)
    for name in ("moved", "removed"):
        files.write_synced(home / f"inbox/{name}.json", name.encode())
    files.sync_folder(home / "inbox")
    files.rename(home / "inbox/moved.json", home / "claimed/moved.json")
    files.unlink(home / "inbox/removed.json")
    disk.memory.cut(home, All())
    assert names(home) == ["inbox/moved.json", "inbox/removed.json"]
    assert (home / "inbox/moved.json").read_bytes() == b"moved"


def test_bytes_that_were_not_synced_are_lost_though_the_name_is_there(
    disk: Disk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, files = tmp_path / "home", SimulatedFiles(disk)
    files.write_synced(home / "inbox/synced.json", b"synced")
    monkeypatch.setattr(SystemFiles, "write_synced", lambda _self, path, data: create(path, data, sync=False))
    files.write_synced(home / "inbox/not.json", b"not synced")
    files.sync_folder(home / "inbox")
    disk.memory.cut(home, All())
    assert (home / "inbox/synced.json").read_bytes() == b"synced"
    assert (home / "inbox/not.json").read_bytes() == b""


@pytest.mark.parametrize(("mode", "left"), [("FULL", [1, 2]), ("OFF", [])])
def test_a_commit_survives_if_it_was_synced(disk: Disk, tmp_path: Path, mode: str, left: list[int]) -> None:
    store = tmp_path / "home" / "schedules.db"
    with closing(sqlite3.connect(store, isolation_level=None)) as first:
        first.execute("PRAGMA journal_mode=WAL")
        first.execute("CREATE TABLE known (number)")
        first.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        first.execute(f"PRAGMA synchronous={mode}")
        for number in (1, 2):
            first.execute("INSERT INTO known VALUES (?)", (number,))
        disk.memory.cut(tmp_path / "home", All())
        with closing(sqlite3.connect(store)) as later:
            assert [row[0] for row in later.execute("SELECT number FROM known")] == left
