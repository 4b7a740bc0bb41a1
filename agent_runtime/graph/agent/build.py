"""What makes a graph: of tools, with the guard around them, on a checkpointer."""

from collections.abc import Callable, Sequence
from typing import Any

from langchain.agents.middleware import AgentMiddleware
from langgraph.checkpoint.base import BaseCheckpointSaver

from agent_runtime.model.tool_spec import ToolSpec

Build = Callable[[Sequence[ToolSpec], Sequence[AgentMiddleware[Any, Any, Any]], BaseCheckpointSaver[Any]], Any]
