"""The daemon as a process: it serves, dies at a failpoint, and goes on where it was."""

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from task_runner.cli import application
from task_runner.daemon.assembly import call
from tests.integration.runner.scripted_runtime import Peer
from tests.support.clock import look_again
from turnkeeper import console
from turnkeeper.rpc.channel import connect
from turnkeeper.v1 import agent_runtime_pb2 as agent
from turnkeeper.v1 import schedules_pb2 as wire
from turnkeeper.v1.schedules_pb2_grpc import SchedulesStub

pytestmark = pytest.mark.process
ROOT = Path(__file__).parents[3]


async def start(home, *argv: str, **environ: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "task_runner", "--home", str(home.root), *argv,
        env=dict(os.environ) | {"PYTHONPATH": str(ROOT)} | environ,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip


async def run(home, *argv: str) -> str:
    out, _ = await (await start(home, *argv)).communicate()
    return out.decode()


def command(home, *argv: str) -> None:
    assert console.run(application(), ["--home", str(home.root), *argv]) == 0


@pytest.mark.parametrize("failpoint", ["runner.committed", "runner.sent", "runner.receipt"])
async def test_a_fire_survives_kill_9_wherever_it_strikes(home, peer: Peer, failpoint: str) -> None:
    await asyncio.to_thread(
        command, home, "create", "digest", "--in", "1s", "--category", "loop", "--channel", "general", "--prompt", "p"
    )
    peer.finishes = True
    daemon = await start(home, "serve", TURNKEEPER_FAILPOINTS=failpoint)
    assert await daemon.wait() == -9
    daemon = await start(home, "serve")
    channel = connect(home.socket("task-runner"))
    stub: Any = SchedulesStub(channel)
    outcome = ""
    while outcome != "succeeded":
        await look_again()
        (fire,) = (await stub.ListFires(wire.ListFiresRequest(name="digest"), wait_for_ready=True)).fires
        outcome = fire.outcome
    assert len(peer.taken) == 1, "accepted once"
    await channel.close()
    if failpoint == "runner.committed":
        assert "already runs" in await run(home, "serve")
        assert "task-runner up since" in await run(home, "list")
        listing = await start(home, "list", PYTHONPROFILEIMPORTTIME="1")
        imported = {line.rpartition("|")[2].strip() for line in (await listing.communicate())[0].decode().splitlines()}
        assert imported & {"grpc", "pydantic", "sqlalchemy", "rich", "task_runner.timetable"} == {"grpc"}
    daemon.terminate()
    assert await daemon.wait() == 0


async def test_ticks_without_a_daemon_send_what_is_due_and_take_in_what_became_of_it(home, peer: Peer, capsys) -> None:
    def tick() -> str:
        capsys.readouterr()
        command(home, "loop", "tick")
        return capsys.readouterr().err

    await asyncio.to_thread(command, home, "loop", "create", "1h", "look at CI", "--agent", "codex")
    await asyncio.to_thread(command, home, "run", (await tasks(home))[0])
    assert "1 fire sent to agent-runtime" in await asyncio.to_thread(tick)
    ((fire_id, attempt),) = peer.taken
    assert "0 fires sent" in await asyncio.to_thread(tick), "it is under way"
    peer.turns[fire_id] = agent.Turn(fire_id=fire_id, attempt=attempt, state=agent.TurnEvent.SUCCEEDED)
    await asyncio.to_thread(tick)
    (fire,) = (
        await asyncio.to_thread(call, home, "ListFires", wire.ListFiresRequest(name=(await tasks(home))[0]))
    ).fires
    assert fire.outcome == "succeeded"
    await peer.stop()
    said = await asyncio.to_thread(tick)
    assert "nothing was sent: agent-runtime cannot be reached" in said
    assert "task-runner is not running" in said


async def tasks(home) -> list[str]:
    return [task.id for task in (await asyncio.to_thread(call, home, "ListTasks", wire.ListTasksRequest())).tasks]


async def test_changes_of_tasks_are_followed_over_a_start_of_the_daemon(home, peer: Peer) -> None:
    task = ("--category", "loop", "--channel", "general", "--prompt", "p")
    await asyncio.to_thread(command, home, "create", "digest", "--every", "1h", *task)
    assert "no daemon runs" in await run(home, "list", "--follow")
    peer.finishes = True
    daemon = await start(home, "serve")
    channel = connect(home.socket("task-runner"))
    stub: Any = SchedulesStub(channel)
    await stub.GetStatus(wire.GetStatusRequest(), wait_for_ready=True)
    reader = await start(home, "list", "--follow", "--channel", "general", "-o", "jsonl", "-q")

    async def line() -> dict[str, Any]:
        assert reader.stdout is not None
        return json.loads(await reader.stdout.readline())

    assert (await line())["name"] == "digest"
    elsewhere = wire.TaskSpec(name="other", every="1h", category="loop", channel="elsewhere", prompt="p")
    await stub.CreateTask(wire.CreateTaskRequest(spec=elsewhere))
    await stub.PauseTask(wire.PauseTaskRequest(name="digest", note="n"))
    paused = await line()
    assert (paused["change"], paused["task"]["state"], paused["task"]["name"]) == ("paused", "paused", "digest")
    await stub.ResumeTask(wire.ResumeTaskRequest(name="digest"))
    assert (await line())["change"] == "changed"
    await stub.RunTask(wire.RunTaskRequest(name="digest", request_id="abc"))
    assert [(await line())["change"] for _ in range(2)] == ["fired", "changed"]
    newest = [each async for each in first(stub.WatchTasks(wire.WatchTasksRequest(cursor=paused["cursor"])), 3)]
    assert [each.change for each in newest] == ["changed", "fired", "changed"]
    brief = wire.WatchTasksRequest(cursor=paused["cursor"], names_only=True)
    named = [each async for each in first(stub.WatchTasks(brief), 3)]
    assert [(each.task_id, each.name, each.HasField("task")) for each in named] == [
        (newest[0].task_id, "digest", False)
    ] * 3
    daemon.terminate()
    assert await daemon.wait() == 0
    daemon = await start(home, "serve")
    assert (await line())["name"] == "digest", "the list again"
    await stub.DeleteTask(wire.DeleteTaskRequest(name="digest"), wait_for_ready=True)
    gone = await line()
    assert (gone["change"], gone["task"]) == ("deleted", None)
    reader.terminate()
    daemon.terminate()
    await asyncio.gather(reader.wait(), daemon.wait(), channel.close())


async def first(stream: Any, count: int) -> Any:
    async for each in stream:
        yield each
        count -= 1
        if not count:
            stream.cancel()
            return
