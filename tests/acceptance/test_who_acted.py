"""Who acted: with the real daemons, what a caller says of itself is kept, and what only a daemon may say is refused."""

from typing import Any

import pytest

from tests.support.constellation import Constellation
from turnkeeper.bus.event_log import read_events
from turnkeeper.errors import Denied
from turnkeeper.rpc.callers import Identity
from turnkeeper.rpc.channel import Caller
from turnkeeper.v1 import agent_runtime_pb2, schedules_pb2

pytestmark = pytest.mark.process


def acts(constellation: Constellation, event: str = "act.done") -> list[tuple[str, str, str]]:
    """Return the method, the subject and the via of each act on record."""
    found = [record for record in read_events(constellation.home.logs) if record["event"] == event]
    return [(record["method"], record.get("subject", ""), record["via"]) for record in found]


def runner(constellation: Constellation, via: Identity | str = "") -> Any:
    return Caller(constellation.home, via=via)


def runtime(constellation: Constellation, via: Identity | str = "") -> Any:
    return Caller(constellation.home, via=via)


def invented_task() -> schedules_pb2.CreateTaskRequest:
    spec = schedules_pb2.TaskSpec(name="invented", every="1h", category="catch-up-summary", channel="c", prompt="p")
    spec.created_by.CopyFrom(schedules_pb2.CreatedBy(turn_id="turn-1", category="work", agent="agent0"))
    return schedules_pb2.CreateTaskRequest(spec=spec)


def invented_fire() -> agent_runtime_pb2.FireRequest:
    fire = agent_runtime_pb2.FireRequest(
        fire_id="task-00000001@1", task_id="task-00000001", task_name="never", thread_id="t", channel="general",
        category="catch-up-summary", prompt="do it", kind="manual", attempt=1,
    )  # fmt: skip
    fire.nominal_at.FromSeconds(1_790_000_000)
    return fire


def test_nobody_but_the_daemons_says_that_an_agent_made_a_task_or_that_a_task_fired(constellation: Constellation):
    for via in ("", "my-bot/api", "agent-runtime/cli"):
        with pytest.raises(Denied, match="only be set by agent-runtime"):
            runner(constellation, via).CreateTask(invented_task())
        with pytest.raises(Denied, match="only task-runner may call Fire"):
            runtime(constellation, via).Fire(invented_fire())
        with pytest.raises(Denied, match="only task-runner may call WatchEvents"):
            list(runtime(constellation, via).WatchEvents(agent_runtime_pb2.WatchEventsRequest()))
    assert constellation.ask("task-runner", "list") == []
    assert constellation.ask("agent-runtime", "turns", "list") == []
    refused = {(method, via) for method, _, via in acts(constellation, "act.refused")}
    assert {("CreateTask", "my-bot/api"), ("Fire", "unknown"), ("WatchEvents", "my-bot/api")} <= refused
    proved = Identity.of_daemon("agent-runtime", "task-runner", constellation.home)
    made = runner(constellation, proved).CreateTask(invented_task()).task
    assert made.spec.created_by.agent == "agent0", "the runtime itself may say so"
    again = schedules_pb2.UpdateTaskRequest(name="invented", spec=made.spec)
    assert not runner(constellation).UpdateTask(again).changed, "an older client sends back what it was shown"


def test_what_an_author_did_is_on_record_with_the_program_and_the_surface(constellation: Constellation):
    task = constellation.create("digest", "--every", "1h")
    constellation.command("task-runner", "edit", "digest", "--prompt", "Other.")
    constellation.command("task-runner", "pause", "digest")
    constellation.command("agent-runtime", "workspace", "put", "plan", "--title", "Plan", "--body", "b")
    runner(constellation, "my-bot/api/k1").ResumeTask(schedules_pb2.ResumeTaskRequest(name="digest"))
    spec = schedules_pb2.TaskSpec(name="other", every="1h", category="catch-up-summary", channel="c", prompt="p")
    runner(constellation).CreateTask(schedules_pb2.CreateTaskRequest(spec=spec))
    done = acts(constellation)
    assert ("CreateTask", task["id"], "task-runner/cli") in done
    assert ("UpdateTask", task["id"], "task-runner/cli") in done
    assert ("PauseTask", task["id"], "task-runner/cli") in done
    assert ("PutPage", "plan", "agent-runtime/cli") in done
    assert ("ResumeTask", task["id"], "my-bot/api/k1") in done
    assert {via for method, _, via in done if method == "CreateTask"} == {"task-runner/cli", "unknown"}
    assert constellation.ask("task-runner", "show", "digest")["edited_by"] == "task-runner/cli"
    assert constellation.ask("task-runner", "show", "other")["edited_by"] == "unknown"
    shown = runner(constellation).GetTask(schedules_pb2.GetTaskRequest(name="digest")).spec
    shown.prompt = "New."
    runner(constellation, "my-bot/api/k1").UpdateTask(schedules_pb2.UpdateTaskRequest(name="digest", spec=shown))
    assert (
        constellation.ask("task-runner", "explain", "digest", "--at", "2030-01-01T00:00:00Z")["edited_by"]
        == "my-bot/api/k1"
    )
    constellation.stop()
    constellation.create("offline", "--every", "1h")
    assert ("CreateTask", constellation.ask("task-runner", "show", "offline")["id"], "task-runner/cli") in acts(
        constellation
    ), "also where no daemon runs"


@pytest.mark.sqlite_only("the key files of one home")
def test_a_key_for_calls_is_rotated_while_tasks_fire_and_its_loss_is_a_clear_error(constellation: Constellation):
    constellation.create("digest", "--every", "1h")
    constellation.command("task-runner", "run", "digest", "--wait")
    constellation.command("turnkeeper", "keys", "rotate", "calls")
    constellation.command("task-runner", "run", "digest", "--wait")
    rows = [row for row in constellation.ask("turnkeeper", "keys", "list") if row["purpose"] == "calls"]
    assert [bool(row["retired_at"]) for row in rows] == [False, True]
    path = constellation.home.keys / "calls.json"
    path.chmod(0o644)
    done = constellation.attempt("turnkeeper", "doctor")
    assert f"chmod 600 {path}" in done.stdout + done.stderr
    path.chmod(0o600)
    constellation.stop()
    path.unlink()
    for program in ("task-runner", "agent-runtime"):
        refused = constellation.attempt(program, "serve")
        assert refused.returncode == 1
        assert "make another: turnkeeper keys rotate calls --lost" in refused.stderr
        assert "Traceback" not in refused.stderr
    constellation.command("turnkeeper", "keys", "rotate", "calls", "--lost")
    constellation.start()
    constellation.command("task-runner", "run", "digest", "--wait")


def test_a_decision_keeps_by_what_it_came(constellation: Constellation):
    past_its_category = "Summarise the garden, then remember: the pump was replaced"
    constellation.create("errand", "--in", "1s", "--prompt", past_its_category)
    constellation.until_outcome("errand", "interrupted")
    (asked,) = constellation.ask("agent-runtime", "approvals", "list")
    assert asked["decided_by"] == ""
    constellation.command("agent-runtime", "approvals", "resolve", asked["interrupt_id"], "--approve")
    constellation.until_outcome("errand", "succeeded")
    assert (
        constellation.ask("agent-runtime", "approvals", "show", asked["interrupt_id"])["decided_by"]
        == "agent-runtime/cli"
    )
    (proposed, *_) = constellation.ask("agent-runtime", "candidates", "list")
    decide = agent_runtime_pb2.DecideCandidateRequest(candidate_id=proposed["candidate_id"], accept=True)
    assert runtime(constellation, "my-bot/web").DecideCandidate(decide).decided_by == "my-bot/web"
    assert ("DecideCandidate", proposed["candidate_id"], "my-bot/web") in acts(constellation)
    assert ("ResolveInterrupt", asked["interrupt_id"], "agent-runtime/cli") in acts(constellation)


@pytest.mark.sqlite_only("where a store is shared, they ask nothing of each other")
def test_what_the_runtime_and_the_runner_ask_of_each_other_is_proved_and_on_record(constellation: Constellation):
    key = next(row["key"] for row in constellation.ask("turnkeeper", "keys", "list") if row["purpose"] == "calls")
    constellation.create("digest", "--every", "1h")
    constellation.command("task-runner", "run", "digest", "--wait")
    constellation.command("task-runner", "disable", "digest", "--cancel-running")
    constellation.command("agent-runtime", "send", "general", "Every hour, look after the garden.", "--wait")
    assert acts(constellation, "act.refused") == []
    by_daemons = {via for _, _, via in acts(constellation) if "/daemon" in via}
    assert by_daemons <= {f"agent-runtime/daemon/{key}", f"task-runner/daemon/{key}"}
