"""Events for the stream of a run or a thread, made from events that the runtime records during a run. Pure.

`RunStream` converts them to the modes of a run, and `ThreadProtocol` to events of the newer protocol for threads.
The ids of the latter are the same on every connection, so clients can drop duplicates.
"""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from turnkeeper.gateway.lg.approvals import to_interrupt
from turnkeeper.gateway.lg.conversation import run_status
from turnkeeper.v1 import agent_runtime_pb2 as wire

CHANNELS = frozenset({"values", "updates", "messages", "tools", "lifecycle", "input", "checkpoints", "tasks", "custom"})
PROTOCOL_MODES = ("values", "updates", "messages", "custom", "tasks", "tools")  # what the newer protocol needs
_OF_MESSAGES = frozenset({"messages", "messages-tuple"})  # modes that stream each piece of a message
_WITH_QUESTIONS = frozenset({"values", "updates"})
_ALWAYS = frozenset({"type", "content"})  # fields of each message in the newer protocol
_KEPT = _ALWAYS | {"artifact"}  # fields that are sent even if they are empty


class Event(NamedTuple):
    """An event in the form that is sent."""

    name: str
    data: Any
    id: str = ""


class RunStream:
    """The stream of a run in the modes that its client requests."""

    def __init__(self, run_id: str, modes: Collection[str], *, subgraphs: bool = False) -> None:
        self._run_id, self._modes, self._subgraphs = run_id, frozenset(modes), subgraphs
        self._parts: dict[str, dict[str, Any]] = {}  # by id, the message that is being streamed
        self._values: Any = None
        self._told: set[str] = set()  # the questions of all updates
        self._number = 0

    def begin(self) -> Event:
        return self._event("metadata", {"run_id": self._run_id, "attempt": 1})

    def take(self, event: wire.RunEvent) -> Iterator[Event]:
        """Yield the events to send for a recorded event."""
        if event.namespace and not self._subgraphs:
            return
        data = json.loads(event.data_json)
        if event.mode == "messages":
            yield from self._message(event, data) if self._modes & _OF_MESSAGES else ()
        elif event.mode in self._modes:
            asked = _questions(data) if event.mode in _WITH_QUESTIONS else []
            if asked and event.namespace:  # the graph itself asks the same
                return
            if not all(isinstance(one["value"], str) for one in asked):  # clients decide in another form
                asked, data = [], _answered(data)
                if event.mode == "updates":
                    return
            if event.mode == "values" and not event.namespace:
                if _bare(data) == self._values:
                    return
                self._values = _bare(data)
            if event.mode == "updates":
                self._told |= {one["id"] for one in asked}
            yield self._event(_placed(event.mode, event.namespace), data, event.number)

    def values(self, values: Mapping[str, Any]) -> Iterator[Event]:
        """Yield the final state, unless the newest event contained it."""
        if "values" in self._modes and _bare(values) != self._values:
            self._values = _bare(values)
            yield self._event("values", values)

    def waiting(self, asked: Sequence[wire.Interrupt]) -> Iterator[Event]:
        """Yield the pending approvals in the form that clients decide in, except those of earlier updates."""
        left = [to_interrupt(one) for one in asked if one.interrupt_id not in self._told]
        if left and "updates" in self._modes:
            yield self._event("updates", {"__interrupt__": left})

    def end(self, status: str, why: str) -> Event:
        """Return the last event of a run. Without it, clients reconnect."""
        if run_status(status) == "error":
            return self._event("error", {"error": "TurnFailed", "message": why or "the turn failed"})
        return self._event("end", None)

    def _message(self, event: wire.RunEvent, data: list[Any]) -> Iterator[Event]:
        if "messages-tuple" in self._modes:  # as on LangGraph's server, an error takes precedence
            yield self._event(_placed("messages", event.namespace), data, event.number)
            return
        piece, about = data
        known = self._parts.get(str(piece.get("id")))
        if known is None:
            yield self._event("messages/metadata", {piece.get("id"): {"metadata": about}}, event.number)
        whole = piece if known is None else _joined(known, piece)
        self._parts[str(piece.get("id"))] = whole
        is_piece = piece["type"].endswith("Chunk")
        shown = whole | {"type": whole["type"].removesuffix("MessageChunk").lower()}
        name = _placed("messages/partial" if is_piece else "messages/complete", event.namespace)
        yield self._event(name, [shown], event.number)

    def _event(self, name: str, data: Any, number: int = 0) -> Event:
        self._number += 1
        return Event(name, data, f"{number}.{self._number}")


def _bare(data: Any) -> Any:
    """Return a state whose questions have only their ids and values."""
    asked = [{"id": one["id"], "value": one["value"]} for one in _questions(data)]
    return {**data, "__interrupt__": asked} if asked else data


def _questions(data: Any) -> list[Any]:
    """Return the questions in a state or an update."""
    return (data.get("__interrupt__") if isinstance(data, Mapping) else None) or []


def _answered(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return a state or an update without its questions."""
    return {key: value for key, value in data.items() if key != "__interrupt__"}


def _placed(name: str, namespace: Iterable[str]) -> str:
    return "|".join((name, *namespace))


def _joined(known: dict[str, Any], piece: Mapping[str, Any]) -> dict[str, Any]:
    before, more = known["content"], piece["content"]
    fits = isinstance(before, str) and isinstance(more, str)
    return {**known, "content": before + more if fits else more or before}


class ThreadProtocol:
    """Events of a thread in LangGraph's newer protocol, filtered by its client's subscription."""

    def __init__(self, body: Mapping[str, Any], graph: str) -> None:
        """Report on the requested channels and namespaces. `custom:NAME` counts as `custom`."""
        self._channels = frozenset(channel.partition(":")[0] for channel in body["channels"])
        self._namespaces, self._depth, self._graph = body.get("namespaces"), body.get("depth"), graph

    def take(self, event: wire.RunEvent) -> Iterator[dict[str, Any]]:
        """Yield the protocol's event for a recorded event. For a status, use :meth:`status`."""
        data, method = json.loads(event.data_json), "messages" if event.mode == "protocol" else event.mode
        if event.mode in {"messages", "tasks", "checkpoints", "debug", "status"}:
            return
        if event.mode in _WITH_QUESTIONS:
            data = _slim(_answered(data))
        yield from self._event(method, data, event, list(event.namespace))

    def status(
        self, event: wire.RunEvent, status: str, why: str, asked: Sequence[wire.Interrupt]
    ) -> Iterator[dict[str, Any]]:
        """Yield events for a status of a turn, with the approvals that wait."""
        if status == "interrupted":
            for one in asked:
                value = to_interrupt(one)["value"]  # under both names that clients read
                shown = {"interrupt_id": one.interrupt_id, "payload": value, "value": value}
                yield from self._event("input.requested", shown, event, [], one.interrupt_id)
        phase = {"running": "running", "interrupted": "interrupted", "succeeded": "completed", "silent": "completed"}
        data = {"event": phase.get(status, "failed"), "graph_name": self._graph}
        if status not in {*phase, "paused"}:
            data["error"] = why or status
        if status != "paused":
            yield from self._event("lifecycle", data, event, [])

    def _event(
        self, method: str, data: Any, event: wire.RunEvent, namespace: list[str], about: str = ""
    ) -> Iterator[dict[str, Any]]:
        channel = "input" if method == "input.requested" else method
        if channel in self._channels and self._fits(namespace):
            id_ = f"{event.turn_id}:{event.number}:{method}{f':{about}' if about else ''}"
            if not event.number:  # position of the state in the store
                id_ += f":{data.get('event', '') if isinstance(data, dict) else ''}"
            params = {"namespace": namespace, "data": data}
            yield {"type": "event", "method": method, "params": params, "event_id": id_, "seq": event.number}

    def _fits(self, namespace: list[str]) -> bool:
        if not self._namespaces:
            return True
        inside = [one for one in self._namespaces if namespace[: len(one)] == one]
        return any(self._depth is None or len(namespace) - len(one) <= self._depth for one in inside)


def _slim(value: Any) -> Any:
    """Return a state with messages that have no empty fields."""
    if isinstance(value, list):
        return [_slim(one) for one in value]
    if not isinstance(value, dict):
        return value
    if value.keys() >= _ALWAYS and "additional_kwargs" in value:
        return {key: one for key, one in value.items() if key in _KEPT or one not in (None, [], {})}
    return {key: _slim(one) for key, one in value.items()}
