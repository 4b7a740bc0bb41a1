"""Transports of calls to the daemons: one blocks, the other awaits on an event loop."""

from collections.abc import AsyncIterator
from contextlib import aclosing, closing
from typing import Any, Literal, Protocol

from google.protobuf.message import Message

from turnkeeper.clock import SystemClock
from turnkeeper.config.home import Home
from turnkeeper.rpc.channel import AsyncCaller, Caller, Greeted, connect
from turnkeeper.v1.agent_runtime_pb2_grpc import AgentRuntimeStub
from turnkeeper.v1.schedules_pb2_grpc import SchedulesStub

Process = Literal["task-runner", "agent-runtime"]
_STUBS: dict[Process, Any] = {"task-runner": SchedulesStub, "agent-runtime": AgentRuntimeStub}


class Transport(Protocol):
    """Calls to the daemons of a home; each raises the error with which a daemon refuses."""

    async def call(self, process: Process, method: str, request: Message) -> Any:
        """Call a method once. Raises Unreachable without an answer; the call may still have had its effect."""

    def stream(self, process: Process, method: str, request: Message, greeted: Greeted) -> AsyncIterator[Any]:
        """Yield the messages of a stream, after its greeting if it has one."""

    async def pause(self, seconds: float) -> None:
        """Wait for `seconds`."""

    async def close(self) -> None:
        """Close all connections."""


class _Callers:
    """The callers of a home's daemons, created on first use."""

    def __init__(self, home: Home, via: str, timeout_s: float) -> None:
        self._home, self._via, self._timeout_s = home, via, timeout_s
        self._callers: dict[Process, Any] = {}

    def _method(self, process: Process, method: str) -> Any:
        if process not in self._callers:
            self._callers[process] = self._open(process)
        return getattr(self._callers[process], method)

    def _open(self, process: Process) -> Any:
        raise NotImplementedError


class Blocking(_Callers):
    """A transport that blocks the calling thread: its coroutines never wait for an event loop."""

    def _open(self, process: Process) -> Any:
        socket, stub = self._home.socket(process), _STUBS[process]
        return Caller(socket, stub, process, via=self._via, deadline_s=self._timeout_s)

    async def call(self, process: Process, method: str, request: Message) -> Any:
        return self._method(process, method)(request)

    async def stream(self, process: Process, method: str, request: Message, greeted: Greeted) -> AsyncIterator[Any]:
        with closing(self._method(process, method)(request, greeted=greeted)) as items:
            for item in items:
                yield item

    async def pause(self, seconds: float) -> None:
        SystemClock().block(seconds)

    async def close(self) -> None:
        for caller in self._callers.values():
            caller.close()


class OnLoop(_Callers):
    """A transport that waits on the running event loop."""

    def _open(self, process: Process) -> Any:
        channel, stub = connect(self._home.socket(process)), _STUBS[process]
        return AsyncCaller(channel, stub, process, via=self._via, deadline_s=self._timeout_s)

    async def call(self, process: Process, method: str, request: Message) -> Any:
        return await self._method(process, method)(request)

    async def stream(self, process: Process, method: str, request: Message, greeted: Greeted) -> AsyncIterator[Any]:
        async with aclosing(self._method(process, method)(request, greeted=greeted)) as items:
            async for item in items:
                yield item

    async def pause(self, seconds: float) -> None:
        await SystemClock().sleep(seconds)

    async def close(self) -> None:
        for caller in self._callers.values():
            await caller.close()
