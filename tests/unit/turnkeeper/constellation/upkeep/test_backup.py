"""A backup holds one moment; a restore takes nothing that is not whole, and removes nothing."""

import errno
import os
import sqlite3
import threading
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.support.seeded_entropy import SeededEntropy
from turnkeeper.bus.envelope import Envelope
from turnkeeper.bus.inbox import FOLDERS, Inbox
from turnkeeper.clock import SystemClock
from turnkeeper.config.home import Home
from turnkeeper.constellation.supervisor.up_down import ask_for_workers
from turnkeeper.constellation.upkeep.backup import MANIFEST, back_up, back_up_among, check_backup, restore
from turnkeeper.errors import Conflict, Corrupt, InvalidInput
from turnkeeper.storage import sqlite_files
from turnkeeper.storage.files import SystemFiles
from turnkeeper.storage.locking import ProcessLock

AT = datetime(2026, 3, 2, 9, 0, tzinfo=UTC)


@pytest.fixture
def target(home: Home) -> Path:
    return home.root.parent / "backup"


def store(path: Path) -> sqlite3.Connection:
    made = sqlite3.connect(path, isolation_level=None, timeout=30, check_same_thread=False)
    made.execute("PRAGMA journal_mode=WAL")
    made.execute("CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value TEXT)")
    made.execute("CREATE TABLE IF NOT EXISTS n (n INTEGER)")
    return made


def count(path: Path) -> int:
    with closing(sqlite3.connect(path)) as opened:
        (found,) = opened.execute("SELECT count(*) FROM n").fetchone()
    return int(found)


def inbox(home: Home) -> Inbox:
    return Inbox(home.inbox("agent0"), files=SystemFiles(), clock=SystemClock(), entropy=SeededEntropy(1))


def envelope(number: int) -> Envelope:
    return Envelope(id=f"e{number}", sender="author", to="agent0", kind="message", text="hello", at=AT)


def filled(home: Home) -> Home:
    for path in (home.schedules_db, home.agent_db, home.checkpoints_db):
        with closing(store(path)) as made:
            made.execute("INSERT INTO n VALUES (1)")
            made.execute("INSERT INTO meta VALUES ('incarnation', 'old')")
    home.config.write_text("[scheduler]\n")
    ask_for_workers(home, 3)
    inbox(home).put(envelope(1))
    return home


def test_the_runtimes_stores_are_of_one_instant_while_they_are_written(home: Home, target: Path):
    agent, checkpoints = store(home.agent_db), store(home.checkpoints_db)
    going, done = threading.Event(), threading.Event()

    def write() -> None:
        for number in range(100_000):
            if done.is_set():
                return
            agent.execute("INSERT INTO n VALUES (?)", (number,))
            checkpoints.execute("INSERT INTO n VALUES (?)", (number,))
            going.set()

    writer = threading.Thread(target=write)
    writer.start()
    going.wait()
    try:
        for _ in range(500):
            with sqlite_files.snapshots([home.agent_db, home.checkpoints_db]) as readers:
                seen = [reader.execute("SELECT count(*) FROM n").fetchone()[0] for reader in readers.values()]
            assert seen[0] - seen[1] in {0, 1}, "the one is written before the other"
        back_up(home, target, AT)
    finally:
        done.set()
        writer.join()
        agent.close()
        checkpoints.close()
    assert count(target / "state" / "agent.db") - count(target / "state" / "checkpoints.db") in {0, 1}


def test_an_envelope_that_moves_meanwhile_is_in_the_copy_once(home: Home, target: Path):
    bus = inbox(home)
    for number in range(60):
        bus.put(envelope(number))
    stop = threading.Event()

    def move() -> None:
        while not stop.is_set() and (taken := bus.claim(1)):
            bus.archive_all(taken)

    mover = threading.Thread(target=move)
    mover.start()
    back_up(home, target, AT)
    stop.set()
    mover.join()
    names = [name for folder in FOLDERS for name in os.listdir(target / "channels/agent/agent0" / folder)]
    assert len(names) == len(set(names)) == 60


def test_a_backup_becomes_a_home(home: Home, target: Path):
    back_up(filled(home), target, AT)
    other = Home(root=home.root.parent / "other")
    assert restore(other, target, AT) is None
    other.check()
    assert inbox(other).claim(10)[0].envelope.id == "e1"
    assert other.config.read_text() == "[scheduler]\n"
    assert count(other.schedules_db) == 1
    with closing(sqlite3.connect(other.agent_db)) as opened:
        assert opened.execute("SELECT * FROM meta").fetchall() == [], "the runtime draws a new incarnation"
    assert not (other.root / MANIFEST).exists()
    assert other.workers.read_text() == home.workers.read_text()


def test_of_the_backups_that_a_timer_makes_the_newest_are_kept_and_nothing_else_goes(home: Home, target: Path):
    filled(home)
    target.mkdir()
    for name in ("by-hand", "20260101T000000Z"):  # the second bears such a name, and is no backup
        (target / name).mkdir()
    made = [back_up_among(home, target, AT + timedelta(days=day), keep=2) for day in range(4)]
    kept = {path.name for path in target.iterdir()}
    assert kept == {"by-hand", "20260101T000000Z", "20260304T090000Z", "20260305T090000Z"}
    check_backup(made[-1])


def test_nothing_is_written_over_and_nothing_removed(home: Home, target: Path):
    back_up(filled(home), target, AT)
    with pytest.raises(Conflict):
        back_up(home, target, AT)
    home.config.write_text("# newer\n")
    aside = restore(home, target, AT)
    assert aside is not None
    assert (aside / "config.toml").read_text() == "# newer\n"
    assert home.config.read_text() == "[scheduler]\n"


@pytest.mark.parametrize("process", ["supervisor", "agent-runtime", "task-runner"])
def test_a_live_home_is_not_touched(home: Home, target: Path, process: str):
    back_up(filled(home), target, AT)
    with ProcessLock(home, process), pytest.raises(Conflict, match=process):
        restore(home, target, AT)
    assert home.config.exists()
    assert [path.name for path in home.root.parent.iterdir() if "restoring" in path.name] == []


def test_a_backup_that_was_changed_is_refused_before_anything_is_touched(home: Home, target: Path):
    back_up(filled(home), target, AT)
    for change, says in (
        (lambda: (target / "config.toml").write_text("[other]\n"), "changed"),
        ((target / "config.toml").unlink, "missing"),
    ):
        change()
        with pytest.raises(Corrupt, match=says):
            restore(home, target, AT)
    (target / MANIFEST).write_text("{")
    with pytest.raises(InvalidInput, match="not a backup"):
        check_backup(target)
    assert home.config.read_text() == "[scheduler]\n"


def test_a_damaged_store_makes_no_backup(home: Home, target: Path):
    filled(home)
    with home.schedules_db.open("r+b") as file:
        file.seek(100)
        file.write(b"\xff" * 3000)
    with pytest.raises(Corrupt):
        back_up(home, target, AT)
    assert not target.exists()


def test_what_a_backup_holds_only_its_owner_can_read(home: Home, target: Path):
    back_up(filled(home), target, AT)
    assert {path.stat().st_mode & 0o077 for path in [target, *target.rglob("*")]} == {0}


@pytest.mark.parametrize("place", ["/proc/copy", "/proc/copy/of", "/dev/null/copy"])
def test_a_place_that_takes_no_directory_is_refused_by_name(home: Home, place: str):
    with pytest.raises(InvalidInput, match="no directory can be made in it") as caught:
        back_up(filled(home), Path(place), AT)
    assert caught.value.where == str(Path(place).parent)


def test_a_folder_that_cannot_be_read_is_not_left_out_of_a_backup(
    home: Home, target: Path, monkeypatch: pytest.MonkeyPatch
):
    scan = os.scandir

    def refuse(path: Any) -> Any:
        if str(path).endswith("/categories"):
            raise OSError(errno.EIO, "Input/output error", str(path))
        return scan(path)

    filled(home).categories.mkdir(exist_ok=True)
    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(OSError, match="categories"):
        back_up(home, target, AT)
    assert not target.exists()
