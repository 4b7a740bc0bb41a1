"""What is made of a model's answer and of its errors, whichever provider they come from."""

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from langchain_core import exceptions
from langchain_core.messages import AIMessage, AIMessageChunk, ToolMessage
from langchain_core.messages.tool import invalid_tool_call

from agent_runtime.graph.models.answers import LONGEST_QUOTE, Fault, Unusable, examine, read_fault, wait_before
from agent_runtime.graph.models.make import redact, shown_url

NOW = datetime(2026, 3, 2, 9, tzinfo=UTC)
PIECES = [AIMessageChunk("words")]


def ended(provider: str, **metadata: Any) -> AIMessage:
    return AIMessage("words", response_metadata={"model_provider": provider, **metadata})


@pytest.mark.parametrize(
    ("provider", "key"),
    [("openai", "finish_reason"), ("openai", "status"), ("anthropic", "stop_reason"), ("google_genai", "finish_reason"), ("ollama", "done_reason")],
)  # fmt: skip
def test_a_stream_counts_when_its_provider_said_that_it_is_over(provider: str, key: str) -> None:
    assert examine(ended(provider, **{key: "stop"}), PIECES, ())
    with pytest.raises(Unusable):
        examine(ended(provider), PIECES, ())


def test_a_provider_that_nobody_knows_is_believed() -> None:
    assert examine(ended("unheard-of"), PIECES, ())


@pytest.mark.parametrize(
    "message",
    [
        AIMessage("", additional_kwargs={"refusal": "I will not."}),
        AIMessage([{"type": "refusal", "refusal": "I will not."}]),
        AIMessage("", response_metadata={"model_provider": "anthropic", "stop_reason": "refusal"}),
    ],
)
def test_a_refusal_is_said_in_words(message: AIMessage) -> None:
    (said,) = examine(message, (), ())
    assert str(said.text).startswith("The model declined")


def test_text_in_blocks_is_text() -> None:
    (said,) = examine(AIMessage([{"type": "text", "text": "one "}, {"type": "text", "text": "two"}]), (), ())
    assert str(said.text) == "one two"


def test_a_call_that_the_library_could_not_read_is_answered() -> None:
    bad = invalid_tool_call(name="note", args='{"a', id="1", error="cut")
    first, answer = examine(AIMessage("", invalid_tool_calls=[bad]), (), {"note"})
    assert isinstance(first, AIMessage)
    assert isinstance(answer, ToolMessage)
    assert (first.tool_calls[0]["id"], first.tool_calls[0]["args"], first.invalid_tool_calls) == ("1", {}, [])
    assert (answer.tool_call_id, answer.status) == ("1", "error")


def of_langchain(name: str) -> type[Exception]:
    """LangChain's own class, or one of that name under a LangChain before 1.6, which has none."""
    return getattr(exceptions, name, type(name, (type("ModelError", (Exception,), {"is_retryable": True}),), {}))


def of_a_provider(name: str) -> type[Exception]:
    return type(name, (type("APIError", (Exception,), {}),), {})


def failed(kind: type[Exception] = Exception, /, **fields: Any) -> Exception:
    error = kind("said")
    for name, value in fields.items():
        setattr(error, name, value)
    return error


def asking(value: str) -> Exception:
    return failed(status_code=429, response=SimpleNamespace(headers={"retry-after": value}))


@pytest.mark.parametrize(
    ("error", "reason", "again"),
    [
        (failed(of_langchain("ModelRateLimitError")), "model", True),
        (failed(of_langchain("ModelAPIError"), status_code=529), "529", True),
        (failed(status_code=422), "422", False),
        (ConnectionResetError(), "connection", True),
        (TimeoutError(), "timeout", True),
        (ValueError("half a line"), "unreadable", True),
        (failed(of_langchain("ModelTimeoutError")), "timeout", True),
        (failed(of_a_provider("APITimeoutError")), "timeout", True),
        (failed(of_a_provider("APIConnectionError")), "connection", True),
        (RuntimeError("a bug"), "unknown", False),
        (failed(body={}, code="server_error"), "broken", True),
        (failed(body={}, code="insufficient_quota"), "broken", False),
    ],
)
def test_an_error_is_read_whoever_raised_it(error: Exception, reason: str, again: bool) -> None:
    fault = read_fault(error, NOW)
    assert (fault.reason, fault.again) == (reason, again)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("7", 7.0), ("0.5", 0.5), ("Mon, 02 Mar 2026 09:00:20 GMT", 20.0), ("Mon, 02 Mar 2026 08:00:00 GMT", 0.0),
     ("", None), ("soon", None), ("-1", None), ("nan", None)],
)  # fmt: skip
def test_when_to_come_back_is_a_number_or_a_date(text: str, seconds: float | None) -> None:
    assert read_fault(asking(text), NOW).asked_s == seconds


def test_a_wait_grows_is_spread_and_ends() -> None:
    again = Fault(reason="503", what="x", again=True)
    assert [wait_before(tries, again, 0.0) for tries in (1, 2, 3, 4, 5)] == [0.5, 1.0, 2.0, 4.0, None]
    assert wait_before(1, read_fault(asking("61"), NOW), 1.0) is None
    assert wait_before(1, read_fault(asking("inf"), NOW), 1.0) is None


@pytest.mark.parametrize(
    "error", [failed(status_code=400), failed(body={}), failed(of_langchain("ModelAPIError")), ValueError("said")]
)
def test_a_key_is_hidden_before_what_was_said_is_cut(error: Exception) -> None:
    error.args, key = (f"{'x' * (LONGEST_QUOTE - 10)} sk-0123456789",), "sk-0123456789"
    assert "sk-" not in read_fault(error, NOW, {key}).what
    assert read_fault(error, NOW, {key}).what.endswith(" [secret]")


def test_a_secret_inside_another_leaves_no_rest() -> None:
    assert redact("key=abcdefghij", {"abcdef", "abcdefghij"}) == "key=[secret]"
    assert shown_url("https://host/v1") == "https://host/v1"
