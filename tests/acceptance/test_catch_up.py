"""What was missed, for whatever cause, is planned by the task's policy."""

from datetime import datetime
from typing import Any

import pytest

from constellation.processes import Daemon
from tests.support.constellation import AGENT_RUNTIME, TASK_RUNNER, Constellation

pytestmark = pytest.mark.process

POLICIES = ("skip", "run-once", "run-all")
DOWN_S = 5.0


def span(entry: dict[str, Any]) -> tuple[str, str]:
    return entry["first_nominal_at"], entry["last_nominal_at"]


@pytest.mark.parametrize("down", [TASK_RUNNER, AGENT_RUNTIME], ids=lambda daemon: daemon.name)
def test_each_policy_does_what_it_says(constellation: Constellation, down: Daemon) -> None:
    for policy in POLICIES:
        constellation.create(policy, "--every", "1s", "--grace", "1s", "--catch-up", policy)
        constellation.until_outcome(policy, "succeeded")
    constellation.stop(down)
    constellation.pass_time(DOWN_S)
    constellation.start(down)
    constellation.pass_time(2.5)
    for policy in POLICIES:
        constellation.command("task-runner", "disable", policy)
    for policy in POLICIES:
        constellation.until_settled(policy, 3)

    skip, once, every = (constellation.history(policy) for policy in POLICIES)
    missed = [entry for entry in skip if entry["reason"] == "missed"]
    assert [entry["count"] >= 3 for entry in missed] == [True], skip

    (stood_for,) = [entry for entry in once if entry["count"] >= 3 and entry["outcome"] == "succeeded"]
    assert stood_for["nominal_at"] == stood_for["last_nominal_at"], "it is named by the latest"
    (turn,) = [turn for turn in constellation.conversation(limit=1000) if turn["turn_id"] == stood_for["turn_id"]]
    assert turn["trigger"]["stands_for"] == stood_for["count"]

    ran = [entry for entry in every if entry["outcome"] == "succeeded"]
    assert all(entry["count"] == 1 for entry in ran)
    by_nominal = sorted(ran, key=lambda entry: entry["nominal_at"])
    assert by_nominal == sorted(ran, key=lambda entry: entry["started_at"]), "in order"
    nominals = [datetime.fromisoformat(entry["nominal_at"]) for entry in by_nominal]
    assert (nominals[-1] - nominals[0]).total_seconds() == len(nominals) - 1, "every one of them"
    assert constellation.violations() == []


def test_skip_skips_also_behind_a_turn_that_a_crash_cut(stopped: Constellation) -> None:
    stopped.start(TURNKEEPER_OFFLINE_DELAY_S="0.5")
    stopped.create("digest", "--every", "2s", "--grace", "1s", "--catch-up", "skip")
    stopped.until_outcome("digest", "running")
    stopped.kill(AGENT_RUNTIME)
    stopped.pass_time(7.0)
    stopped.start(AGENT_RUNTIME)
    stopped.until("the missed ones", lambda: any(fire.reason == "missed" for fire in stopped.fires("digest")))
    stopped.command("task-runner", "disable", "digest")
    stopped.until_settled("digest", 2)
    *_, missed, cut = stopped.history("digest")
    assert (cut["outcome"], cut["count"]) == ("succeeded", 1)
    assert (missed["outcome"], missed["reason"]) == ("skipped", "missed")
    assert missed["count"] >= 3
    assert stopped.violations() == []
