"""The tool that a turn asks permission with, where its category hides the tools that it does not grant."""

from typing import Annotated, Any

from langchain_core.tools import StructuredTool, ToolException

from agent_runtime.model.tool_spec import ToolSpec
from agent_runtime.permissions.judge import REQUEST


def permission_request() -> ToolSpec:
    """Return the tool. The guard makes its call into the one that it names; by itself it does nothing.

    An approval runs that tool with these arguments once, and grants nothing else.
    """

    async def permission_request(
        tool: Annotated[str, "the tool's name"],  # noqa: ARG001
        args: Annotated[dict[str, Any], "the arguments that it is to be called with"],  # noqa: ARG001
        why: Annotated[str, "what it is good for, in a sentence that the author reads"],  # noqa: ARG001
    ) -> str:
        """Ask the author to let you call a tool that is outside your category, once."""
        raise ToolException("permission can be requested only through the guard; nothing was run")

    name = REQUEST.replace(".", "_")
    made = StructuredTool.from_function(coroutine=permission_request, name=name, handle_tool_error=True)
    return ToolSpec(tool=made, scope=REQUEST, effect="read")
