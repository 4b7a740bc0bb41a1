"""Overhearing a running turn: the pieces of what its model writes, and its tool calls as they start and end.

LangChain asks for handlers of its callbacks wherever a model or a tool is about to run, in our own graph and in a
foreign one alike. The answer here is looked up at that moment: nobody follows the turn's channel, and there is no
handler, so that its models are not asked to stream and nothing is paid; somebody does, and from the next model or tool
on it is told.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any, TypeVar, cast

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import ToolMessage
from langchain_core.outputs import ChatGenerationChunk
from langchain_core.tracers.context import register_configure_hook
from langgraph.errors import GraphBubbleUp

from agent_runtime.graph.engine.live import Call, Live
from agent_runtime.model.values import TurnContext

_QUIET = frozenset({"nostream", "langsmith:nostream"})  # tags by which a graph keeps a model's words to itself
_INNER = "|"  # parts the names in a checkpoint's namespace: only a subgraph's has more than one
_HEARD: ContextVar["Overhearing | None"] = ContextVar("turnkeeper_overhearing", default=None)
T = TypeVar("T")
Count = Callable[[], int | None]


class Overhearing(BaseCallbackHandler):
    """Tells of one interval of one turn: of its own model's words, not of those of models inside its tools."""

    run_inline = True
    raise_error = False

    def __init__(self, live: Live, turn: TurnContext, said: Count) -> None:
        """Take whom to tell, the turn, and what counts the messages that it has said; None where that is not known."""
        self._live = live
        self._turn = turn
        self._said = said
        self._speaking: Any = None
        self._calls: dict[Any, tuple[int, Call]] = {}

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
        call = Call(id=str(call_id), name=name, args_json=json.dumps(args, ensure_ascii=False, default=str))
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
            self._tell(after, Call(id=call.id, name=call.name, args_json=call.args_json, state=state))

    def _tell(self, after: int, call: Call) -> None:
        turn = self._turn
        self._live.call(turn.turn_id, turn.thread_id, turn.channel, after=after, call=call)


@contextmanager
def overheard(live: Live | None, turn: TurnContext, said: Count) -> Iterator[None]:
    """Let `live` be told of what runs in the block, whenever somebody follows the turn's channel."""
    if live is None:
        yield
        return
    _ask_for_handlers()
    token = _HEARD.set(Overhearing(live, turn, said))
    try:
        yield
    finally:
        _HEARD.reset(token)
        live.over(turn.turn_id)


class _Asked:
    """What LangChain asks for the handler of a context: empty while nobody follows."""

    def get(self) -> Overhearing | None:
        heard = _HEARD.get()
        return heard if heard is not None and heard.wanted else None


@cache
def _ask_for_handlers() -> None:
    register_configure_hook(cast("ContextVar[BaseCallbackHandler | None]", _Asked()), inheritable=True)


def _is_inner(metadata: Any) -> bool:
    return _INNER in str((metadata or {}).get("langgraph_checkpoint_ns", ""))
