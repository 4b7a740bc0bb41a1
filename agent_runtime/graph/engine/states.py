"""States of a graph in the form of LangGraph's API: their schemas, and the turns of an imported state."""

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import datetime
from itertools import pairwise
from typing import Any

from langchain_core.messages import AnyMessage, BaseMessage, HumanMessage
from langgraph.graph.state import CompiledStateGraph
from langgraph.types import StateSnapshot
from pydantic import BaseModel

from agent_runtime.graph.checkpointer.threads_file import PastTurn
from agent_runtime.graph.engine import inputs
from agent_runtime.graph.engine.engine import BEFORE
from agent_runtime.graph.engine.history import KEPT
from turnkeeper.config.surfaces import offered

_OURS = frozenset({"grant", "turn_id", BEFORE, KEPT})  # keys of a checkpoint's metadata that no client needs
_IMPORTED = "(imported)"  # the prompt of a thread that begins without a prompt
_WHOLE = ("__root__", "__end__")  # channels of a state without fields, and of an entrypoint's result
_MESSAGES = {"type": "array", "items": {"type": "object"}}


def to_json(value: Any) -> str:
    """Return a graph's value as JSON, in the form of LangGraph's API: a message becomes an object with its fields."""
    try:
        return json.dumps(value, ensure_ascii=False, default=_plain)
    except (TypeError, ValueError):  # keys that are not strings, or a value that contains itself
        return json.dumps(str(value))


def _plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump()
    if is_dataclass(value) and not isinstance(value, type):
        return {one.name: getattr(value, one.name) for one in fields(value)}
    if isinstance(value, set | frozenset | tuple):
        return list(value)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return value.isoformat() if isinstance(value, datetime) else str(value)


def _place(config: Any) -> dict[str, Any] | None:
    given = (config or {}).get("configurable", {})
    if not given.get("checkpoint_id"):
        return None
    return {name: given.get(name, "") for name in ("thread_id", "checkpoint_ns", "checkpoint_id")}


def no_state(config: Any) -> StateSnapshot:
    """Return the state of a thread without checkpoints."""
    return StateSnapshot({}, (), config, None, None, None, (), ())


def shown_metadata(known: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metadata of a checkpoint or of a part of a stream without our own keys; the turn is the run."""
    run = {"run_id": known["turn_id"]} if known.get("turn_id") else {}
    return {key: value for key, value in known.items() if key not in _OURS} | run


def state_of(snapshot: StateSnapshot) -> dict[str, Any]:
    thread_id = snapshot.config["configurable"]["thread_id"]
    place, parent = _place(snapshot.config), _place(snapshot.parent_config)
    return {
        "values": snapshot.values,
        "next": list(snapshot.next),
        "tasks": [_task(task) for task in snapshot.tasks],
        "metadata": shown_metadata(snapshot.metadata or {}) | {"thread_id": thread_id},
        "created_at": snapshot.created_at,
        "checkpoint": place if snapshot.created_at else None,
        "parent_checkpoint": parent,
        "interrupts": [_interrupt(one) for one in snapshot.interrupts],
        "checkpoint_id": place["checkpoint_id"] if place and snapshot.created_at else None,
        "parent_checkpoint_id": parent["checkpoint_id"] if parent else None,
    }


def _task(task: Any) -> dict[str, Any]:
    inner = task.state if isinstance(task.state, StateSnapshot) else None
    return {
        "id": task.id,
        "name": task.name,
        "path": list(task.path),
        "error": None if task.error is None else str(task.error),
        "interrupts": [_interrupt(one) for one in task.interrupts],
        "checkpoint": _place(task.state) if isinstance(task.state, dict) else None,
        "state": state_of(inner) if inner is not None else None,
        "result": task.result,
    }


def _interrupt(one: Any) -> dict[str, Any]:
    return {"id": one.id, "value": one.value}


async def described(graph: Any, xray: int | bool, namespace: str | None, recurse: bool) -> dict[str, Any]:
    """Return a graph's drawing, its schemas and those of its subgraphs."""
    drawn = await graph.aget_graph(xray=xray)
    inner = {name: schemas_of(one) async for name, one in graph.aget_subgraphs(namespace=namespace, recurse=recurse)}
    return {"graph": drawn.to_json(), "schemas": schemas_of(graph), "subgraphs": inner}


def schemas_of(graph: Any) -> dict[str, Any]:
    """Return the schemas of a graph; a field whose type has no schema accepts any value."""
    given, context = inputs.read_schema(graph), offered("context schema", graph.context_schema)
    accepted = given.json_schema()
    state = _of_state(graph) if isinstance(graph, CompiledStateGraph) else given.json_schema()
    for known in (accepted["properties"], state["properties"]):
        if "messages" in known:
            known["messages"] = _MESSAGES
    output = {name: known[name] for name in given.outputs if name in known}
    return {
        "input_schema": accepted,
        "output_schema": {"type": "object", "properties": output} if output else state,
        "state_schema": state,
        "config_schema": {"type": "object", "properties": {}},
        "context_schema": context.schema.json_schema() if context and context.declared else None,
    }


def _of_state(graph: Any) -> dict[str, Any]:
    hints = inputs.hints_of(graph.builder.state_schema)
    names = [name for name in graph.builder.schemas[graph.builder.state_schema] if name in graph.channels]
    found = (inputs.Field(name=name, required=False, hint=hints.get(name, Any)) for name in names)
    return {"type": "object", "properties": inputs.InputSchema(fields=tuple(found)).json_schema()["properties"]}


def past_turns(values: Mapping[str, Any]) -> list[PastTurn]:
    """Return the conversation of an imported thread's state; a turn begins at each message of a person."""
    messages: list[Any] = [one for one in inputs.messages_of(values) if isinstance(one, BaseMessage)]
    begins = [at for at, message in enumerate(messages) if isinstance(message, HumanMessage)]
    turns = [_past_turn(messages[start:end]) for start, end in pairwise([*begins, len(messages)])]
    if begins and begins[0] == 0:
        return turns
    lines = inputs.said_or_outcome(messages[: begins[0] if begins else None], "" if begins else _outcome_of(values))
    return [PastTurn(prompt=_IMPORTED, mark="", lines=lines), *turns]


def _past_turn(messages: Sequence[AnyMessage]) -> PastTurn:
    return PastTurn(prompt=str(messages[0].text), mark=str(messages[0].id or ""), lines=inputs.said(messages[1:]))


def _outcome_of(values: Mapping[str, Any]) -> str:
    """Return a thread's state as one line of JSON, for a graph without messages; may be empty."""
    kept = {name: value for name, value in values.items() if not (":" in name or name.startswith("__"))}
    shown = {name: value for name, value in kept.items() if name != inputs.MESSAGES and not inputs.is_empty(value)}
    found = next((values[name] for name in _WHOLE if name in values), shown)
    return inputs.line_of(found) if found else ""
