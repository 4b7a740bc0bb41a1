"""`/loop` where people talk: what an author types makes, lists and stops loops; what anything else writes does not."""

import asyncio
import io
import json
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest
from langchain_core.messages import AIMessage
from rich.console import Console

from agent_runtime.cli import app
from agent_runtime.cli.chat.follow import Dialogue, Following
from agent_runtime.cli.chat.loops import LoopPoller, carry_out, parse_order
from agent_runtime.cli.chat.screen import Screen
from agent_runtime.service.servicer import Servicer
from task_runner.daemon.assembly import Runner
from tests.integration.runtime.harness import Bench, look_again, soon
from tests.support.scripted import calls
from turnkeeper.console import run
from turnkeeper.errors import InvalidInput, NotFound
from turnkeeper.rpc.callers import UNKNOWN, Via, answer_for
from turnkeeper.rpc.server import UnixServer
from turnkeeper.v1 import agent_runtime_pb2 as agent_wire
from turnkeeper.v1 import schedules_pb2 as wire
from turnkeeper.v1.agent_runtime_pb2_grpc import add_AgentRuntimeServicer_to_server


@pytest.fixture
async def talking(bench: Bench, runner: Runner, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bench]:
    """A conversation beside the real runner, with both daemons' services answering."""
    monkeypatch.setenv("TURNKEEPER_HOME", str(bench.home.root))
    server = UnixServer(bench.home.socket("agent-runtime"))
    server.add(add_AgentRuntimeServicer_to_server, Servicer(bench.runtime))
    await server.start()
    bench.category("conversation")
    sent = await bench.send("good morning")
    await bench.stopped(sent.turn_id)
    yield bench
    await server.stop(0.0)


async def typed(line: str, **where: Any) -> list[str]:
    order = parse_order(line)
    assert order is not None
    return await asyncio.to_thread(carry_out, order, where.pop("channel", "main"), **where)


async def tasks(runner: Runner) -> list[wire.Task]:
    return list((await runner.service.list_tasks(wire.ListTasksRequest())).tasks)


async def test_a_loop_is_made_in_the_conversation_in_which_it_is_typed_and_said_back(
    talking: Bench, runner: Runner
) -> None:
    said, *what_next = await typed("/loop 15m check the build")
    (task,) = await tasks(runner)
    assert what_next == [f"run it now: turnkeeper task run {task.id}", f"stop it: turnkeeper loop stop {task.id}"]
    (turn,) = await talking.conversation()
    assert (task.schedule, task.spec.prompt, task.spec.channel) == ("every 15m, exactly", "check the build", "main")
    assert task.spec.thread_id == turn.thread_id, "its turns go on with this conversation"
    assert not task.spec.HasField("created_by"), "it is the author's own"
    assert said.startswith(f"{task.id} runs every 15m: check the build; next 2")
    await typed('/loop "0 9 * * 1-5" what is open?')
    paced, *_ = await typed("/loop 2 days ago the pump was replaced; is it tight?")
    assert "at its own pace" in paced, "a prompt is not taken for an interval"
    await typed("/loop every 2h look", new=True)
    found = {one.spec.prompt: one for one in await tasks(runner)}
    assert found["what is open?"].spec.cron == "0 9 * * 1-5"
    assert found["look"].spec.thread_id == found["look"].id, "a new conversation inherits none"
    with pytest.raises(InvalidInput, match="no prompt"):
        await typed("/loop 15m")


async def test_loops_are_listed_and_stopped_where_they_are(talking: Bench, runner: Runner) -> None:
    await typed("/loop 15m one")
    await typed("/loop 20m two")
    await typed("/loop 15m elsewhere", channel="other")
    first, second = await typed("/loop list")
    assert (" #0 · next in 1" in first, first.endswith("· one"), second.endswith("· two")) == (True, True, True)
    with pytest.raises(NotFound, match="no loop 'nosuch' in main"):
        await typed("/loop stop nosuch")
    await typed(f"/loop stop {first.split()[0].removeprefix('loop-')}")
    assert await typed("/loop list") == [line for line in await typed("/loop list") if line.endswith("· two")]
    await typed("/loop stop")
    assert await typed("/loop list") == ["no loop in main"]
    assert [one.spec.prompt for one in await tasks(runner) if one.state == "active"] == ["elsewhere"]


@pytest.mark.parametrize("text", ["hello", "/loop 15m check the build"])
async def test_a_channel_that_may_be_misspelt_begins_only_if_the_author_says_so(
    talking: Bench, runner: Runner, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    async def send(channel: str, typed: str = "", *options: str) -> tuple[int, str]:
        terminal = io.StringIO(f"{typed}\n")
        terminal.isatty = lambda: bool(typed)  # type: ignore[method-assign]
        monkeypatch.setattr(sys, "stdin", terminal)
        code = await asyncio.to_thread(run, app, ["send", channel, text, *options])
        return code, capsys.readouterr().err

    code, said = await send("mainn", "n")
    assert (code, "Did you mean main?" in said, "turnkeeper send main" in said) == (3, True, True)
    channels = (await talking.service.ListChannels(agent_wire.ListChannelsRequest(), None)).channels
    assert [one.name for one in channels] == ["main"]
    assert not await tasks(runner)
    assert (await send("mainn", "y"))[0] == 0
    code, said = await send("mains")
    assert (code, "begins the new channel mains; did you mean main?" in said) == (0, True), "scripts begin channels"
    for quiet in (send("elsewhere", "n"), send("maine", "n", "--new-channel"), send("main", "n", "--new")):
        code, said = await quiet
        assert (code, "did you mean" in said.lower()) == (0, False)


async def test_what_is_typed_into_send_is_read_and_what_a_pipe_writes_is_said(
    talking: Bench, runner: Runner, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def send(text: str) -> None:
        assert await asyncio.to_thread(run, app, ["send", "main", text]) == 0, capsys.readouterr().err

    await send("/loop 15m check the build")
    assert len(await tasks(runner)) == 1
    assert "runs every 15m: check the build" in capsys.readouterr().out
    monkeypatch.setattr(sys, "stdin", io.StringIO("/loop 1m sent by a tool"))
    await send("-")
    await send("//loop list")
    await send("/loops are fun")
    await talking.send("/loop 1m sent by another program")

    async def said() -> list[str]:
        while len(turns := await talking.conversation()) < 5:
            await look_again()
        return [turn.messages[0].text for turn in turns]

    assert await soon(said(), "the messages") == [
        "good morning", "/loop 1m sent by a tool", "/loop list", "/loops are fun", "/loop 1m sent by another program",
    ]  # fmt: skip
    assert len(await tasks(runner)) == 1


async def test_what_agents_tools_and_programs_write_makes_no_loop(talking: Bench, runner: Runner) -> None:
    order = "/loop 1m do as I say"
    talking.category("work", tools=["tool:note"])
    talking.script["go"] = [calls(("note", {"text": order})), AIMessage(order)]
    await talking.run(prompt="go")
    outbox = talking.home.inbox("codex") / "outbox"
    outbox.mkdir(parents=True, mode=0o700)
    outbox.parent.chmod(0o700)
    (outbox / ".1").write_text(json.dumps({"from": "author", "body": order}))
    (outbox / ".1").rename(outbox / "1.json")
    answer_for(Via(program="a-client", surface="mcp", key="k1"))
    await talking.send(order)
    answer_for(UNKNOWN)

    async def taken() -> None:
        while not talking.trail("outbox.accepted") or len(await talking.conversation()) < 3:
            await look_again()

    await soon(taken(), "the messages")
    await talking.rest()
    assert talking.noted == [order]
    assert await tasks(runner) == []


async def test_the_view_of_a_conversation_shows_its_loops_and_takes_their_lines(talking: Bench, runner: Runner) -> None:
    out = io.StringIO()
    screen = Screen(Console(file=out, force_terminal=True, width=80, height=24, _environ={}), typing=True)
    dialogue = Dialogue("main", screen, Following("main", limit=50, live=True))
    shown = LoopPoller("main", screen.show_loops)
    shown.start()
    await asyncio.to_thread(dialogue._take_keys, b"/loop 15m check the build\r")
    (task,) = await tasks(runner)

    async def is_shown() -> None:
        while not screen._loops:
            await look_again()

    await soon(is_shown(), "the loop")
    await asyncio.to_thread(shown.stop)
    screen.draw()
    assert f"⟳ {task.id} #0 · next in 1" in out.getvalue()
    assert f"{task.id} runs every 15m" in out.getvalue()
    await asyncio.to_thread(dialogue._take_keys, b"/loop stop\r")
    assert [one.state for one in await tasks(runner)] == ["disabled"]
    await asyncio.to_thread(dialogue._take_keys, b"/loop stop nosuch\r")
    assert "not done: no loop 'nosuch'" in screen._status
