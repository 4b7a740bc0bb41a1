"""The default graph: LangChain's agent loop with our tools, our briefing, and the middleware that the engine adds.

What makes a graph: of tools, with the guard around them, on a checkpointer.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.graph.state import CompiledStateGraph

from agent_runtime.graph.agent.briefing import Briefing
from agent_runtime.graph.models import make_model
from agent_runtime.graph.tool_spec import ToolSpec
from agent_runtime.model.values import TurnContext
from turnkeeper.clock import Clock, SystemClock
from turnkeeper.config.home import Home
from turnkeeper.config.settings import Settings


def build_graph(
    settings: Settings,
    home: Home,
    specs: Sequence[ToolSpec],
    *,
    middleware: Sequence[AgentMiddleware[Any, TurnContext, Any]],
    checkpointer: BaseCheckpointSaver[Any] | None,
    clock: Clock | None = None,
    environ: Mapping[str, str] | None = None,
) -> CompiledStateGraph[Any, TurnContext, Any, Any]:
    """Return the compiled graph of an agent that configures none of its own.

    Args:
        settings: for the model.
        home: for the keys in its `.env`.
        specs: the tools.
        middleware: runs around the briefing's; must hold the guard, without which every tool runs unasked.
        checkpointer: keeps the threads.
        clock: the machine's unless a test passes another; only a demonstration's delay waits on it.
        environ: the process's unless a test passes another.

    Raises:
        InvalidInput: the model cannot be made.
    """
    model = make_model(
        settings.model, home, clock=clock or SystemClock(), environ=os.environ if environ is None else environ
    )
    return create_agent(
        model,
        [spec.tool for spec in specs],
        middleware=[Briefing(specs), *middleware],
        context_schema=TurnContext,
        checkpointer=checkpointer,
    )


Build = Callable[[Sequence[ToolSpec], Sequence[AgentMiddleware[Any, Any, Any]], BaseCheckpointSaver[Any]], Any]
