"""Following a conversation: what running turns say as they say it, each thing once, and at nobody else's cost."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.outputs import ChatGenerationChunk

from agent_runtime.model import TurnContext
from protos.turnkeeper.v1 import agent_runtime_pb2 as wire
from tests.integration.runtime.harness import Bench, Call, soon
from tests.support.scripted import ScriptedModel
from turnkeeper.home import Home


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
        yield ChatGenerationChunk(message=AIMessageChunk(content="", tool_calls=made))


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


@pytest.fixture
async def desk(home: Home) -> AsyncIterator[Desk]:
    made = Desk(home)
    await made.open()
    yield made
    await made.close()


def over(turn: wire.ConversationTurn) -> bool:
    return turn.status in {"succeeded", "failed", "cancelled", "interrupted"}


async def test_a_follower_reads_words_before_their_message_is_over(desk: Desk) -> None:
    desk.script["go"] = [AIMessage("one two … three")]
    following = asyncio.create_task(desk.follow(lambda turn: turn.speech.text.startswith("one two ")))
    await desk.service.Fire(desk.fire(), None)
    heard = (await following)[-1]
    assert (heard.speech.after, heard.speech.offset, heard.status) == (0, 0, "")
    rest = asyncio.create_task(desk.follow(over))
    await soon(desk.blocked.wait(), "the model")
    desk.go.set()
    assert [message.text for message in (await rest)[-1].messages] == ["go", "one two three "]
