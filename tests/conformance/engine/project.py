"""A project of an author: a model from a script, a ToolNode and a subgraph. It imports nothing of Turnkeeper."""

import asyncio
import os
from pathlib import Path

from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langgraph.config import get_stream_writer
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode

PLACE = Path(os.environ["CONTRACT_PLACE"])  # where tools act, and where a test holds them


class State(MessagesState):
    topic: str


def note(name: str, text: str) -> None:
    with (PLACE / name).open("a") as file:
        file.write(f"{text}\n")


@tool
async def act(text: str) -> str:
    """Act outside. If the test listens, end when it lets go."""
    note("acts", text)
    if (PLACE / "hold").exists():
        reader, writer = await asyncio.open_unix_connection(PLACE / "hold")
        try:
            await reader.read()
        finally:
            writer.close()
    return f"did {text}"


@tool
def act_sync(text: str) -> str:
    """Act outside, in a thread."""
    note("acts", text)
    return f"did {text}"


def model(state: State) -> dict[str, object]:
    """Call the tools that the prompt names, as `call act:a act_sync:b`; fail at `fail`; else repeat the prompt."""
    last = state["messages"][-1]
    said = str(last.content)
    if said == "fail":
        raise ValueError("the model is broken")
    if last.type != "human" or not said.startswith("call "):
        return {"messages": [AIMessage(f"said: {said}")]}
    get_stream_writer()({"progress": said})
    named = [one.split(":") for one in said.split()[1:]]
    calls = [{"name": name, "args": {"text": text}, "id": f"{last.id}-{at}"} for at, (name, text) in enumerate(named)]
    return {"messages": [AIMessage("", tool_calls=calls)], "topic": "work"}


def after_model(state: State) -> str:
    return "tools" if state["messages"][-1].tool_calls else END


builder = StateGraph(State)
builder.add_node("model", model)
builder.add_node("tools", ToolNode([act, act_sync]))
builder.add_edge(START, "model")
builder.add_conditional_edges("model", after_model, ["tools", END])
builder.add_edge("tools", "model")
plain = builder.compile()
outer = StateGraph(State)
outer.add_node("inside", plain)
outer.add_edge(START, "inside")
nested = outer.compile()
