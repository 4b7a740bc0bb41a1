"""Conversion of threads and turns to the threads, runs, states and messages of LangGraph's clients. Pure.

A thread is a thread, and a run is a turn. Its state is the state that its graph has saved.
"""

import json
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any
from uuid import UUID  # noqa: TID251 - parses: nothing is drawn

from turnkeeper.errors import InvalidInput
from turnkeeper.gateway.lg.approvals import to_interrupt
from turnkeeper.v1 import agent_runtime_pb2 as wire

OWN = "agent0"  # the clients' second name for the default graph
_PENDING = frozenset({"accepted", "held", "kept", "paused", "delivered"})
_RUNS = {"running": "running", "succeeded": "success", "silent": "success", "failed": "error"}
_THREADS = {"running": "busy", "accepted": "busy", "paused": "busy", "failed": "error"}
FINISHED = frozenset({"succeeded", "silent", "failed", "cancelled"})
ANY = frozenset({"accepted", "held", "kept", "running", "interrupted", "paused"}) | FINISHED


LATER = re.compile(r"run-[0-9a-f]{32}")  # the task that starts a run later; its name is the id of the run


def is_uuid(text: str) -> bool:
    """Return True if a string has the form of the ids that clients make.

    >>> is_uuid("6d1d3862-7f10-5e24-b465-4276d1eb94d7"), is_uuid("agent0")
    (True, False)
    """
    try:
        return str(UUID(text)) == text
    except ValueError:
        return False


def run_status(status: str) -> str:
    """Return the clients' name for a turn's status.

    >>> run_status("silent"), run_status("held"), run_status("cancelled")
    ('success', 'pending', 'interrupted')
    """
    return "pending" if status in _PENDING else _RUNS.get(status, "interrupted")


def turn_statuses(status: str) -> frozenset[str]:
    """Return the turn statuses that correspond to this status of clients. Raises InvalidInput if it is unknown."""
    found = frozenset(one for one in ANY if run_status(one) == status)
    if not found and status != "timeout":  # a turn that times out counts as failed
        known = "pending, running, success, error, timeout or interrupted"
        raise InvalidInput(f"no run has the status {status[:40]!r}", where="status", hint=f"one of {known}")
    return found


def thread_status(thread: wire.Thread) -> str:
    """Return the clients' name for a thread's status. A pending approval takes precedence."""
    return "interrupted" if thread.waiting else _THREADS.get(thread.status, "idle")


def shown(messages: object) -> tuple[str, str]:
    """Return the text of the last human message, and its id. Both may be empty. Other content is left out.

    >>> shown([{"role": "user", "content": [{"type": "text", "text": "Hello"}, {"type": "image"}], "id": "1"}])
    ('Hello', '1')
    """
    for one in reversed(messages if isinstance(messages, list) else [messages]):
        pair = ["user", one] if isinstance(one, str) else one  # or a message in the form (role, text)
        said = {"role": pair[0], "content": pair[1]} if isinstance(pair, list) and len(pair) == 2 else pair
        if isinstance(said, dict) and any(said.get(name) in ("human", "user") for name in ("type", "role")):
            content = said.get("content")
            blocks = content if isinstance(content, list) else [content]
            texts = [
                one if isinstance(one, str) else one.get("text") if isinstance(one, dict) else "" for one in blocks
            ]
            text = "\n".join(one for one in texts if isinstance(one, str))
            return text if text.strip() else "", said["id"] if isinstance(said.get("id"), str) else ""
    return "", ""


def is_write(turn: wire.Turn) -> bool:
    """Return True if a turn is a client's write to the state. Such a turn is not a run of the graph."""
    return "write" in json.loads(turn.run_json or "{}")


def run_of(turn: wire.Turn, assistant_id: str, gone: Collection[str] = (), **rest: Any) -> dict[str, Any]:
    """Return a turn as a run.

    Args:
        assistant_id: the assistant of its graph, named if the one that began it is among `gone`.
    """
    run = json.loads(turn.run_json or "{}")
    began = run.get("assistant_id")
    given = run.get("metadata") or {}
    about = given | {"turnkeeper": {"channel": turn.channel, "category": turn.category, "task": turn.task_name or None}}
    ended = time_of(turn, "ended_at")
    return {
        "run_id": turn.task_name if LATER.fullmatch(turn.task_name) else turn.turn_id,
        "thread_id": turn.thread_id,
        "assistant_id": began if began and began not in gone else assistant_id,
        # A stored cancellation is carried out, even after a crash.
        "status": "interrupted" if turn.cancel_requested and turn.status not in FINISHED else run_status(turn.status),
        "created_at": time_of(turn, "started_at"),
        "updated_at": ended or time_of(turn, "started_at"),
        "metadata": about,
        "kwargs": {},
        "multitask_strategy": "enqueue",
        "cancel_reason": turn.error or None if turn.status == "cancelled" else None,
    } | rest


def thread_of(
    thread: wire.Thread,
    values: Mapping[str, Any] | None,
    asked: Iterable[wire.Interrupt],
    graph_id: str,
    assistant_id: str,
) -> dict[str, Any]:
    """Return a thread, without values if none are given.

    Each approval has its own key, so clients that read only the first item of a list see all approvals.
    """
    about = {"channel": thread.channel, "task": thread.task_name or None}
    made, given = json.loads(thread.run_json or "{}").get("assistant_id"), json.loads(thread.metadata_json or "{}")
    graph = {"graph_id": graph_id, "assistant_id": made or assistant_id}
    of_graph = given | graph if thread.turns else graph | given  # before its first turn, a thread has no graph
    at = {name: time_of(thread, name) for name in ("created_at", "updated_at")}
    return {
        "thread_id": thread.thread_id,
        "metadata": of_graph | {"turnkeeper": about},
        "status": thread_status(thread),
        "interrupts": {one.interrupt_id: [to_interrupt(one)] for one in asked},
        "config": {"configurable": {}},
        "error": None,
        **at,
        "state_updated_at": at["updated_at"],
        **({} if values is None else {"values": dict(values)}),
    }


def state_with(state: dict[str, Any], asked: Iterable[wire.Interrupt]) -> dict[str, Any]:
    """Return a state in which pending approvals have the form for clients' decisions."""
    known = {one.interrupt_id: to_interrupt(one) for one in asked}
    inside = {one["id"] for one in state["interrupts"]}
    _name(state, known)
    state["interrupts"] += [one for id_, one in known.items() if id_ not in inside]
    return state


def _name(place: dict[str, Any], known: Mapping[str, Any]) -> None:
    """Replace the questions of a state or a task by those with the same ids, also in its subgraphs."""
    place["interrupts"] = [known.get(one["id"], one) for one in place["interrupts"]]
    for inner in (*place.get("tasks", ()), place.get("state")):
        if inner is not None:
            _name(inner, known)


def time_of(message: Any, name: str) -> str | None:
    """Return an instant from a message in the clients' format, or None if it is not set."""
    if not message.HasField(name):
        return None
    return str(getattr(message, name).ToJsonString())
