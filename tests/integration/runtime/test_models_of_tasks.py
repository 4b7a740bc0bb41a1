"""A task, a message or an assistant chooses the model of the built-in agent by its config."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import pytest_asyncio

from agent_runtime.graph.models import make
from agent_runtime.graph.models.make import Models, chosen
from tests.integration.runtime.harness import PATIENCE_S, STATES, look_again
from tests.integration.runtime.test_models import WORK, Desk, prepare
from tests.support.chat_server import ChatServer, Reply, serving
from turnkeeper.clock import SystemClock
from turnkeeper.config.home import Home
from turnkeeper.config.settings import AssistantSettings, ModelSettings, Settings
from turnkeeper.errors import InvalidInput


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ChatServer]:
    prepare(monkeypatch)
    with serving() as state:
        yield state


@pytest.fixture
def other() -> Iterator[ChatServer]:
    """A server that config.toml does not name."""
    with serving() as state:
        yield state


def with_address(settings: Settings, url: str) -> Settings:
    """Return settings in which an assistant names a server."""
    there = AssistantSettings(config={"base_url": url})
    return settings.model_copy(update={"assistants": {**settings.assistants, "there": there}})


def at(server: ChatServer, **config: Any) -> str:
    return json.dumps({"base_url": server.url} | config)


@pytest_asyncio.fixture
async def desk(home: Home, server: ChatServer) -> AsyncIterator[Desk]:
    made = Desk(home, server)
    small = AssistantSettings(config={"model": "openai:small"})
    made.settings = made.settings.model_copy(update={"assistants": {"cheap": small}})
    await made.open()
    yield made
    await made.close()


def test_a_models_server_is_that_of_its_provider() -> None:
    home = ModelSettings(name="openai:gpt-5", base_url="http://127.0.0.1:8000/v1")
    here = '{"base_url": "http://127.0.0.1:9000/v1"}'
    found = [chosen(home, *wants) for wants in (("", "openai:mini"), ("", "anthropic:big"), (here, "anthropic:big"))]
    assert [(one.name, one.base_url) for one in found] == [
        ("openai:mini", "http://127.0.0.1:8000/v1"),
        ("anthropic:big", ""),
        ("openai:gpt-5", "http://127.0.0.1:9000/v1"),
    ]


async def test_a_task_and_an_assistant_choose_their_models(desk: Desk) -> None:
    first = await desk.run(1)
    assert json.loads(first.models_json) == {"openai:stub-model": {"tokens_in": 11, "tokens_out": 5}}
    await desk.run(2, config_json='{"model": "openai:tiny"}', thread_id="thread-2")
    await desk.run(3, graph="cheap", thread_id="thread-3")
    assert [request["model"] for request in desk.server.requests] == ["stub-model", "tiny", "small"]


async def test_the_tokens_of_each_model_of_a_turn_are_recorded_with_those_of_failed_tries(desk: Desk) -> None:
    desk.server.script = [Reply(text="a", cut=1, usage=(9, 2), usage_first=True), Reply(text="a", usage=(7, 1))]
    event = await desk.run(1, config_json='{"model": "openai:tiny"}')
    assert json.loads(event.models_json) == {"openai:tiny": {"tokens_in": 16, "tokens_out": 3}}
    assert (event.tokens_in, event.tokens_out) == (16, 3)
    assert {one["model"] for one in desk.trail("model.answered")} == {"openai:tiny"}
    desk.server.script = [Reply(text="a", cut=1, usage=(9, 2), usage_first=True)] * 5
    failed = await desk.run(2, config_json='{"model": "openai:small"}', thread_id="thread-2")
    assert json.loads(failed.models_json)["openai:small"] == {"tokens_in": 45, "tokens_out": 10}


async def test_a_model_beside_the_offline_one_is_asked_again_if_it_fails(home: Home, server: ChatServer) -> None:
    desk = Desk(home, server, name="offline", base_url="")
    desk.settings = with_address(desk.settings, server.url)
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


async def test_no_client_chooses_where_the_key_and_the_conversation_go(desk: Desk, other: ChatServer) -> None:
    for given in (at(other), at(other, model="openai:x"), at(other, model="offline")):
        with pytest.raises(InvalidInput, match="config.base_url: is not an address of config.toml") as refused:
            await desk.send("hello", config_json=given)
        assert "[assistants.NAME] config" in refused.value.hint
    event = await desk.run(config_json=at(desk.server, model="openai:tiny"))
    assert STATES.Name(event.state) == "SUCCEEDED", "the home's own server may be named"
    assert other.requests == []


async def test_a_stored_address_counts_only_while_config_toml_names_it(desk: Desk, other: ChatServer) -> None:
    plain = desk.settings
    desk.settings = with_address(plain, other.url)
    await desk.crash()
    other.script = [Reply(text="said there"), Reply(hang=True)]
    event = await desk.run(1, config_json=at(other))
    assert event.summary.strip() == "said there"
    receipt = await desk.accept(desk.fire(2, config_json=at(other)))
    async with asyncio.timeout(PATIENCE_S):
        while len(other.requests) < 2:
            await look_again()

    desk.settings = plain
    await desk.crash()
    event = await desk.stopped(receipt.turn_id)
    assert STATES.Name(event.state) == "FAILED"
    assert "config.base_url: is not an address of config.toml" in (await desk.turn(event.turn_id)).error
    thread = (await desk.turn(event.turn_id)).thread_id
    sent = await desk.send("and now?", thread_id=thread)
    assert STATES.Name((await desk.stopped(sent.turn_id)).state) == "FAILED", "a message keeps the thread's config"
    sent = await desk.send("and now?", thread_id=thread, config_json='{"base_url": ""}')
    assert STATES.Name((await desk.stopped(sent.turn_id)).state) == "SUCCEEDED", "the home's server answers"
    assert len(other.requests) == 2


def test_the_models_that_clients_name_do_not_add_up(home: Home, server: ChatServer) -> None:
    models = Models(Settings(), home, clock=SystemClock(), environ={})
    first = models('{"model": "openai:0"}')
    for number in range(1, make.MOST_MADE):
        models(f'{{"model": "openai:{number}"}}')
    assert models('{"model": "openai:0"}') is first
    for number in range(make.MOST_MADE, 2 * make.MOST_MADE):
        models(f'{{"model": "openai:{number}"}}')
    assert models('{"model": "openai:0"}') is not first


def name_model(home: Home, line: str) -> None:
    """Let the category of the fires name this model, or none."""
    (home.categories / "work.toml").write_text(line + WORK.format(seconds=60, tokens=100_000))


async def test_a_category_names_the_model_of_its_turns_unless_the_task_or_its_assistant_does(desk: Desk) -> None:
    name_model(desk.home, 'model = "openai:middle"')
    event = await desk.run(1)
    assert json.loads(event.models_json) == {"openai:middle": {"tokens_in": 11, "tokens_out": 5}}
    await desk.run(2, config_json='{"model": "openai:tiny"}', thread_id="thread-2")
    await desk.run(3, graph="cheap", thread_id="thread-3")
    await desk.run(4, config_json=at(desk.server), thread_id="thread-4")
    name_model(desk.home, "")
    await desk.run(5, thread_id="thread-5")
    asked = [request["model"] for request in desk.server.requests]
    assert asked == ["middle", "tiny", "small", "middle", "stub-model"]
    assert [one["model"] for one in desk.trail("model.answered")][-2:] == ["openai:middle", "openai:stub-model"]


async def test_the_model_of_a_category_is_pinned_with_its_grant(desk: Desk) -> None:
    name_model(desk.home, 'model = "openai:middle"')
    desk.server.script = [Reply(calls=[("memory_put", {"tier": "account", "text": "tulips", "key": "a"})])]
    receipt = await desk.accept(desk.fire(1))
    assert STATES.Name((await desk.stopped(receipt.turn_id)).state) == "INTERRUPTED"
    name_model(desk.home, 'model = "openai:dear"')
    await desk.crash()
    (asked,) = await desk.pending()
    await desk.resolve(asked.interrupt_id, "approve")
    async with asyncio.timeout(PATIENCE_S):
        while (await desk.turn(receipt.turn_id)).status != "succeeded":
            await look_again()
    await desk.run(2, thread_id="thread-2")
    assert [request["model"] for request in desk.server.requests] == ["middle", "middle", "dear"]


async def test_a_category_whose_model_cannot_be_made_fails_its_turn_and_no_other(desk: Desk) -> None:
    name_model(desk.home, 'model = "cohere:command-r"')
    event = await desk.run(1)
    assert STATES.Name(event.state) == "FAILED"
    assert "cohere:command-r" in (await desk.turn(event.turn_id)).error
    fine = await desk.run(2, thread_id="thread-2", config_json='{"model": "openai:tiny"}')
    assert STATES.Name(fine.state) == "SUCCEEDED"


async def test_an_error_of_a_model_names_the_setting_that_chose_the_model(desk: Desk) -> None:
    with pytest.raises(InvalidInput) as refused:
        await desk.send("hello", config_json='{"model": "nobody:tiny"}')
    assert refused.value.where == "config.model"
    name_model(desk.home, 'model = "cohere:command-r"')
    event = await desk.run(1)
    error = (await desk.turn(event.turn_id)).error
    assert error.startswith("categories/work.toml: model: the model 'cohere:command-r' needs a package")
    desk.server.script = [Reply(status=404), Reply(status=404), Reply(status=404)]
    event = await desk.run(3, task_name="digest", thread_id="thread-3", config_json='{"model": "openai:tiny"}')
    advice = "check name and address: config.model of the task digest or its assistant"
    assert (await desk.turn(event.turn_id)).error.endswith(advice)
    name_model(desk.home, 'model = "openai:middle"')
    event = await desk.run(4, thread_id="thread-4")
    assert (await desk.turn(event.turn_id)).error.endswith("check name and address: categories/work.toml: model")
    name_model(desk.home, "")
    event = await desk.run(5, thread_id="thread-5")
    assert (await desk.turn(event.turn_id)).error.endswith("check name and address: [model] in config.toml")
