"""The tool by which a turn starts a subagent. Its docstring is what a model reads."""

import json
from typing import TYPE_CHECKING, Annotated, Any

from langchain_core.messages import ToolMessage
from langchain_core.tools import StructuredTool

from agent_runtime.graph.engine.inputs import BESIDE
from agent_runtime.graph.engine.tokens import beside
from agent_runtime.graph.tool_spec import ToolSpec
from agent_runtime.tools.call import Runtime, call_of
from turnkeeper.errors import TurnkeeperError

if TYPE_CHECKING:
    from agent_runtime.graph.agent.subagents import Subagents

SCOPE = "subagent.run"
NAME = SCOPE.replace(".", "_")


def subagent_tools(subagents: "Subagents") -> list[ToolSpec]:
    """Return the tool. What it starts is judged call by call, so that starting it changes nothing by itself."""

    async def subagent_run(
        name: Annotated[
            str, "researcher: reads sources and reports what they say; reviewer: checks a text against its sources"
        ],
        brief: Annotated[str, "what it is to do, with all that it needs to know: it sees nothing of this thread"],
        runtime: Runtime,
    ) -> tuple[str | ToolMessage, dict[str, Any]]:
        """Have a subagent do a part of the work, and wait for its report."""
        call, call_id = call_of(runtime), str(runtime.tool_call_id)
        try:
            report = await subagents.run(name, brief, call_id=call_id, admitted=call.context)
        except TurnkeeperError as error:
            # One that was stopped was paid for as well; an exception could not carry what it used.
            cost = {BESIDE: list(beside().used(call_id))}
            return ToolMessage(str(error), artifact=cost, tool_call_id=call_id, name=NAME, status="error"), cost
        told = {"subagent": report.name, "report": report.text, "calls": report.calls}
        return json.dumps(told, ensure_ascii=False), {BESIDE: list(report.tokens)}

    made = StructuredTool.from_function(
        coroutine=subagent_run,
        name=NAME,
        handle_tool_error=True,
        response_format="content_and_artifact",
    )
    return [ToolSpec(tool=made, scope=SCOPE, effect="read")]
