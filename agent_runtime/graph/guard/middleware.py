"""The guard as a middleware of our own agent: before each tool call it asks the gate."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any

from langchain.agents.middleware import AgentMiddleware, AgentState
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.prebuilt.tool_node import ToolCallRequest
from langgraph.types import Command

from agent_runtime.graph.guard.gate import (
    OUTSIDE,
    Admitted,
    Gate,
    Judge,
    Narrow,
    Refused,
    Spec,
    Wanted,
    over_limit,
    unchanged,
)
from agent_runtime.graph.guard.hooks import admit_once
from agent_runtime.model.turn import TurnContext
from agent_runtime.permissions.judge import REQUEST

Answer = ToolMessage | Command[Any]


def guard_middleware(
    specs: Mapping[str, Spec], judge: Judge, narrow: Narrow = unchanged
) -> AgentMiddleware[Any, Any, Any]:
    """Return the middleware that asks before every tool call; see :class:`Gate` for the arguments."""
    return Guard(Gate(specs, judge, narrow))


class Guard(AgentMiddleware[AgentState[Any], TurnContext, Any]):
    """See :func:`guard_middleware`."""

    def __init__(self, gate: Gate) -> None:
        super().__init__()
        self._gate = gate

    def wrap_tool_call(self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Answer]) -> Answer:
        """Run the call, or not."""
        admitted = self._admit(request)
        if isinstance(admitted, ToolMessage):
            return admitted
        with admit_once(admitted.tool, _call_id(admitted), admitted.tool_call["args"]):
            return handler(admitted)

    async def awrap_tool_call(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Awaitable[Answer]]
    ) -> Answer:
        """Run the call, or not."""
        admitted = self._admit(request)
        if isinstance(admitted, ToolMessage):
            return admitted
        with admit_once(admitted.tool, _call_id(admitted), admitted.tool_call["args"]):
            return await handler(admitted)

    def _admit(self, request: ToolCallRequest) -> ToolCallRequest | ToolMessage:
        """Return the request as it may run, or what the model is told instead."""
        turn = self._gate.turn(getattr(request.runtime, "context", None))
        if turn is None:
            return _refusal(request, OUTSIDE)
        if over := _over_limit(request, turn):
            return _refusal(request, Refused(text=over))
        wanted = self._wanted(request)
        decided = self._gate.admit(wanted, turn) if isinstance(wanted, Wanted) else wanted
        return _refusal(request, decided) if isinstance(decided, Refused) else _as_admitted(request, wanted, decided)

    def _wanted(self, request: ToolCallRequest) -> Wanted | Refused:
        call = request.tool_call
        asks = Wanted(tool=request.tool, name=call["name"], call_id=call["id"] or "", args=call["args"])
        if self._gate.named(asks)[0] != REQUEST:
            return asks
        # A request for permission is the call that it names, made under its own id.
        tools = {tool.name: tool for tool in request.runtime.tools if tool is not request.tool}
        name, args = str(call["args"].get("tool", "")), call["args"].get("args")
        if name not in tools or not isinstance(args, dict):
            return Refused(text=f"permission can be requested for {', '.join(sorted(tools))}, with args as an object")
        return replace(asks, tool=tools[name], name=name, args=args, why=str(call["args"].get("why", ""))[:500])


def _as_admitted(request: ToolCallRequest, wanted: Any, admitted: Admitted) -> ToolCallRequest:
    """Return the call as it was admitted: its arguments, and the turn under what is granted for this once."""
    runtime: Any = request.runtime
    changes: dict[str, Any] = {
        "tool": wanted.tool,
        "tool_call": {**request.tool_call, "name": wanted.name, "args": dict(admitted.args)},
        "runtime": replace(runtime, context=admitted.context),
    }
    return request.override(**changes)


def _over_limit(request: ToolCallRequest, context: TurnContext) -> str:
    """Return why a call is one too many, or nothing. Raises LimitReached when the turn does not take the hint."""
    return over_limit(_number_in_turn(request, context.turn_id), context.category.tool_calls)


def _number_in_turn(request: ToolCallRequest, turn_id: str) -> int:
    """Return the call's number in its turn, from 1: equal whenever the call is run again."""
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


def _call_id(request: ToolCallRequest) -> str:
    return request.tool_call["id"] or ""


def _refusal(request: ToolCallRequest, refused: Refused) -> ToolMessage:
    call = request.tool_call
    return ToolMessage(content=refused.text, name=call["name"], tool_call_id=call["id"] or "", status="error")
