"""A runtime with a scripted model, and the real runner behind its socket, in one process."""

from collections.abc import AsyncIterator

import pytest_asyncio

from task_runner.daemon.assembly import Runner, assemble
from task_runner.daemon.reads import PROCESS
from task_runner.service.service import RULES, Servicer
from tests.integration.runtime.harness import Bench
from turnkeeper.config.home import Home
from turnkeeper.rpc.callers import Door
from turnkeeper.rpc.server import UnixServer
from turnkeeper.v1.schedules_pb2_grpc import add_SchedulesServicer_to_server


@pytest_asyncio.fixture
async def bench(home: Home) -> AsyncIterator[Bench]:
    made = Bench(home)
    await made.open()
    yield made
    await made.close()


@pytest_asyncio.fixture
async def runner(home: Home) -> AsyncIterator[Runner]:
    """The runner's service, answering; nothing fires."""
    async with assemble(home, daemon=True) as made:
        server = UnixServer(home.socket(PROCESS), Door(home, RULES, made.log))
        server.add(add_SchedulesServicer_to_server, Servicer(made.service))
        await server.start()
        yield made
        await server.stop(0.0)
