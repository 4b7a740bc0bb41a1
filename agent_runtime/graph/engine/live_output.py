"""What running turns say just now, for whoever follows their conversation; none of it is on disk, or has to be.

Kept is one state a turn, not a queue: the message that its model is writing, as far as it has come, and the tool calls
of the step that it takes. A reader asks for what it has not seen of that. So a slow one gets fewer and longer pieces,
holds up nobody, and costs no memory; whatever it missed comes whole with the turn, from the store.

LiveCallbacks a running turn: the pieces of what its model writes, and its tool calls as they start and end.

LangChain asks for handlers of its callbacks wherever a model or a tool is about to run, in our own graph and in a
foreign one alike. The answer here is looked up at that moment: nobody follows the turn's channel, and there is no
handler, so that its models are not asked to stream and nothing is paid; somebody does, and from the next model or tool
on it is told.
"""

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, TypeVar, cast

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import ToolMessage
from langchain_core.outputs import ChatGenerationChunk
from langchain_core.tracers.context import register_configure_hook
from langgraph.errors import GraphBubbleUp

from agent_runtime.model.signal import Signal
from agent_runtime.model.turn import TurnContext

LONGEST_MESSAGE = 256 * 1024  # characters of one message that are told as they come; the rest comes with the turn
MOST_CALLS = 64  # of one step that are told of


@dataclass(frozen=True, kw_only=True)
class RunningCall:
    """A tool call of a running turn. `state` is running, done or failed."""

    id: str
    name: str
    args_json: str
    state: str = "running"


@dataclass(frozen=True, kw_only=True)
class OutputPiece:
    """A piece of what a turn says.

    Attributes:
        turn_id: the turn.
        thread_id: its thread.
        after: how many messages of agents and tools it has before the message that this is a piece of.
        message: names that message; another name says that it began anew.
        offset: characters of the message before this piece.
        text: the piece.
        calls: the tool calls of its step, each in its newest state.
    """

    turn_id: str
    thread_id: str
    after: int
    message: str = ""
    offset: int = 0
    text: str = ""
    calls: tuple[RunningCall, ...] = ()


@dataclass(kw_only=True)
class _Saying:
    channel: str
    thread_id: str
    after: int
    message: str = ""
    text: str = ""
    calls: dict[str, RunningCall] = field(default_factory=dict)


class Listener:
    """One reader's view of a channel. `changed` rings when there is something that it has not heard."""

    def __init__(self, sayings: dict[str, _Saying], channel: str) -> None:
        self.changed = Signal()
        self._sayings = sayings
        self._channel = channel
        self._known: dict[str, OutputPiece] = {}

    def news(self, ready: Callable[[str, int], bool]) -> list[OutputPiece]:
        """Return what running turns have said since this was last asked, one piece a turn.

        Args:
            ready: whether the reader has all of a turn, by its id, before its message of that number; what the others
                say is left for another time.
        """
        mine = {turn_id: one for turn_id, one in self._sayings.items() if one.channel == self._channel}
        self._known = {turn_id: known for turn_id, known in self._known.items() if turn_id in mine}
        found = []
        for turn_id, saying in mine.items():
            piece = _piece(turn_id, saying, self._known.get(turn_id))
            if piece is not None and ready(turn_id, saying.after):
                self._known[turn_id] = replace(piece, offset=len(saying.text), text="")
                found.append(piece)
        return found


class LiveOutput:
    """Who follows which channel, and what their turns say. May be told from any thread."""

    def __init__(self) -> None:
        self._ears: dict[str, set[Listener]] = {}
        self._sayings: dict[str, _Saying] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = 0

    def followed(self, channel: str) -> bool:
        """Return whether anybody follows a channel: only then is there anything to tell."""
        return channel in self._ears

    @contextmanager
    def listen(self, channel: str) -> Iterator[Listener]:
        """Follow a channel for the block. Called on the event loop's thread."""
        self._loop, self._thread = asyncio.get_running_loop(), threading.get_ident()
        listener = Listener(self._sayings, channel)
        self._ears.setdefault(channel, set()).add(listener)
        try:
            yield listener
        finally:
            self._ears[channel].discard(listener)
            if not self._ears[channel]:
                del self._ears[channel]
                for turn_id in [key for key, one in self._sayings.items() if one.channel == channel]:
                    del self._sayings[turn_id]

    def begin(self, turn_id: str, thread_id: str, channel: str, *, after: int, message: str) -> None:
        """A turn's model begins a message."""
        fresh = _Saying(channel=channel, thread_id=thread_id, after=after, message=message)
        self._tell(lambda: self._put(turn_id, fresh))

    def say(self, turn_id: str, message: str, text: str) -> None:
        """It has written so much more of it."""
        self._tell(lambda: self._add(turn_id, message, text))

    def call(self, turn_id: str, thread_id: str, channel: str, *, after: int, call: RunningCall) -> None:
        """A tool call of a turn's step has come to a state."""
        step = _Saying(channel=channel, thread_id=thread_id, after=after)
        self._tell(lambda: self._put_call(turn_id, step, call))

    def over(self, turn_id: str) -> None:
        """A turn runs no more; what it said is on disk, or came to nothing."""
        if self._sayings:
            self._tell(lambda: self._drop(turn_id))

    def _drop(self, turn_id: str) -> None:
        self._sayings.pop(turn_id, None)

    def _put(self, turn_id: str, saying: _Saying) -> None:
        if self.followed(saying.channel):
            self._sayings[turn_id] = saying

    def _add(self, turn_id: str, message: str, text: str) -> None:
        saying = self._sayings.get(turn_id)
        room = LONGEST_MESSAGE - len(saying.text) if saying is not None and saying.message == message else 0
        if saying is not None and room > 0:
            saying.text += text[:room]
            self._ring(saying.channel)

    def _put_call(self, turn_id: str, step: _Saying, call: RunningCall) -> None:
        known = self._sayings.get(turn_id)
        if known is None or known.after != step.after:
            self._put(turn_id, step)
            known = step
        if call.id in known.calls or len(known.calls) < MOST_CALLS:
            known.calls[call.id] = call
            self._ring(step.channel)

    def _ring(self, channel: str) -> None:
        for listener in self._ears.get(channel, ()):
            listener.changed.notify()

    def _tell(self, do: Callable[[], None]) -> None:
        if self._loop is None:
            return  # nobody has ever followed anything
        if threading.get_ident() == self._thread:
            do()
        elif not self._loop.is_closed():
            self._loop.call_soon_threadsafe(do)


def _piece(turn_id: str, saying: _Saying, known: OutputPiece | None) -> OutputPiece | None:
    """Return what of a turn's saying is not known; None where all is."""
    calls = tuple(saying.calls.values())
    same = known is not None and (known.after, known.message) == (saying.after, saying.message)
    offset = known.offset if known is not None and same else 0
    text = saying.text[offset:]
    if not text and (known.calls if known is not None and same else ()) == calls:
        return None
    return OutputPiece(
        turn_id=turn_id,
        thread_id=saying.thread_id,
        after=saying.after,
        message=saying.message,
        offset=offset,
        text=text,
        calls=calls,
    )


_QUIET = frozenset({"nostream", "langsmith:nostream"})  # tags by which a graph keeps a model's words to itself
_INNER = "|"  # parts the names in a checkpoint's namespace: only a subgraph's has more than one
_HEARD: ContextVar["LiveCallbacks | None"] = ContextVar("turnkeeper_overhearing", default=None)
T = TypeVar("T")
Count = Callable[[], int | None]


class LiveCallbacks(BaseCallbackHandler):
    """Tells of one interval of one turn: of its own model's words, not of those of models inside its tools."""

    run_inline = True
    raise_error = False

    def __init__(self, live: LiveOutput, turn: TurnContext, said: Count) -> None:
        self._live = live
        self._turn = turn
        self._said = said
        self._speaking: Any = None
        self._calls: dict[Any, tuple[int, RunningCall]] = {}

    @property
    def wanted(self) -> bool:
        """Whether anybody follows the turn's channel."""
        return self._live.followed(self._turn.channel)

    @property
    def ignore_chain(self) -> bool:
        """Chains are none of its business."""
        return True

    @property
    def ignore_retriever(self) -> bool:
        """Nor are retrievers."""
        return True

    def tap_output_aiter(self, run_id: Any, output: T) -> T:
        """Having this, and the next, is how a handler says that it wants models to stream."""
        del run_id
        return output

    def tap_output_iter(self, run_id: Any, output: T) -> T:
        """See `tap_output_aiter`."""
        del run_id
        return output

    def on_chat_model_start(
        self, serialized: Any, messages: Any, *, run_id: Any, tags: Any = None, metadata: Any = None, **kwargs: Any
    ) -> None:
        """A model is asked."""
        del serialized, messages, kwargs
        after = self._said()
        if after is None or self._calls or _is_inner(metadata) or _QUIET & set(tags or ()) or not self.wanted:
            return
        self._speaking = run_id
        turn = self._turn
        self._live.begin(turn.turn_id, turn.thread_id, turn.channel, after=after, message=str(run_id))

    def on_llm_new_token(self, token: Any, *, chunk: Any = None, run_id: Any, **kwargs: Any) -> None:
        """It has written a piece."""
        del kwargs
        if run_id != self._speaking:
            return
        text = chunk.message.text if isinstance(chunk, ChatGenerationChunk) else token
        if text:
            self._live.say(self._turn.turn_id, str(run_id), str(text))

    def on_tool_start(
        self, serialized: Any, input_str: str, *, run_id: Any, inputs: Any = None, metadata: Any = None, **kwargs: Any
    ) -> None:
        """A tool call begins: whoever had to allow it has."""
        call_id, after = kwargs.get("tool_call_id"), self._said()
        if not call_id or after is None or _is_inner(metadata) or not self.wanted:
            return
        args = inputs if isinstance(inputs, dict) else {"input": input_str}
        name = str((serialized or {}).get("name", ""))
        call = RunningCall(id=str(call_id), name=name, args_json=json.dumps(args, ensure_ascii=False, default=str))
        self._calls[run_id] = (after, call)
        self._tell(after, call)

    def on_tool_end(self, output: Any, *, run_id: Any, **kwargs: Any) -> None:
        """A tool call has an answer."""
        del kwargs
        failed = isinstance(output, ToolMessage) and output.status == "error"
        self._ended(run_id, "failed" if failed else "done")

    def on_tool_error(self, error: BaseException, *, run_id: Any, **kwargs: Any) -> None:
        """A tool call raised; one that asks the author is not over."""
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
    """Let `live` be told of what runs in the block, whenever somebody follows the turn's channel."""
    if live is None:
        yield
        return
    _ask_for_handlers()
    token = _HEARD.set(LiveCallbacks(live, turn, said))
    try:
        yield
    finally:
        _HEARD.reset(token)
        live.over(turn.turn_id)


class _Asked:
    """What LangChain asks for the handler of a context: empty while nobody follows."""

    def get(self) -> LiveCallbacks | None:
        heard = _HEARD.get()
        return heard if heard is not None and heard.wanted else None


@cache
def _ask_for_handlers() -> None:
    register_configure_hook(cast("ContextVar[BaseCallbackHandler | None]", _Asked()), inheritable=True)


def _is_inner(metadata: Any) -> bool:
    return _INNER in str((metadata or {}).get("langgraph_checkpoint_ns", ""))
