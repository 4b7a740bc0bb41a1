"""A start stops if a store is missing, empty, older or another home's, until the author accepts the loss."""

import json
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.constellation import AGENT_RUNTIME, TASK_RUNNER, Constellation
from tests.support.machines import new_home
from turnkeeper.bus.event_log import read_events
from turnkeeper.config.home import Home
from turnkeeper.constellation.supervisor import markers

pytestmark = pytest.mark.process

DELETERS = ("task-runner", "agent-runtime", "watchdog")
STORES = ("schedules.db", "agent.db", "checkpoints.db")
PAST_ITS_CATEGORY = "Summarise the garden, then remember: the pump was replaced"


@pytest.fixture(scope="session")
def of_before() -> Iterator[Home]:
    """A home that has run, with an approval that waits."""
    with new_home() as home:
        made = Constellation(home)
        made.start()
        made.create("daily", "--in", "1s", "--prompt", PAST_ITS_CATEGORY)
        made.until_outcome("daily", "interrupted")
        made.stop()
        yield home


@pytest.fixture
def used(of_before: Home, home: Home) -> Iterator[Constellation]:
    """A copy of the home that has run; nothing runs on it."""
    shutil.copytree(of_before.root, home.root, dirs_exist_ok=True)
    made = Constellation(home)
    yield made
    made.stop()


def remove(path: Path) -> None:
    for file in path.parent.glob(f"{path.name}*"):
        file.unlink()


def refused(constellation: Constellation, name: str, what: str) -> None:
    """Insist that nothing starts, and that every command says which store is why, and what to do."""
    for argv in (("turnkeeper", "up"), ("turnkeeper", "doctor")):
        done = constellation.attempt(*argv)
        said = " ".join((done.stdout + done.stderr).split())
        assert done.returncode, argv
        assert f"{name}: {what}" in said, argv
        assert f"turnkeeper restore --lost {name}" in said, argv
        assert "turnkeeper down && turnkeeper restore DIR" in said, argv
    done = constellation.attempt("turnkeeper", "audit", "verify")
    assert (done.returncode, f"{name}: {what}" in done.stdout) == (1, True)
    assert not markers.WANTED.at(constellation.home).exists()


@pytest.mark.parametrize("name", STORES)
def test_a_store_that_is_missing_or_empty_stops_the_start(used: Constellation, name: str):
    path = used.home.run.parent / name
    remove(path)
    refused(used, name, "is missing; it held ")
    path.touch(mode=0o600)
    refused(used, name, "is empty; it held ")
    program = "task-runner" if name == "schedules.db" else "agent-runtime"
    done = used.attempt(program, "serve")
    assert (done.returncode, f"{path}: is empty" in done.stderr) == (1, True)
    if name != "checkpoints.db":
        asked = ("list",) if name == "schedules.db" else ("turns", "list")
        remove(path)
        done = used.attempt(program, *asked)
        assert (done.returncode, f"{path}: is missing" in done.stderr) == (1, True)


def of_another_home(path: Path) -> None:
    with closing(sqlite3.connect(path)) as store:
        store.execute("PRAGMA application_id=12345")


def cut_off(path: Path) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as store:
        store.execute("DELETE FROM audit WHERE number = (SELECT max(number) - 1 FROM audit)")


@pytest.mark.parametrize(
    ("name", "change", "what"),
    [
        *((name, of_another_home, "is not the store of this home") for name in STORES),
        *((name, cut_off, "lacks its last records: it ends at record ") for name in STORES[:2]),
    ],
)
def test_another_homes_store_and_one_that_is_older_than_its_signed_heads_stop_the_start(
    used: Constellation, name: str, change: Callable[[Path], None], what: str
):
    change(used.home.run.parent / name)
    refused(used, name, what)


@pytest.mark.parametrize("name", STORES)
def test_an_older_copy_stops_the_start_and_a_restored_backup_does_not(used: Constellation, name: str, tmp_path: Path):
    path, backup = used.home.run.parent / name, tmp_path / "backup"
    used.command("turnkeeper", "backup", str(backup))
    used.start()
    used.stop()
    remove(path)
    shutil.copy(backup / "state" / name, path)
    refused(used, name, "is an older copy: it was used 1 times, and the home's store 2 times")
    used.command("turnkeeper", "restore", str(backup))
    used.command("turnkeeper", "up", "--takeover")
    assert [row["name"] for row in used.ask("task-runner", "list")] == ["daily"]
    used.command("turnkeeper", "down")
    assert used.attempt("turnkeeper", "audit", "verify").returncode == 0


@pytest.mark.parametrize("name", STORES)
def test_the_author_may_go_on_without_a_store_and_that_stays_on_record(used: Constellation, name: str):
    done = used.attempt("turnkeeper", "restore", "--lost", name)
    assert (done.returncode, "not known to lack anything" in done.stderr) == (4, True)
    remove(used.home.run.parent / name)
    used.command("turnkeeper", "restore", "--lost", name)
    used.command("turnkeeper", "up")
    if name == "checkpoints.db":
        used.until_outcome("daily", "cancelled")
        assert used.history("daily")[0]["reason"] == "the state of its conversation is lost"
    used.command("turnkeeper", "down")
    done = used.attempt("turnkeeper", "audit", "verify")
    assert f"{name} is missing; it held " in done.stdout
    assert "the author accepted that" in done.stdout
    assert "cut off" not in done.stdout
    acts = [event for event in read_events(used.home.logs) if event.get("method") == "turnkeeper restore --lost"]
    assert [act["subject"].startswith(name) for act in acts] == [True]
    used.command("turnkeeper", "up")


@pytest.mark.parametrize("name", STORES)
def test_a_damaged_frame_of_the_log_after_a_kill_is_noticed_and_what_is_lost_is_named(used: Constellation, name: str):
    path, log = used.home.run.parent / name, used.home.run.parent / f"{name}-wal"
    used.start()
    used.create("often", "--every", "1s")
    used.await_outcome("often", "succeeded", 3)
    for daemon in (AGENT_RUNTIME, TASK_RUNNER):
        used.kill(daemon)
    data = bytearray(log.read_bytes())
    place = 32 + 4120 * (len(data) // 4120 // 4) + 2000
    data[place] ^= 1
    log.write_bytes(data)
    refused(used, name, "lost ")
    said = used.attempt("turnkeeper", "up").stderr
    assert f"commits or more behind a damaged frame of {name}-wal" in said
    named = {"schedules.db": "task-", "agent.db": "turn-", "checkpoints.db": ""}[name]
    assert (f", among them {named}" in said) is bool(named)
    used.command("turnkeeper", "restore", "--lost", name)
    assert path.with_name(f"{name}-wal.lost").read_bytes() == data
    used.command("turnkeeper", "up")
    succeeded = len([fire for fire in used.history("often") if fire["outcome"] == "succeeded"])
    used.await_outcome("often", "succeeded", succeeded + 2)
    used.command("turnkeeper", "down")
    assert f"{name} lost " in used.attempt("turnkeeper", "audit", "verify").stdout


@pytest.mark.parametrize("name", STORES)
def test_a_home_of_an_earlier_version_notices_a_missing_store_by_the_others(used: Constellation, name: str):
    """Such a home has neither numbers nor notes, and the oldest have no signed heads."""
    home = used.home
    for each in STORES:
        home.store_made(each).unlink()
        with closing(sqlite3.connect(home.run.parent / each)) as store:
            store.execute("PRAGMA application_id=0")
    home.audit_heads.unlink(missing_ok=True)
    used.start()
    used.stop()
    assert all(home.store_made(each).exists() for each in STORES), "the first start takes the stores for the home's own"
    home.store_made(name).unlink()
    home.audit_heads.unlink(missing_ok=True)
    remove(home.run.parent / name)
    refused(used, name, "is missing; it held ")


def test_every_process_that_deletes_by_age_waits_if_the_clock_stepped_while_it_was_down(used: Constellation):
    home = used.home
    used.command("turnkeeper", "up")
    used.until("the times", lambda: all(home.time_seen(process).exists() for process in DELETERS))
    used.command("turnkeeper", "down")
    for process in DELETERS:
        told = json.loads(home.time_seen(process).read_bytes())
        home.time_seen(process).write_text(json.dumps(told | {"at": told["at"] - 122 * 86_400}))
    used.command("turnkeeper", "up")
    named = lambda: {event["process"] for event in read_events(home.logs) if event["event"] == "pruning.held"}  # noqa: E731
    used.until("the events", lambda: named() == set(DELETERS))
    done = used.attempt("turnkeeper", "status")
    assert (done.returncode, done.stderr.count("deletes no old history: the clock stepped forward")) == (0, 3)
    assert "deletes no old history: the clock stepped from" in used.command("turnkeeper", "events")
