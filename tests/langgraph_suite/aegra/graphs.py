"""The graphs that aegra's end-to-end tests name, with a model that needs no network.

The tests ask a model in plain words, and read how their run behaves: that it streams, takes long enough to be
cancelled, or calls a tool after an approval. The model reads the same words.
"""

import asyncio
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Annotated, Any, TypedDict

from langchain_core.language_models.chat_models import BaseChatModel, agenerate_from_stream
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    AnyMessage,
    BaseMessage,
    HumanMessage,
    ToolCallChunk,
    ToolMessage,
)
from langchain_core.outputs import ChatGenerationChunk, ChatResult
from langchain_core.tools import tool
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.prebuilt import ToolNode
from langgraph.types import Command, interrupt

LONG = re.compile(r"\b(long|story|slowly|joke, then another|essay)\b", re.IGNORECASE)
LOOKS_UP = re.compile(r"\b(weather|forecast|search)\b", re.IGNORECASE)
WORDS = {True: 120, False: 6}  # of a long answer, and of any other
WORD_S = 0.02


@tool
def search(query: str) -> str:
    """Search for a query."""
    return f"Found one page about {query}."


class Model(BaseChatModel):
    """A model that answers with words, one at a time; with a tool, it calls the tool about what it has to look up."""

    tools: bool = False

    @property
    def _llm_type(self) -> str:
        return "words"

    def _generate(self, messages: list[BaseMessage], *given: Any, **more: Any) -> ChatResult:
        raise NotImplementedError("the graphs call it asynchronously")

    async def _agenerate(self, messages: list[BaseMessage], *given: Any, **more: Any) -> ChatResult:
        return await agenerate_from_stream(self._astream(messages))

    async def _astream(
        self, messages: list[BaseMessage], *given: Any, **more: Any
    ) -> AsyncIterator[ChatGenerationChunk]:
        asked = str(messages[-1].text)
        if self.tools and isinstance(messages[-1], HumanMessage) and LOOKS_UP.search(asked) and "don't" not in asked:
            call = ToolCallChunk(name="search", args='{"query": "it"}', id=f"call_{len(messages)}", index=0)
            yield ChatGenerationChunk(message=AIMessageChunk("", tool_call_chunks=[call]))
            return
        is_long = LONG.search(asked) is not None
        for number in range(WORDS[is_long]):
            await asyncio.sleep(WORD_S)  # noqa: TID251 - the graph is a client's own code
            yield ChatGenerationChunk(message=AIMessageChunk(f"word{number} "))


class State(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]


@dataclass(kw_only=True)
class Context:
    """The context that the tests give."""

    model: str = "words"
    system_prompt: str = ""
    max_search_results: int = 10


async def call_model(state: State) -> dict[str, Any]:
    return {"messages": [await Model().ainvoke(state["messages"])]}


async def call_with_tools(state: State) -> dict[str, Any]:
    return {"messages": [await Model(tools=True).ainvoke(state["messages"])]}


def next_of(state: State) -> str:
    return "human_approval" if getattr(state["messages"][-1], "tool_calls", None) else END


def human_approval(state: State) -> Command[Any]:
    """Ask a person about the tool calls, in agent-inbox's form."""
    said: Any = state["messages"][-1]
    calls = {call["name"]: call["args"] for call in said.tool_calls}
    allowed = dict.fromkeys(("allow_respond", "allow_accept", "allow_edit", "allow_ignore"), True)
    asked = {"action_request": {"action": "tool_execution", "args": calls}, "config": allowed}
    answer = interrupt(asked)[0]
    if answer["type"] == "accept":
        return Command(goto="tools")
    if answer["type"] == "edit":
        given = answer["args"]["args"]
        changed = [{**call, "args": given.get(call["name"], call["args"])} for call in said.tool_calls]
        return Command(goto="tools", update={"messages": [AIMessage(said.content, tool_calls=changed, id=said.id)]})
    why = "was interrupted for human input" if answer["type"] == "response" else "cancelled by human operator"
    ended = [ToolMessage(f"Tool execution {why}.", tool_call_id=call["id"]) for call in said.tool_calls]
    if answer["type"] == "response":
        return Command(goto="call_model", update={"messages": [*ended, HumanMessage(str(answer["args"]))]})
    return Command(goto=END, update={"messages": ended})


def agent_graph() -> Any:
    builder = StateGraph(State, context_schema=Context)
    builder.add_node(call_model)
    builder.add_edge(START, "call_model")
    builder.add_edge("call_model", END)
    return builder.compile()


def hitl_graph() -> Any:
    builder = StateGraph(State, context_schema=Context)
    builder.add_node("call_model", call_with_tools)
    builder.add_node("human_approval", human_approval, destinations=("tools", "call_model", END))
    builder.add_node("tools", ToolNode([search]))
    builder.add_edge(START, "call_model")
    builder.add_conditional_edges("call_model", next_of, ["human_approval", END])
    builder.add_edge("tools", "call_model")
    return builder.compile()


def subgraph_graph() -> Any:
    builder = StateGraph(State, context_schema=Context)
    builder.add_node("subgraph_agent", agent_graph())
    builder.add_edge(START, "subgraph_agent")
    builder.add_edge("subgraph_agent", END)
    return builder.compile()


class Foo(TypedDict):
    foo: str


def set_foo(state: Foo) -> Foo:
    return {"foo": "Initial subgraph value."}


def ask_foo(state: Foo) -> Foo:
    return {"foo": state["foo"] + interrupt("Provide value:")}


def subgraph_hitl_graph() -> Any:
    inner = StateGraph(Foo)
    inner.add_sequence([set_foo, ask_foo])
    inner.add_edge(START, "set_foo")
    builder = StateGraph(Foo)
    builder.add_node("node_1", inner.compile())
    builder.add_edge(START, "node_1")
    return builder.compile()


agent, agent_hitl, subgraph_agent = agent_graph(), hitl_graph(), subgraph_graph()
subgraph_hitl_agent = subgraph_hitl_graph()
