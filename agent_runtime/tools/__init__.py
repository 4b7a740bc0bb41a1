"""The tools that turns are offered: LangChain tools over the world, each with its scope and effect."""

from agent_runtime.graph.tool_spec import ToolSpec
from agent_runtime.tools.toolbox import toolbox

__all__ = ["ToolSpec", "toolbox"]
