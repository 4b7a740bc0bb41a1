"""The graph of a run: what a model and its tools would do, from a seed. Its tool calls pass the real guard.

A turn thinks, may call a tool, and answers. The first word of its prompt names the job:

    Say      answers; takes up to a minute, and may fail because the script says so
    Propose  calls a tool that its category grants: each turn leaves one proposal
    Ask      calls a tool outside its category: the turn waits for its author
    Wake     answers quickly and never fails: an iteration of a loop
"""

import random  # noqa: TID251  seeded, so that a run can be repeated
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch
from uuid import UUID  # noqa: TID251  made of numbers that the seed draws

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolCall
from langgraph.checkpoint.base import id as ids
from langgraph.graph import END, START, MessagesState, StateGraph, message
from langgraph.prebuilt import ToolNode
from langgraph.pregel import _checkpoint

from agent_runtime.graph.guard.middleware import Guard
from agent_runtime.model.turn import TurnContext
from turnkeeper.clock import Clock
from turnkeeper.entropy import Entropy
from turnkeeper.times import to_us

SAY, PROPOSE, ASK, WAKE = JOBS = "Say", "Propose", "Ask", "Wake"
PROMPTS = {
    SAY: "Say what is new",
    PROPOSE: "Propose a summary",
    ASK: "Ask whether the page may change",
    WAKE: "Wake again later",
}
CALLS = {PROPOSE: "summary_propose", ASK: "page_propose"}
BROKE = "the graph broke, as the script says"
CATEGORY = """name = "loop"
autonomous = true
silent = false
[scopes]
tools = ["summary.propose"]
writes = ["candidate-summary"]
[limits]
seconds = 600
tool_calls = 20
"""


@contextmanager
def ids_of_checkpoints(clock: Clock, seed: int) -> Iterator[None]:
    """Make LangGraph take the times and the chance in what it saves from the run; ids of questions are made of them."""
    drawn = random.Random(f"ids {seed}")
    forget_newest_id()
    try:
        with (
            patch.object(ids, "time", SimpleNamespace(time_ns=lambda: to_us(clock.now()) * 1000)),
            patch.object(ids, "random", drawn),
            patch.object(_checkpoint, "datetime", SimpleNamespace(now=lambda _zone: clock.now())),
            patch.object(message, "uuid", SimpleNamespace(uuid4=lambda: UUID(int=drawn.getrandbits(128), version=4))),
        ):
            yield
    finally:
        forget_newest_id()


def forget_newest_id() -> None:
    """Forget the newest id, as a process does when it dies: the clock may be behind it when the next one starts."""
    ids._last_v6_timestamp = None


def job_of(messages: Sequence[AnyMessage]) -> str:
    """Return the job that the newest prompt names."""
    prompt = next((str(one.text) for one in reversed(messages) if isinstance(one, HumanMessage)), "")
    word = prompt.partition(" ")[0]
    return word if word in JOBS else SAY


def builder(drawn: random.Random, clock: Clock, entropy: Entropy, fails: float) -> Callable[..., Any]:
    """Return the function that makes the graph; a share `fails` of the turns that say something fails."""

    def said(text: str, tool: str = "") -> dict[str, Any]:
        identity = entropy.hex(16)
        named = {"title": f"News {identity}", "body": "It is new."}
        calls = [ToolCall(name=tool, args=named, id=f"call-{identity}", type="tool_call")] if tool else []
        return {"messages": [AIMessage(content=text, id=identity, tool_calls=calls)]}

    async def think(state: MessagesState) -> dict[str, Any]:
        job = job_of(state["messages"])
        longest_s = drawn.choice([0.2, 1, 5, 20, 60]) if job == SAY else 1.0
        await clock.sleep(longest_s * drawn.random())
        return said("thought", CALLS.get(job, ""))

    async def answer(state: MessagesState) -> dict[str, Any]:
        await clock.sleep(drawn.random())
        if job_of(state["messages"]) == SAY and drawn.random() < fails:
            raise RuntimeError(BROKE)
        return said("answered")

    def build(specs: Any, middleware: Any, saver: Any) -> Any:
        (guard,) = (one for one in middleware if isinstance(one, Guard))
        tools = [spec.tool for spec in specs if spec.tool.name in CALLS.values()]
        graph = StateGraph(MessagesState, context_schema=TurnContext)
        graph.add_node("think", think)
        graph.add_node("act", ToolNode(tools, awrap_tool_call=guard.awrap_tool_call))
        graph.add_node("answer", answer)
        graph.add_edge(START, "think")
        graph.add_conditional_edges("think", _calls, ["act", "answer"])
        graph.add_edge("act", "answer")
        graph.add_edge("answer", END)
        return graph.compile(checkpointer=saver)

    return build


def _calls(state: MessagesState) -> str:
    return "act" if getattr(state["messages"][-1], "tool_calls", ()) else "answer"
