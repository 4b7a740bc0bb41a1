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


RECORDS_NO_TOOLS = {"0.1.0-711df1fd"}  # builds that recorded an approval without the values of its tool


def name_of(path: Path) -> str:
    return path.name.removesuffix(".tar.xz")


@pytest.fixture(params=KILLED, ids=name_of)
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


def approve(home: Constellation, asked: dict[str, Any], *options: str) -> None:
    home.command("agent-runtime", "approvals", "approve", asked["interrupt_id"], *options)
    home.command("turnkeeper", "audit", "verify")


def test_turns_continue_and_an_approval_of_a_build_that_recorded_no_tool_is_asked_again_with_a_reason(
    killed: Constellation, request: pytest.FixtureRequest
) -> None:
    asks_again = name_of(request.node.callspec.params["killed"]) in RECORDS_NO_TOOLS
    (killed.home.root / "project" / "open").touch()
    killed.command("turnkeeper", "up")
    killed.command("turnkeeper", "audit", "verify")
    for task in ("runs", "queues"):
        killed.until_outcome(task, "succeeded")
    caught_up = asked_of(killed, "catches-up")
    killed.command("task-runner", "pause", "catches-up")
    approve(killed, caught_up)
    killed.until_outcome("catches-up", "succeeded")

    first = asked_of(killed, "asks")
    approve(killed, first)
    if asks_again:
        anew = killed.until("the question that is asked again", lambda: _other(asked_of(killed, "asks"), first))
        assert "an earlier version asked, which did not record the tool's values" in anew["question"]
        approve(killed, anew)
    killed.until_outcome("asks", "succeeded")

    killed.command("task-runner", "run", "excepted")
    if asks_again:
        why = "an earlier version made it, and that version did not record the values of the tool send_mail"
        question = asked_of(killed, "excepted")
        assert question["question"].endswith(f"; standing exception 1 ended: {why}")
        (ended,) = killed.ask("agent-runtime", "approvals", "exceptions", "list", "--all")
        assert (ended["uses"], ended["ended_why"]) == (1, why)
        approve(killed, question, "--for-task")
    killed.until_outcome("excepted", "succeeded", 3)
    killed.command("task-runner", "run", "excepted", "--wait")
    killed.command("turnkeeper", "audit", "verify")
    (*_, exception) = killed.ask("agent-runtime", "approvals", "exceptions", "list")
    assert exception["uses"] == (1 if asks_again else 3)
    assert killed.violations() == []


def _other(asked: dict[str, Any], before: dict[str, Any]) -> dict[str, Any] | None:
    return None if asked["interrupt_id"] == before["interrupt_id"] else asked
