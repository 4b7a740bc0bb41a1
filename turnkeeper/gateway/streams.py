"""Server-sent events: limited in number, kept alive, and ended when the reader disconnects or is too slow.

Nothing is buffered here: the next event is taken from its source after the previous one was sent. When the stream ends
for any reason, its source is closed, and so is the gRPC call that it reads.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from typing import Any

from starlette.responses import JSONResponse

from turnkeeper.gateway.calls import MOST_STREAMS, Streams, most_of

PING_S = 15.0
SLOWEST_S = 20.0  # seconds to send one event
_HEADERS = {"content-type": "text/event-stream; charset=utf-8", "x-accel-buffering": "no"}


def event(data: str, *, name: str = "", id_: str = "", retry_ms: int = 0) -> bytes:
    r"""Return one encoded event.

    >>> event('{"a": 1}', name="values", id_="7.1")
    b'id: 7.1\nevent: values\ndata: {"a": 1}\n\n'
    """
    fields = [("retry", str(retry_ms or "")), ("id", id_), ("event", name)]
    lines = [f"{key}: {value}" for key, value in fields if value]
    lines += [f"data: {line}" for line in data.replace("\r\n", "\n").replace("\r", "\n").split("\n")]
    return ("\n".join(lines) + "\n\n").encode()


class EventStream:
    """An answer with a source's events as its body, in the encoding of :func:`event`. An ASGI application.

    `ping` is sent while there are no events.
    """

    def __init__(
        self,
        source: AsyncIterator[bytes],
        streams: Streams,
        *,
        headers: Mapping[str, str] | None = None,
        ping: bytes = b": \n\n",
    ) -> None:
        self._source, self._streams, self._ping = source, streams, ping
        self._headers = {**_HEADERS, **(headers or {})}

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Send the events. If too many streams are open, answer 429 without starting the source."""
        name = self._streams.enter(scope["who"])
        if name is None:
            most = most_of(scope["who"])
            detail = f"at most {MOST_STREAMS} streams are open at once, and {most} of one client; close another"
            await JSONResponse({"detail": detail}, 429, {"retry-after": "5"})(scope, receive, send)
            return
        leaving = asyncio.create_task(gone(receive))
        try:
            headers = [(key.encode("latin-1"), value.encode("latin-1")) for key, value in self._headers.items()]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await self._pump(send, leaving)
        except TimeoutError:
            scope.get("state", {}).get("abort", lambda: None)()  # drop the part that the client has not read
        finally:
            self._streams.leave(name)
            leaving.cancel()
            close = getattr(self._source, "aclose", None)
            if close is not None:
                await close()

    async def _pump(self, send: Any, leaving: "asyncio.Task[None]") -> None:
        while not leaving.done():
            upcoming = asyncio.ensure_future(anext(self._source, None))
            try:
                while not upcoming.done() and not leaving.done():
                    done, _ = await asyncio.wait(
                        {upcoming, leaving}, timeout=PING_S, return_when=asyncio.FIRST_COMPLETED
                    )
                    if not done:
                        await send_part(send, self._ping)
            finally:
                if not upcoming.done():
                    upcoming.cancel()
                    with suppress(asyncio.CancelledError):
                        await upcoming
            if leaving.done() or (piece := upcoming.result()) is None:
                break
            await send_part(send, piece)
        if not leaving.done():
            await send({"type": "http.response.body", "body": b"", "more_body": False})


async def send_part(send: Any, piece: bytes) -> None:
    """Send a part of an answer. Raises TimeoutError if the client does not take it."""
    async with asyncio.timeout(SLOWEST_S):
        await send({"type": "http.response.body", "body": piece, "more_body": True})


async def gone(receive: Any) -> None:
    """Wait until the client disconnects."""
    while (await receive())["type"] != "http.disconnect":
        pass
