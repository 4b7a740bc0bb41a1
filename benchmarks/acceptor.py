"""The agent runtime as it accepts, without the worker that would run turns: `python -m benchmarks.acceptor HOME`.

The parts are the daemon's own. What is measured ends when an envelope is on disk; turns would take the processor away
from the measuring.
"""

import asyncio
import os
import sys
from pathlib import Path

from agent_runtime.daemon.assembly import PROCESS, assemble
from agent_runtime.service.servicer import RULES, Servicer
from turnkeeper.config.home import Home
from turnkeeper.config.settings import Settings
from turnkeeper.rpc.callers import Door
from turnkeeper.rpc.process import settle_heap
from turnkeeper.rpc.server import UnixServer
from turnkeeper.storage.locking import ProcessLock
from turnkeeper.v1.agent_runtime_pb2_grpc import add_AgentRuntimeServicer_to_server


async def serve(home: Home) -> None:
    async with assemble(home, Settings(), environ=os.environ) as runtime:
        server = UnixServer(home.socket(PROCESS), Door(home, RULES, runtime.log))
        server.add(add_AgentRuntimeServicer_to_server, Servicer(runtime))
        settle_heap()
        await server.start()
        await asyncio.Event().wait()


if __name__ == "__main__":
    place = Home(root=Path(sys.argv[1]))
    with ProcessLock(place, PROCESS):
        asyncio.run(serve(place))
