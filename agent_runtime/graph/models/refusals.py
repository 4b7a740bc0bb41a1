"""Refusals of OpenAI's chat completions, heard also in a stream.

There a model that declines says so in a field of its own, which LangChain's client passes over when it streams: the
answer would look empty, and a fire as if there had been nothing to do. Here the words are put where the text goes.
"""

from collections.abc import AsyncIterator
from types import TracebackType
from typing import Any, Self


def hear_refusals(model: Any) -> None:
    """Make a model of the OpenAI family tell refusals as text; leave any other as it is."""
    client = getattr(model, "async_client", None)
    if callable(getattr(client, "create", None)):
        model.async_client = _Client(client)


class _Client:
    """The library's client, its streams listened to."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    async def create(self, **payload: Any) -> Any:
        """Return what the client returns."""
        answer = await self._client.create(**payload)
        return _Stream(answer) if payload.get("stream") else answer


class _Stream:
    """A stream of pieces, as the library reads it."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    async def __aenter__(self) -> Self:
        await self._stream.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stream.__aexit__(kind, error, trace)

    async def __aiter__(self) -> AsyncIterator[Any]:
        async for piece in self._stream:
            for choice in getattr(piece, "choices", None) or ():
                words = getattr(choice.delta, "refusal", None)
                if words:
                    choice.delta.content = f"{choice.delta.content or ''}{words}"
            yield piece
