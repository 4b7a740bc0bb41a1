"""How calls reach the daemons: blocking, or on an event loop. What is called and what it means is elsewhere."""

from collections.abc import AsyncIterator, Callable
from typing import Any, Literal, Protocol

import grpc
from google.protobuf.message import Message

from turnkeeper.clock import SystemClock
from turnkeeper.config.home import Home
from turnkeeper.rpc.callers import Identity
from turnkeeper.rpc.channel import OPTIONS, Greeting, connect, read_greeting
from turnkeeper.rpc.errors import from_rpc
from turnkeeper.v1.agent_runtime_pb2_grpc import AgentRuntimeStub
from turnkeeper.v1.schedules_pb2_grpc import SchedulesStub

Process = Literal["task-runner", "agent-runtime"]
Greeted = Callable[[Greeting], None]
_STUBS: dict[Process, Any] = {"task-runner": SchedulesStub, "agent-runtime": AgentRuntimeStub}


class Transport(Protocol):
    """Calls to the daemons of a home; each raises what the daemon refuses with."""

    async def call(self, process: Process, method: str, request: Message) -> Any:
        """Call a method once. Raises Unreachable when nobody answers; whether anything was done is unknown then."""

    def stream(self, process: Process, method: str, request: Message, greeted: Greeted) -> AsyncIterator[Any]:
        """Yield what a method sends, after its greeting if it has one."""

    async def pause(self, seconds: float) -> None:
        """Wait."""

    async def close(self) -> None:
        """Close what is open."""


class _Channels:
    """The stubs of a home's daemons, made when they are first called."""

    def __init__(self, home: Home, via: str, timeout_s: float) -> None:
        self._home, self._identity, self._timeout_s = home, Identity(via), timeout_s
        self._channels: dict[Process, Any] = {}
        self._stubs: dict[Process, Any] = {}

    def _method(self, process: Process, method: str) -> Any:
        if process not in self._stubs:
            self._channels[process] = self._open(process)
            self._stubs[process] = _STUBS[process](self._channels[process])
        return getattr(self._stubs[process], method)

    def _open(self, process: Process) -> Any:
        raise NotImplementedError

    def _said(self, method: str) -> dict[str, Any]:
        return {"metadata": self._identity.metadata(method)}


class Blocking(_Channels):
    """Blocks the calling thread: its coroutines never wait for an event loop."""

    def _open(self, process: Process) -> Any:
        return grpc.insecure_channel(f"unix:{self._home.socket(process)}", options=OPTIONS)

    async def call(self, process: Process, method: str, request: Message) -> Any:
        try:
            return self._method(process, method)(request, timeout=self._timeout_s, **self._said(method))
        except grpc.RpcError as error:
            raise from_rpc(error, process) from error

    async def stream(self, process: Process, method: str, request: Message, greeted: Greeted) -> AsyncIterator[Any]:
        stream = self._method(process, method)(request, **self._said(method))
        try:
            if (greeting := read_greeting(stream.initial_metadata() or ())) is not None:
                greeted(greeting)
            for item in stream:
                yield item
        except grpc.RpcError as error:
            raise from_rpc(error, process) from error
        finally:
            stream.cancel()

    async def pause(self, seconds: float) -> None:
        SystemClock().block(seconds)

    async def close(self) -> None:
        for channel in self._channels.values():
            channel.close()


class OnLoop(_Channels):
    """Waits on the running event loop."""

    def _open(self, process: Process) -> Any:
        return connect(self._home.socket(process))

    async def call(self, process: Process, method: str, request: Message) -> Any:
        try:
            return await self._method(process, method)(request, timeout=self._timeout_s, **self._said(method))
        except grpc.RpcError as error:
            raise from_rpc(error, process) from error

    async def stream(self, process: Process, method: str, request: Message, greeted: Greeted) -> AsyncIterator[Any]:
        stream = self._method(process, method)(request, **self._said(method))
        try:
            if (greeting := read_greeting(await stream.initial_metadata() or ())) is not None:
                greeted(greeting)
            async for item in stream:
                yield item
        except grpc.RpcError as error:
            raise from_rpc(error, process) from error
        finally:
            stream.cancel()

    async def pause(self, seconds: float) -> None:
        await SystemClock().sleep(seconds)

    async def close(self) -> None:
        for channel in self._channels.values():
            await channel.close()
