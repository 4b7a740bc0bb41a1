"""Two agents that hand over to each other, by langgraph-swarm."""

from langchain.agents import create_agent
from langchain_openai import ChatOpenAI
from langgraph_swarm import create_handoff_tool, create_swarm
from tools import search, send_mail

model = ChatOpenAI(model="gpt-4o")
alice = create_agent(model, [search, create_handoff_tool(agent_name="bob")], name="alice")
bob = create_agent(model, [send_mail, create_handoff_tool(agent_name="alice")], name="bob")
graph = create_swarm([alice, bob], default_active_agent="alice")
