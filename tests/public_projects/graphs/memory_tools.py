"""An agent that keeps what it learns in the store, by LangMem's tools."""

from langchain.agents import create_agent
from langmem import create_manage_memory_tool, create_search_memory_tool

namespace = ("memories",)
graph = create_agent("openai:gpt-4o", [create_manage_memory_tool(namespace), create_search_memory_tool(namespace)])
