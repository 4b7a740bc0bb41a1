"""The events of runs while they happen: a bounded ring for each thread, in memory, from the beginning of a run.

LangGraph streams parts in several modes; each becomes an event here, as JSON. Readers that come later get the earlier
events too. After a restart the ring is empty, and a reader gets the state from the store instead.
"""

from collections import OrderedDict, deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import AIMessageChunk, BaseMessage

from agent_runtime.graph.engine.states import to_json
from agent_runtime.model.signal import Signal
from agent_runtime.model.turn import TurnContext

MOST_EVENTS = 5_000  # of a thread
MOST_CHARACTERS = 32 << 20  # of all data of a thread
MOST_THREADS = 256
MODES = ("values", "updates", "messages", "custom", "tasks", "checkpoints", "debug", "tools")
_INTERNAL = frozenset({"tasks"})  # recorded for each run with events: they show where subgraphs begin and end


@dataclass(frozen=True, kw_only=True)
class RunEvent:
    """One event of a run.

    Attributes:
        number: from 1, in the thread; gaps mean that events were dropped.
        mode: one of :data:`MODES`, or `protocol` (an event of a message in the newer protocol), `lifecycle` (of a
            subgraph) or `status` (of the turn).
        namespace: the path of subgraphs; empty for the graph itself.
    """

    number: int
    turn_id: str
    mode: str
    namespace: tuple[str, ...]
    data_json: str


class Ring:
    """The events of a thread."""

    def __init__(self) -> None:
        self.events: deque[RunEvent] = deque()
        self.changed = Signal()
        self.number = self._characters = 0
        self.running = ""  # the turn whose interval runs in this process
        self.stopped = ("", "")  # the turn that stopped last in this process, and its state

    def add(self, turn_id: str, mode: str, data: Any, namespace: tuple[str, ...] = ()) -> None:
        self.number += 1
        text = to_json(data)
        self.events.append(
            RunEvent(number=self.number, turn_id=turn_id, mode=mode, namespace=namespace, data_json=text)
        )
        self._characters += len(text)
        while len(self.events) > MOST_EVENTS or self._characters > MOST_CHARACTERS:
            self._characters -= len(self.events.popleft().data_json)
        self.changed.notify()

    def after(self, number: int) -> list[RunEvent]:
        return [one for one in self.events if one.number > number]

    def start_of(self, turn_id: str, *, resumed: bool = False) -> int:
        """Return the number before the first event of a turn, or of the newest one if `turn_id` is empty.

        With `resumed`, return the number at which the turn last waited for a person, if it did.
        """
        of = turn_id or (self.events[-1].turn_id if self.events else "")
        own = [one for one in self.events if one.turn_id == of]
        waited = [one.number for one in own if one.mode == "status" and "interrupted" in one.data_json]
        return waited[-1] if resumed and waited else own[0].number - 1 if own else self.number


class RunEvents:
    """The rings of a runtime's threads."""

    def __init__(self) -> None:
        self._rings: OrderedDict[str, Ring] = OrderedDict()

    def ring(self, thread_id: str) -> Ring:
        """Return a thread's ring, or make one. If there are too many, drop the least recently used idle ring."""
        ring = self._rings.setdefault(thread_id, Ring())
        self._rings.move_to_end(thread_id)
        while len(self._rings) > MOST_THREADS:
            idle = next((name for name, one in self._rings.items() if not one.running and one is not ring), "")
            if not idle:
                break
            del self._rings[idle]
        return ring

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
    """Records one interval.

    Attributes:
        modes: the modes of LangGraph's stream that the run's client asks for.
        callbacks: LangChain's handlers of the interval.
    """

    def __init__(self, ring: Ring, turn_id: str, run: Mapping[str, Any]) -> None:
        asked = [mode for mode in run.get("stream_modes") or () if mode in MODES]
        self.modes = {*asked, *(_INTERNAL if asked else ())}
        self.callbacks = [_MessageEvents(self)] if "messages" in self.modes else []
        self.subgraphs = bool(asked)
        self._ring, self._turn_id, self._asked = ring, turn_id, frozenset(asked)
        self._told: set[str] = set()  # messages whose events were recorded
        self._open: dict[tuple[str, ...], str] = {}  # by namespace: the message that is being written, and its text
        self._text: dict[tuple[str, ...], str] = {}
        self._subgraphs: dict[tuple[str, ...], str] = {}  # with the name of each
        self._calls: dict[str, str] = {}  # by task: the tool call that it runs

    def add(self, mode: str, data: Any, namespace: tuple[str, ...] = ()) -> None:
        self._ring.add(self._turn_id, mode, data, namespace)

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
            self.add(mode, list(data) if mode == "messages" else data, namespace)

    def _task(self, namespace: tuple[str, ...], data: Mapping[str, Any]) -> None:
        """Record where subgraphs begin and end: at their first task, and at the result of the task around them."""
        if "result" in data:
            ends = [one for one in self._subgraphs if one[:-1] == namespace and one[-1].endswith(f":{data['id']}")]
            event = "interrupted" if data.get("interrupts") else "failed" if data.get("error") else "completed"
            for one in ends:
                self.add("lifecycle", {"event": event, "graph_name": self._subgraphs.pop(one)}, one)
            return
        given = data.get("input")
        call = (
            given.get("tool_call")
            if isinstance(given, Mapping)
            else given[0]
            if isinstance(given, list) and given
            else None
        )
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
        self.add("lifecycle", {"event": "started", **about}, namespace)

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


def _fields(values: Any) -> dict[str, Any]:
    return dict(values) if isinstance(values, Mapping) else dict(vars(values)) if hasattr(values, "__dict__") else {}


class _MessageEvents(BaseCallbackHandler):
    """Records events of models that a node streams in the newer protocol; LangGraph's mode `messages` lacks them."""

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
