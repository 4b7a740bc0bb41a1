"""Conversion of threads and turns to the threads, runs, states and messages of LangGraph's clients. Pure.

A thread is a thread, and a run is a turn. A thread's messages are those of its turns, in order. A message's id names
its turn and its position, so a streamed piece already has the final message's id.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from turnkeeper.errors import InvalidInput
from turnkeeper.gateway.lg.approvals import to_interrupt
from turnkeeper.v1 import agent_runtime_pb2 as wire

OWN = "agent0"  # the clients' second name of the default graph
NODE = "agent"  # the only node of a thread's graph
_PENDING = frozenset({"accepted", "held", "kept", "paused", "delivered"})
_RUNS = {"running": "running", "succeeded": "success", "silent": "success", "failed": "error"}
_THREADS = {"running": "busy", "accepted": "busy", "paused": "busy", "failed": "error"}
FINISHED = frozenset({"succeeded", "silent", "failed", "cancelled"})
ANY = frozenset({"accepted", "held", "kept", "running", "interrupted", "paused"}) | FINISHED


def run_status(status: str) -> str:
    """Return the clients' name for a turn's status.

    >>> run_status("silent"), run_status("held"), run_status("cancelled")
    ('success', 'pending', 'interrupted')
    """
    return "pending" if status in _PENDING else _RUNS.get(status, "interrupted")


def turn_statuses(status: str) -> frozenset[str]:
    """Return the turns' statuses to which this status of clients corresponds. Raises InvalidInput if it is unknown."""
    found = frozenset(one for one in ANY if run_status(one) == status)
    if not found and status != "timeout":  # a turn that times out counts as failed
        known = "pending, running, success, error, timeout or interrupted"
        raise InvalidInput(f"no run has the status {status[:40]!r}", where="status", hint=f"one of {known}")
    return found


def thread_status(thread: wire.Thread) -> str:
    """Return the clients' name for a thread's status; a pending approval takes precedence."""
    return "interrupted" if thread.waiting else _THREADS.get(thread.status, "idle")


def is_over(turn: wire.ConversationTurn) -> bool:
    """Return True if a turn is over, or continues only after a person's decision."""
    return turn.status in FINISHED or bool(waiting_in([turn]))


def waiting_in(turns: Iterable[wire.ConversationTurn]) -> list[wire.Interrupt]:
    """Return the pending approvals of these turns."""
    return [one for turn in turns for one in turn.interrupts if one.status == "pending"]


def read_prompt(messages: object) -> tuple[str, str]:
    """Return the text of the last human message, and its id if it has one.

    >>> read_prompt([{"role": "user", "content": "Hello", "id": "1"}, {"type": "ai", "content": "Yes?"}])
    ('Hello', '1')

    Raises:
        InvalidInput: there is no such message, or it contains more than text.
    """
    for one in reversed(messages if isinstance(messages, list) else [messages]):
        said = {"role": "user", "content": one} if isinstance(one, str) else _paired(one)
        if isinstance(said, dict) and any(said.get(name) in ("human", "user") for name in ("type", "role")):
            text = _text(said.get("content"))
            if text.strip():
                return text, said["id"] if isinstance(said.get("id"), str) else ""
    hint = "give input={'messages': [{'role': 'user', 'content': 'TEXT'}]}"
    raise InvalidInput("holds no human message", where="input.messages", hint=hint)


def _paired(said: object) -> object:
    """Convert a message in the form (role, text) to an object; return any other unchanged."""
    return {"role": said[0], "content": said[1]} if isinstance(said, list) and len(said) == 2 else said


def _text(content: object) -> str:
    if isinstance(content, str):
        return content
    blocks = content if isinstance(content, list) else [content]
    texts = []
    for block in blocks:
        text = block if isinstance(block, str) else block.get("text") if isinstance(block, dict) else None
        if not isinstance(text, str) or (isinstance(block, dict) and block.get("type", "text") != "text"):
            kind = block.get("type") if isinstance(block, dict) else type(block).__name__
            hint = "send text only; a file belongs to a page: turnkeeper workspace attach"
            raise InvalidInput(f"holds a block of type {str(kind)[:40]!r}", where="input.messages", hint=hint)
        texts.append(text)
    return "\n".join(texts)


def message_id(turn_id: str, said: int) -> str:
    """Return the id of the message that follows `said` messages of agents and tools in its turn."""
    return f"{turn_id}-{said}"


def messages_of(turn: wire.ConversationTurn) -> list[dict[str, Any]]:
    """Return a turn's messages, oldest first."""
    found, said, heard = [], 0, 0
    for one in turn.messages:
        if one.role in {"agent", "tool"}:
            found.append(_spoken(one, message_id(turn.turn_id, said)))
            said += 1
        else:
            kept = {"turnkeeper": mark_of(turn)} if turn.HasField("trigger") else {}
            found.append(_message("human", one.text, f"{turn.turn_id}-in{heard}", additional_kwargs=kept))
            heard += 1
    return found


def _spoken(one: wire.Message, id_: str) -> dict[str, Any]:
    if one.role == "tool":
        return _message("tool", one.text, id_, tool_call_id=one.tool_call_id, status="success")
    return _message("ai", one.text, id_, tool_calls=[tool_call(call) for call in one.tool_calls])


def _message(kind: str, text: str, id_: str, **rest: Any) -> dict[str, Any]:
    return {"type": kind, "content": text, "id": id_, "additional_kwargs": {}, "response_metadata": {}} | rest


def tool_call(call: wire.ToolCall | wire.RunningCall) -> dict[str, Any]:
    return {"id": call.id, "name": call.name, "args": json.loads(call.args_json or "{}"), "type": "tool_call"}


def mark_of(turn: wire.ConversationTurn) -> dict[str, Any]:
    """Return the trigger of a task's turn: its scheduled time, and how many times it stands for."""
    mark = turn.trigger
    times = {"nominal_at": time_of(mark, "nominal_at"), "fired_at": time_of(mark, "fired_at")}
    return {"task": mark.task, "fire_id": mark.fire_id, "stands_for": mark.stands_for or 1, **times}


def values_of(turns: Sequence[wire.ConversationTurn]) -> dict[str, Any]:
    """Return a thread's state: the messages of its turns, and its pending approvals."""
    values: dict[str, Any] = {"messages": [one for turn in turns for one in messages_of(turn)]}
    if waiting := waiting_in(turns):
        values["__interrupt__"] = [to_interrupt(one) for one in waiting]
    return values


def states_of(thread_id: str, turns: Sequence[wire.ConversationTurn]) -> list[dict[str, Any]]:
    """Return one state per turn of a thread, newest first; the checkpoint's id is the turn's id."""
    return [_state(thread_id, turns[: at + 1]) for at in reversed(range(len(turns)))]


def state_of(thread_id: str, turns: Sequence[wire.ConversationTurn]) -> dict[str, Any]:
    """Return the newest state of a thread; a thread without turns has no checkpoint."""
    if turns:
        return _state(thread_id, turns)
    nothing = dict.fromkeys(("checkpoint", "parent_checkpoint", "created_at"))
    return {"values": {}, "next": [], "tasks": [], "interrupts": [], "metadata": {}, **nothing}


def _state(thread_id: str, turns: Sequence[wire.ConversationTurn]) -> dict[str, Any]:
    turn, before = turns[-1], turns[-2] if len(turns) > 1 else None
    asked, values = [to_interrupt(one) for one in waiting_in([turn])], values_of(turns)
    values.pop("__interrupt__", None)
    task = {"id": turn.turn_id, "name": NODE, "path": ["__pregel_pull", NODE], "error": turn.error or None}
    open_ = turn.status not in FINISHED
    shown = open_ or turn.status == "failed"
    return {
        "values": values,
        "next": [NODE] if open_ else [],
        "tasks": [task | {"interrupts": asked, "checkpoint": None, "state": None, "result": None}] if shown else [],
        "interrupts": asked,
        "checkpoint": checkpoint(thread_id, turn.turn_id),
        "parent_checkpoint": checkpoint(thread_id, before.turn_id) if before is not None else None,
        "metadata": {"source": "loop", "step": len(turns), "thread_id": thread_id, "run_id": turn.turn_id},
        "created_at": time_of(turn, "ended_at") or time_of(turn, "started_at"),
    }


def checkpoint(thread_id: str, turn_id: str) -> dict[str, Any]:
    return {"thread_id": thread_id, "checkpoint_ns": "", "checkpoint_id": turn_id, "checkpoint_map": None}


def run_of(turn: wire.Turn, assistant_id: str, **rest: Any) -> dict[str, Any]:
    about = {"turnkeeper": {"channel": turn.channel, "category": turn.category, "task": turn.task_name or None}}
    ended = time_of(turn, "ended_at")
    return {
        "run_id": turn.turn_id,
        "thread_id": turn.thread_id,
        "assistant_id": assistant_id,
        "status": run_status(turn.status),
        "created_at": time_of(turn, "started_at"),
        "updated_at": ended or time_of(turn, "started_at"),
        "metadata": about,
        "kwargs": {},
        "multitask_strategy": "enqueue",
        "cancel_reason": turn.error or None if turn.status == "cancelled" else None,
    } | rest


def thread_of(
    thread: wire.Thread,
    turns: Sequence[wire.ConversationTurn] | None,
    asked: Iterable[wire.Interrupt],
    graph_id: str,
    assistant_id: str,
) -> dict[str, Any]:
    """Return a thread; without values if no turns are given.

    Each approval has its own key, so clients that read only the first of a list see all approvals.
    """
    about = {"channel": thread.channel, "task": thread.task_name or None}
    graph, given = {"graph_id": graph_id, "assistant_id": assistant_id}, json.loads(thread.metadata_json or "{}")
    of_graph = given | graph if thread.turns else graph | given  # before its first turn, a thread has no graph
    at = {name: time_of(thread, name) for name in ("created_at", "updated_at")}
    values = {} if turns is None else {"values": {"messages": values_of(turns)["messages"]}}
    return {
        "thread_id": thread.thread_id,
        "metadata": of_graph | {"turnkeeper": about},
        "status": thread_status(thread),
        "interrupts": {one.interrupt_id: [to_interrupt(one)] for one in asked},
        "config": {},
        "error": None,
        **at,
        "state_updated_at": at["updated_at"],
        **values,
    }


def holds(metadata: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Return True if metadata contains all wanted values; nested objects are compared in the same way.

    >>> holds({"a": 1, "b": {"c": 2, "d": 3}}, {"b": {"c": 2}})
    True
    """
    for key, value in wanted.items():
        held = metadata.get(key)
        same = holds(held, value) if isinstance(held, Mapping) and isinstance(value, Mapping) else held == value
        if key not in metadata or not same:
            return False
    return True


def time_of(message: Any, name: str) -> str | None:
    """Return an instant of a message in the clients' format; None if it is not set."""
    if not message.HasField(name):
        return None
    return str(getattr(message, name).ToJsonString())
