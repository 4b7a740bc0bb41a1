"""The questions of a thread: reading them, and taking back an answer that the graph refused.

LangGraph stores the answers to a step with the step, even if the step then raises, and would give the step the same
answer again. So an answer is taken back if, and only if, its step raised.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Any

from langchain_core.messages import AIMessage
from langgraph.checkpoint.base import WRITES_IDX_MAP, BaseCheckpointSaver
from langgraph.checkpoint.serde.types import ERROR, INTERRUPT, RESUME
from langgraph.types import StateSnapshot

from agent_runtime.graph.engine import stops
from agent_runtime.graph.engine.inputs import as_json, messages_of
from agent_runtime.model.approval import RaisedInterrupt, read_interrupt
from turnkeeper.rpc import forms

Given = dict[tuple[str, str], list[Any]]  # by checkpoint and step: the answers of the step


async def read_questions(
    graph: Any,
    config: Any,
    snapshot: StateSnapshot,
    recorded: Mapping[str, Any],
    hash_of: Callable[[str], str] = lambda _tool: "",
) -> tuple[RaisedInterrupt, ...]:
    """Return the interrupts that a thread waits for.

    Args:
        recorded: the guard's questions, by LangGraph's id.
        hash_of: returns the digest of the graph's only tool with a name; empty if no single tool has the name.
    """
    found = {}
    for item in snapshot.interrupts:  # each level repeats the questions of its subgraphs
        asks = None if item.id in recorded else forms.read(item.value, item.response_schema)
        if asks is not None and asks.form == "decisions":
            whole = await graph.aget_state(config, subgraphs=True)
            asks = forms.with_ids(asks, _calls_at(whole, item.id))
        asks = forms.with_tools(asks, hash_of) if asks is not None else None
        value = item.value if item.id in recorded or asks is not None else as_json(item.value)
        found[item.id] = read_interrupt(item.id, value, recorded.get(item.id), asks)
    return tuple(found.values())


def _calls_at(snapshot: StateSnapshot, interrupt_id: str) -> list[Any]:
    """Return the tool calls of the newest message at a question, in the innermost subgraph that asks the question."""
    calls: list[Any] = []
    for level in stops.levels(snapshot):
        if any(item.id == interrupt_id for task in level.tasks for item in task.interrupts):
            said = [message for message in messages_of(level.values) if isinstance(message, AIMessage)]
            calls = list(said[-1].tool_calls) if said else []
    return calls


async def given_so_far(graph: Any, saver: BaseCheckpointSaver[Any], config: Any) -> Given:
    """Return the earlier answers to the current steps of a thread."""
    given: Given = {}
    async for level, writes in _writes(graph, saver, config):
        for step, channel, value in writes:
            if channel == RESUME:
                given[_name(level), step] = list(value) if isinstance(value, list) else [value]
    return given


async def take_back(
    graph: Any, saver: BaseCheckpointSaver[Any], config: Any, answered: Collection[str], before: Given
) -> frozenset[str]:
    """Take back the newest answer of each step that raised on it; return the ids of the reopened questions.

    Args:
        answered: ids of the questions that were answered in the failed interval.
        before: the result of :func:`given_so_far` from before the interval.
    """
    again: set[str] = set()
    for level, writes in [found async for found in _writes(graph, saver, config)]:
        raised = {step for step, channel, _ in writes if channel == ERROR}
        raised -= {step for step, channel, _ in writes if channel not in WRITES_IDX_MAP}
        asked = [(step, {item.id for item in value}) for step, channel, value in writes if channel == INTERRUPT]
        kept = {one for step, ids in asked if step not in raised for one in ids}  # answers of steps that did not raise
        for step, ids in asked:
            if step not in raised or not (ids & set(answered)) - kept:
                continue
            again |= (ids & set(answered)) - kept
            if any(one == step and channel == RESUME for one, channel, _ in writes):
                await saver.aput_writes(level, [(RESUME, before.get((_name(level), step), []))], step)
    return frozenset(again)


async def _writes(graph: Any, saver: BaseCheckpointSaver[Any], config: Any) -> Any:
    """Yield the configs of the current checkpoints of a thread and its subgraphs, each with the writes of its steps."""
    for level in stops.levels(await graph.aget_state(config, subgraphs=True)):
        found = await saver.aget_tuple(level.config)
        if found is not None:
            yield found.config, found.pending_writes or []


def _name(config: Any) -> str:
    return f"{config['configurable'].get('checkpoint_ns', '')}@{config['configurable']['checkpoint_id']}"
