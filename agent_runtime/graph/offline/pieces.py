"""An answer of the rule-based model in pieces, as another model would stream it."""

import re
from collections.abc import Sequence

from langchain_core.messages import AIMessage, AIMessageChunk
from langchain_core.messages.tool import ToolCallChunk, tool_call_chunk
from langchain_core.outputs import ChatGenerationChunk

from agent_runtime.model.approval import canonical

MOST_PIECES = 40
_WORDS = re.compile(r"\S+\s*|\s+")


def pieces(said: AIMessage) -> list[ChatGenerationChunk]:
    """Return the answer cut at words, its calls and cost with the last piece; put together it is the same answer."""
    texts = cut(str(said.text))
    last = len(texts) - 1
    return [
        ChatGenerationChunk(
            message=AIMessageChunk(
                content=text,
                id=said.id,
                tool_call_chunks=_calls(said) if at == last else [],
                usage_metadata=said.usage_metadata if at == last else None,
                response_metadata=said.response_metadata if at == last else {},
                chunk_position="last" if at == last else None,
            )
        )
        for at, text in enumerate(texts)
    ]


def cut(text: str) -> Sequence[str]:
    """Return a text cut at words, in at most so many pieces as are worth sending.

    >>> cut("one two  three"), cut("")
    (['one ', 'two  ', 'three'], [''])
    """
    words = _WORDS.findall(text) or [""]
    many = -(-len(words) // MOST_PIECES)
    return ["".join(words[at : at + many]) for at in range(0, len(words), many)]


def _calls(said: AIMessage) -> list[ToolCallChunk]:
    return [
        tool_call_chunk(name=call["name"], args=canonical(call["args"]), id=call["id"], index=at)
        for at, call in enumerate(said.tool_calls)
    ]
