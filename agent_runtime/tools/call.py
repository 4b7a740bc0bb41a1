"""The common parts of all tools: the identity of a call, answers as JSON, and errors that the model sees."""

import json
from collections.abc import Awaitable, Callable, Hashable, Mapping
from dataclasses import asdict, is_dataclass
from datetime import datetime
from functools import wraps
from inspect import isclass
from typing import Any, ParamSpec

from langchain.tools import ToolRuntime
from langchain_core.tools import BaseTool, StructuredTool, ToolException
from pydantic import BaseModel

from agent_runtime.graph.context import ToolSpec
from agent_runtime.model.turn import Effect, TurnContext
from agent_runtime.store.idempotency import Call, Outcome
from turnkeeper.errors import MachineTrouble, TurnkeeperError
from turnkeeper.times import rfc3339

Runtime = ToolRuntime[TurnContext, Any]
Result = Mapping[str, Any]
P = ParamSpec("P")
# Reading a signature is the slowest part of making a tool, so each signature is read once per process.
_SCHEMAS: dict[Hashable, Any] = {}


class GaveUp(TurnkeeperError):
    """The error of an agent that could not do what was asked. It fails the turn instead of answering the model."""


def call_of(runtime: Runtime) -> Call:
    """Return the running call, with a key that stays the same when LangGraph runs the call again.

    Raises:
        ToolException: the call has no turn or no id, so it must not reach anything.
    """
    context, info = runtime.context, runtime.execution_info
    if not isinstance(context, TurnContext) or info is None or not runtime.tool_call_id:
        raise ToolException("this tool works only inside a turn")
    return Call(context=context, key=f"{context.thread_id}|{info.checkpoint_ns}|{runtime.tool_call_id}")


def spec(
    body: Callable[P, Awaitable[Result | Outcome]], *, scope: str, effect: Effect, name: str = "", strict: bool = False
) -> ToolSpec:
    """Make a tool from `body`. The model reads the docstring of `body`; the name defaults to the scope's.

    MachineTrouble is raised again, and the turn waits. Any other TurnkeeperError becomes the tool's answer to the
    model, marked as an error. Any other exception is a defect of Turnkeeper and fails the turn. A strict tool refuses
    unknown arguments; other tools ignore them.
    """

    @wraps(body)
    async def answer(*args: P.args, **kwargs: P.kwargs) -> str:
        try:
            found = await body(*args, **kwargs)
        except (MachineTrouble, GaveUp):
            raise  # the model cannot avoid a machine fault, so the turn waits
        except TurnkeeperError as error:
            raise ToolException(str(error)) from error
        return json.dumps(found.result if isinstance(found, Outcome) else found, ensure_ascii=False, default=_json)

    key = body.__code__, tuple(body.__annotations__.items()), body.__defaults__
    tool: BaseTool = StructuredTool.from_function(
        coroutine=answer, name=name or scope.replace(".", "_"), args_schema=_SCHEMAS.get(key), handle_tool_error=True
    )
    if strict and key not in _SCHEMAS and isclass(tool.args_schema) and issubclass(tool.args_schema, BaseModel):
        tool.args_schema.model_config["extra"] = "forbid"
        tool.args_schema.model_rebuild(force=True)
    _SCHEMAS.setdefault(key, tool.args_schema)
    return ToolSpec(tool=tool, scope=scope, effect=effect)


def _json(value: object) -> object:
    if isinstance(value, datetime):
        return rfc3339(value)
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")
