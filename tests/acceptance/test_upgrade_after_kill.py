"""A home whose daemons of an earlier version were killed while turns ran goes on with today's code."""

import shutil
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.constellation import Constellation
from turnkeeper.config.home import Home

pytestmark = pytest.mark.process
KILLED = sorted((Path(__file__).parents[1] / "fixtures" / "homes" / "killed").glob("*.tar.xz"))


@pytest.fixture(params=KILLED, ids=lambda path: path.name.removesuffix(".tar.xz"))
def killed(request: pytest.FixtureRequest) -> Iterator[Constellation]:
    folder = Path(tempfile.mkdtemp(prefix="tk-"))
    with tarfile.open(request.param) as packed:
        packed.extractall(folder, filter="data")
    made = Constellation(Home(root=folder / "home"))
    yield made
    made.stop()
    shutil.rmtree(folder)


def asked_of(home: Constellation, task: str) -> dict[str, Any]:
    """Return the question of a task's turn, once there is one."""
    return home.until(
        f"{task} asks",
        lambda: next((one for one in home.ask("agent-runtime", "approvals", "list") if one["task_name"] == task), None),
    )


def test_turns_go_on_and_what_an_author_approved_before_is_asked_again_with_a_reason(killed: Constellation) -> None:
    (killed.home.root / "project" / "open").touch()
    killed.command("turnkeeper", "up")
    killed.command("turnkeeper", "audit", "verify")
    for task in ("runs", "queues"):
        killed.until_outcome(task, "succeeded")
    caught_up = asked_of(killed, "catches-up")
    killed.command("task-runner", "pause", "catches-up")
    killed.command("agent-runtime", "approvals", "approve", caught_up["interrupt_id"])
    killed.until_outcome("catches-up", "succeeded")

    first = asked_of(killed, "asks")
    killed.command("agent-runtime", "approvals", "approve", first["interrupt_id"])
    anew = killed.until("the question that is asked again", lambda: _other(asked_of(killed, "asks"), first))
    assert "an earlier version asked, which did not record the tool's values" in anew["question"]
    killed.command("agent-runtime", "approvals", "approve", anew["interrupt_id"])
    killed.until_outcome("asks", "succeeded")

    killed.command("task-runner", "run", "excepted")
    why = "an earlier version made it, which did not record what the tool send_mail holds"
    question = asked_of(killed, "excepted")
    assert question["question"].endswith(f"; standing exception 1 ended: {why}")
    (ended,) = killed.ask("agent-runtime", "approvals", "exceptions", "list", "--all")
    assert (ended["uses"], ended["ended_why"]) == (1, why)
    killed.command("agent-runtime", "approvals", "approve", question["interrupt_id"], "--for-task")
    killed.until_outcome("excepted", "succeeded", 3)
    killed.command("task-runner", "run", "excepted", "--wait")
    killed.command("turnkeeper", "audit", "verify")
    assert killed.violations() == []


def _other(asked: dict[str, Any], before: dict[str, Any]) -> dict[str, Any] | None:
    return None if asked["interrupt_id"] == before["interrupt_id"] else asked
