"""The guard as a middleware of our own agent: it asks the gate before each tool call."""

from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

from langchain.agents.middleware import AgentMiddleware, AgentState
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.prebuilt.tool_node import ToolCallRequest
from langgraph.types import Command

from agent_runtime.graph.guard.gate import NO_TURN, Admitted, CallRequest, Gate, Refused, over_limit
from agent_runtime.graph.guard.hooks import admit_once
from agent_runtime.model.turn import TurnContext
from agent_runtime.permissions.judge import REQUEST

Answer = ToolMessage | Command[Any]


class Guard(AgentMiddleware[AgentState[Any], TurnContext, Any]):
    """Middleware that asks the gate before every tool call of the agent."""

    def __init__(self, gate: Gate) -> None:
        super().__init__()
        self._gate = gate

    def wrap_tool_call(self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Answer]) -> Answer:
        admitted = self._admit(request)
        if isinstance(admitted, ToolMessage):
            return admitted
        with _let_through(admitted):
            return handler(admitted)

    async def awrap_tool_call(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Awaitable[Answer]]
    ) -> Answer:
        admitted = self._admit(request)
        if isinstance(admitted, ToolMessage):
            return admitted
        with _let_through(admitted):
            return await handler(admitted)

    def _admit(self, request: ToolCallRequest) -> ToolCallRequest | ToolMessage:
        """Return the admitted request, or the answer to the model. Raises LimitReached."""
        turn = self._gate.turn(getattr(request.runtime, "context", None))
        if turn is None:
            return _refusal(request, NO_TURN)
        if over := over_limit(_number_in_turn(request, turn.turn_id), turn.category.tool_calls):
            return _refusal(request, Refused(text=over))
        call = self._call(request)
        decided = self._gate.admit(call, turn) if isinstance(call, CallRequest) else call
        return _refusal(request, decided) if isinstance(decided, Refused) else _as_admitted(request, call, decided)

    def _call(self, request: ToolCallRequest) -> CallRequest | Refused:
        call = request.tool_call
        asks = CallRequest(tool=request.tool, name=call["name"], call_id=call["id"] or "", args=call["args"])
        if self._gate.named(asks)[0] != REQUEST:
            return asks
        # A permission request is replaced by the call that it names, under the request's id.
        tools = {tool.name: tool for tool in request.runtime.tools if tool is not request.tool}
        name, args = str(call["args"].get("tool", "")), call["args"].get("args")
        if name not in tools or not isinstance(args, dict):
            return Refused(text=f"permission can be requested for {', '.join(sorted(tools))}, with args as an object")
        return replace(asks, tool=tools[name], name=name, args=args, why=str(call["args"].get("why", ""))[:500])


def _as_admitted(request: ToolCallRequest, call: Any, admitted: Admitted) -> ToolCallRequest:
    """Return the admitted call: its arguments, and the turn with the grants for this one call."""
    runtime: Any = request.runtime
    changes: dict[str, Any] = {
        "tool": call.tool,
        "tool_call": {**request.tool_call, "name": call.name, "args": dict(admitted.args)},
        "runtime": replace(runtime, context=admitted.context),
    }
    return request.override(**changes)


def _number_in_turn(request: ToolCallRequest, turn_id: str) -> int:
    """Return the call's number in its turn, from 1; the number stays the same if the call is run again."""
    state = request.state
    messages = state.get("messages", []) if isinstance(state, dict) else state if isinstance(state, list) else []
    calls: list[str | None] = []
    for message in reversed(messages):
        if isinstance(message, AIMessage):
            calls = [call["id"] for call in message.tool_calls] + calls
        if message.id == turn_id or isinstance(message, HumanMessage):
            break
    wanted = request.tool_call["id"]
    return len(calls) - calls[::-1].index(wanted) if wanted in calls else len(calls) + 1


def _let_through(admitted: ToolCallRequest) -> AbstractContextManager[Any]:
    return admit_once(admitted.tool, admitted.tool_call["id"] or "", admitted.tool_call["args"])


def _refusal(request: ToolCallRequest, refused: Refused) -> ToolMessage:
    call = request.tool_call
    return ToolMessage(content=refused.text, name=call["name"], tool_call_id=call["id"] or "", status="error")
