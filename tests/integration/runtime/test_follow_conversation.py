"""Following a conversation: what running turns say as they say it, each thing once, and at nobody else's cost."""

import asyncio
import io
import json
import os
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.outputs import ChatGenerationChunk
from rich.console import Console

from agent_runtime.cli import app
from agent_runtime.cli.chat.follow import Dialogue, Disconnected, Following, Reconnected
from agent_runtime.cli.chat.screen import LineView, Screen
from agent_runtime.cli.client import complete_channel
from agent_runtime.daemon.cluster import runs
from agent_runtime.model.turn import TurnContext
from agent_runtime.service.servicer import Servicer
from tests.integration.runtime.harness import PATIENCE_S, SETTINGS, Bench, Call, look_again, soon
from tests.support.scripted import ScriptedModel, calls
from turnkeeper.config.home import Home
from turnkeeper.config.settings import NodeSettings
from turnkeeper.console import run
from turnkeeper.rpc.server import UnixServer
from turnkeeper.storage.server import handover
from turnkeeper.v1 import agent_runtime_pb2 as wire
from turnkeeper.v1.agent_runtime_pb2_grpc import add_AgentRuntimeServicer_to_server

COST: Any = {"input_tokens": 10, "output_tokens": 3, "total_tokens": 13}


class Typing(ScriptedModel):
    """Writes its lines word by word; a word that is `…` waits until the test says go."""

    bench: Any

    async def _astream(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        self.bench.streams += 1
        line = self._generate(messages).generations[0].message
        assert isinstance(line, AIMessage)
        for word in str(line.content).split(" "):
            if word == "…":
                self.bench.blocked.set()
                await self.bench.go.wait()
                continue
            yield ChatGenerationChunk(message=AIMessageChunk(content=f"{word} "))
        made: Any = [dict(call) for call in line.tool_calls]
        yield ChatGenerationChunk(message=AIMessageChunk(content="", tool_calls=made, usage_metadata=COST))


class Desk(Bench):
    """A bench whose model writes word by word where it is asked to."""

    streams = 0

    def _build(self, specs: Any, middleware: Any, saver: Any) -> Any:
        model = Typing(script=self.script, bench=self)
        tools = [spec.tool for spec in specs] + self._tools()
        return create_agent(model, tools, middleware=middleware, context_schema=TurnContext, checkpointer=saver)

    async def follow(self, until: Any, *, live: bool = True, channel: str = "main") -> list[wire.ConversationTurn]:
        """Follow until something wanted comes; all that came."""
        found: list[wire.ConversationTurn] = []

        async def watch() -> list[wire.ConversationTurn]:
            request = wire.WatchConversationRequest(channel=channel, live=live)
            async with aclosing(self.service.WatchConversation(request, Call())) as stream:
                async for turn in stream:
                    found.append(turn)
                    if until(turn):
                        return found
            return found

        return await soon(watch(), f"it in {found}")

    async def followed(self, channel: str = "main") -> None:
        """Wait until somebody follows."""
        async with asyncio.timeout(PATIENCE_S):
            while not self.runtime.live.followed(channel):
                await look_again()


def said_again(turn: wire.ConversationTurn) -> bool:
    return over(turn) and turn.messages[0].text == "again"


@pytest.fixture
async def desk(home: Home) -> AsyncIterator[Desk]:
    made = Desk(home)
    await made.open()
    yield made
    await made.close()


def spoken(text: str) -> Callable[[wire.ConversationTurn], bool]:
    """Return what tells the piece by which just this was said, however many pieces it came in."""
    heard: dict[str, str] = {}

    def told(turn: wire.ConversationTurn) -> bool:
        if turn.speech.text:
            before = heard.get(turn.speech.message, "")
            assert turn.speech.offset == len(before), "no piece is missing, and none comes twice"
            heard[turn.speech.message] = before + turn.speech.text
        return text in heard.values()

    return told


def never(_turn: wire.ConversationTurn) -> bool:
    return False


def over(turn: wire.ConversationTurn) -> bool:
    return turn.status in {"succeeded", "failed", "cancelled", "interrupted"}


async def test_a_follower_reads_words_before_their_message_is_over(desk: Desk) -> None:
    desk.script["go"] = [AIMessage("one two … three")]
    following = asyncio.create_task(desk.follow(spoken("one two ")))
    await desk.followed()
    await desk.accept(desk.fire())
    heard = (await following)[-1]
    assert (heard.speech.after, heard.speech.offset, heard.status) == (0, 0, ""), "a piece, and no turn"
    over_ = asyncio.create_task(desk.follow(over))
    desk.go.set()
    assert [message.text for message in (await over_)[-1].messages] == ["go", "one two three "]


async def test_who_comes_in_the_middle_of_a_message_hears_all_of_it_so_far(desk: Desk) -> None:
    desk.script["go"] = [AIMessage("one two …")]
    first = asyncio.create_task(desk.follow(never))
    await desk.followed()
    await desk.accept(desk.fire())
    await soon(desk.blocked.wait(), "the model")
    later = await desk.follow(spoken("one two "))
    assert [turn.status for turn in later] == ["running", ""], "the turn first, then what it says"
    first.cancel()


async def test_nobody_who_follows_means_no_streaming(desk: Desk) -> None:
    desk.script["go"] = [AIMessage("one two")]
    await desk.run()
    whole = asyncio.create_task(desk.follow(never, live=False))
    elsewhere = asyncio.create_task(desk.follow(never, channel="other"))
    await desk.followed("other")
    await desk.run(2)
    assert desk.streams == 0
    for task in (whole, elsewhere):
        task.cancel()


async def test_tool_calls_are_told_when_they_start_and_when_they_end(desk: Desk) -> None:
    desk.script["go"] = [calls(("block", {}), ("note", {"text": "x"})), AIMessage("done")]
    following = asyncio.create_task(desk.follow(over))
    await desk.followed()
    await desk.accept(desk.fire())
    running = await desk.follow(lambda turn: {call.state for call in turn.speech.calls} == {"running", "done"})
    assert {call.name: call.state for call in running[-1].speech.calls} == {"block": "running", "note": "done"}
    assert [call.name for turn in running for message in turn.messages for call in message.tool_calls] == [
        "block",
        "note",
    ], "who asks for the calls is on record before they are told"
    desk.go.set()
    found = await following
    assert [message.role for message in found[-1].messages] == ["trigger", "agent", "tool", "tool", "agent"]
    assert found[-1].messages[2].tool_call_id == found[-1].messages[1].tool_calls[0].id


async def test_a_turn_that_goes_on_after_a_decision_is_heard_too(desk: Desk) -> None:
    desk.category("work", tools=["tool:block"])
    desk.script["go"] = [calls(("note", {"text": "x"})), AIMessage("noted as … you said")]
    following = asyncio.create_task(desk.follow(spoken("noted as ")))
    await desk.followed()
    assert (await desk.run()).state == wire.TurnEvent.INTERRUPTED
    [asked] = await desk.pending()
    await desk.resolve(asked.interrupt_id, "approve", args_hash=asked.args_hash)
    heard = (await following)[-1].speech
    assert (heard.after, heard.offset) == (2, 0)
    desk.go.set()


async def test_what_a_silent_turn_says_is_not_told(desk: Desk) -> None:
    desk.category("quiet", silent=True)
    desk.script["go"] = [AIMessage("… ")]
    following = asyncio.create_task(desk.follow(never))
    await desk.followed()
    await desk.accept(desk.fire(category="quiet"))
    await soon(desk.blocked.wait(), "the model")
    desk.script["then"] = [AIMessage("aloud")]
    seen = asyncio.create_task(desk.follow(over))
    await desk.run(2, prompt="then", thread_id="thread-b", task="b")
    assert {turn.messages[0].text for turn in await seen if turn.messages} == {"then"}
    following.cancel()
    desk.go.set()


async def test_what_an_author_decides_elsewhere_is_shown(desk: Desk) -> None:
    granted = 'name = "work"\nautonomous = true\n[scopes]\ntools = ["page.propose"]\nwrites = ["candidate-page"]\n'
    (desk.home.categories / "work.toml").write_text(granted)
    page = {"title": "Garden", "body": "Open on Saturdays."}
    desk.script["go"] = [calls(("page_propose", page)), AIMessage("proposed")]
    await desk.run()
    following = asyncio.create_task(desk.follow(lambda turn: turn.candidates[0].lifecycle == "rejected"))
    await desk.followed()
    [candidate] = (await desk.service.ListCandidates(wire.ListCandidatesRequest(), None)).candidates
    decided = wire.DecideCandidateRequest(candidate_id=candidate.candidate_id, accept=False, note="no")
    await desk.service.DecideCandidate(decided, None)
    found = await following
    assert [turn.candidates[0].lifecycle for turn in found] == ["candidate", "rejected"]


async def test_only_what_changed_is_sent_again(desk: Desk) -> None:
    for number in range(1, 4):
        await desk.run(number)
    following = asyncio.create_task(desk.follow(said_again))
    await desk.followed()
    await desk.run(4, prompt="again")
    found = [turn.turn_id for turn in await following if turn.messages and turn.messages[0].text == "go"]
    assert len(found) == len(set(found)) == 3


async def test_threads_tell_where_they_stand_and_what_they_cost(desk: Desk) -> None:
    desk.category("work", tools=["tool:block"])
    desk.script["ask"] = [calls(("note", {"text": "x"}))]
    await desk.run()
    await desk.run(2, prompt="ask")
    await desk.run(1, thread_id="thread-b", task="b")
    listed = (await desk.service.ListThreads(wire.ListThreadsRequest(), None)).threads
    assert [(one.thread_id, one.status, one.turns, one.waiting) for one in listed] == [
        ("thread-b", "succeeded", 1, 0),
        ("thread-a", "interrupted", 2, 1),
    ]
    [one] = (await desk.service.ListThreads(wire.ListThreadsRequest(thread_id="thread-a"), None)).threads
    turns = (await desk.service.ListTurns(wire.ListTurnsRequest(thread_id="thread-a"), None)).turns
    assert one.tokens_out == sum(turn.tokens_out for turn in turns)
    assert one.last_turn_id == turns[0].turn_id


@asynccontextmanager
async def served(desk: Desk) -> AsyncIterator[None]:
    desk.service = Servicer(desk.runtime)
    server = UnixServer(desk.home.socket("agent-runtime"))
    server.add(add_AgentRuntimeServicer_to_server, desk.service)
    await server.start()
    try:
        yield
    finally:
        desk.service.close()
        await server.stop(1.0)


async def test_a_restart_is_waited_for_and_nothing_is_shown_twice(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURNKEEPER_HOME", str(desk.home.root))
    out = Console(file=io.StringIO(), width=10_000)
    reader, following = LineView(out), Following("main", limit=50, live=True)

    async def until(wanted: Callable[[Any], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not wanted(event := await asyncio.to_thread(following.next, PATIENCE_S)):
                assert not isinstance(event, Reconnected), "it answers again before anything is said twice"
                if isinstance(event, wire.ConversationTurn):
                    reader.take(event)
        if isinstance(event, wire.ConversationTurn):
            reader.take(event)

    async with served(desk):
        await desk.run()
        following.start()
        await until(lambda event: isinstance(event, wire.ConversationTurn) and over(event))
    await until(lambda event: isinstance(event, Disconnected))
    async with served(desk):
        await desk.run(2, prompt="again")
        await until(lambda event: isinstance(event, Reconnected))
        await until(lambda event: isinstance(event, wire.ConversationTurn) and said_again(event))
        await asyncio.to_thread(following.stop)
    assert isinstance(out.file, io.StringIO)
    prompts = [line for line in out.file.getvalue().splitlines() if line.startswith("  prompt")]
    assert prompts == ["  prompt     go", "  prompt     again"]


async def test_one_thread_alone_is_followed_by_a_command(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURNKEEPER_HOME", str(desk.home.root))
    await desk.run(1, thread_id="quiet")
    await desk.run(2, thread_id="loud", task="b")
    following = Following("main", limit=50, live=True, thread_id="quiet")
    async with served(desk):
        following.start()
        first: Any = await asyncio.to_thread(following.next, PATIENCE_S)
        await desk.run(3, thread_id="loud", task="b")
        await desk.run(4, thread_id="quiet", prompt="again")
        later: Any = await asyncio.to_thread(following.next, PATIENCE_S)
        await asyncio.to_thread(following.stop)
    assert [first.thread_id, later.thread_id] == ["quiet", "quiet"]


async def asking(desk: Desk, text: str = "x") -> None:
    """Let a turn ask for a tool past its category."""
    desk.category("work", tools=["tool:block"])
    desk.script["go"] = [calls(("note", {"text": text})), AIMessage("noted")]
    assert (await desk.run()).state == wire.TurnEvent.INTERRUPTED


async def test_an_author_answers_while_the_conversation_goes_by(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURNKEEPER_HOME", str(desk.home.root))
    await asking(desk)
    keys, typing = os.pipe()
    news, ring = os.pipe()
    out = Console(file=io.StringIO(), force_terminal=True, width=80, height=24, _environ={})
    screen = Screen(out, typing=True)
    following = Following("main", limit=50, live=True, on_event=lambda: os.write(ring, b"."))
    async with served(desk):
        following.start()
        sitting = asyncio.create_task(asyncio.to_thread(Dialogue("main", screen, following).run, keys, news))
        async with asyncio.timeout(PATIENCE_S):
            while screen.waiting.get(1) is None:
                await look_again()
        os.write(typing, b"a 2\ra 1\r")
        await desk.stopped((await desk.conversation())[0].turn_id, after=2)
        os.write(typing, b"q\r")
        await soon(sitting, "the end")
        await asyncio.to_thread(following.stop)
    assert desk.noted == ["x"]
    for descriptor in (keys, typing, news, ring):
        os.close(descriptor)


async def test_a_message_that_would_end_a_loop_is_sent_when_its_author_has_said_so(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TURNKEEPER_HOME", str(desk.home.root))
    desk.category("work", tools=["loop.wakeup"])
    desk.category("conversation")
    desk.script["go"] = [calls(("schedule_loop_wakeup", {"delay_seconds": 60}))]
    first = await desk.send("good morning")
    await desk.stopped(first.turn_id)
    await desk.run(kind="wake", task_id="loop-0000000a", fire_id="loop-0000000a@1~w1", thread_id=first.thread_id)
    screen = Screen(Console(file=io.StringIO(), force_terminal=True, width=80, _environ={}), typing=True)
    dialogue = Dialogue("main", screen, Following("main", limit=50, live=True))
    async with served(desk):
        for line in ("never mind\r", "?\r", "how far are you?\r"):
            await asyncio.to_thread(dialogue._take_keys, line.encode())
        assert len(await desk.conversation()) == 2, "it was asked about, and nothing was sent"
        assert "loop-0000000a ends because of this" in screen._status
        await asyncio.to_thread(dialogue._take_keys, b"n\r")
        while len(said := await desk.conversation()) == 2:
            await look_again()
    *_, sent = said
    assert sent.messages[0].text == "how far are you?"
    assert (await desk.send("well?", look=True)).takes_over == "loop-0000000a", "it goes on"


async def test_the_command_lines_of_threads_and_turns_tell_tokens(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TURNKEEPER_HOME", str(desk.home.root))
    following = asyncio.create_task(desk.follow(over))
    await desk.followed()
    turn_id = (await desk.run()).turn_id  # is followed, and so streamed, and so costs what a stream tells
    await following
    async with served(desk):
        assert await asyncio.to_thread(run, app, ["turns", "show", turn_id]) == 0
        assert await asyncio.to_thread(run, app, ["threads", "show", "thread-a", "-o", "json"]) == 0
        assert await asyncio.to_thread(complete_channel, "ma") == ["main"]
    assert await asyncio.to_thread(complete_channel, "ma") == ["main"], "from the store, where nobody answers"
    shown = capsys.readouterr().out
    assert "tokens:     10 read, 3 written" in shown
    found = json.loads(shown[shown.index("{") :])
    assert (found["tokens_in"], found["tokens_out"], found["newest_turns"][0]["turn_id"]) == (10, 3, turn_id)


@pytest.fixture
async def elsewhere(home: Home, shared_url: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Desk]:
    """A runtime that runs no turns, on another machine that shares the store."""
    other = Home(root=tmp_path_factory.mktemp("other") / "home")
    other.create()
    made = Desk(other, shared=shared_url)
    made.settings = SETTINGS.model_copy(update={"node": NodeSettings(roles=("runner",))})
    await made.open()
    yield made
    await made.close()


async def test_words_are_heard_on_other_machines_of_the_store(
    home: Home, shared_url: str, elsewhere: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "FOLLOWED_S", 1.0)
    monkeypatch.setattr(runs, "FOLLOW_S", 0.2)
    desk = Desk(home, shared=shared_url)
    await desk.open()
    try:
        long = "ü" * 2000 + "end"
        desk.script |= {"go": [AIMessage(f"one {long} … two")], "call": [calls(("block", {})), AIMessage("three")]}
        following = asyncio.create_task(elsewhere.follow(spoken(f"one {long} ")))
        await desk.followed()
        assert not desk.runtime.live.readers, "who passes words on is no reader"
        await desk.accept(desk.fire())
        heard = (await following)[-1]
        assert (heard.speech.after, heard.status) == (0, ""), "a piece, and no turn"
        over_ = asyncio.create_task(elsewhere.follow(over))
        desk.go.set()
        assert [message.text for message in (await over_)[-1].messages] == ["go", f"one {long} two "]
        desk.go = asyncio.Event()
        calling = asyncio.create_task(
            elsewhere.follow(lambda turn: [one.name for one in turn.speech.calls] == ["block"])
        )
        await desk.accept(desk.fire(2, prompt="call"))
        assert [one.state for one in (await calling)[-1].speech.calls] == ["running"]
        desk.go.set()
        async with asyncio.timeout(PATIENCE_S):
            while desk.runtime.live.followed("main"):
                await look_again()
    finally:
        await desk.close()


async def test_without_notifications_a_turn_of_another_machine_comes_whole(
    home: Home, shared_url: str, elsewhere: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handover, "notify", lambda *_about: None)
    monkeypatch.setattr("agent_runtime.daemon.cluster.parts.tell", lambda *_about: None)
    desk = Desk(home, shared=shared_url)
    await desk.open()
    try:
        desk.script["go"] = [AIMessage("one two")]
        following = asyncio.create_task(elsewhere.follow(over))
        await desk.accept(desk.fire())
        assert [message.text for message in (await following)[-1].messages] == ["go", "one two"]
    finally:
        await desk.close()
