"""Whether a model's answer can be believed, and what of it may run.

LangChain completes a cut JSON object as well as it can, so that a call with half its arguments looks like a whole one,
and a stream that a server closes early looks like a short answer. Here the pieces are read again, strictly.
"""

import json
from collections.abc import Collection, Sequence
from typing import Any

from langchain_core.callbacks import AsyncCallbackHandler
from langchain_core.messages import AIMessage, AIMessageChunk, AnyMessage, ToolCall, ToolMessage
from langchain_core.messages.ai import UsageMetadata
from langchain_core.messages.utils import count_tokens_approximately
from langchain_core.outputs import ChatGenerationChunk

from agent_runtime.graph.models.faults import Unusable
from agent_runtime.model.words import shortened

# How providers say that an answer is over. One that is not listed here is believed when its stream ends.
_ENDINGS = {
    "openai": ("finish_reason", "status"),
    "azure": ("finish_reason", "status"),
    "deepseek": ("finish_reason",),
    "mistralai": ("finish_reason",),
    "groq": ("finish_reason",),
    "google_genai": ("finish_reason",),
    "anthropic": ("stop_reason",),
    "ollama": ("done_reason",),
}
_CALLING = frozenset({"tool_calls", "function_call", "tool_use"})
_TOO_LONG = frozenset({"length", "max_tokens", "incomplete", "MAX_TOKENS"})
_FILTERED = frozenset({"content_filter", "SAFETY"})
LONGEST_ARGS_SHOWN = 200


class Pieces(AsyncCallbackHandler):
    """Keeps the pieces of one streamed answer, also of one that breaks off."""

    def __init__(self) -> None:
        self.all: list[AIMessageChunk] = []

    async def on_llm_new_token(self, token: Any, *, chunk: Any = None, **kwargs: Any) -> None:
        """Keep a piece."""
        del token, kwargs
        if isinstance(chunk, ChatGenerationChunk) and isinstance(chunk.message, AIMessageChunk):
            self.all.append(chunk.message)

    @property
    def tokens(self) -> tuple[int, int]:
        """What the server said so far that the call used."""
        told = [piece.usage_metadata for piece in self.all if piece.usage_metadata]
        return sum(usage["input_tokens"] for usage in told), sum(usage["output_tokens"] for usage in told)


def examine(message: AIMessage, pieces: Sequence[AIMessageChunk], tools: Collection[str]) -> list[AnyMessage]:
    """Return the answer as it may be acted on, followed by an answer to each of its calls that must not run.

    Args:
        message: the answer as LangChain put it together.
        pieces: what it was put together from; none if it did not come as a stream.
        tools: names of all tools that exist.

    Raises:
        Unusable: the answer broke off, or holds nothing that can be used.
    """
    ending = ending_of(message)
    if pieces and not ending and message.response_metadata.get("model_provider") in _ENDINGS:
        raise Unusable("broke off in the middle of its answer", reason="cut")
    calls = _calls(message, pieces, whole=ending not in _TOO_LONG)
    if ending in _CALLING and not calls:
        raise Unusable("announced a tool call and made none", reason="malformed")
    if ending in _FILTERED and not calls and not message.text.strip():
        what = f"had its answer held back by the provider's filter ({ending})"
        raise Unusable(what, reason="filtered", again=False)
    refused = [_refusal(call, why) for call, error in calls if (why := error or _unknown(call, tools))]
    changes: dict[str, Any] = {"tool_calls": [call for call, _ in calls], "invalid_tool_calls": []}
    if not calls and not message.text.strip() and (words := _declined(message)):
        changes["content"] = words
    return [message.model_copy(update=changes), *refused]


def with_usage(
    message: AIMessage, asked: Sequence[AnyMessage], tools: Sequence[Any], lost: tuple[int, int]
) -> tuple[AIMessage, bool]:
    """Return the answer with what it cost, failed tries included, and whether that had to be estimated.

    Args:
        message: the answer.
        asked: the messages that the model was given.
        tools: the tools that it was offered.
        lost: tokens of earlier tries.
    """
    told = message.usage_metadata
    taken = told["input_tokens"] if told else count_tokens_approximately(asked, tools=[*tools] or None)
    given = told["output_tokens"] if told else count_tokens_approximately([message])
    taken, given = taken + lost[0], given + lost[1]
    usage = UsageMetadata(input_tokens=taken, output_tokens=given, total_tokens=taken + given)
    return message.model_copy(update={"usage_metadata": {**(told or {}), **usage}}), told is None


def ending_of(message: AIMessage) -> str:
    """Return how the provider said that the answer ended, in its own word; empty where it said nothing."""
    metadata = message.response_metadata
    names = _ENDINGS.get(str(metadata.get("model_provider")), ("finish_reason", "stop_reason"))
    return next((str(metadata[name]) for name in names if metadata.get(name)), "")


def _calls(message: AIMessage, pieces: Sequence[AIMessageChunk], *, whole: bool) -> list[tuple[ToolCall, str]]:
    """Return the calls with unique ids, each with what is wrong with it, or nothing."""
    wrong: dict[int, str] = {}
    calls = list(message.tool_calls)
    texts = _texts(pieces)
    if len(texts) == len(calls) + len(message.invalid_tool_calls):
        calls = [ToolCall(name=name, args={}, id=call_id, type="tool_call") for name, _, call_id in texts]
        for at, (_, text, _) in enumerate(texts):
            calls[at]["args"], wrong[at] = _read(text, whole=whole)
    else:  # not streamed, and so read strictly by the provider's library
        for bad in message.invalid_tool_calls:
            wrong[len(calls)] = _not_json(bad.get("args") or "")
            calls.append(ToolCall(name=bad.get("name") or "", args={}, id=bad.get("id"), type="tool_call"))
    if isinstance(message.content, str):  # else the blocks of the content name the same ids
        _make_unique(calls, message.id or "")
    return [(call, wrong.get(at, "")) for at, call in enumerate(calls)]


def _texts(pieces: Sequence[AIMessageChunk]) -> list[tuple[str, str, str | None]]:
    parts = [AIMessageChunk(content="", tool_call_chunks=piece.tool_call_chunks) for piece in pieces]
    parts = [part for part in parts if part.tool_call_chunks]
    if not parts:
        return []
    merged = parts[0] + parts[1:] if parts[1:] else parts[0]
    chunks = merged.tool_call_chunks if isinstance(merged, AIMessageChunk) else []
    return [(chunk["name"] or "", chunk["args"] or "", chunk["id"]) for chunk in chunks]


def _read(text: str, *, whole: bool) -> tuple[dict[str, Any], str]:
    """Return the arguments, or what is wrong with them. Some models send nothing at all for a call without any."""
    if not text.strip() and whole:
        return {}, ""
    try:
        args = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return {}, _not_json(text)
    return (args, "") if isinstance(args, dict) else ({}, _not_json(text))


def _no_constant(name: str) -> object:
    raise ValueError(f"{name} is not JSON")


def _not_json(text: str) -> str:
    shown = shortened(text, LONGEST_ARGS_SHOWN)
    return f"this call was not run: its arguments are not a whole JSON object: {shown or 'nothing'}"


def _make_unique(calls: Sequence[ToolCall], stem: str) -> None:
    """Give each call an id of its own: what answers it, and an author's approval, are bound to that."""
    seen: set[str] = set()
    for at, call in enumerate(calls):
        if not call["id"] or call["id"] in seen:
            call["id"] = f"call-{stem}-{at}"
        seen.add(call["id"] or "")


def _unknown(call: ToolCall, tools: Collection[str]) -> str:
    if call["name"] in tools:
        return ""
    return f"this call was not run: there is no tool {call['name'][:80]!r}; there are {', '.join(sorted(tools))}"


def _refusal(call: ToolCall, why: str) -> ToolMessage:
    return ToolMessage(content=why, name=call["name"], tool_call_id=call["id"] or "", status="error")


def _declined(message: AIMessage) -> str:
    """Return a refusal in words, wherever a provider puts it."""
    said: list[Any] = [message.additional_kwargs.get("refusal")]
    if isinstance(message.content, list):
        said += [block.get("refusal") for block in message.content if isinstance(block, dict)]
    words = " ".join(text for text in said if isinstance(text, str) and text.strip())
    if words:
        return f"The model declined: {words}"
    return "The model declined." if message.response_metadata.get("stop_reason") == "refusal" else ""
