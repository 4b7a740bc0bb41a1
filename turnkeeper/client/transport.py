"""Transports of calls to the daemons: one awaits on an event loop, the other blocks."""

from collections.abc import AsyncIterator
from contextlib import closing
from typing import Any

from google.protobuf.message import Message

from turnkeeper.clock import SystemClock
from turnkeeper.config.home import Home
from turnkeeper.rpc.channel import AsyncCaller, Caller, Greeted


class OnLoop:
    """A transport that waits on the running event loop."""

    def __init__(self, home: Home, via: str, timeout_s: float) -> None:
        self._daemons = AsyncCaller(home, via=via, deadline_s=timeout_s)

    async def call(self, request: Message) -> Any:
        """Send a request once. Raises Unreachable if no answer arrives; the call may have been carried out."""
        return await self._daemons.ask(request)

    def stream(self, request: Message, greeted: Greeted) -> AsyncIterator[Any]:
        """Yield the messages of a stream, after its greeting if it has one."""
        items: AsyncIterator[Any] = self._daemons.ask(request, greeted=greeted)
        return items

    async def pause(self, seconds: float) -> None:
        await SystemClock().sleep(seconds)

    async def close(self) -> None:
        await self._daemons.close()


class Blocking(OnLoop):
    """A transport that blocks the calling thread: its coroutines never wait for an event loop."""

    def __init__(self, home: Home, via: str, timeout_s: float) -> None:
        self._caller = Caller(home, via=via, deadline_s=timeout_s)

    async def call(self, request: Message) -> Any:
        return self._caller.ask(request)

    async def stream(self, request: Message, greeted: Greeted) -> AsyncIterator[Any]:
        with closing(self._caller.ask(request, greeted=greeted)) as items:
            for item in items:
                yield item

    async def pause(self, seconds: float) -> None:
        SystemClock().block(seconds)

    async def close(self) -> None:
        self._caller.close()
