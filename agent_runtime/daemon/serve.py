"""Serving: the assembled runtime behind its socket, from the first signal to the last.

The threads in which graphs run what is not async. A tool that hangs in one must hold up nothing but its own turn.
"""

import asyncio
import os
import signal
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, asynccontextmanager
from typing import Any

from agent_runtime.daemon.assembly import PROCESS, assemble
from agent_runtime.model.agents import hosted
from agent_runtime.service.servicer import Servicer
from protos.turnkeeper.v1 import agent_runtime_pb2
from protos.turnkeeper.v1.agent_runtime_pb2_grpc import add_AgentRuntimeServicer_to_server
from turnkeeper.config.home import Home
from turnkeeper.config.settings import Settings, load_settings, staffed
from turnkeeper.errors import EXIT_FAILURE
from turnkeeper.process import Progress, settle_heap
from turnkeeper.rpc.server import UnixServer
from turnkeeper.storage.locking import ReaderLock

MOST = 1024  # started as they are needed; one that hangs is lost until the process ends


class Threads(ThreadPoolExecutor):
    """A pool that nobody waits for at its end: a thread cannot be cancelled, only left behind."""

    def __init__(self) -> None:
        super().__init__(max_workers=MOST, thread_name_prefix="graph")

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: ARG002
        """Take nothing more, and return at once."""
        super().shutdown(wait=False, cancel_futures=True)


def use_threads() -> None:
    """Let the running loop's threads be such: by default there are a few, all of which have to end with the loop."""
    asyncio.get_running_loop().set_default_executor(Threads())


DRAIN_GRACE_S = 10.0
CALLS_GRACE_S = 2.0
LAST_GRACE_S = 8.0  # for what should take no time; a graph may have left something behind that ends never


@asynccontextmanager
async def _reading(home: Home, settings: Settings) -> AsyncIterator[None]:
    """Be the one reader of every hosted agent's inbox. Raises Conflict, naming the other, where there is one."""
    with ExitStack() as locks:
        for agent in hosted(settings):
            locks.enter_context(ReaderLock(home.inbox(agent), PROCESS))
        yield


async def serve(home: Home) -> None:
    """Serve until SIGTERM or SIGINT, then drain. The caller holds the process's lock.

    The process ends within the sum of the graces above, if need be as if by kill -9, which loses nothing.
    """
    use_threads()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    settings = staffed(load_settings(home), home)
    async with _reading(home, settings), assemble(home, settings, environ=os.environ) as runtime:
        runtime.log.emit(
            "session.began", durable=True, epoch=runtime.store.epoch, incarnation=runtime.store.incarnation
        )
        await runtime.worker.start(on_shutdown=stop.set)
        server = UnixServer(home.socket(PROCESS))
        servicer = Servicer(runtime)
        untyped: Any = servicer
        add_AgentRuntimeServicer_to_server(untyped, server.grpc)
        server.announce(agent_runtime_pb2.DESCRIPTOR.services_by_name["AgentRuntime"])
        settle_heap()
        await server.start()
        runtime.log.emit("process.started")
        progress = asyncio.create_task(Progress(home, PROCESS, os.getpid()).run(runtime.clock), name="progress")
        try:
            await stop.wait()
        finally:
            _end_at_last(DRAIN_GRACE_S + CALLS_GRACE_S + LAST_GRACE_S)
            progress.cancel()
            runtime.log.emit("process.draining")
            servicer.refuse_fires()
            await runtime.worker.stop(DRAIN_GRACE_S)
            servicer.close()  # only now: the outcomes of turns that ended meanwhile have been reported
            await server.stop(CALLS_GRACE_S)
            runtime.mailboxes.close()
            runtime.log.emit("process.stopped", durable=True)


def _end_at_last(after_s: float) -> None:
    last = threading.Timer(after_s, os._exit, (EXIT_FAILURE,))
    last.daemon = True
    last.start()
