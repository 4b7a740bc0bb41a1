"""A model behind HTTP: what it answers becomes a turn, what it fails to answer is tried again, and no key leaks."""

import asyncio
import os
import shutil
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from agent_runtime.daemon.assembly import assemble
from agent_runtime.graph.models import answers
from agent_runtime.graph.models import call as calls_module
from agent_runtime.service.servicer import Servicer
from tests.integration.runtime.harness import STATES, Bench, look_again
from tests.support.chat_server import KEY, ChatServer, Reply, serving
from tests.support.clock import ManualClock
from turnkeeper.bus.event_log import read_events
from turnkeeper.config.build import install_command
from turnkeeper.config.home import Home
from turnkeeper.config.settings import CategorySettings, ModelSettings, Settings
from turnkeeper.errors import InvalidInput
from turnkeeper.v1 import agent_runtime_pb2 as wire

pytestmark = pytest.mark.asyncio(loop_scope="module")
NOTE = ("memory_put", {"tier": "channel", "text": "tulips", "key": "a"})
WORK = """
name = "work"
autonomous = true
[scopes]
tools = ["memory.read", "memory.put", "workspace.search"]
memory = ["channel"]
[limits]
seconds = {seconds}
tool_calls = 20
tokens = {tokens}
"""


class Desk(Bench):
    """A runtime with the default agent, whose model is the server's."""

    def __init__(self, home: Home, server: ChatServer, **model: Any) -> None:
        super().__init__(home, model.pop("clock", None))
        stated = {"name": "openai:stub-model", "base_url": server.url} | model
        self.settings = Settings(
            categories=CategorySettings(autonomous_allowed=("work",)), model=ModelSettings(**stated)
        )
        self.server = server
        self._tests = 0
        self._before: Counter[str] = Counter()
        self.work()

    def fresh(self) -> None:
        """Begin a test: nothing said, nothing scripted, a thread and fires of its own."""
        self._tests += 1
        self._before = Counter(record["event"] for record in read_events(self.home.logs))
        self.server.script, self.server.requests, self.server.keys = [], [], []
        self.server.asked = threading.Semaphore(0)
        self.work()

    def fire(self, number: int = 1, **changes: Any) -> wire.FireRequest:
        return super().fire(self._tests * 1000 + number, **{"thread_id": f"thread-{self._tests}"} | changes)

    def trail(self, event: str) -> list[dict[str, Any]]:
        return super().trail(event)[self._before[event] :]

    def work(self, *, seconds: int = 60, tokens: int = 100_000) -> None:
        (self.home.categories / "work.toml").write_text(WORK.format(seconds=seconds, tokens=tokens))

    async def open(self, **environ: str) -> None:
        opened = assemble(self.home, self.settings, environ=os.environ | environ, clock=self.clock)
        self.runtime = await self._stack.enter_async_context(opened)
        self.service = Servicer(self.runtime)
        await self.runtime.worker.start()

    async def said(self) -> list[tuple[str, str]]:
        """Return who said what in the newest turn."""
        return [(line.role, line.text.strip()) for line in (await self.conversation())[-1].messages]


@pytest.fixture
def server() -> Iterator[ChatServer]:
    with serving() as state:
        yield state


def prepare(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(answers, "FIRST_WAIT_S", 0.001)
    for name in ("OPENAI_BASE_URL", "OPENAI_API_BASE", "OPENAI_ORG_ID", "http_proxy", "HTTP_PROXY", "all_proxy"):
        patch.delenv(name, raising=False)
    patch.setenv("OPENAI_API_KEY", KEY)


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    prepare(monkeypatch)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared() -> AsyncIterator[Desk]:
    """One runtime and one server for all tests that do not need their own: opening one is most of a test's time."""
    folder = Path(tempfile.mkdtemp(prefix="tk-"))
    home = Home(root=folder / "home")
    home.create()
    with pytest.MonkeyPatch.context() as patch, serving() as server:
        prepare(patch)
        made = Desk(home, server)
        await made.open()
        yield made
        await made.close()
    shutil.rmtree(folder)


@pytest.fixture
def desk(shared: Desk) -> Desk:
    shared.fresh()
    return shared


async def test_an_answer_with_a_tool_call_is_a_turn_and_its_tokens_are_counted(desk: Desk) -> None:
    desk.server.script = [Reply(calls=[NOTE], usage=(100, 10)), Reply(text="I noted it.", usage=(120, 7))]
    event = await desk.run()
    assert (event.state, event.summary.strip()) == (STATES.SUCCEEDED, "I noted it.")
    assert (event.tokens_in, event.tokens_out) == (220, 17)
    assert [role for role, _ in await desk.said()] == ["trigger", "agent", "tool", "agent"]
    answers = [(item["tokens_in"], item["tokens_out"], item["ending"]) for item in desk.trail("model.answered")]
    assert answers == [(100, 10, "tool_calls"), (120, 7, "stop")]
    first, second = desk.server.requests
    assert (first["stream"], first["stream_options"]) == (True, {"include_usage": True})
    assert {tool["function"]["name"] for tool in first["tools"]} >= {"memory_put", "workspace_search"}
    assert [message["role"] for message in second["messages"]] == ["system", "user", "assistant", "tool"]
    assert "tulips" in second["messages"][2]["tool_calls"][0]["function"]["arguments"]
    assert "runtime" not in str(first["tools"]), "what we hand a tool is no business of a model"


async def test_a_server_that_does_not_say_what_it_used_is_estimated(desk: Desk) -> None:
    desk.server.script = [Reply(text="one two three", usage=None)]
    event = await desk.run()
    assert event.tokens_in > 100
    assert 0 < event.tokens_out < 50
    assert [item["estimated"] for item in desk.trail("model.answered")] == [True]


async def test_trouble_that_passes_is_tried_again(desk: Desk) -> None:
    statuses = (408, 409, 429, 500, 502, 503, 529)
    for number, status in enumerate(statuses):
        desk.server.script = [Reply(status=status), Reply(status=status), Reply(text="at last")]
        event = await desk.run(number)
        assert event.summary.strip() == "at last"
        assert [item["attempt"] for item in desk.trail("model.retry") if item["turn_id"] == event.turn_id] == [1, 2]
    assert [item["reason"] for item in desk.trail("model.retry")] == [str(each) for each in statuses for _ in "ab"]


async def test_a_server_that_says_when_to_come_back_is_obeyed(desk: Desk) -> None:
    desk.server.script = [Reply(status=429, headers={"Retry-After": "0.05"})]
    assert (await desk.run()).state == STATES.SUCCEEDED
    assert [item["wait_s"] for item in desk.trail("model.retry")] == [0.05]


async def test_a_server_that_wants_too_long_a_wait_is_given_up(desk: Desk) -> None:
    desk.server.script = [Reply(status=429, headers={"Retry-After": "3600"})]
    event = await desk.run()
    assert event.state == STATES.FAILED
    assert "limits the rate of requests (429), and asks to wait 3600 s" in event.error
    assert len(desk.server.requests) == 1


async def test_trouble_that_does_not_pass_fails_the_turn_after_a_few_tries(desk: Desk) -> None:
    desk.server.script = [Reply(status=503)] * 9
    event = await desk.run()
    assert event.state == STATES.FAILED
    assert event.error == (
        f"model openai:stub-model at {desk.server.url}: is failing (503); it was tried 5 times; "
        "check whether its server runs and answers; the next fire or message tries again"
    )
    assert (len(desk.server.requests), len(desk.trail("model.failed"))) == (5, 1)
    desk.server.script = []
    assert (await desk.run(2)).state == STATES.SUCCEEDED


async def test_a_refusal_fails_the_turn_at_once_and_says_what_to_do(desk: Desk) -> None:
    overflow = "context_length_exceeded"
    refusals = [
        (Reply(status=401), "refused the key (401)"),
        (Reply(status=402), "requires payment (402)"),
        (Reply(status=403), "does not let this key use the model (403)"),
        (Reply(status=404), "does not know the model or address (404)"),
        (Reply(status=400, error="no such\noption"), "refused the request (400): Error code: 400"),
        (Reply(status=400, code=overflow, error=overflow), "does not accept a conversation of this length"),
        (Reply(status=429, code="insufficient_quota"), "has no quota left (429)"),
        (Reply(ending="content_filter"), "had its answer held back by the provider's filter"),
    ]
    for number, (reply, says) in enumerate(refusals, 1):
        desk.server.script = [reply]
        event = await desk.run(number)
        assert event.state == STATES.FAILED
        assert event.error.startswith(f"model openai:stub-model at {desk.server.url}: {says}")
        assert event.error.count(";") >= 1, "what to do follows"
        assert "\n" not in event.error
        assert len(desk.server.requests) == number, "once"


async def test_a_server_that_cannot_be_reached_fails_the_turn(home: Home, server: ChatServer) -> None:
    desk = Desk(home, server, base_url="http://127.0.0.1:9/v1")
    await desk.open()
    try:
        event = await desk.run()
    finally:
        await desk.close()
    assert event.state == STATES.FAILED
    assert "cannot be reached or broke off the connection; it was tried 5 times" in event.error
    assert [item["reason"] for item in desk.trail("model.retry")] == ["connection"] * 4


async def test_a_stream_that_is_cut_is_no_answer_and_no_half_call_runs(desk: Desk) -> None:
    ways = [(cut, broken) for cut in range(4) for broken in (False, True)]
    for number, (cut, broken) in enumerate(ways, 1):
        desk.server.script = [Reply(calls=[NOTE], cut=cut, broken=broken), Reply(calls=[NOTE]), Reply(text="done")]
        assert (await desk.run(number, thread_id=f"cut-{number}")).state == STATES.SUCCEEDED
        assert [role for role, _ in await desk.said()] == ["trigger", "agent", "tool", "agent"]
        assert len(desk.trail("model.retry")) == number
    assert {item["reason"] for item in desk.trail("model.retry")} <= {"cut", "connection", "unreadable"}


async def test_a_stream_that_is_always_cut_fails_the_turn_and_what_it_used_is_counted(desk: Desk) -> None:
    cut = Reply(calls=[NOTE], cut=2, usage=(7, 2), usage_first=True)
    desk.server.script = [Reply(calls=[NOTE], usage=(100, 10)), *[cut] * 5]
    event = await desk.run()
    assert event.state == STATES.FAILED
    assert "broke off in the middle of its answer; it was tried 5 times" in event.error
    assert (event.tokens_in, event.tokens_out) == (135, 20)
    assert [role for role, _ in await desk.said()] == ["trigger", "agent", "tool"]
    assert (await desk.run(2)).state == STATES.SUCCEEDED
    history = [message["role"] for message in desk.server.requests[-1]["messages"]]
    assert history == ["system", "user", "assistant", "tool", "user", "user"], "a note on how it ended, and the prompt"


async def test_what_a_cut_try_used_is_counted_with_the_answer(desk: Desk) -> None:
    desk.server.script = [Reply(text="a b c", cut=2, usage=(30, 4), usage_first=True), Reply(text="yes", usage=(30, 2))]
    event = await desk.run()
    assert (event.tokens_in, event.tokens_out) == (60, 6)


async def test_a_call_whose_arguments_are_not_json_goes_back_to_the_model(desk: Desk) -> None:
    wrong = ('{"tier": "channel", "text": "half', "[1, 2]", "not json", '{"text": NaN}')
    for number, args in enumerate(wrong, 1):
        desk.server.script = [Reply(calls=[("memory_put", args), NOTE]), Reply(text="sorry")]
        assert (await desk.run(number, thread_id=f"args-{number}")).state == STATES.SUCCEEDED
        answers = [message for message in desk.server.requests[-1]["messages"] if message["role"] == "tool"]
        assert len(answers) == 2
        assert "its arguments are not a whole JSON object" in answers[0]["content"]
        assert args in answers[0]["content"]
        assert '"key": "a"' in answers[1]["content"], "its sibling ran"


async def test_a_call_without_arguments_is_whole_unless_the_answer_was_too_long(desk: Desk) -> None:
    desk.server.script = [
        Reply(calls=[("workspace_search", "")]),
        Reply(calls=[("workspace_search", "")], ending="length"),
    ]
    assert (await desk.run()).state == STATES.SUCCEEDED
    first, second = [request["messages"][-1]["content"] for request in desk.server.requests[1:]]
    assert "not a whole JSON object" not in first
    assert "not a whole JSON object" in second


async def test_a_tool_that_does_not_exist_goes_back_to_the_model(desk: Desk) -> None:
    desk.server.script = [Reply(calls=[("rm_rf", {})]), Reply(text="sorry")]
    assert (await desk.run()).state == STATES.SUCCEEDED
    assert "there is no tool 'rm_rf'; use one of: " in desk.server.requests[1]["messages"][-1]["content"]
    assert await desk.pending() == [], "an author is not asked about a tool that is not there"


async def test_calls_that_share_an_id_are_told_apart(desk: Desk) -> None:
    other = ("memory_put", {"tier": "channel", "text": "roses", "key": "b"})
    desk.server.script = [Reply(calls=[NOTE, other], ids=["call_0", "call_0"]), Reply(text="done")]
    assert (await desk.run()).state == STATES.SUCCEEDED
    asked = desk.server.requests[1]["messages"]
    ids = [call["id"] for call in asked[2]["tool_calls"]]
    assert len(set(ids)) == 2
    assert [message["tool_call_id"] for message in asked[3:]] == ids


async def test_a_call_that_is_announced_and_not_made_is_no_empty_answer(desk: Desk) -> None:
    desk.server.script = [Reply(ending="tool_calls")] * 5
    event = await desk.run()
    assert "announced a tool call but made none" in event.error


async def test_a_call_whose_pieces_cannot_be_put_together_goes_back_to_the_model(desk: Desk) -> None:
    desk.server.script = [Reply(calls=[NOTE], index=False), Reply(text="sorry")]
    assert (await desk.run()).state == STATES.SUCCEEDED
    assert "not a whole JSON object" in str(desk.server.requests[1]["messages"])


async def test_an_empty_answer_is_nothing_to_do(desk: Desk) -> None:
    desk.server.script = [Reply()]
    assert (await desk.run()).state == STATES.SUCCEEDED
    assert (await desk.said())[-1] == ("agent", "nothing to do this fire")


async def test_a_refusal_in_a_field_of_its_own_is_what_the_model_said(desk: Desk) -> None:
    desk.server.script = [Reply(refusal="I will not.")]
    assert (await desk.run()).state == STATES.SUCCEEDED
    assert (await desk.said())[-1] == ("agent", "I will not.")


async def test_what_is_no_stream_of_pieces_fails_the_turn(desk: Desk) -> None:
    for number, raw in enumerate(("data: {half\n\n", "<html>", 'data: {"error": {"message": "overloaded"}}\n\n'), 1):
        desk.server.script = [Reply(raw=raw)] * 5
        event = await desk.run(number)
        assert event.state == STATES.FAILED
        assert "it was tried 5 times" in event.error


async def test_a_cancel_lands_in_the_middle_of_an_answer(desk: Desk) -> None:
    desk.server.script = [Reply(text="a long story", cut=2, hang=True)]
    receipt = await desk.accept(desk.fire())
    await asyncio.to_thread(desk.server.asked.acquire)
    await desk.service.CancelTurn(wire.CancelTurnRequest(turn_id=receipt.turn_id), None)
    assert (await desk.stopped(receipt.turn_id)).state == STATES.CANCELLED
    assert (await desk.run(2)).state == STATES.SUCCEEDED


async def test_a_cancel_lands_while_a_try_waits(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "FIRST_WAIT_S", 3600.0)
    monkeypatch.setattr(answers, "LONGEST_WAIT_S", 3600.0)
    desk.server.script = [Reply(status=503)]
    receipt = await desk.accept(desk.fire())
    await asyncio.to_thread(desk.server.asked.acquire)
    await desk.service.CancelTurn(wire.CancelTurnRequest(turn_id=receipt.turn_id), None)
    assert (await desk.stopped(receipt.turn_id)).state == STATES.CANCELLED


async def test_a_model_that_does_not_answer_meets_the_time_limit(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "FIRST_WAIT_S", 3600.0)
    monkeypatch.setattr(answers, "LONGEST_WAIT_S", 3600.0)
    desk.work(seconds=1)
    desk.server.script = [Reply(cut=0, hang=True), Reply(status=503)]
    events = await asyncio.gather(desk.run(1), desk.run(2, task="b", thread_id="thread-b"))
    assert [(event.state, event.error) for event in events] == [(STATES.CANCELLED, "took longer than 1 s")] * 2


async def test_a_stream_that_stalls_is_tried_again(
    home: Home, server: ChatServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LANGCHAIN_OPENAI_STREAM_CHUNK_TIMEOUT_S", "0.3")
    desk = Desk(home, server)
    await desk.open()
    server.script = [Reply(text="a b c", cut=2, hang=True), *[Reply(text="whole")] * 4]
    try:
        assert (await desk.run()).summary.strip() == "whole"
    finally:
        await desk.close()
    assert {item["reason"] for item in desk.trail("model.retry")} == {"timeout"}


class TestTheDaysCap:
    @pytest_asyncio.fixture(loop_scope="module")
    async def capped(self, home: Home, server: ChatServer) -> AsyncIterator[Desk]:
        made = Desk(home, server, daily_token_cap=1000, clock=ManualClock())
        await made.open()
        yield made
        await made.close()

    async def test_ends_turns_until_the_next_day_and_says_so(self, capped: Desk) -> None:
        capped.server.script = [Reply(text="much", usage=(900, 100))]
        assert (await capped.run(1)).state == STATES.SUCCEEDED
        event = await capped.run(2)
        assert event.state == STATES.FAILED
        assert event.error == (
            "daily token cap of 1,000 reached; resets at 2026-03-03T00:00:00Z; "
            "raise [model] daily_token_cap and restart agent-runtime"
        )
        assert (await capped.conversation())[-1].error == event.error
        assert len(capped.server.requests) == 1
        assert isinstance(capped.clock, ManualClock)
        capped.clock.step(15 * 3600)
        assert (await capped.run(3)).state == STATES.SUCCEEDED

    async def test_stops_a_running_turn_at_its_next_model_call(self, capped: Desk) -> None:
        capped.server.script = [Reply(calls=[NOTE], usage=(900, 100))]
        event = await capped.run()
        assert "daily token cap" in event.error
        assert (event.tokens_in, event.tokens_out) == (900, 100)
        assert [role for role, _ in await capped.said()] == ["trigger", "agent", "tool"]

    async def test_survives_a_crash(self, capped: Desk) -> None:
        capped.server.script = [Reply(text="much", usage=(900, 100))]
        await capped.run(1)
        await capped.crash()
        assert "daily token cap" in (await capped.run(2)).error

    async def test_counts_what_a_turn_uses_on_the_day_it_uses_it(self, capped: Desk) -> None:
        assert isinstance(capped.clock, ManualClock)
        capped.server.script = [Reply(calls=[("page_propose", {"title": "t", "body": "b"})], usage=(900, 50))]
        event = await capped.run(1)
        assert event.state == STATES.INTERRUPTED
        capped.clock.step(15 * 3600)
        capped.server.script = [Reply(text="ok", usage=(100, 0))]
        (asked,) = await capped.pending()
        await capped.resolve(asked.interrupt_id, "reject")
        assert (await capped.stopped(event.turn_id, after=event.sequence)).state == STATES.SUCCEEDED
        capped.server.script = [Reply(text="ok", usage=(899, 0))]
        assert (await capped.run(2, thread_id="other")).state == STATES.SUCCEEDED
        capped.server.script = [Reply(text="ok", usage=(1, 0))]
        assert (await capped.run(3, thread_id="other")).state == STATES.SUCCEEDED
        assert "daily token cap" in (await capped.run(4, thread_id="other")).error

    async def test_of_nothing_is_none(self, home: Home, server: ChatServer) -> None:
        desk = Desk(home, server, daily_token_cap=0)
        await desk.open()
        server.script = [Reply(text="much", usage=(10**9, 0))]
        desk.work(tokens=1_000_000_000)
        try:
            assert [(await desk.run(number)).state for number in (1, 2)] == [STATES.SUCCEEDED] * 2
        finally:
            await desk.close()


async def test_the_limit_of_the_category_ends_a_turn(desk: Desk) -> None:
    desk.work(tokens=100)
    desk.server.script = [Reply(calls=[NOTE], usage=(90, 11))]
    event = await desk.run()
    assert event.state == STATES.FAILED
    assert "used 101 tokens, but its category allows 100" in event.error
    assert event.tokens_in == 90


class TestAKey:
    def traces(self, home: Home) -> list[Path]:
        """Return every file of the home, but for the one it was put into, that holds the key."""
        files = [path for path in home.root.rglob("*") if path.is_file() and path != home.environment]
        return [path for path in files if KEY.encode() in path.read_bytes()]

    async def test_is_written_nowhere_even_when_the_server_repeats_it(self, desk: Desk, capfd: Any) -> None:
        told = f"Incorrect API key provided: {KEY}"
        for number, status in enumerate((401, 403, 400, 422), 1):
            desk.server.script = [Reply(status=status, error=told, headers={"X-Key": KEY})]
            event = await desk.run(number)
            assert KEY not in event.error
        desk.server.script = [Reply(raw=f'data: {{"error": {{"message": "{told}"}}}}\n\n')] * 5
        assert "[secret]" in (await desk.run(9)).error
        assert set(desk.server.keys) == {KEY}
        claimed = desk.home.root / "channels" / "agent" / "agent0" / "claimed"
        async with asyncio.timeout(60):  # what is still being archived cannot be read
            while any(claimed.iterdir()):
                await look_again()
        assert self.traces(desk.home) == []
        assert KEY not in "".join(capfd.readouterr())

    async def test_may_stand_in_the_homes_env(
        self, home: Home, server: ChatServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv("OPENAI_API_KEY")
        home.environment.write_text(f"OPENAI_API_KEY={KEY}\n")
        home.environment.chmod(0o600)
        desk = Desk(home, server)
        await desk.open()
        server.script = [Reply(status=400, error=f"no {KEY}")]
        try:
            assert "no [secret]" in (await desk.run()).error
        finally:
            await desk.close()
        assert server.keys == [KEY]
        assert self.traces(home) == []

    async def test_in_the_servers_address_is_not_shown(self, home: Home, server: ChatServer) -> None:
        desk = Desk(home, server, base_url=server.url.replace("http://", f"http://me:{KEY}@"))
        await desk.open()
        server.script = [Reply(status=404)]
        try:
            event = await desk.run()
        finally:
            await desk.close()
        assert event.error.startswith(f"model openai:stub-model at {server.url}: ")
        assert self.traces(home) == []


async def test_the_offline_model_has_neither_retries_nor_a_cap(home: Home, server: ChatServer) -> None:
    desk = Desk(home, server, name="offline", base_url="", daily_token_cap=1)
    await desk.open()
    try:
        assert [(await desk.run(number)).state for number in (1, 2)] == [STATES.SUCCEEDED] * 2
    finally:
        await desk.close()
    assert desk.trail("model.answered") == []
    assert calls_module.OFFLINE == "offline"


class TestAModelThatCannotBeMade:
    """The daemon says so in one line and does not start: `agent_runtime.daemon` turns InvalidInput into exit code 2."""

    @pytest.mark.parametrize(
        ("model", "says"),
        [
            ({"base_url": ""}, "model.name: the model 'openai:stub-model' cannot be made: OPENAI_API_KEY is not set;"),
            ({}, "OPENAI_API_KEY=none"),
            (
                {"name": "nosuch:model", "base_url": ""},
                "model.name: 'nosuch:model': no provider 'nosuch'; write offline",
            ),
            (
                {"name": "mistralai:large"},
                f"needs a package that is not installed; run: {install_command('langchain-mistralai')}",
            ),
            ({"name": "anthropic:claude"}, f"run: {install_command('turnkeeper[anthropic]')}"),
            ({"base_url": "localhost:8000"}, "model.base_url: is not the address of a server"),
            ({"base_url": "http://127.0.0.1:99999/v1"}, "model.base_url: is not the address of a server"),
        ],
    )
    async def test_is_one_line(
        self, home: Home, server: ChatServer, monkeypatch: pytest.MonkeyPatch, model: dict[str, str], says: str
    ) -> None:
        monkeypatch.delenv("OPENAI_API_KEY")
        for package in ("langchain_anthropic", "langchain_mistralai"):
            monkeypatch.setitem(sys.modules, package, None)  # as if it were not installed
        desk = Desk(home, server, **model)
        with pytest.raises(InvalidInput) as refused:
            async with assemble(home, desk.settings, environ={}):
                pass
        line = str(refused.value)
        assert line.startswith(f"{home.config}: model.")
        assert says in line
        assert "\n" not in line

    async def test_for_keys_that_others_can_read(self, home: Home, server: ChatServer) -> None:
        home.environment.write_text(f"OPENAI_API_KEY={KEY}\n")
        home.environment.chmod(0o640)
        with pytest.raises(InvalidInput, match="chmod 600"):
            async with assemble(home, Desk(home, server).settings, environ={}):
                pass
