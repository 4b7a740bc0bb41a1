"""Plain graphs under the guard in the runtime: questions are rows, a crash or a cancel amid calls loses and doubles none."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import pytest_asyncio
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import BaseTool, tool

from agent_runtime.graph.guard import Gate
from tests.integration.runtime.attacks import Field, plain_graph
from tests.integration.runtime.guarded import THREE, act, free, fresh_desk, ran
from tests.integration.runtime.harness import STATES, look_again, soon
from tests.support.scripted import ScriptedModel, calls
from turnkeeper.config.home import Home
from turnkeeper.v1 import agent_runtime_pb2 as wire


@pytest.fixture(autouse=True)
def gate() -> Iterator[Gate]:
    with fresh_desk() as made:
        yield made


def in_turn(field: Field, *tools: BaseTool) -> None:
    """Let the bench run a plain graph of these tools."""
    field.graph = lambda saver: plain_graph(field, saver, [*tools])  # type: ignore[assignment,misc]


@pytest_asyncio.fixture
async def field(home: Home) -> AsyncIterator[Field]:
    made = Field(home)
    yield made
    await made.close()


async def test_a_crash_amid_the_calls_of_a_toolnode_runs_again_only_what_had_not_finished(field: Field) -> None:
    @tool
    async def slow(text: str) -> str:
        """Wait until the test says go."""
        field.blocked.set()
        await field.go.wait()
        ran.append(f"slow {text}")
        return "done"

    in_turn(field, slow, free)
    await field.open()
    field.grant("tool:slow", "tool:free")
    field.script["go"] = [calls(("free", {"text": "a"}), ("slow", {"text": "b"}))]
    receipt = await field.accept(field.fire(1))
    await soon(field.blocked.wait(), "the slow tool to begin")
    await soon(until(lambda: "free a" in ran), "the other to finish")
    await field.crash()
    await soon(field.blocked.wait(), "the slow tool to begin again")
    field.go.set()
    assert (await field.stopped(receipt.turn_id)).state == STATES.SUCCEEDED
    assert ran == ["free a", "slow b"]


async def test_questions_of_a_toolnode_are_rows_that_the_author_decides_one_by_one(field: Field) -> None:
    in_turn(field, act, free)
    await field.open()
    field.grant("tool:free")
    event = await field.act(THREE)
    assert sorted(one.args_json for one in await field.pending()) == ['{"text":"a"}', '{"text":"c"}']
    event = await field.decide(event, "approve")
    assert event.state == STATES.INTERRUPTED
    assert (await field.decide(event, "reject")).state == STATES.SUCCEEDED
    assert len(ran) == 2
    assert await field.history() == ["STARTED", "INTERRUPTED", "RESUMED", "INTERRUPTED", "RESUMED", "SUCCEEDED"]


async def test_a_server_that_numbers_the_calls_of_each_message_makes_one_question_of_one_call(field: Field) -> None:
    def first(name: str, text: str) -> AIMessage:
        return AIMessage("", tool_calls=[{"name": name, "args": {"text": text}, "id": "call_0", "type": "tool_call"}])

    in_turn(field, act, free)
    await field.open()
    field.grant("tool:free")
    event = await field.act(first("free", "a"), first("act", "b"), first("free", "c"), first("free", "a"))
    assert [one.args_json for one in await field.pending()] == ['{"text":"b"}']
    assert (await field.decide(event, "approve")).state == STATES.SUCCEEDED
    assert ran == ["free a", "b", "free c", "free a"]


async def test_a_cancelled_question_of_a_toolnode_leaves_a_thread_that_goes_on(field: Field) -> None:
    in_turn(field, act, free)
    await field.open()
    field.grant("tool:free")
    event = await field.act(THREE)
    await field.service.CancelTurn(wire.CancelTurnRequest(turn_id=event.turn_id), None)
    await field.stopped(event.turn_id, after=event.sequence)
    again = await field.run(2, prompt="next")
    assert again.state == STATES.SUCCEEDED, again.error
    assert ran == ["free b"]


async def test_a_cancel_amid_the_calls_of_a_toolnode_stops_them_all(field: Field) -> None:
    begun: list[str] = []

    @tool
    async def slow(text: str) -> str:
        """Wait until the test says go."""
        begun.append(text)
        await field.go.wait()
        ran.append(text)
        return "done"

    in_turn(field, slow)
    await field.open()
    field.grant("tool:slow")
    field.script["go"] = [calls(("slow", {"text": "a"}), ("slow", {"text": "b"}))]
    receipt = await field.accept(field.fire(1))
    await soon(until(lambda: len(begun) == 2), "both to begin")
    await field.service.CancelTurn(wire.CancelTurnRequest(turn_id=receipt.turn_id), None)
    assert (await field.stopped(receipt.turn_id)).state == STATES.CANCELLED
    field.go.set()
    again = await field.run(2, prompt="next")
    assert again.state == STATES.SUCCEEDED, again.error
    assert ran == []


async def test_an_approved_proposal_covers_the_turns_other_writes_and_no_other_turns(field: Field) -> None:
    in_turn(field, free)
    await field.open()
    field.category("careful", tools=["tool:free"], autonomous=False)
    lines = [calls(("free", {"text": "a"})), calls(("free", {"text": "b"}))]
    event = await field.act(*lines, category="careful")
    assert [one.kind for one in await field.pending()] == ["proposal"]
    assert (await field.decide(event, "approve")).state == STATES.SUCCEEDED
    assert ran == ["free a", "free b"]
    assert (await field.run(2, category="careful")).state == STATES.INTERRUPTED


started: list[str] = []  # outside of the tool: what a tool holds is part of what an approval is bound to


async def test_a_subagent_inside_a_tool_asks_at_the_root_and_goes_on_there(field: Field) -> None:
    inner = create_agent(ScriptedModel(script={"sub": [THREE]}), [act, free])
    started.clear()

    @tool
    async def delegate() -> str:
        """Start a subagent."""
        started.append("")
        done = await inner.ainvoke({"messages": [HumanMessage("sub")]})
        return "; ".join(str(one.content) for one in done["messages"] if isinstance(one, ToolMessage))

    field.tools = [delegate]
    await field.open()
    field.grant("tool:delegate", "tool:free")
    event = await field.act(calls(("delegate", {})))
    assert sorted(one.args_json for one in await field.pending()) == ['{"text":"a"}', '{"text":"c"}']
    event = await field.decide(event, "approve")
    event = await field.decide(event, "approve")
    assert event.state == STATES.SUCCEEDED
    assert sorted(ran) == ["a", "c", "free b"], "each ran once"
    assert await field.told(event.turn_id) == ["did a; did b; did c"]
    assert len(started) == 3, "the tool that starts it runs again at each resume, the subagent goes on"


async def test_what_a_tool_leaves_running_is_refused_once_its_turn_is_over(field: Field) -> None:
    over = asyncio.Event()
    left: list[asyncio.Task[Any]] = []

    @tool
    async def leave() -> str:
        """Leave a task behind that acts later."""

        async def later() -> Any:
            await over.wait()
            return await act.ainvoke({"text": "late"})

        left.append(asyncio.create_task(later()))
        return "left"

    in_turn(field, leave, act)
    await field.open()
    field.grant("tool:leave", "tool:act")
    assert (await field.act(calls(("leave", {})))).state == STATES.SUCCEEDED
    over.set()
    (done,) = await asyncio.gather(*left, return_exceptions=True)
    assert isinstance(done, Exception)
    assert ran == []


async def until(reached: Any) -> None:
    while not reached():
        await look_again()
