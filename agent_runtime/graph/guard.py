"""The guard around every tool call: in scope it runs, else the author is asked, and nothing happens meanwhile.

Enforcement is here, in code, whatever a prompt says. A call without a turn around it never runs. An approval holds for
one call with exactly the arguments that the author saw; an approval that does not fit is refused.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, NotRequired, Protocol

from langchain.agents.middleware import AgentMiddleware, AgentState
from langchain.agents.middleware.types import PrivateStateAttr
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.prebuilt.tool_node import ToolCallRequest
from langgraph.types import Command, interrupt

from agent_runtime.approvals import ask, binds
from agent_runtime.model import TurnContext, Verdict
from agent_runtime.permissions import approve_once, needs_proposal

Judge = Callable[[str, str, Mapping[str, Any], TurnContext], Verdict]
Answer = ToolMessage | Command[Any]


class Spec(Protocol):
    """What the guard must know of a tool."""

    @property
    def scope(self) -> str:
        """The scope that a category must grant."""

    @property
    def effect(self) -> str:
        """read, external-read or write."""


class LimitReached(RuntimeError):
    """A turn went on calling tools long after its category's limit; it fails."""


def _newest(_old: str, new: str) -> str:
    return new


class GuardState(AgentState[Any]):
    """The agent's state, with the turn whose in-scope writes the author has approved."""

    writes_approved: NotRequired[Annotated[str, _newest, PrivateStateAttr]]


@dataclass(frozen=True, kw_only=True)
class _Call:
    """One tool call, and what the guard knows of it."""

    name: str
    call_id: str
    args: Mapping[str, Any]
    scope: str
    effect: str
    context: TurnContext


@dataclass(frozen=True, kw_only=True)
class _Admitted:
    """A call that may run, as it may run."""

    request: ToolCallRequest
    covers_writes: bool = False  # the author approved the turn's other writes with it


def guard_middleware(specs: Mapping[str, Spec], judge: Judge) -> AgentMiddleware[Any, Any, Any]:
    """Return the middleware that asks `judge` before every tool call.

    Args:
        specs: by tool name; a tool that is not in it has the scope `tool:<name>` and counts as a write.
        judge: the pure function that knows what a category grants.
    """
    return Guard(specs, judge)


class Guard(AgentMiddleware[GuardState, TurnContext, Any]):
    """See :func:`guard_middleware`."""

    state_schema = GuardState

    def __init__(self, specs: Mapping[str, Spec], judge: Judge) -> None:
        super().__init__()
        self._specs = specs
        self._judge = judge

    def wrap_tool_call(self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Answer]) -> Answer:
        """Run the call, or not."""
        admitted = self._admit(request)
        if isinstance(admitted, ToolMessage):
            return admitted
        return _noted(admitted, handler(admitted.request))

    async def awrap_tool_call(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Awaitable[Answer]]
    ) -> Answer:
        """Run the call, or not."""
        admitted = self._admit(request)
        if isinstance(admitted, ToolMessage):
            return admitted
        return _noted(admitted, await handler(admitted.request))

    def _admit(self, request: ToolCallRequest) -> _Admitted | ToolMessage:
        call = self._read(request)
        if call is None:
            return _refusal(request, "this call stands outside a turn; it was not run")
        if over := _over_limit(request, call.context):
            return _refusal(request, over)
        verdict = self._judge(call.scope, call.effect, call.args, call.context)
        if not verdict.allowed:
            return _ask_permission(request, call, verdict)
        if needs_proposal(call.scope, call.effect, call.context) and not _covered(request, call.context):
            return _ask_to_go_on(request, call)
        return _Admitted(request=request)

    def _read(self, request: ToolCallRequest) -> _Call | None:
        context = getattr(request.runtime, "context", None)
        if not isinstance(context, TurnContext):
            return None
        name = request.tool_call["name"]
        spec = self._specs.get(name)
        return _Call(
            name=name,
            call_id=request.tool_call["id"] or "",
            args=request.tool_call["args"],
            scope=spec.scope if spec else f"tool:{name}",
            effect=spec.effect if spec else "write",
            context=context,
        )


def _ask_permission(request: ToolCallRequest, call: _Call, verdict: Verdict) -> _Admitted | ToolMessage:
    return _put_to_author(request, call, "permission", verdict.missing_scope, verdict.reason)


def _ask_to_go_on(request: ToolCallRequest, call: _Call) -> _Admitted | ToolMessage:
    why = f"category {call.context.category.name} does not act by itself; approving covers this turn's other writes"
    return _put_to_author(request, call, "proposal", call.scope, why)


def _put_to_author(request: ToolCallRequest, call: _Call, kind: Any, scope: str, why: str) -> _Admitted | ToolMessage:
    """Interrupt; when the author has decided, this line is reached again and `interrupt` returns the decision."""
    answer = interrupt(ask(kind, tool=call.name, args=call.args, call_id=call.call_id, scope=scope, why=why))
    if not binds(answer, args=call.args, call_id=call.call_id, thread_id=call.context.thread_id):
        return _refusal(request, "the decision is not about this call with these arguments; it was not run")
    decision = answer["decision"]
    if decision == "approve":
        return _approved(request, call, call.args, kind)
    if decision == "edit" and isinstance(answer.get("args"), dict):
        return _approved(request, call, answer["args"], kind)
    why_not = str(answer.get("message", ""))
    return _refusal(request, f"the author refused this call: {why_not}" if why_not else "the author refused this call")


def _approved(request: ToolCallRequest, call: _Call, args: Mapping[str, Any], kind: str) -> _Admitted:
    """Return the call as the author approved it, with what it needs granted for this once."""
    context = approve_once(call.scope, call.effect, args, call.context)
    runtime: Any = request.runtime
    changes: dict[str, Any] = {
        "tool_call": {**request.tool_call, "args": dict(args)},
        "runtime": replace(runtime, context=context),
    }
    return _Admitted(request=request.override(**changes), covers_writes=kind == "proposal")


def _noted(admitted: _Admitted, answer: Answer) -> Answer:
    if not admitted.covers_writes or not isinstance(answer, ToolMessage):
        return answer
    context: Any = admitted.request.runtime.context
    return Command(update={"messages": [answer], "writes_approved": context.turn_id})


def _covered(request: ToolCallRequest, context: TurnContext) -> bool:
    state = request.state
    return isinstance(state, dict) and state.get("writes_approved") == context.turn_id


def _over_limit(request: ToolCallRequest, context: TurnContext) -> str:
    """Return why a call is one too many, or nothing. Raises LimitReached when the turn does not take the hint."""
    most = context.category.tool_calls
    number = _number_in_turn(request, context.turn_id)
    if number <= most:
        return ""
    if number > 2 * most + 10:
        raise LimitReached(f"called tools {number} times, its category allows {most}")
    return f"the category's limit of {most} tool calls a turn is used up; finish without further calls"


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


def _refusal(request: ToolCallRequest, text: str) -> ToolMessage:
    call = request.tool_call
    return ToolMessage(content=text, name=call["name"], tool_call_id=call["id"] or "", status="error")
