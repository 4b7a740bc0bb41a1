"""What another machine's runner or runtime writes is seen at once, and within a second without notifications."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest

from task_runner.daemon.assembly import Runner, assemble, call
from task_runner.dispatcher import shared
from tests.integration.cluster.shared import Cluster
from tests.support.clock import look_again
from turnkeeper.clock import SharedClock
from turnkeeper.config.home import Home
from turnkeeper.storage import nodes, schema_revision
from turnkeeper.storage.database import Database
from turnkeeper.storage.server import following
from turnkeeper.storage.server.url import in_schema
from turnkeeper.times import from_us
from turnkeeper.v1 import schedules_pb2 as wire

PATIENCE_S = 60.0
NEVER_S = 3600.0  # longer than a test waits


@asynccontextmanager
async def running(home: Home) -> AsyncIterator[Runner]:
    """Run the runner of a home in this process, as its daemon does."""
    async with assemble(home, daemon=True) as runner:
        parts: list[Any] = [runner.loop, runner.dispatcher, runner.follower, runner.runtime_events, runner.listener]
        tasks = [asyncio.create_task(part.run()) for part in parts]
        try:
            yield runner
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def until(cluster: Cluster, query: str, wanted: Any) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while cluster.value(query) != wanted:
            await look_again()


async def play(cluster: Cluster, runner: Runner, other: Home) -> None:
    """On other machines a command makes tasks and runs one; its turn triggers another one."""
    cluster.start_runtime(other)
    spec: Any = {"category": "loop", "channel": "general", "prompt": "Say hello."}
    listens = {"on": "turn_end", "filters": ["task_name=first"]}
    for name, when in (("first", {"every": "9h"}), ("second", listens)):
        given = wire.CreateTaskRequest(spec=wire.TaskSpec(name=name, **spec, **when))
        await asyncio.to_thread(call, other, "CreateTask", given)
    await until(cluster, "SELECT max(value) FROM runtime.meta WHERE key = 'bridged'", '["turn_end"]')
    async with asyncio.timeout(PATIENCE_S):
        while not runner.dispatcher.connected:
            await look_again()
    await asyncio.to_thread(call, other, "RunTask", wire.RunTaskRequest(name="first", request_id="one"))
    await until(cluster, "SELECT max(outcome) FROM runner.fires WHERE kind = 'manual'", "succeeded")
    await until(cluster, "SELECT count(*) FROM runner.fires WHERE kind = 'event' AND outcome = 'succeeded'", 1)
    left = cluster.rows("SELECT name FROM runtime.bridged_events")
    assert left in ([], [("turn_end",)]), "what was taken in is forgotten, but for the newest turn's"


async def test_what_others_do_is_heard_at_once(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name in ((shared, "POLL_S"), (following, "LOOK_S")):
        monkeypatch.setattr(module, name, NEVER_S)
    async with running(cluster.home(1)) as runner:
        await play(cluster, runner, cluster.home(2))


async def test_without_notifications_it_is_seen_all_the_same(cluster: Cluster) -> None:
    homes = cluster.home(1), cluster.home(2)
    for home in homes:
        home.config.write_text(home.config.read_text().replace("[node]", "notifications = false\n[node]"))
    async with running(homes[0]) as runner:
        await play(cluster, runner, homes[1])
    listening = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'LISTEN%%' AND datname = current_database()"
    assert cluster.value(listening) == 0


async def test_a_fire_that_becomes_due_while_a_runner_looks_is_looked_at_at_once(cluster: Cluster) -> None:
    home = cluster.home(1)
    async with assemble(home, daemon=True) as runner:
        spec = wire.TaskSpec(name="first", category="loop", channel="general", prompt="Say hello.", every="9h")
        await asyncio.to_thread(call, home, "CreateTask", wire.CreateTaskRequest(spec=spec))
        await asyncio.to_thread(call, home, "RunTask", wire.RunTaskRequest(name="first", request_id="one"))
        due = from_us(cluster.value("SELECT max(ready_us) FROM runner.fires WHERE kind = 'manual'"))
        assert await runner.dispatcher._pause_s(due - timedelta(milliseconds=10)) == 0
        assert await runner.dispatcher._pause_s(due) == shared.POLL_S, "it waits for whoever holds it"


async def test_a_look_wakes_only_the_parts_that_have_work(cluster: Cluster) -> None:
    home = cluster.home(1)
    spec: dict[str, Any] = {"category": "loop", "channel": "general", "prompt": "Say hello.", "every": "9h"}
    async with assemble(home, daemon=True) as runner:
        sender = runner.dispatcher
        parts = {
            "planning": sender.changed, "sending": sender.work, "withdrawing": sender.late,
            "outcomes": runner.follower.news, "events": runner.runtime_events.changed,
        }  # fmt: skip

        async def woken() -> set[str]:
            for event in parts.values():
                event.clear()
            await runner.listener.look()
            return {part for part, event in parts.items() if event.is_set()}

        assert await woken() == {"sending"}, "that a runtime lives is news"
        sender.connected = True
        assert await woken() == set()
        made = wire.CreateTaskRequest(spec=wire.TaskSpec(name="first", **spec))
        await asyncio.to_thread(call, home, "CreateTask", made)
        assert await woken() == {"planning"}
        assert await woken() == set(), "the next due time is known"
        await asyncio.to_thread(call, home, "RunTask", wire.RunTaskRequest(name="first", request_id="one"))
        assert await woken() == {"sending"}
        assert len(await sender.hand_over()) == 1
        cluster.sql.execute(b"UPDATE runner.fires SET kind = 'scheduled', send_by_us = 1 WHERE kind = 'manual'")
        assert await woken() == {"sending", "withdrawing"}
        cluster.sql.execute(b"UPDATE runner.tasks SET listens = 'turn_end'")
        assert await woken() == {"sending", "withdrawing", "events"}
        cluster.sql.execute(b"DELETE FROM runtime.owners")
        cluster.sql.execute(b"DELETE FROM runtime.envelopes")
        assert await woken() == {"sending", "events"}, "without a runtime, fires stay in the ledger"


async def test_of_the_processes_that_can_work_two_look_first_at_what_waits_under_a_key(cluster: Cluster) -> None:
    database = Database(in_schema(cluster.url, "runner"), migrations=schema_revision.STORES["runner"])
    of: dict[str, Any] = {"run": database.run, "clock": SharedClock()}
    made = [nodes.Beat(**of, node_id=name, name=name, role="agent-runtime") for name in "abcdfg"]
    made.append(nodes.Beat(**of, node_id="a again", name="a", role="agent-runtime"))
    other = nodes.Beat(**of, node_id="e", name="e", role="task-runner")
    made[2].facts = lambda: {nodes.CORDONED: "since 9"}
    for beat in (*made, other):
        await beat.once()
    await made[3].drain()
    for beat in (*made[:3], *made[4:]):
        await beat.once()
    keys = [f"turn-{number}" for number in range(100)]
    able = (made[1], *made[4:])
    first = [[beat.is_first_for(key) for beat in able] for key in keys]
    assert all(sum(each) == 2 for each in first), "of those that are not cordoned, draining or replaced"
    assert {each.index(True) for each in first} == {0, 1, 2}, "each gets some"
    assert all(map(other.is_first_for, keys)), "it is the only one of its role"
    database.close()


async def test_what_a_machine_that_just_died_was_to_look_at_is_done_by_another(cluster: Cluster) -> None:
    """The runners and runtimes that look first at nearly all turns are dead, and still listed."""
    home, other, names = cluster.home(1), cluster.home(2), [f"task-{number}" for number in range(4)]
    async with running(home) as runner:
        cluster.start_runtime(other)
        spec: dict[str, Any] = {"category": "loop", "channel": "general", "prompt": "Say hello.", "every": "9h"}
        for name in names:
            made = wire.CreateTaskRequest(spec=wire.TaskSpec(name=name, **spec))
            await asyncio.to_thread(call, other, "CreateTask", made)
        await until(cluster, "SELECT count(*) FROM runner.nodes", 2)
        dead = (
            "concat(role, number), concat(name, number), role, host, version, started_us, 9000000000000000, offset_us"
        )
        copy = f"INSERT INTO runner.nodes SELECT {dead} FROM runner.nodes, generate_series(1, 30) AS number"
        cluster.sql.execute(copy.encode())
        await runner.beat.once()
        for name in names:
            await asyncio.to_thread(call, other, "RunTask", wire.RunTaskRequest(name=name, request_id=name))
        await until(cluster, "SELECT count(*) FROM runner.fires WHERE outcome = 'succeeded'", len(names))
        ends = cluster.rows("SELECT turn_id FROM runtime.turn_events WHERE state = 'SUCCEEDED'")
        assert not all(runner.beat.is_first_for(turn_id) for (turn_id,) in ends), "some were to be seen by the dead"
