"""Threads: described before their first turn, found by what was said of them, read and followed one by one."""

import asyncio
import json
from collections.abc import Callable
from contextlib import aclosing
from typing import Any

import pytest
from langchain_core.messages import AIMessage

from agent_runtime.store.turn_events import add_review
from tests.integration.runtime.harness import STATES, Bench, Call, look_again, soon
from tests.support.scripted import calls
from turnkeeper.config.settings import AgentSettings
from turnkeeper.errors import Conflict, InvalidInput, NotFound
from turnkeeper.rpc.callers import Via, answer_for, read_via
from turnkeeper.rpc.errors import AlreadyExists
from turnkeeper.v1 import agent_runtime_pb2 as wire

Turns = list[wire.ConversationTurn]


async def put(bench: Bench, metadata: dict[str, Any] | None = None, **given: Any) -> wire.Thread:
    text = "" if metadata is None else json.dumps(metadata)
    return await bench.service.PutThread(wire.PutThreadRequest(metadata_json=text, **given), None)


async def listed(bench: Bench, metadata: dict[str, Any] | None = None, **given: Any) -> list[str]:
    text = "" if metadata is None else json.dumps(metadata)
    request = wire.ListThreadsRequest(metadata_json=text, **given)
    return [one.thread_id for one in (await bench.service.ListThreads(request, None)).threads]


async def read(bench: Bench, **given: Any) -> wire.Conversation:
    return await bench.service.GetConversation(wire.GetConversationRequest(**given), None)


async def say(bench: Bench, text: str, **given: Any) -> wire.SendMessageResponse:
    sent = await bench.service.SendMessage(wire.SendMessageRequest(text=text, **given), None)
    await bench.stopped(sent.turn_id)
    return sent


def texts(turns: Any) -> list[str]:
    return [turn.messages[0].text for turn in turns]


async def followed(bench: Bench, until: Callable[[wire.ConversationTurn], bool], **given: Any) -> Turns:
    found: Turns = []

    async def watch() -> Turns:
        async with aclosing(bench.service.WatchConversation(wire.WatchConversationRequest(**given), Call())) as stream:
            async for turn in stream:
                found.append(turn)
                if until(turn):
                    break
        return found

    return await soon(watch(), f"it in {found}")


async def test_a_thread_is_described_before_its_first_turn_and_keeps_that(bench: Bench) -> None:
    answer_for(read_via("chat/web/k1"))
    made = await put(bench, {"owner": "ada", "tags": {"colour": "red"}}, channel="garden")
    assert (made.channel, made.turns, made.status) == ("garden", 0, "")
    assert json.loads(made.metadata_json) == {"owner": "ada", "tags": {"colour": "red"}}
    assert made.created_at == made.updated_at
    with pytest.raises(Conflict, match="belongs to channel garden"):
        await bench.send("hello", thread_id=made.thread_id)
    sent = await say(bench, "hello", thread_id=made.thread_id)
    changed = await put(bench, {"owner": None, "done": True}, thread_id=sent.thread_id)
    assert (changed.channel, changed.turns, changed.status) == ("garden", 1, "succeeded"), "its channel was found"
    assert json.loads(changed.metadata_json) == {"done": True, "tags": {"colour": "red"}}
    assert changed.created_at == made.created_at
    got = await bench.service.GetThread(wire.GetThreadRequest(thread_id=made.thread_id), None)
    assert got == changed


async def test_threads_are_found_by_their_metadata_page_by_page(bench: Bench) -> None:
    for number in range(5):
        await put(bench, {"n": number % 2, "deep": {"a": number, "b": 1}}, channel="c", thread_id=f"t{number}")
    assert await listed(bench, {"n": 0}) == ["t4", "t2", "t0"]
    assert await listed(bench, {"deep": {"a": 3}}) == ["t3"]
    assert await listed(bench, {"n": True}) == await listed(bench, {"nosuch": 1}) == [], "true is no number"
    first = await bench.service.ListThreads(wire.ListThreadsRequest(metadata_json='{"n": 0}', limit=2), None)
    assert first.total == 3
    assert await listed(bench, {"n": 0}, limit=2, cursor=first.next_cursor) == ["t0"]
    assert await listed(bench, channel="other") == []
    await bench.run()
    assert await listed(bench) == ["thread-a", "t4", "t3", "t2", "t1", "t0"], "the newest first, whichever"


@pytest.mark.parametrize(
    ("given", "error", "where"),
    [
        ({"thread_id": "a/b", "channel": "main"}, InvalidInput, "thread_id"),
        ({"channel": ""}, InvalidInput, "channel"),
        ({"channel": "main", "metadata_json": "[1]"}, InvalidInput, "metadata_json"),
        ({"channel": "main", "metadata_json": json.dumps({"a": "x" * (17 << 10)})}, InvalidInput, "metadata_json"),
        ({"thread_id": "thread-a", "must_be_new": True}, AlreadyExists, "thread_id"),
        ({"thread_id": "thread-a", "channel": "other"}, Conflict, "channel"),
    ],
)
async def test_what_cannot_be_said_of_a_thread_changes_nothing(bench: Bench, given, error, where) -> None:
    await bench.run()
    before = await bench.service.ListThreads(wire.ListThreadsRequest(), None)
    with pytest.raises(error) as raised:
        await bench.service.PutThread(wire.PutThreadRequest(**given), None)
    assert raised.value.where == where
    assert await bench.service.ListThreads(wire.ListThreadsRequest(), None) == before
    with pytest.raises(NotFound):
        await bench.service.GetThread(wire.GetThreadRequest(thread_id="nosuch"), None)


async def test_a_quiet_thread_of_a_loud_channel_is_read_whole(bench: Bench) -> None:
    quiet = await say(bench, "quiet 1", channel="main", new_thread=True)
    for number in range(3):
        await say(bench, f"loud {number}", channel="main", thread_id="loud")
    await say(bench, "quiet 2", channel="main", thread_id=quiet.thread_id)
    assert texts((await read(bench, channel="main", limit=3)).turns) == ["loud 1", "loud 2", "quiet 2"]
    whole = await read(bench, thread_id=quiet.thread_id, limit=3)
    assert (texts(whole.turns), whole.total, whole.channel, whole.next_cursor) == (
        ["quiet 1", "quiet 2"],
        2,
        "main",
        "",
    )
    assert (await read(bench, thread_id=quiet.thread_id, channel="other")).total == 0


async def test_a_conversation_is_read_backwards_page_by_page(bench: Bench) -> None:
    for number in range(5):
        await say(bench, f"n{number}", channel="main", thread_id="one")
    pages, cursor = list[list[str]](), ""
    while not pages or cursor:
        page = await read(bench, thread_id="one", limit=2, cursor=cursor)
        assert page.total == 5
        pages.append(texts(page.turns))
        cursor = page.next_cursor
    assert pages == [["n3", "n4"], ["n1", "n2"], ["n0"]]
    newest = (await read(bench, channel="main")).turns[-1]
    assert texts((await read(bench, channel="main", cursor=newest.cursor)).turns) == ["n0", "n1", "n2", "n3"]
    with pytest.raises(InvalidInput, match="is not a cursor"):
        await read(bench, channel="main", cursor="é")


async def test_one_thread_is_followed_from_a_cursor_on(bench: Bench) -> None:
    first = await say(bench, "first", channel="main", thread_id="one")
    await say(bench, "second", channel="main", thread_id="one")
    cursor = (await read(bench, thread_id="one")).turns[-1].cursor
    following = asyncio.create_task(
        followed(bench, lambda turn: turn.messages[0].text == "third" and turn.status == "succeeded",
                 thread_id="one", cursor=cursor, live=True)
    )  # fmt: skip
    await say(bench, "elsewhere", channel="main", thread_id="two")
    await say(bench, "third", channel="main", thread_id="one")
    found = [turn for turn in await following if turn.number]
    assert [*dict.fromkeys(texts(found))] == ["second", "third"], "the turn at the cursor is sent again"
    assert {turn.thread_id for turn in found} == {"one"}
    assert first.turn_id not in {turn.turn_id for turn in found}
    assert [turn.number for turn in found] == sorted(turn.number for turn in found)
    with pytest.raises(NotFound, match="no thread 'nosuch'"):
        await followed(bench, lambda _: True, thread_id="nosuch")


async def test_by_what_a_message_came_is_kept_with_its_turn(bench: Bench) -> None:
    answer_for(Via(program="chat", surface="api", key="k1"))
    sent = await say(bench, "hello", channel="main")
    await bench.run()
    assert (await bench.turn(sent.turn_id)).via == "chat/api/k1"
    assert [turn.via for turn in await bench.conversation()] == ["chat/api/k1", ""], "a fire comes by nobody"


async def test_a_message_names_its_agent_and_its_category(bench: Bench) -> None:
    bench.settings = bench.settings.model_copy(update={"agents": {"agent0": AgentSettings(workers=1)}})
    await bench.crash()
    sent = await say(bench, "hello", channel="main", agent="agent1", category="work")
    turn = await bench.turn(sent.turn_id)
    assert (turn.agent, turn.category, turn.status) == ("agent1", "work", "succeeded")
    for given, error in (({"agent": "agent7"}, InvalidInput), ({"category": "nosuch"}, Conflict)):
        with pytest.raises(error):
            await bench.send("hello", **given)


async def test_what_waits_is_listed_for_one_thread(bench: Bench) -> None:
    bench.script["go"] = [calls(("ask", {"question": "?"}))]
    await bench.run(1, thread_id="one")
    await bench.run(2, thread_id="two", task="b")
    request = wire.ListInterruptsRequest(thread_id="two")
    found = await bench.service.ListInterrupts(request, None)
    assert ([one.thread_id for one in found.interrupts], found.total) == (["two"], 1)


async def test_events_with_details_say_where_and_for_what_and_the_runner_s_do_not(bench: Bench) -> None:
    answer_for(read_via("page/web"))
    bench.script["go"] = [AIMessage("done")]
    await bench.run()
    sent = await say(bench, "hello", channel="main", thread_id="other")
    plain = await bench.events(
        until=lambda event: event.turn_id == sent.turn_id and event.state == STATES.Value("SUCCEEDED")
    )
    assert {(event.channel, event.task_id, event.category, event.via) for event in plain} == {("", "", "", "")}
    found: list[wire.TurnEvent] = []

    async def watch() -> None:
        async for event in bench.service.WatchTurns(wire.WatchTurnsRequest(details=True), Call()):
            found.append(event)
            if len(found) == len(plain):
                return

    await soon(watch(), "the events")
    assert [event.sequence for event in found] == [event.sequence for event in plain]
    assert {(event.channel, event.task_id, event.task_name, event.category, event.via) for event in found} == {
        ("main", "task-0000000a", "digest-a", "work", ""),
        ("main", "", "", "conversation", "page/web"),
    }


async def test_reviews_are_told_to_who_asks_for_details_alone(bench: Bench) -> None:
    turn_id = (await bench.run()).turn_id
    review: Any = {"about": ["c-1"], "summary": "Plan"}
    await bench.runtime.store.write(add_review, turn_id, "PROPOSED", bench.runtime.clock.now(), **review)
    last = (await bench.run(2)).turn_id
    plain = await bench.events(until=lambda event: event.turn_id == last)
    assert "PROPOSED" not in {STATES.Name(event.state) for event in plain}
    assert (await bench.turn(turn_id)).state == STATES.Value("SUCCEEDED")

    async def watch() -> wire.TurnEvent:
        async for event in bench.service.WatchTurns(wire.WatchTurnsRequest(details=True), Call()):
            if event.state == STATES.Value("PROPOSED"):
                return event
        raise AssertionError("it ended")

    told = await soon(watch(), "the review")
    assert (told.turn_id, list(told.about), list(told.held_by), told.channel) == (turn_id, ["c-1"], [], "main")


async def test_who_asks_for_what_comes_now_is_told_nothing_of_before(bench: Bench) -> None:
    await bench.run()
    call, found = Call(), list[wire.TurnEvent]()

    async def watch() -> None:
        async for event in bench.service.WatchTurns(wire.WatchTurnsRequest(from_now=True, details=True), call):
            found.append(event)
            return

    watching = asyncio.create_task(watch())
    while not call.metadata:
        await look_again()
    receipt = await bench.accept(bench.fire(2))
    await soon(watching, "the next event")
    assert (found[0].turn_id, found[0].state) == (receipt.turn_id, STATES.Value("STARTED"))
