"""An author allows one call of a task from now on: given by himself alone, over a kill, and ended with the task."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from agent_runtime.daemon.assembly import MOST_AT_ONCE
from examples.demo.driver import Driver
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
    assert "It was allowed by standing exception 1 (given at " in explained
    assert ", by agent-runtime/cli), so it did not ask you: memory_put" in explained
    assert "It asked you" not in explained
    (listed,) = constellation.ask("agent-runtime", "approvals", "exceptions", "list")
    assert (listed["uses"], listed["given_by"], listed["task_name"]) == (1, "agent-runtime/cli", "errand")

    constellation.command("task-runner", "edit", "errand", "--read-only")
    (ended,) = [one for one in read_events(constellation.home.logs) if one["event"] == "exception.ended"]
    assert (ended["exception"], ended["reason"]) == (1, "its task is now read-only")
    table = constellation.command("agent-runtime", "approvals", "exceptions", "list", "--all")
    assert "its task is now read-only" in table
    assert constellation.violations() == []


SHOP = '''
import asyncio
from pathlib import Path

from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langgraph.graph import START, MessagesState, StateGraph

HERE = Path(__file__).parent


@tool
def send_mail(text: str) -> str:
    """Send a mail."""
    return f"sent {text}"


async def work(state: MessagesState) -> dict:
    said = state["messages"][-1].content
    while not (HERE / said).exists():
        await asyncio.sleep(0.05)
    return {"messages": [AIMessage(await send_mail.ainvoke({"text": said}) if said == "mail" else "open")]}


builder = StateGraph(MessagesState)
builder.add_node("work", work)
builder.add_edge(START, "work")
graph = builder.compile()
'''


@pytest.mark.sqlite_only("it takes all places of one machine, whose home names the graph")
def test_a_turn_whose_call_an_exception_allows_runs_on_for_its_task_even_while_other_turns_take_its_place(
    constellation: Constellation,
) -> None:
    project = constellation.home.root / "project"
    project.mkdir()
    (project / "shop.py").write_text(SHOP)
    config = constellation.home.root / "config.toml"
    config.write_text(config.read_text() + '\n[agents.agent0]\ngraph = "project/shop.py:graph"\n')
    constellation.stop(AGENT_RUNTIME)
    constellation.start(AGENT_RUNTIME)
    constellation.create("errand", "--every", "365d", "--prompt", "mail", "--category", "loop")
    (project / "mail").touch()
    constellation.command("task-runner", "run", "errand")
    constellation.until_outcome("errand", "interrupted")
    (pending,) = constellation.ask("agent-runtime", "approvals", "list")
    constellation.command("agent-runtime", "approvals", "approve", pending["interrupt_id"], "--for-task")
    constellation.until_outcome("errand", "succeeded")
    (project / "mail").unlink()

    def visitor() -> str:
        request = wire.SendMessageRequest(channel="visitors", text="door", new_thread=True)
        return str(runtime(constellation).SendMessage(request).turn_id)

    def until_running(*turns: str) -> None:
        for turn in turns:
            wanted = wire.GetTurnRequest(turn_id=turn)
            constellation.until("a turn to run", lambda: runtime(constellation).GetTurn(wanted).status == "running")  # noqa: B023

    until_running(*(visitor() for _ in range(MOST_AT_ONCE - 1)))
    with ThreadPoolExecutor(1) as aside:
        waiting = aside.submit(Driver.attempt, constellation, "task-runner", "run", "errand", "--wait")
        constellation.until_outcome("errand", "running")
        last = visitor()
        (project / "mail").touch()
        until_running(last)  # it took the place of the turn whose call was allowed
        (turn,) = [one for one in constellation.conversation() if one["status"] not in {"succeeded", "failed"}]
        assert (turn["status"], [one["status"] for one in turn["interrupts"]]) == ("running", ["resolved"])
        assert len(constellation.until_outcome("errand", "running")) == 1
        assert [task["state"] for task in constellation.ask("task-runner", "list")] == ["running"]
        (project / "door").touch()
        done = waiting.result()
    assert (done.returncode, "waits for you" in done.stdout + done.stderr) == (0, False), done
    asked = [one for one in read_events(constellation.home.logs) if one["event"] == "fire.interrupted"]
    assert len(asked) == 1, "the runner heard that a turn waits for its author when one did, and never else"
    assert constellation.violations() == []
