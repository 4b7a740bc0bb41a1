"""LangGraph's own clients, unmodified, against a real constellation, also while its processes are killed."""

import asyncio
import json
import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest

from tests.support.constellation import AGENT_RUNTIME, TASK_RUNNER
from tests.support.langgraph import ASKS, CATEGORY, CLIENTS, Lg, constellation_with_web, said
from tests.support.machines import TwoMachines
from tests.support.postgres import Server

pytestmark = pytest.mark.process
BY_NODE = pytest.mark.sqlite_only("what differs is the client; what it asks is asked by the Python SDKs, too")
APPROVE = {"decisions": [{"type": "approve"}]}
MAJORS = ("1", "2")


@pytest.fixture(scope="module")
def lg(postgres_server: Server | None) -> Iterator[Lg]:
    with constellation_with_web(postgres_server) as found:
        yield found


@pytest.fixture
def process(request: pytest.FixtureRequest, lg: Lg) -> str:
    """What is killed: of one machine its runtime runs the turns, and there is no worker."""
    if request.param == "worker" and not isinstance(lg.constellation, TwoMachines):
        pytest.skip("of several machines, which share a server: --database postgres")
    return str(request.param)


@pytest.fixture
async def client(lg: Lg) -> AsyncIterator[Any]:
    async with lg.client() as found:
        yield found


def types(values: Any) -> list[str]:
    return [one["type"] for one in values["messages"]]


def test_a_client_writes_into_the_state_of_a_thread_that_rests(lg: Lg) -> None:
    made = lg.thread()
    place, said_by = f"/threads/{made}/state", {"role": "ai", "content": "Written", "id": "w"}
    assert "no associated graph" in lg.refused("POST", place, {"values": {"messages": [said_by]}}, status=400)
    run_id = lg.turn(made)
    before = lg.ask("GET", place)
    written = {"values": {"messages": [said_by]}, "as_node": "model"}
    lg.ask("POST", place, written, status=403, headers={"x-api-key": lg.keys["read"]})
    placed = lg.ask("POST", place, written, headers={"x-api-key": lg.keys["work"]})
    after = lg.ask("GET", place)
    assert (after["checkpoint"], after["metadata"]["source"]) == (placed["checkpoint"], "update")
    assert [one["id"] for one in after["values"]["messages"]] == [
        *(one["id"] for one in before["values"]["messages"]),
        "w",
    ]
    assert [one["run_id"] for one in lg.ask("GET", f"/threads/{made}/runs")] == [run_id], "a write is no run"
    for wrong, why in (
        ({"values": {"nothing": 1}}, "nothing"),
        ({"values": {"messages": []}, "as_node": "nobody"}, "nobody"),
        ({"values": {"messages": []}, "checkpoint_id": "1ef"}, "1ef"),
        ({"values": []}, "values"),
        ({"values": {"messages": []}, "checkpoint": {"checkpoint_ns": "a:b"}}, "subgraph"),
    ):
        assert why in str(lg.ask("POST", place, wrong, status=422)["detail"])
    assert lg.ask("GET", place) == after
    assert lg.turn(made, "And now?")


async def test_the_asynchronous_sdk_runs_streams_waits_joins_and_cancels(lg: Lg, client: Any) -> None:
    thread = await client.threads.create(metadata={"client": "async"})
    thread_id, created = thread["thread_id"], []
    modes = ["values", "messages-tuple", "updates", "custom"]
    options = {"input": said("Hello"), "stream_mode": modes, "on_run_created": created.append}
    parts = [part async for part in client.runs.stream(thread_id, "agent0", **options)]
    assert (parts[0].event, parts[-1].event) == ("metadata", "end")
    assert created == [{"run_id": parts[0].data["run_id"], "thread_id": thread_id}]
    waited = await client.runs.wait(thread_id, "agent0", input=said("And now?"))
    assert types(waited)[-1] == "ai"
    run = await client.runs.create(thread_id, "agent0", input=said("Once more"))
    assert len((await client.runs.join(thread_id, run["run_id"]))["messages"]) > len(waited["messages"])
    joined = [part.event async for part in client.runs.join_stream(thread_id, run["run_id"], stream_mode="values")]
    assert joined == ["metadata", "values", "end"]
    await client.runs.cancel(thread_id, run["run_id"], wait=True)
    assert [one["status"] for one in await client.runs.list(thread_id)] == ["success"] * 3
    (found,) = await client.threads.search(metadata={"client": "async", "graph_id": "agent0"})
    assert found["thread_id"] == thread_id
    assert (await client.threads.get_history(thread_id))[0]["next"] == []
    assert (await client.threads.get_state(thread_id))["next"] == []


def test_the_synchronous_sdk_does_the_same(lg: Lg) -> None:
    with lg.sync_client() as client:
        play_synchronously(client)


def play_synchronously(client: Any) -> None:
    thread_id = client.threads.create(metadata={"client": "sync"})["thread_id"]
    parts = list(client.runs.stream(thread_id, "agent0", input=said("Hello"), stream_mode="messages-tuple"))
    assert parts[-1].event == "end"
    assert types(client.runs.wait(thread_id, "agent0", input=said("And now?")))[-1] == "ai"
    cron = client.crons.create("agent0", schedule="0 9 * * *", input=said("What is new?"), metadata={"client": "sync"})
    assert [one["cron_id"] for one in client.crons.search(metadata={"client": "sync"})] == [cron["cron_id"]]
    assert client.crons.count(metadata={"client": "sync"}) == 1
    assert not client.crons.update(cron["cron_id"], enabled=False)["enabled"]
    client.crons.delete(cron["cron_id"])
    client.store.put_item(["workspace", "sync"], "ada", {"age": 36})
    assert client.store.get_item(["workspace", "sync"], "ada")["value"] == {"age": 36}
    assert [one["key"] for one in client.store.search_items(["workspace", "sync"])["items"]] == ["ada"]
    assert client.store.list_namespaces(["workspace", "sync"])["namespaces"] == [["workspace", "sync"]]
    client.store.delete_item(["workspace", "sync"], "ada")
    assert [one["name"] for one in client.assistants.search()] == ["agent0"]


async def test_the_newer_thread_stream_tells_messages_calls_and_output(lg: Lg, client: Any) -> None:
    async with client.threads.stream(assistant_id="agent0") as thread:
        await thread.run.start(input=said("Hello"))
        streams = [one async for one in thread.messages]
        texts = [await one.text for one in streams]
        output = await thread.output
    assert "offline model" in texts[-1]
    assert texts[-1] == output["messages"][-1]["content"]


async def test_the_newer_thread_stream_answers_what_waits(lg: Lg, client: Any) -> None:
    found = lg.waiting()
    async with client.threads.stream(found["thread_id"], assistant_id="agent0") as thread:
        async for _ in thread.values:
            """Follow it until it waits."""
        (asked,) = thread.interrupts
        assert asked["value"]["action_requests"][0]["name"] == "memory_put"
        await thread.run.respond(APPROVE)
        output = await thread.output.with_timeout(60)
    assert output["messages"][-1]["type"] == "ai"
    assert lg.ask("GET", f"/threads/{found['thread_id']}")["interrupts"] == {}


def play(lg: Lg, major: str, flow: str, argument: str = "", scope: str = "decide") -> Any:
    """Return what the JavaScript SDK saw."""
    if shutil.which("node") is None or not (CLIENTS / "node_modules").is_dir():
        absent = "Node or the JavaScript SDKs are not installed: make test-services"
        pytest.fail(absent) if "CI" in os.environ else pytest.skip(absent)
    command = ["node", "play.mjs", major, lg.url, lg.keys[scope], flow, argument]
    done = subprocess.run(command, check=False, cwd=CLIENTS, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.client
@BY_NODE
@pytest.mark.parametrize("major", MAJORS)
def test_the_javascript_sdk_runs_streams_waits_joins_and_cancels(lg: Lg, major: str) -> None:
    saw = play(lg, major, "runs")
    assert saw["created"] == saw["run_id"]
    assert (saw["assistant"], saw["last"], saw["newest"], saw["found"]) == ("agent0", "end", True, [True])
    assert set(saw["names"]) == {"metadata", "values", "messages", "updates", "end"}
    assert saw["rejoined"] == ["metadata", "values", "end"]
    assert saw["runs"] == ["success"] * 3
    assert saw["states"] == 10, "the newest of the states of three runs"
    assert saw["joined"] > saw["waited"]


@pytest.mark.client
@BY_NODE
@pytest.mark.parametrize("major", MAJORS)
def test_the_javascript_sdk_makes_crons_and_keeps_items(lg: Lg, major: str) -> None:
    assert play(lg, major, "crons") == {"same": [True], "schedule": "0 8 * * *", "enabled": False, "left": 0}
    assert play(lg, major, "store") == {"value": {"age": 36}, "keys": ["ada"], "listed": True}


@pytest.mark.client
@BY_NODE
@pytest.mark.parametrize("major", MAJORS)
def test_the_javascript_sdk_decides(lg: Lg, major: str) -> None:
    saw = play(lg, major, "decide", lg.waiting()["thread_id"])
    assert (saw["left"], saw["names"][-1]) == ({}, "end")


@pytest.mark.client
@BY_NODE
@pytest.mark.parametrize("major", MAJORS)
def test_the_javascript_sdk_repeats_no_refusal_and_is_told_why(lg: Lg, major: str) -> None:
    saw = play(lg, major, "refused")
    assert [one["status"] for one in saw["found"]] == [403, 400, 422, 404]
    assert all("; " in one["text"] for one in saw["found"])
    assert saw["seconds"] < 20, "none was repeated, which takes as long"


@pytest.mark.client
@BY_NODE
@pytest.mark.parametrize("major", MAJORS)
def test_the_javascript_sdk_edits_and_regenerates_as_its_hook_does(lg: Lg, major: str) -> None:
    """A message from a terminal, between those of the client, is in the tree that the hook draws."""
    thread = lg.thread()
    lg.turn(thread)
    lg.constellation.command("agent-runtime", "send", "general", "From a terminal", "--thread", thread, "--wait")
    last = lg.ask("GET", f"/threads/{thread}/state")["values"]["messages"][-1]["content"]
    saw = play(lg, major, "fork", thread)
    assert saw["start"] == last
    assert saw["edited"] == saw["again"] == ["Hello", "Edited"]
    assert (max(saw["branches"]), saw["isNew"]) == (2, True)


@pytest.mark.client
@BY_NODE
def test_the_javascript_sdks_newer_thread_stream_tells_messages_and_output(lg: Lg) -> None:
    saw = play(lg, "1", "threadStream")
    assert "offline model" in saw["texts"][-1]
    assert saw["output"][0] == "human"


def until_reachable(lg: Lg) -> None:
    """Wait until the gateway reaches both daemons."""
    for path in ("/runs/crons/count", "/threads/count"):
        lg.constellation.until(f"{path} to answer", lambda path=path: lg.http.post(path, json={}).is_success)


def kill_web(lg: Lg) -> None:
    """End the gateway by kill -9, and start it again."""
    lg.web.kill()
    lg.web.start()


async def killed_during(lg: Lg, parts: AsyncIterator[Any], kill: Any) -> list[Any]:
    """Return the parts of a stream; kill once the first has come."""
    found: list[Any] = []
    async for part in parts:
        if not found:
            await asyncio.to_thread(kill)
        found.append(part)
    return found


SLOW = "tell nobody: wait\nsearch: the garden\nremember: it was asked once"


@pytest.mark.parametrize("process", ["gateway", "runtime", "runner", "worker"], indirect=True)
async def test_a_kill_during_a_stream_leaves_one_turn_and_the_stream_ends(lg: Lg, client: Any, process: str) -> None:
    thread_id = lg.thread()
    parts = client.runs.stream(thread_id, "agent0", input=said(SLOW), stream_mode=["values"])
    found = await killed_during(lg, parts, lambda: KILLS[process](lg))
    assert found[-1].event == "end"
    assert types(next(one.data for one in reversed(found) if one.event == "values"))[-1] == "ai"
    assert [run["status"] for run in await client.runs.list(thread_id)] == ["success"]


def test_a_stream_goes_on_over_the_runtimes_death_for_a_client_that_does_not_connect_again(lg: Lg) -> None:
    body = {"assistant_id": "agent0", "input": said(SLOW)}
    told = lg.stream(f"/threads/{lg.thread()}/runs/stream", body, then=lambda: KILLS["runtime"](lg))
    assert [name for name, _ in told][-1] == "end"
    assert types(told[-2][1])[-1] == "ai"


@pytest.mark.filterwarnings("ignore:Request failed, attempting reconnect")
@pytest.mark.parametrize("process", ["gateway", "runtime", "worker"], indirect=True)
async def test_a_kill_during_a_wait_leaves_one_turn_and_the_wait_returns(lg: Lg, client: Any, process: str) -> None:
    thread_id = lg.thread()
    waiting = asyncio.ensure_future(client.runs.wait(thread_id, "agent0", input=said(SLOW)))
    runs: list[Any] = []
    while not runs and not waiting.done():
        runs = await client.runs.list(thread_id)
    await asyncio.to_thread(KILLS[process], lg)
    assert types(await waiting)[-1] == "ai"
    assert [run["status"] for run in await client.runs.list(thread_id)] == ["success"]


@pytest.mark.parametrize("process", ["gateway", "runtime", "worker"], indirect=True)
async def test_a_kill_during_a_decision_leaves_one_decision(lg: Lg, client: Any, process: str) -> None:
    found = lg.waiting(f"Summarise the garden, then remember: {process} was killed")
    thread_id, (asked,) = found["thread_id"], found["interrupts"]
    command = {"resume": {asked: APPROVE}}
    parts = client.runs.stream(thread_id, "agent0", input=None, command=command, stream_mode=["values"])
    told = await killed_during(lg, parts, lambda: KILLS[process](lg))
    assert told[-1].event == "end"
    entries = lg.ask("POST", "/store/items/search", {"namespace_prefix": ["channel", "general"]})["items"]
    assert [one["value"]["text"] for one in entries].count(f"{process} was killed") == 1
    assert (await client.threads.get(thread_id))["interrupts"] == {}
    assert len(await client.runs.list(thread_id)) == 1


@pytest.mark.parametrize("process", ["gateway", "runner"])
async def test_a_kill_during_the_making_of_a_cron_leaves_one_task(lg: Lg, client: Any, process: str) -> None:
    thread_id, metadata = lg.thread(), {"kill": process}
    options = {"schedule": "0 9 * * *", "input": said("What is new?"), "metadata": metadata}
    making = client.crons.create_for_thread(thread_id, "agent0", **options)
    made, _ = await asyncio.gather(making, asyncio.to_thread(KILLS[process], lg), return_exceptions=True)
    until_reachable(lg)
    if isinstance(made, BaseException):
        assert isinstance(made, httpx.HTTPError), "it fails cleanly, and may have made the task"
        assert await client.crons.count(metadata=metadata) <= 1
    else:
        assert [one["cron_id"] for one in await client.crons.search(metadata=metadata)] == [made["cron_id"]]


async def test_a_cron_that_is_made_while_the_runner_is_away_is_made_once_when_it_is_back(lg: Lg, client: Any) -> None:
    thread_id, metadata = lg.thread(), {"kill": "away"}
    lg.constellation.kill(TASK_RUNNER)
    options = {"schedule": "0 9 * * *", "input": said("What is new?"), "metadata": metadata, "enabled": False}
    making = client.crons.create_for_thread(thread_id, "agent0", **options)
    made, _ = await asyncio.gather(making, asyncio.to_thread(lg.constellation.start, TASK_RUNNER))
    until_reachable(lg)
    (found,) = await client.crons.search(metadata=metadata)
    assert (found["cron_id"], found["enabled"]) == (made["cron_id"], False)


def kill_daemon(daemon: Any) -> Any:
    def kill(lg: Lg) -> None:
        lg.constellation.kill(daemon)
        lg.constellation.start(daemon)

    return kill


def kill_worker(lg: Lg) -> None:
    """End the runtime that runs the turns, where the one that is asked is another."""
    assert isinstance(lg.constellation, TwoMachines)
    lg.constellation.kill_worker()
    lg.constellation.start()


KILLS: dict[str, Any] = {
    "gateway": kill_web, "runtime": kill_daemon(AGENT_RUNTIME), "runner": kill_daemon(TASK_RUNNER),
    "worker": kill_worker,
}  # fmt: skip


async def test_a_cron_as_the_sdk_documents_it_is_a_task_that_fires_resumes_its_thread_and_survives(
    lg: Lg, client: Any
) -> None:
    thread = await client.threads.create()
    cron_job = await client.crons.create_for_thread(
        thread["thread_id"],
        "agent0",
        schedule="27 15 29 2 *",  # so that none but the fires of this test count, whenever it runs
        input={"messages": [{"role": "user", "content": ASKS}]},
        metadata={"name": "leap-day", **CATEGORY},
    )
    (task,) = [one for one in lg.constellation.ask("task-runner", "list") if one["name"] == "leap-day"]
    assert task["id"] == cron_job["cron_id"]
    found = lg.fire(cron_job, thread["thread_id"])
    kill_all(lg)
    assert (await client.threads.get(thread["thread_id"]))["interrupts"] == found["interrupts"]
    (asked,) = found["interrupts"]
    values = await client.runs.wait(thread["thread_id"], "agent0", input=None, command={"resume": {asked: APPROVE}})
    assert types(values)[-1] == "ai"
    await client.crons.update(cron_job["cron_id"], metadata={"name": "leap-day"}, input=said("What is new?"))
    lg.constellation.command("task-runner", "run", "leap-day")
    lg.constellation.until_outcome("leap-day", "succeeded", 2)
    assert len(await client.runs.list(thread["thread_id"])) >= 2, "on the same thread"
    assert lg.constellation.violations(drained=False) == []


def kill_all(lg: Lg) -> None:
    """End all three processes by kill -9, and start them again."""
    lg.web.kill()
    for daemon in (AGENT_RUNTIME, TASK_RUNNER):
        lg.constellation.kill(daemon)
    lg.constellation.start()
    lg.web.start()
    until_reachable(lg)
