"""Damaged SQLite files: what is found, how soon, and who is told."""

import errno
import hashlib
import os
import sqlite3
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from tests.support.clock import ManualClock
from turnkeeper.errors import Corrupt, MachineTrouble, unopened
from turnkeeper.storage import damage
from turnkeeper.storage.damage import StoreWatch, damage_of, is_malformed, judged, refuse_damaged, trouble_of

PAGE = 4096


def make(path: Path, rows: int = 400) -> Path:
    with closing(sqlite3.connect(path)) as store:
        store.execute("PRAGMA journal_mode=WAL")
        store.execute("CREATE TABLE notes (number INTEGER PRIMARY KEY, name TEXT NOT NULL, body BLOB NOT NULL)")
        store.execute("CREATE INDEX by_name ON notes (name)")
        given = ((f"name {number:06}", bytes(500)) for number in range(rows))
        store.executemany("INSERT INTO notes (name, body) VALUES (?, ?)", given)
        store.commit()
    return path


def garble(path: Path, page: int, seed: int = 1) -> None:
    with path.open("r+b") as file:
        file.seek(page * PAGE)
        file.write(hashlib.shake_256(bytes([seed])).digest(PAGE))


class Ended(Exception):
    """The process would have ended."""


def watching(*paths: Path) -> tuple[StoreWatch, list[Corrupt]]:
    told: list[Corrupt] = []

    def end(error: Corrupt) -> None:
        raise Ended(str(error))

    return StoreWatch(*paths, report=told.append, end=end), told


def malformed(path: Path) -> sqlite3.DatabaseError:
    """Touch the damage, as a daemon does that has opened the store before."""
    with closing(sqlite3.connect(path)) as store, pytest.raises(sqlite3.DatabaseError) as caught:
        store.execute("SELECT count(body), sum(length(name)) FROM notes WHERE body IS NOT NULL").fetchone()
    return caught.value


def test_every_page_of_a_store_counts(tmp_path: Path):
    whole = make(tmp_path / "whole.db").read_bytes()
    for page in range(len(whole) // PAGE):
        path = tmp_path / "damaged.db"
        path.write_bytes(whole)
        garble(path, page, seed=page)
        with pytest.raises(Corrupt) as caught:
            refuse_damaged(path)
        assert caught.value.where == str(path)
        assert "restore" in caught.value.hint


def test_a_sound_store_one_that_is_not_there_and_an_empty_one_are_taken(tmp_path: Path):
    assert refuse_damaged(make(tmp_path / "sound.db"))
    assert refuse_damaged(tmp_path / "absent.db")
    (tmp_path / "empty.db").touch()
    assert refuse_damaged(tmp_path / "empty.db")


def test_a_store_too_large_to_read_at_once_is_read_on_behind_the_daemons_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    path = make(tmp_path / "large.db")
    garble(path, path.stat().st_size // PAGE // 2)
    monkeypatch.setattr(damage, "damage_of", lambda path, within_s=None, **how: None if within_s else damage_of(path))
    watch, told = watching(path)
    ended = monkeypatch.setattr(watch, "_end", told.append)
    assert ended is None
    with watch:
        while len(told) < 2:  # reported, then ended
            pass
    assert told[0].where == str(path)
    assert (tmp_path / "large.db.damaged").exists()


def test_reading_ends_when_its_time_is_over(tmp_path: Path):
    path = make(tmp_path / "store.db", rows=50_000)
    assert damage_of(path, within_s=0.0) is None
    assert damage_of(path) == ""


def test_damage_that_shows_later_ends_the_process_and_leaves_a_note(tmp_path: Path):
    path = make(tmp_path / "store.db")
    watch, told = watching(path)
    with watch:
        garble(path, 5)
        error = malformed(path)
        assert is_malformed(error)
        with pytest.raises(Ended, match=str(path)):
            judged(error, str(path))
    assert [one.where for one in told] == [str(path)]
    assert (tmp_path / "store.db.damaged").read_text()


def test_a_disk_that_fails_again_and_again_has_the_stores_read_every_few_seconds_only(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
):
    damaged, whole = make(tmp_path / "damaged.db"), make(tmp_path / "whole.db")
    garble(damaged, 5)
    error, read = malformed(damaged), list[Path]()
    monkeypatch.setattr(damage, "damage_of", lambda path, **_how: read.append(path))
    watch = StoreWatch(whole, report=print, clock=clock)
    monkeypatch.setattr(StoreWatch, "active", watch)
    for _ in range(10):
        judged(error, str(whole))
    assert len(read) == 1
    clock.advance(damage.LOOK_AGAIN_S)
    judged(error, str(whole))
    assert len(read) == 2


def test_an_index_that_contradicts_its_table_is_damage_too(tmp_path: Path):
    path = make(tmp_path / "store.db")
    with closing(sqlite3.connect(path)) as store:
        store.execute("PRAGMA writable_schema=ON")
        store.execute("CREATE TABLE other (number INTEGER PRIMARY KEY, name TEXT NOT NULL, body BLOB NOT NULL)")
        store.execute("CREATE INDEX other_name ON other (name)")
        root = "SELECT rootpage FROM sqlite_master WHERE name = ?"
        (empty,) = store.execute(root, ("other_name",)).fetchone()
        store.execute("UPDATE sqlite_master SET rootpage = ? WHERE name = 'by_name'", (empty,))
        store.commit()
    watch, _ = watching(path)
    StoreWatch.active = watch
    try:
        with pytest.raises(Ended):
            watch.look()
    finally:
        StoreWatch.active = None


@pytest.mark.parametrize(
    "error", [sqlite3.OperationalError("disk I/O error"), ValueError("malformed")], ids=["machine", "other"]
)
def test_an_error_that_says_nothing_of_damage_is_not_looked_into(
    tmp_path: Path, error: Exception, monkeypatch: pytest.MonkeyPatch
):
    path = make(tmp_path / "store.db")
    watch, told = watching(path)
    with watch:
        garble(path, 5)
        assert judged(error, str(path)) is error
    assert told == []


def test_a_store_that_is_whole_is_believed_and_not_the_error(tmp_path: Path):
    damaged, whole = make(tmp_path / "damaged.db"), make(tmp_path / "whole.db")
    garble(damaged, 5)
    watch, told = watching(whole)
    with watch:
        judged(malformed(damaged), str(damaged))
    assert told == []


def test_after_damage_the_next_start_reads_everything_and_forgets_the_note_of_a_sound_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    path = make(tmp_path / "store.db")
    note = tmp_path / "store.db.damaged"
    note.write_text("found before\n")
    asked: list[float | None] = []

    def read(path: Path, *, within_s: float | None = None) -> str | None:
        asked.append(within_s)
        return damage_of(path)

    monkeypatch.setattr(damage, "damage_of", read)
    assert refuse_damaged(path)
    assert not note.exists()
    assert asked == [None]


def test_a_command_which_has_no_watch_is_told_of_the_file(tmp_path: Path):
    path = make(tmp_path / "store.db")
    garble(path, 5)
    told = judged(malformed(path), str(path))
    assert isinstance(told, Corrupt)
    assert told.where == str(path)


@pytest.mark.parametrize("removed", [("", "-wal", "-shm"), ("",), ("-wal",)])
def test_a_store_that_is_removed_while_it_is_in_use_is_put_back(tmp_path: Path, removed: tuple[str, ...]):
    path = make(tmp_path / "store.db")
    watch, told = watching(path)
    with watch, closing(sqlite3.connect(path)) as store:
        store.execute("SELECT 1 FROM notes").fetchone()
        watch.keep()
        store.execute("INSERT INTO notes (name, body) VALUES ('a', x'00')")
        store.commit()
        watch.keep()
        for suffix in removed:
            path.with_name(f"store.db{suffix}").unlink()
        store.execute("INSERT INTO notes (name, body) VALUES ('b', x'00')")
        store.commit()
        with pytest.raises(Ended, match="was removed while it was in use; it was restored"):
            watch.keep()
        copy = tmp_path / "copy.db"
        for suffix in ("", "-wal"):
            copy.with_name(f"copy.db{suffix}").write_bytes(path.with_name(f"store.db{suffix}").read_bytes())
    with closing(sqlite3.connect(copy)) as found:
        assert found.execute("SELECT count(*) FROM notes WHERE name IN ('a', 'b')").fetchone() == (2,)
    assert len(told) == 1


def test_a_store_that_is_replaced_while_it_is_in_use_is_kept_beside_the_other(tmp_path: Path):
    path, other = make(tmp_path / "store.db"), make(tmp_path / "other.db", rows=3)
    watch, _ = watching(path)
    with watch, closing(sqlite3.connect(path)) as store:
        store.execute("SELECT 1 FROM notes").fetchone()
        watch.keep()
        theirs = other.read_bytes()
        other.rename(path)
        with pytest.raises(Ended, match=r"store\.db\.saved"):
            watch.keep()
        assert path.read_bytes() == theirs
    with closing(sqlite3.connect(tmp_path / "store.db.saved")) as found:
        assert found.execute("SELECT count(*) FROM notes").fetchone() == (400,)


def test_without_room_to_put_a_store_back_the_process_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = make(tmp_path / "store.db")
    watch, told = watching(path)
    with watch, closing(sqlite3.connect(path)) as store:
        store.execute("SELECT 1 FROM notes").fetchone()
        watch.keep()
        path.unlink()
        with monkeypatch.context() as full:
            full.setattr(
                damage.os, "fsync", lambda _held: (_ for _ in ()).throw(OSError(28, "No space left on device"))
            )
            with pytest.raises(OSError, match="No space"):
                watch.keep()
        assert told == []
        with pytest.raises(Ended, match="restored"):
            watch.keep()


def test_a_page_that_the_disk_refuses_is_no_damage_of_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite calls such a page malformed, in the store in use and in the check of it alike."""
    path = make(tmp_path / "store.db")
    garble(path, 5)
    error = malformed(path)

    def refuse(*_given: int) -> bytes:
        raise OSError(errno.EIO, "Input/output error")

    watch, told = watching(path)
    monkeypatch.setattr(StoreWatch, "active", watch)
    with monkeypatch.context() as failing:
        failing.setattr(os, "pread", refuse)
        trouble = trouble_of(path)
        assert judged(error, str(path)) is error
        assert isinstance(unopened(judged(error, str(path)), str(path), "a store"), MachineTrouble)
        assert refuse_damaged(path) is False, "it is read again behind the daemon's back"
    assert isinstance(trouble, MachineTrouble)
    assert "restore" not in str(trouble)
    assert told == []
    assert isinstance(trouble_of(path), Corrupt)


def test_a_full_disk_has_the_logs_of_all_stores_of_the_process_emptied(tmp_path: Path):
    paths = [tmp_path / "one.db", tmp_path / "other.db"]
    logs = [path.with_name(f"{path.name}-wal") for path in paths]
    with ExitStack() as opened:
        for path in paths:
            store = opened.enter_context(closing(sqlite3.connect(path, isolation_level=None)))
            store.execute("PRAGMA journal_mode=WAL")
            store.execute("CREATE TABLE rows (text)")
            store.execute("INSERT INTO rows VALUES (?)", ["x" * 9000])
        store.execute("PRAGMA max_page_count=1")
        with pytest.raises(sqlite3.OperationalError, match="full") as full:
            store.execute("INSERT INTO rows VALUES (?)", ["x" * 90_000])
        assert judged(full.value, "") is full.value
        assert all(log.stat().st_size for log in logs), "no process that owns the stores"
        with StoreWatch(*paths, report=print):
            assert judged(full.value, "") is full.value
        assert not any(log.stat().st_size for log in logs)
        assert [damage_of(path) for path in paths] == ["", ""]
