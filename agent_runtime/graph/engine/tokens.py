"""Counting what models read and wrote in one interval, wherever in a graph they are called.

A graph of ours keeps every answer in its messages, which tell their tokens. A foreign graph need not: what its nodes
ask of models and throw away was paid for all the same.
"""

import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.outputs import ChatGeneration, LLMResult

from agent_runtime.graph.engine.inputs import tokens_of


class Spending(BaseCallbackHandler):
    """Sums the tokens of each model call that ends; models called in worker threads count too."""

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


class Beside:
    """What a turn's subagents have used so far, by the tool call that started each; its report tells it in the end."""

    def __init__(self) -> None:
        self._used: dict[str, tuple[int, int]] = {}

    def note(self, call_id: str, tokens: tuple[int, int]) -> None:
        """Take what a subagent has used since it was started."""
        self._used[call_id] = tokens

    def used(self, call_id: str) -> tuple[int, int]:
        """Return what the subagent of a call has used so far; nothing where it came to no model."""
        return self._used.get(call_id, (0, 0))

    def at_work(self, reported: Collection[str]) -> tuple[int, int]:
        """Return what those used whose calls have no report yet."""
        left = [tokens for call_id, tokens in self._used.items() if call_id not in reported]
        return sum(one for one, _ in left), sum(other for _, other in left)


_BESIDE: ContextVar[Beside | None] = ContextVar("turnkeeper_beside", default=None)


def beside() -> Beside:
    """Return what counts the subagents of the turn around this line of code; outside a turn, nothing that is kept."""
    return _BESIDE.get() or Beside()


@contextmanager
def counted_beside(counts: Beside) -> Iterator[None]:
    """Have the subagents that are started in the block tell `counts` what they use."""
    token = _BESIDE.set(counts)
    try:
        yield
    finally:
        _BESIDE.reset(token)
