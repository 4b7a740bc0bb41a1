"""The limits of queues hold over tasks, over retries of the runner, and never stop a task of another queue."""

import asyncio
import json
from pathlib import Path

import psycopg
import pytest

from task_runner.dispatcher import queues
from task_runner.dispatcher.dispatcher import Pace, claim
from task_runner.store.rows import Outgoing
from tests.integration.runner.conftest import Rig
from tests.integration.runner.scripted_runtime import Peer, State
from tests.support.clock import look_again
from turnkeeper.config.settings import NodeSettings, QueueSettings, Settings, StoreSettings
from turnkeeper.storage import nodes
from turnkeeper.v1 import schedules_pb2 as wire

LIMITS = {
    "gpu": QueueSettings(turns_at_once=2),
    "key": QueueSettings(per_minute=2),
    "late": QueueSettings(priority=-1),
    "early": QueueSettings(priority=1),
}


@pytest.fixture(autouse=True)
def limited(rig: Rig) -> None:
    use(rig, LIMITS)


def use(rig: Rig, limits: dict[str, QueueSettings]) -> None:
    rig.dispatcher._pace = Pace(admit=queues.admission(Settings(queues=limits)))


async def claimed(rig: Rig) -> list[Outgoing]:
    now, admit = rig.clock.now(), rig.dispatcher._pace.admit
    return await rig.store.run(lambda session: claim(session, now, 9, 1, single=False, admit=admit))


async def waits(rig: Rig, name: str, text: str) -> None:
    """Wait until a list says what a task waits for."""
    while (await rig.task(name)).waits_for != text:
        await look_again()


async def test_no_more_turns_of_a_queue_run_at_once_and_the_end_of_one_starts_the_next(rig: Rig, peer: Peer) -> None:
    for name in "abc":
        await rig.create(name, queue="gpu")
    await rig.create("free")
    peer.now = rig.clock.now
    async with rig.running():
        while not rig.dispatcher.room():  # from here on, a fire without a queue goes the short way
            await look_again()
        await rig.pass_time(60)
        first = await peer.saw(3)
        await waits(rig, "c", "queue gpu: 2 of 2 turns at once")
        assert sorted(each.task_name for each in first) == ["a", "b", "free"]
        await rig.trail.saw("fire.accepted", 3)
        ((outcome, reason, _),) = await rig.history("c")
        assert (outcome, reason) == ("pending", "waits for queue gpu: 2 of 2 turns at once")
        fire = next(each for each in first if each.task_name == "a")
        await peer.play(fire.fire_id, State.STARTED)
        await peer.play(fire.fire_id, State.SUCCEEDED)
        *_, last = await peer.saw(4)
    assert last.task_name == "c"


async def test_another_runner_on_the_same_store_counts_the_turns_that_run(rig: Rig, peer: Peer) -> None:
    for name in "abc":
        await rig.create(name, queue="gpu")
    async with rig.running():
        await rig.pass_time(60)
        await peer.saw(2)
        await waits(rig, "c", "queue gpu: 2 of 2 turns at once")
        await rig.trail.saw("fire.accepted", 2)
    await rig.close()
    again = rig.again()
    use(again, LIMITS)
    again.clock.advance(31)
    assert await claimed(again) == []
    assert [outcome for outcome, *_ in await again.history("c")] == ["pending"]
    await again.close()


async def test_turns_of_a_queue_begin_evenly_spaced(rig: Rig, peer: Peer) -> None:
    for name in "abc":
        await rig.create(name, queue="key", grace="1h")
    async with rig.running():
        await rig.pass_time(60)
        await peer.saw(1)
        await waits(rig, "c", "queue key: 2 turns a minute")
        await rig.trail.saw("fire.accepted")
    moments = []
    for _ in range(60):
        rig.clock.advance(1)
        moments += [(rig.clock.now() - each.fire.due_at).total_seconds() for each in await claimed(rig)]
    assert moments == [30, 60]


async def test_a_queue_without_limits_in_the_settings_stops_its_fires(rig: Rig, peer: Peer) -> None:
    await rig.create(queue="gpux")
    async with rig.running():
        await rig.pass_time(60)
        await waits(rig, "digest", "queue gpux: config.toml has no [queues.gpux]")
        use(rig, {"gpux": QueueSettings()})
        rig.clock.advance(31)
        rig.dispatcher.wake()
        await peer.saw(1)


async def test_of_fires_that_are_due_together_the_highest_priority_goes_first(rig: Rig) -> None:
    for name, queue in (("last", "late"), ("middle", None), ("first", "early")):
        await rig.create(name, **({"queue": queue} if queue else {}))
    await rig.create("waits")
    rig.clock.advance(60)
    await rig.loop.tick()
    named = [task.name for each in await claimed(rig) for task in [await name_of(rig, each.fire.task_id)]]
    assert (named[0], named[-1]) == ("first", "last")


async def test_a_runner_waits_while_another_one_admits_fires_of_the_queue(rig: Rig) -> None:
    if isinstance(rig.place, Path):
        pytest.skip("several runners share a server: --database postgres")
    await rig.create(queue="gpu")
    rig.clock.advance(60)
    await rig.loop.tick()
    waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    with psycopg.connect(rig.place) as other, psycopg.connect(rig.place, autocommit=True) as seen:
        seen.execute("INSERT INTO slots VALUES ('queue gpu', '', 0)")
        other.execute("SELECT FROM slots WHERE name = 'queue gpu' FOR UPDATE")
        claiming = asyncio.create_task(claimed(rig))
        while seen.execute(waits).fetchone() == (0,):
            await look_again()
        other.commit()
    assert len(await claiming) == 1


async def test_a_fire_that_needs_a_tag_waits_for_a_machine_that_offers_it(rig: Rig, peer: Peer) -> None:
    is_shared = isinstance(rig.place, str)

    def offer(*tags: str) -> None:
        store = StoreSettings(url=rig.place) if isinstance(rig.place, str) else StoreSettings()
        settings = Settings(node=NodeSettings(tags=() if is_shared else tags), store=store)
        rig.dispatcher._pace = Pace(admit=queues.admission(settings))
        if is_shared:
            facts, gpu = {f"{nodes.TAG}{tag}": "offered" for tag in tags}, {f"{nodes.TAG}gpu": "offered"}
            machines = [
                ("m", "agent-runtime", False, facts),
                ("only serves the page", "web", False, gpu),
                ("shuts down", "agent-runtime", True, gpu),
                ("cordoned", "agent-runtime", False, gpu | {nodes.CORDONED: "2026-01-01"}),
            ]
            with psycopg.connect(rig.place, autocommit=True) as database:
                database.execute("DELETE FROM nodes")
                for name, role, draining, its in machines:
                    database.execute(
                        "INSERT INTO nodes (node_id, name, host, version, started_us, offset_us, role, draining,"
                        " facts_json, beat_us) VALUES (%s, 'm', 'h', '1', 0, 0, %s, %s, %s,"
                        " (extract(epoch FROM clock_timestamp()) * 1000000)::bigint)",
                        [name, role, draining, json.dumps(its)],
                    )

    offer("arm")
    await rig.create("heavy", needs="gpu")
    await rig.create("light")
    async with rig.running():
        while not rig.dispatcher.room():  # from here on, a fire that needs no tag goes the short way
            await look_again()
        await rig.pass_time(60)
        await waits(rig, "heavy", "a machine that offers gpu")
        assert [each.task_name for each in await peer.saw(1)] == ["light"]
        said = await rig.service.explain_fire(wire.ExplainFireRequest(name="heavy"))
        assert "(waits for a machine that offers gpu)" in " ".join(said.lines)
        offer("arm", "gpu")
        rig.clock.advance(31)
        rig.dispatcher.wake()
        while "heavy" not in {each.task_name for each in peer.received}:
            await look_again()
        assert (await rig.task("heavy")).waits_for == ""


async def name_of(rig: Rig, task_id: str) -> object:
    return await rig.store.read(lambda session: session.tasks.find(task_id).definition)
