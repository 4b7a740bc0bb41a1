"""The loop: never early, in isolation, and right about clocks that step."""

import errno
from typing import Any

import pytest
from sqlalchemy import text

from task_runner.planner import entries
from tests.integration.runner.conftest import Rig
from turnkeeper.config import surfaces
from turnkeeper.v1 import schedules_pb2 as wire


async def test_it_sleeps_until_the_next_wake_and_is_never_early(rig: Rig) -> None:
    task = await rig.create()
    async with rig.running("loop"):
        await rig.history()
        for _ in range(8):
            rig.clock.advance(7.4)
            await rig.history()
            await rig.history()
        assert rig.trail.named("fire.committed") == []
        rig.clock.advance(0.8)
        (fact,) = await rig.trail.saw("fire.committed")
    assert fact["fire_id"] == f"{task.id}@20260302T090100Z"
    assert rig.trail.named("cursor.moved") == [{"task_id": task.id, "to": "2026-03-02T09:01:00Z"}]


async def test_a_change_wakes_it_at_once(rig: Rig) -> None:
    async with rig.running("loop"):
        await rig.create(every="1s")
        rig.changed.set()
        while not rig.trail.named("fire.committed"):
            rig.clock.advance(0.5)
            await rig.history()


async def test_a_task_that_cannot_be_planned_stops_alone(rig: Rig) -> None:
    bad, good = await rig.create("bad"), await rig.create("good")
    await rig.store._database.run(  # a definition that a bug, or a newer version, might have left behind
        lambda connection: connection.execute(
            text(
                """UPDATE tasks SET definition = replace(definition, '"text":"1m"', '"text":"soon"') WHERE id = :id"""
            ),
            {"id": bad.id},
        )
    )
    await rig.pass_time(60)
    assert await rig.history("good") == [("pending", "", 1)]
    (fact,) = rig.trail.named("task.quarantined")
    assert fact["task_id"] == bad.id
    assert "soon" in fact["reason"]
    assert good.id != bad.id


async def test_without_the_part_for_rules_a_task_with_a_rule_stops_alone_and_continues_with_it(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    await rig.create("ruled", every=None, rrule="FREQ=MINUTELY")
    await rig.create("plain")
    installed = {module: one for module, one in surfaces.surfaces().items() if one.name != "recurrence"}
    entries._timetable.cache_clear()
    with monkeypatch.context() as removed:
        removed.setattr(surfaces, "surfaces", lambda: installed)
        await rig.pass_time(60)
        ruled = await rig.task("ruled")
        assert (ruled.state, ruled.schedule) == ("quarantined", "FREQ=MINUTELY")
        assert "the part of Turnkeeper that answers recurrence rules was removed" in ruled.reason
        assert await rig.history("plain") == [("pending", "", 1)]
    await rig.service.resume_task(wire.ResumeTaskRequest(name="ruled"))
    await rig.pass_time(60)
    assert ("pending", "", 1) in await rig.history("ruled")


# What breaks the store, what mends it, and what is said of it, by the database's name.
FULL = {
    "sqlite": ("PRAGMA max_page_count=1", "PRAGMA max_page_count=99999", "full"),
    "postgresql": (
        """CREATE FUNCTION fill() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN RAISE EXCEPTION 'no space left on device' USING ERRCODE = 'disk_full'; END $$;
        CREATE TRIGGER away BEFORE INSERT ON outbox EXECUTE FUNCTION fill()""",
        "DROP TRIGGER away ON outbox",
        "no space left",
    ),
}
WITHOUT_A_TABLE = {
    "sqlite": ("ALTER TABLE outbox RENAME TO away", "ALTER TABLE away RENAME TO outbox", "no such table"),
}
ONLY = pytest.mark.sqlite_only("for a server, a table that is missing makes the statement wrong, not the store")


@pytest.mark.parametrize(
    "trouble", [pytest.param(FULL, id="full"), pytest.param(WITHOUT_A_TABLE, id="without a table", marks=ONLY)]
)
async def test_a_store_in_trouble_stops_no_task(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, trouble: dict[str, tuple[str, str, str]]
) -> None:
    breaks, mends, why = trouble[rig.store._database.dialect]
    recorded = rig.trail.emit

    def emit(event: str, **fields: Any) -> None:
        recorded(event, **fields)
        if event == "store.trouble":
            raise OSError(errno.ENOSPC, "no space left on device")

    monkeypatch.setattr(rig.trail, "emit", emit)
    for number in range(8):
        await rig.create(f"task{number}", prompt="p" * 20_000)
    await rig.store._database.run(lambda connection: connection.execute(text(breaks)).close())
    rig.clock.advance(60)
    async with rig.running("loop"):
        (told, *_) = await rig.trail.saw("store.trouble")
        assert why in told["reason"]
        await rig.store._database.run(lambda connection: connection.execute(text(mends)).close())
        while len(rig.trail.named("fire.committed") + rig.trail.named("task.quarantined")) < 8:
            rig.clock.advance(1)
            await rig.history("task0")
    assert rig.trail.named("task.quarantined") == []


async def test_a_forward_step_is_recorded_and_what_it_jumped_over_is_missed(rig: Rig) -> None:
    await rig.create(catch_up="skip")
    async with rig.running("loop"):
        for _ in range(10):  # the loop's own units come between: after them it waits
            await rig.history()
        rig.clock.step(1000)
        rig.clock.advance(31)
        await rig.trail.saw("clock.stepped_forward")
        await rig.trail.saw("fire.skipped")
    assert await rig.history() == [("skipped", "missed", 17)]


async def test_a_backward_step_neither_fires_twice_nor_stops_the_task(rig: Rig) -> None:
    task = await rig.create(catch_up="skip")
    await rig.pass_time(3600 + 300)
    assert await rig.history() == [("skipped", "missed", 64), ("pending", "", 1)]
    rig.clock.step(-3600)
    async with rig.running("loop"):
        await rig.trail.saw("clock.stepped_back")
        while (await rig.task()).next_fire_at.ToDatetime().isoformat() > "2026-03-02T09:06:00":
            await rig.history()
    assert await rig.history() == [("skipped", "missed", 5), ("pending", "", 0)]
    for _ in range(60):
        await rig.pass_time(60)
    fires = (await rig.service.list_fires(wire.ListFiresRequest(name="digest", limit=1000))).fires
    ids = [fire.fire_id for fire in fires if fire.fire_id]
    assert len(ids) == len(set(ids))
    assert sum(fire.count for fire in fires) == 65, "each nominal time is covered once again"
    assert task.id


async def test_a_backward_step_leaves_the_end_of_a_pause_where_it_is(rig: Rig) -> None:
    await rig.create()
    await rig.pass_time(3600)
    await rig.service.pause_task(wire.PauseTaskRequest(name="digest", until="2026-03-02T12:00:00Z"))
    rig.clock.step(-1800)
    async with rig.running("loop"):
        await rig.trail.saw("clock.stepped_back")
    await rig.loop.tick()
    assert (await rig.task()).state == "paused"
    await rig.pass_time(2.5 * 3600)
    assert (await rig.task()).state == "active"


async def test_the_tick_looks_only_at_what_is_due(rig: Rig) -> None:
    specs = [wire.TaskSpec(name=f"t{n}", every="1d", category="loop", channel="c", prompt="p") for n in range(300)]
    await rig.service.apply_tasks(wire.ApplyTasksRequest(specs=specs))
    await rig.create("due")
    rig.clock.advance(60)
    assert (await rig.loop.tick()).tasks == 1


@pytest.mark.sqlite_only("PostgreSQL chooses a plan by what the tables hold")
async def test_the_due_scan_and_the_outbox_scan_use_their_indexes(rig: Rig) -> None:
    def plans(connection) -> list[str]:
        queries = (
            "SELECT id FROM tasks WHERE wake_us <= 5 ORDER BY wake_us LIMIT 10",
            "SELECT * FROM fires WHERE fires.is_open = 1 AND fires.task_id IN ('a', 'b')",
            "SELECT * FROM fires WHERE ready_us IS NOT NULL AND caught_up = 0 AND ready_us <= 5 ORDER BY ready_us LIMIT 5",
        )
        return [str(connection.execute(text(f"EXPLAIN QUERY PLAN {query}")).all()) for query in queries]

    due, opened, ready = await rig.store._database.run(plans)
    assert "tasks_wake" in due
    assert "fires_open" in opened
    assert "fires_ready" in ready


async def test_the_store_migrates_to_what_the_tables_say(rig: Rig) -> None:
    from alembic.autogenerate import compare_metadata
    from alembic.migration import MigrationContext

    from task_runner.store.schema import metadata

    def differences(connection: Any) -> list[Any]:
        how: dict[str, Any] = {"compare_type": connection.dialect.name != "sqlite"}  # it knows one length of text
        # A shared store's chains are made beside the migrations, as machines of earlier versions share it.
        how["include_name"] = lambda name, _kind, _parents: name not in {"audit_chains", "audit_records"}
        return compare_metadata(MigrationContext.configure(connection, opts=how), metadata)

    assert await rig.store._database.run(differences) == []
