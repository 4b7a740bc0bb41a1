"""An agent whose answer another one looks at, by langgraph-reflection."""

from langchain.agents import create_agent
from langgraph.graph import START, MessagesState, StateGraph
from langgraph_reflection import create_reflection_graph
from tools import search

worker = create_agent("openai:gpt-4o", [search])


def judge(state):
    return None


critic = StateGraph(MessagesState).add_node("judge", judge).add_edge(START, "judge").compile()
graph = create_reflection_graph(worker, critic)
