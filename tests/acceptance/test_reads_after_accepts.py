"""Reads right after a run was accepted: each has the run, its category and its assistant, though no machine began it."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.constellation import AGENT_RUNTIME
from tests.support.langgraph import Lg, constellation_with_web, said
from tests.support.machines import TwoMachines
from tests.support.postgres import Server

pytestmark = pytest.mark.process
CATEGORY = "conversation"


@pytest.fixture(scope="module")
def lg(postgres_server: Server | None) -> Iterator[Lg]:
    with constellation_with_web(postgres_server) as made:
        yield made


def accepted(lg: Lg, thread: str) -> str:
    """Return a run that was accepted on a thread."""
    body = {"assistant_id": "agent0", "input": said("Hello"), "metadata": {"by": "me"}}
    return str(lg.ask("POST", f"/threads/{thread}/runs", body)["run_id"])


def about(run: dict[str, Any]) -> tuple[str, str, str, str]:
    metadata = run["metadata"]
    return run["status"], metadata["turnkeeper"]["category"], metadata["graph_id"], metadata["by"]


def test_a_run_behind_a_pending_approval_is_listed_at_once_with_its_category(lg: Lg) -> None:
    thread = lg.waiting()["thread_id"]
    run = accepted(lg, thread)
    (listed, _) = lg.ask("GET", f"/threads/{thread}/runs")
    assert (listed["run_id"], about(listed)) == (run, ("pending", CATEGORY, "default", "me"))
    assert about(lg.ask("GET", f"/threads/{thread}/runs/{run}")) == about(listed)
    shown = lg.constellation.ask("agent-runtime", "turns", "show", run)
    assert shown["category"] == CATEGORY


def test_a_run_that_no_machine_has_begun_is_in_each_read(lg: Lg) -> None:
    if not isinstance(lg.constellation, TwoMachines):
        pytest.skip("of several machines, which share a server: --database postgres")
    thread = lg.thread()
    lg.constellation.worker.stop(AGENT_RUNTIME)
    try:
        first, second = accepted(lg, thread), accepted(lg, thread)
        listed = lg.ask("GET", f"/threads/{thread}/runs")
        assert [(run["run_id"], about(run)) for run in listed] == [
            (run, ("pending", CATEGORY, "default", "me")) for run in (second, first)
        ]
        assert about(lg.ask("GET", f"/threads/{thread}/runs/{first}")) == about(listed[1])
        assert lg.ask("GET", f"/threads/{thread}")["status"] == "busy"
        assert lg.constellation.ask("agent-runtime", "turns", "show", first)["category"] == CATEGORY
        refused = {"assistant_id": "agent0", "input": said("Me, too"), "multitask_strategy": "reject"}
        lg.refused("POST", f"/threads/{thread}/runs", refused, status=409)
    finally:
        lg.constellation.worker.start(AGENT_RUNTIME)
    lg.ask("GET", f"/threads/{thread}/runs/{second}/join")
    assert [run["status"] for run in lg.ask("GET", f"/threads/{thread}/runs")] == ["success", "success"]
