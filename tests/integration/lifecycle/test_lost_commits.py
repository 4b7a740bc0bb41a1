"""A runner's store that lost its last commits, without a word from SQLite: no task loses its schedule, none fires twice."""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest

from tests.support.constellation import AGENT_RUNTIME, TASK_RUNNER, Constellation
from turnkeeper.bus.event_log import read_events
from turnkeeper.clock import SystemClock
from turnkeeper.config.home import Home
from turnkeeper.times import rfc3339

pytestmark = pytest.mark.process

TASKS = {
    "latest": ("--catch-up", "run-once", "--grace", "1s"),
    "all": ("--catch-up", "run-all", "--grace", "1s"),
    "on-time": ("--catch-up", "skip", "--grace", "5m"),
    "with-values": ("--catch-up", "run-once", "--grace", "1s", "--prompt", "It is {{ time }}."),
}


@pytest.fixture
def machine(home: Home) -> Iterator[Constellation]:
    made = Constellation(home)
    made.start()
    yield made
    made.stop()


def copied(path: Path, to: Path) -> Path:
    """Copy a store that is in use, as of its last commit."""
    with closing(sqlite3.connect(path)) as store, closing(sqlite3.connect(to)) as copy:
        store.backup(copy)
    return to


def losing(machine: Constellation, tmp_path: Path, act: Callable[[], None]) -> None:
    """Do something, then kill both daemons, and put the runner's store back as it was before."""
    store = machine.home.schedules_db
    before = copied(store, tmp_path / "before.db")
    act()
    for daemon in (TASK_RUNNER, AGENT_RUNTIME):
        machine.kill(daemon)
    for file in store.parent.glob(f"{store.name}*"):
        file.unlink()
    copied(before, store)


def turns(machine: Constellation) -> list[str]:
    return sorted(turn["fire_id"] for turn in machine.ask("agent-runtime", "turns", "list"))


def test_fires_that_the_runtime_had_accepted_are_taken_over_whatever_the_policy(
    machine: Constellation, tmp_path: Path
) -> None:
    due = (SystemClock().now() + timedelta(seconds=8)).replace(microsecond=0)
    for name, options in TASKS.items():
        machine.create(name, "--every", "1h", "--start", rfc3339(due), *options)
    machine.create("once", "--at", rfc3339(due), "--grace", "1s")
    machine.create("follows", "--after", "once")
    names = [*TASKS, "once", "follows"]

    def all_run() -> None:
        for name in names:
            machine.await_outcome(name, "succeeded")

    losing(machine, tmp_path, all_run)
    before = turns(machine)
    assert len(before) == len(names)
    machine.until("the fires to be missed", lambda: SystemClock().now() > due + timedelta(seconds=2))
    machine.start()
    all_run()
    assert turns(machine) == before, "nothing fires twice"
    for name in names:
        (fire,) = machine.history(name)
        assert fire["outcome"] == "succeeded"
        assert machine.ask("task-runner", "show", name)["state"] == ("done" if name == "once" else "active")
        said = machine.command("turnkeeper", "task", "explain", name)
        assert "last commits of the task runner's store lost" in said
        assert f"agent-runtime had accepted {fire['fire_id']}" in " ".join(said.split())
    events = [event["fire_id"] for event in read_events(machine.home.logs) if event["event"] == "fire.taken_over"]
    assert sorted(events) == before


def test_a_quarantined_task_is_named_by_status_and_doctor(machine: Constellation) -> None:
    machine.create("daily", "--every", "1h")
    with closing(sqlite3.connect(machine.home.schedules_db)) as store:
        machine.stop(TASK_RUNNER)
        store.execute("UPDATE tasks SET state = 'quarantined', reason = 'its fire is another one'")
        store.commit()
    machine.command("turnkeeper", "up")
    for command in ("status", "doctor"):
        done = machine.attempt("turnkeeper", command)
        said = " ".join((done.stdout + done.stderr).split())
        assert "task daily is quarantined: its fire is another one" in said, command
        assert "turnkeeper task resume daily" in said, command


def test_pauses_and_stops_by_budgets_are_named_by_status_and_doctor(machine: Constellation) -> None:
    for name in ("daily", "weekly", "spent"):
        machine.create(name, "--every", "1h")
    for name in ("daily", "weekly"):
        machine.command("task-runner", "pause", name, "--until", "2099-12-01T08:00:00Z", "--note", "on a journey")
    machine.stop(TASK_RUNNER)
    with closing(sqlite3.connect(machine.home.schedules_db)) as store:
        budget = "UPDATE tasks SET state = 'paused', reason = 'budget: 2 used', wake_us = NULL WHERE name = 'spent'"
        store.execute(budget)
        store.commit()
    machine.command("turnkeeper", "up")
    (found,) = [row for row in machine.ask("turnkeeper", "status") if row["process"] == "task-runner"]
    until = "paused until 2099-12-01T08:00:00Z (on a journey): daily, weekly"
    assert sorted(found["markers"]) == [until, "paused until you resume it (budget: 2 used): spent"]
    for command in ("status", "doctor"):
        done = machine.attempt("turnkeeper", command)
        said = " ".join((done.stdout + done.stderr).split())
        assert done.returncode == 0
        assert "(on a journey): daily, weekly" in said, command
        assert "(budget: 2 used): spent" in said, command
        assert "see: turnkeeper task list --state paused" in said, command
