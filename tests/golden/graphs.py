"""Two graphs with the nodes, tools and answers of those whose answers were recorded from LangGraph's development server."""

import operator
from collections.abc import AsyncIterator, Iterator
from typing import Annotated, Any, TypedDict

from langchain.agents import create_agent
from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.language_models.fake_chat_models import FakeMessagesListChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, AnyMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.tools import tool
from langgraph.config import get_stream_writer
from langgraph.graph import StateGraph
from langgraph.graph.message import add_messages
from langgraph.stream.transformers import CustomTransformer, UpdatesTransformer
from langgraph.types import interrupt

CALL = {"id": "tc-1", "name": "search", "args": {"query": "v3"}}


@tool
def search(query: str) -> str:
    """Search."""
    return f"result for {query!r}"


class _StreamingFakeChatModel(BaseChatModel):  # the name is in the events of the model
    """Says one sentence, word by word."""

    @property
    def _llm_type(self) -> str:
        return "greeting"

    def _generate(self, *_given: Any, **_more: Any) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=AIMessage("Hello, world!"))])

    def _stream(self, *_given: Any, **_more: Any) -> Iterator[ChatGenerationChunk]:
        yield ChatGenerationChunk(message=AIMessageChunk("Hello,"))
        yield ChatGenerationChunk(message=AIMessageChunk(" world!", chunk_position="last"))

    async def _astream(self, *given: Any, **more: Any) -> AsyncIterator[ChatGenerationChunk]:
        for chunk in self._stream(*given, **more):
            yield chunk


class _ToolBindingFakeChatModel(FakeMessagesListChatModel):  # the name is in what a stream says of its model
    """Calls the tool once, then ends."""

    def bind_tools(self, _tools: Any, **_more: Any) -> Any:
        return self

    def _generate(self, messages: list[Any], *_given: Any, **_more: Any) -> ChatResult:
        done = any(isinstance(one, ToolMessage) for one in messages)
        calls = AIMessage("", id="ai-tools-call", tool_calls=[CALL])
        answer = AIMessage("done.", id="ai-tools-done") if done else calls
        return ChatResult(generations=[ChatGeneration(message=answer)])


class State(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]
    value: str
    items: Annotated[list[str], operator.add]


class Inner(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]
    note: str


def tell(step: str, phase: str, **more: str) -> None:
    get_stream_writer()({"name": "progress", "step": step, "phase": phase, **more})


async def stream_message(_state: State) -> dict[str, Any]:
    tell("stream_message", "start")
    text, name = "", ""
    async for event in await _StreamingFakeChatModel().astream_events([], version="v3"):
        name = str(event["id"]) if event["event"] == "message-start" else name
        text += str(event["delta"]["text"]) if event["event"] == "content-block-delta" else ""
    tell("stream_message", "end")
    return {"messages": [AIMessage(text, id=name)], "value": "x", "items": ["streamed"]}


def call_tool(_state: State) -> dict[str, Any]:
    tell("call_tool", "start")
    found = ToolMessage(search.invoke(CALL["args"]), tool_call_id="tc-1")
    tell("call_tool", "end")
    return {"messages": [AIMessage("", id="ai-msg-2", tool_calls=[CALL]), found], "items": ["tool"]}


def ask_human(_state: State) -> dict[str, Any]:
    tell("ask_human", "start")
    answer = interrupt("Are we good?")
    tell("ask_human", "end", answer=str(answer))
    return {"messages": [AIMessage(f"Human said: {answer}", id="ai-msg-3")], "items": ["asked"]}


def sub(_state: Inner) -> dict[str, Any]:
    tell("sub_node", "start")
    tell("sub_node", "end")
    return {"messages": [AIMessage("from subgraph", id="sub-msg-1")], "note": "ran"}


inner = StateGraph(Inner).add_node(sub).set_entry_point("sub").set_finish_point("sub").compile()


def run_subgraph(_state: State) -> dict[str, Any]:
    tell("run_subgraph", "start")
    made = inner.invoke({"messages": [], "note": ""})
    tell("run_subgraph", "end")
    return {"messages": made["messages"], "items": ["sub"]}


builder = StateGraph(State).add_sequence([stream_message, call_tool, ask_human, run_subgraph])
builder.set_entry_point("stream_message").set_finish_point("run_subgraph")
agent = builder.compile(name="v3_integration_agent", transformers=[CustomTransformer, UpdatesTransformer])
tools_agent = create_agent(
    _ToolBindingFakeChatModel(responses=[]), [search], system_prompt="Use the tool.", name="v3_tools_agent"
)
