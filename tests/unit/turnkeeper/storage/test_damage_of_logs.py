"""Commits that SQLite forgets, because a frame of the write-ahead log before them is damaged, are counted."""

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from turnkeeper.storage.damage import commits_behind_damage

COMMITS, HEADER, FRAME = 6, 32, 24 + 4096


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    """A store whose process was killed after commits of several frames each."""
    path = tmp_path / "store.db"
    with closing(sqlite3.connect(tmp_path / "open.db", isolation_level=None)) as store:
        store.execute("PRAGMA journal_mode=WAL")
        store.execute("PRAGMA wal_autocheckpoint=0")
        store.execute("CREATE TABLE rows (number, text)")
        for number in range(COMMITS):
            write(store, number)
        copy(tmp_path / "open.db", path)
    return path


def write(store: sqlite3.Connection, number: int) -> None:
    store.execute("INSERT INTO rows VALUES (?, ?)", [number, "x" * 9000])


def copy(path: Path, to: Path) -> None:
    for end in ("", "-wal"):
        shutil.copy(f"{path}{end}", f"{to}{end}")


def log_of(path: Path) -> Path:
    return path.with_name(f"{path.name}-wal")


def kept(path: Path) -> int:
    """Return how many commits SQLite still finds, in a copy: opening a store may change its log."""
    copy(path, path.with_name("opened.db"))
    with closing(sqlite3.connect(path.with_name("opened.db"))) as store:
        tables = store.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        return int(store.execute("SELECT count(*) FROM rows").fetchone()[0]) + 1 if tables else 0


def flip(path: Path, place: int) -> None:
    data = bytearray(log_of(path).read_bytes())
    data[place] ^= 0x40
    log_of(path).write_bytes(data)


@pytest.mark.parametrize("field", [0, 4, 9, 13, 17, 21, 24, 24 + 4095])
def test_wherever_a_frame_is_damaged_the_commits_behind_it_are_counted(killed: Path, field: int):
    assert commits_behind_damage(killed) is None
    frames = (log_of(killed).stat().st_size - HEADER) // FRAME
    whole = log_of(killed).read_bytes()
    for number in range(frames):
        flip(killed, HEADER + number * FRAME + field)
        lost = COMMITS + 1 - kept(killed)
        found = commits_behind_damage(killed)
        if found is None:
            assert (lost, number) == (1, frames - 1), "the salts of the last frame, as at the end of a log"
        else:
            assert lost - 1 <= found <= lost, "of a commit whose last frame is damaged the mark is not trusted"
        log_of(killed).write_bytes(whole)


@pytest.mark.parametrize("place", [0, 9, 17, 30])
def test_a_damaged_header_forgets_all_commits(killed: Path, place: int):
    flip(killed, place)
    assert kept(killed) == 0
    assert (commits_behind_damage(killed) or 0) >= 2


def test_a_log_that_a_crash_cut_short_is_not_said_to_have_lost_commits(killed: Path):
    whole = log_of(killed).read_bytes()
    for length in range(0, len(whole), 509):
        log_of(killed).write_bytes(whole[:length])
        assert (commits_behind_damage(killed) or 0) == 0, length


def test_frames_of_before_a_checkpoint_and_of_what_was_taken_back_are_no_lost_commits(tmp_path: Path):
    path = tmp_path / "store.db"
    with closing(sqlite3.connect(tmp_path / "open.db", isolation_level=None)) as store:
        store.execute("PRAGMA journal_mode=WAL")
        store.execute("CREATE TABLE rows (number, text)")
        for number in range(COMMITS):
            write(store, number)
        store.execute("PRAGMA wal_checkpoint(RESTART)")
        write(store, COMMITS)
        copy(tmp_path / "open.db", path)
        assert commits_behind_damage(path) is None
        store.execute("PRAGMA cache_size=1")
        store.execute("BEGIN")
        for number in range(COMMITS):
            write(store, number)
        store.execute("ROLLBACK")
        store.execute("INSERT INTO rows VALUES (1, 'short')")
        copy(tmp_path / "open.db", path)
        assert (commits_behind_damage(path) or 0) == 0
