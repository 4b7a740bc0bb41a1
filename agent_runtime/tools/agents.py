"""The tool by which agent0 reaches other agents. Its docstring is what a model reads."""

from collections.abc import Mapping
from typing import Annotated, Any

from agent_runtime.graph.tool_spec import ToolSpec
from agent_runtime.mailbox.agent_messages import SCOPE, Courier
from agent_runtime.tools.call import Runtime, call_of, spec


def agent_tools(courier: Courier) -> list[ToolSpec]:
    """Return the tools that reach other agents."""

    async def agent_send(
        worker: Annotated[str, "the agent to send to, such as agent1"],
        text: Annotated[str, "what it is to do, with all that it needs to know: it sees nothing of this thread"],
        runtime: Runtime,
    ) -> Mapping[str, Any]:
        """Send a message to another agent. Its answer comes later, as a message to you; do not wait for it."""
        return await courier.send(call_of(runtime), worker, text)

    return [spec(agent_send, scope=SCOPE, effect="write")]
