"""What was missed, for whatever cause, is planned by the task's policy."""

from datetime import datetime, timedelta
from typing import Any

import pytest

from examples.demo.driver import OPEN
from tests.support.constellation import AGENT_RUNTIME, TASK_RUNNER, Constellation
from turnkeeper.constellation.supervisor.daemons import Daemon

pytestmark = pytest.mark.process

POLICIES = ("skip", "run-once", "run-all")
DOWN_S = 5.0


@pytest.mark.parametrize("down", [TASK_RUNNER, AGENT_RUNTIME], ids=lambda daemon: daemon.name)
def test_each_policy_does_what_it_says(constellation: Constellation, down: Daemon) -> None:
    for policy in POLICIES:
        constellation.create(policy, "--every", "1s", "--grace", "1s", "--catch-up", policy)
        constellation.until_outcome(policy, "succeeded")
    constellation.stop(down)
    gone_at = constellation.now()
    constellation.pass_time(DOWN_S)
    back_at = constellation.now()
    constellation.start(down)
    # A busy machine may miss a nominal time of its own at any moment; what fell into the outage is missed for certain.
    outage = (gone_at, back_at - timedelta(seconds=1))
    for policy in POLICIES:
        constellation.until(
            f"{policy} to deal with the outage",
            lambda policy=policy: dealt_with(constellation.history(policy), outage),
        )
        constellation.command("task-runner", "disable", policy)
    for policy in POLICIES:
        constellation.until_settled(policy, 3)

    skip, once, every = (constellation.history(policy) for policy in POLICIES)
    (skipped,) = meeting(skip, outage)
    assert (skipped["outcome"], skipped["reason"]) == ("skipped", "missed")
    assert skipped["count"] >= 3

    (stood_for,) = meeting(once, outage)
    assert stood_for["outcome"] == "succeeded"
    assert stood_for["count"] >= 3
    assert stood_for["nominal_at"] == stood_for["last_nominal_at"], "it is named by the latest"
    (turn,) = [turn for turn in constellation.conversation(limit=1000) if turn["turn_id"] == stood_for["turn_id"]]
    assert turn["trigger"]["stands_for"] == stood_for["count"]

    assert len(meeting(every, outage)) >= 3
    assert {entry["outcome"] for entry in meeting(every, outage)} == {"succeeded"}
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
    stopped.until("a turn to run", lambda: any(fire.outcome == "running" for fire in stopped.fires("digest")))
    stopped.kill(AGENT_RUNTIME)
    gone_at = stopped.now()
    stopped.pass_time(7.0)
    back_at = stopped.now()
    stopped.start(AGENT_RUNTIME)
    outage = (gone_at, back_at - timedelta(seconds=1))
    stopped.until("the outage to be planned", lambda: settled(meeting(stopped.history("digest"), outage)))
    stopped.command("task-runner", "disable", "digest")
    stopped.until_settled("digest", 2)
    (missed,) = meeting(stopped.history("digest"), outage)
    assert (missed["outcome"], missed["reason"]) == ("skipped", "missed")
    assert missed["count"] >= 3
    assert not [entry for entry in stopped.history("digest") if entry["outcome"] in {"failed", "cancelled"}]
    assert stopped.violations() == []


def meeting(entries: list[dict[str, Any]], span: tuple[datetime, datetime]) -> list[dict[str, Any]]:
    """Return the entries that stand for a nominal time within the span; what was folded stands for none."""
    return [
        entry
        for entry in entries
        if entry["count"]
        and datetime.fromisoformat(entry["first_nominal_at"]) <= span[1]
        and datetime.fromisoformat(entry["last_nominal_at"]) > span[0]
    ]


def settled(entries: list[dict[str, Any]]) -> bool:
    return bool(entries) and not any(entry["outcome"] in OPEN for entry in entries)


def dealt_with(entries: list[dict[str, Any]], span: tuple[datetime, datetime]) -> bool:
    """Whether the entries of a task that is due each second account for a span up to its end."""
    found = meeting(entries, span)
    reached = [
        entry for entry in found if datetime.fromisoformat(entry["last_nominal_at"]) > span[1] - timedelta(seconds=1)
    ]
    return settled(found) and bool(reached)
