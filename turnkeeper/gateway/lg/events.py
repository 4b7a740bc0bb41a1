"""Events of a run's or a thread's stream, made from a conversation that is followed. Pure.

`Follower` finds changes: pieces of a message as its model writes it, recorded messages, and tool calls. `RunEvents`
converts them to the modes of a run's stream, and `ThreadEvents` to events of the newer protocol for threads. The ids of
the latter are the same on every connection, so clients can drop duplicates.
"""

import json
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from turnkeeper.gateway.lg import conversation
from turnkeeper.gateway.lg.approvals import to_interrupt
from turnkeeper.v1 import agent_runtime_pb2 as wire

_PARTS = ("content-block-start", "content-block-delta", "content-block-finish")
CHANNELS = frozenset({"values", "updates", "messages", "tools", "lifecycle", "input", "checkpoints", "tasks", "custom"})


class Piece(NamedTuple):
    """A piece of a message. `so_far` is the message up to and including the piece."""

    id: str
    text: str
    so_far: str
    begins: bool


class Whole(NamedTuple):
    """A recorded message. `rest` is the part that no piece had; `begins` means that there was no piece."""

    message: dict[str, Any]
    rest: str
    begins: bool


class Call(NamedTuple):
    """A tool call and its state: running, done or failed."""

    call: dict[str, Any]
    state: str


class Custom(NamedTuple):
    """Data of a turn besides its messages. `id` is the same on every repetition."""

    id: str
    data: Any


Item = Piece | Whole | Call | Custom


@dataclass
class _Heard:
    """The received part of a message. `round` counts how often its model began again; `start` is its first offset."""

    name: str
    round: int
    start: int
    text: str = ""


class Follower:
    """Finds changes in the turns of a conversation."""

    def __init__(self) -> None:
        self._heard: dict[tuple[str, int], _Heard] = {}
        self._recorded: dict[str, int] = {}
        self._told: set[str] = set()
        self._calls: dict[str, str] = {}

    def skip(self, turn: wire.ConversationTurn) -> None:
        """Treat the recorded part of a turn as already sent."""
        for _ in self.recorded(turn):
            pass

    def heard(self, turn_id: str, speech: wire.Speech) -> Iterator[Item]:
        """Yield the changes in the text that a running turn is writing."""
        if speech.text:
            yield from self._piece(turn_id, speech)
        for call in speech.calls:
            if call.id and self._calls.get(call.id) != call.state:
                self._calls[call.id] = call.state
                yield Call(conversation.tool_call(call), call.state)
        for report in speech.reports:
            yield Custom(f"{turn_id}:report-{report.number}", _read(report.text))

    def _piece(self, turn_id: str, speech: wire.Speech) -> Iterator[Item]:
        held = self._heard.get((turn_id, speech.after))
        begins = held is None or held.name != speech.message
        if held is None or begins:
            held = _Heard(speech.message, held.round + 1 if held else 1, speech.offset)
            self._heard[turn_id, speech.after] = held
        known = held.start + len(held.text) - speech.offset
        if (new := speech.text[max(known, 0) :]) or begins:
            held.text += new
            yield Piece(self._id(turn_id, speech.after), new, held.text, begins)

    def _id(self, turn_id: str, after: int) -> str:
        """Return a message's id. Clients join pieces with one id, so a message that begins again needs another."""
        held = self._heard.get((turn_id, after))
        again = f".{held.round}" if held is not None and held.round > 1 else ""
        return conversation.message_id(turn_id, after) + again

    def recorded(self, turn: wire.ConversationTurn) -> Iterator[Item]:
        """Yield the changes in a turn that was received whole."""
        if turn.HasField("trigger") and self._is_new(f"{turn.turn_id}:trigger"):
            yield Custom(f"{turn.turn_id}:trigger", {"turnkeeper": {"trigger": conversation.mark_of(turn)}})
        said = [one for one in conversation.messages_of(turn) if one["type"] != "human"]
        for at, one in enumerate(said[self._recorded.get(turn.turn_id, 0) :], self._recorded.get(turn.turn_id, 0)):
            held = self._heard.get((turn.turn_id, at))
            fits = held is not None and one["content"][held.start :].startswith(held.text)
            rest = one["content"][held.start + len(held.text) :] if held is not None and fits else one["content"]
            yield Whole(one, rest, not fits)
        self._recorded[turn.turn_id] = len(said)
        for candidate in turn.candidates:
            if self._is_new(candidate.candidate_id):
                about = {"id": candidate.candidate_id, "kind": candidate.kind, "title": candidate.title}
                yield Custom(f"{turn.turn_id}:{candidate.candidate_id}", {"turnkeeper": {"candidate": about}})

    def _is_new(self, name: str) -> bool:
        is_new = name not in self._told
        self._told.add(name)
        return is_new


def _read(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


class Event(NamedTuple):
    """One event in the form in which it is sent."""

    name: str
    data: Any
    id: str = ""


class RunEvents:
    """The stream of a run, or of all runs of a thread if `run_id` is empty, in the modes that its client requests."""

    def __init__(self, run_id: str, modes: Collection[str], base: int = 0) -> None:
        """Report in these modes; event ids begin with `base`."""
        self._run_id, self._modes, self._base = run_id, frozenset(modes), base
        self.follower = Follower()
        self._number = 0
        self._values: dict[str, Any] | None = None

    def begin(self, attempt: int = 1) -> Event:
        """Return the first event."""
        return self._event("metadata", {"run_id": self._run_id, "attempt": attempt})

    def heard(self, turn_id: str, speech: wire.Speech) -> Iterator[Event]:
        if turn_id == self._run_id or not self._run_id:
            for item in self.follower.heard(turn_id, speech):
                yield from self._said(item)

    def recorded(self, turn: wire.ConversationTurn, turns: Sequence[wire.ConversationTurn]) -> Iterator[Event]:
        """Yield events for a turn that was received whole, one of its thread's `turns`."""
        if turn.turn_id == self._run_id or not self._run_id:
            for item in self.follower.recorded(turn):
                yield from self._said(item)
            if "updates" in self._modes and (asked := conversation.waiting_in([turn])):
                yield self._event("updates", {"__interrupt__": [to_interrupt(one) for one in asked]})
        yield from self.values(turns)

    def values(self, turns: Sequence[wire.ConversationTurn]) -> Iterator[Event]:
        """Yield the thread's state if it has changed."""
        values = conversation.values_of(turns)
        if "values" in self._modes and values != self._values:
            self._values = values
            yield self._event("values", values)

    def end(self, status: str, why: str) -> Event:
        """Return the last event of a run. Without it, clients reconnect."""
        if conversation.run_status(status) == "error":
            return self._event("error", {"error": "TurnFailed", "message": why or "the turn failed"})
        return self._event("end", None)

    def _said(self, item: Item) -> Iterator[Event]:
        if isinstance(item, Custom):
            if "custom" in self._modes:
                yield self._event("custom", item.data)
        elif isinstance(item, Piece):
            yield from self._pieces(item)
        elif isinstance(item, Whole):
            yield from self._whole(item)

    def _pieces(self, item: Piece) -> Iterator[Event]:
        if "messages-tuple" in self._modes:
            yield self._event("messages", [_chunk(item.id, item.text), self._about()])
        if "messages" in self._modes:
            yield self._event("messages/partial", [{"type": "ai", "id": item.id, "content": item.so_far}])

    def _whole(self, item: Whole) -> Iterator[Event]:
        message = item.message
        if "messages-tuple" in self._modes:
            said = message
            if message["type"] == "ai":
                said = _chunk(message["id"], item.rest, message["tool_calls"])
            if message["type"] != "ai" or item.rest or message["tool_calls"]:
                yield self._event("messages", [said, self._about()])
        if "messages" in self._modes:
            yield self._event("messages/complete", [message])
        if "updates" in self._modes:
            node = "tools" if message["type"] == "tool" else conversation.NODE
            yield self._event("updates", {node: {"messages": [message]}})

    def _about(self) -> dict[str, Any]:
        return {"langgraph_node": conversation.NODE, "run_id": self._run_id or None}

    def _event(self, name: str, data: Any) -> Event:
        self._number += 1
        return Event(name, data, f"{self._base}.{self._number}")


def _chunk(id_: str, text: str, calls: Iterable[dict[str, Any]] = ()) -> dict[str, Any]:
    chunks = [
        {"type": "tool_call_chunk", "id": one["id"], "name": one["name"], "args": json.dumps(one["args"]), "index": at}
        for at, one in enumerate(calls)
    ]
    empty: dict[str, Any] = {"additional_kwargs": {}, "response_metadata": {}}
    return {"type": "AIMessageChunk", "id": id_, "content": text, "tool_call_chunks": chunks, **empty}


class ThreadEvents:
    """Events of a thread in LangGraph's newer protocol, for the channels that its client requests."""

    def __init__(self, channels: Collection[str]) -> None:
        """Report on these channels; `custom:NAME` counts as `custom`."""
        self._channels = frozenset(channel.partition(":")[0] for channel in channels)
        self.follower = Follower()
        self._sent: set[str] = set()
        self._values: dict[str, Any] | None = None

    def heard(self, turn_id: str, speech: wire.Speech) -> Iterator[dict[str, Any]]:
        for item in self.follower.heard(turn_id, speech):
            yield from self._said(item)

    def recorded(self, turn: wire.ConversationTurn, turns: Sequence[wire.ConversationTurn]) -> Iterator[dict[str, Any]]:
        """Yield events for a turn that was received whole, one of its thread's `turns`."""
        at = turn.turn_id
        yield from self._event("lifecycle", {"event": "started", "graph_name": conversation.NODE}, f"{at}:started")
        for item in self.follower.recorded(turn):
            yield from self._said(item)
        values = conversation.values_of(turns)
        if values != self._values:
            self._values = values
            yield from self._event("values", values, f"{at}:values-{len(values['messages'])}-{turn.status}")
        for asked in conversation.waiting_in([turn]):
            value = to_interrupt(asked)["value"]
            data = {"interrupt_id": asked.interrupt_id, "payload": value, "value": value}
            yield from self._event("input.requested", data, f"{at}:{asked.interrupt_id}")
        if turn.status in conversation.FINISHED:
            ended = {"event": "completed"} if turn.status in {"succeeded", "silent"} else {"event": "failed"}
            why = {"error": turn.error or turn.status} if ended["event"] == "failed" else {}
            yield from self._event("lifecycle", {**ended, **why, "graph_name": conversation.NODE}, f"{at}:ended")

    def _said(self, item: Item) -> Iterator[dict[str, Any]]:
        if isinstance(item, Piece):
            if item.begins:
                yield from self._begin(item.id)
            if item.text:
                at = len(item.so_far) - len(item.text)
                yield from self._part(item.id, 1, {"delta": {"type": "text-delta", "text": item.text}}, f"+{at}")
        elif isinstance(item, Whole):
            yield from self._whole(item)
        elif isinstance(item, Call):
            yield from self._call(item)
        else:
            yield from self._event("custom", {"payload": item.data}, item.id)

    def _begin(self, id_: str) -> Iterator[dict[str, Any]]:
        about = {"langgraph_node": conversation.NODE}
        yield from self._message(id_, {"event": "message-start", "role": "ai", "metadata": about}, "start")
        yield from self._part(id_, 0, {"content": {"type": "text", "text": ""}})

    def _whole(self, item: Whole) -> Iterator[dict[str, Any]]:
        message = item.message
        if message["type"] == "tool":
            done = {"type": "tool_call", "id": message["tool_call_id"], "name": "", "args": {}}
            yield from self._call(Call(done | {"output": message["content"]}, "done"))
            return
        id_ = message["id"]
        if item.begins:
            yield from self._begin(id_)
        if item.rest:
            at = len(message["content"]) - len(item.rest)
            yield from self._part(id_, 1, {"delta": {"type": "text-delta", "text": item.rest}}, f"+{at}")
        yield from self._part(id_, 2, {"content": {"type": "text", "text": message["content"]}})
        for index, call in enumerate(message["tool_calls"], 1):
            chunk = {"type": "tool_call_chunk", "id": call["id"], "name": call["name"], "args": ""}
            yield from self._part(id_, 0, {"index": index, "content": chunk}, f"-{index}")
            yield from self._part(id_, 2, {"index": index, "content": call}, f"-{index}")
            yield from self._call(Call(call, "running"))
        yield from self._message(id_, {"event": "message-finish"}, "finish")

    def _part(self, id_: str, which: int, data: dict[str, Any], at: str = "") -> Iterator[dict[str, Any]]:
        yield from self._message(id_, {"event": _PARTS[which], "index": 0, **data}, f"{which}{at}")

    def _message(self, id_: str, data: dict[str, Any], at: str) -> Iterator[dict[str, Any]]:
        yield from self._event("messages", {**data, "id": id_}, f"{id_}:{at}")

    def _call(self, item: Call) -> Iterator[dict[str, Any]]:
        call, id_ = item.call, item.call["id"]
        data: dict[str, Any] = {"event": "tool-finished", "tool_call_id": id_, "output": call.get("output", "")}
        if item.state == "running":
            data = {"event": "tool-started", "tool_call_id": id_, "tool_name": call["name"], "input": call["args"]}
        elif item.state == "failed":
            data = {"event": "tool-error", "tool_call_id": id_, "message": "the call failed"}
        elif "output" not in call:
            return  # the message with its result follows
        yield from self._event("tools", data, f"{id_}:{data['event']}")

    def _event(self, method: str, data: dict[str, Any], id_: str) -> Iterator[dict[str, Any]]:
        channel = "input" if method == "input.requested" else method
        if channel in self._channels and id_ not in self._sent:
            self._sent.add(id_)
            yield {"type": "event", "method": method, "params": {"namespace": [], "data": data}, "event_id": id_}
