"""Spans of the calls of models and tools inside a turn, by OpenTelemetry's conventions for generative AI.

The spans are made from LangChain's callbacks, so that every graph has them. They include messages only if the author
asks.
"""

import json
from collections.abc import Mapping
from typing import Any

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import BaseMessage, messages_to_dict
from langchain_core.outputs import LLMResult
from langgraph.errors import GraphBubbleUp

from turnkeeper.bus.event_log import EventLog
from turnkeeper.clock import Clock
from turnkeeper.config.settings import Settings
from turnkeeper.rpc.traces import Tracing, TurnSpans, tracing_of

LONGEST_TEXT = 32_768


class CallSpans(BaseCallbackHandler):
    """Callbacks that make a span of each call, under the span of the turn."""

    run_inline = True  # run in order, in the thread of the call

    def __init__(self, spans: TurnSpans, turn_id: str) -> None:
        super().__init__()
        self._tracing, self._parent = spans.tracing, spans.of(turn_id)
        self._open: dict[Any, Any] = {}
        self._above: dict[Any, Any] = {}  # parent ids by the ids of runs

    def on_chain_start(self, *_said: Any, run_id: Any, parent_run_id: Any = None, **_kwargs: Any) -> None:
        """Store the parent of a graph or a node, so that a subagent's calls belong to the call that started it."""
        self._above[run_id] = parent_run_id

    def on_chain_end(self, *_said: Any, run_id: Any, **_kwargs: Any) -> None:
        self._above.pop(run_id, None)

    def on_chain_error(self, *_said: Any, run_id: Any, **_kwargs: Any) -> None:
        self._above.pop(run_id, None)

    def on_chat_model_start(
        self,
        serialized: dict[str, Any],
        messages: list[list[BaseMessage]],
        *,
        run_id: Any,
        metadata: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        said, known = kwargs.get("invocation_params") or {}, metadata or {}
        model = str(said.get("model") or said.get("model_name") or known.get("ls_model_name") or _name(serialized))
        about = {"gen_ai.operation.name": "chat", "gen_ai.request.model": model}
        about["gen_ai.provider.name"] = str(known.get("ls_provider") or said.get("_type") or "unknown")
        if self._tracing.content:
            about["gen_ai.input.messages"] = _text([messages_to_dict(each) for each in messages])
        self._begin(run_id, kwargs.get("parent_run_id"), f"chat {model}", "CLIENT", about)

    def on_llm_end(self, response: LLMResult, *, run_id: Any, **_kwargs: Any) -> None:
        """End a model's span with its token counts."""
        found = [getattr(each, "message", None) for some in response.generations for each in some]
        about: dict[str, Any] = {}
        for message in found:
            usage = getattr(message, "usage_metadata", None) or {}
            about |= {
                f"gen_ai.usage.{name}": usage[name] for name in ("input_tokens", "output_tokens") if name in usage
            }
            if reason := getattr(message, "response_metadata", {}).get("finish_reason"):
                about["gen_ai.response.finish_reasons"] = [str(reason)]
        if self._tracing.content:
            about["gen_ai.output.messages"] = _text(messages_to_dict([each for each in found if each is not None]))
        self._end(run_id, "", about)

    def on_llm_error(self, error: BaseException, *, run_id: Any, **_kwargs: Any) -> None:
        """End a model's span as failed, with the error's type only, because the text may quote a key."""
        self._end(run_id, type(error).__name__, {"error.type": type(error).__name__})

    def on_tool_start(
        self,
        serialized: dict[str, Any],
        input_str: str,
        *,
        run_id: Any,
        inputs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        name = _name(serialized)
        about = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": name, "gen_ai.tool.type": "function"}
        if call_id := kwargs.get("tool_call_id"):
            about["gen_ai.tool.call.id"] = str(call_id)
        if self._tracing.content:
            about["gen_ai.tool.call.arguments"] = _text(inputs or input_str)
        self._begin(run_id, kwargs.get("parent_run_id"), f"execute_tool {name}", "INTERNAL", about)

    def on_tool_end(self, output: Any, *, run_id: Any, **_kwargs: Any) -> None:
        content = getattr(output, "content", output)
        self._end(run_id, "", {"gen_ai.tool.call.result": _text(content)} if self._tracing.content else {})

    def on_tool_error(self, error: BaseException, *, run_id: Any, **_kwargs: Any) -> None:
        """End a tool's span: as failed, or as a question to the author."""
        if isinstance(error, GraphBubbleUp):
            self._end(run_id, "", {"turnkeeper.tool.asks": True})
        else:
            self._end(run_id, type(error).__name__, {"error.type": type(error).__name__})

    def _begin(self, run_id: Any, within: Any, name: str, kind: str, about: Mapping[str, Any]) -> None:
        """Begin a span under the nearest call around it, or else under the turn's span."""
        while within is not None and within not in self._open:
            within = self._above.get(within)
        self._open[run_id] = self._tracing.start(name, kind, self._open.get(within, self._parent), about)

    def _end(self, run_id: Any, error: str, about: Mapping[str, Any]) -> None:
        if (span := self._open.pop(run_id, None)) is not None:
            self._tracing.end(span, error, **about)


class TurnsObserved:
    """The traces of a runtime's turns."""

    def __init__(self, tracing: Tracing, log: EventLog) -> None:
        self._spans, self.close = TurnSpans(tracing, log), tracing.close

    def callbacks(self, turn_id: str) -> list[Any]:
        return [CallSpans(self._spans, turn_id)] if self._spans.of(turn_id) is not None else []


def observe(log: EventLog, settings: Settings, clock: Clock) -> TurnsObserved | None:
    """Trace turns from now on; return None if the settings request no traces."""
    tracing = tracing_of("agent-runtime", settings.traces, clock)
    return None if tracing is None else TurnsObserved(tracing, log)


def _name(serialized: Mapping[str, Any] | None) -> str:
    return str((serialized or {}).get("name") or "unknown")


def _text(what: Any) -> str:
    return json.dumps(what, ensure_ascii=False, default=str)[:LONGEST_TEXT]
