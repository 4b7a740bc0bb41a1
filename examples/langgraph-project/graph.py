"""A gardener: an ordinary LangGraph agent that uses nothing of Turnkeeper."""

import os

from langchain.chat_models import init_chat_model
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from rules import Rules
from tools import open_valve, read_beds

TOOLS = [read_beds, open_valve]
NAMED = os.environ.get("GARDEN_MODEL")
MODEL = (init_chat_model(NAMED) if NAMED else Rules()).bind_tools(TOOLS)


def gardener(state: MessagesState) -> dict[str, list[object]]:
    """Call the model for the next step."""
    return {"messages": [MODEL.invoke(state["messages"])]}


builder = StateGraph(MessagesState)
builder.add_node("gardener", gardener)
builder.add_node("tools", ToolNode(TOOLS))
builder.add_edge(START, "gardener")
builder.add_conditional_edges("gardener", tools_condition)
builder.add_edge("tools", "gardener")
graph = builder.compile()
