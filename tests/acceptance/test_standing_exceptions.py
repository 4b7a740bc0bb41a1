"""An author allows one call of a task from now on: given by himself alone, over a kill, and ended with the task."""

import pytest

from tests.acceptance.test_who_acted import acts, runtime
from tests.support.constellation import AGENT_RUNTIME, Constellation
from turnkeeper.bus.event_log import read_events
from turnkeeper.errors import Denied
from turnkeeper.rpc.callers import Identity
from turnkeeper.v1 import agent_runtime_pb2 as wire

pytestmark = pytest.mark.process
PAST_ITS_CATEGORY = "Summarise the garden, then remember: the pump was replaced"


def test_one_approval_for_the_task_is_the_last_one(constellation: Constellation) -> None:
    constellation.create("errand", "--every", "1h", "--prompt", PAST_ITS_CATEGORY)
    constellation.command("task-runner", "run", "errand")
    constellation.until_outcome("errand", "interrupted")
    (pending,) = constellation.ask("agent-runtime", "approvals", "list")
    id_ = pending["interrupt_id"]

    forged = wire.ResolveInterruptRequest(interrupt_id=id_, decision="approve", for_task=True)
    several = wire.ResolveInterruptsRequest(decisions=[forged])
    proved = Identity.of_daemon("task-runner", "agent-runtime", constellation.home)
    for via in ("", "my-bot/api", "my-bot/mcp/k1", proved):
        with pytest.raises(Denied, match="only be set by an author himself"):
            runtime(constellation, via).ResolveInterrupt(forged)
        with pytest.raises(Denied, match="only be set by an author himself"):
            runtime(constellation, via).ResolveInterrupts(several)
    assert ("ResolveInterrupt", "", "my-bot/api") in acts(constellation, "act.refused")
    bulk = constellation.attempt("agent-runtime", "approvals", "decide", "--approve", id_, "--for-task")
    assert (bulk.returncode, "one approval, never with several" in bulk.stderr) == (2, True)
    assert constellation.ask("agent-runtime", "approvals", "list") == [pending], "nothing was decided"

    said = constellation.attempt("agent-runtime", "approvals", "approve", id_, "--for-task").stderr
    assert "standing exception 1: the same call of task errand now runs without approval" in said
    constellation.until_outcome("errand", "succeeded")

    constellation.stop(AGENT_RUNTIME)
    constellation.start(AGENT_RUNTIME, TURNKEEPER_FAILPOINTS="runtime.excepted")
    constellation.command("task-runner", "run", "errand")
    constellation.until_dead(AGENT_RUNTIME)  # the use is on disk, and the call has not run
    constellation.start(AGENT_RUNTIME)
    constellation.until_outcome("errand", "succeeded", 2)
    (turn,) = [one for one in constellation.conversation() if one["interrupts"][0]["message"]]
    assert turn["interrupts"][0]["message"] == "allowed by standing exception 1"
    explained = constellation.command("task-runner", "explain", "errand")
    assert "memory_put was allowed by standing exception 1" in explained
    (listed,) = constellation.ask("agent-runtime", "approvals", "exceptions", "list")
    assert (listed["uses"], listed["given_by"], listed["task_name"]) == (1, "agent-runtime/cli", "errand")

    constellation.command("task-runner", "edit", "errand", "--read-only")
    (ended,) = [one for one in read_events(constellation.home.logs) if one["event"] == "exception.ended"]
    assert (ended["exception"], ended["reason"]) == (1, "its task only reads now")
    table = constellation.command("agent-runtime", "approvals", "exceptions", "list", "--all")
    assert "its task only reads now" in table
    assert constellation.violations() == []
