"""Counting what models read and wrote in one interval, wherever in a graph they are called.

A graph of ours keeps every answer in its messages, which tell their tokens. A foreign graph need not: what its nodes
ask of models and throw away was paid for all the same.
"""

import threading
from typing import Any

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.outputs import ChatGeneration, LLMResult

from agent_runtime.graph.transcript import tokens_of


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
