"""The result of one model call: a fault and whether to retry, or an answer and the calls in it that may run.

An error is classified by its HTTP response and the names of its classes, so that no provider's package is needed. From
version 1.6 on, LangChain raises one family of errors for all providers; before that, providers raise their own.

LangChain completes a truncated JSON object as far as it can. So a call with half of its arguments looks complete, and a
stream that a server closes early looks like a short answer. This module parses the pieces again, strictly.
"""

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any

from langchain_core.callbacks import AsyncCallbackHandler
from langchain_core.messages import AIMessage, AIMessageChunk, AnyMessage, ToolCall, ToolMessage
from langchain_core.messages.ai import UsageMetadata
from langchain_core.messages.utils import count_tokens_approximately
from langchain_core.outputs import ChatGenerationChunk

from agent_runtime.graph.models.make import redact
from agent_runtime.model.turn import MODEL, Used
from agent_runtime.model.words import shortened
from turnkeeper.errors import TurnkeeperError

MOST_TRIES = 5
FIRST_WAIT_S = 1.0  # doubled after each further try
LONGEST_WAIT_S = 30.0
LONGEST_ASKED_S = 60.0  # if a server asks for a longer wait, the call fails, because the turn blocks its thread
LONGEST_QUOTE = 200
_PASSING = frozenset({408, 409, 425, 429})
_SPENT = frozenset({"insufficient_quota", "billing_hard_limit_reached"})
_TIMEOUTS = {"TimeoutError", "ModelTimeoutError", "APITimeoutError", "TimeoutException"}  # the last name is httpx's
_DISCONNECTS = {"ConnectionError", "ModelConnectionError", "APIConnectionError", "TransportError"}  # last: httpx
CHECK = "check name and address"  # the setting that names the model follows
_KEYS = "put a valid key into the environment or into .env in the home, then restart agent-runtime"
_REFUSALS = {
    401: ("refused the key (401)", _KEYS),
    402: ("requires payment (402)", "check the account's credit"),
    403: ("does not let this key use the model (403)", _KEYS),
    404: ("does not know the model or address (404)", CHECK),
}


class ModelFailed(TurnkeeperError):
    """A model gave no usable answer.

    Attributes:
        used: tokens that its tries read and wrote, as far as the server reported them.
    """

    used = Used()


class Unusable(Exception):
    """An answer arrived that must not be used.

    Attributes:
        reason: one word for the event log.
        again: True if another try may give a better answer.
    """

    def __init__(self, what: str, *, reason: str, again: bool = True) -> None:
        super().__init__(what)
        self.reason = reason
        self.again = again


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A failed call, classified.

    Attributes:
        reason: one word for the event log: the HTTP status if there is one.
        what: the end of a sentence that begins with the model; it may quote the server.
        hint: advice; empty if the general advice applies.
        again: True if a retry makes sense.
        asked_s: the wait that the server requests, in seconds; None if it requests no wait.
    """

    reason: str
    what: str
    hint: str = ""
    again: bool = False
    asked_s: float | None = None


def read_fault(error: Exception, now: datetime, secrets: Collection[str] = ()) -> Fault:
    """Return the fault for an error of a model call.

    A server may name an instant to wait for, so the runtime's time is an argument. The function hides secrets before it
    cuts a long text, because it would not recognize the rest of a cut key.
    """
    if isinstance(error, Unusable):
        return Fault(reason=error.reason, what=str(error), again=error.again)
    if "ContextOverflowError" in _class_names(error):
        hint = "continue in a new thread: turnkeeper send CHANNEL TEXT --new"
        return Fault(reason="overflow", what="does not accept a conversation of this length", hint=hint)
    status = getattr(error, "status_code", None)
    quote = _quote(error, secrets)
    return _read_status(error, status, now, quote) if isinstance(status, int) else _read_kind(error, quote)


def wait_before(attempt: int, fault: Fault, jitter: float) -> float | None:
    """Return how many seconds to wait before try number `attempt` + 1; None to give up.

    Args:
        attempt: tries made so far.
        jitter: between 0 and 1; spreads the waits of many turns.

    >>> [wait_before(tries, Fault(reason="x", what="x", again=True), 1.0) for tries in (1, 2, 3, 4, 5)]
    [1.0, 2.0, 4.0, 8.0, None]
    >>> wait_before(1, Fault(reason="429", what="x", again=True, asked_s=7.0), 0.0)
    7.0
    """
    if not fault.again or attempt >= MOST_TRIES:
        return None
    if fault.asked_s is not None:
        return fault.asked_s if fault.asked_s <= LONGEST_ASKED_S else None
    return float(min(FIRST_WAIT_S * 2 ** (attempt - 1), LONGEST_WAIT_S) * (0.5 + jitter / 2))


def _read_kind(error: Exception, quote: str) -> Fault:
    """Return the fault for an error without a status; the first matching kind counts."""
    spent = hasattr(error, "body") and _is_spent(error)
    kinds = (
        (_TIMEOUTS, Fault(reason="timeout", what="did not answer in time", again=True)),
        (_DISCONNECTS, Fault(reason="connection", what="cannot be reached or broke off the connection", again=True)),
        (
            {"ModelError"},
            Fault(reason="model", what=f"failed: {quote}", again=bool(getattr(error, "is_retryable", False))),
        ),
        (
            {"ValueError", "KeyError", "TypeError"},
            Fault(reason="unreadable", what=f"sent an unreadable answer: {quote}", again=True),
        ),
    )
    unknown = Fault(reason="unknown", what=f"failed: {type(error).__name__}: {quote}")
    if hasattr(error, "body"):  # a server reports an error inside a stream, without a status
        unknown = Fault(reason="broken", what=f"broke off with: {quote}", again=not spent)
    names = _class_names(error)
    return next((fault for kind, fault in kinds if kind & names), unknown)


def _class_names(error: Exception) -> set[str]:
    """Return the names of an error's class and its bases, which show the kind of failure for any provider."""
    return {each.__name__ for each in type(error).__mro__}


def _read_status(error: Exception, status: int, now: datetime, quote: str) -> Fault:
    reason = str(status)
    if _is_spent(error):
        return Fault(reason=reason, what=f"has no quota left ({status})", hint="check the account's credit")
    if status in _PASSING or status >= 500:
        asked = _asked(error, now)
        wait = f", and asks to wait {asked:.0f} s" if asked is not None and asked > LONGEST_ASKED_S else ""
        what = "limits the rate of requests (429)" if status == 429 else f"is failing ({status})"
        return Fault(reason=reason, what=what + wait, again=True, asked_s=asked)
    what, hint = _REFUSALS.get(status, (f"refused the request ({status}): {quote}", CHECK))
    return Fault(reason=reason, what=what, hint=hint)


def _is_spent(error: Exception) -> bool:
    """Return True for an account without credit, and False for a rate limit, which passes."""
    return getattr(error, "code", None) in _SPENT or getattr(error, "type", None) in _SPENT


def _asked(error: Exception, now: datetime) -> float | None:
    headers: Any = getattr(getattr(error, "response", None), "headers", None) or {}
    text = str(headers.get("retry-after") or "")
    try:
        seconds = float(text)
    except ValueError:
        seconds = _until(text, now)
    return seconds if seconds >= 0 else None  # also if the value is not a number


def _until(text: str, now: datetime) -> float:
    try:
        return max(0.0, (parsedate_to_datetime(text) - now).total_seconds())
    except (ValueError, TypeError):
        return -1.0


def _quote(error: Exception, secrets: Collection[str]) -> str:
    said = getattr(error, "message", None)
    return shortened(" ".join(redact(said if isinstance(said, str) else str(error), secrets).split()), LONGEST_QUOTE)


# Providers' words for a complete answer. With any other word, the answer is accepted when its stream ends.
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
    """The pieces of one streamed answer, including an answer that breaks off."""

    def __init__(self) -> None:
        self.all: list[AIMessageChunk] = []

    async def on_llm_new_token(self, token: Any, *, chunk: Any = None, **kwargs: Any) -> None:
        del token, kwargs
        if isinstance(chunk, ChatGenerationChunk) and isinstance(chunk.message, AIMessageChunk):
            self.all.append(chunk.message)

    @property
    def tokens(self) -> tuple[int, int]:
        """The call's tokens that the server has reported so far."""
        told = [piece.usage_metadata for piece in self.all if piece.usage_metadata]
        return sum(usage["input_tokens"] for usage in told), sum(usage["output_tokens"] for usage in told)


def examine(message: AIMessage, pieces: Sequence[AIMessageChunk], tools: Collection[str]) -> list[AnyMessage]:
    """Return the usable answer, followed by an error message for each of its calls that must not run.

    Args:
        message: the answer as LangChain assembled it.
        pieces: the streamed pieces of the answer; empty if it was not streamed.

    Raises:
        Unusable: the answer broke off, or contains nothing usable.
    """
    ending = ending_of(message)
    if pieces and not ending and message.response_metadata.get("model_provider") in _ENDINGS:
        raise Unusable("broke off in the middle of its answer", reason="cut")
    calls = _calls(message, pieces, whole=ending not in _TOO_LONG)
    if ending in _CALLING and not calls:
        raise Unusable("announced a tool call but made none", reason="malformed")
    if ending in _FILTERED and not calls and not message.text.strip():
        what = f"had its answer held back by the provider's filter ({ending})"
        raise Unusable(what, reason="filtered", again=False)
    refused = [_refusal(call, why) for call, error in calls if (why := error or _unknown(call, tools))]
    changes: dict[str, Any] = {"tool_calls": [call for call, _ in calls], "invalid_tool_calls": []}
    if not calls and not message.text.strip() and (words := _declined(message)):
        changes["content"] = words
    return [message.model_copy(update=changes), *refused]


def with_usage(
    message: AIMessage, asked: Sequence[AnyMessage], tools: Sequence[Any], lost: tuple[int, int], model: str
) -> tuple[AIMessage, bool]:
    """Return the answer with its model and its token counts, including failed tries, and whether they are estimates.

    An estimate counts the messages and tools that the model was given.
    """
    told = message.usage_metadata
    taken = told["input_tokens"] if told else count_tokens_approximately(asked, tools=[*tools] or None)
    given = told["output_tokens"] if told else count_tokens_approximately([message])
    taken, given = taken + lost[0], given + lost[1]
    usage = UsageMetadata(input_tokens=taken, output_tokens=given, total_tokens=taken + given)
    said = {
        "usage_metadata": {**(told or {}), **usage},
        "response_metadata": message.response_metadata | {MODEL: model},
    }
    return message.model_copy(update=said), told is None


def ending_of(message: AIMessage) -> str:
    """Return the provider's word for the end of the answer; empty if there is none."""
    metadata = message.response_metadata
    names = _ENDINGS.get(str(metadata.get("model_provider")), ("finish_reason", "stop_reason"))
    return next((str(metadata[name]) for name in names if metadata.get(name)), "")


def _calls(message: AIMessage, pieces: Sequence[AIMessageChunk], *, whole: bool) -> list[tuple[ToolCall, str]]:
    """Return the calls with unique ids, each with its error or an empty string."""
    wrong: dict[int, str] = {}
    calls = list(message.tool_calls)
    texts = _texts(pieces)
    if len(texts) == len(calls) + len(message.invalid_tool_calls):
        calls = [ToolCall(name=name, args={}, id=call_id, type="tool_call") for name, _, call_id in texts]
        for at, (_, text, _) in enumerate(texts):
            calls[at]["args"], wrong[at] = _read(text, whole=whole)
    else:  # the answer was not streamed, so the provider's library parsed it strictly
        for bad in message.invalid_tool_calls:
            wrong[len(calls)] = _not_json(bad.get("args") or "")
            calls.append(ToolCall(name=bad.get("name") or "", args={}, id=bad.get("id"), type="tool_call"))
    if isinstance(message.content, str):  # otherwise the blocks of the content name the same ids
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
    """Return the arguments, or their error. Some models send no text for a call without arguments."""
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
    """Give each call a unique id, because its answer and an author's approval are bound to the id."""
    seen: set[str] = set()
    for at, call in enumerate(calls):
        if not call["id"] or call["id"] in seen:
            call["id"] = f"call-{stem}-{at}"
        seen.add(call["id"] or "")


def _unknown(call: ToolCall, tools: Collection[str]) -> str:
    if call["name"] in tools:
        return ""
    return f"this call was not run: there is no tool {call['name'][:80]!r}; use one of: {', '.join(sorted(tools))}"


def _refusal(call: ToolCall, why: str) -> ToolMessage:
    return ToolMessage(content=why, name=call["name"], tool_call_id=call["id"] or "", status="error")


def _declined(message: AIMessage) -> str:
    """Return the words of a refusal, wherever the provider puts them."""
    said: list[Any] = [message.additional_kwargs.get("refusal")]
    if isinstance(message.content, list):
        said += [block.get("refusal") for block in message.content if isinstance(block, dict)]
    words = " ".join(text for text in said if isinstance(text, str) and text.strip())
    if words:
        return f"The model declined: {words}"
    return "The model declined." if message.response_metadata.get("stop_reason") == "refusal" else ""
