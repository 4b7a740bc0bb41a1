"""A task that fires again and again goes on where it was, and its fiftieth fire sends no more than its fifth."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatResult
from sqlalchemy import Connection

from agent_runtime.graph.agent.default import Briefing
from agent_runtime.graph.offline.model import OfflineModel
from agent_runtime.model.turn import TurnContext
from agent_runtime.permissions.categories import Categories
from agent_runtime.workspace import memory as entries
from agent_runtime.workspace.memory import Shelf
from tests.integration.runtime.harness import STATES, Bench
from turnkeeper.clock import SystemClock
from turnkeeper.config.home import Home
from turnkeeper.config.settings import CategorySettings, Settings
from turnkeeper.v1 import agent_runtime_pb2 as wire

GENERAL = Shelf(tier="channel", owner="main")
Sent = list[tuple[int, int]]


class Overheard(OfflineModel):
    """The offline model, which notes how many messages and characters each call of it is sent."""

    sent: Any

    def _answer(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> ChatResult:
        calls = [call for message in messages if isinstance(message, AIMessage) for call in message.tool_calls]
        size = sum(len(message.text) for message in messages) + sum(len(str(call["args"])) for call in calls)
        self.sent.append((len(messages), size))
        return super()._answer(messages, *args, **kwargs)


class Recorded(Bench):
    """A runtime on the offline model; what is sent to it is kept, fire by fire."""

    sent: Sent

    async def fires(self, number: int, **changes: Any) -> tuple[int, int]:
        """Run a fire to its good end; return the most that a model call in it was sent: messages, characters."""
        self.sent.clear()
        ended = await self.run(number, **changes)
        assert ended.state in {STATES.SUCCEEDED, STATES.SILENT}, ended
        return max(messages for messages, _ in self.sent), max(size for _, size in self.sent)

    def _build(self, specs: Any, middleware: Any, saver: Any) -> Any:
        model = Overheard(clock=SystemClock(), sent=self.sent)
        tools = [spec.tool for spec in specs]
        around = [Briefing(specs), *middleware]
        return create_agent(model, tools, middleware=around, context_schema=TurnContext, checkpointer=saver)


@pytest.fixture
async def bench(home: Home) -> AsyncIterator[Recorded]:
    made = Recorded(home)
    made.sent = []
    made.settings = Settings(categories=CategorySettings(autonomous_allowed=("loop", "memory-consolidation", "brief")))
    await made.open()
    yield made
    await made.close()


def context(bench: Bench, turn_id: str) -> TurnContext:
    category = Categories(bench.home, bench.settings).get("conversation")
    return TurnContext(turn_id=turn_id, thread_id="before", channel="main", agent="agent0", category=category)


async def remembered(bench: Bench, **texts: str) -> None:
    """Put what an agent's earlier turn would have remembered in the channel."""
    at, by = bench.runtime.clock.now(), context(bench, "before")

    def work(connection: Connection) -> None:
        for key, text in texts.items():
            entries.put(connection, by, GENERAL, key=key, text=text, at=at, new_id=f"m-{key}")

    await bench.runtime.workspace.write(work)


async def test_fifty_fires_go_on_where_the_last_one_was_and_none_is_sent_more_than_the_fifth(bench: Recorded) -> None:
    await remembered(bench, **{"digest-a stands at": "100"})
    sent = [await bench.fires(number, category="loop", prompt="Keep counting.") for number in range(1, 51)]
    entry = await bench.runtime.workspace.read(
        lambda connection: entries.get(connection, GENERAL, "digest-a stands at")
    )
    assert entry.text == "150", "each fire began with what the one before had left"
    assert max(sent[5:]) <= sent[4], "messages and characters, of the fullest call"
    assert len({messages for messages, _ in sent[4:]}) == 1


async def test_what_memory_holds_beyond_its_budget_reaches_no_model(bench: Recorded) -> None:
    few = await bench.fires(1, category="loop", prompt="Keep counting.")
    await remembered(bench, **{f"note {number:03}": f"{number:03} " + "word " * 20 for number in range(500)})
    many = await bench.fires(2, category="loop", prompt="Keep counting.", thread_id="thread-b")
    more = await bench.fires(3, category="loop", prompt="Keep counting.", thread_id="thread-c")
    assert many[1] - few[1] < 16_000, "characters"
    assert more[1] <= many[1] + 100


async def test_consolidation_leaves_no_turn_in_the_conversation_and_its_calls_on_record(bench: Recorded) -> None:
    await remembered(bench, one="Buckets are blue and tall", two="Buckets are tall and blue.")
    ended = await bench.run(1, category="memory-consolidation", prompt="Tidy up.")
    assert ended.state == STATES.SILENT
    assert await bench.conversation() == []
    assert [record["scope"] for record in bench.trail("agent.wrote")] == ["memory.forget"]
    found = await bench.service.ListMemory(wire.ListMemoryRequest(tier="channel", owner="main"), None)
    assert len(found.entries) == 1
