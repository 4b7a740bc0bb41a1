"""Spans of calls stand under what they happen in, and hold no word of anybody unless that is asked for."""

from contextlib import suppress
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.tools import tool
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from agent_runtime.graph.engine.spans import TurnsObserved
from tests.support.clock import ManualClock
from tests.support.scripted import ScriptedModel, calls
from turnkeeper.bus.event_log import EventLog
from turnkeeper.config.home import Home
from turnkeeper.config.settings import TracesSettings
from turnkeeper.rpc.traces import Tracing

SECRET = "the pump's code is 4711"
FAILED = "no pump answers to 4711"
TURN = {"turn_id": "turn-1", "thread_id": "desk", "fire_id": "fire-1", "attempt": 1, "agent": "agent0"}


@tool
def look(what: str) -> str:
    """Look something up."""
    return f"found {what}"


@tool
def fail(what: str) -> str:
    """Fail, and quote what was asked."""
    raise ValueError(f"{FAILED}: {what}")


@tool
async def delegate(task: str) -> str:
    """Let a subagent do it."""
    script = {task: [calls(("look", {"what": SECRET}))]}
    done = await create_agent(ScriptedModel(script=script), [look]).ainvoke({"messages": [HumanMessage(task)]})
    return str(done["messages"][-1].content)


async def spans_of(home: Home, clock: ManualClock, script: dict[str, list[AIMessage]], *, content: bool) -> list[Any]:
    """Run a turn of one interval; return its spans."""
    exporter, log = InMemorySpanExporter(), EventLog(home.logs, "agent-runtime", clock)
    tracing = Tracing("agent-runtime", TracesSettings(enabled=True, content=content), clock, exporter)
    turns = TurnsObserved(tracing, log)
    log.emit("turn.started", **TURN, trigger="fire", mode="start")
    graph = create_agent(ScriptedModel(script=script), [delegate, look, fail])
    asked: Any = {"messages": [HumanMessage(SECRET)]}
    with suppress(ValueError):  # of the tool that fails
        await graph.ainvoke(asked, {"callbacks": turns.callbacks("turn-1")})
    log.emit("turn.stopped", turn_id="turn-1", thread_id="desk", state="succeeded")
    tracing.close()
    log.close()
    return list(exporter.get_finished_spans())


async def test_calls_inside_a_subagent_stand_under_the_call_that_started_it(home: Home, clock: ManualClock) -> None:
    spans = await spans_of(home, clock, {SECRET: [calls(("delegate", {"task": "do it"}))]}, content=False)
    (turn,) = [span for span in spans if span.name.startswith("invoke_agent")]
    (started,) = [span for span in spans if span.name == "execute_tool delegate"]
    (inside,) = [span for span in spans if span.name == "execute_tool look"]
    assert started.parent.span_id == turn.context.span_id
    assert inside.parent.span_id == started.context.span_id
    chats = [span.parent.span_id for span in spans if span.name.startswith("chat")]
    assert sorted(chats) == sorted([turn.context.span_id] * 2 + [started.context.span_id] * 2)


@pytest.mark.parametrize("content", [False, True])
async def test_no_word_of_anybody_is_in_a_span_unless_it_is_asked_for(
    home: Home, clock: ManualClock, content: bool
) -> None:
    script = {SECRET: [calls(("delegate", {"task": SECRET}), ("look", {"what": SECRET})), AIMessage(SECRET)]}
    broken = {SECRET: [calls(("fail", {"what": SECRET}))]}
    spans = [one for each in (script, broken) for one in await spans_of(home, clock, each, content=content)]
    told = "".join(span.to_json() for span in spans)
    assert ("4711" in told) == content
    assert {"execute_tool fail", "execute_tool look", "execute_tool delegate"} <= {span.name for span in spans}
