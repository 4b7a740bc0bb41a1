"""The tools that reach another agent (`agent_send`), a subagent (`subagent_run`) and the author (`turn_fail`).

A model reads the docstrings and annotations of the functions inside.
"""

import json
from typing import TYPE_CHECKING, Annotated, Any

from langchain_core.messages import ToolMessage
from langchain_core.tools import StructuredTool

from agent_runtime.graph.context import ToolSpec
from agent_runtime.graph.engine.model_output import artifact_of, subagent_usage
from agent_runtime.mailbox.agent_messages import SCOPE, AgentMessages
from agent_runtime.permissions.judge import FAIL
from agent_runtime.tools.call import GaveUp, Result, Runtime, call_of, spec
from turnkeeper.errors import MachineTrouble, TurnkeeperError

if TYPE_CHECKING:  # a rehearsal asks only for the tools, without building agents
    from agent_runtime.graph.agent.default import Subagents

SUBAGENT_SCOPE = "subagent.run"
SUBAGENT_TOOL = SUBAGENT_SCOPE.replace(".", "_")


def agent_tools(agent_messages: AgentMessages) -> list[ToolSpec]:
    """Return the tool that writes to other agents, and the tool that ends a turn as failed."""

    async def agent_send(
        worker: Annotated[str, "the agent to send to, such as agent1"],
        text: Annotated[str, "what it is to do, with all that it needs to know: it sees nothing of this thread"],
        runtime: Runtime,
    ) -> Result:
        """Send a message to another agent. Its answer comes later, as a message to you; do not wait for it."""
        return await agent_messages.send(call_of(runtime), worker, text)

    async def turn_fail(reason: Annotated[str, "why, in a sentence that the author reads"]) -> Result:
        """End this turn at once, as failed, because you could not do what was asked. Call it last, and alone."""
        raise GaveUp("the agent gave up: " + (" ".join(reason.split()) or "it gave no reason"))  # the runner parses it

    return [spec(agent_send, scope=SCOPE, effect="write"), spec(turn_fail, scope=FAIL, effect="read")]


def subagent_tools(subagents: "Subagents") -> list[ToolSpec]:
    """Return the tool that starts a subagent. The start changes nothing; each call of the subagent is judged."""

    async def subagent_run(
        name: Annotated[
            str, "researcher: reads sources and reports their contents; reviewer: checks text against its sources"
        ],
        brief: Annotated[str, "what it is to do, with all that it needs to know: it sees nothing of this thread"],
        runtime: Runtime,
    ) -> tuple[str | ToolMessage, dict[str, Any]]:
        """Have a subagent do a part of the work, and wait for its report."""
        call, call_id = call_of(runtime), str(runtime.tool_call_id)
        try:
            report = await subagents.run(name, brief, call_id=call_id, admitted=call.context)
        except MachineTrouble:
            raise
        except TurnkeeperError as error:
            # Count the tokens of a stopped subagent too, because an exception could not carry them.
            cost = artifact_of(subagent_usage().used(call_id))
            failed = ToolMessage(str(error), artifact=cost, tool_call_id=call_id, name=SUBAGENT_TOOL, status="error")
            return failed, cost
        answer = {"subagent": report.name, "report": report.text, "calls": report.calls}
        return json.dumps(answer, ensure_ascii=False), artifact_of(report.used)

    made = StructuredTool.from_function(
        coroutine=subagent_run, name=SUBAGENT_TOOL, handle_tool_error=True, response_format="content_and_artifact"
    )
    return [ToolSpec(tool=made, scope=SUBAGENT_SCOPE, effect="read")]
