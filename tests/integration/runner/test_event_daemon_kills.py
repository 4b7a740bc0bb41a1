"""Events and the daemon as a process: killed in the middle of a thousand, none is lost and none counts twice."""

import asyncio
from typing import Any

import pytest

from tests.integration.runner.conftest import Rig
from tests.integration.runner.scripted_runtime import Peer
from tests.integration.runner.test_daemon_process import start
from tests.support.clock import ManualClock, look_again
from turnkeeper.clock import SystemClock
from turnkeeper.config.home import Home
from turnkeeper.rpc.channel import connect
from turnkeeper.v1 import agent_runtime_pb2 as runtime
from turnkeeper.v1 import schedules_pb2 as wire
from turnkeeper.v1.schedules_pb2_grpc import SchedulesStub

pytestmark = pytest.mark.process
EVENTS = 1000
PATIENCE_S = 120


def told(number: int) -> runtime.BridgedEvent:
    return runtime.BridgedEvent(name="turn_end", turn_id=f"turn-{number}", data_json=f'{{"n":{number}}}')


async def declared(home: Home) -> None:
    """Two tasks, one for every event and one for each tenth, as a command line without a daemon writes them."""
    rig = Rig(home, ManualClock(SystemClock().now()), home.schedules_db)
    for name, filters in (("all", []), ("tenth", ["n~=0$"])):
        spec = wire.TaskSpec(
            name=name, on="turn_end", filters=filters, debounce="1s", category="loop", channel="general", prompt="p"
        )
        await rig.service.create_task(wire.CreateTaskRequest(spec=spec))
    await rig.close()


async def counted(stub: Any, name: str) -> int:
    answer = await stub.ListFires(wire.ListFiresRequest(name=name, limit=1000), wait_for_ready=True)
    return sum(fire.count for fire in answer.fires)


async def test_a_thousand_events_survive_kill_9(home: Home, peer: Peer) -> None:
    await declared(home)
    peer.finishes, peer.now = True, SystemClock().now
    daemon = await start(home, "serve")
    channel = connect(home.socket("task-runner"))
    stub: Any = SchedulesStub(channel)
    await peer.was_asked(1)
    for number in range(0, EVENTS, 10):
        await peer.tell(*(told(each) for each in range(number, number + 10)))
        if number == EVENTS // 2:
            async with asyncio.timeout(PATIENCE_S):
                while not await counted(stub, "all"):
                    await look_again()
            daemon.kill()
            assert await daemon.wait() == -9
    daemon = await start(home, "serve")
    async with asyncio.timeout(PATIENCE_S):
        while await counted(stub, "all") < EVENTS or await counted(stub, "tenth") < EVENTS // 10:
            await look_again()
    assert (await counted(stub, "all"), await counted(stub, "tenth")) == (EVENTS, EVENTS // 10)
    sent = {request.fire_id for request in peer.received}
    assert len(peer.taken) == len(sent)
    await channel.close()
    daemon.terminate()
    assert await daemon.wait() == 0
