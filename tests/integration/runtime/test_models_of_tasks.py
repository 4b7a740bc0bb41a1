"""A task, a message or an assistant chooses the model of the built-in agent by its config."""

from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

from tests.integration.runtime.harness import STATES
from tests.integration.runtime.test_models import Desk, prepare
from tests.support.chat_server import ChatServer, Reply, serving
from turnkeeper.config.home import Home
from turnkeeper.config.settings import AssistantSettings
from turnkeeper.errors import InvalidInput


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ChatServer]:
    prepare(monkeypatch)
    with serving() as state:
        yield state


@pytest_asyncio.fixture
async def desk(home: Home, server: ChatServer) -> AsyncIterator[Desk]:
    made = Desk(home, server)
    small = AssistantSettings(config={"model": "openai:small"})
    made.settings = made.settings.model_copy(update={"assistants": {"cheap": small}})
    await made.open()
    yield made
    await made.close()


async def test_a_task_and_an_assistant_choose_their_models(desk: Desk) -> None:
    await desk.run(1)
    await desk.run(2, config_json='{"model": "openai:tiny"}', thread_id="thread-2")
    await desk.run(3, graph="cheap", thread_id="thread-3")
    assert [request["model"] for request in desk.server.requests] == ["stub-model", "tiny", "small"]


async def test_a_model_beside_the_offline_one_is_asked_again_if_it_fails(home: Home, server: ChatServer) -> None:
    desk = Desk(home, server, name="offline", base_url="")
    await desk.open()
    try:
        config = f'{{"model": "openai:tiny", "base_url": "{server.url}"}}'
        server.script = [Reply(status=500), Reply(text="said by tiny")]
        assert (await desk.run(1, config_json=config)).summary.strip() == "said by tiny"
        assert [one["attempt"] for one in desk.trail("model.retry")] == [1]
        server.script = [Reply(status=401, error="no")]
        event = await desk.run(2, config_json=config, thread_id="thread-2")
        assert STATES.Name(event.state) == "FAILED"
        assert f"model openai:tiny at {server.url}" in (await desk.turn(event.turn_id)).error
    finally:
        await desk.close()


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"config_json": '{"modle": "openai:tiny"}'}, "does not read 'modle'; in config it reads base_url and model"),
        ({"config_json": '{"model": "nobody:tiny"}'}, "nobody:tiny"),
        ({"context_json": '{"unit": "mm"}'}, "does not read 'unit'"),
    ],
)
async def test_what_the_built_in_agent_does_not_read_is_refused(desk: Desk, given: dict[str, str], why: str) -> None:
    with pytest.raises(InvalidInput, match=why):
        await desk.send("hello", **given)
    assert desk.server.requests == []
