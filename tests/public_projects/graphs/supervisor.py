"""Two agents under langgraph-supervisor."""

from langchain.agents import create_agent
from langchain_openai import ChatOpenAI
from langgraph_supervisor import create_supervisor
from tools import search, send_mail

model = ChatOpenAI(model="gpt-4o")
researcher = create_agent(model, [search], name="researcher", system_prompt="You look things up.")
writer = create_agent(model, [send_mail], name="writer", system_prompt="You write mails.")
graph = create_supervisor([researcher, writer], model=model, prompt="You lead two agents.")
