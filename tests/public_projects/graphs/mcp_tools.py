"""An agent whose tools come from an MCP server over stdio; a factory, as loading them is asynchronous."""

import os
import sys
from pathlib import Path

from langchain.agents import create_agent
from langchain_mcp_adapters.client import MultiServerMCPClient

SERVER = Path(__file__).with_name("mcp_server.py")


async def make_graph():
    environ = {key: os.environ[key] for key in ("PATH", "STUBS")}
    server = {"command": sys.executable, "args": [str(SERVER)], "transport": "stdio", "env": environ}
    return create_agent("openai:gpt-4o", await MultiServerMCPClient({"web": server}).get_tools())
