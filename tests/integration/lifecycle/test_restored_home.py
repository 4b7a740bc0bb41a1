"""A restored home waits until somebody says that its original runs no more."""

import os
from collections.abc import Iterator

import pytest

from tests.support.constellation import AGENT_RUNTIME, TASK_RUNNER, Constellation
from turnkeeper.config.home import Home
from turnkeeper.storage.locking import is_held

pytestmark = pytest.mark.process


@pytest.fixture
def original(home: Home) -> Iterator[Constellation]:
    made = Constellation(home)
    yield made
    made.stop()


@pytest.fixture
def copy(original: Constellation) -> Iterator[Constellation]:
    """A second home, restored from a backup of the first, which goes on running."""
    original.command("turnkeeper", "up", "2")
    original.create("digest", "--every", "1s", "--catch-up", "run-all")
    original.await_outcome("digest", "succeeded")
    backup = original.home.root.parent / "backup"
    original.command("turnkeeper", "backup", str(backup))
    made = Constellation(Home(root=original.home.root.parent / "copy"), os.environ)
    done = made.attempt("turnkeeper", "restore", str(backup))
    assert done.returncode == 0
    assert "turnkeeper up --takeover" in done.stderr
    yield made
    made.stop()


def test_nothing_runs_on_a_restored_home_until_it_is_taken_over(original: Constellation, copy: Constellation):
    before = copy.history("digest")
    for command in (("up",), ("up", "--foreground")):
        done = copy.attempt("turnkeeper", *command)
        assert (done.returncode, "turnkeeper up --takeover" in done.stderr) == (4, True), command
    for program in ("task-runner", "agent-runtime"):
        done = copy.attempt(program, "serve")
        assert (done.returncode, "turnkeeper up --takeover" in done.stderr) == (4, True), program
    for argv in (("turnkeeper", "status"), ("turnkeeper", "doctor"), ("task-runner", "list")):
        done = copy.attempt(*argv)
        assert done.returncode == 0, argv
        assert "turnkeeper up --takeover" in " ".join((done.stdout + done.stderr).split()), argv
        assert "restored from a backup" in " ".join((done.stdout + done.stderr).split()), argv
        assert str(original.home.root) in " ".join((done.stdout + done.stderr).split()), argv
    assert not any(is_held(copy.home, daemon.name) for daemon in (AGENT_RUNTIME, TASK_RUNNER))
    assert copy.history("digest") == before
    original.await_outcome("digest", "succeeded", len(original.fires("digest")) + 1)

    done = copy.attempt("turnkeeper", "up", "--takeover")
    assert (done.returncode, f"runs on another copy of this home, {original.home.root}" in done.stderr) == (4, True)
    assert copy.home.restored.exists()
    original.command("turnkeeper", "down")
    copy.command("turnkeeper", "up", "--takeover")
    done = original.attempt("turnkeeper", "up")
    assert (done.returncode, f"runs on another copy of this home, {copy.home.root}" in done.stderr) == (4, True)
    copy.await_outcome("digest", "succeeded", len(before) + 1)
    assert "restored" not in copy.attempt("turnkeeper", "status").stderr
    copy.command("turnkeeper", "down")
    copy.command("turnkeeper", "up")
    workers = [row["value"] for row in copy.ask("turnkeeper", "config", "show") if row["key"].endswith(".workers")]
    assert workers == [2], "the number of workers is part of the backup"
