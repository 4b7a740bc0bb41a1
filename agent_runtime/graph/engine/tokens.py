"""The tokens that a turn uses: as its messages tell them, and those that no message of its graph tells.

Our own agent keeps every answer of a model in its messages. A foreign graph need not: what its nodes ask of models and
throw away was paid for all the same. What a subagent uses stands in its report, so until that comes it is counted here.
"""

import threading
from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, LLMResult

from agent_runtime.graph.context import bound

SUBAGENT_TOKENS = "turnkeeper_tokens"  # in the artifact of a subagent's report: tokens read and written


def tokens_of(messages: Sequence[BaseMessage]) -> tuple[int, int]:
    """Return the tokens that models read and wrote in these messages, where they tell; also those of subagents."""
    told = [message.usage_metadata for message in messages if isinstance(message, AIMessage) and message.usage_metadata]
    used = [(usage["input_tokens"], usage["output_tokens"]) for usage in told]
    artifacts = [message.artifact for message in messages if isinstance(message, ToolMessage)]
    reports = [one[SUBAGENT_TOKENS] for one in artifacts if isinstance(one, dict) and one.get(SUBAGENT_TOKENS)]
    used += [(int(tokens_in), int(tokens_out)) for tokens_in, tokens_out in reports]
    return sum(one for one, _ in used), sum(other for _, other in used)


class ModelUsage(BaseCallbackHandler):
    """Sums the tokens of each model call that ends, also of models that are called in worker threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tokens = (0, 0)

    @property
    def tokens(self) -> tuple[int, int]:
        """Tokens read and tokens written so far."""
        return self._tokens

    def on_llm_end(self, response: LLMResult, **_kwargs: Any) -> None:
        """Add what a call used, where its provider tells."""
        said: list[Any] = [
            one.message for batch in response.generations for one in batch if isinstance(one, ChatGeneration)
        ]
        tokens_in, tokens_out = tokens_of(said)
        with self._lock:
            self._tokens = (self._tokens[0] + tokens_in, self._tokens[1] + tokens_out)


class SubagentUsage:
    """What a turn's subagents have used so far, by the id of the tool call that started each."""

    def __init__(self) -> None:
        self._used: dict[str, tuple[int, int]] = {}

    def note(self, call_id: str, tokens: tuple[int, int]) -> None:
        """Set what a subagent has used since it was started: tokens read and written."""
        self._used[call_id] = tokens

    def used(self, call_id: str) -> tuple[int, int]:
        """Return what the subagent of a call has used so far; zeros if it has called no model."""
        return self._used.get(call_id, (0, 0))

    def unreported(self, reported: Collection[str]) -> tuple[int, int]:
        """Return what those used whose calls have no report yet."""
        left = [tokens for call_id, tokens in self._used.items() if call_id not in reported]
        return sum(one for one, _ in left), sum(other for _, other in left)


_SUBAGENTS: ContextVar[SubagentUsage | None] = ContextVar("turnkeeper_subagent_usage", default=None)


def subagent_usage() -> SubagentUsage:
    """Return what counts the subagents of the running turn; outside a turn, one that nobody reads."""
    return _SUBAGENTS.get() or SubagentUsage()


def counting_subagents(usage: SubagentUsage) -> AbstractContextManager[SubagentUsage]:
    """Have the subagents that are started in the block note in `usage` what they use."""
    return bound(_SUBAGENTS, usage)
