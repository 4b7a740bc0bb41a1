"""The events of running runs: a bounded ring for each thread, in memory, from the beginning of a run.

LangGraph streams parts in several modes; each becomes an event here, as JSON. Readers that come later get the earlier
events too. After a restart the ring is empty, and a reader gets the state from the store instead. If machines share a
store, a ring also contains the events of runs on other machines, while the ring has readers.
"""

import json
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import AIMessageChunk, BaseMessage
from langchain_core.tracers.event_stream import _AstreamEventsCallbackHandler
from langgraph.constants import TAG_HIDDEN

from agent_runtime.graph.engine.states import shown_metadata, to_json
from agent_runtime.model.decide import FINISHED
from agent_runtime.model.turn import TurnContext
from agent_runtime.store.turn_events import Signal

MOST_EVENTS = 5_000  # most events of a thread
MOST_CHARACTERS = 32 << 20  # most bytes of all data of a thread
MOST_THREADS = 256
MODES = ("values", "updates", "messages", "custom", "tasks", "checkpoints", "debug", "tools")
LIFECYCLE = "lifecycle"  # a mode for clients, not a mode of LangGraph's stream: the beginnings and ends of subgraphs
CALLS = "events"  # a mode for clients, not a mode of LangGraph's stream: LangChain's events of each call
_INTERNAL = frozenset({"tasks"})  # recorded for each run with events, because they show where subgraphs begin and end


@dataclass(frozen=True, kw_only=True)
class RunEvent:
    """One event of a run.

    Attributes:
        number: from 1, in the thread; gaps mean that events were dropped.
        mode: one of :data:`MODES`, or `protocol` (an event of a message in the newer protocol), `lifecycle` (of a
            subgraph) or `status` (of the turn).
        namespace: the path of subgraphs; empty for the graph itself.
        sender: the process on another machine that runs the turn; empty for this process.
    """

    number: int
    turn_id: str
    mode: str
    namespace: tuple[str, ...]
    data_json: str
    sender: str = ""

    @property
    def begins(self) -> bool:
        """True if an interval of the turn begins."""
        return self.mode == "status" and json.loads(self.data_json)["status"] == "running"


class Ring:
    """The events of a thread.

    Attributes:
        readers: the number of streams that read the ring.
        since: changes when the ring gets its first reader.
        known: the newest turn that the newest reader knows, and the state in which the turn stopped; the state is empty
            if the reader awaits the turn's end, and both are empty if the reader knows no turn.
        incomplete: the turn that stopped last on another machine and lacks events here, and the turn's state.
    """

    def __init__(self, number: int = 0) -> None:
        self.events: deque[RunEvent] = deque()
        self.changed = Signal()
        self.number, self._characters = number, 0
        self.readers = self.since = 0
        self._broken = ""
        self.known = self.incomplete = ("", "")
        self._heard: dict[str, int] = {}  # by sender: the sender's number of the newest event
        self.running = ""  # the turn whose interval runs in this process
        self.stopped = ("", "")  # the turn that stopped last in this process, and its state

    def add(self, turn_id: str, mode: str, data: Any, namespace: tuple[str, ...] = ()) -> None:
        text = to_json(data)
        self._put(RunEvent(number=self.number + 1, turn_id=turn_id, mode=mode, namespace=namespace, data_json=text))

    def _put(self, event: RunEvent) -> None:
        self.number = event.number
        self.events.append(event)
        self._characters += len(event.data_json)
        while len(self.events) > MOST_EVENTS or self._characters > MOST_CHARACTERS:
            self._characters -= len(self.events.popleft().data_json)
        self.changed.notify()

    def hear(self, sender: str, after: int, told: Mapping[str, Any]) -> None:
        """Add an event of another machine once. `after` is the number of the previous event there; 0 if there is none.

        If events are missing, the end of the turn is not added, so its readers get the state from the store.
        """
        last = self._heard.get(sender, 0)
        if told["number"] <= last:
            return
        self._heard[sender] = told["number"]
        here = {"number": self.number + 1, "namespace": tuple(told["namespace"]), "sender": sender}
        event = RunEvent(**{**told, **here})
        if event.begins:
            self._broken, self.stopped = "", ("", "") if self.stopped[0] == event.turn_id else self.stopped
        elif not after or after != last:
            self._broken = event.turn_id
        if event.mode == "status" and not event.begins:
            stopped = event.turn_id, json.loads(event.data_json)["status"]
            if self._broken == event.turn_id:
                self.incomplete = stopped
                self.changed.notify()
                return
            self.stopped = stopped
        self._put(event)

    @property
    def is_stale(self) -> bool:
        """True if the turn waits, because another machine may continue it, and its events would be missing here."""
        return bool(self._heard) and not self.running and self.stopped[1] not in {"", *FINISHED}

    def after(self, number: int) -> list[RunEvent]:
        return [one for one in self.events if one.number > number]

    def start_of(self, turn_id: str, *, resumed: bool = False) -> int:
        """Return the number before the first event of a turn, or of the newest turn if `turn_id` is empty.

        With `resumed`, return the number at which the turn last waited for a person, if it did.
        """
        of = turn_id or (self.events[-1].turn_id if self.events else "")
        own = [one for one in self.events if one.turn_id == of]
        waited = [one.number for one in own if one.mode == "status" and "interrupted" in one.data_json]
        return waited[-1] if resumed and waited else own[0].number - 1 if own else self.number

    def unknown_from(self, turn_id: str, state: str) -> int:
        """Return the number before the first event that a reader lacks who knows this turn (see :attr:`known`)."""
        own = [one for one in self.events if one.turn_id == turn_id]
        stopped = [one.number for one in own if one.mode == "status" and one.data_json == to_json({"status": state})]
        if stopped or not turn_id:
            return stopped[-1] if stopped else 0
        return self.start_of(turn_id if own else self.running or turn_id, resumed=True)


class RunEvents:
    """The rings of a runtime's threads.

    Attributes:
        read: notified if a ring gets a reader.
        relayed: True if other machines send the events of their runs.
    """

    def __init__(self) -> None:
        self._rings: OrderedDict[str, Ring] = OrderedDict()
        self._numbers = self._since = 0
        self.read, self.relayed = Signal(), False

    def ring(self, thread_id: str) -> Ring:
        """Return a thread's ring, or make one. If there are too many, drop the least recently used idle ring."""
        ring = self._rings.setdefault(thread_id, Ring(self._numbers))
        self._rings.move_to_end(thread_id)
        while len(self._rings) > MOST_THREADS:
            unused = (name for name, one in self._rings.items() if not (one.running or one.readers or one is ring))
            idle = next(unused, "")
            if not idle:
                break
            self._drop(idle)
        return ring

    def _drop(self, thread_id: str) -> None:
        self._numbers = max(self._numbers, self._rings.pop(thread_id).number)  # each number is given only once

    @contextmanager
    def reading(self, thread_id: str, turn_id: str, state: str) -> Iterator[Ring]:
        """Read a thread's ring during the block, by a reader who knows a turn and its state (see `Ring.known`)."""
        ring = self.ring(thread_id)
        if not ring.readers:
            self._since += 1
            ring.since = self._since
        ring.readers, ring.known = ring.readers + 1, (turn_id, state)
        self.read.notify()
        try:
            yield ring
        finally:
            ring.readers -= 1
            if not ring.readers and ring.is_stale:
                self._drop(thread_id)

    def followed(self) -> dict[str, Ring]:
        """Return the rings that have readers, by thread."""
        return {thread_id: ring for thread_id, ring in self._rings.items() if ring.readers}

    def hear(self, thread_id: str, sender: str, after: int, told: Mapping[str, Any]) -> None:
        """Add an event of another machine (see :meth:`Ring.hear`) if the thread's ring has readers."""
        if (ring := self.followed().get(thread_id)) is not None:
            ring.hear(sender, after, told)

    def begin(self, turn: TurnContext, run: Mapping[str, Any]) -> "Recorder":
        """Return the recorder of an interval of a run."""
        ring = self.ring(turn.thread_id)
        ring.running = turn.turn_id
        ring.add(turn.turn_id, "status", {"status": "running"})
        return Recorder(ring, turn.turn_id, run)

    def stopped(self, thread_id: str, turn_id: str, state: str) -> None:
        """Record that the state of a turn is in the store."""
        if (ring := self._rings.get(thread_id)) is not None:
            ring.running, ring.stopped = "", (turn_id, state)
            ring.add(turn_id, "status", {"status": state})


class Recorder:
    """Recorder of one interval.

    Attributes:
        modes: the modes of LangGraph's stream that the run's client asks for.
        callbacks: LangChain's handlers of the interval.
    """

    def __init__(self, ring: Ring, turn_id: str, run: Mapping[str, Any]) -> None:
        asked = [mode for mode in run.get("stream_modes") or () if mode in {*MODES, LIFECYCLE}]
        self.modes = {*asked, *(_INTERNAL if asked else ())} - {LIFECYCLE}
        self.callbacks: list[BaseCallbackHandler] = [_MessageEvents(self)] if "messages" in self.modes else []
        if CALLS in (run.get("stream_modes") or ()):
            self.callbacks.append(_CallEvents(self))
        self.subgraphs = bool(asked)
        self._ring, self._turn_id, self._asked = ring, turn_id, frozenset(asked)
        self._told: set[str] = set()  # messages whose events were recorded
        self._open: dict[tuple[str, ...], str] = {}  # by namespace: the message that is being written, and its text
        self._text: dict[tuple[str, ...], str] = {}
        self._subgraphs: dict[tuple[str, ...], str] = {}  # the name of each subgraph, by namespace
        self._calls: dict[str, str] = {}  # by task: the tool call that the task runs

    def add(self, mode: str, data: Any, namespace: tuple[str, ...] = ()) -> None:
        self._ring.add(self._turn_id, mode, data, namespace)

    async def recorded(self, stream: AsyncIterator[Mapping[str, Any]]) -> AsyncIterator[Mapping[str, Any]]:
        """Record the parts of a graph's stream; yield its states and custom events."""
        async for part in stream:
            self.take(part)
            if part["type"] in {"values", "custom"}:
                yield part

    def take(self, part: Mapping[str, Any]) -> None:
        """Record a part of the graph's stream."""
        namespace, mode, data = tuple(part["ns"]), part["type"], part["data"]
        if mode == "tasks":
            self._task(namespace, data)
        if mode == "messages":
            self._piece(namespace, data[0])
        elif namespace in self._open:
            self._close(namespace)
        if mode == "values" and part.get("interrupts"):
            data = {**_fields(data), "__interrupt__": list(part["interrupts"])}
        if mode in self._asked:
            self.add(mode, _without_ours(mode, data), namespace)

    def _task(self, namespace: tuple[str, ...], data: Mapping[str, Any]) -> None:
        """Record where subgraphs begin and end: at their first task, and at the result of the task around them."""
        if "result" in data:
            ends = [one for one in self._subgraphs if one[:-1] == namespace and one[-1].endswith(f":{data['id']}")]
            event = "interrupted" if data.get("interrupts") else "failed" if data.get("error") else "completed"
            for one in ends:
                self.add(LIFECYCLE, {"event": event, "graph_name": self._subgraphs.pop(one)}, one)
            return
        given = data.get("input")
        first = given[0] if isinstance(given, list) and given else None
        call = given.get("tool_call") if isinstance(given, Mapping) else first
        if isinstance(call, Mapping) and isinstance(call.get("id"), str):
            self._calls[data["id"]] = call["id"]
        if not namespace or namespace in self._subgraphs:
            return
        node, _, task = namespace[-1].partition(":")
        agent = (data.get("metadata") or {}).get("lc_agent_name")
        self._subgraphs[namespace] = agent or node
        about = {"namespace": list(namespace), "graph_name": agent or node, "trigger_call_id": task or None}
        if agent and task in self._calls:
            about["cause"] = {"type": "toolCall", "tool_call_id": self._calls[task]}
        self.add(LIFECYCLE, {"event": "started", **about}, namespace)

    def tell(self, namespace: tuple[str, ...], event: Mapping[str, Any]) -> None:
        """Record an event of a message that a model writes in the newer protocol."""
        if event.get("event") == "message-start":
            self._told.add(str(event.get("id") or event.get("message_id")))
        self.add("protocol", {key: value for key, value in event.items() if key != "run_id"}, namespace)

    def _piece(self, namespace: tuple[str, ...], message: BaseMessage) -> None:
        """Record a piece of a message as events of the newer protocol. A whole message is in the state."""
        if not isinstance(message, AIMessageChunk) or str(message.id) in self._told:
            return
        id_, text = str(message.id), str(message.text)
        if self._open.get(namespace) != id_:
            self._close(namespace)
            self._open[namespace], self._text[namespace] = id_, ""
            self.add("protocol", {"event": "message-start", "role": "ai", "id": id_}, namespace)
            empty = {"type": "text", "text": ""}
            self.add("protocol", {"event": "content-block-start", "index": 0, "content": empty}, namespace)
        if text:
            self._text[namespace] += text
            delta = {"type": "text-delta", "text": text}
            self.add("protocol", {"event": "content-block-delta", "index": 0, "delta": delta}, namespace)
        if message.chunk_position == "last":
            self._close(namespace)

    def _close(self, namespace: tuple[str, ...]) -> None:
        if self._open.pop(namespace, None) is not None:
            whole = {"type": "text", "text": self._text.pop(namespace)}
            self.add("protocol", {"event": "content-block-finish", "index": 0, "content": whole}, namespace)
            self.add("protocol", {"event": "message-finish"}, namespace)


def _without_ours(mode: str, data: Any) -> Any:
    """Return a part's data without our own keys in the metadata of a message or of a task."""
    if mode == "messages":
        return [data[0], shown_metadata(data[1])]
    if mode == "debug":
        return {**data, "payload": _without_ours("tasks", data["payload"])}
    if mode == "tasks" and data.get("metadata"):
        return {**data, "metadata": shown_metadata(data["metadata"])}
    return data


def _fields(values: Any) -> dict[str, Any]:
    return dict(values) if isinstance(values, Mapping) else dict(vars(values)) if hasattr(values, "__dict__") else {}


class _CallEvents(_AstreamEventsCallbackHandler):
    """Recorder of LangChain's events of each call, as `astream_events` streams them, beside the graph's own stream."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self._recorder = recorder

    def _send(self, event: Any, event_type: str) -> None:  # noqa: ARG002 - LangChain's signature
        """Record an event, unless its call is hidden from streams."""
        if TAG_HIDDEN not in event["tags"]:
            self._recorder.add(CALLS, event)


class _MessageEvents(BaseCallbackHandler):
    """Recorder of models' events that a node streams in the newer protocol; LangGraph's mode `messages` lacks them."""

    run_inline = True

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._places: dict[Any, tuple[str, ...]] = {}

    def on_chat_model_start(self, *_given: Any, run_id: Any, metadata: Any = None, **_more: Any) -> None:
        place = str((metadata or {}).get("langgraph_checkpoint_ns", ""))
        self._places[run_id] = tuple(place.split("|")[:-1]) if place else ()

    def on_stream_event(self, event: Mapping[str, Any], *, run_id: Any, **_more: Any) -> None:
        """Record an event of a message."""
        self._recorder.tell(self._places.get(run_id, ()), event)

    def on_llm_end(self, *_given: Any, run_id: Any, **_more: Any) -> None:
        self._places.pop(run_id, None)
