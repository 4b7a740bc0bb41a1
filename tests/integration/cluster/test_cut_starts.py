"""A daemon that loses its database in the midst of its start ends as one whose database does not answer."""

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.integration.cluster.shared import Cluster
from turnkeeper.errors import EXIT_UNREACHABLE

RUNNER, RUNTIME, PEERS = (
    "task_runner.daemon.__main__",
    "agent_runtime.daemon.__main__",
    "turnkeeper.constellation.peers.__main__",
)
pytestmark = pytest.mark.process


def walk(cluster: Cluster, module: str, *how: str) -> list[dict[str, Any]]:
    home = cluster.home(1)
    with home.config.open("a") as config:
        config.write('[peers]\nenabled = true\nlisten = "127.0.0.1:0"\n')
    command = [sys.executable, "-m", "tests.support.cut_starts", cluster.url, str(home.root), module, *how]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def judge(starts: list[dict[str, Any]]) -> None:
    """It came to serve, or ended by the code for which the supervisor waits and starts it again."""
    wrong = [one for one in starts if one["code"] not in {0, EXIT_UNREACHABLE} or "Traceback" in one["said"]]
    assert wrong == []
    assert any(one["code"] for one in starts)
    assert starts[-1]["code"] == 0, "the last one was not cut off"


@pytest.mark.parametrize(
    ("module", "first", "step"), [(RUNNER, "1", "1"), (RUNTIME, "1", "2"), (RUNTIME, "2", "2"), (PEERS, "1", "1")]
)
def test_a_start_that_is_cut_off_at_any_step_is_no_crash(cluster: Cluster, module: str, first: str, step: str) -> None:
    judge(walk(cluster, module, first, step))


def test_nor_is_one_that_is_cut_off_while_it_makes_the_tables(cluster: Cluster) -> None:
    judge(walk(cluster, RUNNER, "5", "29", "anew"))
