"""A call past the category waits for the author, and no other fire takes the question away."""

import re

import pytest

from tests.support.constellation import AGENT_RUNTIME, Constellation

pytestmark = pytest.mark.process

PAST_ITS_CATEGORY = "Summarise the garden, then remember: the pump was replaced"


def ask(constellation: Constellation) -> dict[str, str]:
    constellation.create("errand", "--in", "1s", "--prompt", PAST_ITS_CATEGORY, "--thread", "shared")
    constellation.until_outcome("errand", "interrupted")
    for outcome in ("waiting", "waits for you", "interrupted"):
        (waits,) = constellation.ask("turnkeeper", "task", "list", "--outcome", outcome)
        assert waits["name"] == "errand"
    assert constellation.ask("turnkeeper", "task", "list", "--outcome", "succeeded") == []
    refused = constellation.attempt("turnkeeper", "task", "list", "--outcome", "odd").stderr
    assert "there is no outcome 'odd'; one of accepted, cancelled" in refused
    (pending,) = constellation.ask("agent-runtime", "approvals", "list")
    return pending


def test_a_pending_approval_survives_another_tasks_fire_on_the_same_thread(constellation: Constellation) -> None:
    pending = ask(constellation)
    assert (pending["tool"], pending["missing_scope"]) == ("memory_put", "memory.put")

    constellation.create("other", "--in", "1s", "--thread", "shared")
    (held,) = constellation.until_outcome("other", "held")
    said = constellation.command("task-runner", "list") + constellation.command("task-runner", "history", "errand")
    assert said.count("waits for you") == 3, "the state and the result of a task, and the outcome of its fire"
    assert "interrupted" not in said
    assert constellation.ask("agent-runtime", "approvals", "list") == [pending]
    assert "1 decision waiting" in constellation.attempt("task-runner", "list").stderr
    assert len(constellation.conversation()) == 1

    constellation.command("agent-runtime", "approvals", "resolve", pending["interrupt_id"], "--approve")
    constellation.until_outcome("errand", "succeeded")
    (released,) = constellation.until_outcome("other", "succeeded")
    assert released["fire_id"] == held["fire_id"]
    assert released["attempt"] == held["attempt"] + 1
    assert constellation.ask("agent-runtime", "approvals", "list") == []
    assert constellation.violations() == []


def test_a_rejected_call_has_no_effect_and_the_turn_goes_on(constellation: Constellation) -> None:
    pending = ask(constellation)
    waits = constellation.command("turnkeeper", "task", "explain", "errand")
    assert "It asked you at " in waits
    assert 'text="the pump was replaced", tier="channel") needs memory.put' in waits
    (question,) = constellation.ask("turnkeeper", "task", "explain", "errand")["questions"]
    assert question.partition(": ")[2] in " ".join(waits.split())
    constellation.command("agent-runtime", "approvals", "resolve", pending["interrupt_id"], "--reject", "not now")
    (fire,) = constellation.until_outcome("errand", "rejected")
    reason = "its approval was rejected: memory_put"
    assert fire["reason"] == reason
    for argv in (("task", "history", "errand"), ("task", "explain", "errand"), ("events", "--task", "errand")):
        assert reason in " ".join(constellation.command("turnkeeper", *argv).split()), argv
    told = " ".join(constellation.command("turnkeeper", "task", "explain", "errand").split())
    assert re.search(r"It was rejected at .*, by agent-runtime/cli: not now\.", told), told
    assert re.search("Its turn ended without your approval at .*: its approval was rejected: memory_put", told), told
    shown = constellation.command("turnkeeper", "conversation", "show", "general")
    assert re.search(r"rejected in \d", shown), shown
    assert "succeeded in" not in shown
    constellation.kill(AGENT_RUNTIME)
    from_store = constellation.attempt("turnkeeper", "task", "explain", "errand")
    assert " ".join(from_store.stdout.split()) == told, "the store answers while no runtime runs"
    constellation.start(AGENT_RUNTIME)
    assert "rejected" in constellation.command("turnkeeper", "task", "list")
    (row,) = constellation.ask("turnkeeper", "query", "SELECT outcome, reason FROM fires")
    assert row == {"outcome": "rejected", "reason": reason}
    (turn,) = constellation.conversation()
    assert any("not now" in message["text"] for message in turn["messages"])


def test_an_approval_survives_kill_9_and_is_used_once(constellation: Constellation) -> None:
    pending = ask(constellation)
    constellation.kill(AGENT_RUNTIME)
    constellation.start(AGENT_RUNTIME)
    assert constellation.ask("agent-runtime", "approvals", "list") == [pending]
    constellation.command("agent-runtime", "approvals", "resolve", pending["interrupt_id"], "--approve")
    constellation.until_outcome("errand", "succeeded")
    constellation.command("agent-runtime", "approvals", "resolve", pending["interrupt_id"], "--approve", code=4)
