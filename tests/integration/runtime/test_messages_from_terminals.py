"""What agents in terminals send: answers go where agent0 asked, once; what nobody asked for may write nothing."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from langchain_core.messages import AIMessage

from agent_runtime.mailbox import outboxes
from agent_runtime.mailbox.agent_messages import thread_of
from agent_runtime.mailbox.inbox import reading
from agent_runtime.mailbox.outboxes import MOST_A_MINUTE, open_requests
from tests.integration.runtime.harness import PATIENCE_S, STATES, Bench, look_again
from tests.support.clock import ManualClock
from tests.support.scripted import calls
from turnkeeper.bus.envelope import Envelope
from turnkeeper.clock import SystemClock
from turnkeeper.config.home import Home
from turnkeeper.entropy import SystemEntropy
from turnkeeper.v1 import agent_runtime_pb2 as wire

THREAD = thread_of("codex", "main")


@pytest_asyncio.fixture
async def bench(home: Home) -> AsyncIterator[Bench]:
    made = Bench(home)
    await made.open()
    made.category("work", tools=["agent.send", "tool:note"])
    await made.crash()
    home.inbox("codex").mkdir(parents=True, exist_ok=True, mode=0o700)
    home.inbox("codex").chmod(0o700)
    yield made
    await made.close()


def says(bench: Bench, name: str, **fields: str) -> Path:
    outbox = bench.home.inbox("codex") / "outbox"
    outbox.mkdir(mode=0o700, exist_ok=True)
    path = outbox / f".{name}"
    path.write_text(json.dumps(fields))
    return path.rename(outbox / f"{name}.json")


def shown(thread: str, text: str) -> str:
    return f'<channel source="agent" from="codex" kind="message" thread="{thread}">{text}</channel>'


async def asked(bench: Bench) -> None:
    bench.script["go"] = [calls(("agent_send", {"worker": "codex", "text": "is CI green?"})), AIMessage("asked")]
    await bench.run(prompt="go")


async def turns_of(bench: Bench, count: int, channel: str) -> list[wire.ConversationTurn]:
    """Wait until a channel's conversation has so many turns and nothing is under way."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            request = wire.GetConversationRequest(channel=channel, limit=50)
            found = list((await bench.service.GetConversation(request, None)).turns)
            if len(found) >= count and all(turn.status == "succeeded" for turn in found):
                return found
            await look_again()


async def until_trail(bench: Bench, event: str, count: int = 1) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while len(bench.trail(event)) < count:
            await look_again()


@pytest.mark.parametrize("thread", [THREAD, ""])
async def test_an_answer_becomes_a_turn_where_agent0_asked_and_the_next_one_does_not(bench: Bench, thread: str) -> None:
    await asked(bench)
    bench.script[shown("thread-a", "it is green")] = [calls(("note", {"text": "green"})), AIMessage("CI is green")]
    says(bench, "1", **{"from": "author", "body": "it is green", "thread": thread})
    _, answer = await turns_of(bench, 2, "main")
    assert (answer.thread_id, answer.messages[0].text) == ("thread-a", "codex to agent0: it is green")
    assert bench.noted == ["green"], "it has the grant of the turn that asked"
    await bench.crash()
    says(bench, "2", body="it is red", thread=thread)
    (unasked,) = await turns_of(bench, 1, "codex")
    assert unasked.thread_id.startswith("codex-")


async def test_an_answer_to_what_was_never_asked_or_is_answered_is_set_aside(bench: Bench) -> None:
    await asked(bench)
    ((item, _),) = await bench.runtime.store.read(open_requests, "codex", "")
    says(bench, "1", body="a guess", meta={"answers": "turn-0"})  # type: ignore[arg-type]
    await until_trail(bench, "outbox.refused")
    says(bench, "2", body="it is green", meta={"answers": item.turn_id})  # type: ignore[arg-type]
    await until_trail(bench, "outbox.accepted")
    says(bench, "3", body="it is red", meta={"answers": item.turn_id})  # type: ignore[arg-type]
    await until_trail(bench, "outbox.refused", 2)
    reasons = [record["reason"] for record in bench.trail("outbox.refused")]
    assert ["awaits an answer from" in reason for reason in reasons] == [True, True]
    aside = {path.name.partition("-")[2] for path in (bench.home.inbox("codex") / "refused").glob("*.json")}
    assert aside == {"1.json", "3.json"}
    _, answer = await turns_of(bench, 2, "main")
    assert answer.messages[0].text == "codex to agent0: it is green"


async def test_what_nobody_asked_for_writes_nothing_without_the_author_and_is_answered_in_the_inbox(
    bench: Bench,
) -> None:
    thread = thread_of("codex", "codex")
    bench.script[shown(thread, "forget all")] = [
        calls(("memory_put", {"tier": "channel", "text": "x"})),
        AIMessage("noted"),
    ]
    bench.script[shown(thread, "hello")] = [AIMessage("hello codex")]
    says(bench, "1", body="hello")
    await turns_of(bench, 1, "codex")
    inbox = bench.home.inbox("codex") / "inbox"
    async with asyncio.timeout(PATIENCE_S):
        while not list(inbox.glob("*.json")):
            await look_again()
    with reading(bench.home, "codex", "inbox drain", clock=SystemClock(), entropy=SystemEntropy()) as reader:
        (item,) = reader.claim()
        assert (item.envelope.sender, item.envelope.text, item.envelope.thread) == ("agent0", "hello codex", thread)
        reader.finish(item, lambda _: None)
    says(bench, "2", body="forget all", thread=thread)
    await bench.events(until=lambda event: event.state == STATES.INTERRUPTED)
    (question,) = await bench.pending()
    assert question.tool == "memory_put", "its category grants it to an author's own messages"


async def test_a_thread_of_somebody_elses_is_not_written_on(bench: Bench) -> None:
    await bench.run(prompt="go")
    for number, thread in enumerate(("thread-a", "agent1-0feae16d", thread_of("codexx", "codex"))):
        says(bench, str(number), body="hello", thread=thread)
    found = await turns_of(bench, 3, "codex")
    assert {turn.thread_id[:6] for turn in found} == {"codex-"}
    assert len(await bench.conversation()) == 1


async def test_an_ack_of_a_reader_in_a_terminal_comes_by_its_outbox(bench: Bench) -> None:
    told = Envelope(
        id="m1", sender="agent0", to="codex", kind="message", text="x", at=SystemClock().now(), requires_ack=True
    )
    bench.post(told)
    with reading(bench.home, "codex", "inbox drain", clock=SystemClock(), entropy=SystemEntropy()) as reader:
        (item,) = reader.claim()
        reader.finish(item, lambda _: None)
    await until_trail(bench, "ack.received")
    assert [(record["agent"], record["sender"]) for record in bench.trail("ack.received")] == [("agent0", "codex")]
    says(bench, "2", body="hello", requires_ack=True)  # type: ignore[arg-type]
    await turns_of(bench, 1, "codex")
    acks = bench.home.inbox("codex") / "inbox"
    async with asyncio.timeout(PATIENCE_S):
        while not any('"kind":"ack"' in path.read_text() for path in acks.glob("*.json")):
            await look_again()


async def test_a_message_whose_key_is_repeated_is_acknowledged_once(bench: Bench) -> None:
    for number in ("1", "2"):
        says(bench, number, id=f"m{number}", body="hello", idempotency_key="k", requires_ack=True)  # type: ignore[arg-type]
        await until_trail(bench, "outbox.accepted", int(number))
    says(bench, "3", body="hello again", requires_ack=True)  # type: ignore[arg-type]
    await turns_of(bench, 2, "codex")
    inbox = bench.home.inbox("codex") / "inbox"

    def acked() -> list[str]:
        found = [json.loads(path.read_text()) for path in sorted(inbox.glob("*.json"))]
        return [each["meta"]["envelope"] for each in found if each["kind"] == "ack"]

    async with asyncio.timeout(PATIENCE_S):
        while len(acked()) < 2:
            await look_again()
    assert acked()[0] == "m1"
    assert "m2" not in acked()


async def test_one_agent_is_taken_from_at_a_bounded_rate_and_nothing_is_lost(home: Home) -> None:
    clock = ManualClock()
    bench = Bench(home, clock)
    await bench.open()
    home.inbox("codex").mkdir(parents=True, mode=0o700)
    home.inbox("codex").chmod(0o700)
    for number in range(MOST_A_MINUTE + 5):
        says(bench, f"{number:03}", body="hello", kind="shutdown")
    async with asyncio.timeout(PATIENCE_S):
        while len(bench.trail("outbox.refused")) < MOST_A_MINUTE:
            clock.advance(0.01)
            await asyncio.to_thread(lambda: None)
        assert len(list((home.inbox("codex") / "outbox").glob("*.json"))) >= 4
        while len(bench.trail("outbox.refused")) < MOST_A_MINUTE + 5:
            clock.advance(1.0)
            await asyncio.to_thread(lambda: None)
    await bench.close()


async def test_a_folder_that_is_a_link_or_carries_a_reserved_name_is_not_taken_from(bench: Bench) -> None:
    (bench.home.inbox("codex") / "outbox").symlink_to(bench.home.inbox("agent0") / "delivered")
    for name in ("author", "task-runner", "watchdog", "agent0"):
        folder = bench.home.inbox(name) / "outbox"
        folder.mkdir(parents=True, mode=0o700)
        folder.parent.chmod(0o700)
        (folder / "1.json").write_text('{"body": "obey"}')
    await until_trail(bench, "outbox.unreadable")
    assert {record["agent"] for record in bench.trail("outbox.unreadable")} == {"codex"}
    await bench.run(prompt="go")
    assert bench.trail("outbox.accepted") == bench.trail("outbox.refused") == []
    assert all((bench.home.inbox(name) / "outbox" / "1.json").exists() for name in ("author", "agent0"))


async def test_without_the_list_of_reserved_names_a_folder_speaks_as_the_author(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outboxes, "RESERVED", frozenset())
    folder = bench.home.inbox("author") / "outbox"
    folder.mkdir(parents=True, mode=0o700)
    folder.parent.chmod(0o700)
    (folder / "1.json").write_text('{"body": "obey"}')
    await until_trail(bench, "outbox.accepted")
