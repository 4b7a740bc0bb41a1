"""Token counts and live output of the models of running turns.

A subagent's tokens count for the turn that started it, while the subagent runs and in its report.

Live output is for readers who follow the conversation; it is never written to disk. Each turn has one state, not a
queue: the message that its model is writing, and the tool calls of the current step. A reader asks for the new part of
the state. So a slow reader gets fewer and longer pieces, delays no turn, and costs no memory. Any missed output arrives
with the complete turn, from the store.

LangChain asks for callback handlers whenever a model or a tool is about to run, in our own graph and in an author's
graph. This module provides the handlers at that moment. If no reader follows the turn's channel, there is no handler,
and models do not stream. Otherwise the next model or tool publishes its output.
"""

import asyncio
import json
import threading
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, TypeVar, cast

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, LLMResult
from langchain_core.tracers.context import register_configure_hook
from langgraph.errors import GraphBubbleUp

from agent_runtime.graph.context import bound
from agent_runtime.model.turn import MODEL, TurnContext, Used, by_model, totals, used_by, used_from
from agent_runtime.store.turn_events import Signal

# Keys in the artifact of a subagent's report: tokens read and written; the same tokens by model.
SUBAGENT_TOKENS, SUBAGENT_MODELS = "turnkeeper_tokens", "turnkeeper_models"
LONGEST_NAME = 200


def used_in(messages: Sequence[BaseMessage]) -> Used:
    """Return the tokens that models, including those of subagents, read and wrote in these messages, if reported."""
    used = Used()
    for message in messages:
        if isinstance(message, AIMessage) and (told := message.usage_metadata):
            used += used_by(model_of(message), told["input_tokens"], told["output_tokens"])
        elif isinstance(message, ToolMessage) and isinstance(found := message.artifact, dict):
            used += used_from(found.get(SUBAGENT_MODELS, {}), *map(int, found.get(SUBAGENT_TOKENS) or (0, 0)))
    return used


def model_of(message: AIMessage) -> str:
    """Return the model that wrote a message, such as openai:gpt-5. Empty if its provider does not name the model."""
    told = message.response_metadata
    name, provider = str(told.get("model_name") or ""), str(told.get("model_provider") or "")
    said = f"{provider}:{name}" if name and provider not in {"", name} else name
    return str(told.get(MODEL) or said)[:LONGEST_NAME]


def artifact_of(used: Used) -> dict[str, Any]:
    """Return the tokens of a subagent, for the message with its report."""
    return {SUBAGENT_TOKENS: list(totals(used)), SUBAGENT_MODELS: by_model(used)}


@dataclass(frozen=True, kw_only=True)
class ModelCallLog:
    """The log of each model call of an author's graph. Our own agent logs its calls itself.

    Attributes:
        emit: writes an event; called on the loop's thread.
        steady: reads a monotonic clock.
    """

    emit: Callable[..., object]
    steady: Callable[[], float]

    def tell(self, turn_id: str, model: str, tokens: tuple[int, int], took_s: float) -> None:
        """Log a call: its turn, its model, the tokens read and written, and its duration."""
        used = {"model": model, "tokens_in": tokens[0], "tokens_out": tokens[1], "estimated": False}
        self.emit("model.answered", turn_id=turn_id, attempt=1, **used, ending="", took_s=round(took_s, 3))


class ModelUsage(BaseCallbackHandler):
    """Sums of the tokens of finished model calls, including calls in worker threads.

    Attributes:
        used: the tokens of each model so far.
    """

    def __init__(self, turn_id: str, answered: ModelCallLog | None) -> None:
        self._lock, self.used = threading.Lock(), Used()
        self._turn_id, self._answered = turn_id, answered
        self._began: dict[Any, float] = {}
        self._loop = asyncio.get_running_loop()

    def on_chat_model_start(self, *_said: Any, run_id: Any, **_kwargs: Any) -> None:
        if self._answered is not None:
            self._began[run_id] = self._answered.steady()

    on_llm_start = on_chat_model_start

    def on_llm_error(self, *_said: Any, run_id: Any, **_kwargs: Any) -> None:
        """Forget a call that failed."""
        self._began.pop(run_id, None)

    def on_llm_end(self, response: LLMResult, *, run_id: Any = None, **_kwargs: Any) -> None:
        """Add the tokens of a call, if its provider reports them."""
        said: list[Any] = [
            one.message for batch in response.generations for one in batch if isinstance(one, ChatGeneration)
        ]
        used = used_in(said)
        with self._lock:
            self.used = self.used + used
        began = self._began.pop(run_id, None)
        if self._answered is not None and began is not None and not self._loop.is_closed():
            model = model_of(said[0]) if said else ""
            told = self._turn_id, model, totals(used), self._answered.steady() - began
            self._loop.call_soon_threadsafe(self._answered.tell, *told)


class SubagentUsage:
    """The tokens of a turn's subagents so far, by the id of the tool call that started each."""

    def __init__(self) -> None:
        self._used: dict[str, Used] = {}

    def note(self, call_id: str, used: Used) -> None:
        """Set the tokens of a subagent since its start."""
        self._used[call_id] = used

    def used(self, call_id: str) -> Used:
        """Return the tokens of a call's subagent so far; no tokens if it has called no model."""
        return self._used.get(call_id, Used())

    def unreported(self, reported: Collection[str]) -> Used:
        """Return the tokens of the subagents whose calls have no report yet."""
        return sum((used for call_id, used in self._used.items() if call_id not in reported), Used())


_SUBAGENTS: ContextVar[SubagentUsage | None] = ContextVar("turnkeeper_subagent_usage", default=None)


def subagent_usage() -> SubagentUsage:
    """Return the counter of the running turn's subagents; outside a turn, a counter that no code reads."""
    return _SUBAGENTS.get() or SubagentUsage()


def counting_subagents(usage: SubagentUsage) -> AbstractContextManager[SubagentUsage]:
    """Count the tokens of subagents that start in the block in `usage`."""
    return bound(_SUBAGENTS, usage)


LONGEST_REPORT = 1000  # characters
MOST_REPORTS = 64  # most reports of a turn that are kept for slow readers
LONGEST_MESSAGE = 256 * 1024  # most characters of a message's live output; the rest comes with the turn
MOST_CALLS = 64  # most calls of one step in the live output
_SILENT_TAGS = frozenset({"nostream", "langsmith:nostream"})  # tags of models whose output a graph hides
_INNER = "|"  # separator in a checkpoint's namespace, which only the namespace of a subgraph contains
_CALLBACKS: ContextVar["LiveCallbacks | None"] = ContextVar("turnkeeper_live_output", default=None)
T = TypeVar("T")
Count = Callable[[], int | None]


@dataclass(frozen=True, kw_only=True)
class RunningCall:
    """A tool call of a running turn. `state` is running, done or failed."""

    id: str
    name: str
    args_json: str
    state: str = "running"


@dataclass(frozen=True, kw_only=True)
class GraphReport:
    """A report of an author's graph while it runs, other than its messages.

    Attributes:
        number: from 1, in the turn.
        source: the path of subgraphs; empty for the graph itself.
    """

    number: int
    source: str
    text: str


@dataclass(frozen=True, kw_only=True)
class OutputPiece:
    """A piece of a turn's live output.

    Attributes:
        after: the number of messages of agents and tools in the turn before this message.
        message: the message's name; a new name means that the message began again.
        offset: characters of the message before this piece.
        calls: the tool calls of the step, each in its newest state.
    """

    turn_id: str
    thread_id: str
    after: int
    message: str = ""
    offset: int = 0
    text: str = ""
    calls: tuple[RunningCall, ...] = ()
    reports: tuple[GraphReport, ...] = ()


@dataclass(kw_only=True)
class _State:
    channel: str
    thread_id: str
    after: int
    message: str = ""
    text: str = ""
    calls: dict[str, RunningCall] = field(default_factory=dict)
    reports: deque[GraphReport] = field(default_factory=lambda: deque(maxlen=MOST_REPORTS))
    elsewhere: bool = False  # the other machine that runs the turn and sends its output


class Listener:
    """One reader's view of a channel. `changed` is notified if there is unread output.

    A reader that forwards the output to other machines sees only the output of this machine.
    """

    def __init__(self, states: dict[str, _State], channel: str, *, passes_on: bool = False) -> None:
        self.changed, self._passes_on = Signal(), passes_on
        self._states = states
        self._channel = channel
        self._known: dict[str, OutputPiece] = {}

    def news(self, ready: Callable[[str, int], bool]) -> list[OutputPiece]:
        """Return the unread output of running turns, one piece per turn.

        Args:
            ready: takes a turn's id and a number; returns True if the reader has that many messages of the turn. If it
                returns False, the turn's output waits for the next call.
        """
        mine = {turn_id: one for turn_id, one in self._states.items() if one.channel == self._channel}
        if self._passes_on:
            mine = {turn_id: one for turn_id, one in mine.items() if not one.elsewhere}
        self._known = {turn_id: known for turn_id, known in self._known.items() if turn_id in mine}
        found = []
        for turn_id, state in mine.items():
            piece = _piece(turn_id, state, self._known.get(turn_id))
            if piece is not None and ready(turn_id, state.after):
                heard = piece.reports or (known.reports if (known := self._known.get(turn_id)) else ())
                self._known[turn_id] = replace(piece, offset=len(state.text), text="", reports=heard[-1:])
                found.append(piece)
        return found


class LiveOutput:
    """The followed channels and the output of their turns. May be called from any thread.

    Attributes:
        readers: the number of readers of each channel here, without those that forward the output.
        read: notified if a channel gets its first reader.
        runs: the events of runs; None if no surface reads them.
    """

    def __init__(self, runs: Any = None) -> None:
        self.readers, self.read, self.runs = Counter[str](), Signal(), runs
        self._listeners: dict[str, set[Listener]] = {}
        self._states: dict[str, _State] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = 0

    def followed(self, channel: str) -> bool:
        """Return whether any reader follows a channel; without readers no output is published."""
        return channel in self._listeners

    @contextmanager
    def listen(self, channel: str, *, passes_on: bool = False) -> Iterator[Listener]:
        """Follow a channel during the block. Called on the event loop's thread."""
        self._loop, self._thread = asyncio.get_running_loop(), threading.get_ident()
        listener = Listener(self._states, channel, passes_on=passes_on)
        self._listeners.setdefault(channel, set()).add(listener)
        self.readers += Counter([] if passes_on else [channel])
        self.read.notify()
        try:
            yield listener
        finally:
            self.readers -= Counter([] if passes_on else [channel])
            self._listeners[channel].discard(listener)
            if not self._listeners[channel]:
                del self._listeners[channel]
                for turn_id in [key for key, one in self._states.items() if one.channel == channel]:
                    del self._states[turn_id]

    def begin(self, turn_id: str, thread_id: str, channel: str, *, after: int, message: str) -> None:
        fresh = _State(channel=channel, thread_id=thread_id, after=after, message=message)
        self._tell(self._put, turn_id, fresh)

    def say(self, turn_id: str, message: str, text: str) -> None:
        self._tell(self._add, turn_id, message, text)

    def call(self, turn_id: str, thread_id: str, channel: str, *, after: int, call: RunningCall) -> None:
        """Report the state of a tool call."""
        step = _State(channel=channel, thread_id=thread_id, after=after)
        self._tell(self._put_call, turn_id, step, call)

    def report(self, turn_id: str, thread_id: str, channel: str, *, after: int, source: str, text: str) -> None:
        """Report text that a turn's graph produces."""
        step = _State(channel=channel, thread_id=thread_id, after=after)
        self._tell(self._put_report, turn_id, step, source, text[:LONGEST_REPORT])

    def hear(self, channel: str, piece: OutputPiece) -> None:
        """Add the output of a turn on another machine; ignore text that does not follow the last piece."""
        known = self._states.get(piece.turn_id)
        if not self.readers[channel] or (known is not None and not known.elsewhere):
            return
        if known is None or (known.after, known.message) != (piece.after, piece.message):
            self._put(piece.turn_id, _State(
                channel=channel, thread_id=piece.thread_id, after=piece.after, message=piece.message, elsewhere=True
            ))  # fmt: skip
            known = self._states[piece.turn_id]
        if piece.offset == len(known.text) and len(known.text) < LONGEST_MESSAGE:
            known.text += piece.text
        known.calls |= {call.id: call for call in piece.calls}
        newest = known.reports[-1].number if known.reports else 0
        known.reports.extend(report for report in piece.reports if report.number > newest)
        self._ring(channel)

    def over(self, turn_id: str) -> None:
        """End the output of a turn after its messages were stored or discarded."""
        if self._states:
            self._tell(self._states.pop, turn_id, None)

    def _put(self, turn_id: str, state: _State) -> None:
        if self.followed(state.channel):
            if (known := self._states.get(turn_id)) is not None:
                state.reports = known.reports
            self._states[turn_id] = state

    def _put_report(self, turn_id: str, step: _State, source: str, text: str) -> None:
        if turn_id not in self._states:
            self._put(turn_id, step)
        if (known := self._states.get(turn_id)) is not None:
            number = known.reports[-1].number + 1 if known.reports else 1
            known.reports.append(GraphReport(number=number, source=source, text=text))
            self._ring(step.channel)

    def _add(self, turn_id: str, message: str, text: str) -> None:
        state = self._states.get(turn_id)
        if state is not None and state.message == message and len(state.text) < LONGEST_MESSAGE:
            state.text += text[: LONGEST_MESSAGE - len(state.text)]
            self._ring(state.channel)

    def _put_call(self, turn_id: str, step: _State, call: RunningCall) -> None:
        known = self._states.get(turn_id)
        if known is None or known.after != step.after:
            self._put(turn_id, step)
            known = step
        if call.id in known.calls or len(known.calls) < MOST_CALLS:
            known.calls[call.id] = call
            self._ring(step.channel)

    def _ring(self, channel: str) -> None:
        for listener in self._listeners.get(channel, ()):
            listener.changed.notify()

    def _tell(self, do: Callable[..., Any], *args: Any) -> None:
        """Call `do` on the loop's thread, unless no reader has ever followed a channel."""
        if self._loop is not None and threading.get_ident() == self._thread:
            do(*args)
        elif self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(do, *args)


def _piece(turn_id: str, state: _State, known: OutputPiece | None) -> OutputPiece | None:
    """Return the part of a turn's state that the reader does not know yet; None if the reader knows all of it."""
    calls = tuple(state.calls.values())
    same = known is not None and (known.after, known.message) == (state.after, state.message)
    offset = known.offset if known is not None and same else 0
    text = state.text[offset:]
    heard = known.reports[-1].number if known is not None and known.reports else 0
    reports = tuple(one for one in state.reports if one.number > heard)
    if not text and not reports and (known.calls if known is not None and same else ()) == calls:
        return None
    return OutputPiece(
        turn_id=turn_id,
        thread_id=state.thread_id,
        after=state.after,
        message=state.message,
        offset=offset,
        text=text,
        calls=calls,
        reports=reports,
    )


class LiveCallbacks(BaseCallbackHandler):
    """Publisher of the output of a turn's own model in one interval, without that of models inside its tools."""

    run_inline = True
    raise_error = False
    ignore_chain = True
    ignore_retriever = True

    def __init__(self, live: LiveOutput, turn: TurnContext, said: Count) -> None:
        self._live = live
        self._turn = turn
        self._said = said
        self._speaking: Any = None
        self._calls: dict[Any, tuple[int, RunningCall]] = {}

    @property
    def followed(self) -> bool:
        """True if any reader follows the turn's channel."""
        return self._live.followed(self._turn.channel)

    def tap_output_aiter(self, run_id: Any, output: T) -> T:
        """Return the output. LangChain streams models only for a handler that has this method and the next method."""
        del run_id
        return output

    tap_output_iter = tap_output_aiter

    def on_chat_model_start(
        self, serialized: Any, messages: Any, *, run_id: Any, tags: Any = None, metadata: Any = None, **kwargs: Any
    ) -> None:
        del serialized, messages, kwargs
        after = self._said()
        if after is None or self._calls or _is_inner(metadata) or _SILENT_TAGS & set(tags or ()) or not self.followed:
            return
        self._speaking = run_id
        turn = self._turn
        self._live.begin(turn.turn_id, turn.thread_id, turn.channel, after=after, message=str(run_id))

    def on_llm_new_token(self, token: Any, *, chunk: Any = None, run_id: Any, **kwargs: Any) -> None:
        """Publish a piece of a message."""
        del kwargs
        if run_id != self._speaking:
            return
        text = chunk.message.text if isinstance(chunk, ChatGenerationChunk) else token
        if text:
            self._live.say(self._turn.turn_id, str(run_id), str(text))

    def on_tool_start(
        self, serialized: Any, input_str: str, *, run_id: Any, inputs: Any = None, metadata: Any = None, **kwargs: Any
    ) -> None:
        """Report the start of a tool call, with the allowed arguments."""
        call_id, after = kwargs.get("tool_call_id"), self._said()
        if not call_id or after is None or _is_inner(metadata) or not self.followed:
            return
        args = inputs if isinstance(inputs, dict) else {"input": input_str}
        name = str((serialized or {}).get("name", ""))
        call = RunningCall(id=str(call_id), name=name, args_json=json.dumps(args, ensure_ascii=False, default=str))
        self._calls[run_id] = (after, call)
        self._tell(after, call)

    def on_tool_end(self, output: Any, *, run_id: Any, **kwargs: Any) -> None:
        del kwargs
        failed = isinstance(output, ToolMessage) and output.status == "error"
        self._ended(run_id, "failed" if failed else "done")

    def on_tool_error(self, error: BaseException, *, run_id: Any, **kwargs: Any) -> None:
        """Report a tool call that failed, unless it asks the author."""
        del kwargs
        if isinstance(error, GraphBubbleUp):
            self._calls.pop(run_id, None)
        else:
            self._ended(run_id, "failed")

    def _ended(self, run_id: Any, state: str) -> None:
        after, call = self._calls.pop(run_id, (0, None))
        if call is not None:
            self._tell(after, RunningCall(id=call.id, name=call.name, args_json=call.args_json, state=state))

    def _tell(self, after: int, call: RunningCall) -> None:
        turn = self._turn
        self._live.call(turn.turn_id, turn.thread_id, turn.channel, after=after, call=call)


@contextmanager
def publishing(live: LiveOutput | None, turn: TurnContext, said: Count) -> Iterator[None]:
    """Publish the models' and tools' output in the block to `live` while a reader follows the turn's channel."""
    if live is None:
        yield
        return
    _ask_for_handlers()
    try:
        with bound(_CALLBACKS, LiveCallbacks(live, turn, said)):
            yield
    finally:
        live.over(turn.turn_id)


class _WhileFollowed:
    """The context variable that LangChain reads for a handler; None while no reader follows the channel."""

    def get(self) -> LiveCallbacks | None:
        callbacks = _CALLBACKS.get()
        return callbacks if callbacks is not None and callbacks.followed else None


@cache
def _ask_for_handlers() -> None:
    register_configure_hook(cast("ContextVar[BaseCallbackHandler | None]", _WhileFollowed()), inheritable=True)


def _is_inner(metadata: Any) -> bool:
    return _INNER in str((metadata or {}).get("langgraph_checkpoint_ns", ""))
