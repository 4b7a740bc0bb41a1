"""The real daemons, supervised: killed while tasks fire, backed up while they run, put back."""

from collections.abc import Iterator

import pytest

from constellation import markers
from tests.support.constellation import AGENT_RUNTIME, Constellation
from turnkeeper.home import Home

pytestmark = pytest.mark.process


@pytest.fixture
def constellation(home: Home) -> Iterator[Constellation]:
    made = Constellation(home)
    made.command("turnkeeper", "init")
    yield made
    made.stop()


def settle(constellation: Constellation) -> None:
    constellation.command("task-runner", "disable", "digest")
    constellation.until_settled("digest")
    assert constellation.violations() == []


def test_killed_while_tasks_fire_and_put_back_from_a_backup(constellation: Constellation):
    constellation.command("turnkeeper", "up")
    constellation.create("digest", "--every", "1s", "--catch-up", "run-all")
    constellation.await_outcome("digest", "succeeded", 2)
    killed = constellation.kill(AGENT_RUNTIME)
    target = constellation.home.root.parent / "backup"
    constellation.command("turnkeeper", "backup", str(target))
    constellation.await_outcome("digest", "succeeded", len(constellation.fires("digest")) + 1)
    (row,) = [row for row in constellation.ask("turnkeeper", "status") if row["process"] == AGENT_RUNTIME.name]
    assert row["state"] == "running"
    assert row["pid"] != killed
    constellation.until("the handoff", lambda: list(markers.found(constellation.home, markers.ARCHIVE)))
    settle(constellation)

    constellation.command("turnkeeper", "restore", str(target), code=4)
    constellation.command("turnkeeper", "down")
    constellation.command("turnkeeper", "restore", str(target))
    constellation.command("turnkeeper", "up")
    constellation.await_outcome("digest", "succeeded", len(constellation.fires("digest")) + 1)
    settle(constellation)
