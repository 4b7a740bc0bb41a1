"""An approval that nobody answers, with real daemons: it ends, the schedule goes on, and the author can read it all."""

import json
from datetime import datetime
from typing import Any

import pytest

from tests.acceptance.test_real_week import fake
from tests.support.constellation import AGENT_RUNTIME, TASK_RUNNER, Constellation
from turnkeeper.bus.event_log import read_events

__all__ = ["fake"]
pytestmark = pytest.mark.process

PAST_ITS_CATEGORY = "Summarise the garden, then remember: the pump was replaced"
EXPIRED = "its approval expired: no answer within"


def ask(constellation: Constellation, *options: str) -> dict[str, Any]:
    """Run a task whose turn asks its author; return what it asks."""
    constellation.create("errand", "--in", "1s", "--prompt", PAST_ITS_CATEGORY, "--thread", "shared", *options)
    return until_asked(constellation)


def until_asked(constellation: Constellation) -> dict[str, Any]:
    constellation.until_outcome("errand", "interrupted")
    pending: dict[str, Any] = constellation.ask("agent-runtime", "approvals", "list")[0]
    return pending


def trail(constellation: Constellation, event: str) -> list[dict[str, Any]]:
    return [one for one in read_events(constellation.home.logs) if one["event"] == event]


def test_an_approval_ends_and_the_fire_behind_it_goes_on(constellation: Constellation) -> None:
    pending = ask(constellation, "--approval-reminder", "2s", "--approval-timeout", "10s")
    assert pending["expires_at"]
    listed = constellation.command("agent-runtime", "approvals", "list")
    assert "EXPIRES" in listed
    assert "in " in listed
    assert "expires" in constellation.command("agent-runtime", "approvals", "show", pending["interrupt_id"])
    explained = constellation.ask("task-runner", "explain", "errand")
    assert "Its request expires 10s after it was made, if no one answers." in explained["lines"]
    constellation.create("other", "--in", "1s", "--thread", "shared")
    (held,) = constellation.until_outcome("other", "held")

    (ended,) = constellation.until_outcome("errand", "rejected")
    assert ended["reason"] == f"{EXPIRED} 10s"
    (released,) = constellation.until_outcome("other", "succeeded")
    assert released["attempt"] == held["attempt"] + 1
    (reason,) = [one.get("reason") for one in trail(constellation, "fire.released")]
    assert reason == f"{EXPIRED} 10s"

    late = constellation.attempt("agent-runtime", "approvals", "resolve", pending["interrupt_id"], "--approve")
    assert late.returncode == 4
    assert "expired at" in late.stderr
    assert "turnkeeper task run errand" in late.stderr
    (settled,) = constellation.ask("agent-runtime", "approvals", "list", "--all")
    assert (settled["decision"], settled["message"]) == ("expired", "no answer within 10s")
    assert settled["reminded_at"]
    shown = constellation.command("agent-runtime", "conversation", "show", "general")
    assert "[expired]: no answer within 10s" in shown
    assert constellation.ask("agent-runtime", "memory", "list") == []
    assert constellation.violations() == []


def test_what_came_due_meanwhile_is_for_catch_up_and_explain_says_why(constellation: Constellation) -> None:
    constellation.create(
        "errand", "--every", "2s", "--prompt", PAST_ITS_CATEGORY, "--approval-timeout", "6s", "--grace", "1s"
    )
    until_asked(constellation)
    (first, *_) = constellation.ask("task-runner", "history", "errand")[::-1]
    constellation.until("it to end", lambda: entry(constellation, first["fire_id"])["outcome"] == "rejected")
    ended = entry(constellation, first["fire_id"])
    constellation.until("the next fire", lambda: len(constellation.ask("task-runner", "history", "errand")) > 1)
    after = constellation.ask("task-runner", "history", "errand")[::-1][1]
    assert after["first_nominal_at"] < ended["ended_at"]
    assert after["count"] >= 2, "catch-up run-once: one fire for all that came due meanwhile"
    explained = constellation.ask("task-runner", "explain", "errand", "--at", after["first_nominal_at"])
    (told,) = [line for line in explained["lines"] if line.startswith("It came due while")]
    assert told.startswith(f"It came due while {first['fire_id']} waited for you, until ")
    assert told.endswith(f"{EXPIRED} 6s; catch-up run-once then decided about it.")


def entry(constellation: Constellation, fire_id: str) -> dict[str, Any]:
    found: dict[str, Any] = next(
        one for one in constellation.ask("task-runner", "history", "errand") if one["fire_id"] == fire_id
    )
    return found


def test_a_kill_between_the_end_of_an_approval_and_its_resume_loses_and_doubles_nothing(stopped: Constellation) -> None:
    stopped.start(AGENT_RUNTIME, TURNKEEPER_FAILPOINTS="runtime.approval_expired")
    stopped.start(TASK_RUNNER)
    pending = ask(stopped, "--approval-timeout", "3s")
    stopped.until_dead(AGENT_RUNTIME)
    stopped.start(AGENT_RUNTIME)
    stopped.until_outcome("errand", "rejected")
    (settled,) = stopped.ask("agent-runtime", "approvals", "list", "--all")
    assert (settled["interrupt_id"], settled["decision"]) == (pending["interrupt_id"], "expired")
    (turn,) = stopped.conversation()
    told = [message["text"] for message in turn["messages"] if "no answer" in message["text"]]
    assert len([text for text in told if text.startswith("no answer within 3s: this call was not run")]) == 1
    assert stopped.violations() == []


def test_reminder_and_alert_survive_kills_and_are_on_record_once(stopped: Constellation) -> None:
    alerts = stopped.home.run.parent
    stopped.start(AGENT_RUNTIME, TURNKEEPER_FAILPOINTS="runtime.approval_reminded")
    stopped.start(TASK_RUNNER)
    ask(stopped, "--approval-reminder", "1s", "--approval-escalation", "2s")
    stopped.until_dead(AGENT_RUNTIME)
    stopped.launch(AGENT_RUNTIME, TURNKEEPER_FAILPOINTS="runtime.approval_escalated")
    stopped.until("the alert", lambda: list(alerts.glob("escalate-failed-*-approvals")))
    stopped.until_dead(AGENT_RUNTIME)
    (alert,) = alerts.glob("escalate-failed-*-approvals")
    assert "memory_put of errand has waited for your decision" in json.loads(alert.read_text())["text"]
    stopped.start(AGENT_RUNTIME)
    stopped.until("the alert on record", lambda: trail(stopped, "interrupt.escalated") != [])
    (pending,) = stopped.ask("agent-runtime", "approvals", "list")
    assert pending["reminded_at"]
    assert pending["escalated_at"]
    assert list(alerts.glob("escalate-failed-*-approvals")) == [alert]
    assert "alert not delivered" in stopped.attempt("turnkeeper", "status").stderr
    stopped.command("agent-runtime", "approvals", "resolve", pending["interrupt_id"], "--reject", "not now")
    stopped.until_outcome("errand", "rejected")
    stopped.until("the alert to be withdrawn", lambda: not list(alerts.glob("escalate-failed-*-approvals")))


def test_the_alert_is_sent_by_the_supervisor(stopped: Constellation) -> None:
    alerts = stopped.home.root.parent / "alerts"
    stopped.home.config.write_text(f"[watchdog]\ninterval_s = 1\ncommand = 'echo \"$TURNKEEPER_TEXT\" >> {alerts}'\n")
    stopped.command("turnkeeper", "up")
    pending = ask(stopped, "--approval-escalation", "1s")
    stopped.until("the alert", lambda: alerts.exists() and alerts.read_text().endswith("\n"))
    stopped.until("it on record", lambda: trail(stopped, "escalate.done") != [])
    (text,) = alerts.read_text().splitlines()
    assert text.startswith("turnkeeper: approvals: memory_put of errand has waited for your decision since ")
    assert "the pump was replaced" not in text, "arguments are for the author alone"
    assert list(stopped.home.run.parent.glob("escalate-failed-*")) == []
    stopped.command("agent-runtime", "approvals", "resolve", pending["interrupt_id"], "--approve")
    stopped.until_outcome("errand", "succeeded")
    assert len(alerts.read_text().splitlines()) == 1


def test_an_approval_ends_on_a_clock_that_was_stepped(stopped: Constellation, fake: Any) -> None:
    """The runtime is away for two days of wall time: what was to end in between has ended."""
    stopped.start(**fake("2026-03-02 09:00:00"))
    pending = ask(stopped, "--approval-reminder", "1h", "--approval-timeout", "1d")
    asked, ends = (datetime.fromisoformat(pending[name]) for name in ("created_at", "expires_at"))
    assert (ends - asked).total_seconds() == 86_400
    stopped.kill(AGENT_RUNTIME)
    stopped.start(AGENT_RUNTIME, **fake("2026-03-03 08:00:00"))
    stopped.until("the reminder", lambda: len(trail(stopped, "interrupt.reminded")) == 1)
    assert stopped.ask("agent-runtime", "approvals", "list") != []
    stopped.stop()
    stopped.start(**fake("2026-03-04 09:00:00"))
    stopped.until_outcome("errand", "rejected")
    (settled,) = stopped.ask("agent-runtime", "approvals", "list", "--all")
    assert settled["decision"] == "expired"
    assert len(trail(stopped, "interrupt.reminded")) == len(trail(stopped, "interrupt.expired")) == 1


WRONG = (
    (("--approval-timeout", "soon"), "approval_timeout: 'soon' is not a duration; write for example 90s, 15m"),
    (("--approval-timeout", "0s"), "approval_timeout: must be longer than 0 s"),
    (("--approval-reminder", "-1h"), "approval_reminder: '-1h' is not a duration"),
    (
        ("--approval-reminder", "2h", "--approval-timeout", "1h"),
        "approval_reminder: 2h is not before approval_timeout (1h); give a shorter duration",
    ),
    (
        ("--approval-escalation", "1h", "--approval-timeout", "1h"),
        "approval_escalation: 1h is not before approval_timeout (1h)",
    ),
)


def test_a_wrong_duration_is_refused(constellation: Constellation) -> None:
    made = ("task-runner", "create", "wrong", "--every", "1h", "--category", "loop", "--channel", "general")
    for options, said in WRONG:
        refused = constellation.attempt(*made, "--prompt", "Do it.", *options)
        assert refused.returncode == 2, refused.stderr
        assert said in refused.stderr
    assert constellation.ask("task-runner", "list") == []
