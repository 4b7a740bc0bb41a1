"""An agent of langgraph-bigtool: it finds its tools in the store."""

from langchain_core.tools import StructuredTool
from langchain_openai import ChatOpenAI
from langgraph_bigtool import create_agent
from tools import search, send_mail

registry = {name: StructuredTool.from_function(tool) for name, tool in (("search", search), ("send_mail", send_mail))}


def retrieve_tools(query: str) -> list[str]:
    """Find tools that fit."""
    return [name for name in registry if name in query]


graph = create_agent(ChatOpenAI(model="gpt-4o"), registry, retrieve_tools_function=retrieve_tools)
