"""Real daemons on stores whose pages are damaged: at their start, and while they run under a supervisor."""

import hashlib
import os
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.constellation import AGENT_RUNTIME, TASK_RUNNER, Constellation
from tests.support.forked_daemons import fork_server
from turnkeeper.config.home import Home
from turnkeeper.constellation.supervisor import markers
from turnkeeper.constellation.supervisor.daemons import Daemon, log_of
from turnkeeper.errors import TurnkeeperError
from turnkeeper.rpc.channel import Caller, is_serving
from turnkeeper.v1.schedules_pb2 import CreateTaskRequest, ListTasksRequest, TaskSpec

pytestmark = pytest.mark.process
SEEDS = range(6)
PAGE = 4096


@pytest.fixture
def constellation(home: Home) -> Iterator[Constellation]:
    made = Constellation(home)
    yield made
    made.stop()


def stores(home: Home) -> dict[Path, Daemon]:
    return {home.schedules_db: TASK_RUNNER, home.agent_db: AGENT_RUNTIME, home.checkpoints_db: AGENT_RUNTIME}


def fill(constellation: Constellation) -> None:
    """Leave a little of everything in all three stores, in their own files."""
    constellation.start()
    constellation.create("digest", "--every", "1s")
    constellation.await_outcome("digest", "succeeded", 3)
    constellation.stop(AGENT_RUNTIME, TASK_RUNNER)
    for path in stores(constellation.home):
        with closing(sqlite3.connect(path)) as store:
            assert store.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0] == 0


def noise(seed: str) -> bytes:
    return hashlib.shake_256(seed.encode()).digest(PAGE)


def garble(path: Path, *pages: int) -> None:
    with path.open("r+b") as file:
        for page in pages:
            file.seek(page * PAGE)
            file.write(noise(f"{path.name} {page}"))


def start(constellation: Constellation, daemon: Daemon) -> str:
    """Start a daemon; return the last line that it said before it ended, empty where it serves."""
    home, log = constellation.home, log_of(constellation.home, daemon)
    log.write_text("")
    pid = fork_server().start(home, daemon.name, log, os.environ)
    constellation.until("its decision", lambda: log.read_text().endswith("\n") or is_serving(home.socket(daemon.name)))
    if is_serving(home.socket(daemon.name)):
        fork_server().kill(pid)
        return ""
    fork_server().kill(pid)
    return log.read_text().splitlines()[-1]


def test_a_daemon_refuses_to_start_on_any_damaged_page_and_names_the_file(constellation: Constellation):
    fill(constellation)
    refused = 0
    for path, daemon in stores(constellation.home).items():
        whole, made = path.read_bytes(), constellation.home.store_made(path.name).read_bytes()
        for seed in SEEDS:
            garble(path, int.from_bytes(noise(f"{path.name} {seed}")[:4]) % (len(whole) // PAGE))
            with closing(sqlite3.connect(path)) as store:
                try:
                    sound = store.execute("PRAGMA integrity_check(1)").fetchone() == ("ok",)
                except sqlite3.DatabaseError:
                    sound = False
            said = start(constellation, daemon)
            if not sound:  # a page that nothing uses may say anything
                refused += 1
                assert said.startswith(f"error: {path}: cannot be read as a store: "), (path.name, seed)
                assert said.endswith("turnkeeper down && turnkeeper restore DIR")
            else:
                assert said == "", (path.name, seed)
            for left in path.parent.glob(f"{path.name}-*"):
                left.unlink()
            path.write_bytes(whole)
            constellation.home.store_made(path.name).write_bytes(made)  # or it would be an older copy
    assert refused > len(SEEDS), "most pages are used"


def test_damage_that_shows_while_it_runs_ends_the_runner_pages_and_heals_by_a_restore(constellation: Constellation):
    home = constellation.home
    pages = home.root.parent / "pages"
    home.config.write_text(f"[watchdog]\ncommand = 'echo \"$TURNKEEPER_TEXT\" >> {pages}'\n")
    constellation.start()
    runner = Caller(home)
    for number in range(60):
        spec = TaskSpec(name=f"task-{number}", category="catch-up-summary", channel="general", cron="0 7 * * *")
        spec.prompt = "Water the beds. " * 1000
        runner.CreateTask(CreateTaskRequest(spec=spec))
    constellation.stop(AGENT_RUNTIME, TASK_RUNNER)
    backup = home.root.parent / "backup"
    constellation.command("turnkeeper", "backup", str(backup))
    constellation.command("turnkeeper", "up")
    size = home.schedules_db.stat().st_size // PAGE
    garble(home.schedules_db, *range(size // 2, size))
    with pytest.raises(TurnkeeperError):
        runner.ListTasks(ListTasksRequest())
    runner.close()
    loop = markers.CRASH_LOOP.at(home, process=TASK_RUNNER.name)
    constellation.until("the watchdog to give up", loop.exists)
    assert str(home.schedules_db) in loop.read_text()
    constellation.until("the page", lambda: pages.exists() and str(home.schedules_db) in pages.read_text())
    assert "turnkeeper restore DIR" in pages.read_text()
    assert pages.read_text().count("\n") == 1, "one page, however often it was tried"
    for command in ("status", "doctor"):
        done = constellation.attempt("turnkeeper", command, "-o", "json")
        assert done.returncode == 6
    done = constellation.attempt("turnkeeper", "status")
    assert str(home.schedules_db) in done.stderr
    done = constellation.attempt("task-runner", "list")
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: {home.schedules_db}: ")
    constellation.command("turnkeeper", "down")
    constellation.command("turnkeeper", "restore", str(backup))
    constellation.command("turnkeeper", "up", "--takeover")
    assert len(constellation.ask("task-runner", "list")) == 60
    shutil.rmtree(backup)


def test_stores_that_are_removed_under_the_daemons_are_put_back_and_everything_goes_on(constellation: Constellation):
    home = constellation.home
    constellation.command("turnkeeper", "up")
    constellation.create("digest", "--every", "1s")
    constellation.await_outcome("digest", "succeeded", 2)
    for file in [*home.schedules_db.parent.glob("*.db"), *home.schedules_db.parent.glob("*.db-*")]:
        file.unlink()
    stores = (home.schedules_db, home.agent_db, home.checkpoints_db)
    serving = [home.socket(daemon.name) for daemon in (AGENT_RUNTIME, TASK_RUNNER)]
    constellation.until(
        "the stores to be back", lambda: all(store.exists() for store in stores) and all(map(is_serving, serving))
    )
    before = len(constellation.fires("digest"))
    constellation.await_outcome("digest", "succeeded", before + 2)
    assert constellation.violations() == []
