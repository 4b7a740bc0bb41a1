"""What happens inside turns is told to whoever asked for it by name: once, in order, over restarts."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from langchain_core.messages import AIMessage

from agent_runtime.service import streams
from agent_runtime.store import turn_events
from agent_runtime.store.turn_events import NAMES
from tests.integration.runtime.harness import STATES, Bench, Call, soon
from tests.support.scripted import calls
from turnkeeper.errors import InvalidInput
from turnkeeper.rpc.channel import Greeting, read_greeting
from turnkeeper.v1 import agent_runtime_pb2 as wire

Event = wire.BridgedEvent
ALL_OF_ONE_TURN = [
    "turn_start", "agent_start",
    "tool_execution_start", "tool_execution_end", "message_end", "message_end",
    "agent_end", "turn_end",
]  # fmt: skip


class Greeted(Call):
    """A call that says when its first words were sent."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()

    async def send_initial_metadata(self, metadata: Sequence[tuple[str, str]]) -> None:
        self.begun.set()


def asking(bench: Bench, *names: str, after: int = 0) -> wire.WatchEventsRequest:
    return wire.WatchEventsRequest(incarnation=bench.runtime.store.incarnation, after_sequence=after, names=names)


async def ask(bench: Bench, *names: str, after: int = 0) -> None:
    """Call for events of these names and go away again."""
    call = Greeted()
    stream: Any = bench.service.WatchEvents(asking(bench, *names, after=after), call)
    waiting: Any = asyncio.ensure_future(anext(stream))
    await soon(asyncio.wait([waiting, asyncio.ensure_future(call.begun.wait())], return_when="FIRST_COMPLETED"), "it")
    waiting.cancel()


async def listen(bench: Bench, *names: str, until: Callable[[Event], bool], after: int = 0) -> list[Event]:
    """Call for events of these names; all up to the wanted one."""
    found: list[Event] = []
    stream: Any = bench.service.WatchEvents(asking(bench, *names, after=after), Call())

    async def watch() -> list[Event]:
        async for event in stream:
            found.append(event)
            if until(event):
                break
        return found

    try:
        return await soon(watch(), f"the event; there were {[event.name for event in found]}")
    finally:
        await stream.aclose()


def is_end(event: Event) -> bool:
    return event.name == "turn_end"


async def kept(bench: Bench) -> list[str]:
    return [one.name for one in await bench.runtime.store.read(lambda c: turn_events.after(c, 0, NAMES))]


async def test_a_turn_is_told_from_its_start_to_its_end_with_names_and_ids_only(bench: Bench) -> None:
    await ask(bench, *NAMES)
    bench.script["go"] = [calls(("note", {"text": "a secret"})), AIMessage("the secret is out")]
    stopped = await bench.run()
    told = await listen(bench, *NAMES, until=is_end)
    assert sorted(event.name for event in told) == sorted(ALL_OF_ONE_TURN)
    assert [event.name for event in told if event.name != "message_end"] == [
        name for name in ALL_OF_ONE_TURN if name != "message_end"
    ]
    first = told[0]
    assert (first.turn_id, first.thread_id, first.fire_id) == (stopped.turn_id, "thread-a", "task-0000000a@1")
    assert (first.task_id, first.task_name, first.channel) == ("task-0000000a", "digest-a", "main")
    assert (first.category, first.agent, first.incarnation) == ("work", "agent0", bench.runtime.store.incarnation)
    assert [event.tool for event in told if event.name.startswith("tool")] == ["note", "note"]
    assert [event.data_json for event in told if event.name == "tool_execution_end"] == ['{"ok": true}']
    assert told[-1].data_json == '{"state": "succeeded"}'
    assert "secret" not in repr(told)
    assert [event.sequence for event in told] == sorted({event.sequence for event in told})


async def test_nothing_is_kept_of_what_nobody_asked_for(bench: Bench) -> None:
    bench.script["go"] = [calls(("note", {"text": "x"}))]
    await bench.run()
    assert await kept(bench) == []
    await ask(bench, "turn_end")
    await bench.run(2)
    assert await kept(bench) == ["turn_end"]
    with pytest.raises(InvalidInput, match="no event 'turn'"):
        await listen(bench, "turn", until=is_end)
    assert bench.runtime.store.event_source.wanted == {"turn_end"}, "a call that is refused changes nothing"
    await ask(bench)
    await bench.run(3)
    assert await kept(bench) == ["turn_end"]


async def test_what_was_asked_for_is_kept_over_a_restart_and_while_nobody_watches(bench: Bench) -> None:
    await ask(bench, "turn_end")
    await bench.run(1)
    await bench.crash()
    await bench.run(2)
    told = await listen(bench, "turn_end", until=lambda event: event.fire_id.endswith("@2"))
    assert [event.fire_id[-2:] for event in told] == ["@1", "@2"]


async def test_a_turn_that_a_crash_cut_is_told_of_once(bench: Bench) -> None:
    await ask(bench, *NAMES)
    bench.script["go"] = [calls(("note", {"text": "x"})), calls(("block", {})), AIMessage("done")]
    receipt = await bench.accept(bench.fire())
    await bench.blocked.wait()
    await bench.crash()
    bench.go.set()
    await bench.stopped(receipt.turn_id)
    await listen(bench, *NAMES, until=is_end)
    names = await kept(bench)
    uses = [name for name in names if name.startswith("tool")]
    assert uses == ["tool_execution_start", "tool_execution_end"] * 2
    assert [names.count(name) for name in ("turn_start", "agent_start", "message_end", "agent_end", "turn_end")] == [
        1, 1, 3, 1, 1,
    ]  # fmt: skip


async def test_a_turn_that_asks_ends_its_graph_and_begins_it_again_and_is_one_turn(bench: Bench) -> None:
    await ask(bench, *NAMES)
    bench.script["go"] = [calls(("ask", {"question": "now?"}))]
    stopped = await bench.run()
    assert stopped.state == STATES.INTERRUPTED
    (asked,) = await bench.pending()
    await bench.resolve(asked.interrupt_id, "answer", message="yes")
    await listen(bench, *NAMES, until=is_end)
    names = [name for name in await kept(bench) if name != "message_end"]
    assert names == [
        "turn_start", "agent_start", "tool_execution_start", "agent_end",
        "agent_start", "tool_execution_end", "agent_end", "turn_end",
    ]  # fmt: skip


async def test_a_tool_in_a_thread_and_one_that_fails_are_told_of_too(bench: Bench) -> None:
    bench.category("work", tools=["tool:sit", "tool:fail"])
    await ask(bench, "tool_execution_end", "turn_end")
    bench.rise.set()
    bench.script["go"] = [calls(("sit", {})), calls(("fail", {}))]
    await bench.run()
    told = await listen(bench, "tool_execution_end", "turn_end", until=is_end)
    assert [(event.tool, event.data_json) for event in told] == [
        ("sit", '{"ok": true}'), ("fail", '{"ok": false}'), ("", '{"state": "failed"}'),
    ]  # fmt: skip


async def test_what_was_acknowledged_is_forgotten_once_its_turn_is_over(bench: Bench) -> None:
    await ask(bench, "turn_start", "turn_end")
    for number in (1, 2):
        await bench.run(number)
    told = await listen(bench, "turn_start", "turn_end", until=lambda event: event.sequence == 4)
    await ask(bench, "turn_start", "turn_end", after=told[1].sequence)
    assert await kept(bench) == ["turn_start", "turn_end"]
    (first, *_) = await listen(bench, "turn_start", "turn_end", after=told[1].sequence, until=is_end)
    assert first.fire_id.endswith("@2")


async def test_a_message_that_was_acknowledged_in_the_middle_of_its_turn_is_not_told_again(bench: Bench) -> None:
    await ask(bench, "message_end")
    bench.script["go"] = [calls(("note", {"text": "x"})), calls(("block", {})), AIMessage("done")]
    receipt = await bench.accept(bench.fire())
    told = await listen(bench, "message_end", until=lambda event: event.sequence == 2)
    await ask(bench, "message_end", after=told[-1].sequence)
    bench.go.set()
    await bench.stopped(receipt.turn_id)
    news = await listen(bench, "message_end", after=told[-1].sequence, until=lambda _: True)
    assert [event.data_json for event in news] == ['{"number": 4}']
    assert await kept(bench) == ["message_end"]


async def test_the_stream_starts_at_the_beginning_for_a_sequence_of_another_store(bench: Bench) -> None:
    await ask(bench, "turn_start", "turn_end")
    await bench.run()
    own = bench.runtime.store.incarnation
    for incarnation, after, starts in (("another", 1, 0), (own, 99, 0), (own, -1, 0), (own, 1, 1)):
        request = wire.WatchEventsRequest(incarnation=incarnation, after_sequence=after, names=["turn_end"])
        call = Call()
        stream: Any = bench.service.WatchEvents(request, call)
        await soon(anext(stream), "the first event")
        assert read_greeting(call.metadata) == Greeting(incarnation=own, after=starts)
        await stream.aclose()


async def test_the_newest_call_is_served_and_one_that_was_sent_much_ends_by_itself(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def all_of(stream: Any) -> list[str]:
        return [event.name async for event in stream]

    request = asking(bench, "turn_start", "turn_end")
    older: Any = asyncio.create_task(all_of(bench.service.WatchEvents(request, Call())))
    await bench.run(1)
    newer: Any = bench.service.WatchEvents(request, Call())
    first = await soon(anext(newer), "the newer call's first event")
    assert await soon(older, "the end of the older call") == ["turn_start", "turn_end"]
    monkeypatch.setattr(streams, "MOST_SENT", 3)
    await bench.run(2)
    rest = await soon(all_of(newer), "the end of the newer call")
    assert [first.name, *rest] == ["turn_start", "turn_end"] * 2


async def test_the_oldest_go_where_nobody_reads(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turn_events, "MOST_KEPT", 3)
    monkeypatch.setattr("agent_runtime.store.turn_events.SWEEP_EVERY", 1)
    await ask(bench, "turn_start", "turn_end")
    for number in (1, 2, 3):
        await bench.run(number)
    assert await kept(bench) == ["turn_end", "turn_start", "turn_end"]
