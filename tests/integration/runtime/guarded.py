"""Graphs that import nothing of ours, and one thread of them under the guard."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import BaseTool, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import Command

from agent_runtime.graph.context import recording, turn_around
from agent_runtime.graph.guard import Gate, watching
from agent_runtime.model.approval import AuthorDecision, RaisedInterrupt, answer_to, call_key, read_interrupt
from agent_runtime.model.turn import Category, TurnContext
from agent_runtime.permissions.judge import judge
from tests.support.scripted import ScriptedModel, calls

CONFIG: Any = {"configurable": {"thread_id": "thread-a"}}


ran: list[str] = []


@tool
def act(text: str) -> str:
    """Act."""
    ran.append(text)
    return f"did {text}"


@tool
async def act_later(text: str) -> str:
    """Act, asynchronously."""
    ran.append(text)
    return f"did {text}"


@tool
def free(text: str) -> str:
    """Act, granted."""
    ran.append(f"free {text}")
    return f"did {text}"


def turn(*scopes: str, **changes: Any) -> TurnContext:
    limits = {key: changes.pop(key) for key in ("tool_calls", "autonomous", "subagents") if key in changes}
    category = Category(name="work", tools=frozenset(scopes), **({"autonomous": True} | limits))
    given = {"turn_id": "turn-1", "thread_id": "thread-a", "channel": "main", "agent": "agent0"} | changes
    return TurnContext(category=category, **given)


def plain(*tools: BaseTool, saver: Any = None, store: Any = None, lines: Any = (), **node: Any) -> Any:
    """Return a graph of a model's node and a plain ToolNode."""
    model = ScriptedModel(script={"go": list(lines)})
    graph = StateGraph(MessagesState)
    graph.add_node("think", lambda state: {"messages": [model.invoke(state["messages"])]})
    graph.add_node("tools", ToolNode(list(tools), **node))
    graph.add_edge(START, "think")
    graph.add_conditional_edges("think", lambda state: "tools" if state["messages"][-1].tool_calls else END)
    graph.add_edge("tools", "think")
    return graph.compile(checkpointer=saver or InMemorySaver(), store=store)


def of_node(node: Any, checkpointer: Any = None) -> Any:
    graph = StateGraph(MessagesState)
    graph.add_node("node", node)
    graph.add_edge(START, "node")
    return graph.compile(checkpointer=checkpointer)


class Thread:
    """One thread of a graph in one turn, driven synchronously, asynchronously or as a stream."""

    def __init__(self, graph: Any, context: TurnContext, way: str = "ainvoke") -> None:
        self.graph, self.context, self.way = graph, context, way
        self.recorded: dict[str, Any] = {}

    async def go(self, given: Any = None) -> list[RaisedInterrupt]:
        given = {"messages": [HumanMessage("go", id="turn-1")]} if given is None else given
        self.recorded.clear()
        with turn_around(self.context), recording(self.recorded):
            if self.way == "invoke":
                self.graph.invoke(given, CONFIG)
            elif self.way == "ainvoke":
                await self.graph.ainvoke(given, CONFIG)
            else:
                async for _ in self.graph.astream(given, CONFIG, stream_mode="values"):
                    pass
        return await self.asked()

    async def asked(self) -> list[RaisedInterrupt]:
        found = {one.id: one.value for one in (await self.graph.aget_state(CONFIG)).interrupts}
        return [read_interrupt(key, value, self.recorded.get(key)) for key, value in found.items()]

    async def decide(self, *decided: tuple[RaisedInterrupt, str], args: Any = None) -> list[RaisedInterrupt]:
        self.context = replace(self.context, asked=self.context.asked | {call_key(one) for one, _ in decided})
        answers = {
            one.interrupt_id: answer_to(one, "thread-a", AuthorDecision(decision=decision, args=args))
            for one, decision in decided
        }
        return await self.go(Command(resume=answers))

    async def told(self) -> list[str]:
        values = (await self.graph.aget_state(CONFIG)).values
        return [str(one.content) for one in values["messages"] if isinstance(one, ToolMessage)]


WAYS = pytest.mark.parametrize("way", ["invoke", "ainvoke", "astream"])


THREE = calls(("act", {"text": "a"}), ("free", {"text": "b"}), ("act", {"text": "c"}))


def calling(made: BaseTool, *outcomes: dict[str, Any]) -> Any:
    """Return a graph whose node makes the call that a model wrote: the first of these, then the next when asked anew."""
    left = iter(outcomes)

    def node(_state: Any) -> Any:
        return {"messages": [made.invoke({"name": made.name, "args": next(left), "id": "c1", "type": "tool_call"})]}

    return of_node(node, InMemorySaver())


@contextmanager
def fresh_desk() -> Iterator[Gate]:
    """A gate that judges every call while the block runs; what ran before it is forgotten."""
    ran.clear()
    made = Gate({}, judge)
    with watching(made):
        yield made
