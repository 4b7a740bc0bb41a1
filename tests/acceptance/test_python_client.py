"""The Python client against real daemons: what its documents show, both ways to call it, and kill -9 in between."""

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from tests.support.constellation import AGENT_RUNTIME, TASK_RUNNER, Constellation
from tests.support.machines import constellation_on, new_home
from tests.support.postgres import Server
from turnkeeper import client
from turnkeeper.client.clients import _at_once
from turnkeeper.client.operations import Operations
from turnkeeper.client.transport import Blocking
from turnkeeper.config.home import Home
from turnkeeper.errors import InvalidInput, Unreachable
from turnkeeper.rpc.channel import method_of

pytestmark = pytest.mark.process
ROOT = Path(__file__).resolve().parents[2]
OF_TASK: Any = {"category": "catch-up-summary", "channel": "general", "prompt": "Summarise."}
ASKS = "Summarise the garden, then remember: the pump was replaced"


@pytest.fixture(scope="module")
def shared(postgres_server: Server | None) -> Iterator[Constellation]:
    with new_home() as home, constellation_on(postgres_server, home) as made:
        made.start()
        yield made


@pytest.fixture
def tk(shared: Constellation) -> Iterator[client.Turnkeeper]:
    with client.Turnkeeper(shared.home.root, program="script") as made:
        yield made


def test_a_wait_for_something_else_than_a_turn_says_what_to_give(tk: client.Turnkeeper) -> None:
    task = tk.create_task("waits", every="1h", **OF_TASK)
    with pytest.raises(
        InvalidInput, match="what: a Task is not a turn, a fire or a message; give the value that run_task"
    ):
        tk.wait(task, timeout="20s")  # type: ignore[arg-type]
    turn = tk.wait(tk.run_task("waits"))
    assert tk.wait(turn).turn_id == turn.turn_id
    tk.delete_task("waits")


def examples(page: str) -> list[str]:
    """Return the programs of a page that use the client."""
    found = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    return [text for text in found if "turnkeeper.client" in text or "tk." in text]


def test_the_programs_of_the_documents_run_as_they_stand(
    shared: Constellation, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TURNKEEPER_HOME", str(shared.home.root))
    names: dict[str, Any] = {}
    for program in examples("docs/python-client.md"):
        exec(compile(program, "docs/python-client.md", "exec"), names)  # our own documents
    assert "succeeded" in capsys.readouterr().out


def test_a_task_from_its_creation_to_its_deletion(tk: client.Turnkeeper) -> None:
    task = tk.create_task("nightly", every=timedelta(hours=1), tags={"team": "ops"}, **OF_TASK)
    assert (task.name, task.state, task.fields["every"]) == ("nightly", "active", timedelta(hours=1))
    assert task.next_fire_at is not None
    assert task.next_fire_at.tzinfo is UTC
    assert [one.id for one in tk.list_tasks(tags={"team": "ops"})] == [task.id]
    changed = tk.update_task("nightly", every=None, cron="0 3 * * *", tags=None)
    assert (changed.kind, changed.revision, "tags" in changed.fields, changed.edited_by) == (
        "cron",
        2,
        False,
        "script/api",
    )
    until = datetime(2030, 1, 1, tzinfo=UTC)
    assert tk.pause_task("nightly", until=until).paused_until == until
    assert tk.resume_task("nightly").state == "active"
    assert [tk.disable_task("nightly").state, tk.enable_task("nightly").state] == ["disabled", "active"]
    fire = tk.run_task("nightly", request_id="once")
    assert tk.run_task("nightly", request_id="once").fire_id == fire.fire_id
    turn = tk.wait(fire, timeout="1m")
    assert (turn.status, turn.trigger and turn.trigger.task) == ("succeeded", "nightly")
    assert [one.turn_id for one in tk.list_fires("nightly", begin=until - timedelta(days=3650))] == [turn.turn_id]
    assert tk.list_fires("nightly", end=until - timedelta(days=3650)) == []
    assert tk.explain_task("nightly").lines
    assert tk.delete_task("nightly").state == "deleted"
    with pytest.raises(client.NotFound, match="was deleted"):
        tk.pause_task("nightly")


def test_errors_say_what_where_and_what_to_do(tk: client.Turnkeeper, tmp_path: Path, home: Home) -> None:
    with pytest.raises(client.InvalidInput) as raised:
        tk.create_task("nightly", cron="61 * * * *", **OF_TASK)
    assert raised.value.where == "cron"
    with pytest.raises(client.InvalidInput, match="20 is not a duration") as raised:
        tk.wait("turn-0000000000000000", timeout=20)  # type: ignore[arg-type]
    assert raised.value.where == "timeout"
    tk.create_task("taken", every="1h", **OF_TASK)
    with pytest.raises(client.AlreadyExists, match="choose another name"):
        tk.create_task("taken", every="2h", **OF_TASK)
    with pytest.raises(client.NotFound, match="turnkeeper turns list"):
        tk.wait("turn-0000000000000000")
    with pytest.raises(client.InvalidInput, match="turnkeeper init"):
        client.Turnkeeper(tmp_path / "nowhere")
    (long := Home(root=tmp_path / ("long" * 30))).create()
    with pytest.raises(client.InvalidInput, match="choose a shorter state directory"):
        client.Turnkeeper(long.root)
    never = Operations(home, Impatient(home, "script/api", 10.0), timedelta(minutes=1))
    with pytest.raises(client.Unreachable):
        _at_once(never.list_tasks())
    with client.Turnkeeper(home.root) as away, pytest.raises(client.Unreachable, match="start it with: turnkeeper up"):
        away.list_tasks()  # at once: a daemon that was never started is not waited for


def test_a_turn_that_asks_is_decided_by_what_was_shown(tk: client.Turnkeeper) -> None:
    with pytest.raises(client.NeedsDecision) as raised:
        tk.run(ASKS, category="catch-up-summary")
    turn = raised.value.turn
    (asked,) = turn.approvals
    assert (asked.tool, asked.args["text"], asked.status) == ("memory_put", "the pump was replaced", "pending")
    assert [one.interrupt_id for one in tk.list_approvals(thread_id=turn.thread_id)] == [asked.interrupt_id]
    with pytest.raises(client.Conflict, match="differ from those that were shown"):
        tk.decide(replace(asked, args_hash="0" * 64), "approve")
    decided = tk.decide(asked, "reject", message="not now")
    assert (decided.decision, decided.message, decided.decided_by) == ("reject", "not now", "script/api")
    assert tk.decide(asked, "reject", message="not now") == decided, "the same again changes nothing"
    with pytest.raises(client.Conflict):
        tk.decide(asked, "approve")
    assert tk.wait(turn.turn_id).status == "succeeded"
    assert tk.send("general", "again", request_id="r1").turn_id == tk.send("general", "again", request_id="r1").turn_id


async def test_on_an_event_loop_turns_are_followed_while_others_run(shared: Constellation) -> None:
    async with client.AsyncTurnkeeper(shared.home.root) as tk:
        following = asyncio.create_task(
            anext_of(tk.follow_turns(), lambda event: event.state == "succeeded" and event.channel == "lively")
        )
        live = asyncio.create_task(anext_of(tk.follow_live("lively"), lambda one: isinstance(one, client.Speech)))
        seen: list[client.Turn | client.TurnEvent] = []
        while not (following.done() and live.done()):
            result = await tk.run("search: garden", channel="lively")
            seen.append(result.turn)
        event = await following
        assert event.via == "python/api"
        assert (await live).turn_id in {turn.turn_id for turn in seen if isinstance(turn, client.Turn)}
        async for turn in tk.follow(thread_id=result.turn.thread_id):
            assert (turn.turn_id, turn.text) == (result.turn.turn_id, result.text)
            break
        read = await tk.read_conversation(thread_id=result.turn.thread_id)
        assert [one.turn_id for one in read] == [result.turn.turn_id]


async def anext_of(items: AsyncIterator[Any], wanted: Any) -> Any:
    async for item in items:
        if wanted(item):
            return item
    raise AssertionError("it ended")


def test_importing_the_client_loads_no_daemon_and_no_langgraph() -> None:
    heavy = "{'langgraph', 'langchain_core', 'sqlalchemy', 'pydantic', 'typer', 'rich', 'task_runner', 'agent_runtime'}"
    code = f"import sys, turnkeeper.client; print(sorted({heavy} | {{'turnkeeper.constellation', 'turnkeeper.gateway'}} & set(sys.modules)))"
    code = code.replace(heavy, f"({heavy}").replace("gateway'}", "gateway'})")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("failpoint", ["runtime.accepted", "runtime.turn_step:2"])
def test_a_turn_is_run_once_though_the_runtime_dies(stopped: Constellation, failpoint: str) -> None:
    stopped.start(AGENT_RUNTIME, TURNKEEPER_FAILPOINTS=failpoint)
    with client.Turnkeeper(stopped.home.root, patience=timedelta(minutes=1)) as tk, ThreadPoolExecutor(2) as pool:
        running = pool.submit(tk.run, "search: garden")
        followed = pool.submit(lambda: next(turn for turn in tk.follow("general") if turn.is_over))
        stopped.until_dead(AGENT_RUNTIME)
        stopped.start(AGENT_RUNTIME)
        turn = running.result().turn
        assert followed.result().turn_id == turn.turn_id
        assert [one.turn_id for one in tk.read_conversation("general")] == [turn.turn_id]
        assert [message.role for message in turn.messages].count("author") == 1


class Impatient(Blocking):
    """Never waits."""

    async def pause(self, seconds: float) -> None:
        raise AssertionError(f"it waits for {seconds} s")


class Lossy(Blocking):
    """Loses the answer to the first call of a method, or the request."""

    def __init__(self, constellation: Constellation, method: str, *, request: bool = False) -> None:
        super().__init__(constellation.home, "script/api", 10.0)
        self._loses, self._request = [method], request
        self.calls: list[str] = []

    async def call(self, request: Any) -> Any:
        method = method_of(request).name
        lost = self._request and method in self._loses
        answer = None if lost else await super().call(request)
        self.calls.append(method)
        if method in self._loses:
            self._loses.remove(method)
            raise Unreachable("the daemon cannot be reached")
        return answer


class Breaking(Blocking):
    """Loses its daemon after every second piece of a stream."""

    async def stream(self, request: Any, greeted: Any) -> AsyncIterator[Any]:
        left = 2
        async for item in super().stream(request, greeted):
            yield item
            if not (left := left - 1):
                raise Unreachable("the daemon cannot be reached")

    async def pause(self, seconds: float) -> None:
        """Not wait: it is there."""


def test_who_follows_misses_nothing_and_sees_nothing_twice_when_the_daemon_is_lost(
    shared: Constellation, tk: client.Turnkeeper
) -> None:
    broken = client.Turnkeeper(shared.home.root)
    broken._operations = Operations(shared.home, Breaking(shared.home, "script/api", 10.0), timedelta(minutes=1))
    with ThreadPoolExecutor(2) as pool:
        events = pool.submit(lambda: list(islice(broken.follow_turns(), 9)))
        whole = pool.submit(lambda: list(islice(tk.follow_turns(), 40)))
        texts = list[str]()
        while not (events.done() and whole.done()):
            texts.append(f"note {len(texts)}")
            tk.run(texts[-1], channel="broken", thread_id="broken")
        numbers = [event.sequence for event in events.result()]
        seen = [event.sequence for event in whole.result() if numbers[0] <= event.sequence <= numbers[-1]]
        assert numbers[-len(seen) :] == seen
        assert numbers == sorted({*numbers})
    turns = list(islice(broken.follow("broken", limit=1000), len(texts)))
    assert [turn.messages[0].text for turn in turns] == texts


def test_a_task_is_created_once_though_the_answer_is_lost(shared: Constellation) -> None:
    for number, when in enumerate(({"every": "1h"}, {"in_": timedelta(days=1)}, {"cron": "0 9 * * *"})):
        lossy = Lossy(shared, "CreateTask")
        tk = Operations(shared.home, lossy, timedelta(seconds=10))
        task = _at_once(tk.create_task(f"once{number}", **OF_TASK, **when))
        assert lossy.calls.count("CreateTask") == 1
        assert [one.id for one in _at_once(tk.list_tasks()) if one.name == f"once{number}"] == [task.id]
    unsent = Operations(shared.home, Lossy(shared, "CreateTask", request=True), timedelta(seconds=10))
    with pytest.raises(client.AlreadyExists):
        _at_once(unsent.create_task("once0", every="2h", **OF_TASK))
    other = Operations(shared.home, Lossy(shared, "GetTask"), timedelta(seconds=10))
    assert _at_once(other.get_task("once0")).name == "once0", "a read is repeated"


def test_a_call_that_cannot_be_repeated_fails_cleanly_when_its_daemon_dies(stopped: Constellation) -> None:
    stopped.start()
    with client.Turnkeeper(stopped.home.root, patience=timedelta(minutes=1)) as tk, ThreadPoolExecutor(1) as pool:
        tk.create_task("steady", every="1h", **OF_TASK)
        os.kill(int(stopped.home.pid("task-runner").read_text()), 19)  # it is stopped, and answers nothing
        creating = pool.submit(tk.create_task, "fresh", every="1h", **OF_TASK)
        stopped.kill(TASK_RUNNER)
        with pytest.raises(client.Unreachable, match="turnkeeper up"):
            tk.delete_task("steady")
        stopped.start(TASK_RUNNER)
        assert creating.result().name == "fresh"
        assert sorted(task.name for task in tk.list_tasks()) == ["fresh", "steady"]
