"""Running a subagent inside a turn: an agent of its own, with what both its turn and its own category grant.

It runs inside the tool that starts it, on the turn's checkpoints: a question that it asks is its turn's, and a turn
that goes on after a crash or an answer goes on in the middle of it. What its models use counts for the turn.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware, AgentState
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage

from agent_runtime.graph.agent.default import Briefing
from agent_runtime.graph.context import ToolSpec
from agent_runtime.graph.engine.tokens import subagent_usage, tokens_of
from agent_runtime.graph.guard.gate import Gate
from agent_runtime.graph.models.call import Handler, Request, Response
from agent_runtime.model.turn import SUBAGENTS, TurnContext
from agent_runtime.model.words import shortened
from turnkeeper.errors import Conflict, Exhausted, NotFound

LONGEST_REPORT = 8_000  # characters
LONGEST_CALL = 120
MOST_CALLS = 50
Middleware = AgentMiddleware[Any, Any, Any]


@dataclass(frozen=True, kw_only=True)
class Report:
    """What a subagent came to.

    Attributes:
        name: which subagent.
        text: what it says; cut at 8,000 characters.
        calls: the calls that it made, in order, each in a line of at most 120 characters; at most 50.
        tokens: what its models read and wrote.
    """

    name: str
    text: str
    calls: tuple[str, ...]
    tokens: tuple[int, int]


class Subagents:
    """Starts subagents. Nothing is built before the first is started."""

    def __init__(self, make_model: Callable[[], BaseChatModel]) -> None:
        self._make_model = make_model
        self._gate: Gate | None = None
        self._specs: Sequence[ToolSpec] = ()
        self._middleware: Sequence[Middleware] = ()
        self._graphs: dict[str, Any] = {}

    def begin(self, gate: Gate, specs: Sequence[ToolSpec], middleware: Sequence[Middleware]) -> None:
        """Set the gate that decides about their calls, every tool there is, and the middleware with the guard."""
        self._gate, self._specs, self._middleware = gate, specs, middleware

    async def run(self, name: str, brief: str, *, call_id: str, admitted: TurnContext) -> Report:
        """Run a subagent to its end.

        Args:
            name: which.
            brief: what it is to do; it sees nothing else of the turn.
            call_id: of the tool call that starts it; equal whenever that is run again.
            admitted: the turn as that call was admitted.

        Raises:
            NotFound: there is no subagent of that name.
            Denied: the turn may not start it.
            Exhausted: it reached its limit of seconds or tokens.
            GraphInterrupt: it asks its turn's author.
        """
        if name not in SUBAGENTS:
            raise NotFound(f"no subagent {name[:40]!r}", where="name", hint=f"there are {', '.join(SUBAGENTS)}")
        if self._gate is None:
            raise Conflict("subagents run inside a runtime", where="subagents")
        given = {"messages": [HumanMessage(brief, id=f"brief-{call_id}")]}
        with self._gate.subagent(SUBAGENTS[name], admitted) as inner:
            limit = asyncio.timeout(inner.category.seconds)
            try:
                async with limit:
                    state = await self._graph(name).ainvoke(given, context=inner)
            except TimeoutError as error:
                if not limit.expired():
                    raise
                raise Exhausted(f"{name} took longer than {inner.category.seconds} s", where="subagents") from error
        return _report(name, state["messages"])

    def _graph(self, name: str) -> Any:
        if name not in self._graphs:
            own = [spec for spec in self._specs if spec.scope in SUBAGENTS[name].tools]
            self._graphs[name] = create_agent(
                self._make_model(),
                [spec.tool for spec in own],
                middleware=[Briefing(own, role=name), SubagentLimit(name), *self._middleware],
                context_schema=TurnContext,
                name=name,
            )
        return self._graphs[name]


class SubagentLimit(AgentMiddleware[AgentState[Any], TurnContext, Any]):
    """Counts for the turn what a subagent has used so far, and stops one that uses more than it may."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name

    async def awrap_model_call(self, request: Request, handler: Handler) -> Response:
        """Call the model, then count. Raises Exhausted."""
        # What it used before a crash or a question counts too where it is stopped before the model answers again.
        subagent_usage().note(_call_of(request.messages), tokens_of(request.messages))
        response = await handler(request)
        used = tokens_of([*request.messages, *response.result])
        subagent_usage().note(_call_of(request.messages), used)
        most = request.runtime.context.category.tokens
        if sum(used) > most:
            raise Exhausted(f"{self._name} used {sum(used)} tokens, and may use {most}", where="subagents")
        return response


def _call_of(messages: Sequence[BaseMessage]) -> str:
    return str(messages[0].id).removeprefix("brief-")


def _report(name: str, messages: Sequence[BaseMessage]) -> Report:
    said = [message for message in messages if isinstance(message, AIMessage)]
    text = str(said[-1].text) if said else ""
    return Report(
        name=name,
        text=shortened(text, LONGEST_REPORT),
        calls=tuple(_line(call["name"], call["args"]) for message in said for call in message.tool_calls)[:MOST_CALLS],
        tokens=tokens_of(messages),
    )


def _line(name: str, args: Mapping[str, Any]) -> str:
    return shortened(" ".join(f"{name}({', '.join(map(str, args.values()))})".split()), LONGEST_CALL)
